"""Hears topics over FMQP, whatever their publishers speak. It ends after --count messages, or with Ctrl-C.

python examples/fmqp/subscriber.py --topic "garden/*/temperature"
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import fmqp


async def main() -> None:
    """Print what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="fmqp://127.0.0.1:7103", help="the hub, or any other FMQP broker")
    parser.add_argument("--topic", default="garden/*/temperature", help="* is one level")
    parser.add_argument("--count", type=int, help="messages after which to end")
    arguments = parser.parse_args()
    heard = 0
    async with fmqp.connect(arguments.url) as client, client.subscribe(arguments.topic) as messages:
        await client.settled()  # FMQP does not answer a subscription; this waits until the broker has it
        print(f"listening to {arguments.topic}", flush=True)
        async for message in messages:
            print(f"{message.topic}: {message.body.decode()}", flush=True)
            heard += 1
            if heard == arguments.count:
                break


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
