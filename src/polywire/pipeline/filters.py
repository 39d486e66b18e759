"""Filters that Spark hands to the source: which ones it can apply, and what they say about offsets and times."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as ds

from polywire.journal.schema import PLAIN_SCHEMA

_ORDERED: Final = (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)
_MICROSECOND: Final = timedelta(microseconds=1)
_STRUCTURED: Final = ("attachments",)


@dataclass
class Pushed:
    """The filters a source applies itself: ``expression`` for every row, the bounds for what not to read at all."""

    expression: Any = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    applied: list[str] = field(default_factory=list)

    def take(self, filters: Iterable[ds.Filter]) -> list[ds.Filter]:
        """Take what can be applied exactly; what is left is Spark's."""
        left = []
        for found in filters:
            expression = _expression(found)
            if expression is None:
                left.append(found)
                continue
            self.expression = expression if self.expression is None else self.expression & expression
            self.applied.append(str(found))
            self._bound(found)
        return left

    def _bound(self, found: ds.Filter) -> None:
        if not isinstance(found, _ORDERED) or len(found.attribute) != 1:
            return
        name, value = found.attribute[0], found.value
        above = isinstance(found, (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual))
        below = isinstance(found, (ds.EqualTo, ds.LessThan, ds.LessThanOrEqual))
        if name == "offset" and isinstance(value, int):
            low = value + isinstance(found, ds.GreaterThan)
            high = value + (not isinstance(found, ds.LessThan))
            if above:
                self.from_offset = low if self.from_offset is None else max(self.from_offset, low)
            if below:
                self.to_offset = high if self.to_offset is None else min(self.to_offset, high)
        elif name == "ts" and isinstance(value, datetime):
            moment = _utc(value)
            if above:
                self.from_time = moment if self.from_time is None else max(self.from_time, moment)
            if below:
                # The upper end is exclusive.
                end = moment + _MICROSECOND
                self.to_time = end if self.to_time is None else min(self.to_time, end)


def _expression(found: ds.Filter) -> Any:
    """The filter as Arrow applies it, or None where it would not be exactly the same."""
    if isinstance(found, ds.Not):
        inner = _expression(found.child)
        if inner is None:
            return None
        # In SQL null is neither in a list nor not in it.
        return ~inner & pc.field(found.child.attribute[0]).is_valid() if isinstance(found.child, ds.In) else ~inner
    path: tuple[str, ...] = getattr(found, "attribute", ())
    if len(path) != 1 or path[0] not in PLAIN_SCHEMA.names or path[0] in _STRUCTURED:
        return None
    column = pc.field(path[0])
    kind = PLAIN_SCHEMA.field(path[0]).type
    if isinstance(found, ds.IsNull):
        return column.is_null()
    if isinstance(found, ds.IsNotNull):
        return column.is_valid()
    if isinstance(found, ds.In):
        # With a null in the list SQL's answer is never false, which Arrow has no word for.
        values = [_literal(value) for value in found.value]
        return None if None in values else column.isin(pa.array(values, kind))
    value = _literal(getattr(found, "value", None))
    if value is None:
        return None
    scalar = pc.scalar(pa.array([value], kind)[0])
    if isinstance(found, ds.EqualTo):
        return column == scalar
    if isinstance(found, ds.GreaterThan):
        return column > scalar
    if isinstance(found, ds.GreaterThanOrEqual):
        return column >= scalar
    if isinstance(found, ds.LessThan):
        return column < scalar
    if isinstance(found, ds.LessThanOrEqual):
        return column <= scalar
    if isinstance(found, ds.StringStartsWith):
        return pc.starts_with(column, pattern=value)
    if isinstance(found, ds.StringEndsWith):
        return pc.ends_with(column, pattern=value)
    if isinstance(found, ds.StringContains):
        return pc.match_substring(column, pattern=value)
    return None


def _literal(value: Any) -> Any:
    return _utc(value) if isinstance(value, datetime) else value


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
