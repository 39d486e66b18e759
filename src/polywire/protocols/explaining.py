"""Captured octets, explained frame by frame: where each one stands, what it says, and where it went wrong.

For ``polywire decode`` and whoever debugs a peer. Byte streams are fed octet by octet, so that the place where a frame
ends is where the decoder gives it.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from polywire.errors import RemoteProtocolError
from polywire.wire.frame import Discarded

STREAMS: Final = ("fmqp", "micromsg", "mqtt", "sabc")
"""Protocols whose frames follow each other in a stream of octets."""

MESSAGES: Final = ("umq", "mqttrpc")
"""Protocols whose frames are messages of what carries them: lines of a file, or the file."""


SESSION_ID: Final = re.compile(rb"session-id::([!-~]+)")


@dataclass(frozen=True, slots=True)
class Explained:
    """Octets ``start`` to ``end`` and what they are: a frame, or with ``fault_at`` what is wrong and where."""

    start: int
    end: int
    name: str
    fields: tuple[tuple[str, object], ...]
    octets: bytes
    rule: str = ""
    reason: str = ""
    fault_at: int | None = None


def explain(protocol: str, data: bytes, *, sender: str = "client") -> Iterator[Explained]:
    """Everything in a capture of what one side sent, the client or the server, in order."""
    decoder = _decoder(protocol, data, "server" if sender == "client" else "client")
    if protocol in STREAMS:
        yield from _stream(decoder, data)
    elif protocol == "umq":
        yield from _lines(decoder, data)
    else:
        yield from _message(decoder.feed, data, 0, data)


def _decoder(protocol: str, data: bytes, role: str) -> Any:
    """Whoever was meant to read the octets."""
    made = importlib.import_module(f"polywire.protocols.{protocol}").Decoder
    if protocol == "mqtt":
        return made(role=role, max_packet_before_connect=1 << 28)
    if protocol == "micromsg":
        return made(role)
    if protocol == "sabc" and role == "server":
        # The server gave the session its id; all there is to go by is what the client made of it.
        found = SESSION_ID.search(data)
        return made(session_id=found[1].decode() if found else None)
    return made()


def _stream(decoder: Any, data: bytes) -> Iterator[Explained]:
    start = 0
    for at in range(len(data)):
        try:
            frames = decoder.feed(data[at : at + 1])
        except RemoteProtocolError as error:
            for frame in error.frames:
                yield _frame(frame, start, at, data)
            yield _fault(error, start, len(data), data, error.position)
            return
        for frame in frames:
            yield _frame(frame, start, at + 1, data)
        if frames:
            start = at + 1
    if start < len(data):
        yield Explained(start, len(data), "unfinished", (), data[start:], reason="the capture ends within this frame")


def _lines(decoder: Any, data: bytes) -> Iterator[Explained]:
    """A line is a text message; one that begins with ``hex:`` is a binary one."""
    start = 0
    for line in data.splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        message: str | bytes = text.decode(errors="replace")
        if text.startswith(b"hex:"):
            message = bytes.fromhex(text[4:].decode())
        for found in _message(decoder.feed, message, start, text):
            yield found
            if found.fault_at is not None:
                return
        start += len(line)


def _message(feed: Callable[[Any], list[Any]], message: str | bytes, start: int, octets: bytes) -> Iterator[Explained]:
    try:
        frames = feed(message)
    except RemoteProtocolError as error:
        yield _fault(error, start, start + len(octets), octets, start + error.position, base=start)
        return
    for frame in frames:
        yield _frame(frame, start, start + len(octets), octets, base=start)


def _frame(frame: Any, start: int, end: int, data: bytes, base: int = 0) -> Explained:
    octets = data[start - base : end - base]
    if isinstance(frame, Discarded):
        return Explained(start, end, "discarded", (), octets, frame.rule, frame.reason, fault_at=frame.position)
    fields = tuple((name, getattr(frame, name)) for name in frame.__match_args__)
    return Explained(start, end, type(frame).__name__, fields, octets)


def _fault(error: RemoteProtocolError, start: int, end: int, data: bytes, at: int, base: int = 0) -> Explained:
    return Explained(
        start, end, "violation", (), data[start - base : end - base], error.rule, error.reason, fault_at=at
    )
