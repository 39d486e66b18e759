"""Takes jobs from a queue over MicroMsg2. A job that is not acknowledged when the worker ends goes to another one.

python examples/micromsg/worker.py --queue jobs
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import micromsg


async def main() -> None:
    """Do one job after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="micromsg://127.0.0.1:7102", help="the hub")
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, help="jobs after which to end")
    arguments = parser.parse_args()
    done = 0
    async with micromsg.connect(arguments.url) as peer, await peer.subscribe(arguments.queue) as jobs:
        async for job in jobs:
            print(f"done: {job.payload.decode()}", flush=True)
            job.ack()
            done += 1
            if done == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
