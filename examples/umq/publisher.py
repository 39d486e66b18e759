"""Publishes over UMQ; subscribers of every protocol get it. The hub acknowledges each message.

python examples/umq/publisher.py 21.5 21.6
python examples/umq/publisher.py --topic queue/jobs "water the tomatoes"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import umq


async def main() -> None:
    """Publish each body, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the hub")
    parser.add_argument("--topic", default="garden/pond/temperature", help="a topic, or queue/ and a queue's name")
    parser.add_argument("bodies", nargs="*", default=["21.5"], help="a message each")
    arguments = parser.parse_args()
    async with umq.connect(arguments.url) as peer:
        hub = umq.RemoteHub(peer)
        for body in arguments.bodies:
            await hub.publish(arguments.topic, body, headers={"unit": "C"}, timeout=10)
            print(f"acknowledged: {body}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
