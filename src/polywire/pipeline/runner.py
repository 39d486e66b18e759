"""Runs a job: one streaming query for each group of tables, watched until they end, or whole days again in batch.

A query that fails for a temporary reason is restarted, after growing pauses. Temporary reasons are recognized by
Spark's messages: errors of workers and of Spark itself come as text. The query continues from its checkpoint and the
lake, so that every row still counts once.

A backfill replaces only days that the streaming queries have passed: what a query has still to read it would add again.

Tables share a query, so that the journal is read once for all of them. A query's checkpoint says how far all its tables
are, so the tables of a query are fixed once it has run. A table that is asked for later gets a query of its own, which
begins where the journal does. A table that is made of a stateful one shares that one's query, and is written whenever
that one is.
"""

import contextlib
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from polywire.backoff import Backoff
from polywire.journal.errors import JournalError
from polywire.pipeline.delta import Batch
from polywire.pipeline.errors import OptionError, PipelineError, SparkLostError
from polywire.pipeline.files import open_location
from polywire.pipeline.journals import COLUMNS, Journals, SourceOptions, is_remote, listed
from polywire.pipeline.lake import Lake, convert
from polywire.pipeline.status import (
    Notes,
    Status,
    Step,
    next_time,
    now,
    of_progress,
    read_statuses,
    step_of,
    within,
    write_status,
)
from polywire.pipeline.steps import StateFiles, Steps
from polywire.pipeline.table import Table

DEFAULT_TRIGGER: Final = "1 second"
"""A step costs about half a second of CPU regardless of its size; new rows wait for the next one."""

_TRIGGER: Final = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)\s*")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


RETRIES: Final = 8
"""With the pauses between them about two minutes: a hub that starts again is back by then."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the pipeline. ``tables`` are all there are by name; ``wanted`` those to write, all where it is empty.

    ``retries`` is how often a query that fails for a passing reason is started again before it gets something done.
    """

    journal: str
    lake: str
    tables: Mapping[str, Table]
    wanted: tuple[str, ...] = ()
    trigger: str = DEFAULT_TRIGGER
    once: bool = False
    token: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options for the source."""
    retries: int = RETRIES
    keep: Mapping[str, int] = field(default_factory=dict)
    """Days after which rows are deleted, by table."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Options of the lake's storage."""
    checkpoint: str | None = None
    """Where Spark keeps how far the queries are; by default in the lake."""

    @property
    def notes(self) -> Notes:
        """How far the queries are."""
        return Notes(self.lake, self.storage, self.checkpoint)

    def source_options(self, columns: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, str]:
        """The options to read the journal with."""
        options = {"journal": self.journal, "columns": ",".join(columns)}
        if kinds:
            options["kinds"] = ",".join(kinds)
        if self.token is not None:
            options["token"] = self.token
        return {**options, **self.options}


def trigger_interval(text: str) -> str:
    """An interval as Spark writes it: of ``5 s``, ``500ms``, ``1 minute``."""
    found = _TRIGGER.fullmatch(text)
    if found is None:
        raise OptionError("trigger", f"{text!r} is not an interval; write 1s, 500ms or '2 minutes'")
    unit = found[2][0] if found[2] != "ms" and not found[2].startswith("milli") else "ms"
    return f"{found[1]} {_UNITS[unit]}"


def days_kept(text: str | None, tables: Iterable[str]) -> dict[str, int]:
    """Days to keep of each table that is not kept for ever: of ``90d``, ``messages=30d`` or ``90d,faults=365d``."""
    known, found = list(tables), {}
    for part in listed(text or ""):
        name, equals, days = part.rpartition("=")
        number = re.fullmatch(r"\s*(\d+)\s*(d|days?)?\s*", days)
        if number is None or int(number[1]) == 0:
            raise OptionError("keep", f"{part!r} is not a number of days; write 90d, or messages=90d")
        if equals and name.strip() not in known:
            raise OptionError("keep", f"there is no table {name.strip()!r}; there is {', '.join(sorted(known))}")
        for table in [name.strip()] if equals else [one for one in known if one not in found]:
            found[table] = int(number[1])
    return found


