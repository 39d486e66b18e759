"""What each protocol fills in under the one face: one ``Adapter`` each.

``Protocol.bus`` names a coroutine function ``connect(address, settings) -> Adapter``, which raises where the first
connection can't be made. What a protocol can't do (``Protocol.can``) its adapter need not have: the bus asks first.

``PeerAdapter`` is what those of UMQ, sABC and MicroMsg2 share: one peer at a time, replaced whenever its connection is
lost. Subscriptions and services are made again on each new connection, and what was published and not acknowledged is
sent again.
"""

import asyncio
import collections
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from polywire.backoff import BACKOFF, Backoff
from polywire.client.address import Address
from polywire.client.errors import Closed, ConnectionLost, Overrun, Refused, Timeout, Unsupported
from polywire.client.message import Body, Demand, Header, JsonBody, Message, Request, octets
from polywire.client.outgoing import BUFFER, Entry, Outgoing, Receipt
from polywire.client.peer import LivePeer
from polywire.client.reconnect import Keeper, OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME
from polywire.registry import Feature, by_name, protocols

QUEUE: Final = "queue/"
CLOSE_TIME: Final = 10.0
"""Seconds that what was published has to be acknowledged when the bus is closed."""

log = logging.getLogger("polywire.client")

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")
Result = TypeVar("Result")
P = TypeVar("P", bound=LivePeer)


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


class Stream(Protocol[Item_co]):
    """What one connection gives."""

    async def __anext__(self) -> Item_co:
        """The next one. ``ConnectionLost`` at the end of the connection, behind all that has come."""

    async def leave(self) -> None:
        """Want no more."""


