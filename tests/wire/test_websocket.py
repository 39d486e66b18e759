"""WebSocket frames as they are written, read back by a WebSocket library and by our own reader."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.streams import StreamReader

from polywire.wire import websocket


def read_back(data: bytes, *, mask: bool = False) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    parsing = Frame.parse(reader.read_exact, mask=mask)
    with pytest.raises(StopIteration) as done:
        next(parsing)
    frame = done.value.value
    assert isinstance(frame, Frame)
    return frame


@pytest.mark.parametrize("size", [0, 1, 125, 126, 32767, 32768, 65535, 65536, 200_000])
def test_a_frame_of_any_size_is_read_back(size: int) -> None:
    text, binary = read_back(websocket.text(b"x" * size)), read_back(websocket.binary(b"y" * size))
    assert (int(text.opcode), text.fin, text.data) == (1, True, b"x" * size)
    assert (int(binary.opcode), binary.fin, binary.data) == (2, True, b"y" * size)


@pytest.mark.parametrize("key", [0, 1, 0x01020304, 0x7FFF_FFFF, 0x8000_0000, 0xFFEE_DDCC, 0xFFFF_FFFF])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 125, 126, 4096, 4097, 65535, 65536])
def test_a_masked_frame_of_any_size_is_read_back(size: int, key: int) -> None:
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    data = websocket.masked(websocket.BINARY, payload, key)
    frame = read_back(data, mask=True)
    assert (int(frame.opcode), frame.fin, frame.data) == (2, True, payload)
    assert len(data) - size in {6, 8, 14}
    assert size == 0 or key.to_bytes(4, "little") in data[:14]


def test_a_connection_is_closed_with_a_code_and_words() -> None:
    frame = read_back(websocket.close(1002, b"why"))
    assert (int(frame.opcode), frame.fin, frame.data) == (8, True, b"\x03\xeawhy")


FRAMES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([websocket.TEXT, websocket.BINARY]), st.binary(max_size=300)),
        st.tuples(st.sampled_from([websocket.PING, websocket.PONG]), st.binary(max_size=125)),
        st.tuples(st.just(websocket.BINARY), st.sampled_from([125, 126, 1024, 1025, 65535, 65536]).map(bytes)),
    ),
    max_size=8,
)


def fed(reader: websocket.Reader, data: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    """What a reader makes of data that arrives in pieces of these sizes, the last of them as often as needed."""
    found: list[tuple[int, bytes]] = []
    at = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        if at >= len(data):
            return found
        found += reader.feed(data[at : at + size])
        at += size
    raise AssertionError


@given(FRAMES, st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.booleans(), st.integers(0, 0xFFFF_FFFF))
def test_frames_are_read_however_they_are_cut(
    frames: list[tuple[int, bytes]], sizes: list[int], client: bool, key: int
) -> None:
    written = [
        websocket.masked(opcode, payload, key) if client else websocket.header(opcode, len(payload)) + payload
        for opcode, payload in frames
    ]
    assert fed(websocket.Reader(1 << 20, masked=client), b"".join(written), sizes) == frames


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=6), st.booleans(), st.integers(1, 20))
def test_a_message_in_parts_is_one_and_control_frames_may_come_between(
    parts: list[bytes], stream: bool, size: int
) -> None:
    data = b""
    for number, part in enumerate(parts):
        opcode = (0x02 if number == 0 else 0x00) | (0x80 if number == len(parts) - 1 else 0)
        data += websocket.masked(opcode, part, 7) + websocket.masked(websocket.PING, b"p", 9)
    found = fed(websocket.Reader(1000, masked=True, stream=stream), data, [size])
    messages = [payload for opcode, payload in found if opcode == websocket.BINARY]
    assert messages == (parts if stream else [b"".join(parts)])
    assert found.count((websocket.PING, b"p")) == len(parts)


def test_nothing_comes_after_a_fault_or_a_close() -> None:
    message = websocket.text(b"x")
    for last, code in (
        (websocket.close(1000, b"bye"), 1000),
        (b"\x83\x00", 1002),
        (b"\x81\x7f" + bytes([0x7F] * 8), 1009),
    ):
        reader = websocket.Reader(100, masked=False)
        (first, (kind, payload)) = reader.feed(message + last + message)
        assert first == (websocket.TEXT, b"x")
        assert kind == (websocket.CLOSE if code == 1000 else websocket.FAULT)
        assert int.from_bytes(payload[:2], "big") == code
        assert reader.feed(message) == []


def test_a_message_may_have_as_much_as_the_limit_in_one_frame_or_in_parts() -> None:
    whole, part = websocket.binary(bytes(100)), b"\x02\x32" + bytes(50)
    for data, size in ((whole, 100), (part + b"\x80\x32" + bytes(50), 100)):
        assert websocket.Reader(100, masked=False).feed(data) == [(websocket.BINARY, bytes(size))]
        ((kind, payload),) = websocket.Reader(99, masked=False).feed(data)
        assert (kind, payload[:2]) == (websocket.FAULT, (1009).to_bytes(2, "big"))


def test_closing_codes_that_may_be_sent() -> None:
    sendable = [code for code in range(65536) if websocket.is_sendable(code)]
    assert sendable == [*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)]
