"""The report of a lake: everything in one page, nothing loaded from elsewhere."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from polywire.pipeline import report
from polywire.pipeline.delta import Batch
from polywire.pipeline.errors import LakeError
from polywire.pipeline.lake import Lake
from polywire.pipeline.report import COLOURS, NARROW_LABELS, ReportData, byte_count, gather, page, write_report
from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES
from polywire.registry import built_in_names
from tests.browser import chromium, needs_browser
from tests.pipeline.tables.made_traffic import made
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import frame

pytestmark = pytest.mark.timeout(900)

START = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - of the page

NOTHING = ReportData(
    tables=("traffic", "calls", "demand", "faults", "sessions"),
    times=[START],
    seconds=60,
    totals=dict.fromkeys(("messages", "bytes", "calls", "failed", "faults", "sessions"), 0.0),
    traffic=[],
    channels=[],
    latency=[],
    methods=[],
    demand=[],
    subscribers=[],
    faults=[],
    raw=[],
    sessions=[],
    protocols=[],
    own=[],
)


@table
def alarms(rows: DataFrame) -> DataFrame:
    """A table of one's own."""
    return rows


class Balance(HTMLParser):
    """Whether what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def well_formed(html: str) -> bool:
    balance = Balance()
    balance.feed(html)
    return not balance.open


def test_the_page_shows_what_the_tables_hold_and_loads_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made(21, nodes=("n1",), steps=200)
    subscribed = next(row for row in rows if row["kind"] == "subscribe")
    rows.append({**subscribed, "channel": "$/its/own", "offset": max(row["offset"] for row in rows) + 1})
    lake = Lake(tmp_path / "lake")
    at_rest = frame(spark, tmp_path / "rows", rows)
    called = TABLES["calls"].build(at_rest)
    for name, known in TABLES.items():
        lake.write_batch(name, known.rows(called if known.after else at_rest), 0, "q")
    Lake(tmp_path / "lake", {"alarms": alarms}).write_batch("alarms", spark.sql("SELECT 'a' AS name, 1 AS n"), 0, "q")
    gathered: list[ReportData] = []

    def noted(*where: Any) -> ReportData:
        gathered.append(gather(*where))
        return gathered[-1]

    monkeypatch.setattr(report, "gather", noted)
    for name in TABLES:
        lake.refresh(name, spark)
    write_report(tmp_path / "lake", tmp_path / "report.html")
    wanted = tables(rows)
    (data,) = gathered
    assert data.totals == {
        "messages": len(wanted["messages"]),
        "bytes": sum(one["size"] for one in wanted["messages"]),
        "calls": len(wanted["calls"]),
        "failed": sum(one["outcome"] != "ok" for one in wanted["calls"]),
        "faults": len(wanted["faults"]),
        "sessions": len(wanted["sessions"]),
    }
    assert data.own == [{"table": "alarms", "rows": 1, "columns": "name, n"}]
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert well_formed(html)
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", html)
    for words in ("Traffic", "Calls", "Demand", "Faults", "Sessions", "plant/**", "billing", "bad topic"):
        assert words in html
    assert "Nothing yet" not in html
    assert "$/its/own" not in html


def test_a_short_recording_is_divided_into_seconds(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**one, "ts": one["ts"].replace(minute=0)} for one in made(21, nodes=("n1",), steps=100)]
    lake = Lake(tmp_path / "lake")
    at_rest = frame(spark, tmp_path / "rows", rows)
    lake.write({name: TABLES[name].rows(at_rest) for name in ("messages", "traffic")}, Batch("q", 0))
    lake.refresh("traffic", spark)
    data = gather(tmp_path / "lake")
    moments = [one["ts"] for one in tables(rows)["messages"]]
    assert data.seconds < 60
    assert len(data.times) >= min(20, (max(moments) - min(moments)).seconds)
    assert sum(one["messages"] for one in data.traffic) == len(moments)
    assert {one["time"] for one in data.traffic} <= set(data.times)


def test_what_was_never_built_is_not_shown() -> None:
    html = page(replace(NOTHING, tables=("traffic", "faults")), datetime(2026, 2, 1, tzinfo=UTC))
    assert "<h2>Traffic" in html
    assert "<span>faults" in html
    assert "Calls" not in html
    assert "sessions" not in html


@needs_browser
def test_a_phone_shows_whole_labels_in_their_size(tmp_path: Path) -> None:
    times = [START + timedelta(seconds=second) for second in range(60)]
    traffic = [{"time": time, "protocol": "mqtt", "messages": 12_345} for time in times]
    channels = [{"channel": "plant/line/oven/" * 9, "messages": 9, "bytes": 9}]
    data = replace(NOTHING, times=times, seconds=1, traffic=traffic, channels=channels)
    (tmp_path / "report.html").write_text(page(data, datetime(2026, 2, 1, tzinfo=UTC)), encoding="utf-8")
    with chromium() as browser:
        opened = browser.page("about:blank")
        opened.resize(360, 800)
        opened.go((tmp_path / "report.html").as_uri())
        assert opened.run("return document.documentElement.scrollWidth") == 360
        labels = opened.run(
            "return [...document.querySelectorAll('.chart span, .chart b')].filter(one => one.offsetWidth)"
            ".map(one => [one.textContent, getComputedStyle(one).fontSize, one.getBoundingClientRect().left])"
        )
    assert {size for _, size, _ in labels} == {"12px"}
    assert all(left >= 0 for _, _, left in labels)
    assert 2 <= sum(":" in text for text, _, _ in labels) <= NARROW_LABELS


def test_a_size_has_no_exponent() -> None:
    assert [byte_count(value) for value in (1023, 1034 * 1000, 1.5 * 2**30)] == ["1023 B", "1010 KiB", "1.5 GiB"]


def test_every_protocol_has_a_colour_of_its_own() -> None:
    assert len(built_in_names()) < COLOURS  # the last one is for rows without a protocol
    style = files("polywire.pipeline").joinpath("report.css").read_text(encoding="utf-8")
    assert all(f".{mark}{number} " in style for mark in "slk" for number in range(COLOURS))


def test_a_page_of_nothing_says_so() -> None:
    html = page(NOTHING, datetime(2026, 2, 1, tzinfo=UTC))
    assert well_formed(html)
    assert html.count("Nothing yet.") == 10


def test_an_empty_lake_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="run 'polywire pipeline run --once' first"):
        write_report(tmp_path, tmp_path / "report.html")
