"""Requests matched with their ends, without Spark: any cut of the rows, any order within what may be late."""

from typing import Any

import pyarrow as pa
import pytest

from polywire.pipeline.tables import matches
from polywire.pipeline.tables.matches import (
    ANSWERED,
    CLOCK,
    ERROR,
    OPENING,
    PASSED,
    REPLY,
    REQUEST,
    SINGLE,
    STORED,
    TIMEOUT,
    Waiting,
    match,
    nothing,
)
from tests.pipeline.tables.made_traffic import made, shuffled
from tests.pipeline.tables.reference import part_of_call, tables
from tests.pipeline.tables.rows import START, Row

SECOND = 1_000_000
LIMIT = 60 * SECOND
LATE = 10 * SECOND


def part(role: int, at: float, correlation: str | None = "c", offset: int = 0, **more: Any) -> dict[str, Any]:
    plain = {"role": role, "correlation": correlation, "offset": offset, "at": round(at * SECOND), "connection": 1}
    return plain | {"protocol": None, "client": None, "channel": None, "size": 0, "headers": None} | more


def frame(*parts: dict[str, Any]) -> Any:
    return pa.Table.from_pylist(list(parts), STORED)


def run(*batches: Any) -> tuple[list[dict[str, Any]], Waiting]:
    """The calls of several batches, the state stored and loaded in between."""
    waiting = nothing()
    found = []
    for batch in batches:
        ended, waiting = match(waiting, batch, LIMIT, LATE)
        waiting = Waiting.from_bytes(waiting.to_bytes(), waiting.clock)
        found += ended.to_pylist()
    return found, waiting


def test_a_reply_ends_its_call() -> None:
    found, waiting = run(frame(part(REQUEST, 1, channel="s/m"), part(REPLY, 1.5, offset=1, size=7)))
    assert [(call["channel"], call["at"], call["end_role"], call["end_at"], call["end_size"]) for call in found] == [
        ("s/m", SECOND, REPLY, 1_500_000, 7)
    ]
    assert waiting.rows.num_rows == 0


def test_a_call_waits_for_its_end_in_a_later_batch() -> None:
    found, waiting = run(frame(part(REQUEST, 1)), frame(part(ERROR, 2, offset=1, headers="{}")))
    assert [(call["end_role"], call["end_headers"]) for call in found] == [(ERROR, "{}")]
    assert waiting.rows.num_rows == 0


def test_an_end_may_come_before_its_request() -> None:
    found, waiting = run(frame(part(REPLY, 2, offset=1)), frame(part(REQUEST, 1)))
    assert [(call["at"], call["end_at"]) for call in found] == [(SECOND, 2 * SECOND)]
    assert waiting.rows.num_rows == 0


def test_a_call_nobody_answers_times_out_when_the_node_goes_on() -> None:
    still, _ = run(frame(part(REQUEST, 1)), frame(part(CLOCK, 70.9, None)))
    assert still == []
    found, waiting = run(frame(part(REQUEST, 1)), frame(part(CLOCK, 71, None)))
    assert [(call["end_role"], call["end_at"]) for call in found] == [(TIMEOUT, 61 * SECOND)]
    assert waiting.rows.num_rows == 0


def test_an_answer_after_the_timeout_does_not_count() -> None:
    found, waiting = run(frame(part(REQUEST, 0)), frame(part(REPLY, 60.000001, offset=1, size=5)))
    assert [(call["end_role"], call["end_at"], call["end_size"]) for call in found] == [(TIMEOUT, LIMIT, 0)]
    assert waiting.rows.num_rows == 0


def test_further_requests_of_a_call_that_has_ended_begin_no_new_one() -> None:
    found, waiting = run(
        frame(part(OPENING, 0)),
        frame(part(ERROR, 1, offset=1)),
        frame(part(OPENING, 2, offset=2), part(REQUEST, 3, offset=3)),
        frame(part(CLOCK, 500, None)),
    )
    assert [(call["offset"], call["end_role"]) for call in found] == [(0, ERROR)]
    assert waiting.rows.num_rows == 0


def test_an_end_without_a_request_is_forgotten_in_time() -> None:
    found, waiting = run(frame(part(REPLY, 0)), frame(part(CLOCK, 70, None)))
    assert found == []
    assert waiting.rows.num_rows == 0


