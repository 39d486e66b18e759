"""A UMQ client of examples/umq/server.py, without a hub: a call, and a topic.

python examples/umq/client.py
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import umq


async def main() -> None:
    """Call, listen, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the server")
    async with umq.connect(parser.parse_args().url) as peer:
        answer = await peer.call("shout hello", timeout=10)
        print(answer.text)
        async with peer.subscription() as topic:  # the subscriber makes the topic's id, and tells it
            await peer.call(f"count 3 {topic.topic_id}", timeout=10)
            async for update in topic:
                print(update.text)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
