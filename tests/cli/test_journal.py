"""``polywire journal``: what is printed, in which form, and with which exit code."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from polywire.cli import main
from polywire.cli.journal_contents import ArrowRows, iso, json_line, make_writer, one_line
from polywire.cli.options import ALLOWED, parse_position
from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.log import Log
from polywire.journal.readers import NamedReaders
from polywire.server.config.kinds import TIME_UNITS
from tests.journal.rows import rows
from tests.server.journal_server import serving

COMMANDS = ("ls", "cat", "tail", "stats", "verify", "compact", "replay")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A journal of 25 rows in three segments, in the working directory, under its default name."""
    monkeypatch.chdir(tmp_path)
    with Log(tmp_path / "journal", node="here") as found:
        found.append(rows(0, 10), state=False)
        found.roll()
        found.append(rows(10, 10, kind=["publish", "enqueue"] * 5, protocol=["mqtt", None] * 5), state=False)
        found.roll()
        found.append(rows(20, 5), state=False)
        yield found


def run(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["journal", *words])


def good(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in good(*words, "-o", "json").splitlines()]


def offsets(*words: str) -> list[int]:
    return [row["offset"] for row in rows_of(*words)]


@pytest.mark.parametrize("words", [(), *((command,) for command in COMMANDS)])
def test_every_help_has_examples(words: tuple[str, ...]) -> None:
    assert f"  Examples:\n    {' '.join(['polywire', 'journal', *words])}" in good(*words, "--help")


def test_the_other_commands_load_neither_arrow_nor_the_configuration() -> None:
    slow = {"pyarrow", "msgspec", "polywire.server"}
    code = f"import sys, polywire.cli.main; sys.exit(str({slow} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.stderr.strip() == ""


def test_the_units_of_a_time_that_are_named_are_those_there_are() -> None:
    assert f"units are {', '.join(TIME_UNITS)})" in ALLOWED


def test_ls_lists_the_segments(log: Log) -> None:
    lines = [line.split("\t") for line in good("ls").splitlines()]
    assert [line[:3] for line in lines] == [
        ["00000000000000000000.arrow", "0-10", "10"],
        ["00000000000000000010.arrow", "10-20", "10"],
        ["00000000000000000020.arrow", "20-25", "5"],
    ]
    assert [line[-1] for line in lines] == ["closed", "closed", "active"]
    assert lines[0][4] == "2023-11-14T22:13:20.000000Z"
    assert good("ls", str(log.path)) == good("ls")


def test_ls_as_json_has_everything(log: Log) -> None:
    found = [json.loads(line) for line in good("ls", str(log.path), "--json").splitlines()]
    assert [each["end_offset"] for each in found] == [10, 20, 25]
    assert set(found[0]) == {
        "name",
        "format",
        "first_offset",
        "end_offset",
        "rows",
        "octets",
        "min_time",
        "max_time",
        "closed",
    }


def test_ls_on_a_terminal_is_a_table_and_shows_named_readers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    NamedReaders(log.path).put("spark", 7)
    monkeypatch.setattr("polywire.cli.journal_contents.is_terminal", lambda: True)
    shown = good("ls")
    assert "segment" in shown
    assert "3 segments, 25 rows" in shown
    assert "reader spark needs rows from offset 7 on" in shown


