"""What the hub's recorder makes of what it is told."""

import json

from polywire.hub.message import Date, Message
from polywire.journal.kinds import PATTERN_FLAG, RETAIN_FLAG, UNHEARD_FLAG
from polywire.journal.state import FAILED_OCTETS, UNRECORDED
from tests.journal.recording import TIME, Recording


def test_the_first_row_is_told_of_once_until_rows_are_taken() -> None:
    rec = Recording()
    rec.publish("a", b"1")
    rec.publish("a", b"2")
    assert rec.told == 1
    assert [row["offset"] for row in rec.rows()] == [0, 1]
    rec.publish("a", b"3")
    assert rec.told == 2
    assert [row["offset"] for row in rec.rows()] == [2]
    assert rec.rows() == []


def test_a_publication_tells_who_heard_it_and_what_it_was() -> None:
    rec = Recording()
    rec.client.name = "sensor"
    headers = (("unit", "°C"), ("n", 5), ("when", Date(1.5)))
    rec.recorder.published(
        Message("a/b", b"21", "text/plain", headers, (b"att",), retain=True, time=TIME), rec.client, 0, heard=False
    )
    rec.publish("\0/b", b"x")
    first, second = rec.rows()
    assert first["flags"] & (UNHEARD_FLAG | RETAIN_FLAG) == UNHEARD_FLAG | RETAIN_FLAG
    assert (first["client"], first["protocol"], first["connection"]) == ("sensor", "fmqp", rec.client.number)
    assert json.loads(first["headers"]) == {"unit": "°C", "n": 5, "when": {"date": 1.5}}
    assert (first["content_type"], first["attachments"], first["size"]) == ("text/plain", [b"att"], 5)
    assert second["channel"] == "*/b"
    assert second["flags"] & PATTERN_FLAG


def test_connections_and_wishes_are_told() -> None:
    rec = Recording()
    rec.recorder.connected(rec.client)
    rec.recorder.subscribed(rec.client, "a/**")
    rec.recorder.unsubscribed(rec.client, "a/**")
    rec.client.reason = "FMQP-36"
    rec.recorder.disconnected(rec.client)
    rows = rec.rows()
    assert [row["kind"] for row in rows] == ["connect", "subscribe", "unsubscribe", "disconnect"]
    assert json.loads(rows[0]["headers"]) == {"address": "192.0.2.1:5000", "user": ""}
    assert [row["channel"] for row in rows] == [None, "a/**", "a/**", None]
    assert json.loads(rows[3]["headers"]) == {"reason": "FMQP-36"}


def test_what_was_discarded_is_told_with_its_first_octets_and_its_real_size() -> None:
    rec = Recording()
    rec.recorder.discarded(rec.client, "", "FMQP-52", "too long", b"x" * 5000, 70000)
    (row,) = rec.rows()
    assert (row["kind"], len(row["body"]), row["size"]) == ("discard", 1024, 70000)
    assert json.loads(row["headers"]) == {"rule": "FMQP-52", "reason": "too long"}


def test_the_parts_of_a_call_share_its_number() -> None:
    rec = Recording()
    rec.recorder.requested("7", "lamp/on", Message("lamp", b"?"), rec.client, last=True)
    rec.recorder.replied("7", "lamp/on", Message("", b"!"), None, last=True)
    rec.recorder.call_failed("8", "lamp/off", 504, "timeout", "no reply")
    rows = rec.rows()
    assert [(row["kind"], row["correlation"], row["channel"]) for row in rows] == [
        ("request", "7", "lamp/on"),
        ("reply", "7", "lamp/on"),
        ("error", "8", "lamp/off"),
    ]
    assert json.loads(rows[2]["headers"]) == {"code": 504, "tag": "timeout", "text": "no reply"}


def test_large_batches_are_closed_and_offsets_go_on() -> None:
    rec = Recording()
    for _ in range(6):
        rec.publish("a", bytes(1 << 20))
    taken = rec.recorder.take()
    assert [int(columns.rows) for columns in taken] == [4, 2]
    assert [int(columns.first) for columns in taken] == [0, 4]


def test_while_the_journal_fails_messages_are_not_kept_but_what_became_of_stored_ones_is() -> None:
    rec = Recording()
    offset = rec.enqueue("q", b"x")
    rec.recorder.failed = True
    assert rec.publish("a", b"1").offset == UNRECORDED
    assert rec.enqueue("q", b"y") == UNRECORDED
    rec.recorder.connected(rec.client)
    rec.recorder.dequeued("q", offset)
    rec.recorder.dequeued("q", UNRECORDED)
    assert [row["kind"] for row in rec.rows()] == ["enqueue", "ack"]
    assert rec.recorder.unrecorded == 2


def test_what_is_kept_while_the_journal_fails_is_bounded() -> None:
    rec = Recording()
    rec.recorder.failed = True
    name = "x" * 60000
    for number in range(2 * FAILED_OCTETS // len(name)):
        rec.recorder.held(3, name, number)
    assert rec.recorder.pending() < FAILED_OCTETS * 1.1
    assert rec.recorder.unrecorded > 0
