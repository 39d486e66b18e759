"""The tables of single rows: ``messages`` and ``faults``. A row of the journal gives one row or none.

A bad row never stops a query: it is in ``faults``, and what can be read of it is in the other tables as well.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import Array
from polywire.journal.kinds import LAST_FLAG, QOS_MASK, QOS_SHIFT, RETAIN_FLAG, UNHEARD_FLAG, WILL_FLAG
from polywire.pipeline.columns import TICK, Mask, Rows, fitted, text_and_bytes
from polywire.pipeline.table import Kernel, Table, arrow_of, rows_of, schema

SCHEMA: Final = schema(
    "day date, protocol string, ts timestamp, node string, offset bigint, kind string, connection bigint, "
    "client string, channel string, correlation string, content_type string, headers map<string,string>, "
    "text string, body binary, attachments array<binary>, size int, qos int, retain boolean, will boolean, "
    "unheard boolean, last boolean"
)
ARROW: Final = arrow_of(SCHEMA)

_AS_THEY_ARE: Final = (
    *("ts", "node", "offset", "kind", "connection", "client", "channel", "correlation", "content_type"),
    *("attachments", "size"),
)


def messages(rows: Rows) -> pa.RecordBatch:
    """Every message. The body is in ``text`` where it is UTF-8, and in ``body`` where it is not."""
    rows = rows.chosen(rows.messages)
    text, body = text_and_bytes(rows["body"])
    return fitted(
        ARROW,
        {
            **{name: rows[name] for name in _AS_THEY_ARE},
            "day": rows.days,
            "protocol": rows.protocols,
            "headers": rows.headers.maps(),
            "text": text,
            "body": body,
            "qos": ((rows.flags & QOS_MASK) >> QOS_SHIFT).astype(np.int32),
            "retain": rows.has(RETAIN_FLAG),
            "will": rows.has(WILL_FLAG),
            "unheard": rows.has(UNHEARD_FLAG),
            "last": rows.has(LAST_FLAG),
        },
    )


MESSAGES: Final = Kernel(messages, SCHEMA)

TABLE: Final = Table(
    "messages",
    rows_of(MESSAGES),
    "every message, decoded",
    schema=SCHEMA,
    partition_by=("day", "protocol"),
    watermark="none: a row counts whenever it comes",
    keys=("node", "offset"),
    varied=("ts", "offset", "correlation", "text", "body"),
    kernel=MESSAGES,
)

FAULTS_SCHEMA: Final = schema(
    "day date, protocol string, ts timestamp, node string, offset bigint, fault string, rule string, reason string, "
    "connection bigint, client string, channel string, correlation string, headers string, raw binary, size int"
)
FAULTS_ARROW: Final = arrow_of(FAULTS_SCHEMA)

DISCARDED: Final = "discarded"
GAP: Final = "gap"
BAD_HEADERS: Final = "bad-headers"
BAD_CALL: Final = "bad-call"
UNKNOWN_KIND: Final = "unknown-kind"

REASONS: Final = {
    BAD_HEADERS: "the headers are not a JSON object",
    BAD_CALL: "a part of a call needs a correlation and a channel <service>/<method>",
}

_NO_FAULT: Final = ""


def faults(rows: Rows) -> pa.RecordBatch:
    """What was discarded and why, gaps in the journal, and rows that are not as they should be."""
    wrong = rows.headers.bad | rows.are(("discard", "gap")) | (rows.kinds < 0)
    calls = rows.are(("request", "reply", "error"))
    if calls.any():
        wrong |= calls & ~rows.named_calls
    if wrong.any():  # of few rows, as a rule
        rows = rows.chosen(wrong)
        fault = _fault(rows)
        rows = rows.chosen(fault != _NO_FAULT)
        fault = fault[fault != _NO_FAULT]
    else:
        rows, fault = rows.chosen(wrong), np.array([], dtype=object)
    names = ("ts", "node", "offset", "connection", "client", "channel", "correlation", "headers", "size")
    return fitted(
        FAULTS_ARROW,
        {
            **{name: rows[name] for name in names},
            "day": rows.days,
            "protocol": rows.protocols,
            "fault": pa.array(fault, pa.utf8()),
            "rule": rows.headers.word("rule"),
            "reason": _reason(rows, fault),
            "raw": rows["body"],
        },
    )


def _fault(rows: Rows) -> Mask:
    """What is wrong with a row."""
    tick = pc.equal(rows["kind"].cast(pa.utf8()), pa.scalar(TICK)).to_numpy(zero_copy_only=False)
    cases = {
        DISCARDED: rows.are(("discard",)),
        GAP: rows.are(("gap",)),
        UNKNOWN_KIND: (rows.kinds < 0) & ~tick,
        BAD_HEADERS: rows.headers.bad,
        BAD_CALL: rows.are(("request", "reply", "error")) & ~rows.named_calls,
    }
    found = np.full(rows.count, _NO_FAULT, dtype=object)
    for fault, which in reversed(cases.items()):
        found[which] = fault
    return found


def _reason(rows: Rows, fault: Mask) -> Array:
    kinds, said = rows["kind"].to_pylist(), rows.headers.word("reason").to_pylist()
    found = [
        f"no such kind: {kind}" if what == UNKNOWN_KIND else REASONS.get(what, words)
        for what, kind, words in zip(fault.tolist(), kinds, said, strict=True)
    ]
    return pa.array(found, pa.utf8())


FAULTS: Final = Kernel(faults, FAULTS_SCHEMA)

FAULTS_TABLE: Final = Table(
    "faults",
    rows_of(FAULTS),
    "what was discarded and why, raw bytes kept",
    schema=FAULTS_SCHEMA,
    partition_by=("day", "protocol"),
    watermark="none: a row counts whenever it comes",
    keys=("node", "offset"),
    kernel=FAULTS,
)
