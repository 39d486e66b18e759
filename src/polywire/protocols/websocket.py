"""WebSocket frames as they are written, for protocols whose messages are WebSocket messages.

Sessions and clients collect whole frames, so that one write per turn carries many messages. Reading, the opening
handshake and control frames are the business of whoever has the socket.
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i16_be, write_i32_le, write_i64_be, write_i64_le
from mypy_extensions import i16, i32, i64

TEXT: Final = 0x81
BINARY: Final = 0x82
CLOSE: Final = 0x88
"""Opcodes with the FIN bit: messages are written in one frame each."""

MASKED: Final = 0x80
LOOPED: Final = 4096
"""Payloads up to this many octets are masked word by word, longer ones as one number."""


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
    return _header(opcode, length, 0).getvalue()


def masked(opcode: int, payload: bytes, key: i64) -> bytes:
    """A client's message in one frame; ``key`` is 32 bits nobody can foresee."""
    length: i64 = len(payload)
    out = _header(opcode, length, MASKED)
    write_i32_le(out, i32(key if key < 0x8000_0000 else key - 0x1_0000_0000))
    if length > LOOPED:
        return out.getvalue() + _masked_at_once(payload, int(key))
    half: i64 = key if key < 0x8000_0000 else key - 0x1_0000_0000
    word: i64 = (half << 32) | key
    at: i64 = 0
    while at + 8 <= length:
        write_i64_le(out, read_i64_le(payload, at) ^ word)
        at += 8
    while at < length:
        out.append(i64(payload[at]) ^ ((key >> ((at & 3) << 3)) & 255))
        at += 1
    return out.getvalue()


def _masked_at_once(payload: bytes, key: int) -> bytes:
    length = len(payload)
    mask = (key.to_bytes(4, "little") * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(length, "little")


def _header(opcode: int, length: i64, mask: i64) -> BytesWriter:
    out = BytesWriter()
    out.append(opcode)
    if length < 126:
        out.append(length | mask)
    elif length < 65536:
        out.append(126 | mask)
        write_i16_be(out, i16(length if length < 32768 else length - 65536))
    else:
        out.append(127 | mask)
        write_i64_be(out, length)
    return out
