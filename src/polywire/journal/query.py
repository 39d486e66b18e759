"""What a reader wants of a journal: which columns, and which rows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import PLAIN_SCHEMA, SCHEMA, Array, values
from polywire.journal.kinds import KINDS
from polywire.registry import names


class ChannelPatterns:
    """One or several patterns, as a test of a column of channels.

    ``*`` is one level, a last ``**`` any number of levels, none included. A journal has millions of rows and few
    channels, so each different channel of a batch is looked at once.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        names = [pattern for pattern in wanted if not _is_wild(pattern)]
        wild = [_expression(pattern) for pattern in wanted if _is_wild(pattern)]
        self._names: Final = pa.array(names, pa.utf8())
        self._wild: Final = re.compile("|".join(wild), re.DOTALL) if wild else None

    def match(self, channels: Array) -> Array:
        """True for each row whose channel is meant, as an array."""
        if self._wild is None:
            return pc.is_in(channels, value_set=self._names)
        encoded = channels.dictionary_encode()
        names = set(self._names.to_pylist())
        meant = [name in names or self._wild.fullmatch(name) is not None for name in values(encoded.dictionary)]
        return pa.array(meant, pa.bool_()).take(encoded.indices).fill_null(fill_value=False)


def _is_wild(pattern: str) -> bool:
    levels = pattern.split("/")
    return "*" in levels or levels[-1] == "**"


def _expression(pattern: str) -> str:
    levels = pattern.split("/")
    rest = levels[-1] == "**"
    if rest:
        levels.pop()
    written = "/".join("[^/]*" if level == "*" else re.escape(level) for level in levels)
    if not rest:
        return written
    return written + "(?:/.*)?" if levels else ".*"


ON_CORRUPT: Final = ("raise", "gap", "skip")
NO_END: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """Columns and rows that are wanted; offsets and times up to, but without, their ends."""

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    from_offset: int = 0
    to_offset: int = NO_END
    from_ts: int | None = None
    to_ts: int | None = None
    channels: ChannelPatterns | None = None
    kinds: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    state_only: bool = False
    on_corrupt: str = "raise"

    @property
    def schema(self) -> pa.Schema:
        """The columns as the reader gets them."""
        return pa.schema([PLAIN_SCHEMA.field(name) for name in self.columns]).with_metadata(PLAIN_SCHEMA.metadata)

    @property
    def needed(self) -> list[str]:
        """The columns to read, in their order in a segment: those wanted, and those that rows are chosen by."""
        needed = set(self.columns)
        if self.from_ts is not None or self.to_ts is not None:
            needed.add("ts")
        if self.channels is not None:
            needed.add("channel")
        if self.kinds is not None:
            needed.add("kind")
        if self.protocols is not None:
            needed.add("protocol")
        return [name for name in SCHEMA.names if name in needed]

    def may_hold(self, first_offset: int, end_offset: int, min_ts: int, max_ts: int) -> bool:
        """Whether rows with these offsets and times can be among those wanted."""
        return (
            first_offset < self.to_offset
            and end_offset > self.from_offset
            and (self.from_ts is None or max_ts >= self.from_ts)
            and (self.to_ts is None or min_ts < self.to_ts)
        )

    def choose(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows, apart from offsets, with the requested columns, as one batch."""
        for mask in self._masks(rows):
            rows = rows.filter(mask)
        columns = []
        for field in self.schema:
            column = rows.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _masks(self, rows: pa.RecordBatch) -> list[Array]:
        masks: list[Array] = []
        if self.from_ts is not None or self.to_ts is not None:
            ts = rows.column("ts").cast(pa.int64())
            if self.from_ts is not None:
                masks.append(pc.greater_equal(ts, pa.scalar(self.from_ts)))
            if self.to_ts is not None:
                masks.append(pc.less(ts, pa.scalar(self.to_ts)))
        if self.kinds is not None:
            masks.append(_is_in(rows.column("kind"), self.kinds))
        if self.protocols is not None:
            masks.append(_is_in(rows.column("protocol"), self.protocols))
        if self.channels is not None:
            masks.append(self.channels.match(rows.column("channel")))
        return [_all(masks)] if masks else []


def make_query(
    *,
    columns: Iterable[str] | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
    from_time: datetime | int | None = None,
    to_time: datetime | int | None = None,
    channels: str | Iterable[str] | None = None,
    kinds: str | Iterable[str] | None = None,
    protocols: str | Iterable[str] | None = None,
    state_only: bool = False,
    on_corrupt: str = "raise",
) -> Query:
    """The query that a caller's arguments mean; a ``ValueError`` says what can't be."""
    if on_corrupt not in ON_CORRUPT:
        raise ValueError(f"on_corrupt is one of {', '.join(ON_CORRUPT)}, not {on_corrupt!r}")
    wanted = tuple(SCHEMA.names) if columns is None else _known("column", columns, tuple(SCHEMA.names))
    return Query(
        columns=wanted,
        from_offset=max(0, from_offset or 0),
        to_offset=NO_END if to_offset is None else to_offset,
        from_ts=None if from_time is None else microseconds(from_time),
        to_ts=None if to_time is None else microseconds(to_time),
        channels=None if channels is None else ChannelPatterns(channels),
        kinds=None if kinds is None else _known("kind", kinds, KINDS),
        protocols=None if protocols is None else _known("protocol", protocols, names()),
        state_only=state_only,
        on_corrupt=on_corrupt,
    )


def microseconds(time: datetime | int) -> int:
    """A time as it is stored: microseconds since 1970, which may also be given as they are."""
    if isinstance(time, int):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: use e.g. datetime.now(UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(ts: int) -> datetime:
    """A stored time as others know it."""
    return _EPOCH + timedelta(microseconds=ts)


def _known(what: str, names: str | Iterable[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in allowed:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(allowed)}")
    return given


def _is_in(column: Array, names: tuple[str, ...]) -> Array:
    if not isinstance(column, pa.DictionaryArray):
        return pc.is_in(column, value_set=pa.array(names, pa.utf8()))
    codes = pc.index_in(pa.array(names, pa.utf8()), value_set=column.dictionary).drop_null()
    return pc.is_in(column.indices, value_set=codes.cast(column.indices.type))


def _all(masks: list[Array]) -> Array:
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    return mask
