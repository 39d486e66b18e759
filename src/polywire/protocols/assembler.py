"""The octets of an unfinished frame, held until enough of them have arrived.

A decoder asks ``take`` for what it can parse now, and gives back with ``keep`` what it could not use, saying how many
octets the unfinished frame needs. Until those have arrived, chunks are only appended, so a large body costs time
linear in its size however it is cut, and memory grows with the octets that arrived, never with a length field.
"""

from typing import final

from librt.strings import BytesWriter
from mypy_extensions import i64


@final
class Assembler:
    """Collects chunks until a wanted number of octets is there. ``offset`` is where the next chunk starts."""

    def __init__(self) -> None:
        self.offset: i64 = 0
        self._want: i64 = 0
        self._tail = b""
        self._held: BytesWriter | None = None

    def take(self, data: bytes) -> bytes | None:
        """What can be parsed now: the held octets and ``data``, or None while the wanted number is not reached."""
        held = self._held
        if held is None:
            if not self._tail:
                return data
            if i64(len(self._tail)) + i64(len(data)) >= self._want:
                chunk = self._tail + data
                self._tail = b""
                return chunk
            held = BytesWriter()
            held.write(self._tail)
            self._tail = b""
            self._held = held
        held.write(data)
        if i64(len(held)) < self._want:
            return None
        self._held = None
        return held.getvalue()

    def keep(self, chunk: bytes, pos: i64, want: i64) -> None:
        """Hold ``chunk[pos:]``, the start of a frame that needs ``want`` octets in all (0: not known, any more)."""
        self.offset += pos
        self._want = want
        self._tail = chunk[pos:]

    def pending(self) -> int:
        """How many octets are held."""
        held = self._held
        return len(self._tail) if held is None else len(held)
