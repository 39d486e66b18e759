"""What the codecs of all protocols share: frames as values, what any decoder may return, and how bytes are handled.

A frame class lists its fields in ``__match_args__``, which gives it equality, a hash, a repr, pickling and pattern
matching. Fields are ``Final``: mypy forbids changing them, and a compiled class refuses at run time too. Frames hold
only immutable values, so they can't form reference cycles and stay out of the garbage collector (``acyclic``).
"""

from enum import Enum
from typing import ClassVar, Final, final

from librt.strings import BytesWriter, read_i64_le
from mypy_extensions import i64, mypyc_attr

RAW_KEPT = 1024
"""How many bytes of a discarded frame are kept for diagnosis."""


class Role(Enum):
    """Which end of a connection this is: the one that accepts, or the one that connects."""

    SERVER = "server"
    CLIENT = "client"


@mypyc_attr(acyclic=True)
class Frame:
    """A value: equal to another of its class with equal fields."""

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        for name in self.__match_args__:
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    def __hash__(self) -> int:
        return hash((type(self), *[getattr(self, name) for name in self.__match_args__]))

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in self.__match_args__]
        return f"{type(self).__name__}({', '.join(fields)})"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), tuple([getattr(self, name) for name in self.__match_args__]))


@final
@mypyc_attr(acyclic=True)
class Discarded(Frame):
    """A frame that broke a rule and was dropped, where the protocol lets the connection live on.

    ``raw`` holds at most its first ``RAW_KEPT`` bytes, ``size`` says how many it had in all. ``reply`` is the frame
    to answer with, or None where the protocol answers nothing.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("rule", "reason", "position", "raw", "size", "reply")

    def __init__(
        self, rule: str, reason: str, position: int, raw: bytes, size: int, reply: Frame | None = None
    ) -> None:
        self.rule: Final = rule
        self.reason: Final = reason
        self.position: Final = position
        self.raw: Final = raw
        self.size: Final = size
        self.reply: Final = reply


@final
@mypyc_attr(acyclic=True)
class Run:
    """Consecutive publications to one route, as the slice of the input they came in.

    ``data[start:end]`` is ``count`` whole frames that may be forwarded as they are, unless ``qos`` is 1: then each is
    to be acknowledged. ``route`` is whatever the route table given to the scanner holds.
    """

    def __init__(self, route: object, data: bytes, start: int, end: int, count: int, qos: int = 0) -> None:
        self.route: Final = route
        self.data: Final = data
        self.start: Final = start
        self.end: Final = end
        self.count: Final = count
        self.qos: Final = qos

    def octets(self) -> bytes:
        """The frames of the run as they are on the wire."""
        return self.data[self.start : self.end]

    def __repr__(self) -> str:
        return f"Run(route={self.route!r}, start={self.start}, end={self.end}, count={self.count})"


NAMES_KEPT: Final = 4096
LONGEST_KEPT: Final = 256


@final
class Assembler:
    """The bytes of an unfinished frame, held until enough of them have arrived.

    A decoder asks ``take`` for what it can parse now, and gives back with ``keep`` what it could not use, together with
    the number of bytes the unfinished frame needs. Until those have arrived, chunks are only appended, so a large body
    costs time linear in its size however it is cut, and memory grows with the bytes that arrived, never with a length
    field. ``offset`` is where the next chunk starts.
    """

    def __init__(self) -> None:
        self.offset: i64 = 0
        self._want: i64 = 0
        self._tail = b""
        self._held: BytesWriter | None = None

    def take(self, data: bytes) -> bytes | None:
        """What can be parsed now: the held bytes and ``data``, or None while the wanted number is not reached."""
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
        """Hold ``chunk[pos:]``, the start of a frame that needs ``want`` bytes in all (0: not known, any more)."""
        self.offset += pos
        self._want = want
        self._tail = chunk[pos:]

    def pending(self) -> int:
        """How many bytes are held."""
        held = self._held
        return len(self._tail) if held is None else len(held)


def same_bytes(data: bytes, one: i64, other: i64, length: i64) -> bool:
    """Whether two slices of ``data``, ``length`` bytes each, are equal, eight at a time."""
    i: i64 = 0
    while i + 8 <= length:
        if read_i64_le(data, one + i) != read_i64_le(data, other + i):
            return False
        i += 8
    while i < length:
        if data[one + i] != data[other + i]:
            return False
        i += 1
    return True


@final
class Names:
    """Texts by their UTF-8 bytes, a few thousand of them.

    Channels come in with every message, and few differ. One that is known costs neither a decoding nor the memory of
    another text, and the hub's tables find it without hashing it again.
    """

    def __init__(self) -> None:
        self._texts: Final[dict[bytes, str]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def known(self, raw: bytes) -> str | None:
        """The text of these bytes, if it is kept."""
        return self._texts.get(raw)

    def text(self, raw: bytes) -> str:
        """The text of these bytes, which are UTF-8. It is kept for the next time."""
        found = self._texts.get(raw)
        if found is None:
            found = raw.decode()
            if len(raw) <= LONGEST_KEPT:
                if len(self._texts) >= NAMES_KEPT:
                    self._texts.clear()
                self._texts[raw] = found
        return found
