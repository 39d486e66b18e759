"""Rows by column: what is appended comes out as Arrow's columns, whatever it has in common with its neighbours."""

import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from polywire.journal import kinds
from polywire.journal.columns import Columns
from polywire.journal.committer import LARGEST_CONSTANT, BatchMaker
from polywire.journal.format import CODED, PLAIN_SCHEMA, SCHEMA, protocol_values
from polywire.journal.kinds import ACK, CONNECT, KINDS, NO_PROTOCOL, PUBLISH
from polywire.protocols.fmqp.frames import Publication, encode
from polywire.protocols.fmqp.frames import locate as locate_fmqp
from polywire.protocols.mqtt.frames import Publish
from polywire.protocols.mqtt.frames import encode as encode_mqtt
from polywire.protocols.mqtt.frames import locate as locate_mqtt
from polywire.registry import built_in, built_in_names, by_name, names

UMQ, FMQP = by_name("umq").code, by_name("fmqp").code
TIME = 1_700_000_000_000_000_000


def rows(columns: Columns) -> list[dict[str, Any]]:
    columns.close()
    batch = BatchMaker("here").make(columns)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    return list(batch.to_pylist())


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_row_has_what_was_appended_and_null_for_what_was_not() -> None:
    columns = Columns(100)
    assert columns.append(CONNECT, FMQP, 0, 7, TIME, "me", "", b"", headers='{"address":"x"}') == 100
    assert columns.append(PUBLISH, NO_PROTOCOL, 5, 8, TIME + 1000, "", "a/b", b"hi", "c", "text/plain") == 101
    first, second = rows(columns)
    assert (first["offset"], first["kind"], first["protocol"], first["node"]) == (100, "connect", "fmqp", "here")
    assert (first["client"], first["channel"], first["headers"]) == ("me", None, '{"address":"x"}')
    assert (first["body"], first["size"], first["attachments"]) == (b"", 0, None)
    assert (second["protocol"], second["client"], second["channel"], second["body"]) == (None, None, "a/b", b"hi")
    assert (second["correlation"], second["content_type"], second["headers"]) == ("c", "text/plain", None)
    assert (second["flags"], second["connection"], second["size"]) == (5, 8, 2)


def test_rows_that_have_all_in_common_are_one_stretch() -> None:
    columns = Columns(0)
    for number in range(1000):
        columns.append(PUBLISH, FMQP, 0, 1, TIME, "me", f"t/{number % 3}", b"%d" % number)
    columns.append(PUBLISH, FMQP, 0, 1, TIME + 1_000_000, "me", "t", b"last")
    assert len(columns.kinds) == 2
    made = rows(columns)
    assert [row["body"] for row in made] == [b"%d" % number for number in range(1000)] + [b"last"]
    assert [row["channel"] for row in made[:4]] == ["t/0", "t/1", "t/2", "t/0"]
    assert len({row["ts"] for row in made}) == 2


@pytest.mark.parametrize("different", ["", "kind", "protocol", "flags", "client", "channel", "correlation"])
def test_columns_of_one_value_are_as_right_as_others(different: str) -> None:
    maker = BatchMaker("here")
    for count in (1, 30, 5000, 70_000, 30):  # some of them are longer than what is kept of a batch before
        columns = Columns(0)
        base: dict[str, Any] = {"kind": PUBLISH, "protocol": NO_PROTOCOL, "flags": 2, "client": "me", "channel": "a"}
        values: list[dict[str, Any]] = [dict(base, correlation="") for _ in range(count)]
        if different:
            values[-1][different] = {"kind": ACK, "protocol": UMQ, "flags": 0, "correlation": "c"}.get(different, "")
        for number, each in enumerate(values):
            columns.append(
                each["kind"], each["protocol"], each["flags"], number % 3, TIME, each["client"], each["channel"], b"x",
                each["correlation"],
            )  # fmt: skip
        columns.close()
        batch = maker.make(columns)
        batch.validate(full=True)
        names = [name for name in SCHEMA.names if name in base or name == "correlation"]
        first, last = (
            batch.select(names).slice(0, 1).to_pylist()[0],
            batch.select(names).slice(count - 1).to_pylist()[0],
        )
        plain = {"kind": "publish", "protocol": None, "flags": 2, "client": "me", "channel": "a", "correlation": None}
        other = {"kind": "ack", "protocol": "umq", "flags": 0, "client": None, "channel": None, "correlation": "c"}
        assert last == {name: (other if name == different else plain)[name] for name in names}
        assert first == (plain if count > 1 else last)


def test_attachments_count_and_sizes_can_be_larger_than_what_is_kept() -> None:
    columns = Columns(0)
    columns.append(PUBLISH, UMQ, 0, 1, TIME, "", "a", b"x")
    columns.attach((b"12", b"345"))
    columns.append(PUBLISH, UMQ, 0, 1, TIME, "", "a", b"xy")
    columns.append(PUBLISH, UMQ, 0, 1, TIME, "", "a", b"x" * 1024)
    columns.size(5000)
    made = rows(columns)
    assert [row["attachments"] for row in made] == [[b"12", b"345"], None, None]
    assert [row["size"] for row in made] == [6, 2, 5000]


