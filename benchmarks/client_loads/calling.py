"""Calls from one client to one server, each a process of its own.

``python -m benchmarks.client_loads.calling NAME serve`` serves and prints its port;
``… NAME PORT IN_FLIGHT CALLS`` calls, and prints calls a second and the median in microseconds. The server
answers with what it got; gRPC is given bytes and no messages of protobuf, so that it has nothing more to do.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.client_loads import BODY

TEXT = BODY.decode()
METHOD = "/bench.Echo/Echo"
WARM_UP = 10


async def serve_umq() -> None:
    from polywire.protocols import umq

    async def echo(request: Any) -> str:
        return str(request.text)

    async with umq.serve(echo, "127.0.0.1", 0) as server:
        print(urlsplit(server.url).port, flush=True)
        await server.wait_closed()


async def call_umq(port: int, in_flight: int, calls: int) -> tuple[float, float]:
    from polywire.protocols import umq

    async with umq.connect(f"umq://127.0.0.1:{port}") as peer:

        async def call() -> None:
            await peer.call(TEXT)

        return await timed(call, in_flight, calls)


async def serve_grpc() -> None:
    import grpc

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc] # untyped
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(echo) if details.method == METHOD else None

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def call_grpc(port: int, in_flight: int, calls: int) -> tuple[float, float]:
    import grpc

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(METHOD)

        async def call() -> None:
            await method(BODY)

        return await timed(call, in_flight, calls)


async def timed(call: Callable[[], Awaitable[None]], in_flight: int, calls: int) -> tuple[float, float]:
    """Calls a second, and the median of how long one takes in microseconds."""
    times: list[float] = []
    left = 0

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            await call()
            times.append(time.perf_counter() - begun)

    async def all_callers(count: int) -> None:
        nonlocal left
        left = count
        await asyncio.gather(*[caller() for _ in range(in_flight)])

    await all_callers(calls // WARM_UP)
    times.clear()
    begun = time.perf_counter()
    await all_callers(calls)
    return calls / (time.perf_counter() - begun), median(times) * 1e6


SERVERS = {"umq": serve_umq, "grpc": serve_grpc}
CLIENTS = {"umq": call_umq, "grpc": call_grpc}

if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    if rest == ["serve"]:
        asyncio.run(SERVERS[name]())
    else:
        print(*asyncio.run(CLIENTS[name](*map(int, rest))))
