"""A journal of any size for ``benchmarks.pipeline``: made by columns, written with the hub's own writer.

Of ten rows six are publications, three belong to calls, and one is a connection, a subscription or their end.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import KIND_VALUES, SCHEMA, node_values, protocol_values
from polywire.journal.kinds import KINDS, LAST_FLAG
from polywire.journal.log import Log
from polywire.registry import built_in_names

BATCH = 16_384
CHANNELS = 1_000
CONNECTIONS = 200
BODY = 64
ROWS_PER_SECOND = 20_000
BEGIN = 1_769_860_800_000_000
"""2026-01-31T12:00:00Z in microseconds."""

MIX = ("publish",) * 12 + ("request", "reply") * 3 + ("subscribe", "unsubscribe")


def write_traffic(folder: Path, rows: int, *, node: str = "bench", begin: int = BEGIN, kinds: Any = MIX) -> None:
    """Write a journal of so many rows, at 20,000 of them a second of its own time."""
    with Log(folder, node=node, fsync="os") as log:
        while log.next_offset < rows:
            first = log.next_offset
            log.append(batch(first, min(BATCH, rows - first), node=node, begin=begin, kinds=kinds), state=False)


def batch(first: int, rows: int, *, node: str, begin: int, kinds: Any = MIX) -> Any:
    """Rows from an offset on. A request's reply is the row behind it, 50 µs later."""
    offsets = np.arange(first, first + rows, dtype=np.int64)
    mix = np.array([KINDS.index(kind) for kind in kinds], dtype=np.int8)
    codes = mix[offsets % len(mix)]
    # A call has one number, shared by the request and the reply behind it.
    reply = codes == KINDS.index("reply")
    calls = reply | (codes == KINDS.index("request"))
    numbers = offsets - reply
    protocols = (numbers % len(built_in_names())).astype(np.int8)
    services = pc.binary_join_element_wise("service", _text(numbers % 10), "/method", _text(numbers % 7), "")
    topics = pc.binary_join_element_wise("plant/", _text(offsets % 10), "/sensor/", _text(offsets % CHANNELS), "")
    isolated = pa.array(calls)
    columns = {
        "offset": pa.array(offsets),
        "ts": pa.array(begin + offsets * (1_000_000 // ROWS_PER_SECOND)).cast(pa.timestamp("us", tz="UTC")),
        "node": _coded(np.zeros(rows, dtype=np.int8), node_values(node)),
        "kind": _coded(codes, KIND_VALUES),
        "protocol": _coded(protocols, protocol_values()),
        "connection": pa.array(numbers % CONNECTIONS),
        "client": pc.binary_join_element_wise("client-", _text(numbers % CONNECTIONS), ""),
        "channel": pc.if_else(isolated, services, topics),
        "correlation": pc.if_else(isolated, _text(numbers), None),
        "content_type": pa.nulls(rows, pa.utf8()),
        "headers": pa.nulls(rows, pa.utf8()),
        "attachments": pa.nulls(rows, pa.list_(pa.binary())),
        "body": _bodies(offsets),
        "size": pa.array(np.full(rows, BODY, dtype=np.int32)),
        "flags": pa.array(np.where(reply, LAST_FLAG, 0).astype(np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _bodies(offsets: Any) -> Any:
    """Bodies of 64 bytes, half of them noise: measured values neither compress to nothing nor not at all."""
    rows = len(offsets)
    octets = np.full((rows, BODY), ord("0"), dtype=np.uint8)
    octets[:, : BODY // 2] = np.random.default_rng(int(offsets[0])).integers(0, 256, (rows, BODY // 2), dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * BODY, BODY, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(octets.tobytes())]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _text(numbers: Any) -> Any:
    return pa.array(numbers).cast(pa.utf8())


def _coded(codes: Any, values: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes), values)
