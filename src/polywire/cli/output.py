"""What the commands write: messages as text, lines, JSON or bytes, short numbers and rates, and progress bars.

Data from outside is never written to a terminal unescaped: control characters could do anything there.
"""

import asyncio
import base64
import collections
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

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
        help="text: channel, tab, body; body: the body and a line break; json: one JSON object per line; raw: only "
        "the bytes of the bodies.",
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
    """A body on one line: its text, or ASCII with escapes where it is none; of a long one the first ``most`` bytes."""
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
    """A message as it is written, including the line end."""
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
        """Queue one message for writing."""
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


def say(words: str) -> None:
    """A remark for the person at the terminal, apart from the output."""
    if sys.stderr.isatty():
        typer.echo(words, err=True)


def print_json(found: Mapping[str, Any]) -> None:
    """One JSON object on one line, at once."""
    typer.echo(json.dumps(found, ensure_ascii=False))


BARS: Final = " ▁▂▃▄▅▆▇█"
STEP: Final = 0.5
"""Seconds between two samples."""


class Rate:
    """A number that grows, sampled every now and then: ``sample`` is called at least twice a second."""

    def __init__(self, kept: int = 40, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._at = clock()
        self._counted = 0
        self._total = 0
        self._steps: collections.deque[float] = collections.deque(maxlen=kept)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    @property
    def now(self) -> float:
        """How many a second, of late."""
        recent = list(self._steps)[-2:]
        return sum(recent) / len(recent) if recent else self.mean

    @property
    def mean(self) -> float:
        """How many a second, since the beginning."""
        return self._total / self.seconds if self.seconds > 0 else 0.0

    def sample(self, total: int) -> None:
        """So many there are by now."""
        self._total = total
        now = self._clock()
        if now - self._at >= STEP:
            self._steps.append((total - self._counted) / (now - self._at))
            self._at, self._counted = now, total

    def bars(self) -> str:
        """The last samples as bars, the newest at the right."""
        highest = max(self._steps, default=0.0)
        if highest <= 0:
            return BARS[0] * len(self._steps)
        last = len(BARS) - 1
        # A small value must differ from zero.
        return "".join(BARS[0 if step <= 0 else max(1, round(step / highest * last))] for step in self._steps)


def short(number: float, unit: str = "") -> str:
    """A number in few characters: 950, 12.3 k, 4.56 M."""
    for limit, factor, letter in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e15, 1e9, "G")):
        if number < limit:
            scaled = number / factor
            digits = 0 if letter == "" else 2 if scaled < 10 else 1 if scaled < 100 else 0
            text = f"{scaled:.{digits}f}"
            return f"{text} {letter}{unit}".rstrip()
    return f"{number:.2g} {unit}".rstrip()


def took(seconds: float) -> str:
    """A time in few characters: 850 µs, 1.25 ms, 3.40 s."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < limit:
            scaled = seconds * factor
            digits = 0 if unit == "µs" else 2 if scaled < 10 else 1
            return f"{scaled:.{digits}f} {unit}"
    raise ValueError(seconds)


Advance = Callable[[int, str], None]
"""Called with the progress so far and a short description."""


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A bar from 0 to ``total`` (None if unknown), while the block runs."""
    if not sys.stderr.isatty():
        yield lambda _done, _words: None
        return
    from rich import progress as bars  # noqa: PLC0415 - slow to import, and only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn(what, markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[words]}", markup=False),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, words="")

        def advance(done: int, words: str) -> None:
            bar.update(task, completed=done, words=words)

        yield advance
