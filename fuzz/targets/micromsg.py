"""MicroMsg2 under the fuzzer: the stream contract in every role, and the pure parts on what the frames hold."""

import json
from typing import Never

from fuzz.contract import Outcome, check_stream, decode
from polywire.protocols.micromsg.connection import Connection, Ended, Limits, Terms
from polywire.protocols.micromsg.errors import ENDS_CONNECTION, MalformedError
from polywire.protocols.micromsg.filters import (
    UNSUBSCRIBE,
    Filter,
    matches,
    read_filter,
    read_subscription,
    subscribe,
    unsubscribe,
    write_filter,
)
from polywire.protocols.micromsg.frames import (
    CLIENT,
    SERVER,
    Command,
    Decoder,
    Error,
    Extension,
    Handshake,
    Message,
    encode,
    renumbered,
)
from polywire.protocols.micromsg.text import (
    BATCH_ACK,
    NamedExtension,
    batch_ack,
    json_problem,
    properties_problem,
    read_extensions,
    read_properties,
    write_extensions,
    write_properties,
)
from polywire.wire.frame import Frame, Role

LIMIT = 600
HEADER = 7 + 255 + LIMIT + 4
SUGGESTED = (NamedExtension("json"), batch_ack(5))
TERMS = Terms("fuzz", optional=SUGGESTED, max_count=20, forwards=True)


def decoder(mode: int) -> Decoder:
    """A server, a client, or a connection that is established."""
    return Decoder(
        CLIENT if mode == 1 else SERVER,
        established=mode == 2,
        max_message=LIMIT,
        max_control=LIMIT,
        max_properties=LIMIT,
        max_handshake=LIMIT,
    )


def run(data: bytes) -> None:
    """The first byte says what the stream is and where to cut it, the rest is the stream."""
    first = data[0] if data else 0
    mode, cut = first % 3, first // 3
    whole = check_stream(lambda: decoder(mode), data[1:], [cut, 2 * cut + 1], held=HEADER + LIMIT)
    for frame in whole.frames:
        check_frame(frame)
    for role in Role:
        check_connection(role, data[1:])
    check_texts(data[1:])


def check_frame(frame: Frame) -> None:
    """What was decoded can be encoded and decoded again, and the pure parts take it without raising."""
    match frame:
        case Handshake(identity, required, optional, major, minor, flags):
            if not (writable(required) and writable(optional)):
                return
            again = decode(Decoder(SERVER, max_handshake=1 << 20), [encode(frame)], held=1 << 20)
            counted = Handshake(identity, with_count(required), with_count(optional), major, minor, flags)
            assert again == Outcome([counted], None)
            return
        case Error(name) if name not in ENDS_CONNECTION:
            return
        case Command():
            request = read_subscription(frame, pub_sub=True)
            if not isinstance(request, Error):
                written = unsubscribe(request[0]) if frame.name == UNSUBSCRIBE else subscribe(*request)
                assert read_subscription(written, pub_sub=True) == request
        case Message(sequence, destination, payload, text):
            found = read_properties(text)
            assert read_properties(write_properties(found)) == found
            check_json(payload)
            other = Message(sequence ^ 1 or 2, destination, payload, text)
            assert renumbered(encode(frame), other.sequence) == encode(other)
    again = decode(Decoder(established=True, max_control=1 << 20), [encode(frame)], held=1 << 20)
    assert again == Outcome([frame], None), (frame, again)


def check_connection(role: Role, data: bytes) -> None:
    """Either end of a connection takes any bytes, and what it answers can be read by the other end."""
    connection = Connection(role, TERMS, Limits(LIMIT, LIMIT, LIMIT, LIMIT))
    said = connection.handshake() if role is Role.CLIENT else b""
    connection.receive(data)
    while (event := connection.next_event()) is not None:
        if isinstance(event, Handshake) and not connection.is_established():
            said += connection.handshake()
        elif isinstance(event, Message) and connection.ack_number:
            said += connection.acknowledge(event.sequence)
        elif isinstance(event, Ended):
            said += connection.close(event.error)
    Decoder(SERVER if role is Role.CLIENT else CLIENT, max_handshake=1 << 20).feed(said)
    if connection.agreement is not None:
        assert 0 <= connection.agreement.window <= TERMS.max_count


def check_texts(data: bytes) -> None:
    """Lists, properties, filters and JSON made of any bytes."""
    check_json(data)
    try:
        listed = read_extensions(data)
    except MalformedError:
        pass
    else:
        if writable(listed):
            assert read_extensions(write_extensions(listed)) == with_count(listed)
    text = data.decode("utf-8", "replace")
    condition = read_filter(text)
    if isinstance(condition, Filter):
        assert read_filter(write_filter(condition)) == condition
        matches(condition, {"a": 1, "b": "text"})
    wrong = properties_problem(data, 0, len(data))
    try:
        read_properties(text)
    except MalformedError:
        assert wrong is not None
    else:
        assert wrong is None or not data.isascii() or not text.isprintable()


def writable(listed: tuple[NamedExtension, ...]) -> bool:
    """Whether a list could be ours: names with upper-case letters are read and never written."""
    names = [name for each in listed for name in (each.name, *(key for key, _ in each.properties))]
    return all(name == name.lower() for name in names)


def with_count(listed: tuple[NamedExtension, ...]) -> tuple[NamedExtension, ...]:
    """A list as we write it, with a count for ``batch-ack``."""
    return tuple(batch_ack(each.max_count) if each.name == BATCH_ACK else each for each in listed)


def check_json(payload: bytes) -> None:
    """Our walk and the standard library's parser agree on what JSON is."""
    reason = json_problem(payload, 100)
    try:
        json.loads(payload.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        assert reason is not None, payload
    else:
        assert reason is None or "deeper" in reason, (payload, reason)


def refuse(constant: str) -> Never:
    raise ValueError(constant)


def seeds() -> list[bytes]:
    offer = Handshake("hulk", (NamedExtension("json"),), (batch_ack(100),))
    messages = [
        Message(1, "topic/rooms", b'{"a": [1, -2.5e3, "\\u00e9", null]}', "room:N12;when:D1413198000.5;name:Ta%20b;"),
        Message(65535, "commands", b"x" * 300, "first_name:jonas;"),
        Command("subscribe", (("destination", "topic/rooms"), ("filter", "room>=N10;name<Tkit%20"))),
        Command("ping"),
        Extension(3, b"\0\x04"),
        Error("unsupported-extension", (("name", "xml"),)),
    ]
    frames = b"".join(map(encode, messages))
    continued = b"\x10\0\x01\x01q\0\x05k:N1;\x02ab" + encode(Extension(1, b"\0\x01")) + b"\0\0\x01\x01q\0\0\x02cd"
    auth = b"\x01\0\0\x01c\0\0\0\x1ex-auth:user=a,password=b%20c;ab"
    return [
        b"\x15" + encode(offer) * 2 + frames,
        b"\x16" + encode(offer) + frames,
        b"\x16" + encode(messages[5]),
        b"\x17" + frames,
        b"\x17" + continued,
        b"\x00" + auth,
        b"\x02" + b"batch-ack:max-count:100;json;x-a:b=c",
        b"\x02" + b"batch-ack;extensionName1:propName1=propValue2",
        b"\x17" + b"\x01\x23SUBSCRIBE;destination=topic%2Frooms" + b"\x02\x00\x01a",
        b"\x02" + b"room>=N10;name<Tkit;when!=D1.5",
        b"\x02" + b'{"a": [true, false, null, 1e9, "\\n"]}',
    ]