PATIENCE: Final = 10.0
"""Seconds to wait for a journal that is not there yet: a hub that was started at the same time creates it."""


def check_journal(job: Job) -> None:
    """Whether there is something to read, and the options are known. A hub may be away: that is tried again."""
    SourceOptions.read(job.source_options((), ()))
    places = tuple(place for place in listed(job.journal) if not is_remote(place))
    limit = time.monotonic() + (0 if job.once else PATIENCE)
    while places:
        try:
            Journals(places, job.token).current()
        except (JournalError, PipelineError):
            if time.monotonic() >= limit:
                raise
            time.sleep(POLL / 10)
        else:
            return


FEW_ROWS: Final = 200_000
"""Rows that are turned into tables about as fast by code that was compiled quickly as by better code."""


def is_brief(job: Job) -> bool:
    """Whether there is little to do, so that it does not matter how well Java compiles its code."""
    if not job.once:
        return False
    if all(table.kernel is not None for table in closure(job.wanted or tuple(job.tables), job.tables)):
        return True  # Arrow computes them: Java hands out splits, however many rows these have
    if is_remote(job.journal):
        return False
    ends = {name: opened.end_offset for name, opened in Journals(listed(job.journal), job.token).current().items()}
    done = [status.place for status in read_statuses(job.notes)] or [{}]
    return all(sum(end - place.get(name, 0) for name, end in ends.items()) < FEW_ROWS for place in done)


NOTE: Final = "groups"


@dataclass(frozen=True, slots=True)
class Group:
    """A streaming query: its name, and the tables it writes, each before those made of it."""

    query: str
    tables: tuple[Table, ...]

    @property
    def stateful(self) -> Table | None:
        """The table the query is built around, where Spark keeps its state."""
        return self.tables[0] if _by_spark(self.tables[0]) else None

    @property
    def ticks(self) -> bool:
        """Whether a table depends on what time it is."""
        return any(table.stateful for table in self.tables)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the journal that are needed."""
        needed = {name for table in self.tables if table.after is None for name in table.columns}
        return tuple(sorted(needed))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that are needed; none where all are."""
        own = [table.kinds for table in self.tables if table.after is None]
        return tuple(sorted({kind for kinds in own for kind in kinds})) if all(own) else ()


def closure(wanted: Iterable[str], tables: Mapping[str, Table]) -> tuple[Table, ...]:
    """These tables, those they are made of, and those made of them, in the order of ``tables``."""
    needed: set[str] = set()
    for name in wanted:
        table = tables.get(name)
        if table is None:
            raise PipelineError(f"there is no table {name!r}; there is {', '.join(sorted(tables))}")
        if table.after is not None and table.after not in tables:
            raise PipelineError(f"table {name!r} depends on {table.after!r}, which does not exist")
        needed |= {name, table.after or name}
    return tuple(table for name, table in tables.items() if name in needed or table.after in needed)


def arrange(wanted: Iterable[Table], tables: Mapping[str, Table], notes: Notes) -> list[Group]:
    """The queries that write these tables: those that ran before, and new ones for what is new."""
    chosen = list(wanted)
    known = {str(query): list(names) for query, names in (notes.read(NOTE) or {}).items()}
    placed = {name for names in known.values() for name in names}
    fresh = [table for table in chosen if table.name not in placed]
    for table in fresh:
        if table.after in placed:
            raise PipelineError(
                f"table {table.name!r} depends on {table.after!r}, which this lake was built without: use another lake"
            )
    plain = [table for table in fresh if not _by_spark(table) and not _made_of_stateful(table, tables)]
    if plain:
        _place(known, "rows", sorted(plain, key=lambda table: table.after is not None))
    for table in fresh:
        if _by_spark(table):
            _place(known, table.name, [table, *(other for other in fresh if other.after == table.name)])
    if fresh:
        notes.write(NOTE, dict(known))
    names = {table.name for table in chosen}
    return [
        Group(query, tuple(tables[name] for name in held if name in tables))
        for query, held in known.items()
        if names & set(held)
    ]


