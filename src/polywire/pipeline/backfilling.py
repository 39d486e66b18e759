"""Makes whole days of the tables anew, in batch, and puts them in the place of what is there.

Only days that the streaming queries have passed: what a query has still to read it would add again.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.groups import closure
from polywire.pipeline.jobs import Job
from polywire.pipeline.lake import Lake
from polywire.pipeline.notes import Notes
from polywire.pipeline.status import Status, next_time, read_statuses
from polywire.pipeline.table import Table

AFTERMATH: Final = timedelta(seconds=120)
"""How much more is read for a table that keeps state: what began in the last day may end a little later."""


def backfill(spark: SparkSession, job: Job, first: date, last: date) -> Iterator[str]:
    """Make the days from ``first`` to ``last`` of a job's tables anew; the name of each table when it is done."""
    if last < first:
        raise PipelineError(f"the last day, {last}, is before the first, {first}")
    tables = closure(job.wanted or tuple(job.tables), job.tables)
    end = datetime.combine(last + timedelta(days=1), time(), UTC)
    check_passed(tables, {name: status for status in read_statuses(Notes(job.lake)) for name in status.tables}, end)
    lake = Lake(job.lake, job.tables)
    begin = datetime.combine(first, time(), UTC)
    made: dict[str, DataFrame] = {}
    for table in sorted(tables, key=lambda table: table.after is not None):
        source = made[table.after] if table.after is not None else _read(spark, job, table, begin, end)
        made[table.name] = table.rows(source)
        lake.replace(table.name, made[table.name], first, last)
        yield table.name


def check_passed(tables: tuple[Table, ...], statuses: Mapping[str, Status], end: datetime) -> None:
    """Whether the queries that write these tables have read everything before ``end``."""
    for table in tables:
        status = statuses.get(table.name)
        if status is None:
            raise PipelineError(
                f"table {table.name!r} was never written here, and whoever writes it first begins with the journal: "
                "'polywire pipeline run --once' does that"
            )
        waiting = next_time(status)
        if waiting is not None and waiting < end:
            raise PipelineError(
                f"the query {status.query!r} is at {waiting:%Y-%m-%d %H:%M:%S}, which is before {end:%Y-%m-%d}: "
                "let it catch up first ('polywire pipeline run --once')"
            )
        if datetime.now(UTC) < end:
            raise PipelineError(f"{end - timedelta(days=1):%Y-%m-%d} is not over yet: the stream writes it")


def _read(spark: SparkSession, job: Job, table: Table, begin: datetime, end: datetime) -> DataFrame:
    until = end + AFTERMATH if table.stateful else end
    # Rows at rest have no ticks: what tells a stateful table the time is rows of any kind.
    options = job.source_options(table.columns, () if table.stateful else table.kinds)
    options |= {"startingTime": begin.isoformat(), "endingTime": until.isoformat()}
    return spark.read.format("polywire").options(**options).load()
