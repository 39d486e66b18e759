"""One side of a MicroMsg2 connection in a program: messages both ways, extensions, subscriptions with filters, windows.

Stands on the codec and its tables, and below ``client`` and ``server``. It receives what comes on a ``Link``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

from polywire.client.errors import ConnectionLost, Refused
from polywire.client.inbox import LIMIT, Intake
from polywire.client.link import Link
from polywire.client.peer import LivePeer
from polywire.protocols.frame import Frame
from polywire.protocols.micromsg import commands, errors, frames
from polywire.protocols.micromsg import properties as property_texts
from polywire.protocols.micromsg.errors import LocalProtocolError, RemoteProtocolError, ends_connection
from polywire.protocols.micromsg.extensions import ACK, BATCH_ACK, DOTNET
from polywire.protocols.micromsg.filters import Filter
from polywire.protocols.micromsg.frames import Command, Decoder, Error, Extension, Handshake, Message
from polywire.protocols.micromsg.negotiation import Agreement, Terms
from polywire.protocols.micromsg.peer.asking import Asking
from polywire.protocols.micromsg.peer.audience import Audience, Subscribed
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.peer.handling import Handler, Handling, log
from polywire.protocols.micromsg.peer.handshake import Shaking
from polywire.protocols.micromsg.peer.inflow import Inflow
from polywire.protocols.micromsg.peer.outflow import Done, Outflow
from polywire.protocols.micromsg.peer.subscribing import Subscribing, Subscription
from polywire.protocols.micromsg.properties import Value
from polywire.protocols.micromsg.state import State
from polywire.protocols.micromsg.windows import read_ack

NO_PROPERTIES: Mapping[str, Value] = {}
NO_FILTER = Filter()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``Decoder``, and how many destinations the other side may subscribe to."""

    max_message: int = frames.MAX_MESSAGE
    max_control: int = frames.MAX_CONTROL
    max_properties: int = property_texts.MAX_OCTETS
    max_handshake: int = frames.MAX_HANDSHAKE
    subscriptions: int = 1024


DEFAULT_LIMITS = Limits()

Login = Callable[["Peer", Mapping[str, str] | None], Awaitable[None] | None]
"""Looks at what ``x-auth`` says (None without it): raises ``Failure`` to refuse."""


