"""Calls and services of the one face over MQTT, with those of other protocols, and with stubs."""

import asyncio
from collections.abc import Iterator

import pytest

import polywire
from polywire.backoff import Backoff
from polywire.client.errors import CallFailed, Timeout
from polywire.client.message import Message, Request
from polywire.client.transport import Opening
from polywire.demo import greenhouse_pb2
from polywire.demo.story import IRRIGATION, Irrigation
from polywire.protocols.mqttrpc import bus as rpc_bus
from polywire.protocols.mqttrpc.client import connect as connect_stub
from polywire.protocols.mqttrpc.server import serve
from tests.client.loops import run, until
from tests.faults.proxy import Proxy
from tests.hub_process import HubProcess, running_hub
from tests.mosquitto_process import MISSING, PROGRAM, running_mosquitto

CALLING = ("umq", "mqtt", "sabc")
QUICK = Backoff(first=0.01, most=0.05)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def opened(hub: HubProcess, protocol: str) -> Opening[polywire.Bus]:
    return polywire.connect(hub.addresses[protocol], protocol=protocol)


async def shout(request: Request) -> bytes | Message:
    if request.method == "refuse":
        raise CallFailed(409, "too-late", "come earlier", retry_after=1.5)
    if request.method == "fail":
        raise ValueError("internal")
    if request.method == "wait":
        await asyncio.Event().wait()
    return Message("", request.body.upper() + b"\xff")


@pytest.mark.parametrize(
    ("caller", "provider"), [("mqtt", each) for each in CALLING] + [("umq", "mqtt"), ("sabc", "mqtt")]
)
def test_a_service_is_called_whatever_the_two_speak(hub: HubProcess, caller: str, provider: str) -> None:
    async def main() -> None:
        name = f"shout-{caller}-{provider}"
        async with opened(hub, provider) as serving, opened(hub, caller) as calling:
            service = await serving.serve(name, shout)
            assert (await calling.call(name, "text", "hello")).body == b"HELLO\xff"
            assert (await calling.call(name, "text", b"")).body == b"\xff"
            with pytest.raises(CallFailed):
                await calling.call(name, "refuse")
            with pytest.raises(CallFailed) as broken:
                await calling.call(name, "fail")
            assert "internal" not in str(broken.value)
            with pytest.raises(Timeout):
                await calling.call(name, "wait", timeout=0.1)
            answers = await asyncio.gather(*[calling.call(name, "text", str(number)) for number in range(100)])
            assert [answer.body for answer in answers] == [b"%d\xff" % number for number in range(100)]
            await service.close()
            again = await serving.serve(name, lambda request: request.body)
            assert (await calling.call(name, "text", "again")).text == "again"
            await again.close()

    run(main)


def test_an_error_has_all_its_parts_on_the_way_from_mqtt_to_mqtt(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "mqtt") as bus:
            await bus.serve("shout-parts", shout)
            with pytest.raises(ValueError, match="already"):
                await bus.serve("shout-parts", shout)
            with pytest.raises(CallFailed) as refused:
                await bus.call("shout-parts", "refuse")
            error = refused.value
            assert (error.code, error.tag, error.text, error.retry_after) == (409, "too-late", "come earlier", 1.5)

    run(main)


def test_it_speaks_with_stubs_and_their_services(hub: HubProcess) -> None:
    async def main() -> None:
        url = f"mqtt://127.0.0.1:{hub.port('mqtt')}"
        request = greenhouse_pb2.WaterRequest(bed="tomatoes", litres=20)
        async with opened(hub, "mqtt") as bus:
            async with serve(url, IRRIGATION, Irrigation(), name="typed"):
                answer = await bus.call("typed", "Water", request.SerializeToString())
                assert greenhouse_pb2.WaterReply.FromString(answer.body).left == 80
                with pytest.raises(CallFailed) as nothing:
                    await bus.call("typed", "Dry")
                assert (nothing.value.code, nothing.value.tag) == (404, "no-method")
            await bus.serve("raw", lambda asked: greenhouse_pb2.WaterReply(bed=asked.method).SerializeToString())
            async with connect_stub(url, IRRIGATION, name="raw") as stub:
                assert (await stub.Water(request)).bed == "Water"

    run(main)


