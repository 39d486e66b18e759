"""What compaction costs: how many rows a second it takes, and what the hub's messages feel of it meanwhile."""

import functools
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.brokers import polywire
from benchmarks.hub_goals import Line
from benchmarks.hub_load import latency
from polywire.journal.compaction import compactable
from polywire.journal.housekeeping import Housekeeping
from polywire.journal.kinds import KINDS
from polywire.journal.log import Log
from polywire.journal.retention import KeepLimits
from polywire.journal.schema import KIND_VALUES, PROTOCOL_VALUES, SCHEMA, node_values

BATCH = 16_384
BATCHES = 64
SEGMENTS = 4
PROBES = 2_000
SPACING = 7
"""Microseconds between two rows."""


@functools.cache
def rows() -> Any:
    """Rows as a busy hub has them: 1000 channels, 100 clients, bodies of 64 octets."""
    offsets = range(BATCH)
    chance = random.Random(1)  # noqa: S311 - not for secrets
    codes = pa.array([KINDS.index("publish")] * BATCH, pa.int8())
    columns = {
        "offset": pa.array(offsets, pa.int64()),
        "ts": pa.array([1_700_000_000_000_000 + offset * SPACING for offset in offsets], pa.timestamp("us", tz="UTC")),
        "node": pa.DictionaryArray.from_arrays(codes, node_values("bench")),
        "kind": pa.DictionaryArray.from_arrays(codes, KIND_VALUES),
        "protocol": pa.DictionaryArray.from_arrays(codes, PROTOCOL_VALUES),
        "connection": pa.array([chance.randrange(100) for _ in offsets], pa.int64()),
        "client": pa.array([f"client-{chance.randrange(100)}" for _ in offsets]),
        "channel": pa.array([f"sensors/{chance.randrange(1000)}/temperature" for _ in offsets]),
        "body": pa.array([chance.randbytes(32).hex().encode() for _ in offsets], pa.binary()),
        "size": pa.array([64] * BATCH, pa.int32()),
        "flags": pa.array([0] * BATCH, pa.int32()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(BATCH, field.type)) for field in SCHEMA], schema=SCHEMA
    )


def batch(first: int) -> Any:
    """The same rows at another place: nothing that compresses reaches back as far as to the ones before."""
    made = rows()
    ts = pc.add(made.column("ts"), pa.scalar(first * SPACING, pa.duration("us")))
    moved = [pc.add(made.column("offset"), first), ts]
    return pa.RecordBatch.from_arrays(moved + made.columns[len(moved) :], schema=SCHEMA)


def write_segments(folder: Path, segments: int, batches: int) -> None:
    """A journal of closed segments."""
    with Log(folder, node="bench", fsync="os") as log:
        for number in range(segments):
            for each in range(batches):
                log.append(batch((number * batches + each) * BATCH), state=False)
            log.roll()


def compaction(segments: int = SEGMENTS, batches: int = BATCHES, probes: int = PROBES) -> Iterator[Line]:
    """Compact by itself, and as a hub does it while it passes messages on."""
    with tempfile.TemporaryDirectory() as folder:
        write_segments(Path(folder), segments, batches)
        done = Housekeeping(Path(folder), KeepLimits()).round().compacted
    rows, seconds = sum(each.rows for each in done), sum(each.seconds for each in done)
    yield Line("compaction", f"{rows} rows in {seconds:.1f} s", rows / seconds / 1000, least=500, unit="k/s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_segments(path, segments, batches)
        sets = ("journal.enabled=true", f"journal.path={folder}", "journal.node=bench")
        with polywire(*sets, "journal.compact=false") as (ports, _):
            quiet = median(latency("fmqp", ports["fmqp"], probes)[1] for _ in range(segments * 2))
        busy = []
        with polywire(*sets) as (ports, _):
            while compactable(path):
                busy.append(latency("fmqp", ports["fmqp"], probes)[1])
    shown = f"p99 {median(busy):.0f} µs, {quiet:.0f} without"
    yield Line("FMQP, one in flight, during compaction", shown, median(busy) / quiet, most=2)


def main() -> int:
    missed = 0
    for line in compaction():
        print(line, flush=True)
        missed += not line.met()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
