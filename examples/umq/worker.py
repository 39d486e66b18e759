"""Takes jobs from a queue over UMQ. UMQ has no acknowledgements: a job is the worker's once it is written.

python examples/umq/worker.py --queue jobs
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import umq


async def main() -> None:
    """Do one job after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the hub")
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, help="jobs after which to end")
    arguments = parser.parse_args()
    done = 0
    async with umq.connect(arguments.url) as peer:
        hub = umq.RemoteHub(peer)
        async with await hub.subscribe(f"queue/{arguments.queue}") as jobs:
            async for job in jobs:
                print(f"done: {job.body.decode()}", flush=True)
                done += 1
                if done == arguments.count:
                    break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
