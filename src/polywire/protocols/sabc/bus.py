"""The hub over sABC: ``RemoteHub`` for programs that hold a ``Peer``, and the adapter for ``polywire.connect``.

sABC leaves headers to its users; these are the ones the hub understands (docs/protocols/sabc.md, "On the hub").
Messages that the hub pushes are recognized by theirs; all others go to the handler the peer had before.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Self

from polywire.client.adapter import Handler, Options, PeerAdapter, PeerConnection, Publication, Settings, answered
from polywire.client.address import Address
from polywire.client.errors import CallFailed, ConnectionLost, Refused, call_failed
from polywire.client.inbox import LIMIT, Inbox
from polywire.client.message import Body, JsonBody, Message, Request, delivery_count
from polywire.client.message import Header as HeaderValue
from polywire.client.outgoing import Entry, Promise
from polywire.protocols.sabc.client import open_peer
from polywire.protocols.sabc.errors import DRAINING, NOT_FOUND
from polywire.protocols.sabc.frames import CALL, PUBLISH, SERVE, SUBSCRIBE, UNSERVE, UNSUBSCRIBE, Whole
from polywire.protocols.sabc.headers import (
    CONTENT_TYPE,
    DELAY,
    DESTINATION,
    METHOD,
    NACK,
    OP,
    SERVICE,
    SUBSCRIPTION,
    Header,
    error_headers,
    header,
    http_date,
)
from polywire.protocols.sabc.peer import TEMPORARY, Failure, Later, Limits, Outcome, Peer, Reply
from polywire.protocols.sabc.peer import Request as PeerRequest
from polywire.wire.frame import Role

OWN = frozenset({OP, DESTINATION, SERVICE, METHOD, SUBSCRIPTION, CONTENT_TYPE})
QUEUE = "queue/"
NO_HEADERS: Mapping[str, str] = {}

ServiceHandler = Callable[[Request], Outcome | Awaitable[Outcome]]

WINDOW: Final = 512
"""Publications that may be unanswered."""

LIMITS: Final = Limits(max_sent=0)
"""The hub's limit is not known here. A message over it is reported when the hub answers ``truncated::yes``."""

# The tags of errors without one: the hub's, for a request it refused, and our own.
TAGS: Final[Mapping[str, str]] = {
    "400": "bad-request",
    "403": "forbidden",
    "404": "no-service",
    "408": "timeout",
    "413": "too-large",
    "429": "limit",
    "503": "unavailable",
    "504": "timeout",
}
FAILED: Final = 500
NOWHERE: Final = ((OP, UNSUBSCRIBE), (DESTINATION, "polywire/nowhere"))
"""sABC has no ping. The hub answers this with 404, and nothing changes."""


class HubSubscription:
    """The messages of a topic, a pattern or a queue, as an async iterator. Leave it with ``leave`` or ``async with``.

    A queue's message is this program's once ``Message.ack`` is called. What is rejected with ``Message.nack``, or not
    acknowledged at all, goes back to the queue.
    """

    def __init__(self, hub: "RemoteHub", destination: str, limit: int) -> None:
        self.destination = destination
        self.inbox: Inbox[Message] = Inbox(hub.peer.intake, limit)
        self._hub = hub
        self._unacknowledged: dict[Later, Whole] = {}

    async def leave(self) -> None:
        """Unsubscribe. Messages that wait are dropped; those of a queue go to other consumers."""
        await self._hub.leave(self)

    def put(self, message: Whole) -> None:
        """Hand a topic's message to the reader."""
        self.inbox.put(_message(message), len(message.body))

    def take(self, message: Whole, later: Later) -> None:
        """Hand a queue's message to the reader, whose ``ack`` is the answer."""
        self._unacknowledged[later] = message

        def acknowledge() -> None:
            if self._unacknowledged.pop(later, None) is not None:
                later.answer()

        def reject(delay: float, reason: str) -> None:
            if self._unacknowledged.pop(later, None) is not None:
                later.answer(Reply(reason, ((OP, NACK), (DELAY, f"{delay:.3f}"))))

        self.inbox.put(_queued(message, acknowledge, reject), len(message.body))

    def stop(self) -> dict[Later, Whole]:
        """End the iteration. Returns what was not acknowledged."""
        self.inbox.close()
        left, self._unacknowledged = self._unacknowledged, {}
        return left

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.inbox.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Places:
    """The subscriptions of one session, by destination.

    The hub keeps one subscription for each destination, the latest, so several here share it: all of them get a topic's
    messages, and one of them a queue's.
    """

    def __init__(self) -> None:
        self._places: dict[str, list[HubSubscription]] = {}
        self._numbers: dict[str, str] = {}

    def join(self, number: str, subscription: HubSubscription) -> bool:
        """Add a subscription made under this number. Whether it is the first of its destination."""
        self._numbers[number] = subscription.destination
        shared = self._places.setdefault(subscription.destination, [])
        shared.append(subscription)
        return len(shared) == 1

    def leave(self, subscription: HubSubscription) -> bool:
        """Remove a subscription. Whether it was the last of its destination."""
        left = subscription.stop()
        shared = self._places.get(subscription.destination, [])
        if subscription not in shared:
            return False
        shared.remove(subscription)
        for later, message in left.items():
            if shared:
                shared[0].take(message, later)
            else:
                later.drop()
        if shared:
            return False
        del self._places[subscription.destination]
        self._numbers = {key: name for key, name in self._numbers.items() if name != subscription.destination}
        return True

    def take(self, number: str, message: Whole) -> Later | None:
        """Pass a message to its subscriptions. Returns the answer to it, if it wants one."""
        shared = self._places.get(self._numbers.get(number, ""), [])
        if not message.wants_answer:
            for each in shared:
                each.put(message)
            return None
        later = Later()
        if shared:
            shared.append(shared.pop(0))  # they take turns
            shared[-1].take(message, later)
        else:
            later.drop()  # all have left: without an answer the queue gives it to others
        return later

    def lost(self, error: Exception) -> None:
        """The connection has ended."""
        for shared in self._places.values():
            for each in shared:
                each.inbox.fail(error)
        self._places.clear()
        self._numbers.clear()


