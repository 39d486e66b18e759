"""The table ``calls``: each request with what ended it, how long that took, and timeouts; and ``latency``, made of it.

The outcome follows from the times in the rows alone, so it is the same in batch and streaming: a call is ended by its
last reply or an error, if that came within the timeout, else it timed out. ``matches`` finds that, for rows at rest and
for a stream as its rows come.

Calls between MQTT clients are publications on service topics in the journal. They are decoded where rows have bodies;
the source decodes them where it reads only some kinds (the kind ``rpc``), so that no other body is moved.

The parts of ``latency`` are histograms: how many calls took about so long. A time is kept with its eight leading bits,
so a percentile is at most 0.4 % off, and is the same whichever way the calls were cut into parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import concat_batches
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from polywire.journal.kinds import LAST_FLAG
from polywire.pipeline import rpc
from polywire.pipeline.columns import (
    MICROSECONDS,
    MINUTE,
    TIME,
    Coded,
    Groups,
    Headers,
    Mask,
    Numbers,
    Rows,
    coded,
    days_of,
    fitted,
    masked,
    merged,
    times,
)
from polywire.pipeline.rpc import OWN, RPC
from polywire.pipeline.table import Kernel, Table, arrow_of, of_parts, parts_of, schema
from polywire.pipeline.tables import matches
from polywire.pipeline.tables.matches import PARTS, matched, matched_at_rest

SCHEMA: Final = schema(
    "day date, protocol string, node string, correlation string, offset bigint, service string, method string, "
    "connection bigint, client string, requested timestamp, ended timestamp, latency_ms double, outcome string, "
    "code int, tag string, text string, request_size int, reply_size int"
)
ARROW: Final = arrow_of(SCHEMA)

PARTS_SCHEMA: Final = schema(
    "node string, role int, correlation string, offset bigint, at bigint, protocol string, connection bigint, "
    "client string, channel string, size int, headers string"
)

OK: Final = "ok"
ERROR: Final = "error"
TIMEOUT: Final = "timeout"

TIMEOUT_TAG: Final = "timeout"
"""What the hub calls its own timeouts."""

COLUMNS: Final = (
    *("offset", "ts", "node", "kind", "protocol", "connection", "client", "channel", "correlation", "headers"),
    *("size", "flags"),
)
"""Of the journal, what is needed."""

PART_KINDS: Final = ("request", "reply", "error", RPC)
"""Rows that are parts of calls; the time comes with the source's ticks."""

BUCKETS: Final = 8
"""Of each node: a bucket is the least that one task can have, and costs some milliseconds a micro-batch."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long a call may take, and how late a row may come, in seconds.

    A row may be up to ``lateness`` behind the newest one of its node; nodes may differ by any time. ``now``, in seconds
    since 1970, is for batches: rows are handled as if each node had reached that time. In a running stream the source's
    ticks do that.
    """

    timeout: float = 60.0
    lateness: float = 10.0
    now: float | None = None
    buckets: int = BUCKETS

    @property
    def times(self) -> tuple[int, int]:
        """``timeout`` and ``lateness`` in microseconds."""
        return round(self.timeout * MICROSECONDS), round(self.lateness * MICROSECONDS)


USUAL: Final = Options()


def calls(rows: DataFrame, options: Options = USUAL) -> DataFrame:
    """Each call that has ended or timed out."""
    columns: list[Any] = list(COLUMNS)
    if "body" in rows.columns:  # of the bodies only those that may be needed are moved
        on_topic = (sf.col("kind") == "publish") & sf.col("channel").startswith("/")
        columns.append(sf.when(on_topic, sf.col("body")).alias("body"))
    rows = rows.select(*columns)
    if rows.isStreaming:
        pairs = matched(rows, parts, *options.times, options.buckets)
    else:
        now = 0 if options.now is None else round(options.now * MICROSECONDS)
        pairs = matched_at_rest(rows, parts, *options.times, now=now)
    return pairs.mapInArrow(_finished, SCHEMA)


def calls_table(options: Options = USUAL) -> Table:
    """The table, with other times than the usual ones."""

    def build(rows: DataFrame) -> DataFrame:
        return calls(rows, options)

    def build_again(rows: DataFrame, now: float) -> DataFrame:
        return calls(rows, replace(options, now=now))

    return Table(
        "calls",
        build,
        "each request with its reply: latency, outcome, timeouts",
        schema=SCHEMA,
        partition_by=("day", "protocol"),
        columns=COLUMNS,
        kinds=PART_KINDS,
        watermark=f"{options.lateness:g} s behind the newest row of the same node",
        stateful=True,
        build_again=build_again,
        keys=("node", "offset"),
        varied=("correlation", "offset", "requested", "ended"),
        kernel=Kernel(_parts_of_rows, PARTS_SCHEMA, COLUMNS, matching=options.times),
    )


def _parts_of_rows(rows: Rows) -> pa.RecordBatch:
    return parts(rows.batch)


