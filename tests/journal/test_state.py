"""The state that rows leave behind."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.journal.state import fold, references, resolve
from tests.journal.recording import MQTT, Recording


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
    rec.recorder.cleared("d", rec.client)
    assert left(rec.table()) == [("publish", "a", b"3"), ("publish", "c", b"4")]


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


def test_a_session_keeps_its_wishes(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "ann", kept=True, anew=True)
    rec.recorder.wished(MQTT, "dev", "a/#", 1)
    rec.recorder.wished(MQTT, "dev", "b", 1)
    rec.recorder.wished(MQTT, "dev", "b", 2)
    rec.recorder.wished(MQTT, "dev", "c", 1)
    rec.recorder.unwished(MQTT, "dev", "c")
    rec.recorder.session(MQTT, "dev", "ann", kept=True, anew=False)
    assert left(rec.table()) == [("subscribe", "a/#", b""), ("subscribe", "b", b""), ("session", "ann", b"")]


def test_a_session_that_begins_anew_or_ends_leaves_nothing_of_before(rec: Recording) -> None:
    for name in ("dev", "gone"):
        rec.recorder.session(MQTT, name, "ann", kept=True, anew=True)
        rec.recorder.wished(MQTT, name, "old", 1)
        rec.recorder.stored(MQTT, name, "old", rec.publish("old", b"x"), 1, 0, retain=False)
        rec.recorder.held(MQTT, name, 3)
    rec.recorder.session(MQTT, "dev", "bob", kept=True, anew=True)
    rec.recorder.wished(MQTT, "dev", "new", 1)
    rec.recorder.session(MQTT, "gone", "", kept=False, anew=True)
    assert left(rec.table()) == [("session", "bob", b""), ("subscribe", "new", b"")]


def test_what_is_due_to_a_session_is_left_with_its_body_and_how_far_it_got(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, anew=True)
    waits, done, received, sent = [
        rec.recorder.stored(MQTT, "dev", "t", rec.publish("t", b"%d" % number), 2, 0, retain=False)
        for number in range(4)
    ]
    rec.recorder.finished(MQTT, "dev", done)
    rec.recorder.sent(MQTT, "dev", received, 7)
    rec.recorder.received(MQTT, "dev", received, 7)
    rec.recorder.sent(MQTT, "dev", sent, 8)
    table = rec.table()
    kinds = [("session", None, b""), ("deliver", "t", b"0"), ("deliver", "t", b"3")]
    assert left(table) == [*kinds, ("received", str(received), b""), ("sent", str(sent), b"")]
    assert fold(table)["offset"].to_pylist()[1] == waits


def test_an_id_that_is_held_and_released_again_and_again_is_what_it_was_last(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, anew=True)
    for _ in range(3):
        rec.recorder.held(MQTT, "dev", 4)
        rec.recorder.held(MQTT, "dev", 5)
        rec.recorder.released(MQTT, "dev", 4)
    assert left(rec.table())[1:] == [("hold", "5", b"")]


def test_the_open_end_of_a_queue_s_message_is_told_by_its_packet_id(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, anew=True)
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
        rec.recorder.session(MQTT, "dev", "", kept=True, anew=step == 2)
        rec.recorder.wished(MQTT, "dev", f"f/{step}", 1)
        rec.recorder.stored(MQTT, "dev", "t", rec.publish("t", b"%d" % step), 1, 0, retain=False)
        tables.append(rec.table())
    state = tables[0].slice(0, 0)
    for table in tables:
        state = fold(pa.concat_tables([state, table]))
    assert state.equals(fold(pa.concat_tables(tables)))


def test_a_delivery_whose_message_is_gone_is_left_out(rec: Recording) -> None:
    rec.recorder.session(MQTT, "dev", "", kept=True, anew=True)
    rec.recorder.stored(MQTT, "dev", "t", rec.publish("t", b"x"), 1, 0, retain=False)
    table = rec.table()
    state = fold(table)
    assert [row["kind"] for row in resolve(state, {}).to_pylist()] == ["session"]


def test_last_wills_are_left_until_they_are_over_in_one_fold_or_several(rec: Recording) -> None:
    other = Client(99, MQTT, rec.client.outbox, rec.client.counters)
    rec.recorder.will_left(Message("a", b"1"), rec.client, 0)
    rec.recorder.will_left(Message("a", b"2"), other, 0)
    first = rec.table()
    assert [body for _, _, body in left(first)] == [b"1", b"2"]
    rec.recorder.wills_over(rec.client)
    second = rec.table()
    assert [body for _, _, body in left(pa.concat_tables([first, second]))] == [b"2"]
    rec.recorder.will_left(Message("a", b"3"), rec.client, 0)
    in_steps = fold(pa.concat_tables([fold(pa.concat_tables([fold(first), second])), rec.table()]))
    assert [body for _, _, body in left(in_steps)] == [b"2", b"3"]