class Peer(LivePeer):
    """One side of a connection. ``handler`` takes the messages that no subscription of this side takes.

    ``failed`` is called with each ERROR that nothing of this side is about, ``extended`` with the name and payload of
    each frame of a vendor's extension, ``on_lost`` at the end of the connection, ``on_room`` when the
    connection or its window has room again.
    """

    def __init__(
        self,
        role: str,
        terms: Terms,
        handler: Handler | None = None,
        *,
        login: Login | None = None,
        subscribed: Subscribed | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.failed: Callable[[Failure], None] | None = None
        self.extended: Callable[[str, bytes], None] | None = None
        self._login = login
        self._decoder = Decoder(
            role,
            max_message=limits.max_message,
            max_control=limits.max_control,
            max_properties=limits.max_properties,
            max_handshake=limits.max_handshake,
        )
        self._server = role == frames.SERVER
        self._shaking = Shaking(role, terms)
        self._held: list[Frame] | None = None  # what came behind the final message while the login goes on
        self.outflow = Outflow()
        self._inflow = Inflow(self.outflow.send)
        self._intake = Intake(lambda: len(self._asking) > 0 or len(self.outflow) > 0)
        self._asking = Asking(self.outflow, self._intake)
        self._subscribing = Subscribing(self._asking, self._intake)
        self._audience = Audience(self, subscribed, limit=limits.subscriptions)
        self._handling = Handling(self, self.outflow.send)
        self._handling.handler = handler
        super().__init__(self.outflow, self._intake, (self._handling, self._asking))

    @property
    def agreement(self) -> Agreement | None:
        """What the handshake gave: the version, the extensions, the other side's identity. None before."""
        return self._shaking.agreement

    @property
    def subscriptions(self) -> Mapping[str, Filter]:
        """The destinations the other side has subscribed to here, each with its filter."""
        return self._audience.subscriptions

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self._shaking.state is State.ESTABLISHED and self.outflow.link is not None

    async def send(
        self,
        destination: str,
        payload: bytes | str,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
    ) -> None:
        """Send a message. Returns once it is acknowledged; without an ack extension, once it is written.

        Raises ``Failure`` where the other side refuses it, ``ConnectionLost`` where the connection ends before.
        """
        await (await self.post(destination, payload, properties, type_name=type_name))

    async def post(
        self,
        destination: str,
        payload: bytes | str,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
    ) -> "asyncio.Future[None]":
        """Send a message as soon as the window allows, and return then; the future is done as ``send`` would be."""
        text = property_texts.write(dict(properties)) if properties else ""
        octets = payload.encode() if isinstance(payload, str) else payload
        await self.outflow.turn()
        acknowledged: asyncio.Future[None] = self._loop.create_future()
        self.put(destination, octets, text, type_name, lambda problem: _settle(acknowledged, problem))
        await self.outflow.room()
        return acknowledged

    def put(self, destination: str, payload: bytes, properties: str, type_name: str, done: Done) -> None:
        """Send a message at once, for those who have waited for the window; ``done`` is told what became of it."""
        self.outflow.put(destination, payload, properties, type_name, done)
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

        Returns when the other side has done so. Raises ``Failure`` where it refuses.
        """
        return await self._subscribing.subscribe(destination, condition, limit, timeout)

    async def ping(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until the other side has come to everything that was sent before."""
        await self._asking.ask(None, timeout)

    def extend(self, name: str, payload: bytes) -> None:
        """Send a frame of a vendor's extension that was agreed on."""
        number = None if self.agreement is None else self.agreement.number(name)
        if number is None or name in {ACK, BATCH_ACK, DOTNET}:
            raise LocalProtocolError(f"{name} was not agreed on, or is not a vendor's", rule="MICROMSG-167")
        self.outflow.send(Extension(number, payload))

    def wants(self, destination: str, properties: Mapping[str, Value] = NO_PROPERTIES) -> bool:
        """Whether the other side has subscribed to messages like this."""
        return self.is_open and self._audience.wants(destination, properties)

    async def drain(self) -> None:
        """Refuse new messages, and wait until what was taken is worked off and what was sent is acknowledged."""
        self._handling.draining = True
        await self._handling.work.idle()
        await self.outflow.idle()

    async def close(self) -> None:
        """Acknowledge what the program is done with, and end the connection."""
        link = self.outflow.link
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
        """A client's handshake, and its login where it has one. Raises ``Refused``."""
        self.outflow.send(self._shaking.offer())
        await self.opened()
        if self.agreement is not None and self.agreement.credentials is not None:
            try:
                await self.ping()  # MicroMsg2 has no words for a login that was accepted
            except (Failure, ConnectionLost) as error:
                raise Refused(str(error), code=errors.FORBIDDEN) from error

    def goodbye(self) -> None:
        """A server goes away."""
        self._end(Error(errors.SHUTTING_DOWN))

    def timed_out(self) -> None:
        """MICROMSG-176: a client took too long, for its handshake or to be heard of."""
        if self._shaking.state is State.ESTABLISHED:
            self._end(Error(errors.SHUTTING_DOWN, (("reason", "nothing was heard of you for too long"),)))
        else:
            self._end(Error(errors.BAD_HANDSHAKE, (("reason", "the handshake took too long"),)))

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - a stream has no texts
        """Take octets."""
        if self._shaking.state is State.CLOSED:
            return
        try:
            self._handle(self._decoder.feed(data))
        except RemoteProtocolError as error:
            self._handle(cast("list[Frame]", error.frames))
            self.outflow.reason = f"the other side broke a rule: {error}"
            if isinstance(error.reply, Error):
                self._end(error.reply)

    def _end_all(self, reason: str) -> None:
        self._shaking.state = State.CLOSED
        self.outflow.close(reason)
        self._inflow.close()
        self._asking.lost(reason)
        self._subscribing.lost(reason)
        self._handling.work.lost()

    def _handle(self, received: list[Frame]) -> None:
        for frame in received:
            if self._held is not None:
                self._held.append(frame)
            elif self._shaking.state is not State.CLOSED:
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Message):
            taken = self._inflow.take(frame)
            if isinstance(taken, Error):
                self._end(taken)
            elif not self._subscribing.take(taken):
                self._handling.take(taken, frame.sequence)
        elif isinstance(frame, Extension):
            self._extension(frame)
        elif isinstance(frame, Command):
            self._command(frame)
        elif isinstance(frame, Error):
            self._error(frame)
        elif isinstance(frame, Handshake):
            self._shake(frame)

    def _extension(self, frame: Extension) -> None:
        purpose = self.agreement.purpose(frame) if self.agreement is not None else Error(errors.BAD_FRAME)
        if isinstance(purpose, Error):
            self._end(purpose)
            return
        wrong: Error | None = None
        if purpose in {ACK, BATCH_ACK}:
            sequence = read_ack(frame.payload)
            wrong = sequence if isinstance(sequence, Error) else self.outflow.acked(sequence)
            if self._intake.strained:
                self._intake.decide()
        elif purpose == DOTNET:
            wrong = self._inflow.types.told(frame.payload)
        elif self.extended is not None:
            self.extended(purpose, frame.payload)
        if wrong is not None:
            self._end(wrong)

    def _command(self, frame: Command) -> None:
        request = commands.read(frame, pub_sub=self.agreement is not None and self.agreement.pub_sub)
        answer: Frame | None = None
        if isinstance(request, commands.Ping):
            answer = commands.ANSWER_TO_PING
        elif isinstance(request, commands.Pong):
            self._asking.answered()
        elif isinstance(request, Error):
            answer = request
        else:
            answer = self._audience.take(request)
        if isinstance(answer, Error) and ends_connection(answer.name):
            self._end(answer)
        elif answer is not None:
            self.outflow.send(answer)

    def _error(self, frame: Error) -> None:
        failure = Failure.of(frame)
        if not self._opened.done():
            self.outflow.reason = f"the other side refused: {failure}"
            self._not_opened(Refused(str(failure), code=frame.name, temporary=frame.name == errors.SHUTTING_DOWN))
            raise ConnectionLost(self.outflow.reason)
        if ends_connection(frame.name) or failure.arguments.get("name") == "x-auth":
            self.outflow.reason = f"the other side ended it: {failure}"
            raise ConnectionLost(self.outflow.reason)
        if self.outflow.refused(failure) or self._asking.refused(failure):
            return
        if self.failed is not None:
            self.failed(failure)
        else:
            log.warning("the other side reports an error: %s", failure)

    # The handshake and the end.

    def _shake(self, frame: Handshake) -> None:
        answer = self._shaking.take(frame)
        if isinstance(answer, Error):
            self._not_opened(Refused(f"the handshake failed: {Failure.of(answer)}", code=answer.name))
            self._end(answer)
            return
        if answer is not None:
            self.outflow.send(answer)
        agreement = self._shaking.agreement
        if agreement is None:
            return
        self.outflow.agree(agreement)
        self._inflow.agree(agreement)
        if not self._server or self._login is None:
            self._opened.set_result(None)
        else:
            self._held = []
            if self.outflow.link is not None:
                self.outflow.link.pause_reading()
            self._handling.work.start(self._admit(self._login, agreement.credentials))

    async def _admit(self, login: Login, credentials: Mapping[str, str] | None) -> None:
        try:
            outcome = login(self, credentials)
            if outcome is not None:
                await outcome
        except Exception as error:  # noqa: BLE001 - told to the client, and logged
            if not isinstance(error, Failure):
                log.error("the login of a client failed", exc_info=error)
                error = Failure(errors.FORBIDDEN, reason="the login could not be checked")
            self._held = None
            self._not_opened(Refused(str(error)))
            self._end(error.frame(name="x-auth"))
            return
        held, self._held = self._held or [], None
        if self.outflow.link is None:
            return
        self.outflow.link.resume_reading()
        self._opened.set_result(None)
        try:
            self._handle(held)
        except ConnectionLost:  # it has left already
            self._end(None)

    def _end(self, error: Error | None) -> None:
        """Acknowledge what is done, say what is wrong, and hang up (MICROMSG-100)."""
        if self._shaking.state is State.CLOSED or self.outflow.link is None:
            return
        self._inflow.flush()
        # MICROMSG-11: before the client's offer a server says nothing.
        if error is not None and not (self._server and self._shaking.state is State.CONNECTED):
            self.outflow.send(error)
            self.outflow.reason = self.outflow.reason or f"this side ended it: {Failure.of(error)}"
        self._shaking.state = State.CLOSED
        self._hang_up()


def _settle(acknowledged: "asyncio.Future[None]", problem: Exception | None) -> None:
    if acknowledged.done():
        return
    if problem is None:
        acknowledged.set_result(None)
    else:
        acknowledged.set_exception(problem)
        acknowledged.exception()  # nobody may wait for it
