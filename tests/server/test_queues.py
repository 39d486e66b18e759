"""Queues of a running hub: rejected messages, delivery counts, dead letters, and what a kill leaves of them."""

import asyncio
import functools
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import ParamSpec

import pytest

import polywire
from polywire import journal, sync
from polywire.client.bus import Queue
from polywire.client.transport import Opening
from polywire.protocols import mqtt
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
from tests.wires import Plain, connected

REJECTING = ("micromsg", "sabc")
POLICY = 'queues=[{names="jobs/*", max_deliveries=2, dead_letter="dead"}]'


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(POLICY) as process:
        yield process


P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        run(functools.partial(test, *args, **kwargs))

    return wrapped


def connect(hub: HubProcess, protocol: str) -> Opening[polywire.Bus]:
    return polywire.connect(hub.addresses[protocol], protocol=protocol)


async def take(queue: Queue) -> polywire.Message:
    async with asyncio.timeout(20):
        return await anext(queue)


@pytest.mark.rule("SABC-141", "SABC-142", "MICROMSG-196", "MICROMSG-197")
@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_a_rejected_message_comes_again_with_its_count(hub: HubProcess, protocol: str) -> None:
    async with connect(hub, protocol) as bus, bus.queue(f"again-{protocol}", limit=1) as queue:
        await queue.put("1", headers={"colour": "red"})
        await queue.put("2")
        first = await take(queue)
        assert (first.text, first.deliveries, dict(first.headers)) == ("1", 1, {"colour": "red"})
        first.nack(reason="not yet")
        first.ack()  # too late: it is rejected already
        seen: dict[str, polywire.Message] = {}
        while len(seen) < 2:
            message = await take(queue)
            seen[message.text] = message
        assert {text: message.deliveries for text, message in seen.items()} == {"1": 2, "2": 1}
        assert dict(seen["1"].headers) == {"colour": "red"}


@pytest.mark.rule("SABC-141", "MICROMSG-196")
@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_a_delay_keeps_the_message_back_and_nobody_else(hub: HubProcess, protocol: str) -> None:
    async with connect(hub, protocol) as bus, bus.queue(f"later-{protocol}") as queue:
        await queue.put("1")
        await queue.put("2")
        message = await take(queue)
        begun = time.monotonic()
        message.nack(delay=0.5)
        assert (await take(queue)).text == "2"
        assert time.monotonic() - begun < 0.5
        assert ((await take(queue)).text, time.monotonic() - begun >= 0.5) == ("1", True)


@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_a_message_that_is_rejected_too_often_becomes_a_dead_letter(hub: HubProcess, protocol: str) -> None:
    name = f"jobs/{protocol}"
    async with connect(hub, protocol) as bus, connect(hub, "umq") as other:
        async with bus.queue(name) as queue:
            await queue.put("1", headers={"colour": "red"})
            (await take(queue)).nack()
            (await take(queue)).nack(reason="no such pump")
            async with other.queue("dead") as dead:
                letter = await take(dead)
        assert (letter.text, letter.deliveries, dict(letter.headers)) == (
            "1",
            1,
            {
                "colour": "red",
                "polywire-dead-queue": name,
                "polywire-dead-reason": "no such pump",
                "polywire-dead-deliveries": 2,
            },
        )
    assert hub.metric("polywire_queue_dead_lettered_total") >= 1
    assert hub.metric("polywire_queue_nacked_total") >= 2
    assert hub.metric("polywire_queue_redelivered_total") >= 1


@pytest.mark.rule("UMQ-168")
@in_a_loop
async def test_the_count_crosses_to_a_consumer_of_another_protocol(hub: HubProcess) -> None:
    async with connect(hub, "sabc") as one, connect(hub, "umq") as other:
        async with one.queue("crossing") as queue:
            await queue.put("1", headers={"polywire-deliveries": "9"})  # which only the hub can say
            message = await take(queue)
            assert message.deliveries == 1
            message.nack(delay=0.2)
        async with other.queue("crossing") as queue:
            message = await take(queue)
        assert (message.text, message.deliveries, dict(message.headers)) == ("1", 2, {})


