"""An sABC server without a hub: it greets in the language a header names. It ends with Ctrl-C.

python examples/sabc/server.py, and examples/sabc/client.py in another window
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import sabc

GREETINGS = {"en": "hello", "es": "hola", "de": "hallo"}


def handler(request: sabc.Request) -> sabc.Reply:
    """Each message comes here; what its headers mean is up to the two programs."""
    language = request.header("language") or "en"
    if language not in GREETINGS:
        raise sabc.Failure(404, f"I don't speak {language}")
    return sabc.Reply(f"{GREETINGS[language]}, {request.body.decode()}", (("language", language),))


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=7105, help="0 picks one")
    async with sabc.serve(handler, "127.0.0.1", parser.parse_args().port) as server:
        print(f"serving at {server.url}", flush=True)
        await server.wait_closed()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
