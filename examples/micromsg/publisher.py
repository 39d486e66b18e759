"""Sends over MicroMsg2; subscribers of every protocol get it. The hub acknowledges each message.

python examples/micromsg/publisher.py 21.5 21.6
python examples/micromsg/publisher.py --destination jobs "water the tomatoes"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import micromsg


async def main() -> None:
    """Send each body, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="micromsg://127.0.0.1:7102", help="the hub")
    parser.add_argument("--destination", default="topic/garden/pond/temperature", help="topic/ and a topic, or a queue")
    parser.add_argument("bodies", nargs="*", default=["21.5"], help="a message each")
    arguments = parser.parse_args()
    async with micromsg.connect(arguments.url) as peer:
        for body in arguments.bodies:
            await peer.send(arguments.destination, body, {"unit": "C", "room": 1})
            print(f"acknowledged: {body}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
