"""Rows as lines, as JSON and as Arrow."""

import io
import json
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from polywire.cli.rows import ArrowRows, iso, json_line, make_writer, one_line
from polywire.journal.schema import PLAIN_SCHEMA

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
