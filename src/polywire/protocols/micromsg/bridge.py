"""A hub's message as MicroMsg2 carries it, and back: properties are headers, types and JSON have their extensions.

Connections differ in what they agreed on, so a message has several forms: with ``json`` nobody need be told that it is
JSON, with ``dotnet`` its type goes in a frame of its own. Each form is encoded once, with sequence number 1; whoever
sends it puts its own number in. What has no place in MicroMsg2 is left behind.

The frames of vendor extensions that came before a message travel in one header, as ``x-name=base64 x-name=base64``, so
that they survive queues and the journal in their order. No property can have the header's name.
"""

import binascii
from datetime import datetime, timedelta
from typing import Final, cast

from polywire.hub.channels import to_stars
from polywire.hub.message import Date, Headers, HeaderValue, Message
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import Message as MessageFrame
from polywire.protocols.micromsg.frames import encode
from polywire.protocols.micromsg.text import (
    EPOCH,
    MAX_PROPERTIES,
    Value,
    as_key,
    json_problem,
    read_properties,
    write_properties,
)

TOPIC: Final = "topic/"
CONTENT_TYPE: Final = "content-type"
DOTNET_TYPE: Final = "dotnet-type"  # MICROMSG-149
JSON_TYPE: Final = "application/json"
VENDOR_FRAMES: Final = "micromsg.extensions"  # MICROMSG-193
MAX_VENDOR_FRAMES: Final = 16
MAX_VENDOR_BYTES: Final = 16 * 1024
"""MICROMSG-194: how many frames of vendor extensions a message may have, and how many bytes in all of them."""

WITH_JSON: Final = 1
WITH_DOTNET: Final = 2
FORMS: Final = 16
"""How many places in ``Message.encoded`` belong to a protocol."""
PROPERTIES: Final = 4
IS_JSON: Final = 5
VENDORS: Final = 6


def as_topic(message: Message, protocol: int, form: int) -> bytes:
    """The message to the subscribers of its topic; empty where MicroMsg2 can't carry it."""
    key = protocol * FORMS + form
    octets = message.encoded.get(key)
    if octets is None:
        octets = encoded(message, TOPIC + to_stars(message.channel), form)
        message.encoded[key] = octets
    return cast("bytes", octets)


def encoded(message: Message, destination: str, form: int) -> bytes:
    """The message to a destination; empty where MicroMsg2 can't carry it."""
    text = properties_text(message, form) if message.headers or message.content_type else ""
    try:
        return encode(MessageFrame(1, destination, message.body, text))
    except LocalProtocolError:
        return b""


def is_json(message: Message, protocol: int) -> bool:
    """Whether the body is JSON, looked at once."""
    key = protocol * FORMS + IS_JSON
    known = message.encoded.get(key)
    if known is None:
        known = json_problem(message.body) is None
        message.encoded[key] = known
    return bool(known)


def type_name(message: Message) -> str:
    """The .NET type of the message, empty where it has none."""
    if not message.headers:
        return ""
    value = message.header(DOTNET_TYPE)
    return value if isinstance(value, str) else ""


def write_vendor_frames(frames: list[tuple[str, bytes]]) -> str:
    """The header that carries frames of vendor extensions, each with the extension's name and the payload."""
    return " ".join(
        [f"{name}={binascii.b2a_base64(payload, newline=False).decode('ascii')}" for name, payload in frames]
    )


def vendor_frames(message: Message, protocol: int) -> list[tuple[str, bytes]]:
    """The frames of vendor extensions that go before the message, read once. Other protocols may set the header too."""
    key = protocol * FORMS + VENDORS
    known = message.encoded.get(key)
    if known is None:
        known = _read_vendor_frames(message.header(VENDOR_FRAMES))
        message.encoded[key] = known
    return cast("list[tuple[str, bytes]]", known)


def _read_vendor_frames(value: HeaderValue | None) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    if not isinstance(value, str):
        return found
    total = 0
    for part in value.split(" ", MAX_VENDOR_FRAMES)[:MAX_VENDOR_FRAMES]:
        name, equals, text = part.partition("=")
        try:
            payload = binascii.a2b_base64(text, strict_mode=True) if text else b""
        except ValueError:
            continue
        total += len(payload)
        if equals and total <= MAX_VENDOR_BYTES:
            found.append((name, payload))
    return found


def filtered_properties(message: Message, protocol: int) -> dict[str, Value]:
    """What filters look at: all the properties the message would have without extensions."""
    key = protocol * FORMS + PROPERTIES
    known = message.encoded.get(key)
    if known is None:
        known = _properties(message, 0)
        message.encoded[key] = known
    return cast("dict[str, Value]", known)


def properties_text(message: Message, form: int) -> str:
    """The properties of a message in one form, as many as there is room for."""
    text = ""
    for key, value in _properties(message, form).items():
        try:
            one = write_properties({key: value})
        except LocalProtocolError:
            continue
        if len(text) + len(one) <= MAX_PROPERTIES:
            text += one
    return text


def headers(text: str, named_type: str, attached: str) -> tuple[str, Headers]:
    """The content type and the headers of a message with these properties.

    ``named_type`` is what a ``dotnet`` frame said, ``attached`` what ``write_vendor_frames`` made; both may be empty.
    """
    content_type = ""
    found: list[tuple[str, HeaderValue]] = []
    if text:
        for key, value in read_properties(text).items():
            if key == CONTENT_TYPE and isinstance(value, str):
                content_type = value
            elif key == DOTNET_TYPE and named_type:
                continue
            elif isinstance(value, datetime):
                found.append((key, Date((value - EPOCH).total_seconds())))
            else:
                found.append((key, value))
    if named_type:
        found.append((DOTNET_TYPE, named_type))
    if attached:
        found.append((VENDOR_FRAMES, attached))
    return (content_type, tuple(found))


def _properties(message: Message, form: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in message.headers:
        if name == VENDOR_FRAMES or (form & WITH_DOTNET and name == DOTNET_TYPE):
            continue
        key = as_key(name)
        if not key or key in found:
            continue
        if isinstance(value, Date):
            try:
                found[key] = EPOCH + timedelta(seconds=value.seconds)
            except (OverflowError, ValueError):
                continue
        else:
            found[key] = value
    content_type = message.content_type
    if content_type and not (form & WITH_JSON and content_type == JSON_TYPE):
        found[CONTENT_TYPE] = content_type
    return found