@pytest.mark.usefixtures("log")
def test_cat_prints_all_rows_in_order() -> None:
    assert offsets("cat") == list(range(25))
    assert len(good("cat").splitlines()) == 25


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--from", "20"], [20, 21, 22, 23, 24]),
        (["--from", "3", "--to", "6"], [3, 4, 5]),
        (["--limit", "2"], [0, 1]),
        (["--limit", "12", "--from", "9"], list(range(9, 21))),
        (["--limit", "0"], []),
        (["--channel", "a/1/b", "--to", "8"], [1, 4, 7]),
        (["--channel", "a/1/b", "--channel", "a/2/*", "--to", "6"], [1, 2, 4, 5]),
        (["--channel", "a/**", "--to", "2"], [0, 1]),
        (["--kind", "enqueue"], [11, 13, 15, 17, 19]),
        (["--protocol", "mqtt"], [10, 12, 14, 16, 18]),
        (["--kind", "enqueue", "--kind", "publish", "--protocol", "fmqp", "--from", "8"], [8, 9, 20, 21, 22, 23, 24]),
        (["--from", "2023-11-14T22:13:43"], [23, 24]),
        (["--from", "2023-11-14T22:13:23", "--to", "2023-11-14T22:13:25Z"], [3, 4]),
        (["--from", "-1h"], []),
        (["--to", "-1h", "--limit", "1"], [0]),
    ],
)
def test_cat_prints_what_is_asked_for(options: list[str], found: list[int]) -> None:
    assert offsets("cat", *options) == found


@pytest.mark.usefixtures("log")
def test_cat_for_people_has_channel_and_body() -> None:
    line = good("cat", "--limit", "1")
    assert line.split() == ["0", "2023-11-14T22:13:20.000000Z", "publish", "fmqp", "a/0/b", "body", "0"]


@pytest.mark.usefixtures("log")
def test_cat_gives_the_columns_that_are_wanted() -> None:
    assert rows_of("cat", "--columns", "offset,channel", "--limit", "1") == [{"offset": 0, "channel": "a/0/b"}]
    result = run("cat", "--columns", "channel, body", "-o", "arrow", "--from", "23")
    table = pa.ipc.open_stream(result.stdout_bytes).read_all()
    assert table.to_pydict() == {"channel": ["a/2/b", "a/0/b"], "body": [b"body 23", b"body 24"]}