@pytest.mark.parametrize("protocol", ["fmqp", "mqtt", "mqtt with QoS 1"])
def test_a_run_is_located_in_the_octets_it_came_in(protocol: str) -> None:
    messages = [(f"a/{number % 7}", b"x" * (number * 13 % 300)) for number in range(1, 200)]
    if protocol == "fmqp":
        frames = [encode(Publication(topic, body)) for topic, body in messages]
    elif protocol == "mqtt":
        frames = [encode_mqtt(Publish(topic, body)) for topic, body in messages]
    else:
        frames = [encode_mqtt(Publish(topic, body, 1, packet_id=257)) for topic, body in messages]
    before, behind = b"something else", b"and more"
    data = before + b"".join(frames) + behind
    columns = Columns(0)
    columns.append(ACK, NO_PROTOCOL, 0, 0, TIME, "", "queue/q", b"", "1")
    columns.stretch(PUBLISH, FMQP, 0, 1, TIME, "")
    locate = locate_fmqp if protocol == "fmqp" else locate_mqtt
    base = columns.hold(data)
    middle = len(before) + sum(map(len, frames[:100]))
    for start, end, count in ((len(before), middle, 100), (middle, len(data) - len(behind), 99)):
        assert columns.hold(data) == base
        locate(data, start, end, base, columns.places)
        columns.rows += count
    columns.append(PUBLISH, FMQP, 0, 1, TIME, "", "last", b"!")
    made = rows(columns)
    assert [(row["channel"], row["body"]) for row in made[1:-1]] == messages
    assert (made[-1]["channel"], made[-1]["body"], made[-1]["offset"]) == ("last", b"!", 200)


@pytest.mark.parametrize("size", [100, 1 << 15, 1 << 20])
def test_chunks_of_any_size_are_put_together_and_no_batch_feels_the_next(size: int) -> None:
    maker = BatchMaker("here")
    made = []
    for number in range(1, 4):
        body = bytes([number]) * size
        data = encode(Publication("chunk", body))
        columns = Columns(0)
        for at in range(1, 3):
            columns.append(PUBLISH, FMQP, 0, 1, TIME + at * 1000, "", "before", body)
            base = columns.hold(data)
            locate_fmqp(data, 0, len(data), base, columns.places)
            columns.rows += 1
        columns.close()
        assert (int(columns.earliest), int(columns.latest)) == (TIME // 1000 + 1, TIME // 1000 + 2)
        made.append(maker.make(columns))
    for number, batch in enumerate(made, 1):
        batch.validate(full=True)
        assert batch.column("channel").to_pylist() == ["before", "chunk"] * 2
        assert set(batch.column("body").to_pylist()) == {bytes([number]) * size}


def test_many_small_rows_are_all_there() -> None:
    columns = Columns(0)
    count = LARGEST_CONSTANT + 1
    for number in range(count):
        columns.append(PUBLISH, FMQP, 0, 1, TIME, "", f"t/{number % 3}", b"%d" % number)
    columns.close()
    batch = BatchMaker("here").make(columns)
    batch.validate(full=True)
    assert batch.column("channel").to_pylist() == [f"t/{number % 3}" for number in range(count)]
    assert batch.column("body").to_pylist() == [b"%d" % number for number in range(count)]


def test_whatever_is_appended_comes_out_again() -> None:
    dice = random.Random(7)  # noqa: S311 - no secret
    columns = Columns(5)
    expected = []
    for _ in range(2000):
        kind, protocol = dice.randrange(len(KINDS)), dice.randrange(-1, len(names()))
        words = [dice.choice(["", "ä", "word", "x" * 50]) for _ in range(4)]
        channel, body = dice.choice(["", "a", "a/ö/c"]), dice.randbytes(dice.choice([0, 1, 100]))
        numbers = (dice.randrange(3), dice.randrange(2), TIME + dice.randrange(2) * 1000)
        columns.append(kind, protocol, *numbers, words[0], channel, body, *words[1:])
        expected.append((KINDS[kind], None if protocol < 0 else names()[protocol], channel or None, body, words))
    made = rows(columns)
    times = [row["ts"] for row in made]
    assert [_micros(min(times)), _micros(max(times))] == [int(columns.earliest), int(columns.latest)]
    texts = ("client", "correlation", "content_type", "headers")
    for row, (kind_name, protocol_name, channel_name, body, words) in zip(made, expected, strict=True):
        assert (row["kind"], row["protocol"], row["channel"], row["body"]) == (
            kind_name,
            protocol_name,
            channel_name,
            body,
        )
        assert [row[name] for name in texts] == [word or None for word in words]


def test_each_kind_has_its_place_as_its_code() -> None:
    assert [getattr(kinds, name.upper()) for name in kinds.KINDS] == list(range(len(kinds.KINDS)))


def test_the_stored_codes_of_protocols_never_change() -> None:
    assert built_in_names() == ("umq", "micromsg", "fmqp", "mqtt", "mqttrpc", "sabc", "http")
    assert protocol_values(built_in_names()).to_pylist() == list(built_in_names())
    assert all(built_in_names()[each.code] == each.name for each in built_in())


def test_no_two_flags_share_a_bit() -> None:
    bits = [value for name, value in vars(kinds).items() if name.endswith(("_FLAG", "_MASK"))]
    assert sum(bits) == 4095
    assert kinds.QOS_MASK == 3 << kinds.QOS_SHIFT


def test_readers_see_the_stored_columns_with_text_in_place_of_codes() -> None:
    assert PLAIN_SCHEMA.names == SCHEMA.names
    assert {name for name in SCHEMA.names if SCHEMA.field(name).type != PLAIN_SCHEMA.field(name).type} == set(CODED)
    assert SCHEMA.metadata == {b"polywire.journal": b"1"}


def test_the_constants_come_without_arrow() -> None:
    check = "import sys, polywire, polywire.journal.kinds, polywire.hub.hub; sys.exit('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], check=False)  # noqa: S603 - our own text
    assert done.returncode == 0
