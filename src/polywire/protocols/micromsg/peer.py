"""One end of a MicroMsg2 connection in a program: messages both ways, subscriptions with filters, acks and windows.

A ``Peer`` connects a ``Connection`` with the ``Link`` that carries it and with the program. ``client.connect`` and
``client.serve`` make peers.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from polywire.client.errors import ClientError, Closed, ConnectionLost, Refused
from polywire.client.inbox import LIMIT, Inbox, Intake
from polywire.client.link import Link
from polywire.client.message import Body, octets
from polywire.client.peer import LivePeer, Work, expire
from polywire.protocols.micromsg.connection import (
    DEFAULT_LIMITS,
    Agreement,
    Connection,
    Ended,
    Limits,
    State,
    Terms,
)
from polywire.protocols.micromsg.errors import (
    BAD_HANDSHAKE,
    ENDS_CONNECTION,
    FORBIDDEN,
    NO_SUCH_DESTINATION,
    SHUTTING_DOWN,
    TOO_LARGE,
    UNKNOWN_COMMAND,
    UNSUPPORTED_EXTENSION,
    LocalProtocolError,
    ends_connection,
)
from polywire.protocols.micromsg.filters import (
    PING,
    PONG,
    SUBSCRIBE,
    TOPIC_PREFIX,
    Filter,
    covers,
    matches,
    no_such_destination,
    read_subscription,
    subscribe,
    unsubscribe,
)
from polywire.protocols.micromsg.frames import Command, Error, Extension, Handshake, Message, nack, role_of
from polywire.protocols.micromsg.text import X_AUTH, X_NACK, Value, read_properties, write_properties
from polywire.wire.frame import Frame, Role

NO_PROPERTIES: Mapping[str, Value] = {}
NO_FILTER = Filter()
ATTACHED = 16
"""How many frames of vendor extensions are kept for the message after them."""

log = logging.getLogger("polywire.micromsg")

Done = Callable[[Exception | None], None]
"""Called with what became of a message: None if it was acknowledged, or written and there are no acks."""
Handler = Callable[["Peer", "Received"], Awaitable[None] | None]
"""Takes a message, and raises ``Failure`` to refuse it. The message is acknowledged afterwards."""
Login = Callable[["Peer", Mapping[str, str] | None], Awaitable[None] | None]
"""Looks at what ``x-auth`` says (None without it): raises ``Failure`` to refuse."""
Subscribed = Callable[["Peer", str, Filter | None], None]
"""Called for each ``subscribe`` (with its filter) and ``unsubscribe`` (None); raises ``Failure`` to refuse."""


class Failure(ClientError):  # noqa: N818 - read in "except Failure:", where a suffix says nothing more
    """The other side answered with ERROR; raised by a handler, a ``login`` or a ``subscribed``, it is that answer.

    ``name`` is one of MicroMsg2's (``forbidden``, ``no-such-destination``, …), ``arguments`` say more.
    """

    def __init__(self, name: str, /, **arguments: str) -> None:
        self.name = name
        self.arguments: Mapping[str, str] = {key.replace("_", "-"): value for key, value in arguments.items()}
        details = ", ".join(f"{key} {value}" for key, value in self.arguments.items())
        super().__init__(f"{name}: {details}" if details else name)

    @classmethod
    def of(cls, error: Error) -> "Failure":
        """The failure that an ERROR frame reports."""
        return cls(error.name, **dict(error.arguments))

    def frame(self, **more: str) -> Error:
        """The ERROR frame that reports it, with ``more`` arguments in front."""
        return Error(self.name, tuple({**more, **self.arguments}.items()))


# What a peer sends.


class _Pending:
    """A message that is sent and not acknowledged."""

    __slots__ = ("done", "failure", "sequence")

    def __init__(self, sequence: int, done: Done) -> None:
        self.sequence = sequence
        self.done = done
        self.failure: Failure | None = None


class Outflow:
    """What one peer sends. ``reason`` says why it is closed; ``on_open`` is called whenever the window has opened."""

    def __init__(self, connection: Connection) -> None:
        self.link: Link | None = None
        self.reason = ""
        self.on_open: Callable[[], None] | None = None
        self._connection = connection
        self._pending: deque[_Pending] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many messages are unacknowledged."""
        return len(self._pending)

    @property
    def is_established(self) -> bool:
        """Whether frames may be sent: the handshake is done, and the connection has not ended."""
        return self.link is not None and self._connection.is_established()

    @property
    def is_open(self) -> bool:
        """Whether a message may be sent now."""
        return self.is_established and self._connection.outgoing.is_open()

    def send(self, frame: Frame) -> None:
        """Send a frame that is not a message. After the end of the connection it is dropped."""
        if self.link is not None and self._connection.is_established():
            self.link.write(self._connection.send(frame))

    async def room(self) -> None:
        """Wait while more is written than the connection takes, or until it has ended."""
        if self.link is not None and self.link.full:
            with contextlib.suppress(ConnectionLost):  # the answer that is awaited reports it
                await self.link.room()

    async def turn(self) -> None:
        """Wait until a message may be sent. Raises ``Closed`` if the connection has ended."""
        while not self.is_open:
            if not self.is_established:
                raise Closed(self.reason or "the connection is not open", sent=False)
            await self._moved()

    def put(
        self,
        destination: str,
        payload: bytes,
        properties: str,
        type_name: str,
        done: Done,
        extensions: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message. Raises ``LocalProtocolError``, and sends nothing, if it can't be sent here."""
        connection = self._connection
        sequence = connection.outgoing.due()
        data = connection.send_message(destination, payload, properties, type_name, extensions)
        if self.link is not None:
            self.link.write(data)
        if connection.ack_number:
            self._pending.append(_Pending(sequence, done))
        else:
            done(None)

    def acked(self, count: int) -> None:
        """The other side has acknowledged so many messages."""
        for _ in range(count):
            pending = self._pending.popleft()
            pending.done(pending.failure)
        self._notify()
        if self.on_open is not None:
            self.on_open()

    def refused(self, failure: Failure) -> bool:
        """An ERROR that names a message by its ``sequence``; its ack follows. False if there is no such message."""
        for pending in self._pending:
            if str(pending.sequence) == failure.arguments.get("sequence"):
                pending.failure = failure
                return True
        return False

    async def idle(self) -> None:
        """Wait until nothing is unacknowledged."""
        while self._pending:
            await self._moved()

    def close(self, reason: str) -> None:
        """The connection has ended: what was not acknowledged may have arrived or not."""
        self.link = None
        self.reason = self.reason or reason
        while self._pending:
            pending = self._pending.popleft()
            pending.done(pending.failure or ConnectionLost(reason, sent=True))
        self._notify()

    async def _moved(self) -> None:
        """Wait for an ack, or the end."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Asked:
    """A command that the other side has not handled yet."""

    __slots__ = ("answer", "failure")

    def __init__(self, answer: "asyncio.Future[None]") -> None:
        self.answer = answer
        self.failure: Failure | None = None


class Commands:
    """One peer's commands that the other side has not handled yet.

    MicroMsg2 has no positive answers, but handles everything in order (MICROMSG-133): each command is followed by a
    ``ping``, and an ERROR that comes before the ``pong`` is about the command before it.
    """

    def __init__(self, outflow: Outflow, intake: Intake) -> None:
        self._outflow = outflow
        self._intake = intake
        self._asked: deque[_Asked] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    async def ask(self, command: Command | None, seconds: float | None) -> None:
        """Send a command, or only a ping, and wait until it was handled. Raises ``Failure`` if it was refused."""
        if not self._outflow.is_established:
            raise Closed(self._outflow.reason or "the connection is not open", sent=False)
        answer = self.post(command)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, expire, answer, "the command", seconds)
        self._intake.reconsider()
        try:
            await answer
        finally:
            if timer is not None:
                timer.cancel()
            self._intake.reconsider()

    def post(self, command: Command | None) -> "asyncio.Future[None]":
        """Send a command, or only a ping, without waiting; the future is done as ``ask`` would be."""
        asked = _Asked(asyncio.get_running_loop().create_future())
        if command is not None:
            self._outflow.send(command)
        self._outflow.send(PING)
        self._asked.append(asked)
        return asked.answer

    def refused(self, failure: Failure) -> bool:
        """An ERROR after which the connection stays open. False if it can't be about a command."""
        if not self._asked:
            return False
        if failure.name == UNKNOWN_COMMAND and failure.arguments.get("name") == PING.name:
            self.answered()  # that is an answer, too
        else:
            self._asked[0].failure = failure
        return True

    def answered(self) -> None:
        """A ``pong``."""
        if self._asked:
            asked = self._asked.popleft()
            _settle(asked.answer, asked.failure)

    def lost(self, reason: str) -> None:
        """No answers will come."""
        for asked in self._asked:
            _settle(asked.answer, ConnectionLost(reason, sent=True))
        self._asked.clear()


def _settle(future: "asyncio.Future[None]", problem: Exception | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)
        future.exception()  # it may never be awaited


# What a peer receives.


def _nothing() -> None:
    """Acknowledge a message if there are no acks."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the program gets it. ``type_name`` is empty if it has none.

    ``extensions`` are the frames of vendor extensions that came before it, each with the extension's name and payload;
    of more than ``ATTACHED`` the last ones.
    ``ack`` says that the program is done with it; until then it counts against the window of the other side, and is
    not lost if it came from a queue. ``nack`` gives it back to its queue.
    """

    destination: str
    payload: bytes
    properties_text: str = ""
    type_name: str = ""
    acknowledge: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    extensions: tuple[tuple[str, bytes], ...] = ()
    reject: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, Value]:
        """The properties by key: numbers, texts and dates."""
        return read_properties(self.properties_text) if self.properties_text else {}

    def ack(self) -> None:
        """Be done with it. Only the first time counts."""
        self.acknowledge()

    def nack(self, delay: float = 0.0, reason: str = "") -> None:
        """Reject it: its queue delivers it again, after ``delay`` seconds at the earliest.

        After ``ack`` it does nothing. Raises ``LocalProtocolError`` if ``x-nack`` was not agreed on.
        """
        if self.reject is None:
            raise LocalProtocolError(f"{X_NACK} was not agreed on, so messages can't be rejected", rule="MICROMSG-196")
        self.reject(delay, reason)


