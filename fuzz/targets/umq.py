"""UMQ under the fuzzer: sequences of text and binary messages, and the hub's payloads."""

from collections import deque
from typing import Any

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    Connection,
    Decoder,
    MethodError,
    RemoteProtocolError,
    Role,
    SetAttribute,
    TopicUpdate,
    UnsetAttribute,
    Welcome,
    encode,
)
from polywire.protocols.umq.methods import read_envelope, read_method, read_request, write_method
from polywire.wire.frame import Frame

TEXT = 300
BINARY = 200
UNFINISHED = 20


def decoder() -> Decoder:
    return Decoder(max_text=TEXT, max_binary=BINARY, max_unfinished=UNFINISHED)


def split(data: bytes) -> list[str | bytes]:
    """The messages in the fuzzer's bytes: lines, those that begin with NUL being binary ones."""
    return [line[1:] if line[:1] == b"\0" else line.decode(errors="ignore") for line in data.split(b"\n")]


def join(messages: list[str | bytes]) -> bytes:
    """The inverse of ``split``, for messages without line ends."""
    return b"\n".join(b"\0" + one if isinstance(one, bytes) else one.encode() for one in messages)


def summary(error: RemoteProtocolError) -> tuple[object, ...]:
    return (error.rule, error.reason, error.position, error.reply, type(error))


def feed_all(messages: list[str | bytes]) -> tuple[list[Frame], tuple[object, ...] | None]:
    """What the decoder makes of the messages, its bounds and its error checked on the way."""
    decoding = decoder()
    frames: list[Frame] = []
    for message in messages:
        try:
            found = decoding.feed(message)
        except RemoteProtocolError as error:
            assert not error.frames
            check_error(error, message)
            check_repeats(decoding, error)
            return frames, summary(error)
        assert len(found) == 1
        frames += found
        assert decoding.pending() == 0
        assert 0 <= decoding.unfinished() <= UNFINISHED
    return frames, None


def check_error(error: RemoteProtocolError, message: str | bytes) -> None:
    """The error names a place in the message, and its reply can be sent."""
    assert 0 <= error.position <= len(message)
    assert isinstance(error.reply, Frame)
    reply = encode(error.reply)
    assert decoder().feed(reply) == [error.reply]


def check_repeats(decoding: Decoder, error: RemoteProtocolError) -> None:
    for message in ("H1:", b""):
        try:
            decoding.feed(message)
        except RemoteProtocolError as again:
            assert summary(again) == summary(error)
        else:
            raise AssertionError("a decoder went on after its error")


def check_order(frames: list[Frame]) -> None:
    """Attachments are matched first-in-first-out, and nothing is matched that was not announced."""
    due: deque[tuple[int, int]] = deque()
    ordinal = 0
    for frame in frames:
        if isinstance(frame, (Attachment, AttachmentError)):
            assert (frame.owner, frame.index) == due.popleft()
        elif getattr(frame, "attachments", 0):
            ordinal += 1
            owner: Any = frame
            assert owner.ordinal == ordinal
            due += [(ordinal, index) for index in range(owner.attachments)]
    assert len(due) <= UNFINISHED


def check_bookkeeping(messages: list[str | bytes]) -> None:
    """Whatever the peer sends, in whatever order, what is remembered of it is bounded, and replies can be sent."""
    connection: Connection[str, str] = Connection(Role.SERVER, max_unfinished=UNFINISHED, in_flight=2, topics=2)
    connection.receive("H1:")
    connection.next_event()
    connection.send(Welcome(1))
    connection.subscriptions.open(1)
    connection.publications.open(1)
    for message in messages:
        try:
            connection.receive(message)
            while connection.next_event() is not None:
                if connection.reply is not None:
                    connection.send(connection.reply)
        except RemoteProtocolError as wrong:
            check_error(wrong, message)
            if isinstance(wrong.reply, Frame):
                connection.send(wrong.reply)
        assert len(connection.requests) <= 2
        assert len(connection.publications) <= 1
        assert len(connection.subscriptions) <= 1
    attributes = connection.attributes
    for name in list(attributes):
        attributes.unset(UnsetAttribute(name))
    assert attributes.size == 0


def check_payload(payload: str, attachments: int) -> None:
    """Any payload is a method, a request, an envelope, or the documented error."""
    try:
        method = read_method(payload, attachments)
    except MethodError as error:
        assert error.payload.startswith(f"{error.code.value} ")
        error.payload.encode()
    else:
        extra = [bytes([255])] * attachments
        written = write_method(method, extra)
        assert read_method(written.text, len(written.attachments)) == method
    for read in (read_request, read_envelope):
        try:
            read(payload, attachments)
        except MethodError as error:
            error.payload.encode()


def run(data: bytes) -> None:
    messages = split(data)
    frames, error = feed_all(messages)
    assert error is not None or len(frames) == len(messages)
    check_order(frames)
    again, none = feed_all([encode(frame) for frame in frames])
    assert none is None
    assert again == frames
    check_bookkeeping(messages)
    for frame in frames:
        if isinstance(frame, (Call, Callback, TopicUpdate)):
            check_payload(frame.payload, frame.attachments)
    check_payload(data.decode(errors="ignore"), len(data) % 3)


def seeds() -> list[bytes]:
    conversation: list[str | bytes] = [
        "H1:token",
        'C1:["subscribe","home/*/temperature","7Z",{"envelope":true}]',
        'A2:C2:["publish","home/door",null,{"headers":{"a":1,"b":"c"},"retain":true,"content_type":"image/png"}]',
        b"\x89PNG",
        "-:Upstream download error",
        'C3:["call","lamp","toggle",{"room":[1,2.5,null]},{"timeout":100,"stream":5}]',
        'B63:4454:["method","body"]',
        "A1:T9A8Z: update1",
        "S:key=value",
        b"",
        'T1:{"channel":"a","headers":{"x":1},"body":"text","ts":1}',
    ]
    others: list[str | bytes] = ["W1:", "R5AX12:Fine", "E112:I'm teapot", "D9A8Z:", "U9A8Z:", "X:key", "F0:3 Protocol"]
    plain = [b'["serve","lamp",5]', b'["unserve","lamp"]', b'["whoami"]', b'["unsubscribe",7]', b"[" * 2000]
    attached = [encode(SetAttribute("a", "b", 1)), encode(Attachment(b"x"))]
    return [join(conversation), join(others), join(attached), b"C3W5E11264SGSG:", *plain]
