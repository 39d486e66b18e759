"""What commands write: messages, short numbers, rates, and the bar of long commands."""

import datetime as dt
import io
import json
import sys

import pytest

from polywire.cli.output import Form, Rate, as_json, encoded, progress, short, shown, shown_body, took
from polywire.client.message import Message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("grüße", "grüße"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("back\\slash", "back\\\\slash"),
        ("\u2028", "\\u2028"),
    ],
)
def test_a_text_is_one_line_that_does_nothing_to_a_terminal(text: str, line: str) -> None:
    assert shown(text) == line


def test_octets_that_are_no_text_are_escaped() -> None:
    assert shown_body(b"ab\xff\\\n") == "ab\\xff\\x5c\\x0a"


def test_a_character_that_is_cut_is_left_out() -> None:
    assert shown_body("aaaü".encode(), 4) == "aaa"


def test_only_a_terminal_has_the_body_escaped() -> None:
    message = Message("a", b"\x1b[0m\n")
    assert encoded(message, Form.body, terminal=False) == b"\x1b[0m\n\n"
    assert encoded(message, Form.body, terminal=True) == b"\\x1b[0m\\n\n"
    assert encoded(message, Form.raw, terminal=True) == b"\x1b[0m\n"


def test_json_has_what_there_is_and_nothing_else() -> None:
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    message = Message("a", b"x", {"n": 1, "at": at}, "text/plain", retain=True, attachments=(b"\0",))
    assert json.loads(json.dumps(as_json(message, received=at))) == {
        "channel": "a",
        "received": "2026-01-02T00:00:00.000000+00:00",
        "body": "x",
        "content_type": "text/plain",
        "headers": {"n": 1, "at": "2026-01-02T00:00:00+00:00"},
        "retain": True,
        "attachments_base64": ["AA=="],
    }
    assert as_json(Message("", b"\xff")) == {"body_base64": "/w=="}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_that_of_the_last_second() -> None:
    clock = Clock()
    rate = Rate(clock=clock)
    for total in (10, 20, 120, 220):
        clock.now += 0.5
        rate.sample(total)
    assert rate.now == 200
    assert rate.mean == 110
    assert rate.bars() == "▁▁██"


def test_nothing_is_no_bar_and_little_is_a_small_one() -> None:
    clock = Clock()
    rate = Rate(clock=clock)
    for total in (0, 1, 10_001):
        clock.now += 0.5
        rate.sample(total)
    assert rate.bars() == " ▁█"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1234, "1.23 k"), (56_789, "56.8 k"), (4.5e6, "4.50 M"), (2e12, "2000 G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000085, "85 µs"), (0.00125, "1.25 ms"), (0.0345, "34.5 ms"), (3.4, "3.40 s"), (75, "75.0 s")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert took(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_sees_a_bar_with_words(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress("counting [x]", total) as advance:
        advance(10, "10 rows")
    assert "counting [x]" in terminal.getvalue()
    assert "10 rows" in terminal.getvalue()


def test_what_is_no_terminal_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting", 10) as advance:
        advance(5, "5 rows")
    assert capsys.readouterr() == ("", "")
