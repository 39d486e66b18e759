"""Calls the irrigation over UMQ, whatever its service speaks.

python examples/umq/caller.py tomatoes 20
"""

import argparse
import asyncio
import contextlib
import sys

from polywire.demo.greenhouse_pb2 import WaterReply, WaterRequest
from polywire.protocols import umq


async def main() -> None:
    """Water one bed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="umq://127.0.0.1:7101", help="the hub")
    parser.add_argument("bed", nargs="?", default="tomatoes")
    parser.add_argument("litres", nargs="?", type=int, default=20)
    arguments = parser.parse_args()
    request = WaterRequest(bed=arguments.bed, litres=arguments.litres)
    async with umq.connect(arguments.url) as peer:
        try:
            answer = await umq.RemoteHub(peer).call("irrigation", "Water", request.SerializeToString(), timeout=10)
        except umq.RpcException as error:
            sys.exit(f"refused: {error}")
        reply = WaterReply.FromString(answer.body)
        print(f"{reply.litres} litres for {reply.bed}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
