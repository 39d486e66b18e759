"""WebSocket frames (RFC 6455), for protocols whose messages are WebSocket messages.

Sessions and clients collect whole frames, so that one write per turn carries many messages; ``Reader`` reads the frames
of the other side. The opening handshake is made where the socket is.
"""

from typing import Final, final

from librt.strings import (
    BytesWriter,
    read_i32_le,
    read_i64_be,
    read_i64_le,
    write_i16_be,
    write_i32_le,
    write_i64_be,
    write_i64_le,
)
from mypy_extensions import i16, i32, i64

try:
    from websockets.speedups import apply_mask
except ImportError:  # it was built without a C compiler
    from websockets.utils import apply_mask

TEXT: Final = 0x81
BINARY: Final = 0x82
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A
"""Opcodes with the FIN bit: messages are written in one frame each."""

FAULT: Final = 0
"""In the place of an opcode: the other side broke a rule."""

NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_TEXT: Final = 1007
MESSAGE_TOO_BIG: Final = 1009
"""Closing codes."""

MASKED: Final = 0x80
LOOPED: Final = 1024
"""Payloads up to this many bytes are masked here; for longer ones the function of ``websockets`` is faster."""

FIN: Final = 0x80
RESERVED: Final = 0x70
CONTROL: Final = 0x08
LARGEST_CONTROL: Final = 125


def text(payload: bytes) -> bytes:
    """A text message; the payload is UTF-8 already."""
    return header(TEXT, len(payload)) + payload


def binary(payload: bytes) -> bytes:
    """A binary message."""
    return header(BINARY, len(payload)) + payload


def close(code: int, reason: bytes = b"") -> bytes:
    """The frame that ends the connection, with a status code of RFC 6455 and at most 123 bytes of UTF-8."""
    return header(CLOSE, 2 + len(reason)) + code.to_bytes(2, "big") + reason


def header(opcode: int, length: i64) -> bytes:
    """The header of a payload of this length. A server's frames are not masked."""
    return _header(opcode, length, 0).getvalue()


def masked(opcode: int, payload: bytes, key: i64) -> bytes:
    """A client's message in one frame; ``key`` is 32 unpredictable bits."""
    length: i64 = len(payload)
    out = _header(opcode, length, MASKED)
    write_i32_le(out, i32(key if key < 0x8000_0000 else key - 0x1_0000_0000))
    if length > LOOPED:
        return out.getvalue() + apply_mask(payload, int(key).to_bytes(4, "little"))
    _mask(out, payload, 0, length, key)
    return out.getvalue()


def _mask(out: BytesWriter, data: bytes, start: i64, end: i64, key: i64) -> None:
    """Write a part of ``data`` with its masking put on or taken off, which is the same."""
    half: i64 = key if key < 0x8000_0000 else key - 0x1_0000_0000
    word: i64 = (half << 32) | key
    at: i64 = start
    while at + 8 <= end:
        write_i64_le(out, read_i64_le(data, at) ^ word)
        at += 8
    while at < end:
        out.append(i64(data[at]) ^ ((key >> (((at - start) & 3) << 3)) & 255))
        at += 1


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


