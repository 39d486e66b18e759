"""Expressions on the journal's columns: which rows are what, and the days and minutes of their times, always in UTC."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

MESSAGE_KINDS: Final = ("publish", "enqueue", "request", "reply", "error")
"""Rows that are a message: to a topic, into a queue, or a part of a call."""

TICK: Final = "tick"
"""Never stored: with it the source says that a node has come to this time though it wrote nothing."""

NO_PROTOCOL: Final = "none"
"""In the place of a protocol where the hub itself spoke: directories are named after protocols, and need a name."""


def is_message() -> Column:
    """Whether a row is a message."""
    return sf.col("kind").isin(*MESSAGE_KINDS)


def has_flag(flag: int) -> Column:
    """Whether a bit of the flags is set."""
    return sf.col("flags").bitwiseAND(flag) != 0


def protocol() -> Column:
    """The row's protocol."""
    return sf.coalesce(sf.col("protocol"), sf.lit(NO_PROTOCOL))


def is_start() -> Column:
    """Whether the row marks a start of the hub: clients that were connected before are not any more."""
    return (sf.col("kind") == "session") & sf.col("client").isNull() & sf.col("headers").contains('"start"')


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