class RemoteHub:
    """The hub at the other end of a session. What it refuses raises ``Failure`` with its code.

    It becomes the handler of its peer, so there is one for each.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._others = peer.handler
        self._places = Places()
        self._services: dict[str, ServiceHandler] = {}
        self._queues = asyncio.Lock()
        peer.handler = self._pushed
        peer.on_lost = self._places.lost

    async def publish(
        self,
        channel: str,
        body: Body,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        content_type: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Peer.ask
    ) -> None:
        """Publish to a topic, or put into ``queue/<name>``. Returns when the hub has accepted it."""
        await self.peer.ask(body, publishing(channel, headers, _content_type(body, content_type)), timeout=timeout)

    async def subscribe(self, destination: str, *, limit: int = LIMIT) -> HubSubscription:
        """Subscribe to a pattern (``*`` one level, a last ``**`` any number), or consume from ``queue/<name>``."""
        if destination.startswith(QUEUE):
            async with self._queues:  # subscribing again would deliver again what is being handled
                return await self._join(destination, limit, again=False)
        return await self._join(destination, limit, again=True)

    async def leave(self, subscription: HubSubscription) -> None:
        """Undo ``subscribe``; use ``HubSubscription.leave``."""
        if self._places.leave(subscription) and self.peer.is_open:
            await self.peer.ask(b"", ((OP, UNSUBSCRIBE), (DESTINATION, subscription.destination)))

    async def _join(self, destination: str, limit: int, *, again: bool) -> HubSubscription:
        number = self.peer.new_id()
        subscription = HubSubscription(self, destination, limit)
        if self._places.join(number, subscription) or again:
            try:
                await self.peer.ask(b"", ((OP, SUBSCRIBE), (DESTINATION, destination)), msg_id=number)
            except Failure:
                self._places.leave(subscription)
                raise
            except BaseException:
                if self._places.leave(subscription) and self.peer.is_open:  # the hub may have accepted it
                    undone = self.peer.tell(b"", ((OP, UNSUBSCRIBE), (DESTINATION, destination)))
                    undone.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
                raise
        return subscription

    async def call(
        self,
        service: str,
        method: str,
        body: Body = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        content_type: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Peer.ask
    ) -> Message:
        """Call a service, over whatever protocol it is offered."""
        asked = ((OP, CALL), (SERVICE, service), (METHOD, method))
        travelling = _travelling(headers, _content_type(body, content_type))
        answer = await self.peer.ask(body, (*asked, *travelling), timeout=timeout)
        return _message(answer)

    async def serve(self, service: str, handler: ServiceHandler) -> None:
        """Offer a service. A ``Failure`` that ``handler`` raises is sent to the caller."""
        before = self._services.get(service)
        self._services[service] = handler
        try:
            await self.peer.ask(b"", ((OP, SERVE), (SERVICE, service)))
        except BaseException:
            if before is None:
                del self._services[service]
            else:
                self._services[service] = before
            raise

    async def unserve(self, service: str) -> None:
        """Withdraw a service; calls in flight are still answered."""
        self._services.pop(service, None)
        await self.peer.ask(b"", ((OP, UNSERVE), (SERVICE, service)))

    def _pushed(self, request: PeerRequest) -> Outcome | Later | Awaitable[Outcome]:
        message = request.message
        number = header(message.headers, SUBSCRIPTION)
        if number is not None:
            return self._places.take(number, message)
        service = header(message.headers, SERVICE)
        if service is not None:
            handler = self._services.get(service)
            if handler is None:
                raise Failure(NOT_FOUND, f"{service} is not served here")
            asked = _message(message)
            method = header(message.headers, METHOD) or ""
            return handler(Request(service, method, asked.body, asked.headers, asked.content_type))
        if self._others is None:
            raise Failure(NOT_FOUND, "messages are not accepted here")
        return self._others(request)


def publishing(
    channel: str, headers: Mapping[str, str] = NO_HEADERS, content_type: str | None = None
) -> tuple[Header, ...]:
    """The headers of a publication."""
    return ((OP, PUBLISH), (DESTINATION, channel), *_travelling(headers, content_type))


def replying(message: Message) -> Reply:
    """The reply with this message's body, headers and content type."""
    headers = {key: str(value) for key, value in message.headers.items()}
    return Reply(message.body, _travelling(headers, message.content_type))


