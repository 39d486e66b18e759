"""Takes jobs from a queue over MQTT. A job that is not acknowledged when the worker ends goes to another one.

python examples/mqtt/worker.py --queue jobs
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import mqtt


async def main() -> None:
    """Do one job after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="the hub")
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, help="jobs after which to end")
    arguments = parser.parse_args()
    done = 0
    queue = f"queue/{arguments.queue}"
    async with mqtt.connect(arguments.url) as client, await client.consume(queue, qos=1) as jobs:
        async for job in jobs:
            print(f"done: {job.message.payload.decode()}", flush=True)
            job.ack()
            done += 1
            if done == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