def _by_spark(table: Table) -> bool:
    """Whether a table keeps state that is Spark's, so that the whole query is built around it."""
    return table.stateful and table.kernel is None


def _made_of_stateful(table: Table, tables: Mapping[str, Table]) -> bool:
    return table.after is not None and _by_spark(tables[table.after])


def _place(known: dict[str, list[str]], query: str, tables: list[Table]) -> None:
    name, number = query, 1
    while name in known:
        number += 1
        name = f"{query}-{number}"
    known[name] = [table.name for table in tables]


TRACEBACK: Final = "Traceback (most recent call last)"
LONGEST_REASON: Final = 500
"""Characters of an error that are shown."""

LONGEST_PAUSE: Final = 30.0
"""Seconds between two tries, at most."""

PASSING: Final = (
    r"\bJournalAwayError\b",  # a hub that starts again
    r"Python worker failed to connect back",  # a machine that is too busy
    r"Python worker exited unexpectedly",
    r"ExecutorLostFailure",
    r"\b(Connection(Refused|Reset|Aborted)?|BrokenPipe|Timeout)Error\b",
    r"java\.net\.(Connect|SocketTimeout|NoRouteToHost)Exception",
    r"AWS Error (NETWORK_CONNECTION|SERVICE_UNAVAILABLE|SLOW_DOWN|REQUEST_TIMEOUT|INTERNAL_FAILURE)",
)
"""Words of failures that have nothing to do with the rows or the tables."""


class QueryFailedError(PipelineError):
    """A streaming query ended with an error. ``query`` is its name, ``reason`` is Spark's message, shortened.

    ``tries`` is how often it was restarted before that without making progress.
    """

    def __init__(self, query: str, reason: str, tries: int = 0) -> None:
        often = f" (also after {tries} restarts)" if tries else ""
        super().__init__(f"the query {query!r} failed{often}: {reason}")
        self.query = query
        self.reason = reason
        self.tries = tries


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended, in one line. ``passing``: the same may go well later."""

    reason: str
    passing: bool


def failure_of(error: Any) -> Failure:
    """Classify an error: its reason, and whether it is temporary."""
    return Failure(reason_of(error), any(re.search(words, str(error)) for words in PASSING))


def told(write: Callable[[DataFrame, int], None], failures: list[Failure]) -> Callable[[DataFrame, int], None]:
    """The same, with an error remembered here and passed to Spark in one line.

    Spark searches that text with a regular expression that overflows the stack on a long text, and the query then
    ends without an error to be seen.
    """

    def written(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            failures.append(failure_of(error))
            raise PipelineError(failures[-1].reason) from None

    return written


def reason_of(error: Any) -> str:
    """The line of an error that says what is the matter: the one that ends a Python traceback, else the first."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = lines[0].strip() if lines else type(error).__name__
    inside = False
    for line in lines:
        if TRACEBACK in line:
            inside = True
        elif inside and not line[0].isspace():
            found, inside = line, False
    return found[:LONGEST_REASON]


def batch_writer(
    lake: Lake,
    tables: Sequence[Table],
    query: str,
    followers: Sequence[Table] = (),
    offsets: Callable[[int], Mapping[str, Any] | None] = lambda _: None,
) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: write these tables of the journal's rows, all in one job of Spark.

    With one stateful table the batch is its rows already. ``followers`` are tables made after one of the others.
    ``offsets`` gives the places in the journal that a batch is between.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        which = Batch(query, batch_id, offsets(batch_id))
        several = len(tables) + len(followers) > 1
        if several:
            batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = {table.name: batch if table.stateful else table.rows(batch) for table in tables}
            made = {follower.name: follower.rows(rows[follower.after or ""]) for follower in followers}
            if tables[0].stateful:
                # State must not be changed twice, as by two tasks that need the same rows at the same time.
                lake.write(rows, which)
                if made:
                    lake.write(made, which)
            else:
                lake.write({**rows, **made}, which)
        finally:
            if several:
                batch.unpersist()

    return write


