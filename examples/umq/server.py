"""A UMQ server without a hub: it shouts back, and counts down on a topic. It ends with Ctrl-C.

python examples/umq/server.py, and examples/umq/client.py in another window
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import umq


async def count_down(publication: umq.Publication, start: int) -> None:
    """Updates of a topic, and its end."""
    async with publication:
        for number in range(start, 0, -1):
            await publication.update(str(number))


async def handler(request: umq.Request) -> str:
    """Each call comes here; what its text means is up to the two programs."""
    what, _, rest = request.text.partition(" ")
    if what == "count":
        start, topic_id = rest.split()
        await count_down(request.peer.publication(int(topic_id)), int(start))
        return "counted"
    return rest.upper()


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=7101, help="0 picks one")
    async with umq.serve(handler, "127.0.0.1", parser.parse_args().port) as server:
        print(f"serving at {server.url}", flush=True)
        await server.wait_closed()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
