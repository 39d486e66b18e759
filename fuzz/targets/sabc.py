"""sABC under the fuzzer: the stream contract, the assembly behind it, the message decoder, and connections."""

from fuzz.contract import check_stream
from polywire.protocols.sabc.connection import Connection
from polywire.protocols.sabc.decoder import Decoder, MessageDecoder
from polywire.protocols.sabc.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.sabc.frames import (
    Assembly,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    Whole,
    encode,
    operation,
    split,
    unfit,
)
from polywire.wire.frame import RAW_KEPT, Discarded, Frame, Role

SESSION = "S1"
LIMIT = 700
MAX_HEAD = 512
UNFINISHED = 3
DROPPED = 4


def decoder() -> Decoder:
    return Decoder(
        session_id=SESSION, max_message=LIMIT, max_head=MAX_HEAD, max_unfinished=UNFINISHED, max_dropped=DROPPED
    )


def learning() -> Decoder:
    return Decoder(max_message=LIMIT, max_head=MAX_HEAD, max_unfinished=UNFINISHED, max_dropped=DROPPED)


def message_decoder() -> MessageDecoder:
    return MessageDecoder(
        session_id=SESSION, max_message=LIMIT, max_head=MAX_HEAD, max_unfinished=UNFINISHED, max_dropped=DROPPED
    )


def check_again(frame: Frame) -> None:
    """A frame that was decoded can be encoded and decoded again, on both kinds of transport."""
    if isinstance(frame, Message) and frame.more:
        try:
            octets = encode(frame)
        except LocalProtocolError:
            assert unfit(frame.body, frame.session_id) is not None
            return
        fresh = Decoder(session_id=SESSION)
        assert fresh.feed(octets) == []
        assert fresh.finish() == [frame]
    elif isinstance(frame, Message):
        try:
            octets = encode(frame)
        except LocalProtocolError:  # what calls itself encoded already is not encoded again
            assert unfit(frame.body, frame.session_id) is not None
            return
        assert octets.decode()
        [again] = Decoder().feed(octets)
        assert isinstance(again, Message)
        if unfit(frame.body, frame.session_id) is None:
            assert again == frame
        else:
            whole = Assembly().add(again)
            assert isinstance(whole, Whole)
            assert whole.body == frame.body
        check_split(frame)
    elif not isinstance(frame, Discarded):
        try:
            octets = encode(frame)
        except LocalProtocolError:
            assert isinstance(frame, Error)
            assert unfit(frame.body, frame.session_id) is not None
            return
        assert Decoder(session_id=SESSION).feed(octets) == [frame]
        assert MessageDecoder().feed(octets) == [frame]


def check_split(frame: Message) -> None:
    """In small frames it is the same message."""
    bare = Message(frame.session_id, frame.msg_id, b"", frame.headers, frame.ref_msg_id)
    try:
        frames = split(frame, len(encode(bare)) + 80)
    except LocalProtocolError:
        return
    stream = b"".join(map(encode, frames))
    reading = Decoder(session_id=frame.session_id)
    back = reading.feed(stream)
    assert back == frames
    assembly = Assembly()
    wholes = [assembly.add(piece) for piece in back if isinstance(piece, Message)]
    assert wholes[:-1] == [None] * (len(wholes) - 1)
    whole = wholes[-1]
    expected = Assembly().add(frame)
    if isinstance(whole, Whole) and isinstance(expected, Whole):
        assert whole.body == expected.body
        assert whole.send_only == expected.send_only


def check_assembly(frames: list[Frame]) -> None:
    """What is unfinished stays within its limits, and every message can be read for the hub."""
    assembly = Assembly()
    for frame in frames:
        if isinstance(frame, Discarded):
            assert len(frame.raw) == min(frame.size, RAW_KEPT) or not frame.raw or frame.rule == "SABC-130"
            if frame.reply is not None:
                assert encode(frame.reply)
        if isinstance(frame, Message):
            whole = assembly.add(frame)
            if isinstance(whole, Whole):
                operation(whole)
                assert len(whole.body) <= LIMIT
        assert len(assembly) <= UNFINISHED + DROPPED
        assert assembly.pending() <= LIMIT * (UNFINISHED + DROPPED)


