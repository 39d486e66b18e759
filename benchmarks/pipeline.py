"""``make bench-pipeline``: the journal into tables, against what the same Spark does with the same rows.

- ``tables``: all tables in one streaming run, in a session's first run and after it, and calls matched a second.
- ``messages``: the journal to the table ``messages``, against reading the same rows and writing them as they are, in
  the same session, in turns.
- ``delay``: from a row being safe in the journal to its being visible in ``messages``, with the default trigger.
- ``idle``: what looking for new rows costs a stream that has none, against Spark's own source of text files.
- ``commit``: one transaction of a table that has 10,000 files.
- ``query``: ``polywire pipeline query`` counting all messages, its start included.

Exits with 1 where a goal is missed.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.goals import Line, in_turns
from benchmarks.pipeline_delay import delays
from benchmarks.pipeline_traffic import write_traffic
from benchmarks.scenarios import Choice, run
from polywire.pipeline.delta import Batch, LakeTable
from polywire.pipeline.files import SUFFIX, DataFile, Storage
from polywire.pipeline.lake import schema_text
from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.spark import spark_session
from polywire.pipeline.table import schema
from polywire.pipeline.tables import TABLES

CORES = 2
ROUNDS = 3
IDLE_STEPS = 40
FILES = 10_000
COMMITS = 40


@dataclass(frozen=True, slots=True)
class Bench:
    """The session, a place for files, and how much of everything."""

    spark: SparkSession
    folder: Path
    rows: int
    rounds: int

    def journal(self, rows: int) -> Path:
        """A journal of so many rows, made once."""
        place = self.folder / f"journal-{rows}"
        if not place.exists():
            write_traffic(place, rows)
        return place

    def read(self, rows: int, **options: str) -> Any:
        """The rows of that journal."""
        return self.spark.read.format("polywire").options(**options).load(str(self.journal(rows)))


def tables(bench: Bench) -> Iterator[Line]:
    """All tables in one streaming run, from its start to the last file: joining files and merging parts included."""
    rows, calls = bench.rows // 2, bench.rows // 10
    only = bench.folder / f"calls-{calls}"
    write_traffic(only, calls * 2, kinds=("request", "reply"))
    journal = bench.journal(rows)
    runs: dict[str, Callable[[], float]] = {
        "all": lambda: streamed(bench, journal, "tables"),
        "calls": lambda: streamed(bench, only, "tables", "calls"),
    }
    # The first time pays for what the JVM has yet to compile.
    cold = {name: work() for name, work in runs.items()}
    took = in_turns(runs, bench.rounds)
    shown = f"{rows:,} rows"
    yield Line("all tables, the session's first run", shown, rows / cold["all"] / 1e3, least=120, unit="k/s")
    yield Line("all tables, one streaming run", shown, rows / took["all"] / 1e3, least=200, unit="k/s")
    shown = f"{calls:,} calls, first time {calls / cold['calls'] / 1e3:.0f} k/s"
    yield Line("calls matched", shown, calls / took["calls"] / 1e3, least=50, unit="k/s")


def messages(bench: Bench) -> Iterator[Line]:
    """Journal to ``messages``, the same way."""
    journal = bench.journal(bench.rows)

    def identity() -> float:
        return seconds(lambda: bench.read(bench.rows).write.mode("overwrite").parquet(str(bench.folder / "identity")))

    def lake() -> float:
        return streamed(bench, journal, "lake", "messages")

    for warm in (identity, lake):  # the first ones pay for what the JVM has yet to compile
        warm()
    took = in_turns({"identity": identity, "messages": lake}, bench.rounds)
    shown = f"{bench.rows / took['messages'] / 1e3:.0f} k/s, identity {bench.rows / took['identity'] / 1e3:.0f} k/s"
    yield Line("journal to messages, against identity", shown, took["identity"] / took["messages"], least=0.9)


def streamed(bench: Bench, journal: Path, lake: str, *wanted: str) -> float:
    """How long ``run --once`` takes to write these tables of a journal."""
    place = fresh(bench.folder / lake)
    runner = Runner(bench.spark, Job(str(journal), str(place), TABLES, wanted, once=True))

    def run() -> None:
        runner.start()
        runner.follow()

    return seconds(run)


def delay(bench: Bench) -> Iterator[Line]:
    """Safe in the journal to visible in ``messages``, all tables being written."""
    found = delays(bench.spark, fresh(bench.folder / "delay"), seconds=40.0 if bench.rounds > 1 else 15.0)
    shown = f"p50 of {len(found)} rows, most {max(found, default=0):.1f} s"
    yield Line("publish to visible in messages", shown, median(found or [float("inf")]), most=1.0, unit="s")


def idle(bench: Bench) -> Iterator[Line]:
    """A step without rows."""
    ours = step_milliseconds(bench, "polywire", bench.journal(10_000))
    floor = step_milliseconds(bench, "text", fresh(bench.folder / "nothing"))
    shown = f"{ours:.0f} ms, Spark's own source {floor:.0f} ms"
    yield Line("a step without rows, more than Spark's", shown, ours - floor, most=20, unit="ms")


def step_milliseconds(bench: Bench, form: str, source: Path) -> float:
    """What a step of a stream costs that has nothing to do, in the middle."""
    place = fresh(bench.folder / f"idle-{form}")
    stream = bench.spark.readStream.format(form).load(str(source))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(place)).start()
    try:
        query.processAllAvailable()
        found = []
        for _ in range(IDLE_STEPS):
            begun = time.perf_counter()
            query.processAllAvailable()  # comes back when a step has found nothing
            found.append((time.perf_counter() - begun) * 1000)
        return median(found)
    finally:
        query.stop()


def commit(bench: Bench) -> Iterator[Line]:
    """A batch of one file, from looking for it to its being on the disk."""
    table = LakeTable(Storage.parse(fresh(bench.folder / "many")), "many")
    stats = '{"numRecords":1,"minValues":{"a":1},"maxValues":{"a":2},"nullCount":{"a":0}}'

    def append(number: int, files: int) -> None:
        batch = Batch("bench", number)
        added = [DataFile(f"{number}-{one}{SUFFIX}", 10, 1, {}, stats) for one in range(files)]
        if not table.holds(batch):
            table.append(added, schema_text(schema("a bigint")), (), batch)

    append(0, FILES)
    table.checkpoint(0)
    found = [seconds(partial(append, number, 1)) * 1000 for number in range(1, COMMITS)]
    shown = f"p50 of {len(found)}, most {max(found):.0f} ms"
    yield Line(f"a commit with {FILES:,} files", shown, median(found), most=50, unit="ms")


def query(bench: Bench) -> Iterator[Line]:
    """The command, as it is typed."""
    lake = bench.folder / "lake"
    if not lake.exists():
        streamed(bench, bench.journal(bench.rows), "lake", "messages")
    command = [sys.executable, "-m", "polywire", "pipeline", "query", "--lake", str(lake)]
    command.append("SELECT count(*), sum(size) FROM messages")

    def ask() -> None:
        subprocess.run(command, check=True, capture_output=True)

    ask()
    took = median(seconds(ask) for _ in range(max(bench.rounds, 3)))
    yield Line(f"query counting the messages of {bench.rows:,} rows", "its start included", took, most=1.0, unit="s")


def seconds(work: Callable[[], Any]) -> float:
    """How long something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fresh(folder: Path) -> Path:
    """A folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


SCENARIOS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "tables": tables,
    "messages": messages,
    "delay": delay,
    "idle": idle,
    "commit": commit,
    "query": query,
}


def main() -> int:
    choice = Choice("pipeline", __doc__, SCENARIOS, ROUNDS)
    choice.parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the journal (default: 5,000,000)")
    choice.parser.add_argument("--memory", default="3g", help="Spark's memory (default: 3g)")
    options = choice.read()
    spark = spark_session(app="bench", master=f"local[{CORES}]", memory=options.memory)
    with tempfile.TemporaryDirectory(prefix="polywire-bench-") as folder:
        code = run(options.scenario, SCENARIOS, Bench(spark, Path(folder), options.rows, options.rounds))
    spark.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
