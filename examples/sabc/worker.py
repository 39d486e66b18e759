"""Takes jobs from a queue over sABC. A job that is not acknowledged when the worker ends goes to another one.

python examples/sabc/worker.py --queue jobs
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import sabc


async def main() -> None:
    """Do one job after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="sabc://127.0.0.1:7105", help="the hub")
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--count", type=int, help="jobs after which to end")
    arguments = parser.parse_args()
    done = 0
    async with sabc.connect(arguments.url) as peer:
        hub = sabc.RemoteHub(peer)
        async with await hub.subscribe(f"queue/{arguments.queue}") as jobs:
            async for job in jobs:
                print(f"done: {job.text}", flush=True)
                job.ack()
                done += 1
                if done == arguments.count:
                    break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