def test_nothing_but_a_clock_is_no_call() -> None:
    found, waiting = run(frame(part(CLOCK, 5, None)))
    assert found == []
    assert waiting.clock == 5 * SECOND


@pytest.mark.parametrize("seed", range(40))
def test_any_order_gives_the_calls_that_plain_python_gives(seed: int) -> None:
    rows = made(seed, nodes=("n1",), steps=250)
    batches = [frame(*[_as_part(one) for one in batch]) for batch in shuffled(rows, 1 + seed % 9, seed)]
    found, _ = run(*batches)
    wanted = tables(rows)["calls"]
    assert sorted((call["correlation"], call["offset"], call["at"], call["end_at"]) for call in found) == sorted(
        (call["correlation"], call["offset"], _at(call["requested"]), _at(call["ended"])) for call in wanted
    )


def _at(time: Any) -> int:
    return round(float((time - START).total_seconds()) * SECOND)


def _as_part(one: Row) -> dict[str, Any]:
    of_call = part_of_call(one)
    if of_call is None:
        return part(CLOCK, 0, None, one["offset"]) | {"at": _at(one["ts"])}
    last = bool(of_call["flags"] & 16)
    kinds = {"request": REQUEST if last else OPENING, "error": ERROR, "reply": REPLY if last else CLOCK}
    role = (kinds | {"single": SINGLE, "passed": PASSED})[of_call["kind"]]
    return part(role, 0, of_call["correlation"], one["offset"]) | {"at": _at(one["ts"])}


def test_what_waits_is_stored_with_all_its_columns() -> None:
    waiting = match(nothing(), frame(part(REQUEST, 1, channel="s/m", client="x", protocol="umq", size=3)), LIMIT, LATE)[
        1
    ]
    again = matches.Waiting.from_bytes(waiting.to_bytes(), waiting.clock)
    assert again == waiting


def test_what_an_earlier_release_has_stored_is_read() -> None:
    parts = [part(OPENING, 1, "open", channel="s/m"), part(ANSWERED, 2, "over", offset=1, channel="s/m")]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED) as writer:
        writer.write_table(frame(*parts))
    waiting = Waiting.from_bytes(bytes(sink.getvalue()), 2 * SECOND)
    more = [part(REQUEST, 3, "over", offset=2), part(REPLY, 4, "over", offset=3), part(REPLY, 5, "open", offset=4)]
    found, waiting = match(waiting, frame(*more), LIMIT, LATE)
    assert [(call["correlation"], call["end_at"]) for call in found.to_pylist()] == [("open", 5 * SECOND)]
    assert (waiting.rows.num_rows, waiting.ended.num_rows) == (0, 2)


def test_a_repeated_request_is_the_same_call_and_one_much_later_another() -> None:
    first, again = part(REQUEST, 0), part(REQUEST, 50, offset=2)
    found, waiting = run(
        frame(first),
        frame(part(REPLY, 1, offset=1)),
        frame(again),
        frame(part(REPLY, 51, offset=3)),
        frame(part(REQUEST, 121, offset=4)),
        frame(part(REPLY, 122, offset=5)),
        frame(part(CLOCK, 500, None)),
    )
    assert [(call["offset"], call["end_at"]) for call in found] == [(0, SECOND), (4, 122 * SECOND)]
    assert (waiting.rows.num_rows, waiting.ended.num_rows) == (0, 0)


def test_a_single_reply_ends_a_call_once_nothing_else_can() -> None:
    single = part(SINGLE, 1, offset=1, size=3)
    found, _ = run(frame(part(REQUEST, 0)), frame(single), frame(part(CLOCK, 69, None)))
    assert found == []
    found, _ = run(frame(part(REQUEST, 0)), frame(single), frame(part(CLOCK, 70, None)))
    assert [(call["end_role"], call["end_at"], call["end_size"]) for call in found] == [(REPLY, SECOND, 3)]
    found, _ = run(frame(part(REQUEST, 0)), frame(single), frame(part(REPLY, 2, offset=2)))
    assert [(call["end_role"], call["end_at"]) for call in found] == [(REPLY, 2 * SECOND)]


def test_a_call_that_the_hub_passed_on_is_counted_elsewhere() -> None:
    found, waiting = run(frame(part(REQUEST, 0)), frame(part(PASSED, 1, offset=1)), frame(part(CLOCK, 500, None)))
    assert (found, waiting.rows.num_rows) == ([], 0)
