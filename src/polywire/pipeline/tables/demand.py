"""The table ``demand``: per minute and topic the number of subscribers, and messages published without any.

Subscribers are counted by the exact pattern they asked for, once per connection, as the hub does. A client that does
not unsubscribe leaves when it disconnects, or with the next start of the hub; so parts keep the single events, and
joins and leaves are computed when the table is read. Published messages are counted per minute.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow.lib import concat_batches

from polywire.journal.kinds import PERSISTENT_FLAG, UNHEARD_FLAG
from polywire.pipeline.columns import (
    LIGHT_COLUMNS,
    MINUTE,
    TIME,
    Coded,
    Groups,
    Mask,
    Numbers,
    Rows,
    coded,
    days_of,
    fitted,
    merged,
    times,
)
from polywire.pipeline.table import Kernel, Table, arrow_of, of_parts, parts_of, schema

SCHEMA: Final = schema(
    "day date, minute timestamp, channel string, joined bigint, left bigint, subscribers bigint, published bigint, "
    "unheard bigint"
)
ARROW: Final = arrow_of(SCHEMA)

PART_SCHEMA: Final = schema(
    "minute timestamp, channel string, published bigint, unheard bigint, event string, node string, "
    "connection bigint, offset bigint, day date"
)
PART: Final = arrow_of(PART_SCHEMA)

START: Final = "start"
KEYS: Final = ("day", "minute", "event", "node", "channel", "connection", "offset")


def part(rows: Rows) -> pa.RecordBatch:
    """Publications per minute and topic, and each event that changes who is subscribed."""
    return concat_batches([_published(rows), _events(rows)])


def _published(rows: Rows) -> pa.RecordBatch:
    rows = rows.chosen(rows.are(("publish",)))
    unheard = rows.has(UNHEARD_FLAG).astype(np.int64)
    found = Groups(rows.minutes, rows.coded("channel")).aggregated(unheard=(unheard, "sum"))
    columns: dict[str, Any] = dict(zip(("minute", "channel", "published", "unheard"), found, strict=True))
    event = pa.array(["publish"] * len(found[0]), pa.utf8())
    return fitted(PART, {**columns, "event": event, "day": columns["minute"].cast(pa.date32())})


def _events(rows: Rows) -> pa.RecordBatch:
    changes = rows.are(("subscribe", "unsubscribe")) & ~rows.has(PERSISTENT_FLAG)
    rows = rows.chosen(changes | rows.are(("disconnect",)) | rows.starts)
    event = rows["kind"].cast(pa.utf8()).to_pylist()
    for place in np.flatnonzero(rows.starts).tolist():
        event[place] = START
    minute = rows.at - rows.at % MINUTE
    told = {"minute": times(minute), "event": pa.array(event, pa.utf8()), "day": days_of(minute)}
    return fitted(PART, {**told, **{name: rows[name] for name in ("node", "channel", "connection", "offset")}})


def merge(parts: pa.Table) -> pa.Table:
    """One row for each minute and topic that was published to, and each event."""
    return merged(parts, KEYS, {"published": "sum", "unheard": "sum"}).select(PART.names).cast(PART)


class _Changes:
    """Minutes, channels and how many joined and left: one piece behind the other."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Numbers, Numbers, int, int]] = []

    def add(self, minutes: Numbers, channels: Numbers, *, joined: int = 0, left: int = 0) -> None:
        """Some that joined, or some that left."""
        self._pieces.append((minutes, channels, joined, left))

    def columns(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """All of them."""
        minutes = np.concatenate([piece[0] for piece in self._pieces])
        channels = np.concatenate([piece[1] for piece in self._pieces])
        joined = np.concatenate([np.full(len(piece[0]), piece[2]) for piece in self._pieces])
        left = np.concatenate([np.full(len(piece[0]), piece[3]) for piece in self._pieces])
        return minutes, channels, joined, left


def finish(parts: pa.Table) -> pa.Table:
    """The table itself: who joined and left in each minute, and how many are subscribed then."""
    rows = Rows(fitted(PART, {name: parts.column(name).combine_chunks() for name in PART.names}))
    channels = rows.coded("channel")
    minute = rows["minute"].cast(pa.int64()).to_numpy()
    published = _being(rows, "publish")
    changed = _changes(rows, minute, channels).columns()
    nothing = np.zeros(int(published.sum()), np.int64)
    counts = [rows[name].fill_null(0).to_numpy()[published] for name in ("published", "unheard")]
    none = np.zeros(len(changed[0]), np.int64)
    groups = Groups(
        coded(pa.array(np.concatenate([minute[published], changed[0]]))),
        Coded(np.concatenate([channels.codes[published], changed[1]]), channels.values),
    )
    amounts = {
        "joined": np.concatenate([nothing, changed[2]]),
        "left": np.concatenate([nothing, changed[3]]),
        "published": np.concatenate([counts[0], none]),
        "unheard": np.concatenate([counts[1], none]),
    }
    found = groups.aggregated(**{name: (values, "sum") for name, values in amounts.items()})
    at, channel, _, *sums = found
    columns: dict[str, Any] = dict(zip(amounts, sums, strict=True))
    subscribers = _so_far(
        coded(channel).codes, at.to_numpy(), columns["joined"].to_numpy() - columns["left"].to_numpy()
    )
    told = {"day": days_of(at.to_numpy()), "minute": at.cast(TIME), "channel": channel, "subscribers": subscribers}
    return pa.Table.from_batches([fitted(ARROW, {**columns, **told})])


def _being(rows: Rows, event: str) -> Mask:
    events = rows.coded("event")
    found = np.array([value == event for value in events.values.to_pylist()] + [False])
    return found[events.codes]


def _so_far(channel: Numbers, minute: Numbers, change: Numbers) -> Numbers:
    """The sums of the changes of each channel up to each minute."""
    order = np.lexsort((minute, channel))
    total = np.cumsum(change[order])
    own = channel[order]
    first = np.flatnonzero(np.diff(own, prepend=-2))
    before = np.concatenate([[0], total])[first]
    sums = np.empty(len(change), np.int64)
    sums[order] = total - np.repeat(before, np.diff(np.append(first, len(own))))
    return sums


def _changes(rows: Rows, minute: Numbers, channels: Coded) -> _Changes:
    """Each join and each leave."""
    found = _Changes()
    subscribes = _being(rows, "subscribe")
    mine = np.flatnonzero(subscribes | _being(rows, "unsubscribe"))
    node, connection = rows.coded("node").codes, rows["connection"].fill_null(-1).to_numpy()
    offset = rows["offset"].fill_null(-1).to_numpy()
    order = mine[np.lexsort((offset[mine], channels.codes[mine], connection[mine], node[mine]))]
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in (node, connection, channels.codes):
        same &= key[order][1:] == key[order][:-1]
    asks = subscribes[order]
    before = np.concatenate([[False], same & asks[:-1]])[: len(order)]  # the one before is a subscription too
    last = np.concatenate([~same, [True]])[: len(order)]
    for which, how in ((asks & ~before, {"joined": 1}), (~asks & before, {"left": 1})):
        found.add(minute[order[which]], channels.codes[order[which]], **how)
    staying = order[asks & last]
    gone = _gone(rows, minute, staying)
    found.add(gone[gone >= 0], channels.codes[staying[gone >= 0]], left=1)
    return found


def _gone(rows: Rows, minute: Numbers, staying: Numbers) -> Numbers:
    """Of those who never unsubscribed the minute in which their connection ended; -1 if it did not."""
    nodes, connection = rows.coded("node"), rows["connection"].fill_null(-1).to_numpy()
    offset = rows["offset"].fill_null(-1).to_numpy()
    ends: dict[tuple[int, int], int] = {}
    for place in np.flatnonzero(_being(rows, "disconnect")).tolist():
        who = int(nodes.codes[place]), int(connection[place])
        ends[who] = min(ends.get(who, int(minute[place])), int(minute[place]))
    begun = np.flatnonzero(_being(rows, START))
    starts = {}
    for node in range(len(nodes.values)):
        own = begun[nodes.codes[begun] == node]
        own = own[np.argsort(offset[own])]
        starts[node] = offset[own], minute[own]
    found = np.full(len(staying), -1, np.int64)
    for number, place in enumerate(staying.tolist()):
        node = int(nodes.codes[place])
        end = ends.get((node, int(connection[place])))
        if end is None:
            offsets, minutes = starts[node]
            behind = int(np.searchsorted(offsets, offset[place], side="right"))
            end = int(minutes[behind]) if behind < len(offsets) else -1
        found[number] = end
    return found


KERNEL: Final = Kernel(part, PART_SCHEMA, LIGHT_COLUMNS, merge, finish)
PARTS: Final = parts_of(KERNEL, SCHEMA)

TABLE: Final = Table(
    "demand",
    of_parts(PARTS),
    "per topic: subscribers over time, and messages published with nobody listening",
    schema=SCHEMA,
    partition_by=("day",),
    columns=LIGHT_COLUMNS,
    watermark="none: a row counts whenever it comes",
    parts=PARTS,
    keys=("minute", "channel"),
    kernel=KERNEL,
)
