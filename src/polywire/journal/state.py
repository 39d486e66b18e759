"""The hub's state, made of the journal's rows: retained messages, queues, sessions that are kept, last wills.

State is a table of those rows that still mean something. ``fold`` takes the rows out that a later one has undone, so
the state at some offset is the fold of an earlier state and the rows between. It works on whole columns: what is not
about state costs nothing, and most of what is about it has come and gone.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.kinds import CLEAN_FLAG, PERSISTENT_FLAG, QUEUED_FLAG, RETAIN_FLAG
from polywire.journal.schema import PLAIN_SCHEMA

KEYS: Final = ("offset", "kind", "client", "channel", "correlation", "size", "flags")
"""The columns that decide what is left."""

NO_ROWS: Final[Any] = PLAIN_SCHEMA.empty_table()


def fold(rows: Any) -> Any:
    """Of a table with at least the columns ``KEYS``, in order of offsets, the rows that still mean something."""
    keys = rows.select(KEYS)
    kept = [_retained(keys), *_queued(keys), *_sessions(keys), *_wills(keys)]
    offsets = pa.concat_arrays([pa.array(each, pa.int64()) for each in kept])
    return rows.filter(pc.is_in(rows["offset"], value_set=offsets))


def references(rows: Any) -> Any:
    """The offsets of the messages that deliveries without a body of their own stand for."""
    return pc.cast(rows.filter(unresolved(rows))["correlation"], pa.int64()).unique()


def resolve(rows: Any, bodies: Mapping[int, bytes]) -> Any:
    """The rows, with the bodies of messages, by their offsets, put into the deliveries that stand for them.

    A delivery whose message is not there any more is left out.
    """
    waiting = unresolved(rows)
    if not pc.any(waiting).as_py():
        return rows
    changed = []
    for row in rows.filter(waiting).to_pylist():
        body = bodies.get(int(row["correlation"]))
        if body is not None:
            changed.append(row | {"body": body, "size": len(body), "correlation": None})
    others = rows.filter(pc.invert(waiting))
    return pa.concat_tables([others, pa.Table.from_pylist(changed, rows.schema)]).sort_by("offset")


def unresolved(rows: Any) -> Any:
    """For each row whether it is a delivery that stands for a message elsewhere."""
    return pc.and_(_is(rows, "deliver"), pc.is_valid(rows["correlation"]))


def _retained(rows: Any) -> Any:
    """The last row of each channel, unless it cleared it."""
    mine = rows.filter(pc.or_(_is(rows, "retain"), pc.and_(_is(rows, "publish"), _has(rows, RETAIN_FLAG))))
    last = _last_of(mine, ["channel"])
    return last.filter(pc.greater(last["size"], 0))["offset"].combine_chunks()


def _queued(rows: Any) -> list[Any]:
    """What was put into a queue and not acknowledged, and of each the last row that says how often it was delivered."""
    acks = rows.filter(pc.and_(_is(rows, "ack"), _has(rows, QUEUED_FLAG)))
    done = pc.cast(acks["correlation"], pa.int64())
    entered = rows.filter(_is(rows, "enqueue"))["offset"]
    left = entered.filter(pc.invert(pc.is_in(entered, value_set=done.combine_chunks()))).combine_chunks()
    nacks = rows.filter(_is(rows, "nack"))
    if not nacks.num_rows:
        return [left]
    last = _last_of(nacks, ["correlation"])
    return [left, last.filter(pc.is_in(_number(last["correlation"]), value_set=left))["offset"].combine_chunks()]


def _sessions(rows: Any) -> list[Any]:
    """Of each session that is kept: its last beginning, what it wants, what is due to it and what it holds."""
    mine = rows.filter(pc.and_(pc.is_valid(rows["client"]), _is(rows, *SESSION_KINDS)))
    mine = mine.filter(pc.or_(_has(mine, PERSISTENT_FLAG), _has(mine, CLEAN_FLAG)))
    if not mine.num_rows:
        return []
    mine = _alive(mine)
    wishes = _last_of(mine.filter(_is(mine, "subscribe", "unsubscribe")), ["client", "channel"])
    holds = _last_of(mine.filter(_is(mine, "hold", "release")), ["client", "correlation"])
    steps = _last_of(mine.filter(_is(mine, "sent", "received", "ack")), ["client", "correlation"])
    received = steps.filter(_is(steps, "received"))
    gone = steps.filter(_is(steps, "received", "ack"))
    due = mine.filter(_is(mine, "deliver"))
    due = due.filter(pc.invert(pc.is_in(due["offset"], value_set=_number(gone["correlation"]))))
    sent = steps.filter(_is(steps, "sent"))
    sent = sent.filter(pc.is_in(_number(sent["correlation"]), value_set=due["offset"].combine_chunks()))
    left = [
        _last_of(mine.filter(_is(mine, "session")), ["client"]),
        wishes.filter(_is(wishes, "subscribe")),
        holds.filter(_is(holds, "hold")),
        received,
        due,
        sent,
    ]
    return [each["offset"].combine_chunks() for each in left]


def _wills(rows: Any) -> list[Any]:
    """The last wills of connections that had not ended."""
    mine = rows.filter(_is(rows, "will"))
    if not mine.num_rows:
        return []
    over = mine.filter(_has(mine, CLEAN_FLAG)).group_by("correlation").aggregate([("offset", "max")])
    mine = mine.join(over, "correlation", join_type="left outer", use_threads=False)
    return [mine.filter(pc.greater(mine["offset"], pc.fill_null(mine["offset_max"], -1)))["offset"].combine_chunks()]


SESSION_KINDS: Final = (
    "session",
    "subscribe",
    "unsubscribe",
    "deliver",
    "sent",
    "received",
    "ack",
    "hold",
    "release",
)


def _alive(mine: Any) -> Any:
    """Without what came before a session began anew, and without sessions of which nothing is kept."""
    begins = mine.filter(_is(mine, "session"))
    anew = begins.filter(_has(begins, CLEAN_FLAG)).group_by("client").aggregate([("offset", "max")])
    mine = mine.join(anew, "client", join_type="left outer", use_threads=False).sort_by("offset")
    born = pc.fill_null(mine["offset_max"], -1)
    mine = mine.filter(pc.greater_equal(mine["offset"], born)).drop_columns(["offset_max"])
    last = _last_of(mine.filter(_is(mine, "session")), ["client"])
    kept = last.filter(_has(last, PERSISTENT_FLAG))["client"].combine_chunks()
    return mine.filter(pc.is_in(mine["client"], value_set=kept))


def _last_of(rows: Any, keys: list[str]) -> Any:
    """The last row for each combination of keys."""
    last = rows.group_by(keys, use_threads=False).aggregate([("offset", "max")])["offset_max"]
    return rows.filter(pc.is_in(rows["offset"], value_set=last.combine_chunks()))


def _is(rows: Any, *kinds: str) -> Any:
    return pc.is_in(rows["kind"], value_set=pa.array(kinds, pa.utf8()))


def _has(rows: Any, flag: int) -> Any:
    return pc.not_equal(pc.bit_wise_and(rows["flags"], flag), 0)


def _number(texts: Any) -> Any:
    return pc.cast(texts, pa.int64()).combine_chunks()
