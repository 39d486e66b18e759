"""What compaction costs: how many rows a second it takes, and what the hub's messages feel of it meanwhile."""

import functools
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.brokers import polywire
from benchmarks.hub_goals import Line
from benchmarks.hub_load import latency
from polywire.journal.housekeeping import Housekeeping
from polywire.journal.kinds import KINDS
from polywire.journal.log import Log
from polywire.journal.retention import KeepLimits
from polywire.journal.schema import KIND_VALUES, PROTOCOL_VALUES, SCHEMA, node_values

BATCH = 16_384
BATCHES = 64
SEGMENTS = 4
PROBES = 2_000


@functools.cache
def batch(first: int) -> Any:
    """Rows as a busy hub has them: 1000 channels, 100 clients, bodies of 64 octets."""
    offsets = range(first, first + BATCH)
    codes = pa.array([KINDS.index("publish")] * BATCH, pa.int8())
    columns = {
        "offset": pa.array(offsets, pa.int64()),
        "ts": pa.array([1_700_000_000_000_000 + offset * 7 for offset in offsets], pa.timestamp("us", tz="UTC")),
        "node": pa.DictionaryArray.from_arrays(codes, node_values("bench")),
        "kind": pa.DictionaryArray.from_arrays(codes, KIND_VALUES),
        "protocol": pa.DictionaryArray.from_arrays(codes, PROTOCOL_VALUES),
        "connection": pa.array([offset % 100 for offset in offsets], pa.int64()),
        "client": pa.array([f"client-{offset % 100}" for offset in offsets]),
        "channel": pa.array([f"sensors/{offset * 7919 % 1000}/temperature" for offset in offsets]),
        "body": pa.array([f"{offset * 2654435761 % (1 << 64):064x}".encode() for offset in offsets], pa.binary()),
        "size": pa.array([64] * BATCH, pa.int32()),
        "flags": pa.array([0] * BATCH, pa.int32()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(BATCH, field.type)) for field in SCHEMA], schema=SCHEMA
    )


def write_segments(folder: Path, segments: int, batches: int) -> None:
    """A journal of closed segments."""
    with Log(folder, node="bench", fsync="os") as log:
        for number in range(segments):
            for each in range(batches):
                log.append(batch((number * batches + each) * BATCH), state=False)
            log.roll()


def compaction(segments: int = SEGMENTS, batches: int = BATCHES, probes: int = PROBES) -> Iterator[Line]:
    """Compact beside a hub that passes messages on."""
    with tempfile.TemporaryDirectory() as folder, polywire() as (ports, _):
        write_segments(Path(folder), segments, batches)
        quiet = median(latency("fmqp", ports["fmqp"], probes)[1] for _ in range(5))
        house = Housekeeping(Path(folder), KeepLimits())
        found: list[Any] = []
        worker = threading.Thread(target=lambda: found.append(house.round()))
        worker.start()
        busy = []
        while worker.is_alive():
            busy.append(latency("fmqp", ports["fmqp"], probes)[1])
        worker.join()
    done = found[0].compacted
    rows, seconds = sum(each.rows for each in done), sum(each.seconds for each in done)
    speed = rows / seconds / 1000
    yield Line("compaction", f"{rows} rows in {seconds:.1f} s", speed, least=500, unit="k/s")
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
