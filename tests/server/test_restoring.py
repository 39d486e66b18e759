"""A hub that starts again is as it was: whatever was retained, queued or due to a session is there."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from polywire.hub.message import Date, Message
from polywire.hub.recorder import Recorder
from polywire.journal.batches import BatchMaker
from polywire.journal.schema import PLAIN_SCHEMA, SCHEMA
from polywire.journal.state import fold, references, resolve
from polywire.protocols.fmqp.frames import CACHE, Publication
from polywire.protocols.fmqp.frames import encode as encode_fmqp
from polywire.protocols.fmqp.session import FmqpSession
from polywire.protocols.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Unsubscribe
from polywire.server.restoring import headers_of, restore
from tests.protocols.mqtt.broker import Broker, MqttClient


class Life:
    """One life of a hub with a journal in memory; ``again`` is the next one."""

    def __init__(self, rows: Any = None, first: int = 0) -> None:
        self.broker = Broker()
        self.hub = self.broker.hub
        self.recorder = Recorder(first, self.hub.clock, lambda: None)
        self.hub.recorder = self.recorder
        self._rows = PLAIN_SCHEMA.empty_table() if rows is None else rows
        self.counts = restore(self.hub, self._state().to_pylist(), self.broker.limits)

    def again(self) -> "Life":
        """The hub is killed and started."""
        maker = BatchMaker("here")
        made = [maker.make(columns) for columns in self.recorder.take()]
        self._rows = pa.concat_tables([self._rows, pa.Table.from_batches(made, SCHEMA).cast(PLAIN_SCHEMA)])
        return Life(self._rows, self._rows.num_rows)

    def _state(self) -> Any:
        left = fold(self._rows)
        found = self._rows.filter(pc.is_in(self._rows["offset"], value_set=references(left)))
        return resolve(left, dict(zip(found["offset"].to_pylist(), found["body"].to_pylist(), strict=True)))

    def queue(self, name: str) -> list[bytes]:
        """What is in a queue."""
        return [message.body for message in self.hub.queue(name).contents()]

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
    message = Message("c/d", b"3", "text/plain", headers, (b"att",), True, 1_000_000_000)
    life.hub.publish(message, client.wire.client)
    again = life.again()
    assert (again.kept("a"), again.kept("b")) == (b"1", None)
    found = again.hub.retained.get("c/d")
    assert found is not None
    assert (found.headers, found.content_type, found.attachments) == (headers, "text/plain", (b"att",))
    assert (found.time, found.retain) == (1_000_000_000, True)
    assert again.counts == (2, 0, 0)


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