def check_connection(role: Role, chunks: list[bytes]) -> None:
    """Either end takes anything: each event has its place in the session, and what is answered can be written."""
    session_id = SESSION if role is Role.SERVER else None
    connection = Connection(
        role, session_id=session_id, max_message=LIMIT, max_head=MAX_HEAD, max_unfinished=UNFINISHED
    )
    if role is Role.CLIENT:
        connection.send(Connect("me"))
    for chunk in chunks:
        connection.receive(chunk)
        try:
            while (event := connection.next_event()) is not None:
                if isinstance(event, Discarded):
                    connection.reply(event)
                elif isinstance(event, Connect):
                    connection.send(Connected(SESSION))
                assert not isinstance(event, Whole) or connection.answers
        except RemoteProtocolError as error:
            connection.reply(error)
    connection.finish()
    assert connection.close("429", "over") == []


def run(data: bytes) -> None:
    """The first byte says where to cut, the rest is the stream."""
    stream = data[1:]
    cut = data[0] if data else 0
    held = LIMIT + MAX_HEAD + RAW_KEPT
    whole = check_stream(decoder, stream, [cut, 2 * cut + 1, 5 * cut], held=held)
    check_assembly(whole.frames)
    for frame in whole.frames[:8]:
        check_again(frame)
    check_stream(learning, stream, [cut, 3 * cut + 1], held=held)
    for role in Role:
        check_connection(role, [stream[:cut], stream[cut:]])
    ended = decoder()
    try:
        ended.feed(stream)
        ended.finish()
        assert ended.pending() == 0
    except RemoteProtocolError:
        pass
    messages = message_decoder()
    for part in stream.split(b"\0\0"):
        try:
            frames = messages.feed(part)
        except RemoteProtocolError as error:
            assert not error.frames
            break
        assert len(frames) == 1
        check_assembly(frames)


def seeds() -> list[bytes]:
    headers = (("op", "publish"), ("destination", "a/b"))
    frames: list[Frame] = [
        Connect("me", "secret"),
        Connected(SESSION, 1_500_000_000),
        Message(SESSION, "1", b"Hola", headers),
        Message(SESSION, "2", b"first ", headers, more=True),
        Message(SESSION, "3", b"other\0", more=True),
        Message(SESSION, "2", b"last"),
        Message(SESSION, None, b"OK", ref_msg_id="1"),
        Message(SESSION, "4", b"\xff\0", send_only=True),
        Message(SESSION, "5", b"x" * 800, more=True),
        Message(SESSION, "5", b"x"),
        Error("403", b"Access Forbidden", SESSION, "9"),
        Disconnect(SESSION),
        Disconnecting(SESSION),
    ]
    session = b"session-id::S1\r\n"
    return [
        b"\x07" + b"".join(map(encode, frames)),
        b"\x03MESSAGE\r\n" + session + b"msg-id::1\r\n\r\nno endMESSAGE\r\n" + session + b"msg-id::2\r\n\r\n\r\n\0",
        b"\x01HELLO\r\n\r\nx\r\n\r\n\0CONNECT\r\nclient-id::a\r\n\r\nMESSAGE\r\nmsg-id::1\r\n\r\n\r\n\r\n\0",
        b"\x09DISCONNECT\r\n" + session + b"\r\n\r\n\r\n\0DISCONNECTING\r\nx\r\nDISCONNECT\r\n" + session + b"\r\n",
        b"\x02" + b"".join(encode(Message(SESSION, str(i), b"x", more=True)) for i in range(12)),
        b"\x02ERROR\r\n" + session + b"content-encoding::base64\r\n\r\nYQ==\r\n\r\n\0",
        b"\x02MESSAGE\r\n" + session + b"msg-id::7\r\ncontent-encoding::base64\r\n\r\nYQ==YQ==\r\n\r\n\0",
    ]
