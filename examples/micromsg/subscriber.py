"""Hears topics over MicroMsg2, whatever their publishers speak. It ends after --count messages, or with Ctrl-C.

python examples/micromsg/subscriber.py --destination "topic/garden/*/temperature"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import micromsg


async def main() -> None:
    """Print what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="micromsg://127.0.0.1:7102", help="the hub")
    parser.add_argument("--destination", default="topic/garden/*/temperature", help="* is one level")
    parser.add_argument("--count", type=int, help="messages after which to end")
    arguments = parser.parse_args()
    heard = 0
    async with micromsg.connect(arguments.url) as peer, await peer.subscribe(arguments.destination) as messages:
        print(f"listening to {arguments.destination}", flush=True)
        async for message in messages:
            print(f"{message.destination}: {message.payload.decode()}", flush=True)
            heard += 1
            if heard == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
