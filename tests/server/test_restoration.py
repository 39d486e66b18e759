"""A hub that starts again is as it was, and keeps its journal small without forgetting what still means something."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import polywire
from polywire import journal
from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Date, Message
from polywire.hub.recorder import Recorder, headers_of
from polywire.journal.committer import BatchMaker
from polywire.journal.format import PLAIN_SCHEMA, SCHEMA, values
from polywire.journal.housekeeping import segment_seconds
from polywire.journal.state import references, resolve
from polywire.protocols.fmqp.frames import CACHE, DEBUG, LAST_WILL, Publication
from polywire.protocols.fmqp.frames import encode as encode_fmqp
from polywire.protocols.fmqp.session import FmqpSession
from polywire.protocols.mqtt import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
)
from polywire.server.restoration import publish_wills, restore
from tests.hub.links import contents
from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import speak
from tests.journal.rows import fold
from tests.protocols.mqtt.broker import Broker, MqttClient
from tests.wires import Fmqp, connected


class Life:
    """One life of a hub with a journal in memory; ``again`` is the next one."""

    def __init__(
        self,
        rows: Any = None,
        first: int = 0,
        at: float = 1.0,
        heard: str = "",
        rules: AccessRules | None = None,
    ) -> None:
        self.broker = Broker()
        self.broker.site.clock.jump = at
        self.heard = self.broker.recorder(heard) if heard else None
        self.hub = self.broker.hub
        self.recorder = Recorder(first, self.hub.clock, lambda: None)
        self.hub.recorder = self.recorder
        self._rows = PLAIN_SCHEMA.empty_table() if rows is None else rows
        state = self._state().to_pylist()
        wills: list[dict[str, Any]] = []
        self.counts = restore(self.hub, state, self.broker.limits, wills)
        publish_wills(self.hub, wills, rules or AccessRules())
        self.wills = len(wills)

    def again(self, at: float = 1.0, heard: str = "", rules: AccessRules | None = None) -> "Life":
        """The hub is killed and started, ``at`` a time of day, and somebody hears what is published on ``heard``."""
        rows = self.rows()
        return Life(rows, rows.num_rows, at, heard, rules)

    def rows(self) -> Any:
        """The whole journal."""
        maker = BatchMaker("here")
        made = [maker.make(columns) for columns in self.recorder.take()]
        self._rows = pa.concat_tables([self._rows, pa.Table.from_batches(made, SCHEMA).cast(PLAIN_SCHEMA)])
        return self._rows

    def _state(self) -> Any:
        left = fold(self._rows)
        found = self._rows.filter(pc.is_in(self._rows["offset"], value_set=references(left)))
        return resolve(left, dict(zip(values(found["offset"]), values(found["body"]), strict=True)))

    def queue(self, name: str) -> list[bytes]:
        """What is in a queue."""
        return [message.body for message in contents(self.hub.queue(name))]

    def kept(self, channel: str) -> bytes | None:
        """What is retained."""
        message = self.hub.retained.get(channel)
        return None if message is None else message.body


@pytest.fixture
def life() -> Life:
    return Life()


def test_retained_messages_come_back_with_all_they_had(life: Life) -> None:
    client = life.broker.client()
    client.send(Publish("a", b"1", retain=True), Publish("b", b"2", retain=True), Publish("b", b"", retain=True))
    headers = (("n", 1), ("when", Date(5.0)))
    message = Message("c/d", b"3", "text/plain", headers, (b"att",), retain=True, time=1_000_000_000)
    life.hub.publish(message, client.wire.client)
    again = life.again()
    assert (again.kept("a"), again.kept("b")) == (b"1", None)
    found = again.hub.retained.get("c/d")
    assert found is not None
    assert (found.headers, found.content_type, found.attachments) == (headers, "text/plain", (b"att",))
    assert (found.time, found.retain) == (1_000_000_000, True)
    assert again.counts == (2, 0, 0)


def test_a_retained_message_of_empty_attachments_comes_back(life: Life) -> None:
    client = life.broker.client().wire.client
    life.hub.publish(Message("a", b"", attachments=(b"", b""), retain=True, time=1), client)
    again = life.again().again()
    found = again.hub.retained.get("a")
    assert found is not None
    assert found.attachments == (b"", b"")


def test_a_message_in_a_queue_comes_back_with_its_retain_flag(life: Life) -> None:
    client = life.broker.client()
    client.send(Publish("queue/q", b"1", retain=True), Publish("queue/q", b"2"))
    again = life.again()
    assert [message.retain for message in contents(again.hub.queue("q"))] == [True, False]


@pytest.mark.rule("FMQP-59")
def test_fmqp_s_cache_comes_back_and_stays_cleared(life: Life) -> None:
    wire = life.broker.site.connect("fmqp", FmqpSession)
    packets = [("a", b"1"), ("*/x", b"2"), ("gone", b"3"), ("gone", b"")]
    wire.feed(b"".join(encode_fmqp(Publication(topic, body, CACHE)) for topic, body in packets))
    again = life.again()
    assert (again.kept("a"), again.kept("\0/x"), again.kept("gone")) == (b"1", b"2", None)
    assert again.broker.client().subscribe(("h/x", 0)) == [Publish("h/x", b"2", retain=True)]


def test_queues_come_back_in_order_without_what_was_acknowledged(life: Life) -> None:
    client, worker = life.broker.client("me"), life.broker.client("worker")
    client.send(*[Publish("queue/q", b"%d" % number) for number in range(6)])
    first = worker.subscribe(("queue/q", 1))
    assert len(first) == 6
    worker.send(Puback(2), Puback(1))
    again = life.again()
    assert again.queue("q") == [b"2", b"3", b"4", b"5"]
    other = again.broker.client("other")
    assert [frame.payload for frame in other.subscribe(("queue/q", 1)) if isinstance(frame, Publish)] == [
        b"2",
        b"3",
        b"4",
        b"5",
    ]
    other.send(Puback(1))
    assert again.again().queue("q") == [b"3", b"4", b"5"]


def test_a_session_comes_back_with_what_was_due_to_it(life: Life) -> None:
    device = life.broker.client("dev", clean=False)
    device.subscribe(("t/#", 1), ("other", 1))
    device.send(Unsubscribe(2, ("other",)))
    life.broker.publish("t/live", b"not acknowledged")
    life.broker.publish("t/live", b"acknowledged")
    device.send(Puback(2))
    device.wire.lose()
    life.broker.publish("t/away", b"while away")
    life.broker.publish("other", b"not wanted")
    again = life.again()
    assert again.counts == (0, 0, 1)
    _, sent = again.broker.resumed("dev")
    assert sent == [
        Publish("t/live", b"not acknowledged", 1, dup=True, packet_id=1),
        Publish("t/away", b"while away", 1, packet_id=2),
    ]


def test_a_session_lives_through_several_lives_and_forgets_what_it_finished(life: Life) -> None:
    life.broker.client("dev", clean=False).subscribe(("t", 1))
    second = life.again()
    second.broker.publish("t", b"1")
    second.broker.publish("t", b"2")
    third = second.again()
    device, sent = third.broker.resumed("dev")
    assert [frame.payload for frame in sent if isinstance(frame, Publish)] == [b"1", b"2"]
    device.send(Puback(1))
    fourth = third.again()
    device, sent = fourth.broker.resumed("dev")
    assert sent == [Publish("t", b"2", 1, dup=True, packet_id=2)]
    device.send(Puback(2))
    assert fourth.again().broker.resumed("dev")[1] == []


@pytest.mark.rule("MQTT-198")
def test_what_may_have_been_sent_before_has_dup_until_it_is_sent(life: Life) -> None:
    life.broker.client("dev", clean=False).subscribe(("t", 2))
    life.broker.client("gone", clean=False).subscribe(("t", 2))
    dev = life.broker.resumed("dev")[0]
    life.broker.resumed("gone")[0].wire.lose()
    dev.wire.session._outgoing._resumed = False  # type: ignore[attr-defined]
    publisher = life.broker.client()
    publisher.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2))
    second = life.again()
    second.broker.publish("t", b"3")
    third = second.again()
    body_and_dup = [
        (frame.payload, frame.dup) for frame in third.broker.resumed("dev")[1] if isinstance(frame, Publish)
    ]
    assert body_and_dup == [(b"1", True), (b"2", False), (b"3", False)]
    body_and_dup = [
        (frame.payload, frame.dup) for frame in third.broker.resumed("gone")[1] if isinstance(frame, Publish)
    ]
    assert body_and_dup == [(b"1", False), (b"2", False), (b"3", False)]


@pytest.mark.rule("MQTT-195")
def test_a_session_ages_across_restarts_and_a_wrong_clock_leaves_it_a_day(life: Life) -> None:
    day = 86400
    for name in ("early", "late"):
        life.broker.client(name, clean=False).wire.lose()
        life.broker.site.clock.advance(3 * day)
    second = life.again(at=6 * day)
    clock = second.broker.site.clock
    clock.advance(day - 1)
    assert list(second.broker.sessions.stored) == ["early", "late"]
    clock.advance(62)
    assert list(second.broker.sessions.stored) == ["late"]
    third = second.again(at=1000 * day)
    clock = third.broker.site.clock
    clock.advance(day - 1)
    assert list(third.broker.sessions.stored) == ["late"]
    clock.advance(62)
    assert list(third.broker.sessions.stored) == []
    assert list(third.again(at=1001 * day).broker.sessions.stored) == []


def test_a_session_that_had_a_client_when_the_hub_was_killed_is_as_old_as_the_start(life: Life) -> None:
    life.broker.client("dev", clean=False)
    second = life.again(at=86400 * 100)
    second.broker.site.clock.advance(86400 * 6.9)
    assert list(second.broker.sessions.stored) == ["dev"]
    third = second.again(at=86400 * 107 - 60)
    assert list(third.broker.sessions.stored) == ["dev"]


@pytest.mark.rule("MQTT-200")
def test_wills_of_the_clients_of_a_killed_hub_are_published_once(life: Life) -> None:
    broker = life.broker
    broker.client("dev", clean=False).subscribe(("will/#", 2))
    broker.client("a", will=Will("will/a", b"a is gone", 1, retain=True))
    broker.client("b", will=Will("will/b", b"b is gone", 2))
    broker.client("left", will=Will("will/left", b"no")).send(Disconnect()).wire.lose()
    broker.client("lost", will=Will("will/lost", b"at once", 1)).wire.lose()
    broker.client("queue", will=Will("queue/wills", b"work"))
    again = life.again()
    assert again.wills == 3
    assert (again.kept("will/a"), again.kept("will/left")) == (b"a is gone", None)
    assert again.queue("wills") == [b"work"]
    _, sent = again.broker.resumed("dev")
    assert [(frame.payload, frame.qos) for frame in sent if isinstance(frame, Publish)] == [
        (b"at once", 1),
        (b"a is gone", 1),
        (b"b is gone", 2),
    ]
    third = again.again()
    assert third.wills == 0
    assert third.queue("wills") == [b"work"]


@pytest.mark.rule("FMQP-62", "FMQP-63", "FMQP-77")
def test_fmqp_s_wills_come_back_with_their_flags_and_without_signals(life: Life) -> None:
    wire = life.broker.site.connect("fmqp", FmqpSession)
    wills = [
        ("a", b"1", CACHE),
        ("a", b"2", CACHE),
        ("c", b"", CACHE),
        ("*/b", b"3", DEBUG),
        ("$/signals/stop", b"x", 0),
    ]
    life.hub.on_signal = lambda _what: None
    life.broker.publish("c", b"cached", retain=True)
    wire.feed(b"".join(encode_fmqp(Publication(topic, body, flags | LAST_WILL)) for topic, body, flags in wills))
    again = life.again(heard="x/b")
    assert again.wills == 4
    assert (again.kept("a"), again.kept("c")) == (b"2", None)
    heard = again.heard
    assert heard is not None
    (message,) = heard.got
    assert (message.body, message.encoded[2 * 16]) == (b"3", encode_fmqp(Publication("*/b", b"3", DEBUG)))


def test_a_will_is_published_though_its_protocol_is_not_installed_any_more(life: Life) -> None:
    life.broker.client("a", will=Will("will/a", b"a is gone", retain=True))
    rows = life.rows()
    other = pa.array(["line"] * rows.num_rows, pa.utf8())
    again = Life(rows.set_column(rows.schema.names.index("protocol"), "protocol", other), rows.num_rows)
    assert (again.wills, again.kept("will/a")) == (1, b"a is gone")
    row = again.rows().filter(pc.equal(again.rows()["kind"], pa.scalar("publish"))).to_pylist()[0]
    assert (row["channel"], row["protocol"]) == ("will/a", None)


def test_a_will_that_is_no_longer_allowed_is_not_published(life: Life) -> None:
    life.broker.client("a", will=Will("will/a", b"a is gone", 1, retain=True))
    again = life.again(rules=AccessRules([AccessRule(["publish"], ["other"])]))
    assert again.wills == 1
    assert again.kept("will/a") is None
    assert again.again().wills == 0


def test_qos_2_is_exactly_once_across_a_restart_in_both_directions(life: Life) -> None:
    device = life.broker.client("dev", clean=False)
    device.subscribe(("t", 2))
    life.broker.publish("t", b"x")
    assert device.got() == [Publish("t", b"x", 2, packet_id=1)]
    device.send(Pubrec(1), Publish("queue/q", b"up", 2, packet_id=9))
    again = life.again()
    assert again.queue("q") == [b"up"]
    device, sent = again.broker.resumed("dev")
    assert sent == [Pubrel(1)]
    assert device.ask(Publish("queue/q", b"up", 2, dup=True, packet_id=9)) == [Pubrec(9)]
    assert again.queue("q") == [b"up"]
    assert device.ask(Pubrel(9), Pubcomp(1)) == [Pubcomp(9)]
    third = again.again()
    device, sent = third.broker.resumed("dev")
    assert sent == []
    device.send(Publish("queue/q", b"new", 2, packet_id=9))
    assert third.queue("q") == [b"up", b"new"]


def test_a_queue_s_message_that_was_received_is_nobody_else_s_after_a_restart(life: Life) -> None:
    worker = life.broker.client("worker", clean=False)
    worker.subscribe(("queue/q", 2))
    life.broker.publish("queue/q", b"x")
    assert worker.ask(Pubrec(1))[-1] == Pubrel(1)
    again = life.again()
    assert again.queue("q") == []
    worker, sent = again.broker.resumed("worker")
    assert sent == [Pubrel(1)]
    worker.send(Pubcomp(1))
    assert again.again().broker.resumed("worker")[1] == []


def test_a_session_that_was_cleaned_does_not_come_back(life: Life) -> None:
    life.broker.client("dev", clean=False).subscribe(("t", 1))
    life.broker.client("dev", clean=True)
    again = life.again()
    assert again.counts == (0, 0, 0)
    again.broker.client("dev", clean=False)  # CONNACK says that there is no session


def test_subscriptions_of_a_kept_session_are_acknowledged_when_they_are_safe(life: Life) -> None:
    waiting: list[Any] = []
    life.hub.when_safe = lambda safe, _failed: waiting.append(safe)
    device = life.broker.client("dev", clean=False)
    other = life.broker.client("other")
    frame = Subscribe(1, (("t", 1),))
    assert device.ask(frame) == []
    assert other.ask(frame) == [Suback(1, (1,))]
    waiting.pop()()
    assert device.got() == [Suback(1, (1,))]


def test_headers_come_back_as_they_were() -> None:
    assert headers_of(None) == ()
    assert headers_of('{"a":"x","b":1,"c":1.5,"d":{"date":7}}') == (("a", "x"), ("b", 1), ("c", 1.5), ("d", Date(7)))


def test_messages_bridged_to_a_session_that_is_away_are_kept_with_their_bodies(life: Life) -> None:
    device: MqttClient = life.broker.client("dev", clean=False)
    device.subscribe(("t/#", 1))
    device.wire.lose()
    wire = life.broker.site.connect("fmqp", FmqpSession)
    wire.feed(b"".join(encode_fmqp(Publication(f"t/{number}", b"%d" % number)) for number in range(3)))
    _, sent = life.again().broker.resumed("dev")
    assert [(frame.topic, frame.payload) for frame in sent if isinstance(frame, Publish)] == [
        ("t/0", b"0"),
        ("t/1", b"1"),
        ("t/2", b"2"),
    ]


SMALL = ("journal.segment_size=16 KiB", "journal.keep_size=64 KiB")


def test_files_hold_a_tenth_of_the_time_that_rows_are_kept() -> None:
    assert segment_seconds(0) == 0  # kept for ever: only the size counts
    assert segment_seconds(30 * 86400) == 3 * 86400
    assert segment_seconds(1) == 60


def url(hub: HubProcess) -> str:
    return f"mqtt://127.0.0.1:{hub.port('mqtt')}"


async def fill(hub: HubProcess, folder: Path) -> None:
    """Publish until the first segment is gone; before that, what is to be remembered."""
    end = time.monotonic() + 40

    def trimmed() -> bool:
        assert time.monotonic() < end, sorted(path.name for path in folder.iterdir())
        return any(folder.glob("*.parquet")) and journal.open(folder).first_offset > 0

    async with polywire.connect(url(hub)) as bus:
        await bus.publish("kept", b"for ever", retain=True)
        await bus.queue("jobs").put(b"to be done")
        while not trimmed():
            await asyncio.gather(*[bus.publish("filling", os.urandom(1024)) for _ in range(20)])


async def remembered(hub: HubProcess) -> list[bytes]:
    async with polywire.connect(url(hub)) as bus:
        async with bus.subscribe("kept") as messages:
            kept = await anext(messages)
        async with bus.queue("jobs") as jobs:
            return [kept.body, (await anext(jobs)).body]


def test_what_is_retained_or_queued_outlives_the_segment_it_was_in(tmp_path: Path) -> None:
    with running_hub(*SMALL, journal=tmp_path) as hub:
        asyncio.run(fill(hub, tmp_path))
        hub.stop(signal.SIGKILL)
    found = journal.open(tmp_path)
    assert found.first_offset > 0
    offsets = [offset for batch in found.scan(["offset"]) for offset in batch.column(0).to_pylist()]
    assert offsets == list(range(found.first_offset, found.end_offset))
    with running_hub(*SMALL, journal=tmp_path) as hub:
        assert asyncio.run(asyncio.wait_for(remembered(hub), 20)) == [b"for ever", b"to be done"]


def test_a_client_that_announces_more_than_a_row_can_tell_does_not_stop_the_journal(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub:
        for announced in (1 << 31, 3 << 30, (1 << 32) - 1):
            with connected(hub.addresses["fmqp"]) as line:
                Fmqp(line).send(b"\x00\x03" + announced.to_bytes(4, "big") + b"hotx")
        with speak("mqtt", hub.addresses) as speaker:
            speaker.publish("after", b"acknowledged")
        assert hub.metric("polywire_journal_failed") == 0
        assert hub.stop() == 0
    rows = [row for batch in journal.open(tmp_path).scan(["kind", "size"]) for row in batch.to_pylist()]
    assert (1 << 31) - 1 in [row["size"] for row in rows if row["kind"] == "discard"]