class _Due:
    """A message that arrived and is not acknowledged."""

    __slots__ = ("done", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.done = False


class Inflow:
    """What one peer receives: messages in order, acknowledged once the program is done with them.

    An ack covers all messages up to its number, so it is sent once everything before is done. All that
    become due in a turn of the event loop go as one.
    """

    def __init__(self, connection: Connection, outflow: Outflow) -> None:
        self.attached: deque[tuple[str, bytes]] = deque(maxlen=ATTACHED)
        self.nack_number = 0
        self._connection = connection
        self._outflow = outflow
        self._due: deque[_Due] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        """How many messages arrived and were not acknowledged."""
        return len(self._due)

    def take(self, frame: Message) -> Received:
        """The message for the program."""
        attached: tuple[tuple[str, bytes], ...] = ()
        if self.attached:
            attached = tuple(self.attached)
            self.attached.clear()
        acknowledge: Callable[[], None] = _nothing
        reject: Callable[[float, str], None] | None = None
        connection = self._connection
        if connection.ack_number:
            due = _Due(frame.sequence)
            self._due.append(due)
            acknowledge = partial(self._done, due)
            if self.nack_number:
                reject = partial(self._reject, due)
        return Received(
            frame.destination, frame.payload, frame.properties, connection.type_name, acknowledge, attached, reject
        )

    def flush(self) -> None:
        """Acknowledge what the program is done with, without waiting for the end of the turn."""
        self._scheduled = False
        last = 0
        while self._due and self._due[0].done:
            last = self._due.popleft().sequence
        link = self._outflow.link
        if last and link is not None and self._connection.is_established():
            link.write(self._connection.acknowledge(last))

    def close(self) -> None:
        """The connection has ended: nothing can be acknowledged any more."""
        self._due.clear()

    def _reject(self, due: _Due, delay: float, reason: str) -> None:
        if not due.done and self._due:  # without any the connection has ended
            self._outflow.send(nack(self.nack_number, due.sequence, delay, reason))
            self._done(due)  # after the nack its number is acknowledged like any other

    def _done(self, due: _Due) -> None:
        due.done = True
        if not self._scheduled and self._due and self._due[0].done:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)


