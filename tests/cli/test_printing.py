"""Messages as they are written."""

import datetime as dt
import json

import pytest

from polywire.cli.printing import Form, as_json, encoded, shown, shown_body
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
