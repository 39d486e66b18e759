"""The report: one HTML page with everything in it, charts of the lake's tables. It loads nothing from elsewhere.

Its data is a few small lists computed from the tables, regardless of their size. Charts are SVG, drawn in a box
of fixed width that the browser scales; colours come from the page's style sheet, and each mark explains itself in its
title.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from importlib.resources import files
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, Final

from polywire.pipeline.errors import LakeError
from polywire.pipeline.files import Storage
from polywire.pipeline.query import Questions, tables_in
from polywire.registry import built_in_names

WIDTH: Final = 960
HEIGHT: Final = 260
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 28
BAR: Final = 26
COLOURS: Final = 8
"""Colours there are; further series begin again."""

LINES: Final = 5
LABELS: Final = 10
"""Lines and times of a chart, at most."""

BYTES_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class Series:
    """One name with a value for each point in time; None where there is none. ``colour`` is a number."""

    name: str
    values: Sequence[float | None]
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart by name. ``values`` are stacked in the order of the chart's parts."""

    name: str
    values: Sequence[float]
    note: str = ""


def stacked(times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """For each point in time a bar, made of the series one upon the other."""
    totals = [sum(one.values[index] or 0 for one in series) for index in range(len(times))]
    scale = _Scale(max(totals, default=0))
    step = (WIDTH - LEFT - RIGHT) / max(len(times), 1)
    marks = []
    for index, time in enumerate(times):
        base = 0.0
        for one in series:
            value = one.values[index] or 0
            if not value:
                continue
            top, bottom = scale.y(base + value), scale.y(base)
            base += value
            told = f"{_clock(time, times)} {one.name}: {compact(value)} {unit}"
            marks.append(
                f'<rect class="s{one.colour % COLOURS}" x="{LEFT + index * step + step * 0.06:.1f}" y="{top:.1f}" '
                f'width="{max(step * 0.88, 0.8):.1f}" height="{max(bottom - top, 0.4):.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )
    return legend([(one.name, one.colour) for one in series]) + _framed(scale, times, "".join(marks), unit)


def lines(times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """Each of the series as a line; it is broken where there is no value."""
    scale = _Scale(max((value for one in series for value in one.values if value is not None), default=0))
    step = (WIDTH - LEFT - RIGHT) / max(len(times), 1)
    marks = []
    for one in series:
        colour = one.colour % COLOURS
        run: list[str] = []
        for index, value in enumerate([*one.values, None]):
            if value is None:
                if len(run) > 1:
                    marks.append(f'<polyline class="l{colour}" points="{" ".join(run)}"/>')
                run = []
                continue
            x, y = LEFT + (index + 0.5) * step, scale.y(value)
            run.append(f"{x:.1f},{y:.1f}")
            told = f"{_clock(times[index], times)} {one.name}: {compact(value)} {unit}"
            marks.append(
                f'<circle class="s{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"><title>{escape(told)}</title></circle>'
            )
    return legend([(one.name, one.colour) for one in series]) + _framed(scale, times, "".join(marks), unit)


def bars(rows: Sequence[Bar], parts: Sequence[str], unit: str) -> str:
    """For each name a bar from the left, made of its parts."""
    most = max((sum(row.values) for row in rows), default=0) or 1
    names, room = 300, WIDTH - 300 - 150
    marks = []
    for index, row in enumerate(rows):
        y = index * BAR
        marks.append(
            f'<text class="name" x="{names - 10}" y="{y + 17}" text-anchor="end">{escape(shortened(row.name, 38))}'
            f"<title>{escape(row.name)}</title></text>"
        )
        x = float(names)
        for number, value in enumerate(row.values):
            width = value / most * room
            told = f"{row.name}: {compact(value)} {unit} {parts[number]}".strip()
            marks.append(
                f'<rect class="s{number % COLOURS}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{BAR - 8}">'
                f"<title>{escape(told)}</title></rect>"
            )
            x += width
        note = row.note or compact(sum(row.values))
        marks.append(f'<text class="value" x="{x + 8:.1f}" y="{y + 17}">{escape(note)}</text>')
    height = max(len(rows), 1) * BAR
    known = legend([(name, number) for number, name in enumerate(parts)]) if len(parts) > 1 else ""
    return f'{known}<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(marks)}</svg>'


def legend(names: Sequence[tuple[str, int]]) -> str:
    """A legend of names and colours."""
    keys = "".join(f'<span><i class="k{colour % COLOURS}"></i>{escape(name)}</span>' for name, colour in names)
    return f'<p class="legend">{keys}</p>'


def compact(value: float) -> str:
    """A number as people read it: 950, 12.3 k, 4 M."""
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{_three(value / (1e3 if sign == 'k' else limit))} {sign}"
    return _three(value) if value != int(value) else f"{int(value)}"


def shortened(text: str, most: int) -> str:
    """The text, without its middle where it is too long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


class _Scale:
    """Values to heights, with a top that is a round number."""

    def __init__(self, most: float) -> None:
        power = 10 ** floor(log10(most)) if most > 0 else 1
        self.step = next((power * part for part in (0.25, 0.5, 1, 2) if most / (power * part) <= LINES), power * 2)
        self.top = max(ceil(most / self.step), 1) * self.step

    def y(self, value: float) -> float:
        return TOP + (1 - value / self.top) * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> list[float]:
        return [self.step * index for index in range(round(self.top / self.step) + 1)]


def _framed(scale: _Scale, times: Sequence[datetime], marks: str, unit: str) -> str:
    """Marks between an axis of values and one of times."""
    lines_ = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale.y(value):.1f}" y2="{scale.y(value):.1f}"/>'
        f'<text class="axis" x="{LEFT - 8}" y="{scale.y(value) + 4:.1f}" text-anchor="end">{compact(value)}</text>'
        for value in scale.ticks()
    ]
    step = (WIDTH - LEFT - RIGHT) / max(len(times), 1)
    every = _between_labels(times)
    labels = [
        f'<text class="axis" x="{LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{_clock(time, times)}</text>"
        for index, time in enumerate(times)
        if (time.hour * 60 + time.minute) % every == 0
    ]
    name = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(unit)} over time">'
    return f"{name}{''.join(lines_)}{marks}{''.join(labels)}</svg>"


def _between_labels(times: Sequence[datetime]) -> int:
    """Minutes between two times that are written, so that there are ten or fewer, at round times."""
    minutes = (times[-1] - times[0]).total_seconds() / 60 if times else 0
    return next((step for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720) if minutes / step <= LABELS), 1440)


def _clock(time: datetime, times: Sequence[datetime]) -> str:
    """The time, with the day where the chart spans several."""
    several = times[0].date() != times[-1].date()
    return time.strftime("%d %b %H:%M" if several else "%H:%M")


BINS: Final = 96
WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440)
"""Possible widths of a point in minutes; the first one that gives few enough points is used."""
MOST_ROWS: Final = 12

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything on the page. ``times`` are the points in time all charts have; a list is empty where its table is."""

    tables: Sequence[str]
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
    own: Rows


def gather(lake: str | Path | Storage, options: Mapping[str, str] | None = None) -> ReportData:
    """Read the tables. Those that are not there are left out of the page."""
    storage = Storage.parse(lake, options)
    if "traffic" not in tables_in(storage):
        raise LakeError("traffic", f"nothing of it is in {storage} yet: run 'polywire pipeline run --once' first")
    questions = Questions(storage)
    try:
        return _gathered(questions)
    finally:
        questions.close()


def _gathered(lake: Questions) -> ReportData:
    (span,) = _all(lake, "SELECT min(minute) AS first, max(minute) AS last FROM traffic")
    first, last = span["first"], span["last"]
    minutes = next((width for width in WIDTHS if (last - first) / timedelta(minutes=width) < BINS), WIDTHS[-1])
    (totals,) = _all(lake, "SELECT sum(messages) AS messages, sum(bytes) AS bytes FROM traffic")
    found = {name: _all(lake, sql.replace("$width", str(minutes * 60))) for name, sql in _found(lake.names).items()}
    data = ReportData(
        tables=tuple(lake.names),
        times=_times(first, last, minutes),
        minutes=minutes,
        totals={name: float(value or 0) for name, value in totals.items()},
        own=[_own(lake, name) for name in lake.names if name not in BUILT_IN],
        **{name: found.get(name, []) for name in QUESTIONS},
    )
    data.totals["calls"] = float(sum(row["calls"] for row in data.latency))
    data.totals["failed"] = float(sum(row["failed"] for row in data.latency))
    data.totals["faults"] = float(sum(row["faults"] for row in data.faults))
    data.totals["sessions"] = float(sum(row["sessions"] for row in data.protocols))
    return data


BUILT_IN: Final = ("messages", "calls", "sessions", "faults", "traffic", "latency", "demand")

# How long calls took: those that timed out took no time.
_CALLS: Final = (
    "count(*) AS calls, count(*) FILTER (outcome <> 'ok') AS failed, "
    "count(*) FILTER (outcome = 'timeout') AS timeouts, "
    + ", ".join(
        f"quantile_disc(latency_ms, {share}) FILTER (outcome <> 'timeout') AS p{round(share * 100)}"
        for share in (0.5, 0.95, 0.99)
    )
)


def _bin(name: str, later: int = 0) -> str:
    """The stretch of time a moment belongs to, or one so many ``later``."""
    return f"to_timestamp((floor(epoch({name}) / $width) + {later}) * $width)"


QUESTIONS: Final = {
    "traffic": (
        "traffic",
        f"SELECT {_bin('minute')} AS time, protocol, sum(messages)::BIGINT AS messages FROM traffic GROUP BY ALL",
    ),
    "channels": (
        "traffic",
        "SELECT channel, sum(messages)::BIGINT AS messages, sum(bytes)::BIGINT AS bytes FROM traffic GROUP BY channel "
        f"ORDER BY messages DESC, channel LIMIT {MOST_ROWS}",
    ),
    "latency": ("calls", f"SELECT {_bin('requested')} AS time, {_CALLS} FROM calls GROUP BY time"),
    "methods": (
        "calls",
        f"SELECT service, method, {_CALLS} FROM calls GROUP BY service, method ORDER BY calls DESC LIMIT {MOST_ROWS}",
    ),
    # Topics by messages published without subscribers.
    "demand": (
        "demand",
        "SELECT channel, sum(published)::BIGINT AS published, sum(unheard)::BIGINT AS unheard FROM demand "
        f"GROUP BY channel HAVING published > 0 ORDER BY unheard DESC, published DESC LIMIT {MOST_ROWS}",
    ),
    # Patterns by how many want them: at the end, and at most. Not those of hubs and clients themselves, with $.
    "subscribers": (
        "demand",
        "SELECT channel, arg_max(subscribers, minute) AS now, max(subscribers) AS most, sum(joined)::BIGINT AS joined, "
        'sum("left")::BIGINT AS "left" FROM demand GROUP BY channel '
        "HAVING (sum(joined) > 0 OR sum(\"left\") > 0) AND NOT starts_with(channel, '$') "
        f"ORDER BY most DESC, sum(joined) DESC LIMIT {MOST_ROWS}",
    ),
    "faults": (
        "faults",
        "SELECT protocol, concat_ws(': ', coalesce(rule, fault), reason) AS reason, count(*) AS faults FROM faults "
        "GROUP BY ALL ORDER BY faults DESC",
    ),
    "raw": (
        "faults",
        f"SELECT ts, protocol, client, rule, reason, raw, size FROM faults ORDER BY ts DESC LIMIT {MOST_ROWS}",
    ),
    # By how many the sessions open in each stretch of time change, by protocol: each counts where it ended, too.
    "sessions": (
        "sessions",
        f"SELECT time, protocol, sum(change)::BIGINT AS change FROM (SELECT protocol, {_bin('connected')} AS time, "
        f"1 AS change FROM sessions UNION ALL SELECT protocol, {_bin('ended', 1)}, -1 FROM sessions "
        "WHERE ended IS NOT NULL) GROUP BY time, protocol",
    ),
    "protocols": (
        "sessions",
        "SELECT protocol, count(*) AS sessions, count(*) FILTER (state = 'open') AS open, "
        "count(*) FILTER (state = 'lost') AS lost, quantile_disc(seconds, 0.5) AS seconds, "
        "sum(messages)::BIGINT AS messages, sum(bytes)::BIGINT AS bytes FROM sessions GROUP BY protocol "
        "ORDER BY protocol",
    ),
}
"""What the page shows: the table, and the question."""


def _found(names: Sequence[str]) -> dict[str, str]:
    """The questions whose tables are there."""
    return {name: sql for name, (table, sql) in QUESTIONS.items() if table in names}


def _own(lake: Questions, name: str) -> dict[str, Any]:
    (found,) = _all(lake, f'SELECT count(*) AS rows FROM "{name}"')
    columns = lake.ask(f'SELECT * FROM "{name}" LIMIT 0').columns
    return {"table": name, "rows": found["rows"], "columns": ", ".join(columns)}


def _times(first: datetime, last: datetime, minutes: int) -> list[datetime]:
    width = timedelta(minutes=minutes)
    zero = datetime(1970, 1, 1)  # noqa: DTZ001 - all times here are UTC
    begin = zero + (first - zero) // width * width
    return [begin + width * index for index in range((last - begin) // width + 1)]


def _all(lake: Questions, sql: str) -> Rows:
    return [{name: _plain(value) for name, value in row.items()} for row in lake.all(sql)]


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


STYLE: Final = "report.css"


def write_report(lake: str | Path | Storage, out: str | Path, options: Mapping[str, str] | None = None) -> None:
    """Write the page."""
    Path(out).write_text(page(gather(lake, options), datetime.now(UTC)), encoding="utf-8")


def page(data: ReportData, now: datetime) -> str:
    """The page of some data; ``now`` is when it says it was made."""
    style = files("polywire.pipeline").joinpath(STYLE).read_text(encoding="utf-8")
    sections = {"calls": _latency, "demand": _demand, "faults": _faults, "sessions": _sessions}
    parts = [_traffic(data), *(section(data) for name, section in sections.items() if name in data.tables)]
    if data.own:
        parts.append(_own_tables(data))
    span = f"{_time(data.times[0])} to {_time(data.times[-1])} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Polywire report</title><style>{style}</style></head><body><header><h1>Polywire report</h1>"
        f"<p>{span}, {_each(data.minutes)}. Made {_time(now)} UTC.</p></header>"
        f"{_tiles(data)}<main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(data: ReportData) -> str:
    """The totals at the top of the page."""
    totals = data.totals
    failed = totals["failed"] / totals["calls"] if totals["calls"] else 0.0
    figures = [
        ("traffic", "messages", compact(totals["messages"])),
        ("traffic", "bytes", octets(totals["bytes"])),
        ("sessions", "sessions", compact(totals["sessions"])),
        ("calls", "calls", compact(totals["calls"])),
        ("calls", "calls that failed", f"{failed:.1%}"),
        ("faults", "faults", compact(totals["faults"])),
    ]
    shown = [(name, value) for table, name, value in figures if table in data.tables]
    tiles = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in shown)
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
    chart = bars(topics, ["with subscribers", "without subscribers"], "messages") if topics else ""
    return _section("Demand", ("Topics by messages without subscribers", chart), ("Patterns by subscribers", table))


def _faults(data: ReportData) -> str:
    reasons = [Bar(f"{row['protocol']}  {row['reason']}", [row["faults"]]) for row in data.faults[:12]]
    table = _table(
        data.raw,
        {
            "ts": ("time", _time),
            "protocol": ("protocol", str),
            "client": ("client", lambda name: name or ""),
            "reason": ("reason", lambda text: text or ""),
            "raw": ("bytes", _hex),
            "size": ("of", octets),
        },
    )
    chart = bars(reasons, [""], "faults") if reasons else ""
    return _section("Faults", ("Discarded messages by reason", chart), ("The latest", table))


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


def _own_tables(data: ReportData) -> str:
    table = _table(
        data.own,
        {
            "table": ("table", str),
            "rows": ("rows", compact),
            "columns": ("columns", lambda text: shortened(text, 120)),
        },
    )
    return _section("Your own tables", ("What is in them", table))


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
            return f"{_three(value / limit)} {sign}"
    return f"{int(value)} B"


def _three(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "" if value is None else _three(value)


def _hex(raw: bytes) -> str:
    return raw[:BYTES_SHOWN].hex(" ") + (" …" if len(raw) > BYTES_SHOWN else "")


def _time(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _each(minutes: int) -> str:
    if minutes < 60:
        return f"each bar {minutes} min"
    return f"each bar {minutes // 60} h"
