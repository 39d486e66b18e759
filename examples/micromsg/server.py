"""A MicroMsg2 server without a hub: it passes readings on to those who subscribed. It ends with Ctrl-C.

python examples/micromsg/server.py, and examples/micromsg/client.py in another window
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import micromsg


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=7102, help="0 picks one")

    async def handler(_: micromsg.Peer, message: micromsg.Received) -> None:
        """Each message comes here, and is acknowledged when this returns."""
        wanted = await micromsg.publish(server.peers, message.destination, message.payload, message.properties)
        print(f"{message.payload.decode()} for {wanted}", flush=True)

    async with micromsg.serve(handler, "127.0.0.1", parser.parse_args().port) as server:
        print(f"serving at {server.url}", flush=True)
        await server.wait_closed()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
