"""What compaction costs: how many rows a second it takes, and what the hub's messages feel of it meanwhile."""

import functools
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.brokers import polywire
from benchmarks.goals import Line
from benchmarks.hub_load import round_trips
from polywire.journal.compaction import compactable
from polywire.journal.format import KIND_VALUES, SCHEMA, node_values, protocol_values
from polywire.journal.housekeeping import Housekeeping, KeepLimits
from polywire.journal.kinds import KINDS
from polywire.journal.log import Log

BATCH = 16_384
BATCHES = 64
SEGMENTS = 4
PROBES = 1_000
SPACING = 7
"""Microseconds between two rows."""


@functools.cache
def rows() -> Any:
    """Rows as a busy hub has them: 1000 channels, 100 clients, bodies of 64 bytes."""
    offsets = range(BATCH)
    chance = random.Random(1)  # noqa: S311 - not for secrets
    codes = pa.array([KINDS.index("publish")] * BATCH, pa.int8())
    columns = {
        "offset": pa.array(offsets, pa.int64()),
        "ts": pa.array([1_700_000_000_000_000 + offset * SPACING for offset in offsets], pa.timestamp("us", tz="UTC")),
        "node": pa.DictionaryArray.from_arrays(codes, node_values("bench")),
        "kind": pa.DictionaryArray.from_arrays(codes, KIND_VALUES),
        "protocol": pa.DictionaryArray.from_arrays(codes, protocol_values()),
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
    """Compaction by itself, and what a hub that passes messages on feels of it."""
    with tempfile.TemporaryDirectory() as folder:
        write_segments(Path(folder), segments, batches)
        done = Housekeeping(Path(folder), KeepLimits()).round().compacted
    rows, seconds = sum(each.rows for each in done), sum(each.seconds for each in done)
    yield Line("compaction", f"{rows} rows in {seconds:.1f} s", rows / seconds / 1000, least=500, unit="k/s")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        write_segments(Path(folder), segments, batches)
        with polywire("journal.enabled=true", f"journal.path={other}") as (ports, _):
            without, during = felt(Path(folder), ports["fmqp"], probes)
    shown = f"p99 {during:.0f} µs, {without:.0f} without"
    yield Line("FMQP, one in flight, during compaction", shown, during / without, most=2)


def felt(folder: Path, port: int, probes: int) -> tuple[float, float]:
    """p99 of messages, in µs, while the process that compacts is stopped and while it runs.

    In turns, so that what else the machine does hits both. All messages of a kind count together: the median of many
    short turns would leave out those that were disturbed.
    """
    stopped: list[float] = []
    running: list[float] = []
    for path in compactable(folder):
        command = [sys.executable, "-m", "polywire.journal.compaction", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            while child.poll() is None:
                during = round_trips("fmqp", port, probes)
                child.send_signal(signal.SIGSTOP)
                if child.poll() is None:
                    running += during
                    stopped += round_trips("fmqp", port, probes)
                child.send_signal(signal.SIGCONT)
    return quantiles(stopped, n=100)[98], quantiles(running, n=100)[98]


def main() -> int:
    missed = 0
    for line in compaction():
        print(line, flush=True)
        missed += not line.met()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
