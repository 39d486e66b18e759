"""One face over every protocol, against a running hub."""

import asyncio
import datetime as dt
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import polywire
from polywire.client.bus import Stream
from polywire.client.link import Link
from polywire.client.message import octets
from polywire.client.transport import Opening
from polywire.protocols import fmqp, micromsg, mqtt, sabc, umq
from polywire.registry import built_in, by_name
from tests.client.loops import run, until
from tests.hub_process import HubProcess, running_hub

OVER = ("umq", "micromsg", "fmqp", "mqtt", "sabc")
CALLS = ("umq", "mqtt", "sabc")
ACKNOWLEDGED_JOBS = ("micromsg", "mqtt", "sabc")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def opened(hub: HubProcess, protocol: str, **options: object) -> Opening[polywire.Bus]:
    return polywire.connect(hub.addresses[protocol], protocol=protocol, **options)  # type: ignore[arg-type] # as they come


@pytest.mark.parametrize("reader", OVER)
@pytest.mark.parametrize("writer", OVER)
def test_what_one_publishes_another_gets_whatever_they_speak(hub: HubProcess, writer: str, reader: str) -> None:
    async def main() -> None:
        channel = f"bus/{writer}/{reader}"
        async with opened(hub, writer) as one, opened(hub, reader) as other, other.subscribe("bus/*/*") as messages:
            promise = await one.publish(channel, "grüße")
            assert promise is (polywire.Promise.SENT if writer == "fmqp" else polywire.Promise.ACKNOWLEDGED)
            message = await anext(messages)
            while message.channel != channel:
                message = await anext(messages)
            assert message.text == "grüße"
            assert one.protocol == writer
            assert one.connected

    run(main)


