"""The report: one HTML page with everything in it, charts of the lake's tables. It loads nothing from elsewhere.

Its data is a few small lists computed from the tables, regardless of their size. The marks of a chart are SVG that is
stretched to the width there is; its labels are text beside it, which keeps its size on a phone. Colours come from the
page's style sheet, and each mark explains itself in its title.
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
HEIGHT: Final = 220
COLOURS: Final = 8
"""Colours there are; further series begin again."""

LINES: Final = 5
LABELS: Final = 8
"""Lines and times of a chart, at most."""

NARROW_LABELS: Final = 3
"""Times of a chart on a phone, about."""

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
    scale = Scale(max(totals, default=0))
    step = WIDTH / max(len(times), 1)
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
                f'<rect class="s{one.colour % COLOURS}" x="{index * step + step * 0.06:.1f}" y="{top:.1f}" '
                f'width="{max(step * 0.88, 0.8):.1f}" height="{max(bottom - top, 0.4):.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )
    return legend([(one.name, one.colour) for one in series]) + _framed(scale, times, "".join(marks), unit)


def lines(times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """Each of the series as a line, the first one the thinnest and above the others, so that equal ones are seen.

    A line is broken where there is no value.
    """
    values = [value for one in series for value in one.values if value is not None]
    scale = Scale(max(values, default=0), min((value for value in values if value > 0), default=0))
    step = WIDTH / max(len(times), 1)
    marks = []
    for rank, one in reversed(list(enumerate(series))):
        look = f'class="l{one.colour % COLOURS} w{min(rank, WIDEST_LINE)}"'
        run: list[str] = []
        for index, value in enumerate([*one.values, None]):
            if value is None:
                if len(run) > 1:
                    marks.append(f'<polyline {look} points="{" ".join(run)}"/>')
                run = []
                continue
            x, y = (index + 0.5) * step, scale.y(value)
            run.append(f"{x:.1f},{y:.1f}")
            told = f"{_clock(times[index], times)} {one.name}: {compact(value)} {unit}"
            marks.append(f'<path {look} d="M{x:.1f} {y:.1f}h0"><title>{escape(told)}</title></path>')
    return legend([(one.name, one.colour) for one in series]) + _framed(scale, times, "".join(marks), unit)


WIDEST_LINE: Final = 2
"""Widths of lines there are, from 0."""


def bars(rows: Sequence[Bar], parts: Sequence[str], unit: str) -> str:
    """For each name a bar from the left, made of its parts."""
    most = max((sum(row.values) for row in rows), default=0) or 1
    shown = []
    for row in rows:
        marks = "".join(
            f'<i class="k{number % COLOURS}" style="width:{value / most:.2%}" '
            f'title="{escape(f"{row.name}: {compact(value)} {unit} {parts[number]}".strip())}"></i>'
            for number, value in enumerate(row.values)
        )
        note = row.note or compact(sum(row.values))
        shown.append(
            f'<div><span class="name" title="{escape(row.name)}">{escape(shortened(row.name, 60))}</span>'
            f'<span class="track">{marks}</span><span class="value">{escape(note)}</span></div>'
        )
    known = legend([(name, number) for number, name in enumerate(parts)]) if len(parts) > 1 else ""
    return f'{known}<div class="bars">{"".join(shown)}</div>'


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


class Scale:
    """Values to heights, with a top that is a round number.

    ``least`` is the smallest value above zero, of lines: where they are far apart, each step is ten times the last.
    """

    def __init__(self, most: float, least: float = 0) -> None:
        self._power = 0 if least <= 0 or most / least < FAR_APART else floor(log10(least))
        self._wide = least > 0 and most / least >= FAR_APART
        power = 10 ** floor(log10(most)) if most > 0 else 1
        step = next((power * part for part in (0.25, 0.5, 1, 2) if most / (power * part) <= LINES), power * 2)
        top = max(ceil(most / step), 1)
        if self._wide:
            self.ticks = [10.0**one for one in range(self._power, ceil(log10(most)) + 1)]
        else:
            self.ticks = [step * index for index in range(top + 1)]

    def share(self, value: float) -> float:
        """How high up a value is, from 0 to 1."""
        if self._wide:
            low, high = log10(self.ticks[0]), log10(self.ticks[-1])
            return max(log10(value) - low, 0) / (high - low) if value > 0 else 0.0
        return value / self.ticks[-1]

    def y(self, value: float) -> float:
        """Its height in a chart, from the top."""
        return (1 - self.share(value)) * HEIGHT


FAR_APART: Final = 100
"""How many times the smallest value the largest one is where a line near zero would show nothing."""


def _framed(scale: Scale, times: Sequence[datetime], marks: str, unit: str) -> str:
    """Marks between an axis of values and one of times."""
    rules = "".join(
        f'<hr style="bottom:{scale.share(value):.1%}"/><b style="bottom:{scale.share(value):.1%}">{compact(value)}</b>'
        for value in scale.ticks
    )
    return (
        f'<div class="chart" role="img" aria-label="{escape(unit)} over time"><div>{rules}'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{marks}</svg></div>{_labels(times)}</div>'
    )


def _labels(times: Sequence[datetime]) -> str:
    """Times at round places; those of class ``more`` are for screens that are wide enough."""
    every = _between_labels(times)
    found = [
        (index, time)
        for index, time in enumerate(times)
        if (time.hour * 3600 + time.minute * 60 + time.second) % every == 0
    ] or list(enumerate(times))[:1]
    keep = ceil(len(found) / NARROW_LABELS)
    look = {True: "", False: ' class="more"'}
    return "".join(
        f'<span{look[place % keep == 0]} style="left:{(index + 0.5) / len(times):.1%}">{_clock(time, times)}</span>'
        for place, (index, time) in enumerate(found)
    )


def _between_labels(times: Sequence[datetime]) -> int:
    """Seconds between two times that are written, so that there are few, at round times."""
    seconds = (times[-1] - times[0]).total_seconds() if times else 0
    return next((step for step in STEPS if seconds / step <= LABELS), DAY)


def _clock(time: datetime, times: Sequence[datetime]) -> str:
    """The time: with the day where the chart spans several, with seconds where it is short."""
    if times[0].date() != times[-1].date():
        return time.strftime("%d %b %H:%M")
    exact = any(one.second for one in times)
    return time.strftime("%H:%M:%S" if exact else "%H:%M")


BINS: Final = 96
MINUTE: Final = 60
DAY: Final = 86_400
STEPS: Final = (1, 2, 5, 10, 15, 30, MINUTE, *(MINUTE * count for count in (2, 5, 10, 15, 30, 60, 120, 360, 720)), DAY)
"""Possible widths of a point in seconds; the first one that gives few enough points is used."""
MOST_ROWS: Final = 12

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything on the page. ``times`` are the points in time all charts have, so many ``seconds`` apart.

    A list is empty where its table is.
    """

    tables: Sequence[str]
    times: Sequence[datetime]
    seconds: int
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
    first, last, exact = _span(lake)
    seconds = next((step for step in STEPS if (last - first) / timedelta(seconds=step) < BINS), DAY)
    seconds = seconds if exact else max(seconds, MINUTE)
    questions = _found(lake.names) | ({"traffic": MOMENTS} if seconds < MINUTE else {})
    (totals,) = _all(lake, "SELECT sum(messages) AS messages, sum(bytes) AS bytes FROM traffic")
    found = {name: _all(lake, sql.replace("$width", str(seconds))) for name, sql in questions.items()}
    data = ReportData(
        tables=tuple(lake.names),
        times=_times(first, last, seconds),
        seconds=seconds,
        totals={name: float(value or 0) for name, value in totals.items()},
        own=[_own(lake, name) for name in lake.names if name not in BUILT_IN],
        **{name: found.get(name, []) for name in QUESTIONS},
    )
    data.totals["calls"] = float(sum(row["calls"] for row in data.latency))
    data.totals["failed"] = float(sum(row["failed"] for row in data.latency))
    data.totals["faults"] = float(sum(row["faults"] for row in data.faults))
    data.totals["sessions"] = float(sum(row["sessions"] for row in data.protocols))
    return data


