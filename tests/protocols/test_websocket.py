"""WebSocket frames as a server writes them, read back by a WebSocket library."""

import pytest
from websockets.frames import Frame
from websockets.streams import StreamReader

from polywire.protocols import websocket


def read_back(data: bytes) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    parsing = Frame.parse(reader.read_exact, mask=False)
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


def test_a_connection_is_closed_with_a_code_and_words() -> None:
    frame = read_back(websocket.close(1002, b"why"))
    assert (int(frame.opcode), frame.fin, frame.data) == (8, True, b"\x03\xeawhy")
