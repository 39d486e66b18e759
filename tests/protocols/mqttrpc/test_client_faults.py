"""Stubs and services of RPC over MQTT on networks that cut, delay and hang up."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import ModuleType
from typing import Any

import pytest

import polywire
from polywire.backoff import Backoff
from polywire.protocols.mqttrpc import client as rpc
from polywire.protocols.mqttrpc.server import Server, serve
from tests.client.loops import run, until
from tests.faults.proxy import Cut, Proxy, octets, random_cuts, whole
from tests.hub_process import running_hub
from tests.mosquitto_process import MISSING, PROGRAM, running_mosquitto

pytestmark = pytest.mark.timeout(120)

QUICK = Backoff(first=0.01, most=0.05)
NUMBERS = itertools.count()
ROUNDS = 2


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in an event loop of its own, which must end with nothing left in it."""

    @functools.wraps(test)
    def wrapped(*arguments: Any, **names: Any) -> None:
        run(functools.partial(test, *arguments, **names), 60)

    return wrapped


class Greeter:
    """The service's methods. ``gate`` holds them up, ``said`` is what SayHello was asked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.gate = asyncio.Event()
        self.gate.set()
        self.said: list[str] = []

    async def SayHello(self, request: Any) -> Any:  # noqa: N802 - the service's own name
        self.said.append(request.name)
        await self.gate.wait()
        return self._module.HelloResponse(greeting=f"hello, {request.name}")

    async def GreetAll(self, requests: AsyncIterator[Any]) -> Any:  # noqa: N802
        names = [request.name async for request in requests]
        return self._module.HelloResponse(greeting=f"hello, {' and '.join(names)}")

    async def GreetOften(self, request: Any) -> AsyncIterator[Any]:  # noqa: N802
        for number in range(int(request.name)):
            yield self._module.HelloResponse(greeting=str(number))

    async def Chat(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            yield self._module.HelloResponse(greeting=request.name.upper())


@pytest.fixture(scope="module", params=["hub", "mosquitto"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if request.param == "hub":
        with running_hub() as hub:
            yield hub.port("mqtt")
    elif PROGRAM is None:
        pytest.skip(MISSING)
    else:
        with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as found:
            yield found


class Apart:
    """A stub and a service, each behind a proxy of its own."""

    def __init__(
        self, module: ModuleType, handler: Greeter, stub: Any, server: Server, proxies: tuple[Proxy, Proxy]
    ) -> None:
        self.module, self.handler, self.stub, self.server = module, handler, stub, server
        self.callers, self.services = proxies

    def request(self, name: str) -> Any:
        return self.module.HelloRequest(name=name)

    async def requests(self, *names: str) -> AsyncIterator[Any]:
        for name in names:
            yield self.request(name)


@contextlib.asynccontextmanager
async def apart(
    port: int, module: ModuleType, cut: Cut = whole, *, delay: float = 0.0, kept: bool = False, qos: int = 1
) -> AsyncIterator[Apart]:
    """``kept``: the hub keeps the sessions of both."""
    descriptor = module.DESCRIPTOR.services_by_name["MyCoolService"]
    name = f"apart-{next(NUMBERS)}"
    handler = Greeter(module)
    proxies = Proxy(port, cut, delay=delay), Proxy(port, cut, delay=delay)
    options: list[dict[str, Any]] = [{"name": name, "qos": qos, "backoff": QUICK} for _ in proxies]
    if kept:
        for number, each in enumerate(options):
            each.update(client_id=f"{name}-{number}", clean_session=False)
    try:
        async with (
            serve(f"mqtt://127.0.0.1:{proxies[1].port}", descriptor, handler, **options[1]) as server,
            rpc.connect(f"mqtt://127.0.0.1:{proxies[0].port}", descriptor, **options[0]) as stub,
        ):
            yield Apart(module, handler, stub, server, proxies)
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.mark.parametrize(
    ("cut", "delay"),
    [(octets, 0.0), (random_cuts(1), 0.0), (random_cuts(2), 0.001), (whole, 0.02)],
    ids=["octets", "cuts", "slow-cuts", "slow"],
)
@in_loop
async def test_calls_of_all_shapes_have_the_same_result_however_they_are_cut(
    port: int, my_cool_service: ModuleType, cut: Cut, delay: float
) -> None:
    async with apart(port, my_cool_service, cut, delay=delay) as p:
        assert (await p.stub.SayHello(p.request("wörld" * 100))).greeting == "hello, " + "wörld" * 100
        assert (await p.stub.GreetAll(p.requests("a", "b", "c"))).greeting == "hello, a and b and c"
        assert [reply.greeting async for reply in p.stub.GreetOften(p.request("3"))] == ["0", "1", "2"]
        assert [reply.greeting async for reply in p.stub.Chat(p.requests("x", "y"))] == ["X", "Y"]


@in_loop
async def test_a_stub_whose_connection_was_cut_calls_again(port: int, my_cool_service: ModuleType) -> None:
    async with apart(port, my_cool_service) as p:
        for number in range(3):
            assert (await p.stub.SayHello(p.request(str(number)))).greeting == f"hello, {number}"
            link = p.stub._caller._client._peer.link
            p.callers.cut()
            await until(lambda: p.stub._caller._client._peer.link is not link)  # noqa: B023 - awaited here


@in_loop
async def test_an_answer_is_given_when_the_service_is_back(port: int, my_cool_service: ModuleType) -> None:
    async with apart(port, my_cool_service) as p:
        p.handler.gate.clear()
        call = asyncio.ensure_future(p.stub.SayHello(p.request("patience")))
        await until(lambda: bool(p.handler.said))
        p.services.cut()
        p.handler.gate.set()
        assert (await call).greeting == "hello, patience"


@in_loop
async def test_an_answer_that_found_nobody_ends_the_call_at_its_time(port: int, my_cool_service: ModuleType) -> None:
    async with apart(port, my_cool_service) as p:
        p.handler.gate.clear()
        call = asyncio.ensure_future(p.stub.SayHello(p.request("nobody"), timeout=1))
        await until(lambda: bool(p.handler.said))
        p.callers.retarget(1)  # where nobody listens
        p.callers.cut()
        p.handler.gate.set()
        with pytest.raises(polywire.Timeout):
            await call
        assert not p.stub._caller._waiting
        p.callers.retarget(port)
        assert (await p.stub.SayHello(p.request("again"))).greeting == "hello, again"


@in_loop
async def test_a_call_that_was_never_sent_is_not_sent_when_its_time_is_up(
    port: int, my_cool_service: ModuleType
) -> None:
    async with apart(port, my_cool_service) as p:
        p.callers.retarget(1)  # where nobody listens
        p.callers.cut()
        await until(lambda: not p.stub._caller._client.connected)
        with pytest.raises(polywire.Timeout) as late:
            await p.stub.SayHello(p.request("too late"), timeout=0.1)
        assert late.value.sent is False
        cancelled = asyncio.ensure_future(p.stub.SayHello(p.request("cancelled")))
        await until(lambda: bool(p.stub._caller._waiting))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        p.callers.retarget(port)
        assert (await p.stub.SayHello(p.request("in time"))).greeting == "hello, in time"
        assert p.handler.said == ["in time"]


@in_loop
async def test_calls_of_all_shapes_outlive_cuts_where_sessions_are_kept(port: int, my_cool_service: ModuleType) -> None:
    async with apart(port, my_cool_service, kept=True, qos=2) as p:

        async def trouble() -> None:
            ends = (p.callers, p.stub._caller._client), (p.services, p.server._client)
            for proxy, client in itertools.cycle(ends):
                # Mosquitto 2.0.11 sends a QoS 2 message again after its PUBREL where an attempt to connect is cut.
                await until(lambda: client.connected)  # noqa: B023 - awaited here
                await asyncio.sleep(0.03)  # the moment of the cut is the point
                proxy.cut()

        names = [str(number) for number in range(200)]
        cutting = asyncio.create_task(trouble())
        try:
            for _ in range(ROUNDS):
                hellos = await asyncio.gather(*(p.stub.SayHello(p.request(name)) for name in names))
                assert [reply.greeting for reply in hellos] == [f"hello, {name}" for name in names]
                assert (await p.stub.GreetAll(p.requests(*names))).greeting == f"hello, {' and '.join(names)}"
                assert [reply.greeting async for reply in p.stub.GreetOften(p.request("200"))] == names
                assert [reply.greeting async for reply in p.stub.Chat(p.requests(*names))] == names
        finally:
            cutting.cancel()
        assert sorted(p.handler.said) == sorted(names * ROUNDS)


@in_loop
async def test_whoever_waits_is_told_when_the_connection_is_gone_for_good(
    port: int, my_cool_service: ModuleType
) -> None:
    descriptor = my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]
    request = my_cool_service.HelloRequest(name="anybody")
    proxy = Proxy(port)
    try:
        async with rpc.connect(f"mqtt://127.0.0.1:{proxy.port}", descriptor, name="gone", backoff=None) as stub:
            call = asyncio.ensure_future(stub.SayHello(request))
            await until(lambda: bool(stub._caller._waiting))
            proxy.cut()
            with pytest.raises(polywire.Closed):
                await call
            with pytest.raises(polywire.Closed):
                await stub.SayHello(request)
    finally:
        proxy.close()


@in_loop
async def test_whoever_waits_is_told_when_the_stub_is_closed(port: int, my_cool_service: ModuleType) -> None:
    descriptor = my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]
    request = my_cool_service.HelloRequest(name="anybody")
    async with rpc.connect(f"mqtt://127.0.0.1:{port}", descriptor, name="closed") as stub:
        call = asyncio.ensure_future(stub.SayHello(request))
        await until(lambda: bool(stub._caller._waiting))
    with pytest.raises(polywire.Closed) as closed:
        await call
    assert closed.value.sent is True