class Renewed(Generic[Item]):
    """A source for the bus, fed by one stream after another. ``closed`` is called when it is closed."""

    def __init__(self, closed: "Callable[[Renewed[Item]], None]") -> None:
        self._closed = closed
        self._streams: collections.deque[Stream[Item]] = collections.deque()
        self._over = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def renew(self, stream: Stream[Item]) -> None:
        """There is a new connection; what has come on the last one is read first."""
        self._streams.append(stream)
        self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no further connection."""
        self._error = error
        self._wake()

    async def __anext__(self) -> Item:
        while True:
            if self._over:
                raise StopAsyncIteration
            if not self._streams:
                if self._error is not None:
                    if type(self._error) is Closed and self._error.__cause__ is None:
                        raise StopAsyncIteration  # its own program closed the client
                    raise self._error
                await self._changed()
                continue
            stream = self._streams[0]
            try:
                return await stream.__anext__()
            except Overrun:
                self._closed(self)  # it has ended, and is not to be renewed
                raise
            except ConnectionLost:
                if self._streams and self._streams[0] is stream:
                    self._streams.popleft()

    async def close(self) -> None:
        """Want no more."""
        if self._over:
            return
        self._over = True
        self._closed(self)
        self._wake()
        streams, self._streams = self._streams, collections.deque()
        await asyncio.gather(*[_left(stream.leave()) for stream in streams])

    async def _changed(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("two tasks wait for the next message of one subscription; give each its own")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _left(leaving: Awaitable[None]) -> None:
    with contextlib.suppress(ConnectionLost, Closed):  # which is one way to leave
        await leaving


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

    def room(self, publication: Publication, /) -> bool:
        """Whether it takes another message now."""

    def send(self, entry: Entry[Publication], /) -> None:
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

    def __init__(self, peer: P) -> None:
        self._peer = peer

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self._peer.is_open

    def room(self, _publication: Publication, /) -> bool:
        """Whether it takes another message now."""
        return self._peer.has_room

    async def close(self) -> None:
        """End it."""
        await self._peer.close()


C = TypeVar("C", bound=Connection)


class _Source(Renewed[Message]):
    """A subscription of the bus, with what it takes to make it again."""

    def __init__(self, pattern: str, limit: int, closed: "Callable[[Renewed[Message]], None]") -> None:
        super().__init__(closed)
        self.pattern = pattern
        self.limit = limit


class _Service:
    """A service that is offered."""

    def __init__(self, adapter: "PeerAdapter[Connection]", service: str) -> None:
        self._adapter = adapter
        self._service = service

    async def close(self) -> None:
        """Offer it no more."""
        await self._adapter.unserve(self._service)


class PeerAdapter(Adapter, Generic[C]):
    """``dial`` opens one connection, which calls ``lost`` at its end, and ``moved`` when it has room again."""

    def __init__(
        self,
        address: Address,
        settings: Settings,
        dial: "Callable[[PeerAdapter[C]], Awaitable[C]]",
        *,
        window: int,
    ) -> None:
        self.protocol = address.protocol
        self.address = address
        self.settings = settings
        self._dial = dial
        self._connection: C | None = None
        self._sources: list[_Source] = []
        self._services: dict[str, Handler] = {}
        self._outgoing: Outgoing[Publication] = Outgoing(settings.buffer, window=window)
        self._keeper = Keeper(
            str(address),
            self._open,
            settings.backoff,
            self._gave_up,
            on_disconnect=settings.on_disconnect,
            on_reconnect=settings.on_reconnect,
        )

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._keeper.connected

    async def start(self) -> None:
        """The first connection."""
        await self._keeper.start()

    def publish(self, channel: str, body: bytes, options: Options) -> Receipt:
        """Publish to a topic."""
        size = len(body)
        return self._outgoing.post(Publication(channel, body, options), len(channel) + size, channel=channel, size=size)

    def put(self, queue: str, body: bytes, options: Options) -> Receipt:
        """Put into a queue."""
        return self.publish(QUEUE + queue, body, options)

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe, and wait for the peer's answer."""
        source = _Source(pattern, limit, self._forget)
        if self._keeper.closed is not None:
            raise self._keeper.closed
        try:
            stream = await self._on_a_connection(lambda connection: connection.listen(pattern, limit))
        except Closed as closed:
            if closed.__cause__ is not None:
                raise
            source.fail(closed)  # its own program closed the client meanwhile, and is not to be troubled
            return source
        self._sources.append(source)
        source.renew(stream)
        return source

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue."""
        return await self.subscribe(QUEUE + queue, limit)

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float, /) -> Message:
        """Call a service. While there is no connection it waits for one; it is never tried twice."""
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connected()
        except TimeoutError as error:
            raise Timeout("the connection", seconds, sent=False) from error
        return await connection.call(service, method, body, options, seconds)

    async def serve(self, service: str, handler: Handler, /) -> _Service:
        """Offer a service, now and after each reconnect."""
        if service in self._services:
            raise ValueError(f"the service {service!r} is offered on this connection already")
        await self._on_a_connection(lambda connection: connection.offer(service, handler))
        self._services[service] = handler
        return _Service(self, service)  # type: ignore[arg-type] # whatever its connections are

    async def unserve(self, service: str) -> None:
        """Offer it no more."""
        if self._services.pop(service, None) is not None and self._connection is not None:
            with contextlib.suppress(ConnectionLost, Closed):
                await self._connection.withdraw(service)

    async def ping(self) -> None:
        """A round trip to the peer and back."""
        await (await self._connected()).ping()

    async def close(self) -> None:
        """Wait for what was published, within reason, and end the connection."""
        if self._keeper.closed is None and not self._outgoing.idle:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIME):
                    await self._outgoing.settled()
        await self._keeper.close()
        closed = self._keeper.closed or Closed("the client was closed")
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        self._end(closed)

    def _forget(self, source: Renewed[Message]) -> None:
        self._sources = [each for each in self._sources if each is not source]

    # For connections.

    def lost(self, error: ConnectionLost) -> None:
        """The connection has ended."""
        self._outgoing.pause(error if self._keeper.closed is None else None)
        self._connection = None
        self._keeper.lost(error)

    def moved(self) -> None:
        """It takes more again."""
        self._outgoing.pump()

    async def _open(self) -> None:
        connection = await self._dial(self)
        try:
            for source in list(self._sources):
                await _renew(source, connection)
            for service, handler in list(self._services.items()):
                await _offer(service, handler, connection)
            await connection.ping()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self._outgoing.begin(connection)
        self._outgoing.pump()

    async def _connected(self) -> C:
        while True:
            await self._keeper.up()
            if self._connection is not None:
                return self._connection
            await asyncio.sleep(0)  # it is about to be noticed

    async def _on_a_connection(self, act: Callable[[C], Awaitable[Result]]) -> Result:
        """Do something that may be done again, until a connection lasts long enough."""
        while True:
            connection = await self._connected()
            try:
                result = await act(connection)
            except (ConnectionLost, Closed):
                if self._keeper.closed is not None:
                    raise
                await asyncio.sleep(0)
                continue
            if self._connection is connection:
                return result

    def _gave_up(self, closed: Closed) -> None:
        self._end(closed)

    def _end(self, closed: Closed) -> None:
        self._outgoing.fail(closed)
        for source in self._sources:
            source.fail(closed)


async def _offer(service: str, handler: Handler, connection: Connection) -> None:
    """Offer a service again. What was allowed before and is not now is no reason to give up the rest."""
    try:
        await connection.offer(service, handler)
    except Refused as error:
        if error.temporary:
            raise
        log.warning("the service %s can't be offered any more: %s", service, error)


async def _renew(source: _Source, connection: Connection) -> None:
    """Subscribe again. What was allowed before and is not now ends that subscription alone."""
    try:
        source.renew(await connection.listen(source.pattern, source.limit))
    except Refused as error:
        if error.temporary:
            raise
        source.fail(error)
