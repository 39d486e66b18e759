"""Runs a job: one streaming query for each group of tables, watched until they end.

A query that fails for a reason that may pass is started again, after pauses that grow. It goes on where its checkpoint
and the lake say, so that every row counts once all the same.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polywire.pipeline.batches import batch_writer
from polywire.pipeline.failures import Failure, QueryFailedError, failure_of, pause_before, told
from polywire.pipeline.groups import Group, arrange, closure
from polywire.pipeline.jobs import Job, trigger_interval
from polywire.pipeline.lake import Lake
from polywire.pipeline.notes import Notes
from polywire.pipeline.options import listed
from polywire.pipeline.status import Status, of_progress, write_status
from polywire.pipeline.table import Table

POLL: Final = 1
"""Seconds between two looks at the queries."""

UPKEEP: Final = 60.0
"""Seconds between two times that small files are joined and aggregates written out for those who read files only."""

KEEPERS: Final = 3
"""How many tables are looked after at once: much of it is waiting."""

TICKS: Final = "10"
"""Seconds without rows after which a stateful table is told how late it is."""

FIRST_PAUSE: Final = 1.0
"""Seconds before a query that failed is started again for the first time; then twice as many each time."""

Watch = Callable[[list[Status]], None]

log = logging.getLogger("polywire.pipeline")


@dataclass
class Running:
    """A query that was started, and how many rows it has read since.

    ``tries`` is how often it was started again without getting anything done, ``due`` when it will be once more.
    """

    group: Group
    query: StreamingQuery
    failures: list[Failure]
    rows: int = 0
    batch: int = -1
    status: Status | None = None
    tries: int = 0
    due: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, and will not be started again."""
        return self.due is None and not self.query.isActive

    @property
    def failure(self) -> Failure | None:
        """Why it ended, if that was not as it should."""
        if self.query.isActive:
            return None
        if self.failures:
            return self.failures[0]
        error = self.query.exception()
        return None if error is None else failure_of(error)


class Runner:
    """The queries of one job in one Spark session. ``pause``: seconds before one that failed is started again."""

    def __init__(self, spark: SparkSession, job: Job, *, pause: float = FIRST_PAUSE) -> None:
        self._spark = spark
        self._job = job
        self._pause = pause
        self._notes = Notes(job.lake)
        self._lake = Lake(job.lake, job.tables)
        self._queries: list[Running] = []
        self._stopping = False

    def start(self) -> list[str]:
        """Start the queries; their names."""
        wanted = closure(self._job.wanted or tuple(self._job.tables), self._job.tables)
        for group in arrange(wanted, self._job.tables, self._notes):
            failures: list[Failure] = []
            self._queries.append(Running(group, self._start(group, failures), failures))
        return [running.group.query for running in self._queries]

    def follow(self, watch: Watch | None = None) -> None:
        """Wait for the end: all caught up where the job runs once, else ``stop``. Raises where a query fails."""
        kept = time.monotonic()
        try:
            while True:
                ended = all(running.over for running in self._queries)
                statuses = [self._look(running) for running in self._queries]
                if watch is not None:
                    watch(statuses)
                for running in self._queries:
                    self._mind(running)
                if self._stopping or (ended and all(running.over for running in self._queries)):
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

    def _start(self, group: Group, failures: list[Failure]) -> StreamingQuery:
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
            .foreachBatch(told(batch_writer(self._lake, of_rows, group.query, made_after), failures))
            .option("checkpointLocation", self._notes.checkpoint(group.query))
            .outputMode(stateful.output_mode if stateful is not None else "append")
        )
        if self._job.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger_interval(self._job.trigger)).start()

    def _look(self, running: Running) -> Status:
        for progress in running.query.recentProgress:
            # A step that found nothing has the number of the next one that does.
            if progress["batchId"] > running.batch and progress["numInputRows"]:
                running.batch = int(progress["batchId"])
                running.rows += int(progress["numInputRows"])
        state = "retrying" if running.due is not None else "running" if running.query.isActive else "ended"
        if state == "ended" and running.failure is not None:
            state = "failed"
        latest = running.query.lastProgress
        if latest is None and running.status is not None:  # just started again
            status = replace(running.status, state=state)
        else:
            status = of_progress(
                running.group.query,
                tuple(table.name for table in running.group.tables),
                listed(self._job.journal),
                latest,
                state=state,
                rows=running.rows,
            )
        if running.status is None or replace(status, updated=running.status.updated) != running.status:
            write_status(self._notes, status)
            running.status = status
        return status

    def _mind(self, running: Running) -> None:
        """Start a query again that failed for a passing reason; raise where it failed for another, or too often."""
        if running.due is not None:
            if time.monotonic() >= running.due:
                self._start_again(running)
            return
        if running.query.lastProgress is not None:
            running.tries = 0
        failure = running.failure
        if failure is not None:
            self._failed(running, failure)

    def _start_again(self, running: Running) -> None:
        running.due = None
        running.failures = []
        try:
            running.query = self._start(running.group, running.failures)
        except PySparkException as error:
            self._failed(running, failure_of(error))

    def _failed(self, running: Running, failure: Failure) -> None:
        name = running.group.query
        if not failure.passing or running.tries >= self._job.retries:
            raise QueryFailedError(name, failure.reason, running.tries) from None
        running.tries += 1
        pause = pause_before(running.tries, self._pause)
        running.due = time.monotonic() + pause
        log.warning(
            "the query %r failed: %s; it is started again in %g s (try %d of %d)",
            name,
            failure.reason,
            pause,
            running.tries,
            self._job.retries,
        )

    def _wait(self) -> None:
        for running in self._queries:
            if running.query.isActive:
                with contextlib.suppress(PySparkException):  # told by ``_mind``
                    running.query.awaitTermination(POLL)
                return
        time.sleep(min(POLL, self._pause))  # all are to be started again

    def _end(self) -> None:
        for running in self._queries:
            if running.query.isActive:
                running.query.stop()
            if running.status is not None and running.status.state in {"running", "retrying"}:
                write_status(self._notes, replace(running.status, state="stopped"))

    def _keep_up(self) -> None:
        tables = [table for running in self._queries for table in running.group.tables]
        with ThreadPoolExecutor(KEEPERS) as pool:
            list(pool.map(self._keep_up_table, tables))

    def _keep_up_table(self, table: Table) -> None:
        if table.parts is not None:
            self._lake.refresh(table.name, self._spark)
        self._lake.compact(table.name, self._spark)
