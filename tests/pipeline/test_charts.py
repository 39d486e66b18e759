"""Charts are SVG that any reader of XML takes, with every value told."""

from datetime import datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from polywire.pipeline.report import Bar, Series, bars, compact, lines, shortened, stacked

TIMES = [datetime(2026, 1, 31, 12) + timedelta(minutes=minute) for minute in range(3)]  # noqa: DTZ001 - of the page


def titles(chart: str, mark: str) -> list[str]:
    """What the marks of a chart say they are."""
    root = ET.fromstring(f"<all>{chart}</all>")  # noqa: S314 - our own
    return [title.text or "" for found in root.iter(mark) for title in found.iter("title")]


def test_a_stack_has_a_mark_for_every_value_that_is_not_nothing() -> None:
    chart = stacked(TIMES, [Series("a", [1, 0, None], 0), Series("<b>", [2, 3, 4], 1)], "messages")
    assert titles(chart, "rect") == [
        "12:00 a: 1 messages",
        "12:00 <b>: 2 messages",
        "12:01 <b>: 3 messages",
        "12:02 <b>: 4 messages",
    ]


def test_a_line_is_broken_where_there_is_no_value() -> None:
    chart = lines([*TIMES, *TIMES], [Series("p50", [1, 2, None, 3, 4, None], 0)], "ms")
    assert chart.count("<polyline") == 2
    assert len(titles(chart, "circle")) == 4


def test_bars_are_as_long_as_their_values_and_names_are_escaped() -> None:
    chart = bars([Bar("a & b", [30, 10]), Bar("c", [20, 0])], ["heard", "unheard"], "messages")
    root = ET.fromstring(f"<all>{chart}</all>")  # noqa: S314 - our own
    widths = [float(mark.attrib["width"]) for mark in root.iter("rect")]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    assert widths[2] == pytest.approx(2 * widths[1], rel=0.01)
    assert titles(chart, "rect")[:2] == ["a & b: 30 messages heard", "a & b: 10 messages unheard"]


@pytest.mark.parametrize("values", [[0], [], [0.001], [7, 123456789]])
def test_any_values_can_be_drawn(values: list[float]) -> None:
    times = TIMES[: len(values)] or TIMES[:1]
    ET.fromstring(f"<all>{stacked(times, [Series('a', values or [None], 0)], 'x')}</all>")  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12_345, "12.3 k"), (4_000_000, "4 M"), (0.5, "0.5"), (2e9, "2 G")]
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert compact(value) == text


def test_a_long_name_loses_its_middle() -> None:
    assert shortened("a" * 10 + "b" * 10, 9) == "aaaa…bbbb"
    assert shortened("short", 9) == "short"
