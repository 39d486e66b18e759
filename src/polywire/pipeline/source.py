"""The journal as a Spark source: batch and streaming readers, which plan on the driver and read in tasks."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from polywire.journal.readers import NamedReaders
from polywire.pipeline.columns import for_spark
from polywire.pipeline.filters import Pushed
from polywire.pipeline.journals import Journals, is_remote
from polywire.pipeline.offsets import Place, from_spark, next_place, placed
from polywire.pipeline.options import LATEST, SourceOptions
from polywire.pipeline.planning import JournalPartition, Range, plan, ranges
from polywire.pipeline.reading import read_partition


class BatchReader(DataSourceReader):
    """What the journals hold when the query starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = tuple(schema.names)
        self.pushed = Pushed(from_time=options.starting_time, to_time=options.ending_time)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that can be applied while reading."""
        return self.pushed.take(filters)

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        found = []
        for name, opened in Journals(self.options.journals, self.options.token).current().items():
            begin, end = opened.first_offset, opened.end_offset
            if self.options.starting_offset == LATEST:
                begin = end
            elif self.options.starting_offset.isdigit():
                begin = max(begin, int(self.options.starting_offset))
            begin = max(begin, self.pushed.from_offset or 0)
            if self.pushed.from_time is not None:
                begin = max(begin, opened.offset_at(self.pushed.from_time))
            if self.pushed.to_offset is not None:
                end = min(end, self.pushed.to_offset)
            if begin < end:
                found.append(Range(name, opened, begin, end))
        return list(plan(found, self.options.rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: its rows."""
        if not isinstance(partition, JournalPartition):
            return iter(())  # Spark asks for one partition where there is none
        return for_spark(read_partition(partition, self.options, self.columns, self.pushed), self.columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What the journals hold and what is written to them, as far as it is safe."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = tuple(schema.names)
        self._journals: Journals | None = None
        self._target: Place | None = None

    def initialOffset(self) -> Place:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint."""
        return placed({name: self._begin(opened) for name, opened in self._current().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Place:  # noqa: N802 - as above
        """How far the next step goes."""
        place = from_spark(start)
        journals = self._current()
        safe = {name: opened.end_offset for name, opened in journals.items()}
        if self._target is not None:
            safe = {name: min(end, self._target[name]) for name, end in safe.items() if name in self._target}
        first = {name: self._begin(journals[name]) if name not in place else 0 for name in safe}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return next_place(place, safe, first, rows)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - as above
        """How much one step may read."""
        return ReadMaxRows(self.options.rows_per_trigger) if self.options.rows_per_trigger else ReadAllAvailable()

    def reportLatestOffset(self) -> Place:  # noqa: N802 - as above
        """How far there is anything, for the query's progress."""
        return placed({name: opened.end_offset for name, opened in self._current().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above
        """Go no further than what is there now."""
        self._target = self.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a step."""
        found = ranges(
            self._current(), from_spark(start), from_spark(end), fail_on_data_loss=self.options.fail_on_data_loss
        )
        return list(plan(list(found), self.options.rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: its rows."""
        if not isinstance(partition, JournalPartition):
            return iter(())
        return for_spark(read_partition(partition, self.options, self.columns, None), self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """All before ``end`` is done: tell the journals, so that retention may have it."""
        if self.options.reader is None:
            return
        for name, opened in self._current().items():
            if name in end and not is_remote(opened.location) and Path(opened.location).is_dir():
                NamedReaders(Path(opened.location)).put(self.options.reader, int(end[name]))

    def _current(self) -> dict[str, Any]:
        if self._journals is None:
            self._journals = Journals(self.options.journals, self.options.token)
        return self._journals.current()

    def _begin(self, opened: Any) -> int:
        if self.options.starting_offset == LATEST:
            return int(opened.end_offset)
        if self.options.starting_offset.isdigit():
            return max(int(opened.first_offset), int(self.options.starting_offset))
        time: datetime | None = self.options.starting_time
        return int(opened.first_offset if time is None else opened.offset_at(time))