def _span(lake: Questions) -> tuple[datetime, datetime, bool]:
    """When the first and the last message came, and whether that is exact: of a short recording, by its messages."""
    (span,) = _all(lake, "SELECT min(minute) AS first, max(minute) AS last FROM traffic")
    if "messages" in lake.names and span["last"] - span["first"] < timedelta(minutes=BINS):
        (exact,) = _all(lake, "SELECT min(ts) AS first, max(ts) AS last FROM messages")
        if exact["first"] is not None:
            return exact["first"], exact["last"], True
    return span["first"], span["last"], False


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


MOMENTS: Final = f"SELECT {_bin('ts')} AS time, protocol, count(*) AS messages FROM messages GROUP BY ALL"
"""The traffic of a recording that is too short for minutes."""


def _found(names: Sequence[str]) -> dict[str, str]:
    """The questions whose tables are there."""
    return {name: sql for name, (table, sql) in QUESTIONS.items() if table in names}


def _own(lake: Questions, name: str) -> dict[str, Any]:
    (found,) = _all(lake, f'SELECT count(*) AS rows FROM "{name}"')
    columns = lake.ask(f'SELECT * FROM "{name}" LIMIT 0').columns
    return {"table": name, "rows": found["rows"], "columns": ", ".join(columns)}


def _times(first: datetime, last: datetime, seconds: int) -> list[datetime]:
    width = timedelta(seconds=seconds)
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
    last = data.times[-1] + timedelta(seconds=data.seconds)
    exact = "%Y-%m-%d %H:%M:%S" if data.seconds < MINUTE else "%Y-%m-%d %H:%M"
    span = f"{data.times[0]:{exact}} to {last:{exact}} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Polywire report</title><style>{style}</style></head><body><header><h1>Polywire report</h1>"
        f"<p>{span}, {_each(data.seconds)}. Made {_time(now)} UTC.</p></header>"
        f"{_tiles(data)}<main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(data: ReportData) -> str:
    """The totals at the top of the page."""
    totals = data.totals
    failed = totals["failed"] / totals["calls"] if totals["calls"] else 0.0
    figures = [
        ("traffic", "messages", compact(totals["messages"])),
        ("traffic", "bytes", byte_count(totals["bytes"])),
        ("sessions", "sessions", compact(totals["sessions"])),
        ("calls", "calls", compact(totals["calls"])),
        ("calls", "calls that failed", f"{failed:.1%}"),
        ("faults", "faults", compact(totals["faults"])),
    ]
    shown = [(name, value) for table, name, value in figures if table in data.tables]
    tiles = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in shown)
    return f'<section class="tiles">{tiles}</section>'