def forget_state(checkpoint: str) -> None:
    """Delete the state that Spark kept for a query in an earlier release: it refuses to go on without using it."""
    files, root = open_location(checkpoint)
    if files.get_file_info(f"{root}/state").type == fs.FileType.Directory:
        files.delete_dir(f"{root}/state")


POLL: Final = 1
"""Seconds between two looks at the queries."""

UPKEEP: Final = 60.0
"""Seconds between two times that small files are joined and aggregates written out for those who read files only."""

KEEPERS: Final = 3
"""How many tables are looked after at once: much of it is waiting."""

TICKS: Final = "10"
"""Seconds without rows after which a stateful table gets a tick with the time."""

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
    failures: list[Failure] = field(default_factory=list)
    rows: int = 0
    batch: int = -1
    status: Status | None = None
    steps: Steps | None = None
    step: Step | None = None
    reason: str = ""
    tries: int = 0
    due: float | None = None
    query: StreamingQuery = field(init=False)

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
        self._backoff = Backoff(pause, LONGEST_PAUSE)
        self._notes = job.notes
        self._lake = Lake(job.lake, job.tables, options=job.storage)
        self._journals = Journals(listed(job.journal), job.token)
        self._queries: list[Running] = []
        self._stopping = False

    def start(self) -> list[str]:
        """Start the queries; their names."""
        for name in convert(self._lake.storage, self._job.tables):
            log.info("the table %r is a Delta table now", name)
        wanted = closure(self._job.wanted or tuple(self._job.tables), self._job.tables)
        before = {status.query: status for status in read_statuses(self._notes)}
        for group in arrange(wanted, self._job.tables, self._notes):
            # How far it is stays known until its first step is done.
            running = Running(group, status=before.get(group.query))
            running.query = self._start(running)
            self._queries.append(running)
        return [running.group.query for running in self._queries]

    def follow(self, watch: Watch | None = None) -> None:
        """Wait for the end: all caught up where the job runs once, else ``stop``. Raises where a query fails."""
        try:
            try:
                self._follow(watch)
            finally:
                self._end()
            self._keep_up()
        except LOST as error:
            if not has_ended(self._spark):
                raise
            raise SparkLostError from error

    def _follow(self, watch: Watch | None) -> None:
        kept = time.monotonic()
        while True:
            ended = all(running.over for running in self._queries)
            statuses = [self._look(running) for running in self._queries]
            if watch is not None:
                watch(statuses)
            for running in self._queries:
                self._mind(running)
            if self._stopping or (ended and all(running.over for running in self._queries)):
                return
            if time.monotonic() > kept + UPKEEP:
                self._keep_up()
                kept = time.monotonic()
            self._wait()

    def stop(self) -> None:
        """Let ``follow`` come to its end; from any thread, or a signal's handler."""
        self._stopping = True

    def _start(self, running: Running) -> StreamingQuery:
        group = running.group
        checkpoint = self._notes.checkpoint(group.query)

        def offsets(batch_id: int) -> Mapping[str, Any] | None:
            found = self._notes.offsets(group.query, batch_id)
            if found is not None:
                with contextlib.suppress(JournalError, OSError, PipelineError):  # it is for those who watch only
                    running.step = step_of(found, self._journals, time.monotonic())
            return found

        if group.stateful is not None:
            options = {"ticks": TICKS, **self._job.source_options(group.columns, group.kinds)}
            rows = group.stateful.build(self._spark.readStream.format("polywire").options(**options).load())
            of_rows = [table for table in group.tables if table.after is None]
            followers = [table for table in group.tables if table.after is not None]
            write = batch_writer(self._lake, of_rows, group.query, followers, offsets)
            mode = group.stateful.output_mode
        else:
            options = self._job.source_options(COLUMNS, ())
            read = SourceOptions.read(options)
            if group.ticks:
                options.setdefault("ticks", TICKS)
            options["splits"] = str(max(2 * self._spark.sparkContext.defaultParallelism, 1))
            rows = self._spark.readStream.format("polywire").options(**options).load()
            state = StateFiles(self._notes.storage.below(f"state/{group.query}"))
            write = running.steps = Steps(self._lake, group.tables, group.query, read, state, offsets)
            mode = "append"
            forget_state(checkpoint)
        writer = (
            rows.writeStream.queryName(group.query)
            .foreachBatch(told(write, running.failures))
            .option("checkpointLocation", checkpoint)
            .outputMode(mode)
        )
        if self._job.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger_interval(self._job.trigger)).start()

    def _look(self, running: Running) -> Status:
        for progress in running.query.recentProgress:
            # A step that found nothing has the number of the next one that does.
            if progress["batchId"] > running.batch and progress["numInputRows"]:
                running.batch = int(progress["batchId"])
                running.rows += (
                    int(progress["numInputRows"]) if running.steps is None else running.steps.taken(running.batch)
                )
        state = "retrying" if running.due is not None else "running" if running.query.isActive else "ended"
        if state == "ended" and running.failure is not None:
            state = "failed"
        latest = running.query.lastProgress
        if latest is None and running.status is not None:  # just started again
            status = replace(
                running.status,
                state=state,
                tables=tuple(table.name for table in running.group.tables),
                journals=listed(self._job.journal),
                rows=running.rows,
                updated=now(),
            )
        else:
            status = of_progress(
                running.group.query,
                tuple(table.name for table in running.group.tables),
                listed(self._job.journal),
                latest,
                state=state,
                rows=running.rows,
            )
            if latest is not None and latest["batchId"] >= running.batch and running.failure is None:
                running.reason = ""
        status = replace(status, reason=running.reason)
        if running.steps is not None and status.batch_seconds:
            status = replace(status, rows_per_second=running.steps.latest / status.batch_seconds)
        if state == "running" and running.step is not None and running.query.status["isTriggerActive"]:
            status = within(status, running.step, self._share_done(), time.monotonic())
        if running.status is None or replace(status, updated=running.status.updated) != running.status:
            write_status(self._notes, status)
            running.status = status
        return status

    def _share_done(self) -> float:
        """How many of the tasks that Spark knows of now are done, of all jobs in progress."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        tasks = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        return sum(done for done, _ in tasks) / max(sum(of for _, of in tasks), 1)

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
        running.step = None
        try:
            running.query = self._start(running)
        except PySparkException as error:
            self._failed(running, failure_of(error))

    def _failed(self, running: Running, failure: Failure) -> None:
        name = running.group.query
        running.reason = failure.reason
        if not failure.passing or running.tries >= self._job.retries:
            raise QueryFailedError(name, failure.reason, running.tries) from None
        running.tries += 1
        pause = self._backoff.pause(running.tries - 1)
        running.due = time.monotonic() + pause
        log.warning(
            "the query %r failed: %s; restarting it in %.1f s (attempt %d of %d)",
            name,
            failure.reason,
            pause,
            running.tries,
            self._job.retries,
        )

    def _wait(self) -> None:
        for running in self._queries:
            if running.query.isActive:
                with contextlib.suppress(PySparkException):  # reported by ``_mind``
                    running.query.awaitTermination(POLL)
                return
        time.sleep(min(POLL, self._backoff.first))  # all are to be started again

    def _end(self) -> None:
        lost = False
        for running in self._queries:
            try:
                if running.query.isActive:
                    running.query.stop()
            except LOST:
                lost = True
            if running.status is None:
                continue
            state = "stopped" if running.status.state in {"running", "retrying"} else running.status.state
            if lost:
                state, running.reason = "failed", str(SparkLostError())
            last = replace(running.status, state=state, reason=running.reason, step_rows=0, step_done=0)
            last = replace(last, updated=now()) if last != running.status else last
            if last != running.status:
                write_status(self._notes, last)

    def _keep_up(self) -> None:
        tables = [table for running in self._queries for table in running.group.tables]
        with ThreadPoolExecutor(KEEPERS) as pool:
            list(pool.map(self._keep_up_table, tables))

    def _keep_up_table(self, table: Table) -> None:
        days = self._job.keep.get(table.name)
        if days is not None:
            self._lake.keep(table.name, days)
        self._lake.compact(table.name, self._spark)
        self._lake.tidy(table.name)
        self._lake.refresh(table.name, self._spark)


LOST: Final = (Py4JError, OSError, EOFError)
"""What calls of Spark end with where its Java process is gone."""


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark's Java process, which this process has started, is gone."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing else knows it
    if process is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):  # its connections end a moment earlier
        process.wait(MOMENT)
    return process.poll() is not None


MOMENT: Final = 0.5
"""Seconds in which a process that was killed ends."""

AFTERMATH: Final = timedelta(seconds=120)
"""How much more is read for a table that keeps state: what began in the last day may end a little later."""


def backfill(spark: SparkSession, job: Job, first: date, last: date) -> Iterator[str]:
    """Make the days from ``first`` to ``last`` of a job's tables again; the name of each table when it is done."""
    if last < first:
        raise PipelineError(f"the last day, {last}, is before the first, {first}")
    tables = closure(job.wanted or tuple(job.tables), job.tables)
    end = _midnight(last) + timedelta(days=1)
    statuses = read_statuses(job.notes)
    check_passed(tables, {name: status for status in statuses for name in status.tables}, end)
    lake = Lake(job.lake, job.tables, options=job.storage)
    convert(lake.storage, job.tables)
    begin = _midnight(first)
    made: dict[str, DataFrame] = {}
    for table in sorted(tables, key=lambda table: table.after is not None):
        source = made[table.after] if table.after is not None else _read(spark, job, table, begin, end)
        made[table.name] = table.rows_at_rest(source, (end + AFTERMATH).timestamp())
        lake.replace(table.name, made[table.name], first, last)
        lake.refresh(table.name, spark)
        yield table.name


