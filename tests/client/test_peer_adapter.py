"""The one face over UMQ, sABC and MicroMsg2: what goes along with a body, calls, and connections that are lost."""

import asyncio
import datetime as dt
from collections.abc import Iterator

import pytest

import polywire
from polywire.backoff import Backoff
from polywire.client.errors import BufferFull, CallFailed, Refused, Timeout
from polywire.client.message import Header, Request
from polywire.client.transport import Opening
from tests.client.loops import run, until
from tests.faults.proxy import Proxy
from tests.hub_process import HubProcess, running_hub

OVER = ("umq", "micromsg", "sabc", "sabc_ws")
CALLING = ("umq", "sabc", "sabc_ws")
QUICK = Backoff(first=0.01, most=0.05)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def opened(hub: HubProcess, listener: str, **options: object) -> Opening[polywire.Bus]:
    protocol = listener.partition("_")[0]
    return polywire.connect(hub.addresses[listener], protocol=protocol, **options)  # type: ignore[arg-type] # as they come


def through(hub: HubProcess, listener: str, port: int, **options: object) -> Opening[polywire.Bus]:
    """The same, by way of a proxy."""
    url = hub.addresses[listener].replace(f":{hub.port(listener)}", f":{port}")
    protocol = listener.partition("_")[0]
    return polywire.connect(url, protocol=protocol, backoff=QUICK, **options)  # type: ignore[arg-type] # as they come


