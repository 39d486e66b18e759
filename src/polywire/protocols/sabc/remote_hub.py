"""The hub's operations, asked for over a ``Peer``: publish, subscribe, call, serve.

sABC leaves headers to its users; these are the ones the hub understands (docs/protocols/sabc.md, "On the hub").
Messages that the hub pushes are told apart by theirs; all others go to the handler the peer had before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Self

from polywire.client.inbox import LIMIT, Inbox
from polywire.client.message import Body, JsonBody, Message, Request, delivery_count
from polywire.protocols.sabc.errors import NOT_FOUND
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
    header,
)
from polywire.protocols.sabc.peer import handling
from polywire.protocols.sabc.peer.failures import Failure
from polywire.protocols.sabc.peer.handling import Later, Outcome, Reply
from polywire.protocols.sabc.peer.peer import Peer

OWN = frozenset({OP, DESTINATION, SERVICE, METHOD, SUBSCRIPTION, CONTENT_TYPE})
QUEUE = "queue/"
NO_HEADERS: Mapping[str, str] = {}

ServiceHandler = Callable[[Request], Outcome | Awaitable[Outcome]]


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
        """Want no more; what waits is dropped, and a queue's messages go to others."""
        await self._hub.leave(self)

    def put(self, message: Whole) -> None:
        """A topic's message: for the reader."""
        self.inbox.put(_message(message), len(message.body))

    def take(self, message: Whole, later: Later) -> None:
        """A queue's message: for the reader, whose ``ack`` is the answer."""
        self._unacknowledged[later] = message

        def acknowledge() -> None:
            if self._unacknowledged.pop(later, None) is not None:
                later.answer()

        def reject(delay: float, reason: str) -> None:
            if self._unacknowledged.pop(later, None) is not None:
                later.answer(Reply(reason, ((OP, NACK), (DELAY, f"{delay:.3f}"))))

        self.inbox.put(_queued(message, acknowledge, reject), len(message.body))

    def stop(self) -> dict[Later, Whole]:
        """Nothing more comes. What was not acknowledged."""
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
    """Who of this session has subscribed to what.

    The hub keeps one subscription for each destination, the last one asked for, so several here share it: all of them
    get a topic's messages, and one of them a queue's.
    """

    def __init__(self) -> None:
        self._places: dict[str, list[HubSubscription]] = {}
        self._numbers: dict[str, str] = {}

    def join(self, number: str, subscription: HubSubscription) -> bool:
        """One more, asked for under this number. Whether it is the first of its destination."""
        self._numbers[number] = subscription.destination
        shared = self._places.setdefault(subscription.destination, [])
        shared.append(subscription)
        return len(shared) == 1

    def leave(self, subscription: HubSubscription) -> bool:
        """One less. Whether it was the last of its destination."""
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
        """Give a message to whom it is for; the answer to it, where it wants one."""
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
            later.drop()  # all have left: without an answer a queue gives it to others
        return later

    def lost(self, error: Exception) -> None:
        """Nothing more will come."""
        for shared in self._places.values():
            for each in shared:
                each.inbox.fail(error)
        self._places.clear()
        self._numbers.clear()


class RemoteHub:
    """The hub at the other end of a session. What it refuses raises ``Failure`` with its code.

    It becomes the handler of its peer, so make one for each.
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
        """Publish to a topic, or put into ``queue/<name>``. Returns when the hub has it safe."""
        await self.peer.ask(body, publishing(channel, headers, _content_type(body, content_type)), timeout=timeout)

    async def subscribe(self, destination: str, *, limit: int = LIMIT) -> HubSubscription:
        """Hear what is published to a pattern (``*`` one level, a last ``**`` any number), or take from a queue."""
        if destination.startswith(QUEUE):
            async with self._queues:  # asking again would have it hand out again what is being worked on
                return await self._join(destination, limit, again=False)
        return await self._join(destination, limit, again=True)

    async def leave(self, subscription: HubSubscription) -> None:
        """Undo ``subscribe``; ``HubSubscription.leave`` is the way to do so."""
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
        """Call a service, whatever protocol it is offered over."""
        asked = ((OP, CALL), (SERVICE, service), (METHOD, method))
        travelling = _travelling(headers, _content_type(body, content_type))
        answer = await self.peer.ask(body, (*asked, *travelling), timeout=timeout)
        return _message(answer)

    async def serve(self, service: str, handler: ServiceHandler) -> None:
        """Offer a service. What ``handler`` raises is told to its caller: ``Failure`` with its code and words."""
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
        """Offer it no more; calls that are under way are still answered."""
        self._services.pop(service, None)
        await self.peer.ask(b"", ((OP, UNSERVE), (SERVICE, service)))

    def _pushed(self, request: handling.Request) -> Outcome | Later | Awaitable[Outcome]:
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
            raise Failure(NOT_FOUND, "nobody takes messages here")
        return self._others(request)


def publishing(
    channel: str, headers: Mapping[str, str] = NO_HEADERS, content_type: str | None = None
) -> tuple[Header, ...]:
    """The headers of a publication."""
    return ((OP, PUBLISH), (DESTINATION, channel), *_travelling(headers, content_type))


def replying(message: Message) -> Reply:
    """A reply of the hub's make: what may go along with a body does."""
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
