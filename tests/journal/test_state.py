"""The state that rows leave behind."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.channels import ANY
from polywire.hub.client import Client
from polywire.hub.message import Date, FailedAttachment, Message
from polywire.hub.recorder import NOT_KEPT, message_of, will_of
from polywire.journal.columns import MICROSECOND
from polywire.journal.state import KeptSession, Row, references, resolve, restore, session_about, to_json
from tests.journal.recording import MQTT, TIME, Recording
from tests.journal.rows import fold


@pytest.fixture
def rec() -> Recording:
    return Recording()


def left(table: Any) -> list[tuple[str, str | None, bytes]]:
    state = fold(table)
    wanted = table.filter(pc.is_in(table["offset"], value_set=references(state)))
    state = resolve(state, dict(zip(wanted["offset"].to_pylist(), wanted["body"].to_pylist(), strict=True)))
    assert fold(state).equals(state)
    return [(row["kind"], row["channel"] or row["correlation"], row["body"]) for row in state.to_pylist()]


def test_nothing_is_left_of_nothing(rec: Recording) -> None:
    assert left(rec.table()) == []


def test_what_is_not_kept_leaves_nothing(rec: Recording) -> None:
    rec.publish("a", b"1")
    rec.recorder.connected(rec.client)
    rec.recorder.subscribed(rec.client, "a/*")
    rec.recorder.disconnected(rec.client)
    rec.recorder.started()
    assert left(rec.table()) == []


def test_the_last_retained_message_of_a_channel_is_left_unless_it_was_cleared(rec: Recording) -> None:
    for channel, body in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b""), ("c", b"4"), ("d", b"5")):
        rec.publish(channel, body, retain=True)
    rec.publish("a", b"not kept")
    rec.clear("d")
    assert left(rec.table()) == [("publish", "a", b"3"), ("publish", "c", b"4")]


@pytest.mark.parametrize("attachments", [(b"x",), (b"",), (FailedAttachment("gone"),)])
def test_a_retained_message_of_attachments_only_is_left(rec: Recording, attachments: tuple[Any, ...]) -> None:
    rec.publish("a", b"old", retain=True)
    rec.record(Message("a", b"", attachments=attachments, retain=True, time=TIME))
    assert left(rec.table()) == [("publish", "a", b"")]


def test_what_was_put_into_a_queue_is_left_until_it_is_acknowledged(rec: Recording) -> None:
    offsets = [rec.enqueue("jobs", b"%d" % number) for number in range(4)]
    rec.recorder.dequeued("jobs", offsets[1])
    rec.recorder.dequeued("jobs", offsets[0])
    assert left(rec.table()) == [("enqueue", "queue/jobs", b"2"), ("enqueue", "queue/jobs", b"3")]


def test_of_a_message_that_came_back_the_last_count_is_left_until_it_is_acknowledged(rec: Recording) -> None:
    kept, done = rec.enqueue("jobs", b"kept"), rec.enqueue("jobs", b"done")
    for deliveries in (1, 2, 3):
        rec.recorder.returned("jobs", kept, deliveries, "no")
        rec.recorder.returned("jobs", done, deliveries, "")
    rec.recorder.dequeued("jobs", done)
    table = rec.table()
    assert left(table) == [("enqueue", "queue/jobs", b"kept"), ("nack", "queue/jobs", b"")]
    assert fold(table)["headers"].to_pylist()[1] == '{"deliveries":3,"reason":"no"}'


def test_a_message_that_moves_to_another_queue_is_in_one_batch_in_both(rec: Recording) -> None:
    large = bytes(5 << 20)  # the next row would begin another batch
    offset = rec.enqueue("jobs", large)
    moved = rec.recorder.moved(Message("queue/dead", large, headers=(("k", "v"),), time=1), "jobs", offset)
    batches = rec.recorder.take()
    assert [int(columns.rows) for columns in batches] == [1, 2]
    assert int(batches[-1].first) == moved


def test_a_message_that_moved_is_left_in_its_new_queue_only(rec: Recording) -> None:
    offset = rec.enqueue("jobs", b"old")
    rec.recorder.returned("jobs", offset, 1, "")
    rec.recorder.moved(Message("queue/dead", b"new", time=1), "jobs", offset)
    assert left(rec.table()) == [("enqueue", "queue/dead", b"new")]


def test_a_session_keeps_its_subscriptions(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
    rec.recorder.session_subscribed(MQTT, "dev", "a/#", 1)
    rec.recorder.session_subscribed(MQTT, "dev", "b", 1)
    rec.recorder.session_subscribed(MQTT, "dev", "b", 2)
    rec.recorder.session_subscribed(MQTT, "dev", "c", 1)
    rec.recorder.session_unsubscribed(MQTT, "dev", "c")
    rec.recorder.session(MQTT, "dev", "ann", kept=True, clean=False)
    assert left(rec.table()) == [("subscribe", "a/#", b""), ("subscribe", "b", b""), ("session", "ann", b"")]


def test_a_session_that_begins_clean_or_ends_leaves_nothing_of_before(rec: Recording) -> None:
    for name in ("dev", "gone"):
        rec.recorder.session(MQTT, name, "ann", kept=True, clean=True)
        rec.recorder.session_subscribed(MQTT, name, "old", 1)
        rec.store(name, "old", rec.publish("old", b"x"), 1)
        rec.recorder.held(MQTT, name, 3)
    rec.recorder.session(MQTT, "dev", "bob", kept=True, clean=True)
    rec.recorder.session_subscribed(MQTT, "dev", "new", 1)
    rec.recorder.session(MQTT, "gone", "", kept=False, clean=True)
    assert left(rec.table()) == [("session", "bob", b""), ("subscribe", "new", b"")]


def test_sessions_of_two_protocols_may_have_one_name(rec: Recording) -> None:
    rec.recorder.applied("sink:q", "3:0")
    rec.recorder.session(MQTT, "sink:q", "ann", kept=True, clean=True)
    assert left(rec.table()) == [("session", "3:0", b""), ("session", "ann", b"")]
    rec.recorder.applied("sink:q", "3:0")
    rec.recorder.session(MQTT, "sink:q", "", kept=False, clean=True)
    assert left(rec.table()) == [("session", "3:0", b"")]


def test_what_is_due_to_a_session_is_left_with_its_body_and_how_far_it_got(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, clean=True)
    waits, done, received, sent = [rec.store("dev", "t", rec.publish("t", b"%d" % number), 2) for number in range(4)]
    rec.recorder.finished(MQTT, "dev", done)
    rec.recorder.sent(MQTT, "dev", received, 7)
    rec.recorder.received(MQTT, "dev", received, 7)
    rec.recorder.sent(MQTT, "dev", sent, 8)
    table = rec.table()
    kinds = [("session", None, b""), ("deliver", "t", b"0"), ("deliver", "t", b"3")]
    assert left(table) == [*kinds, ("received", str(received), b""), ("sent", str(sent), b"")]
    assert fold(table)["offset"].to_pylist()[1] == waits


def test_an_id_that_is_held_and_released_again_and_again_is_what_it_was_last(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, clean=True)
    for _ in range(3):
        rec.recorder.held(MQTT, "dev", 4)
        rec.recorder.held(MQTT, "dev", 5)
        rec.recorder.released(MQTT, "dev", 4)
    assert left(rec.table())[1:] == [("hold", "5", b"")]


def test_the_open_end_of_a_queue_s_message_is_told_by_its_packet_id(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, clean=True)
    for _ in range(2):
        rec.recorder.received(MQTT, "dev", -9, 9)
        rec.recorder.finished(MQTT, "dev", -9)
    rec.recorder.received(MQTT, "dev", -9, 9)
    assert left(rec.table())[1:] == [("received", "-9", b"")]


def test_folding_in_steps_gives_what_folding_at_once_does(rec: Recording) -> None:
    tables = []
    offsets: list[int] = []
    for step in range(5):
        rec.publish(f"r/{step % 2}", b"%d" % step, retain=True)
        offsets += [rec.enqueue("q", b"%d" % step) for _ in range(3)]
        rec.recorder.dequeued("q", offsets.pop(0))
        rec.recorder.session(MQTT, "dev", "", kept=True, clean=step == 2)
        rec.recorder.session_subscribed(MQTT, "dev", f"f/{step}", 1)
        rec.store("dev", "t", rec.publish("t", b"%d" % step), 1)
        tables.append(rec.table())
    state = tables[0].slice(0, 0)
    for table in tables:
        state = fold(pa.concat_tables([state, table]))
    assert state.equals(fold(pa.concat_tables(tables)))


def test_a_delivery_whose_message_is_gone_is_left_out(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, clean=True)
    rec.store("dev", "t", rec.publish("t", b"x"), 1)
    table = rec.table()
    state = fold(table)
    assert [row["kind"] for row in resolve(state, {}).to_pylist()] == ["session"]


def test_last_wills_are_left_until_they_are_over_in_one_fold_or_several(rec: Recording) -> None:
    other = Client(99, MQTT, rec.client.outbox, rec.client.counters)
    rec.recorder.will_left(Message("a", b"1"), rec.client, 0)
    rec.recorder.will_left(Message("a", b"2"), other, 0)
    first = rec.table()
    assert [body for _, _, body in left(first)] == [b"1", b"2"]
    rec.wills_over()
    second = rec.table()
    assert [body for _, _, body in left(pa.concat_tables([first, second]))] == [b"2"]
    rec.recorder.will_left(Message("a", b"3"), rec.client, 0)
    in_steps = fold(pa.concat_tables([fold(pa.concat_tables([fold(first), second])), rec.table()]))
    assert [body for _, _, body in left(in_steps)] == [b"2", b"3"]


CHANNELS = ("a", "b", "a/c", f"a/{ANY}")
HEADERS = ((), (("n", 1), ("when", Date(5.0)), ("who", "me")))
ATTACHMENTS = ((), (b"",), (b"x", FailedAttachment(NOT_KEPT)))
SHAPES = tuple(
    itertools.product((b"", b"x"), ("", "text/plain"), HEADERS, ATTACHMENTS, (False, True), (0, 1, 2), (False, True))
)
"""Of messages: body, content type, headers, attachments, retain flag, QoS, whether it is binary."""
QUEUES = ("jobs", "dead")
CLIENTS = ("dev", "cam")
PACKETS = range(1, 4)
GROUPS = range(2)
Letter = tuple[str, bytes, int, bool]
"""Topic, body, QoS and retain flag of a message that is due."""
Value = tuple[object, ...]
"""All that a message consists of."""


def value_of(message: Message) -> Value:
    about = (message.content_type, message.headers, message.attachments, message.time, message.origin, message.binary)
    return message.channel, message.body, message.qos, message.retain, *about


@dataclass
class Session:
    """A kept session as its hub has it in memory."""

    user: str
    about: dict[str, Any]
    filters: dict[str, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    due: dict[int, Letter] = field(default_factory=dict)
    packets: dict[int, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def restored(kept: KeptSession) -> "Session":
        due = {offset: (each.topic, each.body, each.qos, each.retain) for offset, each in kept.due.items()}
        about = {"how": kept.how, "groups": kept.groups, "bridge": kept.bridge, "away": kept.about.get("away")}
        return Session(kept.user, about, dict(kept.filters), set(kept.held), due, kept.packets, kept.released)


@dataclass
class Kept:
    """What a hub keeps: as it is in memory, or as it was put back."""

    retained: dict[str, Value] = field(default_factory=dict)
    queued: dict[int, Value] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)
    wills: list[tuple[str, Value, int]] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    sinks: dict[str, tuple[int, str, dict[str, Any]]] = field(default_factory=dict)

    def retain(self, row: Row) -> None:
        message = message_of(row)
        self.retained[message.channel] = value_of(message)

    def enqueue(self, row: Row) -> None:
        self.queued[row["offset"]] = value_of(message_of(row))

    def redeliver(self, offset: int, deliveries: int) -> None:
        self.deliveries[offset] = deliveries

    def will(self, row: Row) -> None:
        message, identity, mark = will_of(row)
        assert identity.name == ""
        self.wills.append((row["correlation"], value_of(message), mark))


class Life:
    """A hub's life: whatever happens is recorded, and done to ``kept``."""

    def __init__(self) -> None:
        self.rec = Recording()
        self.kept = Kept()
        self.published: list[Message] = []
        self.queued: dict[int, Message] = {}

    def step(self, draw: Any) -> None:
        """Something that can happen now."""
        possible = [self._publish, self._clear, self._enqueue, self._will, self._wills_over, self._begin, self._apply]
        if self.queued:
            possible += [self._ack, self._nack, self._move]
        if self.kept.sessions:
            possible += [self._session, self._session, self._session]
        draw(st.sampled_from(possible))(draw)

    def _publish(self, draw: Any) -> None:
        message = self._message(draw, draw(st.sampled_from(CHANNELS)))
        self.published.append(self.rec.record(message, heard=draw(st.booleans())))
        if message.retain and (message.body or message.attachments):
            self.kept.retained[message.channel] = value_of(message)
        elif message.retain:
            self.kept.retained.pop(message.channel, None)

    def _message(self, draw: Any, channel: str) -> Message:
        body, content_type, headers, attachments, retain, qos, binary = draw(st.sampled_from(SHAPES))
        offset = self.rec.recorder.next_offset()
        body = body and b"%d" % offset
        time, origin = TIME + 1001 * MICROSECOND * offset, self.rec.client.number
        return Message(channel, body, content_type, headers, attachments, retain, time, origin, qos, binary=binary)

    def _clear(self, draw: Any) -> None:
        channel = draw(st.sampled_from(CHANNELS))
        self.rec.clear(channel)
        self.kept.retained.pop(channel, None)

    def _enqueue(self, draw: Any) -> None:
        message = self._message(draw, f"queue/{draw(st.sampled_from(QUEUES))}")
        self._entered(message, self.rec.recorder.enqueued(message, self.rec.client))

    def _entered(self, message: Message, offset: int) -> None:
        self.queued[offset] = message
        self.kept.queued[offset] = value_of(message)

    def _taken(self, draw: Any) -> tuple[int, str]:
        offset = draw(st.sampled_from(sorted(self.queued)))
        return offset, self.queued[offset].channel.removeprefix("queue/")

    def _gone(self, offset: int) -> None:
        del self.queued[offset], self.kept.queued[offset]
        self.kept.deliveries.pop(offset, None)

    def _ack(self, draw: Any) -> None:
        offset, queue = self._taken(draw)
        self.rec.recorder.dequeued(queue, offset)
        self._gone(offset)

    def _nack(self, draw: Any) -> None:
        offset, queue = self._taken(draw)
        self.kept.deliveries[offset] = self.kept.deliveries.get(offset, 0) + 1
        self.rec.recorder.returned(queue, offset, self.kept.deliveries[offset], draw(st.sampled_from(["", "no"])))

    def _move(self, draw: Any) -> None:
        offset, queue = self._taken(draw)
        moved = self.queued[offset].with_headers(("rejected",), (("rejected", 1),), "queue/dead")
        entered = self.rec.recorder.moved(moved, queue, offset)
        self._gone(offset)
        self._entered(moved, entered)

    def _will(self, draw: Any) -> None:
        group, mark, origin = draw(st.sampled_from(GROUPS)), draw(st.integers(0, 9)), self.rec.client.number
        channel, (body, _, _, _, retain, qos, _) = draw(st.sampled_from(CHANNELS)), draw(st.sampled_from(SHAPES))
        message = Message(channel, body, retain=retain, time=TIME, origin=origin, qos=qos)
        self.rec.recorder.will_left(message, self.rec.client, mark, group)
        self.kept.wills.append((self._group(group), value_of(message), mark))

    def _wills_over(self, draw: Any) -> None:
        group = draw(st.sampled_from(GROUPS))
        self.rec.wills_over(group)
        self.kept.wills = [will for will in self.kept.wills if will[0] != self._group(group)]

    def _group(self, group: int) -> str:
        number = self.rec.client.number
        return f"{number}/{group}" if group else str(number)

    def _apply(self, draw: Any) -> None:
        name, place, about = draw(st.sampled_from(CLIENTS)), draw(st.sampled_from(["1:0", "2:7"])), {"user": "ann"}
        self.kept.sinks[name] = (self.rec.recorder.next_offset(), place, about)
        self.rec.recorder.applied(name, place, to_json(about))

    def _begin(self, draw: Any) -> None:
        name, clean = draw(st.sampled_from(CLIENTS)), draw(st.booleans())
        if name not in self.kept.sessions or clean:
            self.kept.sessions[name] = Session("", {})
            clean = True
        self._about(draw, name, clean=clean, away=None)

    def _about(self, draw: Any, name: str, *, clean: bool, away: int | None) -> None:
        user, groups, bridge = (
            draw(st.sampled_from(["", "ann"])),
            draw(st.sampled_from([(), ("a", "b")])),
            draw(st.booleans()),
        )
        headers = session_about("password", groups, bridge=bridge, away=away)
        self.rec.recorder.session(MQTT, name, user, kept=True, clean=clean, headers=headers)
        session = self.kept.sessions[name]
        session.user = user
        session.about = {"how": "password", "groups": groups, "bridge": bridge, "away": away}

    def _session(self, draw: Any) -> None:
        name = draw(st.sampled_from(sorted(self.kept.sessions)))
        session = self.kept.sessions[name]
        used = {*session.packets.values(), *session.released.values()}
        free = [packet for packet in PACKETS if packet not in used]
        possible: list[Callable[..., None]] = [
            self._end,
            self._leave,
            self._subscribe,
            self._unsubscribe,
            self._hold,
            self._release,
        ]
        if free:
            possible += [self._due, self._lend]
        if free and any(offset not in session.packets for offset in session.due):
            possible.append(self._send)
        if session.packets:
            possible.append(self._receive)
        if session.due or session.released:
            possible.append(self._finish)
        draw(st.sampled_from(possible))(draw, name, session, free)

    def _end(self, _draw: Any, name: str, _session: Session, _free: list[int]) -> None:
        self.rec.recorder.session(MQTT, name, "", kept=False, clean=True)
        del self.kept.sessions[name]

    def _leave(self, draw: Any, name: str, _session: Session, _free: list[int]) -> None:
        self._about(draw, name, clean=False, away=draw(st.integers(0, 9)))

    def _subscribe(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        topic_filter, qos = draw(st.sampled_from(["a/#", "b"])), draw(st.integers(0, 2))
        self.rec.recorder.session_subscribed(MQTT, name, topic_filter, qos)
        session.filters[topic_filter] = qos

    def _unsubscribe(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        topic_filter = draw(st.sampled_from(["a/#", "b"]))
        self.rec.recorder.session_unsubscribed(MQTT, name, topic_filter)
        session.filters.pop(topic_filter, None)

    def _hold(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        packet = draw(st.sampled_from(PACKETS))
        self.rec.recorder.held(MQTT, name, packet)
        session.held.add(packet)

    def _release(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        packet = draw(st.sampled_from(PACKETS))
        self.rec.recorder.released(MQTT, name, packet)
        session.held.discard(packet)

    def _due(self, draw: Any, name: str, session: Session, free: list[int]) -> None:
        own = Message("a", draw(st.binary(max_size=3)), time=1)
        message = draw(st.sampled_from([own, *self.published]))
        qos, retain, packet = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.sampled_from([0, *free]))
        offset = self.rec.store(name, message.channel, message, qos, packet, retain=retain)
        session.due[offset] = (message.channel, message.body, qos, retain)
        if packet:
            session.packets[offset] = packet

    def _send(self, draw: Any, name: str, session: Session, free: list[int]) -> None:
        offset = draw(st.sampled_from([each for each in session.due if each not in session.packets]))
        session.packets[offset] = draw(st.sampled_from(free))
        self.rec.recorder.sent(MQTT, name, offset, session.packets[offset])

    def _lend(self, draw: Any, name: str, session: Session, free: list[int]) -> None:
        packet = draw(st.sampled_from(free))
        session.released[-1 - packet] = packet
        self.rec.recorder.received(MQTT, name, -1 - packet, packet)

    def _receive(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        offset = draw(st.sampled_from(sorted(session.packets)))
        del session.due[offset]
        session.released[offset] = session.packets.pop(offset)
        self.rec.recorder.received(MQTT, name, offset, session.released[offset])

    def _finish(self, draw: Any, name: str, session: Session, _free: list[int]) -> None:
        offset = draw(st.sampled_from(sorted({*session.due, *session.released})))
        self.rec.recorder.finished(MQTT, name, offset)
        for each in (session.due, session.packets, session.released):
            each.pop(offset, None)


def read_back(state: Any, bodies: dict[int, bytes]) -> Kept:
    kept = Kept()
    for session in restore(resolve(state, bodies).to_pylist(), kept):
        if session.protocol is None:
            kept.sinks[session.name] = (session.offset, session.user, session.about)
        else:
            kept.sessions[session.name] = Session.restored(session)
    return kept


@given(st.data(), st.integers(0, 20), st.integers(0, 20))
def test_whatever_happens_is_put_back_as_it_was_with_and_without_a_snapshot(data: Any, first: int, rest: int) -> None:
    life = Life()
    for _ in range(first):
        life.step(data.draw)
    before = life.rec.table()
    for _ in range(rest):
        life.step(data.draw)
    rows = pa.concat_tables([before, life.rec.table()])
    bodies = {message.offset: message.body for message in life.published}
    assert read_back(fold(rows), bodies) == life.kept
    snapshot = resolve(fold(before), bodies)
    assert read_back(fold(pa.concat_tables([snapshot, rows.slice(before.num_rows)])), bodies) == life.kept
