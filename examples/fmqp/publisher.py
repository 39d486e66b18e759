"""Publishes over FMQP; subscribers of every protocol get it. FMQP has no acknowledgements: a message is sent, no more.

python examples/fmqp/publisher.py 21.5 21.6
python examples/fmqp/publisher.py --topic queue/jobs "water the tomatoes"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import fmqp


async def main() -> None:
    """Publish each body, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="fmqp://127.0.0.1:7103", help="the hub, or any other FMQP broker")
    parser.add_argument("--topic", default="garden/pond/temperature", help="a topic, or queue/ and a queue's name")
    parser.add_argument("bodies", nargs="*", default=["21.5"], help="a message each")
    arguments = parser.parse_args()
    async with fmqp.connect(arguments.url) as client:
        for body in arguments.bodies:
            await client.publish(arguments.topic, body.encode())
            print(f"sent: {body}")
        await client.settled()  # the broker has dealt with all of it


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