class Subscription:
    """The messages of one destination, as an async iterator. Leave it with ``leave`` or ``async with``.

    A queue's message is acknowledged with ``Received.ack``, or when the next one is asked for. What was not when the
    queue is left stays with this connection, and goes back to the queue when that ends.
    """

    def __init__(self, subscriptions: "Subscriptions", destination: str, condition: Filter, limit: int) -> None:
        self.destination = destination
        self.condition = condition
        self.inbox: Inbox[Received] = Inbox(subscriptions.intake, limit, on_close=lambda: subscriptions.ended(self))
        self._subscriptions = subscriptions
        self._last: Received | None = None

    async def leave(self) -> None:
        """End the subscription."""
        await self._subscriptions.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        last, self._last = self._last, None
        if last is not None:
            last.ack()
        self._last = await self.inbox.__anext__()
        return self._last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Subscriptions:
    """All subscriptions of one peer, by destination, and which of them each message is for.

    A topic's message comes once, however many of a connection's subscriptions it matches (MICROMSG-76), so all of them
    get it here. It is acknowledged immediately: a reader that does not keep up makes the connection stop reading
    instead. A queue's message goes to one subscription, and is acknowledged when that one is done with it.
    """

    def __init__(self, commands: Commands, intake: Intake) -> None:
        self.intake = intake
        self._commands = commands
        self._known: dict[str, list[Subscription]] = {}
        self._left: set[str] = set()  # queues: what still comes from them is not acknowledged, so that others get it

    async def subscribe(self, destination: str, condition: Filter, limit: int, seconds: float | None) -> Subscription:
        """Subscribe. Several to one destination share it if their filters are equal: the other side keeps only one."""
        shared = self._known.get(destination, [])
        if any(each.condition != condition for each in shared):
            reason = f"{destination} is subscribed to with another filter, and there is one for each destination"
            raise LocalProtocolError(reason, rule="MICROMSG-76")
        subscription = Subscription(self, destination, condition, limit)
        self._known.setdefault(destination, []).append(subscription)
        self._left.discard(destination)
        try:
            await self._commands.ask(subscribe(destination, condition), seconds)
        except Failure:
            self._forget(subscription)
            raise
        except BaseException:
            self.ended(subscription)  # it may have been accepted
            raise
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        """Undo ``subscribe``; the other side is notified when the last one of a destination leaves."""
        last = self._forget(subscription)
        subscription.inbox.close()
        if last:
            await self._commands.ask(unsubscribe(subscription.destination), None)

    def ended(self, subscription: Subscription) -> None:
        """Nobody reads it any more."""
        if self._forget(subscription):
            self._commands.post(unsubscribe(subscription.destination))

    def take(self, message: Received) -> bool:
        """Give a message to the subscriptions it is for. False if it is for none."""
        if not message.destination.startswith(TOPIC_PREFIX):
            shared = self._known.get(message.destination)
            if not shared:
                return message.destination in self._left
            shared.append(shared.pop(0))  # they take turns
            shared[-1].inbox.put(message, len(message.payload))
            return True
        found = [
            each
            for destination, shared in self._known.items()
            if covers(destination, message.destination)
            for each in shared
            if not each.condition.clauses or matches(each.condition, message.properties)
        ]
        for each in found:  # one that is not read may end meanwhile
            each.inbox.put(message, len(message.payload))
        if found:
            message.ack()
        return bool(found)

    def lost(self, reason: str) -> None:
        """Nothing more will come."""
        for shared in self._known.values():
            for each in shared:
                each.inbox.fail(ConnectionLost(reason))
        self._known.clear()

    def _forget(self, subscription: Subscription) -> bool:
        """Remove it. True if it was the last one of its destination."""
        shared = self._known.get(subscription.destination, [])
        if subscription not in shared:
            return False
        shared.remove(subscription)
        if shared:
            return False
        del self._known[subscription.destination]
        if not subscription.destination.startswith(TOPIC_PREFIX):
            self._left.add(subscription.destination)
        return True