@pytest.mark.rule("MQTT-205")
def test_consumers_that_go_away_count_too(hub: HubProcess) -> None:
    with connected(hub.addresses["mqtt"]) as found:
        sender = Plain(found)
        sender.send(mqtt.encode(mqtt.Connect("sender")))
        sender.send(mqtt.encode(mqtt.Publish("queue/jobs/lost", b"1", qos=1, packet_id=1)))
        _heard(sender, mqtt.encode(mqtt.Connack(session_present=False, return_code=0)) + mqtt.encode(mqtt.Puback(1)))
    for number in range(2):
        with connected(hub.addresses["mqtt"]) as found:
            worker = Plain(found)
            worker.send(mqtt.encode(mqtt.Connect(f"worker{number}")))
            worker.send(mqtt.encode(mqtt.Subscribe(1, (("queue/jobs/lost", 1),))))
            _heard(
                worker,
                mqtt.encode(mqtt.Connack(session_present=False, return_code=0)) + mqtt.encode(mqtt.Suback(1, (1,))),
            )
            _heard(worker, mqtt.encode(mqtt.Publish("queue/jobs/lost", b"1", qos=1, packet_id=1)))
    with sync.connect(hub.addresses["sabc"], protocol="sabc") as bus, bus.queue("dead") as dead:
        letter = dead.get(20)
        assert (letter.text, letter.headers["polywire-dead-reason"]) == ("1", "unacknowledged")
        assert letter.headers["polywire-dead-queue"] == "jobs/lost"
        letter.ack()


@pytest.mark.parametrize("protocol", ["umq", "fmqp", "mqtt"])
@in_a_loop
async def test_a_protocol_without_rejections_says_so(hub: HubProcess, protocol: str) -> None:
    async with connect(hub, protocol) as bus, bus.queue(f"no-{protocol}") as queue:
        await queue.put("1")
        message = await take(queue)
        assert message.deliveries == (1 if protocol == "umq" else None)
        with pytest.raises(polywire.Unsupported, match=f"nack: not with {protocol}, but with micromsg, sabc"):
            message.nack()
        with pytest.raises(polywire.Unsupported):
            await queue.handle(print)


@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_a_handler_that_fails_rejects_its_message(hub: HubProcess, protocol: str) -> None:
    name = f"handled-{protocol}"
    seen: list[tuple[str, int | None]] = []

    async with connect(hub, protocol) as bus, bus.queue(name) as queue:

        async def handle(message: polywire.Message) -> None:
            seen.append((message.text, message.deliveries))
            if message.deliveries == 1:
                raise RuntimeError("not the first time")
            await queue.close()

        await queue.put("1")
        async with asyncio.timeout(20):
            await queue.handle(handle)
    assert seen == [("1", 1), ("1", 2)]


@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_an_error_that_leaves_the_queue_rejects_the_message_in_work(hub: HubProcess, protocol: str) -> None:
    name = f"jobs/left-{protocol}"
    async with connect(hub, protocol) as bus, bus.queue("dead") as dead:
        await bus.queue(name).put("1")

        async def fail() -> None:
            async with bus.queue(name) as queue:
                await take(queue)
                raise RuntimeError("out of oil")

        for _ in range(2):
            with pytest.raises(RuntimeError):
                await fail()
        letter = await take(dead)
        assert letter.headers["polywire-dead-reason"] == "RuntimeError: out of oil"
        letter.ack()


@pytest.mark.parametrize("protocol", REJECTING)
@in_a_loop
async def test_whoever_closes_a_queue_has_been_delivered_what_it_took_and_no_more(
    hub: HubProcess, protocol: str
) -> None:
    name = f"closed-{protocol}"
    async with connect(hub, protocol) as bus:
        for number in range(3):
            await bus.queue(name).put(str(number))
        async with bus.queue(name) as queue:
            assert (await take(queue)).text == "0"
        async with bus.queue(name) as queue:
            found = [await take(queue) for _ in range(3)]
        assert [(message.text, message.deliveries) for message in found] == [("0", 2), ("1", 1), ("2", 1)]


@pytest.mark.parametrize("protocol", REJECTING)
def test_the_blocking_client_rejects_and_acknowledges_in_its_own_thread(hub: HubProcess, protocol: str) -> None:
    name = f"sync-nack-{protocol}"
    with sync.connect(hub.addresses[protocol], protocol=protocol) as bus, bus.queue(name) as queue:
        queue.put("1")
        queue.get(20).nack(reason="not yet")
        message = queue.get(20)
        assert (message.text, message.deliveries) == ("1", 2)
        message.ack()
        bus.ping()
        queue.put("2")
        assert queue.get(20).text == "2"

        def handle(message: polywire.Message) -> None:
            if message.text == "3" and message.deliveries == 1:
                raise RuntimeError("not the first time")
            if message.text == "3":
                queue.close()

        queue.put("3")
        queue.handle(handle)


