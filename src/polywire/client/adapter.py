"""What each protocol fills in under the one face: one ``Adapter`` each.

``Protocol.bus`` names a coroutine function ``connect(address, settings) -> Adapter``, which raises where the first
connection can't be made. What a protocol can't do (``Protocol.can``) its adapter need not have: the bus asks first.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from polywire.backoff import BACKOFF, Backoff
from polywire.client.address import Address
from polywire.client.errors import Unsupported
from polywire.client.message import Body, Demand, Header, JsonBody, Message, Request, octets
from polywire.client.outgoing import BUFFER
from polywire.client.receipt import Receipt
from polywire.client.reconnect import OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME
from polywire.registry import Feature, by_name, protocols

Item_co = TypeVar("Item_co", covariant=True)


def can(protocol: str, what: Feature) -> bool:
    """Whether the protocol can do this."""
    return what in by_name(protocol).can


def unsupported(what: Feature, protocol: str, detail: str = "") -> Unsupported:
    """The error for what a protocol can't do, with the protocols that can. ``detail`` follows the feature's name."""
    return Unsupported(what + detail, protocol, tuple(each.name for each in protocols() if what in each.can))


def require(what: Feature, protocol: str) -> None:
    """Raise ``Unsupported`` where the protocol can't do this."""
    if not can(protocol, what):
        raise unsupported(what, protocol)


def refuse_nack(protocol: str) -> Callable[[float, str], None]:
    """What ``Message.nack`` does where the protocol can't reject messages: raise ``Unsupported``."""

    def refuse(_delay: float, _reason: str) -> None:
        raise unsupported("nack", protocol)

    return refuse


Answer = Body | Message
Handler = Callable[[Request], Answer | Awaitable[Answer]]
"""A service: takes a request, returns the body of the answer, or a ``Message`` with more; may be a coroutine.

A ``CallFailed`` it raises goes to the caller as it is; anything else is 500, without its words.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to be connected, beside where.

    ``connect_time``: seconds for one attempt. ``backoff``: how to come back, None to end with the connection.
    ``buffer``: bytes kept while away. ``client_id`` and ``qos`` are for the protocols that have them.
    """

    tls: ssl.SSLContext | None = None
    connect_time: float = DIAL_TIME
    backoff: Backoff | None = BACKOFF
    buffer: int = BUFFER
    client_id: str | None = None
    qos: int = 1
    on_disconnect: OnDisconnect | None = None
    on_reconnect: OnReconnect | None = None

    def quiet(self) -> "Settings":
        """The same for a connection beside the bus's own, whose end is not the program's business."""
        return replace(self, on_disconnect=None, on_reconnect=None)


@dataclass(frozen=True, slots=True)
class Options:
    """What goes with a body."""

    headers: Mapping[str, Header] | None = None
    content_type: str | None = None
    retain: bool = False


PLAIN: Final = Options()


class Source(Protocol[Item_co]):
    """Where messages come from: a subscription on the wire."""

    async def __anext__(self) -> Item_co:
        """The next one. ``StopAsyncIteration`` at the end, an error where it ended so."""

    async def close(self) -> None:
        """Want no more."""


class Service(Protocol):
    """A service that is offered."""

    async def close(self) -> None:
        """Offer it no more."""


class Adapter:
    """A protocol's client as the bus sees it. Patterns and names are as UMQ writes them (docs/bridging.md)."""

    protocol: str = ""

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        raise NotImplementedError

    def publish(self, _channel: str, _body: bytes, _options: Options, /) -> Receipt:
        """Publish to a topic. A plain call: the bytes are in flight, or kept, when it returns."""
        raise unsupported("publish", self.protocol)

    async def subscribe(self, _pattern: str, _limit: int, /) -> Source[Message]:
        """Subscribe; it returns when the peer has done so, where the protocol tells. ``limit``: an inbox's."""
        raise unsupported("subscribe", self.protocol)

    def put(self, _queue: str, _body: bytes, _options: Options, /) -> Receipt:
        """Put into a queue, as ``publish``."""
        raise unsupported("queue", self.protocol)

    async def consume(self, _queue: str, _limit: int, /) -> Source[Message]:
        """Take from a queue. ``Message.ack`` acknowledges, where the protocol has that."""
        raise unsupported("queue", self.protocol)

    async def call(  # by those that have calls
        self, _service: str, _method: str, _body: bytes, _options: Options, _seconds: float, /
    ) -> Message:
        """Call a service. ``Timeout`` after so many seconds, ``CallFailed`` for an error."""
        raise unsupported("call", self.protocol)

    async def serve(self, _service: str, _handler: Handler, /) -> Service:
        """Offer a service; again after each reconnect."""
        raise unsupported("serve", self.protocol)

    async def watch_demand(self, _pattern: str, _limit: int, /) -> Source[Demand]:
        """Watch how many subscribers topics have."""
        raise unsupported("watch_demand", self.protocol)

    async def ping(self) -> None:
        """A round trip to the peer and back."""
        raise NotImplementedError

    async def close(self) -> None:
        """Send what is to be sent, say goodbye, and leave nothing behind."""
        raise NotImplementedError


async def answered(handler: Handler, request: Request) -> Message:
    """What a handler answers, whether it is a coroutine or not."""
    outcome = handler(request)
    found = await outcome if isinstance(outcome, Awaitable) else outcome
    if isinstance(found, Message):
        return found
    content_type = found.content_type if isinstance(found, JsonBody) else None
    return Message("", octets(found, "what a service returns"), content_type=content_type)


async def connect(address: Address, settings: Settings) -> Adapter:
    """The adapter of the address's protocol, connected."""
    return await adapter_of(address)(address, settings)


def adapter_of(address: Address) -> Callable[[Address, Settings], Awaitable[Adapter]]:
    """What connects to such an address, imported."""
    protocol = by_name(address.protocol)
    found: Callable[[Address, Settings], Awaitable[Adapter]] = protocol.load(protocol.bus)
    return found
