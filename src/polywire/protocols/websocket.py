"""WebSocket frames as a server writes them, for protocols whose messages are WebSocket messages.

Sessions put whole frames into their outbox, so that one write per turn carries many messages. Reading, the opening
handshake and control frames are the server's business.
"""

from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i64_be
from mypy_extensions import i16, i64

TEXT: Final = 0x81
BINARY: Final = 0x82
CLOSE: Final = 0x88
"""Opcodes with the FIN bit: messages are written in one frame each."""


def text(payload: bytes) -> bytes:
    """A text message; the payload is UTF-8 already."""
    return header(TEXT, len(payload)) + payload


def binary(payload: bytes) -> bytes:
    """A binary message."""
    return header(BINARY, len(payload)) + payload


def close(code: int, reason: bytes = b"") -> bytes:
    """The frame that ends the connection, with a status code of RFC 6455 and at most 123 octets of UTF-8."""
    return header(CLOSE, 2 + len(reason)) + code.to_bytes(2, "big") + reason


def header(opcode: int, length: i64) -> bytes:
    """What stands before a payload of this length. A server's frames are not masked."""
    out = BytesWriter()
    out.append(opcode)
    if length < 126:
        out.append(length)
    elif length < 65536:
        out.append(126)
        write_i16_be(out, i16(length if length < 32768 else length - 65536))
    else:
        out.append(127)
        write_i64_be(out, length)
    return out.getvalue()
