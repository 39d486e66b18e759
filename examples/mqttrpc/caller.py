"""Calls the irrigation with RPC over MQTT, whatever its service speaks.

python examples/mqttrpc/caller.py tomatoes 20
"""

import argparse
import asyncio
import contextlib
import sys

from polywire.demo import greenhouse_pb2  # what protoc made of greenhouse.proto
from polywire.protocols.mqttrpc import RpcError
from polywire.protocols.mqttrpc.client import connect

IRRIGATION = greenhouse_pb2.DESCRIPTOR.services_by_name["Irrigation"]


async def main() -> None:
    """Water one bed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="the hub, or any other MQTT 3.1.1 server")
    parser.add_argument("bed", nargs="?", default="tomatoes")
    parser.add_argument("litres", nargs="?", type=int, default=20)
    arguments = parser.parse_args()
    request = greenhouse_pb2.WaterRequest(bed=arguments.bed, litres=arguments.litres)
    async with connect(arguments.url, IRRIGATION, name="irrigation") as stub:
        try:
            reply = await stub.Water(request, timeout=10)
        except RpcError as error:
            sys.exit(f"refused: {error}")
        print(f"{reply.litres} litres for {reply.bed}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