@pytest.mark.rule("SABC-141")
def test_a_delay_that_is_no_number_is_refused_and_rejects_nothing(hub: HubProcess) -> None:
    with connected(hub.addresses["sabc"]) as found:
        wire = Plain(found)
        wire.send(b"CONNECT\r\nclient-id::worker\r\n\r\n")
        session = _until(wire, b"\r\n\r\n").split(b"session-id::")[1].split(b"\r\n")[0]

        def say(*lines: bytes, body: bytes = b"") -> None:
            head = b"\r\n".join([b"MESSAGE", b"session-id::" + session, *lines])
            wire.send(head + b"\r\n\r\n" + body + b"\r\n\r\n\0")

        say(b"msg-id::1", b"op::subscribe", b"destination::queue/bad-delay")
        say(b"msg-id::2", b"destination::queue/bad-delay", body=b"job")
        _until(wire, b"job\r\n\r\n\0")
        say(b"ref-msg-id::1", b"op::nack", b"delay::soon", body=b"x")
        assert b"error-code::400" in _until(wire, b"delay is not a number of seconds\r\n\r\n\0")
        say(b"ref-msg-id::1", b"op::nack", b"delay::0", body=b"x")
        assert b"polywire-deliveries::2" in _until(wire, b"job\r\n\r\n\0")


KILLED = 'queues=[{names="jobs", max_deliveries=3, dead_letter="dead"}]'


def safe(folder: Path, kind: str, count: int) -> None:
    """Wait until so many rows of a kind are on disk."""
    end = time.monotonic() + 20
    while sum(batch.num_rows for batch in journal.open(folder).scan(["kind"], kinds=kind)) < count:
        assert time.monotonic() < end


@pytest.mark.rule("MICROMSG-197")
def test_counts_and_moves_survive_a_kill(tmp_path: Path) -> None:
    def bus(hub: HubProcess, protocol: str) -> sync.Bus:
        return sync.connect(hub.addresses[protocol], protocol=protocol, backoff=None)

    with running_hub(KILLED, journal=tmp_path) as hub, bus(hub, "micromsg") as first:
        jobs = first.queue("jobs", limit=1)
        jobs.put("twice")
        for _ in range(2):
            jobs.get(20).nack(reason="no")
        safe(tmp_path, "nack", 2)
        hub.stop(signal.SIGKILL)
    with running_hub(KILLED, journal=tmp_path) as hub, bus(hub, "sabc") as second:
        message = second.queue("jobs").get(20)
        assert (message.text, message.deliveries) == ("twice", 3)
        message.nack(reason="for good")
        safe(tmp_path, "enqueue", 2)
        hub.stop(signal.SIGKILL)
    with running_hub(KILLED, journal=tmp_path) as hub:
        assert hub.metric("polywire_queue_messages") == 1
        with bus(hub, "sabc") as third, third.queue("dead") as dead:
            letter = dead.get(20)
            assert (letter.text, letter.deliveries) == ("twice", 1)
            assert letter.headers == {
                "polywire-dead-queue": "jobs",
                "polywire-dead-reason": "for good",
                "polywire-dead-deliveries": "3",
            }


@pytest.mark.parametrize("after", [1, 40, 90])
def test_whenever_the_hub_is_killed_each_message_is_in_one_queue(tmp_path: Path, after: int) -> None:
    policy = 'queues=[{names="jobs", max_deliveries=1, dead_letter="dead"}]'
    numbers = [str(number) for number in range(100)]

    async def reject(hub: HubProcess) -> None:
        async with polywire.connect(hub.addresses["sabc"], protocol="sabc", backoff=None) as bus:
            await asyncio.gather(*[bus.queue("jobs").put(number) for number in numbers])
            async with bus.queue("jobs") as jobs:
                for _ in range(after):
                    (await take(jobs)).nack()
                    await asyncio.sleep(0)
                hub.stop(signal.SIGKILL)

    with running_hub(policy, journal=tmp_path) as hub:
        asyncio.run(reject(hub))
    with running_hub(policy, journal=tmp_path) as hub:
        assert hub.metric("polywire_queue_messages") == len(numbers)
        with sync.connect(hub.addresses["fmqp"], protocol="fmqp") as bus:
            found = []
            for name in ("jobs", "dead"):
                lines = [line for line in hub.get("/metrics")[1].splitlines() if f'{{queue="{name}"}}' in line]
                with bus.queue(name) as queue:
                    found += [queue.get(20).text for _ in range(int(float(lines[0].split()[-1])) if lines else 0)]
    assert sorted(found, key=int) == numbers


def _heard(wire: Plain, expected: bytes) -> None:
    assert wire.expect(len(expected)) == expected


def _until(wire: Plain, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += wire.expect(1)
    return data
