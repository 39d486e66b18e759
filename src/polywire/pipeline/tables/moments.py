"""Days and minutes of a row's time, counted in UTC whatever the session's time zone is."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

MICROSECONDS: Final = 1_000_000
MINUTE: Final = 60 * MICROSECONDS
DAY: Final = 86_400 * MICROSECONDS


def micros(ts: Column) -> Column:
    """Microseconds since 1970."""
    return sf.unix_micros(ts)


def moment(at: Column) -> Column:
    """The way back: a timestamp."""
    return sf.timestamp_micros(at)


def day_of(ts: Column) -> Column:
    """The day a row belongs to."""
    return sf.date_from_unix_date(sf.floor(micros(ts) / sf.lit(DAY)).cast("int"))


def minute_of(ts: Column) -> Column:
    """The beginning of the minute."""
    at = micros(ts)
    return moment(at - sf.pmod(at, sf.lit(MINUTE)))
