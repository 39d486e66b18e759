"""One side of a UMQ connection in a program: calls, callbacks, topics, attributes, whoever opened the connection.

Stands on the codec and its tables, and below ``client`` and ``server``. It receives what comes on a ``Link``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from polywire.client.errors import ConnectionLost, Refused
from polywire.client.inbox import LIMIT, Intake
from polywire.client.peer import LivePeer
from polywire.protocols.umq import frames
from polywire.protocols.umq.attributes import Attribute, Attributes
from polywire.protocols.umq.errors import FatalCode, RemoteProtocolError, describe
from polywire.protocols.umq.frames import Decoder, Fatal
from polywire.protocols.umq.peer.arriving import Received
from polywire.protocols.umq.peer.asking import Asking
from polywire.protocols.umq.peer.failures import Rejected
from polywire.protocols.umq.peer.handling import Handler, Handling, Outcome, Reply, as_reply, log
from polywire.protocols.umq.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.umq.peer.sending import Attachable, Sender
from polywire.protocols.umq.peer.streaming import Publication, Streaming, Subscription
from polywire.protocols.umq.state import Machine, Role, State
from polywire.wire.frame import Frame

TEMPORARY = (FatalCode.UNAVAILABLE, FatalCode.LIMIT_EXCEEDED, FatalCode.SHUTTING_DOWN)
"""The codes with which a server may refuse a client that it would take later."""

TOO_BIG = "UMQ-133"

Greet = Callable[["Peer", Received], Outcome | Awaitable[Outcome | None] | None]


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
        self._attributes = Attributes()
        self.changed: Callable[[str], None] | None = None
        self.welcome = Received("")
        self._greet = greet
        self._machine = Machine(role)
        self._decoder = Decoder(
            max_text=limits.max_text, max_binary=limits.max_binary, max_unfinished=limits.max_unfinished
        )
        self._unfinished: dict[int, Received] = {}
        self._sender = Sender(self._machine)
        self._intake = Intake(lambda: len(self._asking) > 0)
        self._asking = Asking(self._sender, self._intake, self._hold, limit=limits.in_flight)
        self._handling = Handling(self, self._sender, self._hold, limit=limits.in_flight, callbacks=limits.callbacks)
        self._handling.handler = handler
        self._streaming = Streaming(self._sender, self._intake, self._hold, limit=limits.topics)
        super().__init__(self._sender, self._intake)
        self._takes: dict[type[Frame], Callable[[Any], None]] = {
            frames.Result: self._asking.answered,
            frames.CallException: self._asking.answered,
            frames.Call: self._handling.called,
            frames.Callback: self._handling.called,
            frames.TopicUpdate: self._streaming.updated,
            frames.TopicClose: self._streaming.closed,
            frames.Unsubscribe: self._streaming.unsubscribed,
            frames.Attachment: self._attached,
            frames.AttachmentError: self._attached,
            frames.SetAttribute: self._attribute_set,
            frames.UnsetAttribute: self._attribute_unset,
            frames.Hello: self._greeted,
            frames.Welcome: self._welcomed,
            frames.Fatal: self._fatal,
        }

    async def call(
        self,
        text: str,
        attachments: Sequence[Attachable] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than a context of its own for each call
    ) -> Received:
        """Ask the other side, and wait for its answer. An ``E`` raises ``RpcException``.

        A call that is cancelled or timed out is given up: its answer, should it come, is passed over.
        """
        return await self._asking.ask(None, text, attachments, timeout)

    async def call_back(
        self,
        callback_id: int,
        text: str,
        attachments: Sequence[Attachable] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Received:
        """Ask a function that the other side has registered, as ``call`` does."""
        return await self._asking.ask(callback_id, text, attachments, timeout)

    def tell(self, text: str, attachments: Sequence[bytes] = ()) -> "asyncio.Future[Received]":
        """Ask the other side and wait for nothing; the future is done as ``call`` would be. Mind ``has_room``."""
        return self._asking.tell(text, attachments)

    def register(self, function: Handler, callback_id: int | None = None) -> int:
        """Let the other side call this function back; the id to tell it."""
        return self._handling.callbacks.register(function, callback_id)

    def unregister(self, callback_id: int) -> None:
        """No longer."""
        self._handling.callbacks.unregister(callback_id)

    def subscription(self, topic_id: int | None = None, *, limit: int = LIMIT) -> Subscription:
        """Be ready for the updates of a topic whose id the other side is told next.

        ``limit`` updates may wait to be read before the connection is not read any more.
        """
        self._sender.check()
        return self._streaming.subscribe(topic_id, limit)

    def publication(self, topic_id: int) -> Publication:
        """Accept the other side's subscription. Raises ``MethodError`` for an id that is in use."""
        self._sender.check()
        return self._streaming.publish(topic_id)

    def set(self, name: str, value: str, attachments: Sequence[Attachable] = ()) -> None:
        """Set an attribute that the other side sees."""
        self._sender.check(attachments)
        self._sender.send(frames.SetAttribute(name, value, len(attachments)), attachments)

    def unset(self, name: str) -> None:
        """Clear it."""
        self._sender.check()
        self._sender.send(frames.UnsetAttribute(name))

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The attributes that the other side has set, by name: a read-only view that is always up to date."""
        return self._attributes.view

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self._sender.is_open

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        return len(self._handling) > 0 or len(self._asking) > 0

    def fail(self, code: FatalCode, detail: str = "") -> None:
        """End the connection with ``F``."""
        if self._machine.state is not State.CLOSED:
            self._say(Fatal(code.value, describe(code, detail)))
            self._hang_up()

    async def drain(self) -> None:
        """Refuse new requests with code 10, and wait until those under way are answered."""
        await self._handling.drain()
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
        self._sender.send(frames.Hello(self._machine.newest, text, len(attachments)), attachments)
        await self.opened()

    def goodbye(self) -> None:
        """A server goes away."""
        self.fail(FatalCode.SHUTTING_DOWN)

    def timed_out(self) -> None:
        """UMQ-137: a client took too long, for its handshake or to be heard of."""
        what = "nothing was heard of you for too long" if self.is_open else "the handshake took too long"
        self.fail(FatalCode.LIMIT_EXCEEDED, what)

    def too_big(self) -> None:
        """UMQ-133: a message was too big to be received."""
        if self._machine.state is not State.CLOSED:
            code = FatalCode.LIMIT_EXCEEDED
            self._say(Fatal(code.value, describe(code, "the message is too big")))

    def received(self, data: bytes, text: bool, /) -> None:
        """Take one WebSocket message."""
        try:
            for frame in self._decoder.feed(data.decode() if text else data):
                if self._machine.receive(frame):
                    self._takes[type(frame)](frame)
        except RemoteProtocolError as error:
            if self._machine.state is State.CLOSED:
                return
            self._sender.reason = f"the other side broke a rule: {error}"
            if error.rule == TOO_BIG and self._sender.link is not None:
                self._sender.link.too_big = True
            if isinstance(error.reply, Fatal):
                self._say(error.reply)
            raise

    def _end_all(self, reason: str) -> None:
        self._sender.close(reason)
        self._asking.lost(reason)
        self._streaming.lost(reason)
        self._handling.work.lost()
        for received in self._unfinished.values():
            for each in received.attachments:
                if not each.done():
                    each.failed(reason)
        self._unfinished.clear()

    def _hold(self, text: str, attachments: int, ordinal: int) -> Received:
        received = Received(text, attachments)
        if attachments:
            self._unfinished[ordinal] = received
        return received

    def _attached(self, frame: frames.Attachment | frames.AttachmentError) -> None:
        if self._attributes.fill(frame):
            return
        received = self._unfinished.get(frame.owner)
        if received is None:
            return
        if frame.index == len(received.attachments) - 1:
            del self._unfinished[frame.owner]
        if isinstance(frame, frames.AttachmentError):
            received.attachments[frame.index].failed(frame.message)
        else:
            received.attachments[frame.index].arrived(frame.body)

    def _attribute_set(self, frame: frames.SetAttribute) -> None:
        self._attributes.set(frame)
        if self.changed is not None:
            self.changed(frame.name)

    def _attribute_unset(self, frame: frames.UnsetAttribute) -> None:
        self._attributes.unset(frame)
        if self.changed is not None:
            self.changed(frame.name)

    def _greeted(self, frame: frames.Hello) -> None:
        self._handling.work.start(self._admit(self._hold(frame.payload, frame.attachments, frame.ordinal)))

    async def _admit(self, received: Received) -> None:
        try:
            outcome = None if self._greet is None else self._greet(self, received)
            if isinstance(outcome, Awaitable):
                outcome = await outcome
            reply = Reply() if outcome is None else as_reply(outcome)
        except Rejected as error:
            self.fail(error.code, error.reason)
            return
        except Exception:  # noqa: BLE001 - it is logged
            log.exception("greeting a client failed")
            self.fail(FatalCode.UNAVAILABLE)
            return
        if self._machine.state is State.HELLO_RECEIVED:
            frame = frames.Welcome(self._machine.offered, reply.text, len(reply.attachments))
            self._sender.send(frame, reply.attachments)
            self._opened.set_result(None)

    def _welcomed(self, frame: frames.Welcome) -> None:
        self.welcome = self._hold(frame.payload, frame.attachments, frame.ordinal)
        self._opened.set_result(None)

    def _fatal(self, frame: Fatal) -> None:
        self._sender.reason = f"the other side ended it: {frame.code} {frame.message}"
        self._not_opened(Refused(frame.message, code=frame.code, temporary=frame.code in TEMPORARY))
        raise ConnectionLost(self._sender.reason)

    def _say(self, frame: Fatal) -> None:
        self._sender.reason = self._sender.reason or f"this side ended it: {frame.code} {frame.message}"
        self._sender.send(frame)
