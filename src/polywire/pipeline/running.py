"""Runs a job: one streaming query for each group of tables, watched until they end."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polywire.pipeline.batches import batch_writer
from polywire.pipeline.errors import PipelineError
from polywire.pipeline.groups import Group, arrange, closure
from polywire.pipeline.jobs import Job, trigger_interval
from polywire.pipeline.lake import Lake
from polywire.pipeline.notes import Notes
from polywire.pipeline.options import listed
from polywire.pipeline.status import Status, of_progress, write_status

POLL: Final = 1
"""Seconds between two looks at the queries."""

UPKEEP: Final = 60.0
"""Seconds between two times that small files are joined and aggregates written out for those who read files only."""

TICKS: Final = "10"
"""Seconds without rows after which a stateful table is told how late it is."""

TRACEBACK: Final = "Traceback (most recent call last)"
LONGEST_REASON: Final = 500
"""Characters of an error that are shown."""

Watch = Callable[[list[Status]], None]


class QueryFailedError(PipelineError):
    """A streaming query ended with an error. ``query`` is its name, ``reason`` what Spark tells, short."""

    def __init__(self, query: str, reason: str) -> None:
        super().__init__(f"the query {query!r} failed: {reason}")
        self.query = query
        self.reason = reason


@dataclass
class Running:
    """A query that was started, and how many rows it has read since."""

    group: Group
    query: StreamingQuery
    failures: list[str]
    rows: int = 0
    batch: int = -1
    status: Status | None = None


class Runner:
    """The queries of one job in one Spark session."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark = spark
        self._job = job
        self._notes = Notes(job.lake)
        self._lake = Lake(job.lake, job.tables)
        self._queries: list[Running] = []
        self._stopping = False

    def start(self) -> list[str]:
        """Start the queries; their names."""
        wanted = closure(self._job.wanted or tuple(self._job.tables), self._job.tables)
        for group in arrange(wanted, self._job.tables, self._notes):
            failures: list[str] = []
            self._queries.append(Running(group, self._start(group, failures), failures))
        return [running.group.query for running in self._queries]

    def follow(self, watch: Watch | None = None) -> None:
        """Wait for the end: all caught up where the job runs once, else ``stop``. Raises where a query fails."""
        kept = time.monotonic()
        try:
            while True:
                ended = not any(running.query.isActive for running in self._queries)
                statuses = [self._look(running) for running in self._queries]
                if watch is not None:
                    watch(statuses)
                self._check()
                if ended or self._stopping:
                    break
                if time.monotonic() > kept + UPKEEP:
                    self._keep_up()
                    kept = time.monotonic()
                self._wait()
        finally:
            self._end()
        self._keep_up()

    def stop(self) -> None:
        """Let ``follow`` come to its end; from any thread, or a signal's handler."""
        self._stopping = True

    def _start(self, group: Group, failures: list[str]) -> StreamingQuery:
        options = self._job.source_options(group.columns, group.kinds)
        if group.stateful is not None:
            options.setdefault("ticks", TICKS)
        rows = self._spark.readStream.format("polywire").options(**options).load()
        stateful = group.stateful
        if stateful is not None:
            rows = stateful.build(rows)
        of_rows = [table for table in group.tables if table.after is None]
        made_after = [table for table in group.tables if table.after is not None]
        writer = (
            rows.writeStream.queryName(group.query)
            .foreachBatch(_told(batch_writer(self._lake, of_rows, group.query, made_after), failures))
            .option("checkpointLocation", self._notes.checkpoint(group.query))
            .outputMode(stateful.output_mode if stateful is not None else "append")
        )
        if self._job.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger_interval(self._job.trigger)).start()

    def _look(self, running: Running) -> Status:
        for progress in running.query.recentProgress:
            if progress["batchId"] > running.batch:
                running.batch = int(progress["batchId"])
                running.rows += int(progress["numInputRows"])
        failed = running.failures or running.query.exception() is not None
        state = "running" if running.query.isActive else "failed" if failed else "ended"
        status = of_progress(
            running.group.query,
            tuple(table.name for table in running.group.tables),
            listed(self._job.journal),
            running.query.lastProgress,
            state=state,
            rows=running.rows,
        )
        if running.status is None or replace(status, updated=running.status.updated) != running.status:
            write_status(self._notes, status)
            running.status = status
        return status

    def _check(self) -> None:
        for running in self._queries:
            error = running.query.exception()
            if running.failures and not running.query.isActive:
                raise QueryFailedError(running.group.query, running.failures[0])
            if error is not None:
                raise QueryFailedError(running.group.query, reason_of(error)) from None

    def _wait(self) -> None:
        for running in self._queries:
            if running.query.isActive:
                with contextlib.suppress(PySparkException):  # told by ``_check``
                    running.query.awaitTermination(POLL)
                return

    def _end(self) -> None:
        for running in self._queries:
            if running.query.isActive:
                running.query.stop()
            if running.status is not None and running.status.state == "running":
                write_status(self._notes, replace(running.status, state="stopped"))

    def _keep_up(self) -> None:
        for running in self._queries:
            for table in running.group.tables:
                if table.parts is not None:
                    self._lake.refresh(table.name, self._spark)
                self._lake.compact(table.name, self._spark)


def _told(write: Callable[[DataFrame, int], None], failures: list[str]) -> Callable[[DataFrame, int], None]:
    """The same, with an error remembered here and told to Spark in one line.

    Spark searches what it is told with a regular expression that overflows the stack on a long text, and the query then
    ends without an error to be seen.
    """

    def written(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            failures.append(reason_of(error))
            raise PipelineError(failures[-1]) from None

    return written


def reason_of(error: Any) -> str:
    """The line of an error that says what is the matter: the one that ends a Python traceback, else the first."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = lines[0].strip() if lines else type(error).__name__
    inside = False
    for line in lines:
        if TRACEBACK in line:
            inside = True
        elif inside and not line[0].isspace():
            told, inside = line, False
    return told[:LONGEST_REASON]
