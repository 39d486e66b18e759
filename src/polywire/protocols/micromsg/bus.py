"""``polywire.connect`` over MicroMsg2: topics, and queues whose messages are acknowledged.

An ack covers all messages before it, so a consumer that has not finished a message would block everything else on the
connection, and its message could not be returned to its queue. So each consumed queue has its own connection.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from polywire.client.adapter import (
    QUEUE,
    Handler,
    Options,
    PeerAdapter,
    PeerConnection,
    Publication,
    Settings,
    Source,
    Stream,
    unsupported,
)
from polywire.client.address import Address
from polywire.client.errors import Refused
from polywire.client.message import Header, Message, delivery_count
from polywire.client.outgoing import Entry, Promise
from polywire.protocols.micromsg.client import IDENTITY, WINDOW, open_peer, terms_of
from polywire.protocols.micromsg.errors import SHUTTING_DOWN
from polywire.protocols.micromsg.filters import TOPIC_PREFIX
from polywire.protocols.micromsg.peer import Failure, Peer, Received, Subscription
from polywire.protocols.micromsg.text import BATCH_ACK, DOTNET, PUB_SUB, X_NACK, Value, as_key, write_properties
from polywire.wire.frame import Role

LEAVE_TIME: Final = 2.0
"""Seconds the hub has to answer ``unsubscribe``."""

CONTENT_TYPE: Final = "content-type"
DOTNET_TYPE: Final = "dotnet-type"
VENDOR_FRAMES: Final = "micromsg.extensions"
"""The hub's header for frames of vendor extensions, of which this connection has none."""


class MicromsgStream:
    """A subscription as the bus reads it."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def __anext__(self) -> Message:
        return _message(await self._subscription.inbox.__anext__())

    async def leave(self) -> None:
        """Unsubscribe."""
        await self._subscription.leave()


class MicromsgConnection(PeerConnection[Peer]):
    """One connection to a hub, or to any server with ``pub-sub``."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        agreement = peer.agreement
        self._typed = agreement is not None and agreement.has(DOTNET)
        acknowledged = agreement is not None and agreement.window > 0
        self._promise = Promise.ACKNOWLEDGED if acknowledged else Promise.SENT

    def room(self, _publication: Publication, /) -> bool:
        """Whether it takes another message now."""
        outflow = self._peer.outflow
        return outflow.is_open and outflow.link is not None and not outflow.link.full

    def send(self, entry: Entry[Publication], /) -> None:
        """Publish."""
        publication, options = entry.what, entry.what.options
        type_name = ""
        properties: dict[str, Value] = {}
        for key, value in (options.headers or {}).items():
            if key == DOTNET_TYPE and self._typed and isinstance(value, str):
                type_name = value
            elif key != VENDOR_FRAMES:
                properties[as_key(key)] = value
        if options.content_type is not None:
            properties[CONTENT_TYPE] = options.content_type
        text = write_properties(properties) if properties else ""
        self._peer.put(destination(publication.channel), publication.body, text, type_name, partial(self._put, entry))

    def _put(self, entry: Entry[Publication], error: Exception | None) -> None:
        if error is None:
            entry.settle(self._promise)
        else:
            entry.settle(_refused(error) if isinstance(error, Failure) else error)

    async def listen(self, pattern: str, limit: int) -> Stream[Message]:
        """Subscribe, or take from a queue."""
        try:
            return MicromsgStream(await self._peer.subscribe(destination(pattern), limit=limit))
        except Failure as error:
            raise _refused(error) from error

    async def offer(self, service: str, handler: Handler) -> None:
        """Offer a service, which MicroMsg2 has not; the bus does not call this."""
        raise NotImplementedError(service, handler)

    async def withdraw(self, service: str) -> None:
        """Not supported by MicroMsg2."""
        raise NotImplementedError(service)

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float) -> Message:
        """Not supported by MicroMsg2."""
        raise NotImplementedError(service, method, body, options, seconds)

    async def ping(self) -> None:
        """Wait until the server has handled everything that was sent before."""
        await self._peer.ping()


class MicromsgAdapter(PeerAdapter[MicromsgConnection]):
    """MicroMsg2 as the bus sees it."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings, _dial, window=1 << 30)  # its own window is smaller
        self._consumers: set[MicromsgConsumer] = set()

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue, on a connection of its own."""
        adapter = MicromsgAdapter(self.address, self.settings.quiet())
        await adapter.start()
        try:
            source = await adapter.subscribe(QUEUE + queue, limit)
        except BaseException:
            await adapter.close()
            raise
        consumer = MicromsgConsumer(adapter, source, self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close all connections."""
        for consumer in list(self._consumers):
            await consumer.close()
        await super().close()


class MicromsgConsumer:
    """A queue that is consumed, on a connection of its own."""

    def __init__(
        self, adapter: MicromsgAdapter, source: Source[Message], closed: "Callable[[MicromsgConsumer], None]"
    ) -> None:
        self._adapter = adapter
        self._source = source
        self._closed = closed

    async def __anext__(self) -> Message:
        return await self._source.__anext__()

    async def close(self) -> None:
        """Stop: what is not acknowledged goes back to the queue at the end of the connection.

        The hub is notified before, so that unread messages don't count as delivered.
        """
        self._closed(self)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIME):
                await self._source.close()
        await self._adapter.close()


async def connect(address: Address, settings: Settings) -> MicromsgAdapter:
    """A connected adapter."""
    adapter = MicromsgAdapter(address, settings)
    await adapter.start()
    return adapter


async def _dial(adapter: PeerAdapter[MicromsgConnection]) -> MicromsgConnection:
    address, settings = adapter.address, adapter.settings
    identity = settings.client_id or IDENTITY
    peer = Peer(Role.CLIENT, terms_of(address, identity, (PUB_SUB,), (BATCH_ACK, DOTNET, X_NACK), WINDOW))
    await open_peer(peer, address, tls=settings.tls, connect_time=settings.connect_time)
    peer.on_lost = adapter.lost
    peer.on_room = adapter.moved
    return MicromsgConnection(peer)


def destination(channel: str) -> str:
    """A channel as MicroMsg2 writes it: queues have plain names there."""
    return channel.removeprefix(QUEUE) if channel.startswith(QUEUE) else TOPIC_PREFIX + channel


def _message(found: Received) -> Message:
    headers: dict[str, Header] = dict(found.properties)
    content_type = headers.pop(CONTENT_TYPE, None)
    if found.type_name:
        headers[DOTNET_TYPE] = found.type_name
    is_topic = found.destination.startswith(TOPIC_PREFIX)
    channel = found.destination.removeprefix(TOPIC_PREFIX) if is_topic else QUEUE + found.destination
    media = None if content_type is None else str(content_type)
    if is_topic:
        return Message(channel, found.payload, headers, media)
    count = delivery_count(headers)
    reject = found.nack if found.reject is not None else _cannot_reject
    return Message(channel, found.payload, headers, media, acknowledge=found.ack, deliveries=count, reject=reject)


def _cannot_reject(_delay: float, _reason: str) -> None:
    raise unsupported("nack", "micromsg", f", with a server that does not know {X_NACK},")


def _refused(error: Failure) -> Refused:
    return Refused(str(error), code=error.name, temporary=error.name == SHUTTING_DOWN)
