"""What the frames of all protocols share: value semantics, and the two items any decoder may return.

A frame class lists its fields in ``__match_args__``, which gives it equality, a hash, a repr, pickling and pattern
matching. Fields are ``Final``: mypy forbids changing them, and a compiled class refuses at run time too. Frames hold
only immutable values, so they can't form reference cycles and stay out of the garbage collector (``acyclic``).
"""

from enum import Enum
from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

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