@pytest.mark.parametrize("listener", OVER)
def test_headers_and_content_type_go_along(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        when = dt.datetime(2026, 11, 15, 12, 30, tzinfo=dt.UTC)
        async with opened(hub, listener) as bus, bus.subscribe(f"along/{listener}") as messages:
            headers: dict[str, Header] = {"by": "anna", "n": 2, "at": when}
            await bus.publish(f"along/{listener}", b"\xff\x00", headers=headers, content_type="image/png")
            message = await anext(messages)
            assert message.body == b"\xff\x00"
            assert message.headers["by"] == "anna"
            expected = {
                "umq": (2, when.isoformat(), None),
                "micromsg": (2, when, "image/png"),
                "sabc": ("2", "Sun, 15 Nov 2026 12:30:00 GMT", "image/png"),
            }
            found = (message.headers["n"], message.headers["at"], message.content_type)
            assert found == expected[bus.protocol]

    run(main)


@pytest.mark.parametrize("provider", CALLING)
@pytest.mark.parametrize("caller", CALLING)
def test_a_service_is_called_whatever_the_two_speak(hub: HubProcess, caller: str, provider: str) -> None:
    async def shout(request: Request) -> bytes:
        if request.method == "refuse":
            raise CallFailed(403, "forbidden", "not for you")
        if request.method == "break":
            raise ValueError("internal")
        return request.body.upper() + b"\xff"

    async def main() -> None:
        name = f"shout-{caller}-{provider}"
        async with opened(hub, provider) as serving, opened(hub, caller) as calling:
            service = await serving.serve(name, shout)
            with pytest.raises(ValueError, match="already"):
                await serving.serve(name, shout)
            assert (await calling.call(name, "text", "hello")).body == b"HELLO\xff"
            with pytest.raises(CallFailed, match="not for you"):
                await calling.call(name, "refuse")
            with pytest.raises(CallFailed) as broken:
                await calling.call(name, "break")
            assert "internal" not in str(broken.value)
            await service.close()
            with pytest.raises(CallFailed) as nobody:
                await calling.call(name, "text")
            assert nobody.value.code == 404

    run(main)


@pytest.mark.parametrize("listener", CALLING)
def test_a_call_ends_at_its_time(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def wait(_: Request) -> bytes:
            await never.wait()
            return b""

        async with opened(hub, listener) as bus:
            await bus.serve(f"waiting-{listener}", wait)
            with pytest.raises((Timeout, CallFailed)):
                await bus.call(f"waiting-{listener}", "", timeout=0.05)

    run(main)


@pytest.mark.parametrize("listener", OVER)
def test_what_the_hub_refuses_is_raised_where_it_was_asked_for(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        async with opened(hub, listener) as bus:
            with pytest.raises(Refused):
                await bus.publish("$/secret", "x")
            with pytest.raises(Refused):
                await bus.subscribe("a/**/b" if listener == "micromsg" else "queue/*")
            assert await bus.publish("fine", "x") is polywire.Promise.ACKNOWLEDGED

    run(main)


@pytest.mark.parametrize("listener", OVER)
def test_a_connection_that_is_cut_comes_back_with_its_subscriptions_and_services(
    hub: HubProcess, listener: str
) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port(listener))
        port = proxy.port
        try:
            async with through(hub, listener, port) as bus, bus.subscribe(f"cut/{listener}") as messages:
                if listener in CALLING:
                    await bus.serve(f"cut-{listener}", lambda request: request.body)
                for number in range(3):
                    lost = _connection(bus)
                    proxy.cut()
                    await until(lambda: _connection(bus) is not lost)  # noqa: B023 - awaited here
                    receipt = bus.publish(f"cut/{listener}", str(number))  # most likely while away
                    assert await receipt is polywire.Promise.ACKNOWLEDGED
                    assert (await anext(messages)).text == str(number)
                if listener in CALLING:
                    assert (await bus.call(f"cut-{listener}", "m", "still there")).text == "still there"
        finally:
            proxy.close()

    run(main)


@pytest.mark.parametrize("listener", OVER)
def test_what_was_published_into_a_breaking_connection_arrives_at_least_once(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port(listener), most=20_000)
        try:
            async with (
                opened(hub, listener) as reader,
                reader.subscribe(f"breaking/{listener}", limit=5000) as messages,
                through(hub, listener, proxy.port) as bus,
            ):
                receipts = [bus.publish(f"breaking/{listener}", f"{number:0100}") for number in range(1000)]
                for receipt in receipts:
                    assert await receipt is polywire.Promise.ACKNOWLEDGED
                seen: set[int] = set()
                while len(seen) < 1000:
                    seen.add(int((await anext(messages)).text))
        finally:
            proxy.close()

    run(main, 60)


@pytest.mark.parametrize("listener", OVER)
def test_no_more_is_kept_than_allowed_while_away(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port(listener))
        try:
            async with through(hub, listener, proxy.port, buffer=10_000) as bus:
                proxy.close()
                await until(lambda: not bus.connected)
                kept = [bus.publish("away", b"x" * 1000) for _ in range(9)]
                with pytest.raises(BufferFull) as full:
                    kept += [bus.publish("away", b"x" * 1000) for _ in range(9)]
                assert full.value.sent is False
                waiting = asyncio.ensure_future(_awaited(kept[0]))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                bus.publish("away", b"x" * 1000)  # the cancelled one has made room
                closing = asyncio.create_task(bus.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.wait([closing])
                await bus._adapter._keeper.close()  # type: ignore[attr-defined] # not to wait for the time to close
                bus._adapter._end(polywire.Closed("over"))  # type: ignore[attr-defined]
                with pytest.raises(polywire.Closed) as closed:
                    await kept[1]
                assert closed.value.sent is False
        finally:
            proxy.close()

    run(main)


def _connection(bus: polywire.Bus) -> object:
    return bus._adapter._connection  # type: ignore[attr-defined] # of adapters like these


async def _awaited(receipt: object) -> object:
    return await receipt  # type: ignore[misc] # whatever it is


@pytest.mark.parametrize("listener", OVER)
def test_without_a_way_back_the_end_of_the_connection_is_told(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port(listener))
        try:
            url = hub.addresses[listener].replace(f":{hub.port(listener)}", f":{proxy.port}")
            async with polywire.connect(url, protocol=listener.partition("_")[0], backoff=None) as bus:
                async with bus.subscribe("end") as messages:
                    reading = asyncio.ensure_future(anext(messages))
                    await bus.ping()
                    proxy.close()
                    with pytest.raises(polywire.Closed):
                        await reading
                with pytest.raises(polywire.Closed):
                    await bus.publish("end", "x")
        finally:
            proxy.close()

    run(main)


def test_a_hub_that_is_restarted_under_publishers_and_subscribers_loses_nothing_that_was_acknowledged() -> None:
    async def main() -> None:
        sets: list[str] = []
        with running_hub() as hub:
            addresses = dict(hub.addresses)
            sets = [f"listen.{key}={address}" for key, address in addresses.items()]
            buses = {listener: await opened(hub, listener, backoff=QUICK) for listener in OVER}
            streams = {listener: await buses[listener].subscribe(f"restart/{listener}") for listener in OVER}
            for listener, bus in buses.items():
                await bus.publish(f"restart/{listener}", "before")
                assert (await anext(streams[listener])).text == "before"
            assert hub.stop() == 0
        await until(lambda: not any(bus.connected for bus in buses.values()))
        receipts = [bus.publish(f"restart/{listener}", "meanwhile") for listener, bus in buses.items()]
        with running_hub(*sets):
            for receipt in receipts:
                assert await receipt is polywire.Promise.ACKNOWLEDGED
            for listener, bus in buses.items():
                await bus.publish(f"restart/{listener}", "after")
                assert (await anext(streams[listener])).text == "meanwhile"
                assert (await anext(streams[listener])).text == "after"
                await bus.close()

    run(main, 50)
