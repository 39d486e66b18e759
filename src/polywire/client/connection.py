"""One connection of UMQ, sABC or MicroMsg2 in the bus's words. ``over_peers`` puts one in the place of another."""

from typing import Generic, Protocol, TypeVar

from polywire.client.adapter import Handler, Options
from polywire.client.message import Message
from polywire.client.peer import LivePeer
from polywire.client.posting import Done
from polywire.client.receipt import Promise
from polywire.client.renewed import Stream

P = TypeVar("P", bound=LivePeer)


class Publication:
    """What is to be published: where, and what."""

    __slots__ = ("body", "channel", "options")

    def __init__(self, channel: str, body: bytes, options: Options) -> None:
        self.channel = channel
        self.body = body
        self.options = options


class Connection(Protocol):
    """One connection of a protocol, in the bus's words. What the peer refuses raises ``Refused`` or ``CallFailed``."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""

    @property
    def promise(self) -> Promise:
        """What it is worth when a message is done."""

    def room(self) -> bool:
        """Whether it takes another message now."""

    def send(self, publication: Publication, done: Done) -> None:
        """Publish."""

    async def listen(self, pattern: str, limit: int) -> Stream[Message]:
        """Subscribe, or take from ``queue/<name>``."""

    async def offer(self, service: str, handler: Handler) -> None:
        """Offer a service."""

    async def withdraw(self, service: str) -> None:
        """Offer it no more."""

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float) -> Message:
        """Call a service."""

    async def ping(self) -> None:
        """There and back."""

    async def close(self) -> None:
        """End it."""


class PeerConnection(Generic[P]):
    """What such a connection is, whatever it speaks: the peer at this end of it."""

    promise = Promise.ACKNOWLEDGED

    def __init__(self, peer: P) -> None:
        self._peer = peer

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self._peer.is_open

    def room(self) -> bool:
        """Whether it takes another message now."""
        return self._peer.has_room

    async def close(self) -> None:
        """End it."""
        await self._peer.close()
