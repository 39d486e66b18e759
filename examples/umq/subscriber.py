"""Hears topics over UMQ, whatever their publishers speak. It ends after --count messages, or with Ctrl-C.

python examples/umq/subscriber.py --topic "garden/*/temperature"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import umq


async def main() -> None:
    """Print what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the hub")
    parser.add_argument("--topic", default="garden/*/temperature", help="* is one level, a last ** any number")
    parser.add_argument("--count", type=int, help="messages after which to end")
    arguments = parser.parse_args()
    heard = 0
    async with umq.connect(arguments.url) as peer:
        hub = umq.RemoteHub(peer)
        async with await hub.subscribe(arguments.topic) as messages:
            print(f"listening to {arguments.topic}", flush=True)
            async for message in messages:
                print(f"{message.channel}: {message.body.decode()}", flush=True)
                heard += 1
                if heard == arguments.count:
                    break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