TABLE: Final = calls_table()


def parts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The parts of calls among rows; those between MQTT clients too where there are bodies."""
    found = parts_of_calls(Rows(batch))
    if "body" not in batch.schema.names:
        return found
    published = rpc.parts(batch)
    return concat_batches([found, parts_of_calls(Rows(published))]) if published.num_rows else found


def parts_of_calls(rows: Rows) -> pa.RecordBatch:
    """Requests, replies and errors with what is needed of them; each knows its role (see ``matches``)."""
    rows = rows.chosen(rows.are(("request", "reply", "error")) & rows.named_calls)
    role = _roles(rows)
    rows, role = rows.chosen(role != matches.CLOCK), role[role != matches.CLOCK]
    asks = np.isin(role, (matches.REQUEST, matches.OPENING))
    return fitted(
        PARTS,
        {
            **{name: rows[name] for name in ("node", "correlation", "offset", "connection", "size")},
            **{name: masked(rows[name], asks) for name in ("client", "channel")},
            "role": role.astype(np.int32),
            "at": rows.at,
            "protocol": masked(rows.protocols, asks),
            "headers": masked(rows["headers"], role == matches.ERROR),
        },
    )


def _roles(rows: Rows) -> Numbers:
    last = rows.has(LAST_FLAG)
    asks, answers = rows.are(("request",)), rows.are(("reply",))
    on_topic = pc.starts_with(rows["correlation"], pattern="/").to_numpy(zero_copy_only=False)
    own = pc.equal(rows.protocols, pa.scalar(OWN)).to_numpy(zero_copy_only=False)
    # The hub's own rows of a call name its method; those that were decoded of a publication don't know it.
    decoded = pc.ends_with(rows["channel"], pattern="/").to_numpy(zero_copy_only=False)
    cases = [
        (asks & last, matches.REQUEST),
        (asks, matches.OPENING),
        (answers & on_topic & own & decoded, matches.PASSED),
        (answers & last, matches.REPLY),
        (answers & on_topic, matches.SINGLE),
        (~answers, matches.ERROR),
    ]
    return np.select([which for which, _ in cases], [role for _, role in cases], matches.CLOCK).astype(np.int64)


def _finished(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield finished(batch)


def finished(pairs: pa.RecordBatch) -> pa.RecordBatch:
    """Requests and what ended them, as the table's own columns."""
    rows = Rows(pairs)
    at, end, role = (rows[name].to_numpy().astype(np.int64) for name in ("at", "end_at", "end_role"))
    words = Headers.of(rows["end_headers"])
    channels = rows.coded("channel")
    names = [str(channel).rpartition("/") for channel in channels.values.to_pylist()]
    service, method = (
        Coded(channels.codes, pa.array([name[place] for name in names], pa.utf8())).taken(channels.codes)
        for place in (0, 2)
    )
    code = [_number(text) for text in words.word("code").to_pylist()]
    return fitted(
        ARROW,
        {
            **{name: rows[name] for name in ("protocol", "node", "correlation", "offset", "connection", "client")},
            "day": days_of(at),
            "service": service,
            "method": method,
            "requested": times(at),
            "ended": times(end),
            # A clock that was set back between the two leaves nothing to measure.
            "latency_ms": pa.array((end - at) / 1000.0, mask=end < at),
            "outcome": _outcome(role, words),
            "code": pa.array(code, pa.int32()),
            "tag": words.word("tag"),
            "text": words.word("text"),
            "request_size": rows["size"],
            "reply_size": rows["end_size"],
        },
    )


def _outcome(role: Numbers, words: Headers) -> Any:
    failed = role == matches.ERROR
    late = pc.equal(words.word("tag"), pa.scalar(TIMEOUT_TAG)).fill_null(fill_value=False)
    timeout = (role == matches.TIMEOUT) | (failed & late.to_numpy(zero_copy_only=False))
    places = np.select([timeout, failed], [2, 1], 0)
    return pa.array((OK, ERROR, TIMEOUT), pa.utf8()).take(pa.array(places))


_MOST: Final = (1 << 31) - 1


def _number(text: str | None) -> int | None:
    try:
        found = None if text is None else int(text)
    except ValueError:
        return None
    return found if found is not None and abs(found) <= _MOST else None


LATENCY_SCHEMA: Final = schema(
    "day date, minute timestamp, service string, method string, calls bigint, errors bigint, timeouts bigint, "
    "error_rate double, p50_ms double, p95_ms double, p99_ms double, max_ms double"
)
LATENCY_ARROW: Final = arrow_of(LATENCY_SCHEMA)

PART_SCHEMA: Final = schema(
    "minute timestamp, service string, method string, outcome string, about_us bigint, calls bigint, max_ms double, "
    "day date"
)
PART: Final = arrow_of(PART_SCHEMA)

KEYS: Final = ("day", "minute", "service", "method")
BITS: Final = 8
SHARES: Final = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