def test_another_broker_will_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    if PROGRAM is None:
        pytest.skip(MISSING)

    async def main(url: str) -> None:
        async with polywire.connect(url) as serving, polywire.connect(url) as calling:
            await serving.serve("shout", shout)
            assert (await calling.call("shout", "text", "hello")).body == b"HELLO\xff"

    with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as port:
        run(lambda: main(f"mqtt://127.0.0.1:{port}"))


def test_nobody_says_that_a_service_is_not_there(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "mqtt") as bus:
            with pytest.raises(Timeout) as late:
                await bus.call("nobody", "text", timeout=0.1)
            assert (late.value.seconds, late.value.sent) == (0.1, True)

    run(main)


def test_only_topics_of_services_called_lately_are_listened_to(
    hub: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_bus, "SERVICES_KEPT", 2)

    async def main() -> None:
        async with opened(hub, "umq") as serving, opened(hub, "mqtt") as bus:
            for number in range(5):
                await serving.serve(f"kept-{number}", shout)
            await asyncio.gather(*[bus.call(f"kept-{number}", "text", "x") for number in range(5)])
            for number in (0, 1, 0, 4):
                assert (await bus.call(f"kept-{number}", "text", "x")).body == b"X\xff"
            rpc = bus._adapter._rpc  # type: ignore[attr-defined]
            assert list(rpc._topics) == ["kept-0", "kept-4"]

    run(main)


def test_calls_and_services_outlive_a_connection(hub: HubProcess) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port("mqtt"))
        try:
            url = f"mqtt://127.0.0.1:{proxy.port}"
            async with polywire.connect(url, backoff=QUICK) as bus:
                await bus.serve("outliving", shout)
                for _ in range(3):
                    assert (await bus.call("outliving", "text", "x")).body == b"X\xff"
                    link = _link(bus)
                    proxy.cut()
                    await until(lambda: _link(bus) is not link)  # noqa: B023 - awaited here
        finally:
            proxy.close()

    run(main)


def _link(bus: polywire.Bus) -> object:
    return bus._adapter.client._peer.link  # type: ignore[attr-defined] # MQTT's adapter


def test_a_call_that_is_cancelled_and_a_bus_that_is_closed_leave_nothing(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "mqtt") as bus:
            await bus.serve("leaving", shout)
            call = asyncio.ensure_future(bus.call("leaving", "wait"))
            await until(lambda: bus._adapter._rpc is not None)  # type: ignore[attr-defined]
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            waiting = asyncio.ensure_future(bus.call("leaving", "text", "x"))
            await waiting
        with pytest.raises(polywire.Closed):
            await bus.call("leaving", "text")

    run(main)


@pytest.mark.rule("MQTTRPC-111")
def test_an_error_that_can_not_be_written_is_a_failure_and_logged(
    hub: HubProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Request) -> bytes:
        raise CallFailed(409, "taken", "\ud800")

    async def main() -> None:
        async with opened(hub, "mqtt") as serving, opened(hub, "mqtt") as calling:
            await serving.serve("unwritable", refuse)
            with pytest.raises(CallFailed) as failed:
                await calling.call("unwritable", "Say", timeout=10)
            assert (failed.value.code, failed.value.tag) == (500, "handler-failed")

    run(main)
    assert "the answer of unwritable.Say can't be sent: the user_message" in caplog.text


@pytest.mark.rule("MQTTRPC-111")
def test_an_answer_that_the_broker_does_not_take_is_a_failure_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(url: str) -> None:
        bus = polywire.connect(url, protocol="mqtt", backoff=QUICK)
        async with bus as serving, polywire.connect(url, protocol="mqtt") as calling:
            await serving.serve("large", lambda _: bytes(200_000))
            with pytest.raises(CallFailed) as failed:
                await calling.call("large", "Say", timeout=15)
            assert (failed.value.code, failed.value.tag) == (413, "too-large")

    with running_hub("limits.message_size=100000") as small:
        run(lambda: main(small.addresses["mqtt"]))
    assert "the answer of large.Say can't be sent" in caplog.text
