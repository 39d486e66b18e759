"""WebSocket frames as they are written, read back by a WebSocket library."""

import pytest
from websockets.frames import Frame
from websockets.streams import StreamReader

from polywire.protocols import websocket


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
