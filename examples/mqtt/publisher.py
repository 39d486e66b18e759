"""Publishes over MQTT with QoS 1; subscribers of every protocol get it. The hub acknowledges each message.

python examples/mqtt/publisher.py 21.5 21.6
python examples/mqtt/publisher.py --topic queue/jobs "water the tomatoes"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import mqtt


async def main() -> None:
    """Publish each body, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="the hub, or any other MQTT 3.1.1 server")
    parser.add_argument("--topic", default="garden/pond/temperature", help="a topic, or queue/ and a queue's name")
    parser.add_argument("bodies", nargs="*", default=["21.5"], help="a message each")
    arguments = parser.parse_args()
    async with mqtt.connect(arguments.url) as client:
        for body in arguments.bodies:
            await client.publish(arguments.topic, body.encode(), qos=1)
            print(f"acknowledged: {body}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
