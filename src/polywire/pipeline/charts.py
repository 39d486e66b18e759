"""Charts as SVG: bars over time, lines over time, bars by name. Colours come from the page's style sheet.

Everything is drawn in a box of fixed width that the browser scales. What a mark stands for is in its title, which
browsers show where the pointer rests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 260
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 28
BAR: Final = 26
COLOURS: Final = 8
"""Colours there are; further series begin anew."""


@dataclass(frozen=True, slots=True)
class Series:
    """One name with a value for each point in time; None where there is none. ``colour`` is a number."""

    name: str
    values: Sequence[float | None]
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart by name. ``values`` stand one behind the other, in the order of the chart's parts."""

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
    """Which colour is what."""
    keys = "".join(f'<span><i class="k{colour % COLOURS}"></i>{escape(name)}</span>' for name, colour in names)
    return f'<p class="legend">{keys}</p>'


def compact(value: float) -> str:
    """A number as people read it: 950, 12.3 k, 4 M."""
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if sign == 'k' else limit):.3g} {sign}"
    return f"{value:.3g}" if value != int(value) else f"{int(value)}"


def shortened(text: str, most: int) -> str:
    """The text, without its middle where it is too long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


class _Scale:
    """Values to heights, with a top that is a round number."""

    def __init__(self, most: float) -> None:
        power = 10 ** floor(log10(most)) if most > 0 else 1
        self.step = next((power * part for part in (0.25, 0.5, 1, 2) if most / (power * part) <= 5), power * 2)
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
    return next((step for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720) if minutes / step <= 10), 1440)


def _clock(time: datetime, times: Sequence[datetime]) -> str:
    """The time, with the day where the chart spans several."""
    several = times[0].date() != times[-1].date()
    return time.strftime("%d %b %H:%M" if several else "%H:%M")
