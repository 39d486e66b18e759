"""How long a row takes from being safe in the journal to being visible in the table ``messages``."""

import threading
import time
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from benchmarks.pipeline_traffic import batch
from polywire.journal.log import Log
from polywire.pipeline.jobs import Job
from polywire.pipeline.running import Runner
from polywire.pipeline.tables import TABLES

ROWS = 100
EVERY = 0.1
LOOK = 0.05
WARM = 10.0
"""Seconds at the start that do not count: the first steps load what later ones have."""


def delays(spark: SparkSession, folder: Path, seconds: float) -> list[float]:
    """The delay of one row of each batch that was written, all tables being written with the default trigger."""
    runner = Runner(spark, Job(str(folder / "journal"), str(folder / "lake"), TABLES))
    written: dict[int, float] = {}
    done = threading.Event()
    with Log(folder / "journal", node="bench", fsync="group") as log:
        log.append(batch(0, ROWS, node="bench", begin=_now()), state=False)
        runner.start()
        following = threading.Thread(target=runner.follow)
        following.start()
        writer = threading.Thread(target=_write, args=(log, written, done))
        writer.start()
        try:
            seen = _watch(folder / "lake" / "messages", written, seconds + WARM)
        finally:
            done.set()
            writer.join()
            runner.stop()
            following.join()
    begin = min(written.values()) + WARM
    return [seen[offset] - at for offset, at in written.items() if offset in seen and at > begin]


def _write(log: Log, written: dict[int, float], done: threading.Event) -> None:
    while not done.wait(EVERY):
        first = log.next_offset
        log.append(batch(first, ROWS, node="bench", begin=_now() - first * 50), state=False)
        written[first] = time.monotonic()


def _watch(table: Path, written: dict[int, float], seconds: float) -> dict[int, float]:
    """When each row was first seen: only files that came since the last look are opened."""
    seen: dict[int, float] = {}
    known: set[Path] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        new = [path for path in table.rglob("*.parquet") if path not in known] if table.is_dir() else []
        now = time.monotonic()
        for path in new:
            offsets = ds.dataset(path).to_table(columns=["offset"]).column("offset").to_pylist()
            seen.update({offset: now for offset in offsets if offset in written and offset not in seen})
        known.update(new)
        time.sleep(LOOK)
    return seen


def _now() -> int:
    return time.time_ns() // 1000
