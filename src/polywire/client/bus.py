"""One face over all protocols: publish, subscribe, take from queues, call and serve, whatever carries it.

    async with polywire.connect("fmqp://127.0.0.1:7103") as bus:
        await bus.publish("home/door", "open")
        async with bus.subscribe("home/*") as messages:
            async for message in messages: ...

What the connection's protocol can't do raises ``Unsupported``, with the protocols that can.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final, Generic, Self, TypeVar

from polywire.backoff import BACKOFF, Backoff
from polywire.client import adapter as adapters
from polywire.client.adapter import PLAIN, Adapter, Handler, Options, Service, Settings, Source, answered, can, require
from polywire.client.address import Address, parse
from polywire.client.errors import CallFailed, PatternError, Timeout, TooLarge, Unsupported
from polywire.client.inbox import LIMIT
from polywire.client.message import Body, Demand, Header, JsonBody, Message, Request, octets
from polywire.client.outgoing import BUFFER, Receipt
from polywire.client.reconnect import OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME, Opening

log = logging.getLogger("polywire.client")

Item = TypeVar("Item")

CALL_TIME: Final = 30.0
"""Seconds a call may take by default."""

TOO_LATE: Final = (408, 503, 504)
"""The codes with which a hub says that no answer came in time; UMQ has only one for all that may work later."""

TIMER: Final = 0.005
"""Seconds by which a timer may come early."""


class Stream(Generic[Item]):
    """Messages as they come. It begins with ``async with``, with ``await``, or with the first message asked for."""

    def __init__(self, begin: Callable[[], Awaitable[Source[Item]]]) -> None:
        self._begin = begin
        self._source: Source[Item] | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._over:
            raise StopAsyncIteration
        source = self._source
        if source is None:
            source = await self._started()
        return await source.__anext__()

    async def close(self) -> None:
        """Want no more."""
        self._over = True
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def _started(self) -> Source[Item]:
        if self._source is None:
            self._source = await self._begin()
        return self._source


class Queue(Stream[Message]):
    """A queue: what is put in goes to one consumer. A message is acknowledged when the next one is asked for."""

    def __init__(self, name: str, adapter: Adapter, limit: int, max_size: int | None = None) -> None:
        super().__init__(lambda: adapter.consume(name, limit))
        self.name = name
        self._adapter = adapter
        self._max_size = max_size
        self._last: Message | None = None

    def put(
        self,
        body: Body,
        *,
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Put a message in. Await it for the promise, as with ``Bus.publish``."""
        data = _checked(body, self._max_size)
        options = _options(self._adapter.protocol, body, headers, content_type, retain=False)
        receipt = self._adapter.put(self.name, data, options)
        if timeout is not None:
            receipt.expire(timeout)
        return receipt

    async def __anext__(self) -> Message:
        if self._last is not None:
            self._last.ack()
            self._last = None
        self._last = await super().__anext__()
        return self._last

    async def __aexit__(self, *raised: object) -> None:
        error = raised[1]
        if isinstance(error, Exception):
            self._reject(_reason(error))
        await self.close()

    async def close(self) -> None:
        """Want no more. The last message goes back to the queue, unless it was acknowledged."""
        self._reject("")
        await super().close()

    def _reject(self, reason: str) -> None:
        """Give the last message back, where the protocol can; elsewhere the end of the connection does so."""
        last, self._last = self._last, None
        if last is not None:
            with contextlib.suppress(Unsupported):
                last.nack(reason=reason)

    async def handle(self, handler: Callable[[Message], Awaitable[None] | None], *, delay: float = 0.0) -> None:
        """Call ``handler`` with each message, one after the other, until the queue is closed.

        A message is acknowledged when the handler returns. If it raises, that is logged and the message is rejected, to
        be delivered again after ``delay`` seconds. Raises ``Unsupported`` where the protocol can't reject messages.
        """
        require("nack", self._adapter.protocol)
        async for message in self:
            try:
                outcome = handler(message)
                if isinstance(outcome, Awaitable):
                    await outcome
            except Exception as error:
                log.exception("the handler of the queue %s failed, its message is rejected", self.name)
                message.nack(delay, _reason(error))
            else:
                message.ack()