def check_passed(tables: tuple[Table, ...], statuses: Mapping[str, Status], end: datetime) -> None:
    """Whether the queries that write these tables have read everything before ``end``."""
    for table in tables:
        status = statuses.get(table.name)
        if status is None:
            raise PipelineError(
                f"table {table.name!r} was never written here; 'polywire pipeline run --once' writes it from the start "
                "of the journal"
            )
        waiting = next_time(status)
        until = end + AFTERMATH if table.stateful else end
        if waiting is not None and waiting < until:
            raise PipelineError(
                f"the query {status.query!r} is at {waiting:%Y-%m-%d %H:%M:%S}, which is before "
                f"{until:%Y-%m-%d %H:%M:%S}: let it catch up first ('polywire pipeline run --once')"
            )
        if datetime.now(UTC) < until:
            raise PipelineError(f"{end - timedelta(days=1):%Y-%m-%d} is not over yet: the stream writes it")


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _read(spark: SparkSession, job: Job, table: Table, begin: datetime, end: datetime) -> DataFrame:
    until = end + AFTERMATH if table.stateful else end
    options = job.source_options(table.columns, table.kinds)
    options |= {"startingTime": begin.isoformat(), "endingTime": until.isoformat()}
    return spark.read.format("polywire").options(**options).load()
