"""Offers the irrigation with RPC over MQTT, to callers of every protocol that can call. It ends with Ctrl-C.

python examples/mqttrpc/service.py
"""

import argparse
import asyncio
import contextlib

from polywire.demo import greenhouse_pb2  # what protoc made of greenhouse.proto
from polywire.protocols.mqttrpc import RpcError
from polywire.protocols.mqttrpc.server import serve

IRRIGATION = greenhouse_pb2.DESCRIPTOR.services_by_name["Irrigation"]


class Irrigation:
    """The service's methods, by the names of greenhouse.proto."""

    async def Water(self, request: greenhouse_pb2.WaterRequest) -> greenhouse_pb2.WaterReply:  # noqa: N802
        """Give a bed some water."""
        if request.litres > 100:
            raise RpcError(409, "tank-empty", "only water, and at most 100 litres")
        print(f"watering {request.bed}", flush=True)
        return greenhouse_pb2.WaterReply(bed=request.bed, litres=request.litres)


async def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="the hub, or any other MQTT 3.1.1 server")
    async with serve(parser.parse_args().url, IRRIGATION, Irrigation(), name="irrigation"):
        print("serving irrigation", flush=True)
        await asyncio.Event().wait()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
