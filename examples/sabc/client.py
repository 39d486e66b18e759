"""An sABC client of examples/sabc/server.py, without a hub: messages that are answered, one of them with an error.

python examples/sabc/client.py
"""

import argparse
import asyncio
import contextlib

from polywire.protocols import sabc


async def main() -> None:
    """Ask, and leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="sabc://127.0.0.1:7105", help="the server")
    async with sabc.connect(parser.parse_args().url, client_id="example") as peer:
        for language in ("en", "es", "fr"):
            try:
                answer = await peer.ask("Anna", (("language", language),), timeout=10)
            except sabc.Failure as error:
                print(f"{error.code}: {error.text}")
            else:
                print(answer.body.decode())


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