class Peer(LivePeer):
    """One side of a connection. ``handler`` takes the messages that no subscription of this side takes.

    ``failed`` is called with each ERROR that nothing of this side is about, ``extended`` with the name and payload of
    each frame of a vendor's extension, ``on_lost`` at the end of the connection, ``on_room`` when the
    connection or its window has room again.
    """

    def __init__(
        self,
        role: Role | str,
        terms: Terms,
        handler: Handler | None = None,
        *,
        login: Login | None = None,
        subscribed: Subscribed | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.failed: Callable[[Failure], None] | None = None
        self.extended: Callable[[str, bytes], None] | None = None
        self._connection = Connection(role_of(role), terms, limits)
        self._handler = handler
        self._login = login if self._connection.role is Role.SERVER else None
        self._subscribed = subscribed
        self._subscriptions: dict[str, Filter] = {}
        self._limits = limits
        self._logging_in = False
        self._draining = False
        self._work = Work()
        self.outflow = Outflow(self._connection)
        self._inflow = Inflow(self._connection, self.outflow)
        self._intake = Intake(lambda: len(self._commands) > 0 or len(self.outflow) > 0)
        self._commands = Commands(self.outflow, self._intake)
        self._own_subscriptions = Subscriptions(self._commands, self._intake)
        super().__init__(self.outflow, self._intake)

    @property
    def agreement(self) -> Agreement | None:
        """What the handshake gave: the version, the extensions, the other side's identity. None before."""
        return self._connection.agreement

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self.outflow.is_established

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        return self._work.due > 0 or len(self._commands) > 0

    @property
    def subscriptions(self) -> Mapping[str, Filter]:
        """The destinations the other side has subscribed to here, each with its filter."""
        return self._subscriptions

    async def send(
        self,
        destination: str,
        payload: Body,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message. Returns once it is acknowledged; without an ack extension, once it is written.

        ``extensions`` are frames of vendor extensions to send before it, each with the extension's name and payload.
        Raises ``Failure`` if the other side refuses it, ``ConnectionLost`` if the connection ends before.
        """
        await (await self.post(destination, payload, properties, type_name=type_name, extensions=extensions))

    async def post(
        self,
        destination: str,
        payload: Body,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> "asyncio.Future[None]":
        """Send a message as soon as the window allows, and return then; the future is done as ``send`` would be."""
        text = write_properties(dict(properties)) if properties else ""
        data = octets(payload, "payload")
        await self.outflow.turn()
        acknowledged: asyncio.Future[None] = self._loop.create_future()
        self.put(destination, data, text, type_name, partial(_settle, acknowledged), extensions)
        await self.outflow.room()
        return acknowledged

    def put(
        self,
        destination: str,
        payload: bytes,
        properties: str,
        type_name: str,
        done: Done,
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message now, after having waited for the window; ``done`` is called with what became of it."""
        self.outflow.put(destination, payload, properties, type_name, done, extensions)
        # Its acknowledgement must be read, however full the subscriptions are.
        if self._intake.strained:
            self._intake.decide()

    async def subscribe(
        self,
        destination: str,
        condition: Filter = NO_FILTER,
        *,
        limit: int = LIMIT,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than a context of its own
    ) -> Subscription:
        """Subscribe to ``topic/<path>``, perhaps a pattern, or take from a queue; only what passes the filter comes.

        Returns when the other side has done so. Raises ``Failure`` if it refuses.
        """
        return await self._own_subscriptions.subscribe(destination, condition, limit, timeout)

    async def ping(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until the other side has handled everything that was sent before."""
        await self._commands.ask(None, timeout)

    def extend(self, name: str, payload: bytes) -> None:
        """Send a frame of a vendor extension that was agreed on; the other side gets it before the next message."""
        self.outflow.send(self._connection.vendor_frame(name, payload))

    def wants(self, destination: str, properties: Mapping[str, Value] = NO_PROPERTIES) -> bool:
        """Whether the other side has subscribed to messages like this."""
        return self.is_open and any(
            covers(subscribed, destination) and matches(condition, dict(properties))
            for subscribed, condition in self._subscriptions.items()
        )

    async def drain(self) -> None:
        """Refuse new messages, and wait until the handlers are done and what was sent is acknowledged."""
        self._draining = True
        await self._work.idle()
        await self.outflow.idle()

    async def close(self) -> None:
        """Acknowledge what the program is done with, and end the connection."""
        link = self.outflow.link
        self.closed_here = True
        if link is not None:
            self._inflow.flush()
            self.outflow.reason = self.outflow.reason or "this side closed the connection"
            await link.close()

    # For those who carry the connection.

    def attach(self, link: Link) -> None:
        """It is carried by this link."""
        super().attach(link)
        self.outflow.on_open = self._room

    async def say_hello(self) -> None:
        """A client's handshake, and its login if it has one. Raises ``Refused``."""
        self._shake()
        await self.opened()
        if self.agreement is not None and self.agreement.credentials is not None:
            try:
                await self.ping()  # MicroMsg2 has no answer for a login that was accepted
            except (Failure, ConnectionLost) as error:
                raise Refused(str(error), code=FORBIDDEN) from error

    def goodbye(self) -> None:
        """The server is closed."""
        self._end(Error(SHUTTING_DOWN))

    def timed_out(self) -> None:
        """MICROMSG-176: a client took too long for its handshake, or sent nothing for too long."""
        if self._connection.is_established():
            self._end(Error(SHUTTING_DOWN, (("reason", "no data received within the idle timeout"),)))
        else:
            self._end(Error(BAD_HANDSHAKE, (("reason", "the handshake took too long"),)))

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - a stream has no texts
        """Handle bytes from the other side."""
        self._connection.receive(data)
        self._pull()

    def _end_all(self, reason: str) -> None:
        self._connection.lost()
        self.outflow.close(reason)
        self._inflow.close()
        self._commands.lost(reason)
        self._own_subscriptions.lost(reason)
        self._work.lost()

    def _pull(self) -> None:
        """Handle what has arrived. During a login it waits in the connection."""
        while not self._logging_in:
            event = self._connection.next_event()
            if event is None:
                return
            self._take(event)

    def _take(self, event: Frame) -> None:
        if isinstance(event, Message):
            message = self._inflow.take(event)
            if not self._own_subscriptions.take(message):
                self._handle(message, event.sequence)
        elif isinstance(event, Extension):
            self._extension(event)
        elif isinstance(event, Command):
            self._command(event)
        elif isinstance(event, Error):
            self._error(event)
        elif isinstance(event, Handshake):
            self._shake()
        elif isinstance(event, Ended):
            failure = Failure.of(event.error)
            self.outflow.reason = f"the other side broke a rule: {failure} ({event.rule})"
            if event.error.name == UNSUPPORTED_EXTENSION:
                self._not_opened(Refused(f"the handshake failed: {failure}", code=event.error.name))
            if self.outflow.link is None:  # it is not attached yet
                raise ConnectionLost(self.outflow.reason)
            self._end(event.error)

    def _extension(self, frame: Extension) -> None:
        if frame.number == self._connection.ack_number:
            self.outflow.acked(self._connection.acknowledged)
            self._intake.reconsider()
            return
        name = self._connection.purpose(frame)
        if isinstance(name, str):
            self._inflow.attached.append((name, frame.payload))
            if self.extended is not None:
                self.extended(name, frame.payload)

    def _command(self, frame: Command) -> None:
        if frame.name == PING.name:
            self.outflow.send(PONG)
            return
        if frame.name == PONG.name:
            self._commands.answered()
            return
        request = read_subscription(frame, pub_sub=self.agreement is not None and self.agreement.pub_sub)
        if isinstance(request, Error):
            self._answer(request)
            return
        destination, condition = request
        error = self._subscription(destination, condition if frame.name == SUBSCRIBE else None)
        if error is not None:
            self._answer(error)

    def _answer(self, error: Error) -> None:
        if ends_connection(error.name):
            self._end(error)
        else:
            self.outflow.send(error)

    def _subscription(self, destination: str, condition: Filter | None) -> Error | None:
        """The other side subscribes or, without a filter, unsubscribes; the ERROR to answer with."""
        known = destination in self._subscriptions
        if condition is None and not known:
            return no_such_destination(destination)  # MICROMSG-134
        if not known and len(self._subscriptions) >= self._limits.subscriptions:
            return Failure(FORBIDDEN, limit=str(self._limits.subscriptions)).frame(destination=destination)
        try:
            if self._subscribed is not None:
                self._subscribed(self, destination, condition)
        except Failure as failure:
            return failure.frame(destination=destination)
        if condition is None:
            del self._subscriptions[destination]
        else:
            self._subscriptions[destination] = condition
        return None

    def _error(self, frame: Error) -> None:
        failure = Failure.of(frame)
        if not self._opened.done():
            self.outflow.reason = f"the other side refused: {failure}"
            self._not_opened(Refused(str(failure), code=frame.name, temporary=frame.name == SHUTTING_DOWN))
            raise ConnectionLost(self.outflow.reason)
        if self._connection.state is State.CLOSED or failure.arguments.get("name") == X_AUTH:
            self.outflow.reason = f"the other side ended it: {failure}"
            if frame.name == TOO_LARGE:
                self._too_large = True
                limit = failure.arguments.get("limit", "")
                self._limit = int(limit) if limit.isdecimal() else None
            raise ConnectionLost(self.outflow.reason)
        if self.outflow.refused(failure) or self._commands.refused(failure):
            return
        if self.failed is not None:
            self.failed(failure)
        else:
            log.warning("the other side reports an error: %s", failure)

    # The handler.

    def _handle(self, message: Received, sequence: int) -> None:
        """Give a message to the handler, one after another."""
        if self._handler is None or self._draining:
            name = NO_SUCH_DESTINATION if self._handler is None else FORBIDDEN
            reason = "this peer does not accept messages" if self._handler is None else SHUTTING_DOWN
            self._refuse(message, sequence, Failure(name, reason=reason))
            return
        try:
            outcome = self._handler(self, message)
        except Exception as error:  # noqa: BLE001 - reported to the sender, and logged
            self._refuse(message, sequence, error)
            return
        if outcome is None:
            message.ack()
            return
        self._work.due += 1
        self._work.start(self._finish(message, sequence, outcome))

    async def _finish(self, message: Received, sequence: int, outcome: Awaitable[None]) -> None:
        try:
            await outcome
            message.ack()
        except Exception as error:  # noqa: BLE001 - reported to the sender, and logged
            self._refuse(message, sequence, error)
        finally:
            self._work.done()

    def _refuse(self, message: Received, sequence: int, error: Exception) -> None:
        """Report a failure with the message's destination and number. Its ack follows, so that the window moves on."""
        if not isinstance(error, Failure) or error.name not in ENDS_CONNECTION:
            log.error("a handler of MicroMsg2 messages failed", exc_info=error)
            error = Failure(FORBIDDEN, reason="the handler failed")
        self._answer(error.frame(destination=message.destination, sequence=str(sequence)))
        message.ack()

    # The handshake and the end.

    def _shake(self) -> None:
        """Say what is due in the handshake, and open the connection at its end."""
        connection, link = self._connection, self.outflow.link
        if not connection.is_established() and link is not None:
            link.write(connection.handshake())
        agreement = connection.agreement
        if agreement is None:
            return
        self._inflow.nack_number = agreement.number(X_NACK) or 0
        if self._login is None:
            self._opened.set_result(None)
        else:
            self._logging_in = True
            if link is not None:
                link.pause_reading()
            self._work.start(self._let_in(self._login, agreement.credentials))

    async def _let_in(self, login: Login, credentials: Mapping[str, str] | None) -> None:
        try:
            outcome = login(self, credentials)
            if outcome is not None:
                await outcome
        except Exception as error:
            if not isinstance(error, Failure):
                log.exception("the login of a client failed")
                error = Failure(FORBIDDEN, reason="the login could not be checked")
            self._not_opened(Refused(str(error)))
            self._end(error.frame(name=X_AUTH))
            return
        self._logging_in = False
        if self.outflow.link is None:
            return
        self.outflow.link.resume_reading()
        self._opened.set_result(None)
        try:
            self._pull()
        except ConnectionLost:  # it has left already
            self._end(None)

    def _end(self, error: Error | None) -> None:
        """Acknowledge what is done, report what is wrong, and hang up (MICROMSG-100)."""
        link = self.outflow.link
        if self._connection.state is State.CLOSED or link is None:
            return
        self._inflow.flush()
        link.write(self._connection.close(error))
        if error is not None:
            self.outflow.reason = self.outflow.reason or f"this side ended it: {Failure.of(error)}"
        self._hang_up()
