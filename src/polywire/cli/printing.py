"""How the commands write what came: as text for people, lines, JSON lines, or the octets as they are.

What came from elsewhere is never written to a terminal as it is: control characters could do anything there.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polywire.client.message import Header, Message


class Form(StrEnum):
    """How a message is written."""

    text = "text"
    body = "body"
    json = "json"
    raw = "raw"


Format = Annotated[
    Form,
    typer.Option(
        "--format",
        "-o",
        help="text: channel, tab, body; body: the body and a line break; json: an object a line; raw: the octets of "
        "the bodies and nothing between them.",
    ),
]

ESCAPES = {number: f"\\x{number:02x}" for number in [*range(32), *range(127, 160)]} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
    92: "\\\\",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def shown(text: str) -> str:
    """A text on one line, with nothing in it that moves the cursor or changes colours."""
    return text if text.isascii() and text.isprintable() and "\\" not in text else text.translate(ESCAPES)


def shown_body(body: bytes, most: int | None = None) -> str:
    """A body on one line: its text, or ASCII with escapes where it is none; of a long one the first ``most`` octets."""
    start = body if most is None else body[:most]
    try:
        return shown(start.decode())
    except UnicodeDecodeError as error:
        if len(start) < len(body) and error.start > len(start) - 4:  # a character was cut
            return shown(start[: error.start].decode())
        return "".join(chr(octet) if 32 <= octet < 127 and octet != 92 else f"\\x{octet:02x}" for octet in start)


def as_json(message: "Message", *, received: datetime | None = None) -> dict[str, Any]:
    """A message as a JSON object. A body that is no text is ``body_base64``."""
    found: dict[str, Any] = {"channel": message.channel} if message.channel else {}
    if received is not None:
        found["received"] = received.isoformat(timespec="microseconds")
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    if message.content_type is not None:
        found["content_type"] = message.content_type
    if message.headers:
        found["headers"] = plain_headers(message.headers)
    if message.retain:
        found["retain"] = True
    if message.deliveries is not None and message.deliveries > 1:
        found["deliveries"] = message.deliveries
    if message.attachments:
        found["attachments_base64"] = [
            base64.b64encode(each).decode() if isinstance(each, bytes) else None for each in message.attachments
        ]
    return found


def plain_headers(headers: "Mapping[str, Header]") -> dict[str, str | int | float]:
    """Headers as JSON has them."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in headers.items()}


def encoded(message: "Message", form: Form, *, terminal: bool, received: datetime | None = None) -> bytes:
    """A message as it is written, the end of its line included."""
    if form is Form.raw:
        return message.body
    if form is Form.json:
        return json.dumps(as_json(message, received=received), ensure_ascii=False).encode() + b"\n"
    if form is Form.body and not terminal:
        return message.body + b"\n"
    body = shown_body(message.body)
    if form is Form.text and message.channel:
        body = f"{shown(message.channel)}\t{body}"
    return body.encode("utf-8", "replace") + b"\n"


class Printer:
    """Writes messages to standard output, those of one turn of the event loop at once.

    ``failed`` is called where that is no longer possible.
    """

    def __init__(self, form: Form, failed: Callable[[OSError], None]) -> None:
        self._form = form
        self._failed = failed
        self._terminal = sys.stdout.isatty()
        self._waiting: list[bytes] = []

    def put(self, message: "Message") -> None:
        """Write one, soon."""
        received = datetime.now(UTC) if self._form is Form.json else None
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(encoded(message, self._form, terminal=self._terminal, received=received))

    def flush(self) -> None:
        """Write what waits, now."""
        waiting, self._waiting = self._waiting, []
        try:
            sys.stdout.buffer.write(b"".join(waiting))
            sys.stdout.buffer.flush()
        except OSError as error:
            self._failed(error)


def say(words: str, *, quiet: bool = False) -> None:
    """A remark for the person at the terminal, apart from the output."""
    if not quiet and sys.stderr.isatty():
        typer.echo(words, err=True)


def print_json(found: Mapping[str, Any]) -> None:
    """One JSON object on one line, at once."""
    typer.echo(json.dumps(found, ensure_ascii=False))