NONE: Final = '<p class="none">none: messages of the hub itself, which no client sent.</p>'


def _traffic(data: ReportData) -> str:
    protocols = sorted({row["protocol"] for row in data.traffic}, key=_colour)
    found = {(row["time"], row["protocol"]): row["messages"] for row in data.traffic}
    series = [Series(name, [found.get((time, name)) for time in data.times], _colour(name)) for name in protocols]
    channels = [
        Bar(row["channel"] or "(none)", [row["messages"]], f"{compact(row['messages'])}, {byte_count(row['bytes'])}")
        for row in data.channels
    ]
    chart = stacked(data.times, series, "messages") if series else ""
    return _section(
        "Traffic",
        ("Messages by protocol", chart + (NONE if "none" in protocols else "")),
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
            "size": ("of", byte_count),
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
            "bytes": ("bytes", byte_count),
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


NOTHING: Final = '<p class="none">Nothing yet.</p>'


def _section(title: str, *blocks: tuple[str, str]) -> str:
    inner = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{content or NOTHING}</figure>" for name, content in blocks
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


def byte_count(value: float) -> str:
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


def _each(seconds: int) -> str:
    """How long a bar is."""
    for unit, name in ((3600, "h"), (MINUTE, "min")):
        if seconds >= unit:
            return f"each bar {seconds // unit} {name}"
    return f"each bar {seconds} s"