class Bus:
    """A connection that comes back by itself. Made by ``polywire.connect``."""

    def __init__(self, adapter: Adapter, address: Address, max_size: int | None = None) -> None:
        self._adapter = adapter
        self._max_size = max_size
        self.address = address

    def __repr__(self) -> str:
        return f"<Bus {self.address} {'connected' if self.connected else 'away'}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def protocol(self) -> str:
        """What it speaks."""
        return self._adapter.protocol

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._adapter.connected

    def publish(
        self,
        channel: str,
        body: Body,
        *,
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
        retain: bool = False,
        timeout: float | None = None,
    ) -> Receipt:
        """Publish to a topic. The message is in flight, or kept while there is no connection, when this returns.

        ``body`` is text (sent as UTF-8), bytes-like, or ``polywire.json(value)``. Awaiting the receipt gives
        ``Promise.SENT`` or ``Promise.ACKNOWLEDGED``, or raises what became of it, ``Timeout`` after ``timeout`` seconds
        for instance. That is also how a fast publisher waits for a slow connection; one that never awaits gets
        ``BufferFull`` in the end, and a warning in the log for each message that failed.
        """
        # Nearly always it is bytes with nothing beside: no function need be called for that.
        data = body if type(body) is bytes and self._max_size is None else _checked(body, self._max_size)
        options = PLAIN
        if headers is not None or content_type is not None or retain or (data is not body and type(body) is JsonBody):
            options = _options(self._adapter.protocol, body, headers, content_type, retain=retain)
        receipt = self._adapter.publish(channel, data, options)
        if timeout is not None:
            receipt.expire(timeout)
        return receipt

    def subscribe(self, pattern: str, *, limit: int = LIMIT) -> Stream[Message]:
        """Messages of the topics that match: ``*`` is one level, a last ``**`` any number.

        ``limit`` messages may wait to be taken; then the connection is not read until some are, unless an answer is
        awaited on it. MQTT's wildcards raise ``PatternError``, whatever the protocol.
        """
        _check_pattern(pattern)
        if pattern == "**" or pattern.endswith("/**"):
            require("patterns with **", self._adapter.protocol)
        return Stream(lambda: self._adapter.subscribe(pattern, limit))

    def queue(self, name: str, *, limit: int = LIMIT) -> Queue:
        """A queue, to put into and to take from."""
        return Queue(name, self._adapter, limit, self._max_size)

    async def call(
        self,
        service: str,
        method: str,
        body: Body = b"",
        *,
        timeout: float = CALL_TIME,  # noqa: ASYNC109 - the peer gets it too
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
    ) -> Message:
        """Call a service, and wait for its answer. ``CallFailed`` if it is an error, ``Timeout`` if none comes."""
        require("call", self._adapter.protocol)
        data = _checked(body, self._max_size)
        options = _options(self._adapter.protocol, body, headers, content_type, retain=False)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await self._adapter.call(service, method, data, options, timeout)
        except CallFailed as error:
            # The hub knows the time limit too, and its words may overtake our own timer.
            if error.code in TOO_LATE and loop.time() - begun > timeout - TIMER:
                raise Timeout("the answer", timeout, sent=True) from error
            raise

    async def serve(self, service: str, handler: Handler) -> Service:
        """Offer a service until what this returns is closed, or the bus is."""
        require("serve", self._adapter.protocol)

        async def sized(request: Request) -> Message:
            answer = await answered(handler, request)
            _checked(answer.body, self._max_size)
            return answer

        return await self._adapter.serve(service, sized)

    def watch_demand(self, pattern: str, *, limit: int = LIMIT) -> Stream[Demand]:
        """How many subscribers the topics that match have, whenever that changes."""
        require("watch_demand", self._adapter.protocol)
        _check_pattern(pattern)
        return Stream(lambda: self._adapter.watch_demand(pattern, limit))

    async def ping(self) -> None:
        """A round trip to the peer and back."""
        await self._adapter.ping()

    async def close(self) -> None:
        """Send what can be sent, say goodbye, and leave nothing behind."""
        await self._adapter.close()


def connect(
    url: str | None = None,
    *,
    protocol: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    backoff: Backoff | None = BACKOFF,
    buffer: int = BUFFER,
    client_id: str | None = None,
    qos: int = 1,
    max_size: int | None = None,
    on_disconnect: OnDisconnect | None = None,
    on_reconnect: OnReconnect | None = None,
) -> Opening[Bus]:
    """A connection to a hub, or to any peer that speaks the URL's protocol.

    Where ``url``, ``user``, ``password`` or ``token`` are missing, ``POLYWIRE_URL`` and so on are used. The first
    connection must succeed within ``connect_time``; afterwards it comes back by itself as ``backoff`` says (None: it
    does not). ``buffer`` bytes may wait to be sent meanwhile. ``client_id`` is for MQTT and sABC, ``qos`` for MQTT.

    A body of more than ``max_size`` bytes raises ``TooLarge`` before anything is sent. ``on_disconnect`` is called with
    a ``ConnectionLost`` when the connection is lost, ``on_reconnect`` when there is one again; both may be coroutine
    functions.
    """
    address = parse(url, protocol=protocol, user=user, password=password, token=token)
    settings = Settings(tls, connect_time, backoff, buffer, client_id, qos, on_disconnect, on_reconnect)

    async def opened() -> Bus:
        return Bus(await adapters.connect(address, settings), address, max_size)

    return Opening(opened)


def _reason(error: Exception) -> str:
    """Why a message is rejected whose handler failed."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked(body: Body, max_size: int | None) -> bytes:
    """The bytes of a body, if it may be sent."""
    data = octets(body)
    if max_size is not None and len(data) > max_size:
        raise TooLarge(len(data), max_size)
    return data


def _check_pattern(pattern: str) -> None:
    """Raise ``PatternError`` for MQTT's wildcards: nothing would ever match them here."""
    levels = pattern.split("/")
    if "+" not in levels and "#" not in levels:
        return
    raise PatternError(pattern, "/".join({"+": "*", "#": "**"}.get(level, level) for level in levels))


def _options(
    protocol: str,
    body: Body,
    headers: Mapping[str, Header] | None,
    content_type: str | None,
    *,
    retain: bool,
) -> Options:
    """What goes with a body, where the protocol carries it."""
    if headers:
        require("headers", protocol)
    if content_type is not None:
        require("content_type", protocol)
    elif isinstance(body, JsonBody) and can(protocol, "content_type"):
        content_type = body.content_type
    if retain:
        require("retain", protocol)
    return Options(headers, content_type, retain)
