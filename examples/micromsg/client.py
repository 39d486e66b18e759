"""A MicroMsg2 client of examples/micromsg/server.py, without a hub: it sends readings, and hears those that are warm.

python examples/micromsg/client.py
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import micromsg

WARM = micromsg.Filter((micromsg.Clause("degrees", ">=", 20),))


async def main() -> None:
    """Subscribe, send, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="micromsg://127.0.0.1:7102", help="the server")
    url = parser.parse_args().url
    async with micromsg.connect(url) as peer, await peer.subscribe("topic/rooms/*", WARM) as rooms:
        for room, degrees in (("cellar", 12), ("kitchen", 21)):
            await peer.send(f"topic/rooms/{room}", f"{degrees} degrees", {"degrees": degrees})
        message = await anext(rooms)
        print(f"{message.destination}: {message.payload.decode()}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
