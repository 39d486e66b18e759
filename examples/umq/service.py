"""Offers the irrigation over UMQ, to callers of every protocol that can call. It ends with Ctrl-C.

python examples/umq/service.py
"""

import argparse
import asyncio
import contextlib

from polywire.demo.greenhouse_pb2 import WaterReply, WaterRequest
from polywire.protocols import umq


def water(request: umq.HubRequest) -> bytes:
    """The one method there is. Bodies are protobuf messages, as callers over MQTT have them."""
    asked = WaterRequest.FromString(request.body)
    if request.method != "Water" or asked.litres > 100:
        raise umq.RpcException("only water, and at most 100 litres")
    print(f"watering {asked.bed}", flush=True)
    return WaterReply(bed=asked.bed, litres=asked.litres).SerializeToString()


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the hub")
    async with umq.connect(parser.parse_args().url) as peer:
        await umq.RemoteHub(peer).serve("irrigation", water)
        print("serving irrigation", flush=True)
        await peer.wait_ended()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
