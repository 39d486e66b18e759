"""``polywire pipeline``, as far as it needs no Spark to run."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polywire.cli import main
from polywire.cli.pipeline import Format, journal_place, write_rows
from polywire.pipeline import spark as starting
from polywire.pipeline.errors import JavaMissingError
from polywire.pipeline.status import Notes, of_progress, write_status
from tests.pipeline.traffic import messages, write_journal


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner()


@pytest.mark.parametrize("command", ["", "run", "backfill", "status", "query", "history", "doctor", "report"])
def test_every_help_has_examples(runner: CliRunner, command: str) -> None:
    result = runner.invoke(main.app, ["pipeline", *([command] if command else []), "--help"])
    assert result.exit_code == 0
    assert f"  polywire pipeline {command}".rstrip() in result.output.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["run", "--trigger", "often"], "write 1s, 500ms", 1),
        (["run", "--tables", "mesages"], "no table 'mesages'; there is calls,", 1),
        (["run", "nowhere.py"], "no such file", 1),
        (["run", "--conf", "key"], "'key' is not KEY=VALUE", 2),
        (["run", "--once", "--journal", "nowhere"], "nowhere", 1),
        (["run", "--once", "--option", "colums=ts"], "did you mean 'columns'", 1),
        (["run", "--keep", "soon"], "write 90d", 1),
        (["backfill", "--from", "yesterday"], "write 2026-01-31", 2),
        (["query", "--at", "yesterday", "SELECT 1"], "write 2026-01-31T12:00:00Z", 2),
        (["query", "SELECT 1"], "there are no tables yet", 1),
    ],
)
def test_what_is_wrong_is_told_before_spark_starts(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str, code: int
) -> None:
    monkeypatch.setattr(starting, "spark_session", lambda **_: pytest.fail("Spark was started"))
    result = runner.invoke(main.app, ["pipeline", *words])
    assert result.exit_code == code
    assert told in result.output


def test_a_missing_java_is_told_in_a_line(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> None:
        raise JavaMissingError(17, ())

    monkeypatch.setattr(starting, "spark_session", missing)
    result = runner.invoke(main.app, ["pipeline", "query", "--engine", "spark", "SELECT 1"])
    assert result.exit_code == 1
    assert result.output.startswith("polywire pipeline: Spark needs Java 17 or newer")


def test_the_status_tells_how_far_behind_each_query_is(runner: CliRunner, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal", messages(100))
    progress = {
        "batchId": 4,
        "durationMs": {"triggerExecution": 1500},
        "sources": [{"endOffset": '{"journal": 60}', "latestOffset": None, "processedRowsPerSecond": 1234.5}],
    }
    place = (str(tmp_path / "journal"),)
    write_status(Notes("lake"), of_progress("rows", ("messages",), place, progress, state="running", rows=60))
    shown = runner.invoke(main.app, ["pipeline", "status"]).output
    assert "running" in shown
    assert "40 rows" in shown
    told = json.loads(runner.invoke(main.app, ["pipeline", "status", "--json"]).output)
    assert told["lag"]["rows"] == 40
    assert told["batch"] == 4


def test_a_lake_nobody_wrote_has_no_status(runner: CliRunner) -> None:
    result = runner.invoke(main.app, ["pipeline", "status"])
    assert result.exit_code == 0
    assert "no query ever ran here" in result.output


def test_rows_are_written_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(1, b"text", datetime(2026, 1, 31, tzinfo=UTC)), (None, b"\xff", None)]
    write_rows(["a", "b", "c"], rows, Format.json)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"a": 1, "b": "text", "c": "2026-01-31T00:00:00+00:00"}, {"a": None, "b": "0xff", "c": None}]
    write_rows(["a", "b", "c"], rows, Format.csv)
    assert capsys.readouterr().out == "a,b,c\n1,text,2026-01-31 00:00:00.000+00:00\n,0xff,\n"
    write_rows(["a", "b", "c"], rows, Format.table)
    assert "2 rows" in capsys.readouterr().out


def test_places_mean_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert journal_place("a/*/journal, http://h:7100", None) == f"{tmp_path}/a/*/journal,http://h:7100"
    assert journal_place(None, None) == f"{tmp_path}/journal"
    (tmp_path / "polywire.toml").write_text('[journal]\npath = "elsewhere"\n')
    assert journal_place(None, None) == f"{tmp_path}/elsewhere"
