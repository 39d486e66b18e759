"""Hears topics over MQTT with QoS 1, whatever their publishers speak. It ends after --count messages, or with Ctrl-C.

python examples/mqtt/subscriber.py --topic "garden/+/temperature"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import mqtt


async def main() -> None:
    """Print what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="the hub, or any other MQTT 3.1.1 server")
    parser.add_argument("--topic", default="garden/+/temperature", help="+ is one level, a last # any number")
    parser.add_argument("--count", type=int, help="messages after which to end")
    arguments = parser.parse_args()
    heard = 0
    async with mqtt.connect(arguments.url) as client, await client.subscribe(arguments.topic, qos=1) as messages:
        print(f"listening to {arguments.topic}", flush=True)
        async for message in messages:
            print(f"{message.topic}: {message.payload.decode()}", flush=True)
            heard += 1
            if heard == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
