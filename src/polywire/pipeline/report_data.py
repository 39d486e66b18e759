"""What the report shows, taken out of the lake's tables: a few small lists, whatever the tables' size."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake import Lake

BINS: Final = 96
WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440)
"""Minutes a point in time may stand for; the first that gives few enough is taken."""
TOP: Final = 12

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything on the page. ``times`` are the points in time all charts have; a list is empty where its table is."""

    times: Sequence[datetime]
    minutes: int
    totals: dict[str, float]
    traffic: Rows
    channels: Rows
    latency: Rows
    methods: Rows
    demand: Rows
    subscribers: Rows
    faults: Rows
    raw: Rows
    sessions: Rows
    protocols: Rows


def gather(lake: Lake, spark: SparkSession) -> ReportData:
    """Read the tables. Those that are not there are shown as empty."""
    there = {name: lake.read(name, spark) for name in lake.tables()}
    if "traffic" not in there:
        raise LakeError("traffic", f"nothing of it is in {lake.path} yet: run 'polywire pipeline run --once' first")
    traffic = there["traffic"].cache()
    try:
        span = _all(traffic.agg(sf.min("minute").alias("first"), sf.max("minute").alias("last")))[0]
        first, last = span["first"], span["last"]
        minutes = next((width for width in WIDTHS if (last - first) / timedelta(minutes=width) < BINS), WIDTHS[-1])
        return _gathered(there, traffic, _times(first, last, minutes), minutes)
    finally:
        traffic.unpersist()


def _gathered(there: dict[str, DataFrame], traffic: DataFrame, times: Sequence[datetime], minutes: int) -> ReportData:
    calls, faults, demand, sessions = (there.get(name) for name in ("calls", "faults", "demand", "sessions"))
    by_time = traffic.groupBy(_bin("minute", minutes), "protocol").agg(_sum("messages"), _sum("bytes"))
    by_channel = traffic.groupBy("channel").agg(_sum("messages"), _sum("bytes"))
    totals = {key: float(value or 0) for key, value in _all(traffic.agg(_sum("messages"), _sum("bytes")))[0].items()}
    data = ReportData(
        times=times,
        minutes=minutes,
        totals=totals,
        traffic=_all(by_time),
        channels=_all(by_channel.orderBy(sf.desc("messages")).limit(TOP)),
        latency=[] if calls is None else _all(_calls(calls.groupBy(_bin("requested", minutes)))),
        methods=[]
        if calls is None
        else _all(_calls(calls.groupBy("service", "method")).orderBy(sf.desc("calls")).limit(TOP)),
        demand=[] if demand is None else _all(_waste(demand)),
        subscribers=[] if demand is None else _all(_wanted(demand)),
        faults=[] if faults is None else _all(_why(faults)),
        raw=[] if faults is None else _all(faults.orderBy(sf.desc("ts")).select(*_RAW).limit(TOP)),
        sessions=[] if sessions is None else _all(_at_once(sessions, minutes)),
        protocols=[] if sessions is None else _all(_by_protocol(sessions)),
    )
    totals["calls"] = float(sum(row["calls"] for row in data.latency))
    totals["failed"] = float(sum(row["failed"] for row in data.latency))
    totals["faults"] = float(sum(row["faults"] for row in data.faults))
    totals["sessions"] = float(sum(row["sessions"] for row in data.protocols))
    return data


_RAW: Final = ("ts", "protocol", "client", "rule", "reason", "raw", "size")


def _calls(grouped: Any) -> DataFrame:
    """How long calls of each group took; those that timed out took no time."""
    answered = sf.when(sf.col("outcome") != "timeout", sf.col("latency_ms"))
    made: DataFrame = grouped.agg(
        sf.count("*").alias("calls"),
        sf.count_if(sf.col("outcome") != "ok").alias("failed"),
        sf.count_if(sf.col("outcome") == "timeout").alias("timeouts"),
        *[sf.percentile_approx(answered, share, 1000).alias(f"p{round(share * 100)}") for share in (0.5, 0.95, 0.99)],
    )
    return made


def _waste(demand: DataFrame) -> DataFrame:
    """Topics by what was published to them with nobody listening."""
    published = demand.groupBy("channel").agg(_sum("published"), _sum("unheard"))
    return published.filter("published > 0").orderBy(sf.desc("unheard"), sf.desc("published")).limit(TOP)


def _wanted(demand: DataFrame) -> DataFrame:
    """Patterns by how many want them: at the end, and at most. Not those of hubs and clients themselves, with ``$``."""
    return (
        demand.groupBy("channel")
        .agg(
            sf.max_by("subscribers", "minute").alias("now"),
            sf.max("subscribers").alias("most"),
            _sum("joined"),
            _sum("left"),
        )
        .filter("(joined > 0 or left > 0) and not startswith(channel, '$')")
        .orderBy(sf.desc("most"), sf.desc("joined"))
        .limit(TOP)
    )


def _why(faults: DataFrame) -> DataFrame:
    reason = sf.concat_ws(": ", sf.coalesce("rule", "fault"), "reason")
    return (
        faults.groupBy("protocol", reason.alias("reason")).agg(sf.count("*").alias("faults")).orderBy(sf.desc("faults"))
    )


def _at_once(sessions: DataFrame, minutes: int) -> DataFrame:
    """By how many the sessions open in each stretch of time change, by protocol: each counts where it ended, too."""
    came = sessions.select("protocol", _bin("connected", minutes), sf.lit(1).alias("change"))
    ended = sessions.filter("ended is not null")
    left = ended.select("protocol", _bin("ended", minutes, 1), sf.lit(-1).alias("change"))
    return came.unionByName(left).groupBy("time", "protocol").agg(_sum("change"))


def _by_protocol(sessions: DataFrame) -> DataFrame:
    state = sf.col("state")
    return (
        sessions.groupBy("protocol")
        .agg(
            sf.count("*").alias("sessions"),
            sf.count_if(state == "open").alias("open"),
            sf.count_if(state == "lost").alias("lost"),
            sf.percentile_approx("seconds", 0.5, 1000).alias("seconds"),
            _sum("messages"),
            _sum("bytes"),
        )
        .orderBy("protocol")
    )


def _sum(name: str) -> Column:
    return sf.sum(name).alias(name)


def _bin(name: str, minutes: int, later: int = 0) -> Column:
    """The stretch of time a moment belongs to, or one so many ``later``."""
    width = minutes * 60
    return sf.timestamp_seconds((sf.floor(sf.unix_seconds(name) / width) + later) * width).alias("time")


def _times(first: datetime, last: datetime, minutes: int) -> list[datetime]:
    width = timedelta(minutes=minutes)
    zero = datetime(1970, 1, 1)  # noqa: DTZ001 - all times here are UTC, as Spark collects them
    begin = zero + (first - zero) // width * width
    return [begin + width * index for index in range((last - begin) // width + 1)]


def _all(rows: DataFrame) -> Rows:
    found = []
    for row in rows.toArrow().to_pylist():
        found.append({name: _plain(value) for name, value in row.items()})
    return found


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