@pytest.mark.usefixtures("log")
def test_cat_as_arrow_is_a_stream_of_everything() -> None:
    table = pa.ipc.open_stream(run("cat", "-o", "arrow").stdout_bytes).read_all()
    assert table.column("offset").to_pylist() == list(range(25))
    assert table.schema.metadata == {b"polywire.journal": b"1"}
    empty = pa.ipc.open_stream(run("cat", "--limit", "0", "-o", "arrow").stdout_bytes).read_all()
    assert empty.schema == table.schema


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cat", "--from", "soon"], "--from: 'soon' is not a position in a journal; allowed is an offset"),
        (["cat", "--kind", "publishes"], "--kind: 'publishes' is none of publish, enqueue"),
        (["cat", "--protocol", "amqp"], "--protocol: 'amqp' is none of umq, micromsg"),
        (["cat", "--columns", "offset"], "--columns: lines for people have their own columns"),
        (["cat", "-o", "json", "--columns", "ofset"], "--columns: 'ofset' is none of offset, ts"),
        (["replay", "--speed", "fast"], "--speed: 'fast' is neither a number above 0 nor max"),
        (["replay", "--speed", "0"], "--speed: '0' is neither"),
        (["replay", "--speed", "nan"], "--speed: 'nan' is neither"),
        (["replay", "--rename", "a"], "--rename: 'a' is not OLD=NEW"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(words: list[str], said: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"polywire journal: {said}")


@pytest.mark.parametrize("command", ["ls", "cat", "tail", "stats", "verify", "compact"])
def test_a_journal_that_is_not_there_is_named(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path / "nothing"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(tmp_path / "nothing") in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["ls", "cat", "tail", "stats", "verify", "compact"])
def test_a_directory_without_a_journal_is_an_error_that_tells_what_to_do(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{tmp_path}: no journal found" in result.stderr
    assert "name the directory that journal.path is set to" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_journal_of_the_configuration_is_the_default(log: Log, tmp_path: Path) -> None:
    log.path.rename(tmp_path / "elsewhere")
    (tmp_path / "polywire.toml").write_text('[journal]\npath = "elsewhere"\n')
    assert len(good("ls").splitlines()) == 3


def damage(log: Log) -> None:
    path = log.path / "00000000000000000010.arrow"
    octets = bytearray(path.read_bytes())
    octets[-60] ^= 1
    path.write_bytes(octets)


def test_where_rows_can_not_be_read_cat_fails_goes_on_or_shows_a_gap(log: Log) -> None:
    damage(log)
    result = run("cat", "-o", "json")
    assert result.exit_code == 1
    assert "00000000000000000010.arrow" in result.stderr
    assert offsets("cat", "--on-corrupt", "skip") == [*range(10), *range(20, 25)]
    kinds = [(row["offset"], row["kind"]) for row in rows_of("cat", "--on-corrupt", "gap", "--from", "9", "--to", "21")]
    assert kinds == [(9, "publish"), (10, "gap"), (20, "publish")]
    assert "gap" in good("cat", "--on-corrupt", "gap")


def test_verify_finds_damage_and_leaves_with_1(log: Log) -> None:
    assert "25 rows" in good("verify")
    damage(log)
    result = run("verify")
    assert result.exit_code == 1
    assert "00000000000000000010.arrow" in result.output
    result = run("verify", "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["sound"] for line in result.stdout.splitlines()] == [True, False, True]


@pytest.mark.parametrize("how", ["emptied", "removed", "cut"])
def test_verify_reports_what_a_start_found_lost(log: Log, how: str) -> None:
    newest = log.path / "00000000000000000020.arrow"
    log.close()
    if how == "removed":
        newest.unlink()
    else:
        os.truncate(newest, 0 if how == "emptied" else newest.stat().st_size - 10)
    for _ in range(3):  # before the next start, after it and after the one after that
        result = run("verify")
        assert result.exit_code == 1
        assert "lost from offset 20: 5 rows" in result.stdout
        assert "1 of them damaged, 5 rows lost" in result.stdout
        json_lines = [json.loads(line) for line in run("verify", "--json").stdout.splitlines()]
        assert sum(line["lost_rows"] for line in json_lines) == 5
        Log(log.path, node="here").close()


def test_verify_notes_what_does_no_harm_and_leaves_with_0(log: Log) -> None:
    (log.path / "00000000000000000010.index").unlink()
    shown = good("verify").splitlines()
    assert shown[0] == "00000000000000000010.arrow: note at 0: its index is missing or damaged"
    assert shown[1].endswith("25 rows in 3 segments, no damage, nothing missing")


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], list(range(15, 25))),
        (["-n", "3"], [22, 23, 24]),
        (["-n", "100"], list(range(25))),
        (["-n", "0"], []),
        (["-n", "2", "--kind", "enqueue"], [17, 19]),
        (["--channel", "a/0/b", "-n", "3"], [18, 21, 24]),
        (["--channel", "nowhere"], []),
    ],
)
def test_tail_prints_the_last_rows_that_match(options: list[str], found: list[int]) -> None:
    assert offsets("tail", *options) == found


