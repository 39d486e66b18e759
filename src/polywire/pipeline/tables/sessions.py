"""The table ``sessions``: each connection from connect to disconnect.

A part has, of each connection a micro-batch mentions, what is known of it from there: smallest, largest and sums, so
that parts can be merged in any order. The hub's starts are among them: a session without an end that began before
one is lost.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow.lib import concat_batches

from polywire.journal.format import Array
from polywire.pipeline.columns import (
    DAY,
    LIGHT_COLUMNS,
    MICROSECONDS,
    Groups,
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
from polywire.pipeline.table import Kernel, Table, arrow_of, of_parts, parts_of, schema

SCHEMA: Final = schema(
    "day date, protocol string, node string, connection bigint, client string, user string, address string, "
    "connected timestamp, ended timestamp, seconds double, state string, reason string, messages bigint, "
    "bytes bigint"
)
ARROW: Final = arrow_of(SCHEMA)

PART_SCHEMA: Final = schema(
    "day date, node string, connection bigint, start bigint, protocol string, client string, user string, "
    "address string, connected timestamp, first bigint, disconnected timestamp, reason string, seen timestamp, "
    "messages bigint, bytes bigint"
)
PART: Final = arrow_of(PART_SCHEMA)

OPEN: Final = "open"
CLOSED: Final = "closed"
LOST: Final = "lost"

LOST_REASON: Final = "the hub was lost"
"""The reason of sessions that ended with a killed hub."""

KEYS: Final = ("node", "connection", "start")

HOW: Final = {
    **dict.fromkeys(("protocol", "client", "user", "address"), "max"),
    **dict.fromkeys(("connected", "first", "disconnected"), "min"),
    **dict.fromkeys(("reason", "seen"), "max"),
    **dict.fromkeys(("messages", "bytes"), "sum"),
}


def part(rows: Rows) -> pa.RecordBatch:
    """What the rows say about each connection: its numbers, a row for each event, and one per start of the hub."""
    return concat_batches([_counted(rows), _events(rows)])


def _counted(rows: Rows) -> pa.RecordBatch:
    own = rows.chosen(rows["connection"].to_numpy() > 0)
    day = coded(pa.array(own.at // DAY))
    sent = own.messages.astype(np.int64)
    found = Groups(day, own.coded("node"), own.coded("connection")).aggregated(
        seen=(own.at, "max"), messages=(sent, "sum"), bytes=(sent * own["size"].to_numpy(), "sum")
    )
    days, node, connection, _, seen, messages, size = found
    told = {"day": days_of(days.to_numpy() * DAY), "node": node, "connection": connection}
    return fitted(PART, {**told, "seen": times(seen.to_numpy()), "messages": messages, "bytes": size})


def _events(rows: Rows) -> pa.RecordBatch:
    rows = rows.chosen(rows.are(("connect", "disconnect")) | rows.starts)
    connects, ends = rows.are(("connect",)), rows.are(("disconnect",))
    word = rows.headers.word
    return fitted(
        PART,
        {
            "day": rows.days,
            "node": rows["node"],
            "connection": rows["connection"],
            "start": masked(rows["offset"], rows.starts),
            "protocol": masked(rows.protocols, connects),
            "client": masked(rows["client"], connects),
            "user": masked(word("user"), connects),
            "address": masked(word("address"), connects),
            "connected": times(rows.at, ~connects),
            "first": masked(rows["offset"], connects),
            "disconnected": times(rows.at, ~ends),
            "reason": masked(word("reason"), ends),
        },
    )


def merge(parts: pa.Table) -> pa.Table:
    """One row of each day for each connection and each start."""
    return merged(parts, ("day", *KEYS), HOW).select(PART.names).cast(PART)


def finish(parts: pa.Table) -> pa.Table:
    """The table itself: of each session whether it is open, closed or lost."""
    parts = merged(parts, KEYS, HOW)
    starts = parts.filter(parts.column("start").is_valid())
    last = starts.group_by("node", use_threads=False).aggregate([("start", "max")])
    found = Rows(_one(parts.filter(parts.column("connected").is_valid())))
    began = dict(zip(last.column("node").to_pylist(), last.column("start_max").to_pylist(), strict=True))
    nodes = found.coded("node")
    last_start = np.array([began.get(node, -1) for node in nodes.values.to_pylist()], np.int64)[nodes.codes]
    closed = found["disconnected"].is_valid().to_numpy(zero_copy_only=False)
    lost = ~closed & (last_start > found["first"].to_numpy())
    connected = _micros(found, "connected")
    # Nobody saw a lost session end: its last row is what is known.
    ended = np.where(closed, _micros(found, "disconnected"), _micros(found, "seen"))
    is_open = ~closed & ~lost
    told: dict[str, Any] = {
        "day": days_of(connected),
        "ended": times(ended, is_open),
        "seconds": pa.array((ended - connected) / MICROSECONDS, mask=is_open),
        "state": pa.array(np.select([closed, lost], [CLOSED, LOST], OPEN), pa.utf8()),
        "reason": _reasons(found, lost),
    }
    names = ("protocol", "node", "connection", "client", "user", "address", "connected")
    told |= {name: found[name].fill_null(0) for name in ("messages", "bytes")}
    return pa.Table.from_batches([fitted(ARROW, {**{name: found[name] for name in names}, **told})])


def _one(parts: pa.Table) -> pa.RecordBatch:
    return fitted(PART, {name: parts.column(name).combine_chunks() for name in parts.schema.names})


def _reasons(found: Rows, lost: Mask) -> Array:
    said = found["reason"].to_pylist()
    return pa.array(
        [LOST_REASON if gone else words for gone, words in zip(lost.tolist(), said, strict=True)], pa.utf8()
    )


def _micros(found: Rows, name: str) -> Numbers:
    return found[name].cast(pa.int64()).fill_null(0).to_numpy()


KERNEL: Final = Kernel(part, PART_SCHEMA, LIGHT_COLUMNS, merge, finish)
PARTS: Final = parts_of(KERNEL, SCHEMA)

TABLE: Final = Table(
    "sessions",
    of_parts(PARTS),
    "connect to disconnect: duration, messages, bytes, reason",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    columns=LIGHT_COLUMNS,
    watermark="none: a row counts whenever it comes",
    parts=PARTS,
    keys=("node", "connection"),
    kernel=KERNEL,
)