@final
class Reader:
    """Reads the frames of one side, which masks them if it is the client. ``limit`` is the most a message may have.

    ``feed`` returns what has arrived: pairs of an opcode and a payload. That of a message is ``TEXT`` or ``BINARY``;
    whether a text is UTF-8 is the caller's to check. Control frames are ``PING``, ``PONG`` and ``CLOSE``. A ``FAULT``
    has the payload of the ``CLOSE`` to answer with. Nothing comes after a ``FAULT`` or a ``CLOSE``.

    On a ``stream`` it does not matter how messages are cut: each frame is returned by itself, and text is a fault.
    """

    def __init__(self, limit: int, *, masked: bool, stream: bool = False) -> None:
        self._limit: i64 = limit
        self._mask: i64 = MASKED if masked else 0
        self._stream = stream
        self._over = False
        self._kind: i64 = 0  # opcode of the message that has begun, 0 if none has
        self._parts = bytearray()  # of that message
        self._begun = bytearray()  # a frame that is not complete
        self._wanted: i64 = 0  # bytes needed to continue with it

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Read what has arrived."""
        found: list[tuple[int, bytes]] = []
        at: i64 = 0
        while self._begun:
            missing: i64 = self._wanted - len(self._begun)
            self._begun += data if at == 0 and missing >= len(data) else data[at : at + missing]
            if len(self._begun) < self._wanted:
                return found
            at += missing
            whole = bytes(self._begun)
            self._begun.clear()
            self._read(whole, 0, found)
        self._read(data, at, found)
        return found

    def pending(self) -> int:
        """How many bytes of a message are held that has not arrived whole."""
        return len(self._begun) + len(self._parts)

    def _read(self, data: bytes, at: i64, found: list[tuple[int, bytes]]) -> None:
        """Read all frames from ``at`` on that are complete, and keep the rest."""
        end: i64 = len(data)
        while at < end and not self._over:
            start: i64 = at + 2
            if start > end:
                self._wanted = 2
                break
            first: i64 = data[at]
            length: i64 = data[at + 1]
            mask: i64 = length & MASKED
            length &= 127
            if length > LARGEST_CONTROL:
                start += 2 if length == 126 else 8
            if mask:
                start += 4
            if start > end:
                self._wanted = start - at
                break
            if length > LARGEST_CONTROL:
                length = _extended(data, at + 2, length)
            problem = self._problem(first, mask, length)
            if problem:
                self._over = True
                found.append((FAULT, problem))
                break
            if length > end - start:
                self._wanted = start - at + length
                break
            at = start + length
            payload = _unmasked(data, start, at) if mask else data[start:at]
            if TEXT <= first <= BINARY:  # a whole message
                found.append((int(first), payload))
            else:
                self._take(first, payload, found)
        if at < end and not self._over:
            self._begun += data[at:]

    def _problem(self, first: i64, mask: i64, length: i64) -> bytes:
        """The payload of the ``CLOSE`` for a frame that may not come now, empty where it may."""
        if mask != self._mask:
            return _closing(PROTOCOL_ERROR, b"a frame is not masked" if self._mask else b"a frame is masked")
        if first & RESERVED:
            return _closing(PROTOCOL_ERROR, b"a reserved bit is set")
        opcode: i64 = first & 15
        if opcode & CONTROL:
            if opcode > 10:
                return _closing(PROTOCOL_ERROR, b"an unknown opcode")
            if length > LARGEST_CONTROL or not first & FIN:
                return _closing(PROTOCOL_ERROR, b"a control frame is too long or in parts")
            return b""
        if opcode > 2:
            return _closing(PROTOCOL_ERROR, b"an unknown opcode")
        if (opcode == 0) != (self._kind != 0):
            return _closing(PROTOCOL_ERROR, b"a frame out of place")
        if self._stream and opcode == 1:
            return _closing(UNSUPPORTED_DATA, b"only binary messages are spoken here")
        if length < 0 or length > self._limit - len(self._parts):
            return _closing(MESSAGE_TOO_BIG, b"the message is too big")
        return b""

    def _take(self, first: i64, payload: bytes, found: list[tuple[int, bytes]]) -> None:
        """A control frame, or a part of a message."""
        if first & CONTROL:
            if first == CLOSE:
                self._over = True
                problem = _closing_problem(payload)
                if problem:
                    found.append((FAULT, problem))
                    return
            found.append((int(first), payload))
            return
        if self._kind == 0:
            self._kind = first | FIN
        if self._stream:
            found.append((BINARY, payload))
        else:
            self._parts += payload
        if first & FIN:
            if not self._stream:
                found.append((int(self._kind), bytes(self._parts)))
                self._parts.clear()
            self._kind = 0


def is_sendable(code: int) -> bool:
    """Whether a closing code may be in a frame: one that is assigned, or is for applications to choose."""
    return (1000 <= code <= 1014 and code not in {1004, 1005, 1006}) or 3000 <= code <= 4999


def _closing(code: int, words: bytes) -> bytes:
    return code.to_bytes(2, "big") + words


def _closing_problem(payload: bytes) -> bytes:
    """What is wrong with the payload of a ``CLOSE``, as the payload of the answer; empty where nothing is."""
    if not payload:
        return b""
    if len(payload) == 1 or not is_sendable(int.from_bytes(payload[:2], "big")):
        return _closing(PROTOCOL_ERROR, b"not a closing code")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return _closing(INVALID_TEXT, b"a closing reason that is not UTF-8")
    return b""


def _extended(data: bytes, at: i64, length: i64) -> i64:
    """A length of 16 or 64 bits. One that no number here can hold is negative."""
    if length == 126:
        return (i64(data[at]) << 8) | i64(data[at + 1])
    return read_i64_be(data, at)


def _unmasked(data: bytes, start: i64, end: i64) -> bytes:
    """A payload without the masking whose key is before it."""
    if end - start > LOOPED:
        return apply_mask(memoryview(data)[start:end], data[start - 4 : start])
    out = BytesWriter()
    _mask(out, data, start, end, i64(read_i32_le(data, start - 4)) & 0xFFFF_FFFF)
    return out.getvalue()
