"""One side of a UMQ connection in a program: calls, callbacks, topics and attributes.

``client`` opens connections and accepts them; the peers they give are equal (UMQ-95). A ``Peer`` is carried by a
``Link`` and runs a ``Connection``. A text is handed to the program at once, its attachments are awaited apart from it:
a slow one delays neither its own message nor those behind it (UMQ-139).
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import iscoroutine
from typing import Any, Self

from polywire.client.errors import AttachmentFailed, Closed, ConnectionLost, Refused
from polywire.client.inbox import LIMIT, Inbox, Intake
from polywire.client.link import Link
from polywire.client.peer import LivePeer, Work, expire
from polywire.protocols.umq.connection import MAX_CALLBACKS, MAX_TOPICS, Attribute, Connection, State
from polywire.protocols.umq.errors import (
    FatalCode,
    LocalProtocolError,
    MethodError,
    Rejected,
    RemoteProtocolError,
    RpcException,
    error_text,
)
from polywire.protocols.umq.frames import (
    MAX_BINARY,
    MAX_TEXT,
    MAX_UNFINISHED,
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Fatal,
    Hello,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    write_number,
)
from polywire.wire.frame import Frame, Role

IN_FLIGHT = 1000
"""As many requests as the hub lets one connection have by default."""

ATTACHMENT = 64 * 1024
"""Bytes that an attachment which has not come yet counts in an inbox."""

TEMPORARY = (FatalCode.UNAVAILABLE, FatalCode.LIMIT_EXCEEDED, FatalCode.SHUTTING_DOWN)
"""The codes with which a server may refuse a client that it would take later."""

TOO_BIG = "UMQ-133"

HANDLER_FAILED = error_text(FatalCode.UNAVAILABLE, "the handler failed")

log = logging.getLogger("polywire.umq")

Attachable = bytes | Awaitable[bytes]
"""What may be attached: bytes, or what will give them. One that raises is reported to the other side as failed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may have: the limits of ``Decoder``, and how much may be open at a time."""

    max_text: int = MAX_TEXT
    max_binary: int = MAX_BINARY
    max_unfinished: int = MAX_UNFINISHED
    in_flight: int = IN_FLIGHT
    topics: int = MAX_TOPICS
    callbacks: int = MAX_CALLBACKS


DEFAULT_LIMITS = Limits()


class Arriving:
    """One attachment: awaiting it gives its bytes, or raises ``AttachmentFailed``. It may be awaited repeatedly."""

    __slots__ = ("_octets", "_problem", "_waiting")

    def __init__(self) -> None:
        self._octets: bytes | None = None
        self._problem: str | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[object, None, bytes]:
        return self._wait().__await__()

    def done(self) -> bool:
        """Whether awaiting it returns, or raises, at once."""
        return self._octets is not None or self._problem is not None

    def arrived(self, octets: bytes) -> None:
        """Let those who await it have its bytes."""
        self._octets = octets
        self._wake()

    def failed(self, problem: str) -> None:
        """Let those who await it know why it will not come."""
        self._problem = problem
        self._wake()

    async def _wait(self) -> bytes:
        if not self.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                self._waiting.remove(waiter)
        if self._octets is None:
            raise AttachmentFailed(self._problem or "")
        return self._octets

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class Received:
    """A text and its attachments: an answer, an update, or what came with the greeting."""

    __slots__ = ("attachments", "text")

    def __init__(self, text: str, attachments: int = 0) -> None:
        self.text = text
        self.attachments: tuple[Arriving, ...] = tuple([Arriving() for _ in range(attachments)]) if attachments else ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r}, {len(self.attachments)} attachments)"

    async def all(self) -> list[bytes]:
        """The bytes of all attachments, once they are there. Raises for the first that failed."""
        return [await each for each in self.attachments]

    async def body(self) -> bytes:
        """The text's UTF-8 or, where it is empty and attachments come, the first of them: how the hub sends bodies."""
        if self.text or not self.attachments:
            return self.text.encode()
        return await self.attachments[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with attachments, each bytes or something to await; those are sent when they are ready."""

    text: str = ""
    attachments: Sequence[Attachable] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What ``peer`` asks: a call, or a callback where ``callback_id`` says which one."""

    peer: "Peer"
    message: Received
    callback_id: int | None = None

    @property
    def text(self) -> str:
        """The payload."""
        return self.message.text

    @property
    def attachments(self) -> tuple[Arriving, ...]:
        """Its attachments, to be awaited."""
        return self.message.attachments


Outcome = str | Reply
Handler = Callable[[Request], Outcome | Awaitable[Outcome]]
"""Returns the answer, or something to await that gives it. ``RpcException`` is the answer ``E``.

Anything else it raises is logged, and reported to the caller without details.
"""

Greet = Callable[["Peer", Received], Outcome | Awaitable[Outcome | None] | None]


class Sender:
    """What a peer sends: frames, and their attachments behind them in the order announced.

    An attachment may take its time: those behind it wait (UMQ-87), text messages do not. ``reason`` says why the
    connection has ended.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.link: Link | None = None
        self.reason = ""
        self._connection = connection
        self._waiting: deque[Attachable] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self._connection.state is State.OPEN

    def check(self, attachments: Sequence[Attachable] = ()) -> None:
        """Raise ``Closed`` where nothing can be sent; the attachments are given up then."""
        if self._connection.state is not State.OPEN:
            for each in attachments:
                give_up(each)
            raise Closed(self.reason or "the connection is not open", sent=False)

    def send(self, frame: Frame, attachments: Sequence[Attachable] = ()) -> None:
        """Send a frame, with as many attachments as it announces."""
        self.write(self._connection.send(frame))
        for each in attachments:
            if isinstance(each, bytes) and not self._waiting:
                self.write(self._connection.send(Attachment(each)))
            else:
                self._waiting.append(each)
        if self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._make())

    def write(self, message: str | bytes) -> None:
        """Write a message of the connection."""
        if self.link is not None:
            if isinstance(message, str):
                self.link.send(message.encode(), text=True)
            else:
                self.link.send(message, text=False)

    async def room(self) -> None:
        """Wait while more is written than the connection takes, or until it has ended."""
        if self.link is not None and self.link.full:
            with contextlib.suppress(ConnectionLost):  # those who wait for an answer get it as their error
                await self.link.room()

    async def sent(self) -> None:
        """Wait until all attachments that were announced are sent."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self, reason: str) -> None:
        """The connection has ended: send nothing more, and give up attachments that are not ready."""
        self._connection.lost()
        self.link = None
        self.reason = self.reason or reason
        if self._task is not None:
            self._task.cancel()
            self._task = None
        while self._waiting:
            give_up(self._waiting.popleft())

    async def _make(self) -> None:
        while self._waiting:
            made = await _made(self._waiting[0])
            self._waiting.popleft()
            if self._connection.state is State.CLOSED:  # an F was the last message
                continue
            self.send(made)
            await self.room()
        self._task = None


async def _made(attachable: Attachable) -> Frame:
    if isinstance(attachable, bytes):
        return Attachment(attachable)
    try:
        return Attachment(await attachable)
    except Exception as error:  # noqa: BLE001 - whatever it was, only this attachment has failed (UMQ-88)
        return AttachmentError(str(error) or type(error).__name__)


def give_up(attachable: Attachable) -> None:
    """Discard one that will not be awaited."""
    if iscoroutine(attachable):
        attachable.close()
    elif isinstance(attachable, asyncio.Future):
        attachable.cancel()


class Subscription:
    """The updates of one topic, as an async iterator that ends with the topic.

    Leave it with ``leave`` or ``async with``.
    A reader that does not keep up makes the connection stop reading (``polywire.client.inbox``).
    """

    def __init__(self, topics: "Topics", topic_id: int, intake: Intake, limit: int) -> None:
        self.topic_id = topic_id
        self.inbox: Inbox[Received] = Inbox(intake, limit, on_close=lambda: topics.ended(self))
        self._topics = topics

    @property
    def name(self) -> str:
        """The id in base 36, as in messages."""
        return write_number(self.topic_id)

    def leave(self) -> None:
        """End it with ``U``. Updates that were not read are dropped."""
        self.inbox.close()
        self._topics.ended(self)

    def forget(self) -> None:
        """The request that asked for the topic has failed: nothing is sent, and the id is free again."""
        self._topics.forget(self)
        self.inbox.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        return await self.inbox.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class Publication:
    """A topic the other side has subscribed to. Ends with ``close``, or when the subscriber leaves."""

    def __init__(self, topics: "Topics", topic_id: int) -> None:
        self.topic_id = topic_id
        self._topics = topics
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the topic was closed, or its subscriber has left."""
        return self._ended.is_set()

    async def update(self, text: str, attachments: Sequence[Attachable] = ()) -> bool:
        """Send an update, and wait where the connection does not take more. False once the topic has ended."""
        check_text(text)
        if self.ended:
            return False
        await self._topics.update(TopicUpdate(self.topic_id, text, len(attachments)), attachments)
        return not self.ended

    def close(self) -> None:
        """End the topic: ``D``."""
        if not self.ended:
            self.end()
            self._topics.close(self.topic_id)

    async def wait_ended(self) -> None:
        """Wait until the subscriber has left, the topic was closed, or the connection has ended."""
        await self._ended.wait()

    def end(self) -> None:
        """Note that it has ended."""
        self._ended.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Topics:
    """The topics of one peer, in both directions.

    The subscriber chooses the topic's id and sends it to the publisher in a request; UMQ does not specify how.
    """

    def __init__(self, connection: Connection[Any, Any], sender: Sender, intake: Intake) -> None:
        self._connection = connection
        self._sender = sender
        self._intake = intake
        self._subscribed: dict[int, Subscription] = {}
        self._published: dict[int, Publication] = {}

    def subscribe(self, topic_id: int | None, limit: int) -> Subscription:
        """Be ready for a topic's updates."""
        self._sender.check()
        chosen = self._connection.subscriptions.open(topic_id)
        subscription = Subscription(self, chosen, self._intake, limit)
        self._subscribed[chosen] = subscription
        return subscription

    def ended(self, subscription: Subscription) -> None:
        """Nobody reads it any more: send ``U``, unless the topic has ended."""
        if self._subscribed.get(subscription.topic_id) is subscription:
            del self._subscribed[subscription.topic_id]
            if self._sender.is_open:
                self._sender.send(Unsubscribe(subscription.topic_id))

    def forget(self, subscription: Subscription) -> None:
        """Undo ``subscribe``."""
        if self._subscribed.get(subscription.topic_id) is subscription:
            del self._subscribed[subscription.topic_id]
            self._connection.subscriptions.forget(subscription.topic_id)

    def publish(self, topic_id: int) -> Publication:
        """Accept a subscription. Raises ``MethodError``, which a handler may let pass: it becomes the ``E``."""
        self._sender.check()
        self._connection.publications.open(topic_id)
        publication = Publication(self, topic_id)
        self._published[topic_id] = publication
        return publication

    async def update(self, frame: TopicUpdate, attachments: Sequence[Attachable]) -> None:
        """Send a ``T``."""
        self._sender.check(attachments)
        self._sender.send(frame, attachments)
        await self._sender.room()

    def close(self, topic_id: int) -> None:
        """Send ``D``."""
        del self._published[topic_id]
        if self._sender.is_open:
            self._sender.send(TopicClose(topic_id))

    def updated(self, topic_id: int, received: Received) -> None:
        """Deliver a ``T``."""
        size = len(received.text) + len(received.attachments) * ATTACHMENT
        self._subscribed[topic_id].inbox.put(received, size)

    def closed(self, frame: TopicClose) -> None:
        """End what a ``D`` ends."""
        subscription = self._subscribed.pop(frame.topic_id, None)
        if subscription is not None:
            subscription.inbox.fail(None)

    def unsubscribed(self, frame: Unsubscribe) -> None:
        """End what a ``U`` ends; its ``D`` is sent."""
        self._published.pop(frame.topic_id).end()

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        for subscription in self._subscribed.values():
            subscription.inbox.fail(ConnectionLost(reason))
        for publication in self._published.values():
            publication.end()
        self._subscribed.clear()
        self._published.clear()


class Peer(LivePeer):
    """An equal peer (UMQ-95). ``handler`` answers its calls; without one they are refused with code 6.

    ``greet``, a server's, gets what came with ``H`` and returns what goes with ``W``, or raises ``Rejected``;
    ``welcome`` is what a client got with it. ``attributes`` are those the other side has set; ``changed`` is called
    with the name of each one that changes, ``on_lost`` at the end of the connection, ``on_room`` when what was written
    has been passed on.
    """

    def __init__(
        self,
        role: Role,
        handler: Handler | None = None,
        *,
        greet: Greet | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.changed: Callable[[str], None] | None = None
        self.welcome = Received("")
        self._handler = handler
        self._greet = greet
        self._connection: Connection[asyncio.Future[Received], Handler] = Connection(role, **asdict(limits))
        self._unfinished: dict[int, Received] = {}
        self._sender = Sender(self._connection)
        self._intake = Intake(lambda: len(self._connection.calls) > 0)
        self._topics = Topics(self._connection, self._sender, self._intake)
        self._slots = asyncio.Semaphore(limits.in_flight)
        self._work = Work()
        self._draining = False
        super().__init__(self._sender, self._intake)
        self._takes: dict[type[Frame], Callable[[Any], None]] = {
            Result: self._answered,
            CallException: self._answered,
            Call: self._called,
            Callback: self._called,
            TopicUpdate: self._updated,
            TopicClose: self._topics.closed,
            Attachment: self._attached,
            AttachmentError: self._attached,
            SetAttribute: self._attribute_changed,
            UnsetAttribute: self._attribute_changed,
            Hello: self._greeted,
            Welcome: self._welcomed,
            Fatal: self._fatal,
        }

    async def call(
        self,
        text: str,
        attachments: Sequence[Attachable] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than a context of its own for each call
    ) -> Received:
        """Ask the other side, and wait for its answer. An ``E`` raises ``RpcException``.

        A call that is cancelled or timed out is given up: its answer, should it come, is ignored. Where as many calls
        are in flight as may be, this one waits for its turn.
        """
        return await self._ask(None, text, attachments, timeout)

    async def call_back(
        self,
        callback_id: int,
        text: str,
        attachments: Sequence[Attachable] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Received:
        """Ask a function that the other side has registered, as ``call`` does."""
        return await self._ask(callback_id, text, attachments, timeout)

    def tell(self, text: str, attachments: Sequence[bytes] = ()) -> "asyncio.Future[Received]":
        """Ask the other side without waiting; the future is done as ``call`` would be. Mind ``has_room``.

        The number of requests in flight is the caller's business.
        """
        check_text(text)
        self._sender.check()
        answer: asyncio.Future[Received] = self._loop.create_future()
        calls = self._connection.calls
        call_id = calls.start(answer)
        try:
            self._sender.send(Call(call_id, text, len(attachments)), attachments)
        except BaseException:
            calls.abandon(call_id)
            raise
        self._intake.reconsider()
        return answer

    def register(self, function: Handler, callback_id: int | None = None) -> int:
        """Let the other side call this function back; returns the id to send it."""
        return self._connection.callbacks.register(function, callback_id)

    def unregister(self, callback_id: int) -> None:
        """Let the other side call it back no longer."""
        self._connection.callbacks.unregister(callback_id)

    def subscription(self, topic_id: int | None = None, *, limit: int = LIMIT) -> Subscription:
        """Be ready for the updates of a topic whose id the other side gets next.

        ``limit`` updates may wait to be read before the connection is not read any more.
        """
        return self._topics.subscribe(topic_id, limit)

    def publication(self, topic_id: int) -> Publication:
        """Accept the other side's subscription. Raises ``MethodError`` for an id that is in use."""
        return self._topics.publish(topic_id)

    def set(self, name: str, value: str, attachments: Sequence[Attachable] = ()) -> None:
        """Set an attribute that the other side sees."""
        self._sender.check(attachments)
        self._sender.send(SetAttribute(name, value, len(attachments)), attachments)

    def unset(self, name: str) -> None:
        """Clear an attribute."""
        self._sender.check()
        self._sender.send(UnsetAttribute(name))

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The attributes that the other side has set, by name: a read-only view that is always up to date."""
        return self._connection.attributes.view

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self._sender.is_open

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        return len(self._connection.requests) > 0 or len(self._connection.calls) > 0

    def fail(self, code: FatalCode, detail: str = "") -> None:
        """End the connection with ``F``."""
        if self._last(self._connection.close(code, detail)):
            self._hang_up()

    async def drain(self) -> None:
        """Refuse new requests with code 10, and wait until those in progress are answered."""
        self._draining = True
        await self._work.idle()
        await self._sender.sent()

    async def close(self) -> None:
        """End the connection, and wait until it has ended."""
        link = self._sender.link
        self.closed_here = True
        if link is not None:
            self._sender.reason = self._sender.reason or "this side closed the connection"
            await link.close()

    # For those who carry the connection.

    async def say_hello(self, text: str, attachments: Sequence[Attachable] = ()) -> None:
        """A client's handshake. Raises ``Refused``."""
        self._sender.send(Hello(self._connection.machine.newest, text, len(attachments)), attachments)
        await self.opened()

    def goodbye(self) -> None:
        """End the connection of a server that shuts down."""
        self.fail(FatalCode.SHUTTING_DOWN)

    def timed_out(self) -> None:
        """UMQ-137: a client took too long, for its handshake or while idle."""
        if self._last(self._connection.time_out()):
            self._hang_up()

    def too_big(self) -> None:
        """UMQ-133: a message was too big to be received."""
        self._last(self._connection.close(FatalCode.LIMIT_EXCEEDED, "the message is too big"))

    def received(self, data: bytes, text: bool, /) -> None:
        """Take one WebSocket message."""
        connection = self._connection
        try:
            connection.receive(data.decode() if text else data)
            event = connection.next_event()
            while event is not None:
                reply = connection.reply
                if reply is None:
                    self._takes[type(event)](event)
                else:
                    self._sender.send(reply)
                    if isinstance(event, Unsubscribe):
                        self._topics.unsubscribed(event)
                event = connection.next_event()
        except RemoteProtocolError as error:
            self._sender.reason = f"the other side broke a rule: {error}"
            if error.rule == TOO_BIG and self._sender.link is not None:
                self._sender.link.too_big = True
            if isinstance(error.reply, Fatal):
                self._sender.send(error.reply)
            raise

    def _end_all(self, reason: str) -> None:
        self._sender.close(reason)
        for waiter in self._connection.calls.drain():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(reason, sent=True))
        self._topics.lost(reason)
        self._work.lost()
        for received in self._unfinished.values():
            for each in received.attachments:
                if not each.done():
                    each.failed(reason)
        self._unfinished.clear()

    async def _ask(
        self, callback_id: int | None, text: str, attachments: Sequence[Attachable], seconds: float | None
    ) -> Received:
        """Send a request, to a callback where an id is given, and wait for the answer."""
        check_text(text)
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            for each in attachments:
                give_up(each)
            raise
        try:
            return await self._ask_now(callback_id, text, attachments, seconds)
        finally:
            self._slots.release()

    async def _ask_now(
        self, callback_id: int | None, text: str, attachments: Sequence[Attachable], seconds: float | None
    ) -> Received:
        sender = self._sender
        sender.check(attachments)
        answer: asyncio.Future[Received] = self._loop.create_future()
        calls = self._connection.calls
        call_id = calls.start(answer)
        count = len(attachments)
        frame = Call(call_id, text, count) if callback_id is None else Callback(call_id, callback_id, text, count)
        timer = None
        self._intake.reconsider()
        try:
            sender.send(frame, attachments)
            if seconds is not None:
                timer = self._loop.call_later(seconds, expire, answer, "the request", seconds)
            await sender.room()
            return await answer
        finally:
            calls.abandon(call_id)
            self._intake.reconsider()
            if timer is not None:
                timer.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have failed while room was waited for

    def _answered(self, frame: Result | CallException) -> None:
        waiter = self._connection.calls.answered(frame)
        self._intake.reconsider()
        if waiter is None or waiter.done():
            return
        if isinstance(frame, Result):
            waiter.set_result(self._hold(frame.payload, frame.attachments, frame.ordinal))
        else:
            waiter.set_exception(RpcException(frame.payload))

    def _called(self, frame: Call | Callback) -> None:
        """Answer a request now, or begin to."""
        self._work.due += 1
        if self._draining:
            self._answer(CallException(frame.call_id, error_text(FatalCode.SHUTTING_DOWN)))
            return
        handler, callback_id = self._handler, None
        if isinstance(frame, Callback):
            found = self._connection.callbacks.find(frame)
            handler = None if isinstance(found, CallException) else found
            callback_id = frame.callback_id
        if handler is None:
            self._answer(CallException(frame.call_id, error_text(FatalCode.NO_RPC_SERVER)))
            return
        request = Request(self, self._hold(frame.payload, frame.attachments, frame.ordinal), callback_id)
        try:
            outcome = handler(request)
            if not isinstance(outcome, str | Reply):
                self._work.start(self._handle(frame.call_id, outcome))
                return
            self._reply(frame.call_id, outcome)
        except Exception as error:  # noqa: BLE001 - reported to the caller, and logged
            self._failed(frame.call_id, error)

    async def _handle(self, call_id: int, outcome: Awaitable[Outcome]) -> None:
        try:
            self._reply(call_id, await outcome)
        except Exception as error:  # noqa: BLE001 - reported to the caller, and logged
            self._failed(call_id, error)

    def _reply(self, call_id: int, outcome: Outcome) -> None:
        reply = as_reply(outcome)
        self._answer(Result(call_id, reply.text, len(reply.attachments)), reply.attachments)

    def _failed(self, call_id: int, error: Exception) -> None:
        if call_id not in self._connection.requests:
            log.error("answering a UMQ request failed", exc_info=error)
            return
        if isinstance(error, MethodError):
            text = error.payload
        elif isinstance(error, RpcException):
            text = error.text
        else:
            log.error("a handler of UMQ requests failed", exc_info=error)
            text = HANDLER_FAILED
        try:
            self._answer(CallException(call_id, text))
        except LocalProtocolError:  # its text can't be written
            self._answer(CallException(call_id, HANDLER_FAILED))

    def _answer(self, frame: Result | CallException, attachments: Sequence[Attachable] = ()) -> None:
        if self.is_open:
            self._sender.send(frame, attachments)
            self._work.done()

    def _hold(self, text: str, attachments: int, ordinal: int) -> Received:
        """What the program gets of a message; its attachments are filled in as they arrive."""
        received = Received(text, attachments)
        if attachments:
            self._unfinished[ordinal] = received
        return received

    def _attached(self, frame: Attachment | AttachmentError) -> None:
        received = self._unfinished.get(frame.owner)
        if received is None:
            return
        if frame.index == len(received.attachments) - 1:
            del self._unfinished[frame.owner]
        if isinstance(frame, AttachmentError):
            received.attachments[frame.index].failed(frame.message)
        else:
            received.attachments[frame.index].arrived(frame.body)

    def _updated(self, frame: TopicUpdate) -> None:
        self._topics.updated(frame.topic_id, self._hold(frame.payload, frame.attachments, frame.ordinal))

    def _attribute_changed(self, frame: SetAttribute | UnsetAttribute) -> None:
        if self.changed is not None:
            self.changed(frame.name)

    def _greeted(self, frame: Hello) -> None:
        self._work.start(self._admit(self._hold(frame.payload, frame.attachments, frame.ordinal)))

    async def _admit(self, received: Received) -> None:
        try:
            outcome = None if self._greet is None else self._greet(self, received)
            if isinstance(outcome, Awaitable):
                outcome = await outcome
            reply = Reply() if outcome is None else as_reply(outcome)
        except Rejected as error:
            self.fail(error.code, error.reason)
            return
        except Exception:
            log.exception("greeting a client failed")
            self.fail(FatalCode.UNAVAILABLE)
            return
        if self._connection.state is State.HELLO_RECEIVED:
            welcome = Welcome(self._connection.machine.offered, reply.text, len(reply.attachments))
            self._sender.send(welcome, reply.attachments)
            self._opened.set_result(None)

    def _welcomed(self, frame: Welcome) -> None:
        self.welcome = self._hold(frame.payload, frame.attachments, frame.ordinal)
        self._opened.set_result(None)

    def _fatal(self, frame: Fatal) -> None:
        self._sender.reason = f"the other side ended it: {frame.code} {frame.message}"
        self._not_opened(Refused(frame.message, code=frame.code, temporary=frame.code in TEMPORARY))
        raise ConnectionLost(self._sender.reason)

    def _last(self, message: str | None) -> bool:
        """Send the last message. False where one was sent or received before."""
        if message is None:
            return False
        self._sender.reason = self._sender.reason or f"this side ended it: {message.partition(':')[2]}"
        self._sender.write(message)
        return True


def as_reply(outcome: object) -> Reply:
    """What a handler returned, as a reply."""
    if isinstance(outcome, str):
        return Reply(outcome)
    if isinstance(outcome, Reply):
        return outcome
    raise TypeError(f"a handler returns str or Reply, not {type(outcome).__name__}")


def check_text(text: object) -> None:
    """Raise ``TypeError`` for a payload that is no text."""
    if not isinstance(text, str):
        raise TypeError(f"text must be str, not {type(text).__name__}; bytes go into attachments")
