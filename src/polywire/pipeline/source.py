"""The journal as a Spark source: batch and streaming readers, which plan on the driver and read in tasks."""

from collections.abc import Iterator
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

from polywire.journal.reader import Journal
from polywire.journal.readers import NamedReaders
from polywire.pipeline.columns import for_spark
from polywire.pipeline.errors import JournalReplacedError
from polywire.pipeline.filters import Pushed
from polywire.pipeline.journals import Journals, is_remote
from polywire.pipeline.offsets import TICK, Place, from_spark, next_place, placed
from polywire.pipeline.options import LATEST, SourceOptions
from polywire.pipeline.planning import JournalPartition, Range, plan, ranges
from polywire.pipeline.reading import read_partition
from polywire.pipeline.ticks import Clock, TickPartition, now, read_with_ticks, tick_between, tick_rows


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
        for opened in Journals(self.options.journals, self.options.token).current().values():
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
                found.append(Range(opened, begin, end))
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
        self._clock = Clock(options.ticks)

    def initialOffset(self) -> Place:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint."""
        return placed({name: self._begin(opened) for name, opened in self._current().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Place:  # noqa: N802 - as above
        """How far the next step goes."""
        place = from_spark(start)
        before = now()
        journals = self._current()
        safe = {name: opened.end_offset for name, opened in journals.items()}
        for name, end in safe.items():
            if place.get(name, 0) > end and self.options.fail_on_data_loss:
                raise JournalReplacedError(name, place[name], end)
        if self._target is not None:
            safe = {name: min(end, self._target[name]) for name, end in safe.items() if name in self._target}
        first = {name: self._begin(journals[name]) if name not in place else 0 for name in safe}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._clock.next_tick(place, next_place(place, safe, first, rows), before)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - as above
        """How much one step may read."""
        return ReadMaxRows(self.options.rows_per_trigger) if self.options.rows_per_trigger else ReadAllAvailable()

    def reportLatestOffset(self) -> Place:  # noqa: N802 - as above
        """How far there is anything, for the query's progress."""
        return placed({name: opened.end_offset for name, opened in self._current().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above
        """Go no further than what is there now."""
        self._clock.finish_at(now())
        self._target = self.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a step."""
        journals, begin, stop = self._current(), from_spark(start), from_spark(end)
        found = list(ranges(journals, begin, stop, fail_on_data_loss=self.options.fail_on_data_loss))
        return [*plan(found, self.options.rows_per_partition), *tick_between(begin, stop, journals)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: its rows."""
        if isinstance(partition, TickPartition):
            return for_spark([tick_rows(partition)], self.columns)
        if not isinstance(partition, JournalPartition):
            return iter(())
        if self.options.ticks is not None and self.options.kinds:
            return for_spark(read_with_ticks(partition, self.options, self.columns), self.columns)
        return for_spark(read_partition(partition, self.options, self.columns, None), self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """All before ``end`` is done: tell the journals, so that retention may have it."""
        if self.options.reader is None or self._journals is None:
            return
        for name, offset in from_spark(end).items():
            if name == TICK:
                continue
            location = self._journals.location(name)
            # On other storages nobody but their owner deletes anything.
            if not is_remote(location) and Path(location).is_dir():
                NamedReaders(Path(location)).put(self.options.reader, offset)

    def _current(self) -> dict[str, Journal]:
        if self._journals is None:
            self._journals = Journals(self.options.journals, self.options.token)
        return self._journals.current()

    def _begin(self, opened: Journal) -> int:
        if self.options.starting_offset == LATEST:
            return opened.end_offset
        if self.options.starting_offset.isdigit():
            return max(opened.first_offset, int(self.options.starting_offset))
        time = self.options.starting_time
        return opened.first_offset if time is None else opened.offset_at(time)
