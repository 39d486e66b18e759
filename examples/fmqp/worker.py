"""Takes jobs from a queue over FMQP. FMQP has no acknowledgements: a job is the worker's once it is written.

python examples/fmqp/worker.py --queue jobs
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import fmqp


async def main() -> None:
    """Do one job after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="fmqp://127.0.0.1:7103", help="the hub")
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, help="jobs after which to end")
    arguments = parser.parse_args()
    done = 0
    async with fmqp.connect(arguments.url) as client, client.subscribe(f"queue/{arguments.queue}") as jobs:
        async for job in jobs:
            print(f"done: {job.body.decode()}", flush=True)
            done += 1
            if done == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
