"""How long a row takes from being safe in the journal to being visible in the table ``messages``."""

import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.pipeline_traffic import batch
from polywire.journal.log import Log
from polywire.pipeline.delta import LakeTable
from polywire.pipeline.files import Storage
from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.tables import TABLES

ROWS = 100
EVERY = 0.1
LOOK = 0.05
WARM = 10.0
"""Seconds after the first row is seen that do not count: the first steps load what later ones have."""
PATIENCE = 120.0
"""Seconds to wait for the first row, and for the last."""


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
            return _watch(folder / "lake" / "messages", written, seconds)
        finally:
            done.set()
            writer.join()
            runner.stop()
            following.join()


def _write(log: Log, written: dict[int, float], done: threading.Event) -> None:
    while not done.wait(EVERY):
        first = log.next_offset
        log.append(batch(first, ROWS, node="bench", begin=_now() - first * 50), state=False)
        written[first] = time.monotonic()


def _watch(table: Path, written: dict[int, float], seconds: float) -> list[float]:
    """The delays of the rows that were written in so many seconds; one that never comes is late for ever."""
    seen: dict[int, float] = {}
    known: set[str] = set()
    delta = LakeTable(Storage.parse(table), "messages")
    begin = float("inf")
    limit = time.monotonic() + PATIENCE
    while (now := time.monotonic()) < limit:
        # Only files that were committed since the last look are opened.
        new = [file.path for file in delta.files() if file.path not in known]
        for path in new:
            offsets = pq.read_table(table / path, columns=["offset"], partitioning=None).column("offset").to_pylist()
            seen.update({offset: now for offset in offsets if offset in written and offset not in seen})
        known.update(new)
        if seen and begin == float("inf"):
            begin = now + WARM
            limit = begin + seconds + PATIENCE
        if now > begin + seconds and all(offset in seen for offset in _counted(written, begin, seconds)):
            break
        time.sleep(LOOK)
    counted = _counted(written, begin, seconds)
    return [seen.get(offset, float("inf")) - at for offset, at in counted.items()]


def _counted(written: dict[int, float], begin: float, seconds: float) -> dict[int, float]:
    return {offset: at for offset, at in written.copy().items() if begin < at <= begin + seconds}


def _now() -> int:
    return time.time_ns() // 1000