def test_tail_looks_back_as_far_as_it_has_to(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polywire.cli.journal_contents.BACKWARDS", 1)
    assert offsets("tail", "-n", "2", "--kind", "enqueue") == [17, 19]
    assert offsets("tail", "-n", "7", "--protocol", "mqtt") == [10, 12, 14, 16, 18]
    assert log.next_offset == 25


def test_tail_follows_until_it_is_told_to_stop(log: Log) -> None:
    command = [sys.executable, "-m", "polywire", "journal", "tail", "-f", "-n", "1", "-o", "json", "--channel", "a/**"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=log.path.parent) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["offset"] == 24
            log.append(rows(25, 2), state=False)
            assert [json.loads(process.stdout.readline())["offset"] for _ in range(2)] == [25, 26]
            log.roll()
            log.append(rows(27, 1), state=False)
            assert json.loads(process.stdout.readline())["offset"] == 27
            process.send_signal(2)
            assert process.wait(20) == 130
        finally:
            process.kill()


@pytest.mark.parametrize("form", ["human", "json", "arrow"])
def test_whoever_has_seen_enough_may_close_the_pipe(log: Log, form: str) -> None:
    for _ in range(20):
        log.append(rows(log.next_offset, 1000), state=False)
    command = [sys.executable, "-m", "polywire", "journal", "cat", "-o", form]
    with subprocess.Popen(  # noqa: S603 - ours
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=log.path.parent
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 0


@pytest.mark.usefixtures("log")
def test_stats_count_kinds_protocols_and_channels() -> None:
    found = json.loads(good("stats", "--json", "--top", "2"))
    assert found["rows"] == 25
    assert (found["first_offset"], found["last_offset"]) == (0, 24)
    assert found["first_time"] == "2023-11-14T22:13:20.000000Z"
    assert found["kinds"] == {"publish": 20, "enqueue": 5}
    assert found["protocols"] == {"fmqp": 15, "mqtt": 5, "-": 5}
    assert found["channels"] == 3
    assert found["top_channels"][0] == {"channel": "a/0/b", "messages": 9, "octets": 59}
    lines = good("stats", "--kind", "enqueue").splitlines()
    assert lines[0].split() == ["rows", "5"]
    assert any(line.split() == ["enqueue", "5"] for line in lines)


def test_stats_of_an_empty_journal_are_no_error(tmp_path: Path) -> None:
    with Log(tmp_path / "empty", node="here"):
        assert good("stats", str(tmp_path / "empty")).splitlines()[0].split() == ["rows", "0"]
        assert json.loads(good("stats", str(tmp_path / "empty"), "--json"))["first_time"] is None
        assert good("cat", str(tmp_path / "empty")) == ""
        assert good("tail", str(tmp_path / "empty")) == ""


def test_compact_rewrites_closed_segments(log: Log) -> None:
    shown = good("compact").splitlines()
    assert [line.split(": ")[0] for line in shown] == ["00000000000000000000.arrow", "00000000000000000010.arrow"]
    assert sorted(path.suffix for path in log.path.iterdir() if path.name[0] == "0") == [
        ".arrow",
        ".index",
        ".parquet",
        ".parquet",
    ]
    assert offsets("cat") == list(range(25))
    assert "nothing to compact" in good("compact", str(log.path))


def test_compact_leaves_a_damaged_segment_and_goes_on(log: Log) -> None:
    damage(log)
    result = run("compact")
    assert result.exit_code == 1
    assert "00000000000000000010.arrow" in result.stderr
    assert (log.path / "00000000000000000000.parquet").exists()
    assert (log.path / "00000000000000000010.arrow").exists()


def test_a_journal_is_read_from_a_hub_too(log: Log) -> None:
    with serving(log.path) as pages:
        assert offsets("cat", pages.url, "--from", "8", "--to", "12") == [8, 9, 10, 11]
        assert len(good("ls", pages.url).splitlines()) == 3
        assert offsets("tail", pages.url, "-n", "1") == [24]
        assert "25 rows" in good("verify", pages.url)
    result = run("cat", pages.url)
    assert result.exit_code == 1
    assert "no answer" in result.stderr


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", 0),
        ("1234", 1234),
        ("now", NOW),
        ("-1h", NOW - timedelta(hours=1)),
        ("-30min", NOW - timedelta(minutes=30)),
        ("-1.5 d", NOW - timedelta(hours=36)),
        ("2026-11-15", datetime(2026, 11, 15, tzinfo=UTC)),
        ("2026-11-15T10:30", datetime(2026, 11, 15, 10, 30, tzinfo=UTC)),
        ("2026-11-15 10:30:05.25", datetime(2026, 11, 15, 10, 30, 5, 250000, tzinfo=UTC)),
        ("2026-11-15T10:30:00Z", datetime(2026, 11, 15, 10, 30, tzinfo=UTC)),
        ("2026-11-15T10:30:00+01:00", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
    ],
)
def test_offsets_and_times_are_read(text: str, position: int | datetime) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize("text", ["", "soon", "-", "-1", "-1x", "1h", "2026-13-01", "٣", "-99999999999999999d"])
def test_anything_else_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position in a journal.*allowed is an offset"):
        parse_position(text, NOW)


ROW: dict[str, Any] = {
    "offset": 7,
    "ts": datetime(2026, 11, 15, 12, 0, 0, 5, tzinfo=UTC),
    "node": "hub",
    "kind": "publish",
    "protocol": "mqtt",
    "connection": 3,
    "client": "sensor-7",
    "channel": "home/temp",
    "correlation": None,
    "content_type": None,
    "headers": '{"unit":"C"}',
    "attachments": [b"\x00\xff"],
    "body": b"21.5",
    "size": 6,
    "flags": 0,
}


def batch(**changes: Any) -> Any:
    return pa.RecordBatch.from_pylist([{**ROW, **changes}], schema=PLAIN_SCHEMA)


def test_a_json_line_has_everything_but_what_is_null() -> None:
    assert json.loads(json_line(ROW)) == {
        "offset": 7,
        "ts": "2026-11-15T12:00:00.000005Z",
        "node": "hub",
        "kind": "publish",
        "protocol": "mqtt",
        "connection": 3,
        "client": "sensor-7",
        "channel": "home/temp",
        "headers": {"unit": "C"},
        "attachments": ["AP8="],
        "body": "21.5",
        "size": 6,
        "flags": 0,
    }


def test_a_body_that_is_no_text_is_base64_under_another_name() -> None:
    found = json.loads(json_line({"offset": 1, "body": b"\xff\x00"}))
    assert found == {"offset": 1, "body_base64": "/wA="}


def test_a_line_for_people_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    make_writer("human", None).write(batch(body=b"a\nb\x1b[31m\xff"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:4] == ["7", "2026-11-15T12:00:00.000005Z", "publish", "mqtt"]
    assert line.endswith('home/temp  from sensor-7  {"unit":"C"}  a\\nb\\x1b[31m\ufffd')


def test_a_row_without_protocol_channel_and_client_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    make_writer("human", None).write(
        batch(kind="gap", protocol=None, channel=None, client=None, headers=None, attachments=None, body=b"")
    )
    assert capsys.readouterr().out == "         7  2026-11-15T12:00:00.000005Z  gap          -       \n"


@pytest.mark.parametrize(
    ("octets", "shown"),
    [(b"", ""), (b"x" * 200, "x" * 200), (b"x" * 201, "x" * 200 + "…"), ("ä€".encode(), "ä€"), (b"\t\0", "\\t\\x00")],
)
def test_bodies_are_shortened_and_made_harmless(octets: bytes, shown: str) -> None:
    assert one_line(octets) == shown


def test_times_are_utc() -> None:
    assert iso(datetime.fromisoformat("2026-11-15T13:00:00+01:00")) == "2026-11-15T12:00:00.000000Z"


@pytest.mark.parametrize("columns", [None, ["offset", "body"]])
def test_arrow_output_is_a_stream(monkeypatch: pytest.MonkeyPatch, columns: list[str] | None) -> None:
    octets = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(octets))
    rows = ArrowRows(columns)
    whole = batch() if columns is None else batch().select(columns)
    rows.write(whole)
    rows.write(whole)
    rows.close()
    table = pa.ipc.open_stream(octets.getvalue()).read_all()
    assert table.column_names == (columns or PLAIN_SCHEMA.names)
    assert table.column("body").to_pylist() == [b"21.5"] * 2


def test_arrow_output_without_rows_is_a_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    octets = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(octets))
    ArrowRows(None).close()
    assert pa.ipc.open_stream(octets.getvalue()).read_all().num_rows == 0