def _content_type(body: Body, content_type: str | None) -> str | None:
    return body.content_type if content_type is None and isinstance(body, JsonBody) else content_type


def _travelling(headers: Mapping[str, str], content_type: str | None) -> tuple[Header, ...]:
    pairs = tuple(headers.items())
    return pairs if content_type is None else (*pairs, (CONTENT_TYPE, content_type))


def _message(whole: Whole) -> Message:
    headers = {key: value for key, value in whole.headers if key not in OWN}
    return Message(header(whole.headers, DESTINATION) or "", whole.body, headers, header(whole.headers, CONTENT_TYPE))


def _queued(whole: Whole, acknowledge: Callable[[], None], reject: Callable[[float, str], None]) -> Message:
    """A queue's message."""
    message = _message(whole)
    headers = dict(message.headers)
    count = delivery_count(headers)
    return replace(message, headers=headers, acknowledge=acknowledge, deliveries=count, reject=reject)


class SabcConnection(PeerConnection[Peer]):
    """One session with a hub."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._hub = RemoteHub(peer)

    def send(self, entry: Entry[Publication], /) -> None:
        """Publish."""
        publication, options = entry.what, entry.what.options
        headers = publishing(publication.channel, _headers(options.headers), options.content_type)
        self._peer.tell(publication.body, headers).add_done_callback(partial(_told, entry))

    async def listen(self, pattern: str, limit: int) -> HubSubscription:
        """Subscribe, or consume from a queue."""
        try:
            return await self._hub.subscribe(pattern, limit=limit)
        except Failure as error:
            raise _refused(error) from error

    async def offer(self, service: str, handler: Handler) -> None:
        """Offer a service."""

        async def answer(request: Request) -> Reply:
            try:
                return replying(await answered(handler, request))
            except CallFailed as error:
                headers = error_headers(error.tag, round((error.retry_after or 0) * 1000), by_service=True)
                raise Failure(error.code, error.text, headers) from error

        try:
            await self._hub.serve(service, answer)
        except Failure as error:
            raise _refused(error) from error

    async def withdraw(self, service: str) -> None:
        """Withdraw a service."""
        await self._hub.unserve(service)

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float) -> Message:
        """Call a service."""
        headers = _headers(options.headers)
        try:
            return await self._hub.call(
                service, method, body, headers=headers, content_type=options.content_type, timeout=seconds
            )
        except Failure as error:
            code = int(error.code) if error.code.isdecimal() else FAILED
            tag = error.tag if error.by_service else error.tag or TAGS.get(error.code, "")
            raise call_failed(code, tag, error.text, error.retry_after, from_hub=not error.by_service) from error

    async def ping(self) -> None:
        """Make a round trip."""
        try:
            await self._peer.ask(b"", NOWHERE)
        except Failure as error:
            if error.code != NOT_FOUND:
                raise _refused(error) from error


async def connect(address: Address, settings: Settings) -> PeerAdapter[SabcConnection]:
    """A connected adapter."""
    adapter: PeerAdapter[SabcConnection] = PeerAdapter(address, settings, _dial, window=WINDOW)
    await adapter.start()
    return adapter


async def _dial(adapter: PeerAdapter[SabcConnection]) -> SabcConnection:
    address, settings = adapter.address, adapter.settings
    peer = Peer(Role.CLIENT, messages=address.websocket, limits=LIMITS)
    await open_peer(peer, address, settings.client_id, tls=settings.tls, connect_time=settings.connect_time)
    connection = SabcConnection(peer)
    peer.on_room = adapter.moved
    ended = peer.on_lost

    def lost(error: ConnectionLost) -> None:
        if ended is not None:
            ended(error)
        adapter.lost(error)

    peer.on_lost = lost
    return connection


def _headers(headers: Mapping[str, HeaderValue] | None) -> dict[str, str]:
    """Headers as text, dates as in HTTP."""
    return {key: _text(value) for key, value in (headers or {}).items()}


def _text(value: HeaderValue) -> str:
    if isinstance(value, dt.datetime):
        return http_date(int(value.timestamp())) or value.isoformat()
    return str(value)


def _told(entry: Entry[Publication], answer: "asyncio.Future[Whole]") -> None:
    error = None if answer.cancelled() else answer.exception()
    if error is None:
        entry.settle(Promise.ACKNOWLEDGED)
    elif isinstance(error, Failure):
        if error.code != DRAINING:  # the session is about to end, and it is sent again on the next one
            entry.settle(_refused(error))
    elif isinstance(error, Exception):
        entry.settle(error)


def _refused(error: Failure) -> Refused:
    return Refused(error.text, code=error.code, temporary=error.code in TEMPORARY)
