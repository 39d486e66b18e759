"""Charts are SVG that any reader of XML takes, with every value told."""

import re
from datetime import datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from polywire.pipeline.report import LABELS, NARROW_LABELS, Bar, Scale, Series, bars, compact, lines, shortened, stacked

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
    assert len(titles(chart, "path")) == 4


def test_equal_lines_are_all_seen_and_values_far_apart_are_told_from_zero() -> None:
    same = lines(TIMES, [Series(name, [2, 3, 4], number) for number, name in enumerate(("p50", "p95"))], "ms")
    assert same.index('polyline class="l1 w1"') < same.index('polyline class="l0 w0"')  # the thinner one lies above
    far = lines(TIMES, [Series("p50", [1, 1, 1], 0), Series("p99", [10, 100, 1000], 1)], "ms")
    assert re.findall(r"<b [^>]*>([^<]*)</b>", far) == ["1", "10", "100", "1000"]
    scale = Scale(1000, 1)
    assert [scale.share(value) for value in (0, 1, 10, 1000)] == pytest.approx([0, 0, 1 / 3, 1])


def test_bars_are_as_long_as_their_values_and_names_are_escaped() -> None:
    chart = bars([Bar("a & b", [30, 10]), Bar("c", [20, 0])], ["heard", "unheard"], "messages")
    root = ET.fromstring(f"<all>{chart}</all>")  # noqa: S314 - our own
    marks = [mark for mark in root.iter("i") if "style" in mark.attrib]
    assert [mark.attrib["style"] for mark in marks] == [
        f"width:{share}%" for share in ("75.00", "25.00", "50.00", "0.00")
    ]
    assert [mark.attrib["title"] for mark in marks[:2]] == ["a & b: 30 messages heard", "a & b: 10 messages unheard"]


@pytest.mark.parametrize(("seconds", "shown"), [(20, "12:00:00"), (7200, "12:00"), (3 * 86_400, "31 Jan 12:00")])
def test_times_are_as_exact_as_the_chart_is_short_and_few_on_a_phone(seconds: int, shown: str) -> None:
    times = [TIMES[0] + timedelta(seconds=seconds * index / 20) for index in range(20)]
    chart = stacked(times, [Series("a", [1] * 20, 0)], "messages")
    labels = re.findall(r"<span( class=\"more\")? style=\"left:[\d.]+%\">([^<]+)</span>", chart)
    assert 1 <= len(labels) <= LABELS + 1
    assert 1 <= sum(not more for more, _ in labels) <= NARROW_LABELS
    assert len(labels[0][1]) == len(shown)


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