@pytest.mark.parametrize(
    ("protocol", "layers"),
    [
        ("umq", "PeerAdapter Outgoing UmqConnection Peer Sender WebSocketLink"),
        ("micromsg", "MicromsgAdapter Outgoing MicromsgConnection Peer Outflow StreamLink"),
        ("fmqp", "FmqpAdapter Client StreamLink"),
        ("mqtt", "MqttAdapter Client Publications Outgoing StreamLink"),
        ("sabc", "PeerAdapter Outgoing SabcConnection Peer Sender StreamLink"),
    ],
)
def test_a_message_crosses_at_most_six_layers(
    hub: HubProcess, protocol: str, layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossed: list[str] = []
    write = Link.write

    def written(link: Link, data: bytes) -> None:
        frame = sys._getframe()
        objects: list[object] = [link]
        while (frame := frame.f_back or frame).f_code is not polywire.Bus.publish.__code__:
            objects.append(frame.f_locals.get("self", link))
        crossed[:] = list(dict.fromkeys(type(each).__name__ for each in reversed(objects)))
        write(link, data)

    async def main() -> None:
        async with opened(hub, protocol) as bus:
            await bus.ping()
            monkeypatch.setattr(Link, "write", written)
            receipt = bus.publish(f"layers/{protocol}", "x")
            monkeypatch.setattr(Link, "write", write)
            await receipt
        assert crossed == layers.split()
        assert len(crossed) <= 6

    run(main)


@pytest.mark.parametrize("protocol", ["fmqp", "mqtt"])
def test_a_retained_message_waits_for_its_subscriber(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus:
            channel = f"retained/{protocol}"
            await bus.publish(channel, '{"a": 1}', retain=True)
            await bus.ping()
            async for message in bus.subscribe(channel):
                assert message.retain
                assert message.json() == {"a": 1}
                break
            await bus.publish(channel, b"", retain=True)

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_queue_gives_each_message_to_one_consumer(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        name = f"bus-{protocol}"
        got: list[str] = []

        async def work(bus: polywire.Bus) -> None:
            async with bus.queue(name) as jobs:
                async for job in jobs:
                    got.append(job.text)
                    job.ack()

        async with opened(hub, protocol) as one, opened(hub, protocol) as other:
            working = [asyncio.create_task(work(bus)) for bus in (one, other)]
            for number in range(50):
                await one.queue(name).put(str(number))
            await until(lambda: len(got) == 50)
            assert sorted(map(int, got)) == list(range(50))
            for task in working:
                task.cancel()
            await asyncio.wait(working)

    run(main)


@pytest.mark.parametrize("protocol", ACKNOWLEDGED_JOBS)
def test_a_job_that_was_not_finished_goes_to_the_next_consumer(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        name = f"unfinished-{protocol}"
        async with opened(hub, protocol) as one, opened(hub, protocol) as other:
            await one.queue(name).put("1")
            await one.queue(name).put("2")
            async with one.queue(name) as jobs:
                assert (await anext(jobs)).text == "1"
                assert (await anext(jobs)).text == "2"  # which acknowledges the first
            async with other.queue(name) as jobs:
                job = await anext(jobs)
                assert job.text == "2"
                job.ack()

    run(main)


def test_a_publisher_watches_the_demand(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "fmqp") as bus, opened(hub, "mqtt") as reader, bus.watch_demand("watched/*") as demand:
            async with reader.subscribe("watched/a"):
                assert await anext(demand) == polywire.Demand("watched/a", 1)
            assert await anext(demand) == polywire.Demand("watched/a", 0)

    run(main)


@pytest.mark.parametrize("protocol", ["umq", "micromsg", "mqtt", "sabc"])
def test_any_number_of_levels_is_a_pattern_where_the_protocol_has_it(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        top = f"deep-{protocol}"
        async with opened(hub, protocol) as bus, bus.subscribe(f"{top}/**") as messages:
            for channel in (top, f"{top}/a", f"{top}/a/b"):
                await bus.publish(channel, channel)
            assert [(await anext(messages)).text for _ in range(3)] == [top, f"{top}/a", f"{top}/a/b"]

    run(main)


def test_what_a_protocol_can_not_do_is_said_with_those_that_can(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "fmqp") as fmqp, opened(hub, "mqtt") as mqtt:
            refused = {
                "headers": lambda: fmqp.publish("a", "b", headers={"x": 1}),
                "content_type": lambda: mqtt.publish("a", "b", content_type="text/plain"),
                "patterns with **": lambda: fmqp.subscribe("a/**"),
                "an empty body": lambda: fmqp.publish("a", b""),
                "a name that begins or ends with /": lambda: fmqp.publish("/a", b"1"),
                "a name with + or #": lambda: mqtt.publish("a+b", b"1"),
                "watch_demand": lambda: mqtt.watch_demand("a"),
            }
            for what, act in refused.items():
                with pytest.raises(polywire.Unsupported) as caught:
                    act()  # type: ignore[no-untyped-call]
                can = tuple(each.name for each in built_in() if what in each.can)
                assert (caught.value.what, caught.value.protocols) == (what, can)
            with pytest.raises(polywire.Unsupported, match="call: not with fmqp, but with umq, mqtt, sabc"):
                await fmqp.call("adder", "add")
            with pytest.raises(polywire.Unsupported, match="a service's name that is no level of a topic"):
                await mqtt.serve("adders/one", lambda request: request.body)
            with pytest.raises(polywire.Unsupported, match="a method that is no identifier"):
                await mqtt.call("adder", "add one")
            with pytest.raises(polywire.Unsupported):
                await mqtt.subscribe("a+/b#")

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_whoever_does_not_read_can_still_publish_and_ask(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus, bus.subscribe(f"unread/{protocol}", limit=10) as messages:
            for number in range(100):
                await bus.publish(f"unread/{protocol}", str(number))
            await bus.ping()
            assert [int((await anext(messages)).text) for _ in range(100)] == list(range(100))

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_subscription_left_behind_is_closed_with_the_bus(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        bus = await opened(hub, protocol)
        messages = bus.subscribe("left")
        reading = asyncio.create_task(_all(messages))
        await bus.ping()
        await bus.close()
        assert await reading == []
        with pytest.raises(polywire.Closed):
            bus.publish("a", "b")

    run(main)


async def _all(messages: Stream[polywire.Message]) -> list[bytes]:
    return [message.body async for message in messages]


@pytest.mark.parametrize("protocol", OVER)
def test_every_call_can_be_cancelled_and_leaves_nothing(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus:
            messages = bus.subscribe("cancelled")
            for act in (bus.ping(), messages.__aenter__(), anext(messages), anext(bus.queue("cancelled"))):
                task = asyncio.ensure_future(act)
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            await bus.ping()

    run(main)


def test_a_bus_is_shown_without_its_credentials(hub: HubProcess) -> None:
    async def main() -> None:
        async with opened(hub, "mqtt", user="anna", password="geheim") as bus:
            assert "geheim" not in repr(bus)
            assert "connected" in repr(bus)

    run(main)


def test_bodies_are_octets_or_text() -> None:
    assert [octets(body) for body in (b"a", bytearray(b"b"), memoryview(b"c"), "ü")] == [b"a", b"b", b"c", "ü".encode()]


NO_BODIES = (5, None, 1.5, {"a": 1}, ["a"], object())


@pytest.mark.parametrize("protocol", OVER)
def test_anything_else_is_a_type_error_that_says_what_to_do(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus, bus.subscribe(f"typed/{protocol}") as messages:
            for wrong in NO_BODIES:
                words = rf"body must be str or bytes-like, not {type(wrong).__name__}; use polywire\.json\(value\)"
                with pytest.raises(TypeError, match=words):
                    bus.publish(f"typed/{protocol}", wrong)  # type: ignore[arg-type] # which is the point
                with pytest.raises(TypeError, match=words):
                    bus.queue(f"typed-{protocol}").put(wrong)  # type: ignore[arg-type] # as above
                if protocol in CALLS:
                    with pytest.raises(TypeError, match=words):
                        await bus.call("any", "any", wrong)  # type: ignore[arg-type] # as above
            await bus.publish(f"typed/{protocol}", memoryview(b"fine"))
            assert (await anext(messages)).text == "fine"

    run(main)


def test_the_protocols_own_clients_take_nothing_else_either(hub: HubProcess) -> None:
    def url(protocol: str) -> str:
        return hub.addresses[protocol].replace("tcp://" if protocol != "umq" else "ws://", f"{protocol}://")

    async def main() -> None:
        async with (
            mqtt.connect(url("mqtt")) as mqtt_client,
            fmqp.connect(url("fmqp")) as fmqp_client,
            umq.connect(url("umq")) as umq_peer,
            micromsg.connect(url("micromsg")) as micromsg_peer,
            sabc.connect(url("sabc")) as sabc_peer,
        ):
            wrong: Any = 5
            acts: list[Callable[[], object]] = [
                lambda: mqtt_client.publish("a", wrong, qos=1),
                lambda: fmqp_client.publish("a", wrong),
                lambda: fmqp_client.leave_will("a", wrong),
                lambda: umq_peer.call(wrong),
                lambda: umq_peer.tell(wrong),
                lambda: umq.RemoteHub(umq_peer).publish("a", wrong),
                lambda: umq.RemoteHub(umq_peer).call("a", "b", wrong),
                lambda: micromsg_peer.send("topic/a", wrong),
                lambda: sabc_peer.ask(wrong),
                lambda: sabc_peer.send(wrong),
                lambda: sabc.RemoteHub(sabc_peer).publish("a", wrong),
            ]
            for act in acts:
                with pytest.raises(TypeError, match=r"(body|payload|text) must be str"):
                    await _done(act)

    run(main)


async def _done(act: Callable[[], object]) -> None:
    outcome = act()
    if isinstance(outcome, Awaitable):
        await outcome


@pytest.mark.parametrize("protocol", OVER)
def test_json_is_sent_where_it_is_asked_for(hub: HubProcess, protocol: str) -> None:
    value = {"grad": "21 °C", "list": [1, None]}

    async def main() -> None:
        async with opened(hub, protocol) as bus, opened(hub, "sabc") as reader, opened(hub, "umq") as server:
            body = polywire.json(value)
            content_type = "application/json" if "content_type" in by_name(protocol).can else None
            async with reader.subscribe(f"json/{protocol}") as messages:
                await bus.publish(f"json/{protocol}", body)
                message = await anext(messages)
                assert (message.json(), message.content_type) == (value, content_type)
                assert b"\xc2\xb0" in message.body
            await bus.queue(f"json-{protocol}").put(body)
            async with reader.queue(f"json-{protocol}") as jobs:
                assert (await anext(jobs)).json() == value
            if protocol in CALLS:
                await server.serve(f"json-{protocol}", lambda request: polywire.json({"got": request.json()}))
                assert (await bus.call(f"json-{protocol}", "m", body)).json() == {"got": value}
                await bus.serve(f"types-{protocol}", lambda request: polywire.json([request.content_type]))
                answer = await reader.call(f"types-{protocol}", "m", polywire.json(1))
                assert answer.json() == [content_type]
                assert answer.content_type == ("application/json" if protocol == "sabc" else None)

    run(main)


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError):
        polywire.json({1, 2})
    with pytest.raises(ValueError, match="Out of range"):
        polywire.json(float("nan"))


@pytest.mark.parametrize("protocol", OVER)
def test_wildcards_of_mqtt_are_refused_with_the_right_ones(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus:
            for pattern, right in (("a/#", "a/**"), ("a/+/b", "a/*/b"), ("#", "**"), ("+/#", "*/**")):
                with pytest.raises(polywire.PatternError, match=r"here \* is one level and a last \*\* any") as wrong:
                    bus.subscribe(pattern)
                assert (wrong.value.pattern, wrong.value.suggestion) == (pattern, right)
                assert isinstance(wrong.value, ValueError)
            if protocol == "fmqp":
                with pytest.raises(polywire.PatternError):
                    bus.watch_demand("a/+")
            if protocol != "mqtt":  # a name is not a pattern
                async with bus.subscribe("a+/#b") as messages:
                    await bus.publish("a+/#b", "literal")
                    assert (await anext(messages)).text == "literal"

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_message_has_its_time_where_the_protocol_carries_it(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, "mqtt") as writer, opened(hub, protocol) as bus, bus.subscribe("timed") as messages:
            await writer.publish("timed", "now")
            stamp = (await anext(messages)).timestamp
            if protocol != "umq":
                assert stamp is None
            else:
                assert stamp is not None
                assert abs(dt.datetime.now(dt.UTC) - stamp) < dt.timedelta(minutes=1)

    run(main)


@pytest.mark.parametrize("protocol", ["umq", "micromsg", "sabc"])
def test_a_failure_that_nobody_awaits_is_in_the_log(
    hub: HubProcess, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus:
            bus.publish("$/unawaited", "x")
            with pytest.raises(polywire.Refused):
                await bus.publish("$/awaited", "x")
            await bus.ping()

    with caplog.at_level(logging.WARNING, "polywire.client"):
        run(main)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([line for line in lines if "$/unawaited" in line and "nobody awaited it" in line]) == 1
    assert not [line for line in lines if "$/awaited" in line]


def test_importing_polywire_loads_nothing_heavy() -> None:
    program = (
        "import sys, polywire; heavy = {'asyncio', 'ssl', 'websockets', 'pyarrow', 'rich', 'typer', 'google.protobuf', "
        "'msgspec', 'cryptography', 'uvloop'} & set(sys.modules); sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_is_there_and_no_other() -> None:
    for name in polywire.__all__:
        assert getattr(polywire, name) is not None
    assert set(polywire.__all__) <= set(dir(polywire))
    with pytest.raises(AttributeError, match="'nothing'"):
        polywire.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("protocol", ["umq", "sabc"])
def test_a_call_without_an_answer_is_a_timeout_whoever_notices_first(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, "umq") as server, opened(hub, protocol) as client:
            never = asyncio.Event()

            async def slow(_request: polywire.Request) -> bytes:
                await never.wait()
                return b""

            await server.serve(f"slow-{protocol}", slow)
            for _ in range(5):
                with pytest.raises(polywire.Timeout) as raised:
                    await client.call(f"slow-{protocol}", "any", timeout=0.02)
                assert raised.value.sent

    run(main)
