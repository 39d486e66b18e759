"""The report: one HTML page with everything in it, charts of the lake's tables. It loads nothing from anywhere."""

from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from polywire.pipeline.charts import COLOURS, Bar, Series, bars, compact, lines, shortened, stacked
from polywire.pipeline.lake import Lake
from polywire.pipeline.report_data import ReportData, Rows, gather
from polywire.registry import built_in_names

STYLE: Final = "report.css"


def write_report(spark: SparkSession, lake: Lake | str | Path, out: str | Path) -> None:
    """Write the page."""
    data = gather(lake if isinstance(lake, Lake) else Lake(lake), spark)
    Path(out).write_text(page(data, datetime.now(UTC)), encoding="utf-8")


def page(data: ReportData, now: datetime) -> str:
    """The page of some data; ``now`` is when it says it was made."""
    style = files("polywire.pipeline").joinpath(STYLE).read_text(encoding="utf-8")
    parts = [_traffic(data), _latency(data), _demand(data), _faults(data), _sessions(data)]
    span = f"{_time(data.times[0])} to {_time(data.times[-1])} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Polywire report</title><style>{style}</style></head><body><header><h1>Polywire report</h1>"
        f"<p>{span}, {_each(data.minutes)}. Made {_time(now)} UTC.</p></header>"
        f"{_tiles(data)}<main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(data: ReportData) -> str:
    """The figures on top."""
    totals = data.totals
    failed = totals["failed"] / totals["calls"] if totals["calls"] else 0.0
    figures = [
        ("messages", compact(totals["messages"])),
        ("bytes", octets(totals["bytes"])),
        ("sessions", compact(totals["sessions"])),
        ("calls", compact(totals["calls"])),
        ("calls that failed", f"{failed:.1%}"),
        ("faults", compact(totals["faults"])),
    ]
    tiles = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures)
    return f'<section class="tiles">{tiles}</section>'


def _traffic(data: ReportData) -> str:
    protocols = sorted({row["protocol"] for row in data.traffic}, key=_colour)
    found = {(row["time"], row["protocol"]): row["messages"] for row in data.traffic}
    series = [Series(name, [found.get((time, name)) for time in data.times], _colour(name)) for name in protocols]
    channels = [
        Bar(row["channel"] or "(none)", [row["messages"]], f"{compact(row['messages'])}, {octets(row['bytes'])}")
        for row in data.channels
    ]
    return _section(
        "Traffic",
        ("Messages by protocol", stacked(data.times, series, "messages") if series else ""),
        ("Channels with the most messages", bars(channels, [""], "messages") if channels else ""),
    )


def _latency(data: ReportData) -> str:
    found = {row["time"]: row for row in data.latency}
    series = [
        Series(name, [found[time][name] if time in found else None for time in data.times], number)
        for number, name in enumerate(("p50", "p95", "p99"))
    ]
    table = _table(
        data.methods,
        {
            "service": ("service", str),
            "method": ("method", str),
            "calls": ("calls", compact),
            "failed": ("failed", compact),
            "timeouts": ("timeouts", compact),
            "p50": ("p50 ms", _ms),
            "p95": ("p95 ms", _ms),
            "p99": ("p99 ms", _ms),
        },
    )
    chart = lines(data.times, series, "ms") if data.latency else ""
    return _section("Calls", ("Time to answer, ms", chart), ("Methods with the most calls", table))


def _demand(data: ReportData) -> str:
    topics = [
        Bar(
            row["channel"],
            [row["published"] - row["unheard"], row["unheard"]],
            f"{compact(row['unheard'])} of {compact(row['published'])} unheard",
        )
        for row in data.demand
    ]
    table = _table(
        data.subscribers,
        {
            "channel": ("pattern", lambda text: shortened(text, 80)),
            "now": ("subscribers", compact),
            "most": ("most at a minute's end", compact),
            "joined": ("joined", compact),
            "left": ("left", compact),
        },
    )
    chart = bars(topics, ["heard by somebody", "heard by nobody"], "messages") if topics else ""
    return _section("Demand and waste", ("Topics by messages nobody heard", chart), ("Patterns by subscribers", table))


def _faults(data: ReportData) -> str:
    reasons = [Bar(f"{row['protocol']}  {row['reason']}", [row["faults"]]) for row in data.faults[:12]]
    table = _table(
        data.raw,
        {
            "ts": ("time", _time),
            "protocol": ("protocol", str),
            "client": ("client", lambda name: name or ""),
            "reason": ("reason", lambda text: text or ""),
            "raw": ("octets", _hex),
            "size": ("of", octets),
        },
    )
    chart = bars(reasons, [""], "faults") if reasons else ""
    return _section("Faults", ("What was discarded, and why", chart), ("The latest", table))


def _sessions(data: ReportData) -> str:
    protocols = sorted((row["protocol"] for row in data.protocols), key=_colour)
    series = [Series(name, _running(data, name), _colour(name)) for name in protocols]
    table = _table(
        data.protocols,
        {
            "protocol": ("protocol", str),
            "sessions": ("sessions", compact),
            "open": ("open", compact),
            "lost": ("lost", compact),
            "seconds": ("median s", lambda value: "" if value is None else compact(value)),
            "messages": ("messages", compact),
            "bytes": ("bytes", octets),
        },
    )
    chart = stacked(data.times, series, "sessions") if series else ""
    return _section("Sessions", ("Sessions that were open, by protocol", chart), ("By protocol", table))


def _colour(protocol: str) -> int:
    """A protocol has the same colour in all charts."""
    known = built_in_names()
    return known.index(protocol) if protocol in known else COLOURS - 1


def _running(data: ReportData, protocol: str) -> list[float | None]:
    """How many sessions of a protocol were open in each stretch of time."""
    changes: dict[Any, float] = {}
    before = 0.0
    for row in data.sessions:
        if row["protocol"] == protocol:
            changes[row["time"]] = changes.get(row["time"], 0) + row["change"]
            if row["time"] < data.times[0]:
                before += row["change"]
    found: list[float | None] = []
    for time in data.times:
        before += changes.get(time, 0)
        found.append(before)
    return found


def _section(title: str, *blocks: tuple[str, str]) -> str:
    inner = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{content or '<p class=none>Nothing yet.</p>'}</figure>"
        for name, content in blocks
    )
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _table(rows: Rows, columns: dict[str, tuple[str, Callable[[Any], str]]]) -> str:
    if not rows:
        return ""
    numbers = {name for name in columns if isinstance(rows[0][name], int | float)}
    head = "".join(f"<th{_right(name, numbers)}>{escape(title)}</th>" for name, (title, _) in columns.items())
    body = "".join(
        "<tr>"
        + "".join(f"<td{_right(name, numbers)}>{escape(form(row[name]))}</td>" for name, (_, form) in columns.items())
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _right(name: str, numbers: set[str]) -> str:
    return ' class="n"' if name in numbers else ""


def octets(value: float) -> str:
    """A size as people read it."""
    for limit, sign in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{int(value)} B"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _hex(raw: bytes) -> str:
    return raw[:16].hex(" ") + (" …" if len(raw) > 16 else "")


def _time(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _each(minutes: int) -> str:
    if minutes < 60:
        return f"each bar {minutes} min"
    return f"each bar {minutes // 60} h"
