"""The hub's messages as sABC carries them, and back: headers, content type, and the octets behind a frame's ids.

All subscribers of a message get the same octets from the line behind their msg-id on, so those are made once and kept
with the message (``shared``). What sABC can't write (a value with ``::`` or a line end in it, an attachment) is left
behind.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from polywire.hub.channels import to_stars
from polywire.hub.message import Date, Headers, HeaderValue, Message
from polywire.hub.outbox import JOIN_BELOW
from polywire.protocols.sabc.frames import CR, EMPTY_LINE, NUL, TERMINATOR, to_base64, unfit
from polywire.protocols.sabc.headers import (
    BASE64,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    DESTINATION,
    METHOD,
    OP,
    RESERVED,
    SERVICE,
    SUBSCRIPTION,
    Header,
    http_date,
    line_problem,
)

OWN: Final = frozenset({OP, DESTINATION, SERVICE, METHOD, SUBSCRIPTION, CONTENT_TYPE, *RESERVED})
"""Headers that mean something on sABC itself: one of that name in a message is not written."""

SESSION_MARK: Final = b"\r\nsession-id::"
MAX_DESTINATIONS: Final = 4096
LONGEST_KEPT: Final = 256
"""How many destinations, and of which length, are kept as they stand in a header."""

_destinations: Final[dict[str, bytes]] = {}
_writer: Final = BytesWriter()


@final
@mypyc_attr(acyclic=True)
class Marked:
    """In place of shared octets: the body has a line ``session-id::…`` in it, so each session must look for its own."""


MARKED: Final = Marked()


def shared(message: Message, key: int) -> object:
    """What stands behind the msg-id of a pushed message: octets, or ``MARKED``. It is kept with the message."""
    body = message.body
    made: object
    if not body.isascii() or NUL in body or CR in body:
        plain = unfit(body, None) is None
        if plain and SESSION_MARK in body:
            made = MARKED
        else:
            made = destination_line(message.channel) + content(message, plain=plain)
    elif message.headers or message.content_type or not body or len(body) >= JOIN_BELOW:
        made = destination_line(message.channel) + content(message, plain=True)
    else:
        out = _writer
        out.truncate(0)
        out.write(destination_line(message.channel))
        out.write(EMPTY_LINE)
        out.write(body)
        out.write(TERMINATOR)
        made = out.getvalue()
    message.encoded[key] = made
    return made


def apart(message: Message, session_id: str) -> bytes:
    """The same for one session alone, where its own id may stand in the body (SABC-126)."""
    return destination_line(message.channel) + content(message, plain=unfit(message.body, session_id) is None)


def destination_line(channel: str) -> bytes:
    """The line with the channel's name, or nothing where that can't stand in a header."""
    line = _destinations.get(channel)
    if line is None:
        name = to_stars(channel)
        line = b"\r\ndestination::" + name.encode() if line_problem(DESTINATION, name) is None else b""
        if len(channel) <= LONGEST_KEPT:
            if len(_destinations) >= MAX_DESTINATIONS:
                _destinations.clear()
            _destinations[channel] = line
    return line


def content(message: Message, *, plain: bool) -> bytes:
    """The message's headers, the empty line, its body and the null portion; as base64 where it is not ``plain``."""
    body = message.body
    if not message.headers and not message.content_type:
        if not body:
            return TERMINATOR
        if plain:
            return EMPTY_LINE + body + TERMINATOR
    lines: list[str] = [""]
    if message.content_type and line_problem(CONTENT_TYPE, message.content_type) is None:
        lines.append("content-type::" + message.content_type)
    for key, value in message.headers:
        text = header_text(value)
        if key in OWN or text is None or line_problem(key, text) is not None:
            continue
        if key != CONTENT_ENCODING or (plain and text != BASE64):
            lines.append(key + "::" + text)
    if not plain:
        lines.append("content-encoding::base64")
        body = to_base64(body)
    head = "\r\n".join(lines).encode() + EMPTY_LINE
    return head + body + TERMINATOR if body else head + b"\0"


def header_text(value: HeaderValue) -> str | None:
    """A header's value as text: dates as HTTP writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Date):
        try:
            return http_date(int(value.seconds))
        except (ValueError, OverflowError):
            return None
    return str(value)


def incoming(channel: str, body: bytes, headers: tuple[Header, ...], *, time: int, origin: int) -> Message:
    """The hub's message of what a client sent: its content type apart, all other headers along (SABC-118)."""
    content_type = ""
    carried: Headers = ()
    if headers:
        kept: list[tuple[str, HeaderValue]] = []
        for key, value in headers:
            if key == CONTENT_TYPE:
                content_type = value
            elif key not in OWN:
                kept.append((key, value))
        carried = tuple(kept)
    return Message(channel, body, content_type, carried, time=time, origin=origin)