def about(us: Numbers) -> Numbers:
    """Microseconds with their leading bits only: the middle of those that look alike."""
    _, length = np.frexp(us.astype(np.float64))
    step = np.int64(1) << np.maximum(length.astype(np.int64) - BITS, 0)
    return us - us % step + step // 2


def part(called: Rows) -> pa.RecordBatch:
    """How many calls of each outcome took about how long.

    Those that timed out took no time at all, nor did those whose time could not be measured.
    """
    outcome = called.coded("outcome")
    answered = np.array([value != TIMEOUT for value in outcome.values.to_pylist()], dtype=bool)[outcome.codes]
    took = called["latency_ms"].fill_null(-1.0).to_numpy()
    timed = answered & (took >= 0)
    us = about(np.rint(np.where(timed, took, 0) * 1000).astype(np.int64))
    at = called["requested"].cast(pa.int64()).to_numpy()
    minute = coded(pa.array(at - at % MINUTE))
    keys = (minute, called.coded("service"), called.coded("method"), outcome, coded(pa.array(us, mask=~timed)))
    longest = np.where(timed, took, -1.0)
    minutes, service, method, result, about_us, count, most = Groups(*keys).aggregated(most=(longest, "max"))
    return fitted(
        PART,
        {
            "minute": minutes.cast(TIME),
            "service": service,
            "method": method,
            "outcome": result,
            "about_us": about_us,
            "calls": count,
            "max_ms": pa.array(most.to_numpy(), mask=most.to_numpy() < 0),
            "day": days_of(minutes.to_numpy()),
        },
    )


def merge(parts: pa.Table) -> pa.Table:
    """One row for each bar of the histogram."""
    how = {"calls": "sum", "max_ms": "max"}
    return merged(parts, (*KEYS, "outcome", "about_us"), how).select(PART.names).cast(PART)


def finish(parts: pa.Table) -> pa.Table:
    """The table itself: percentiles of the calls that were answered, with a result or an error."""
    parts = parts.sort_by([*((name, "ascending") for name in KEYS), ("about_us", "ascending")]).combine_chunks()
    count = parts.column("calls").to_numpy()
    outcome = parts.column("outcome")
    for name, of in (("errors", ERROR), ("timeouts", TIMEOUT)):
        such = pc.equal(outcome, pa.scalar(of)).to_numpy()
        parts = parts.append_column(name, pa.array(np.where(such, count, 0)))
    timed = parts.column("about_us").is_valid().to_numpy()
    parts = parts.append_column("answered", pa.array(np.where(timed, count, 0)))
    how = dict.fromkeys(("calls", "errors", "timeouts", "answered"), "sum") | {"max_ms": "max"}
    whole = merged(parts, KEYS, how)  # in the order of the first row of each
    failed = whole.column("errors").to_numpy() + whole.column("timeouts").to_numpy()
    columns: dict[str, Any] = {name: whole.column(name).combine_chunks() for name in whole.schema.names}
    columns["error_rate"] = failed / np.maximum(whole.column("calls").to_numpy(), 1)
    columns |= _percentiles(parts, timed, columns["answered"].to_numpy(), columns["max_ms"])
    return pa.Table.from_batches([fitted(LATENCY_ARROW, columns)])


def _percentiles(parts: pa.Table, timed: Mask, answered: Numbers, longest: Any) -> dict[str, Any]:
    """Of each group the time within which so many calls were answered: bars are counted from the shortest on."""
    bars = parts.column("about_us").to_numpy()[timed] if timed.any() else np.zeros(1)
    so_far = np.cumsum(parts.column("calls").to_numpy()[timed]) if timed.any() else np.ones(1, np.int64)
    before = np.cumsum(answered) - answered
    most = longest.fill_null(0.0).to_numpy()
    found = {}
    for name, share in SHARES.items():
        place = np.searchsorted(so_far, before + np.ceil(answered * share).astype(np.int64))
        # The middle of the last bar may be beyond the longest time.
        reached = np.minimum(bars[np.minimum(place, len(bars) - 1)] / 1000, most)
        found[name] = pa.array(reached, mask=answered == 0)
    return found


LATENCY: Final = Kernel(part, PART_SCHEMA, tuple(SCHEMA.names), merge, finish)
LATENCY_PARTS: Final = parts_of(LATENCY, LATENCY_SCHEMA, daily=True)


def latency(rows: DataFrame) -> DataFrame:
    """The whole table of the journal's rows."""
    return of_parts(LATENCY_PARTS)(calls(rows))


LATENCY_TABLE: Final = Table(
    "latency",
    latency,
    "per minute, service and method: p50, p95, p99, error rate",
    schema=LATENCY_SCHEMA,
    partition_by=("day",),
    columns=COLUMNS,
    watermark="that of calls",
    after="calls",
    parts=LATENCY_PARTS,
    keys=KEYS,
    kernel=LATENCY,
)
