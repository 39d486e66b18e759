"""What can be asked for over HTTP: pages that are made at once, trees of files, and places to send something to."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from polywire.hub.access import Identity


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a tree. ``path`` is what follows the tree's own; names of ``headers`` are in lower case."""

    path: str
    headers: Mapping[str, str]
    address: str


class Parts(Protocol):
    """A body that comes in parts. Not a generator: one that never began would not be closed."""

    def __aiter__(self) -> Self:
        """Itself."""

    async def __anext__(self) -> bytes:
        """The next part."""

    async def aclose(self) -> None:
        """No more is wanted."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a tree answers. Where there are ``parts``, they are the body, ``length`` octets in all."""

    status: int
    content_type: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    parts: Parts | None = None
    length: int = 0


class Post(Protocol):
    """Something that takes what is sent to it, up to ``limit`` octets, from whom it admits."""

    @property
    def limit(self) -> int:
        """How many."""

    async def admit(self, request: Request) -> Identity | Reply:
        """Who sends, before anything of it is read; or why nothing is taken."""

    async def take(self, request: Request, who: Identity, body: bytes) -> Reply:
        """The answer to what was sent."""


Answer = tuple[int, str, bytes]
"""A page: its status, content type and body."""

Handler = Callable[[], Answer]
Tree = Callable[[Request], Awaitable[Reply]]
