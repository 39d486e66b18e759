"""What each protocol fills in under the one face: ``client/over_<protocol>.py`` has one ``Adapter`` each.

A module named in ``ADAPTERS`` has ``async def connect(address, settings) -> Adapter``, which raises where the first
connection can't be made. What a protocol can't do it need not write: ``client/features.py`` says so, and the bus asks
there first.
"""

import importlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, cast

from polywire.client.address import Address
from polywire.client.dialing import DIAL_TIME
from polywire.client.errors import Unsupported
from polywire.client.features import FEATURES
from polywire.client.message import Body, Demand, Header, JsonBody, Message, Request, octets
from polywire.client.receipt import Receipt
from polywire.client.reconnect import BACKOFF, BUFFER, Backoff, OnDisconnect, OnReconnect

Item_co = TypeVar("Item_co", covariant=True)

Answer = Body | Message
Handler = Callable[[Request], Answer | Awaitable[Answer]]
"""A service: takes a request, returns the body of the answer, or a ``Message`` with more; may be a coroutine.

A ``CallFailed`` it raises goes to the caller as it is; anything else is 500, without its words.
"""

ADAPTERS: Final[Mapping[str, str]] = {
    "umq": "polywire.client.over_umq",
    "micromsg": "polywire.client.over_micromsg",
    "fmqp": "polywire.client.over_fmqp",
    "mqtt": "polywire.client.over_mqtt",
    "sabc": "polywire.client.over_sabc",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How to be connected, beside where.

    ``connect_time``: seconds for one attempt. ``backoff``: how to come back, None to end with the connection.
    ``buffer``: octets kept while away. ``client_id`` and ``qos`` are for the protocols that have them.
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

    def publish(self, channel: str, body: bytes, options: Options) -> Receipt:
        """Publish to a topic. A plain call: the octets are under way, or kept, when it returns."""
        raise NotImplementedError

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe; it returns when the peer has done so, where the protocol tells. ``limit``: an inbox's."""
        raise NotImplementedError

    def put(self, queue: str, body: bytes, options: Options) -> Receipt:
        """Put into a queue, as ``publish``."""
        raise NotImplementedError

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue. ``Message.ack`` acknowledges, where the protocol has that."""
        raise NotImplementedError

    async def call(  # by those that have calls
        self, _service: str, _method: str, _body: bytes, _options: Options, _seconds: float, /
    ) -> Message:
        """Call a service. ``Timeout`` after so many seconds, ``CallFailed`` for an error."""
        raise self._unsupported("call")

    async def serve(self, _service: str, _handler: Handler, /) -> Service:
        """Offer a service; again after each reconnect."""
        raise self._unsupported("serve")

    async def watch_demand(self, _pattern: str, _limit: int, /) -> Source[Demand]:
        """Watch how many subscribers topics have."""
        raise self._unsupported("watch_demand")

    async def ping(self) -> None:
        """A round trip to the peer and back."""
        raise NotImplementedError

    async def close(self) -> None:
        """Send what is to be sent, say goodbye, and leave nothing behind."""
        raise NotImplementedError

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(what, self.protocol, FEATURES[what])


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
    module = importlib.import_module(ADAPTERS[address.protocol])
    return cast("Adapter", await module.connect(address, settings))
