"""Offers the irrigation over sABC, to callers of every protocol that can call. It ends with Ctrl-C.

python examples/sabc/service.py
"""

import argparse
import asyncio
import contextlib

from polywire import Request
from polywire.demo.greenhouse_pb2 import WaterReply, WaterRequest
from polywire.protocols import sabc


def water(request: Request) -> bytes:
    """The one method there is. Bodies are protobuf messages, as callers over MQTT have them."""
    asked = WaterRequest.FromString(request.body)
    if request.method != "Water" or asked.litres > 100:
        raise sabc.Failure(409, "only water, and at most 100 litres")
    print(f"watering {asked.bed}", flush=True)
    return WaterReply(bed=asked.bed, litres=asked.litres).SerializeToString()


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="sabc://127.0.0.1:7105", help="the hub")
    async with sabc.connect(parser.parse_args().url) as peer:
        await sabc.RemoteHub(peer).serve("irrigation", water)
        print("serving irrigation", flush=True)
        await peer.wait_ended()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
