"""What goes over one MicroMsg2 connection, seen from either side: the handshake, the frames that come, the end.

``Peer`` is what programs see of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from polywire.client.errors import ConnectionLost, Refused
from polywire.client.inbox import Intake
from polywire.client.link import Link
from polywire.client.peer import LivePeer
from polywire.protocols.micromsg import errors, frames
from polywire.protocols.micromsg.errors import RemoteProtocolError, ends_connection
from polywire.protocols.micromsg.filters import PING, PONG, SUBSCRIBE, read_subscription
from polywire.protocols.micromsg.frames import Command, Decoder, Error, Extension, Handshake, Message
from polywire.protocols.micromsg.negotiation import Agreement, Terms
from polywire.protocols.micromsg.peer.asking import Asking
from polywire.protocols.micromsg.peer.audience import Audience
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.peer.handling import Handling, log
from polywire.protocols.micromsg.peer.handshake import Shaking
from polywire.protocols.micromsg.peer.inflow import Inflow
from polywire.protocols.micromsg.peer.limits import Limits
from polywire.protocols.micromsg.peer.outflow import Outflow
from polywire.protocols.micromsg.peer.subscribing import Subscribing
from polywire.protocols.micromsg.state import State
from polywire.protocols.micromsg.text import ACK, BATCH_ACK, DOTNET
from polywire.protocols.micromsg.windows import read_ack
from polywire.wire.frame import Frame

Admit = Callable[[Mapping[str, str] | None], Awaitable[None] | None]
"""Looks at what ``x-auth`` says (None without it): raises ``Failure`` to refuse."""


class Conversation(LivePeer):
    """One side of a connection. ``_handling``, ``_audience`` and ``_admit`` are for those who make one to fill in."""

    _handling: Handling
    _audience: Audience
    _admit: Admit | None = None

    def __init__(self, role: str, terms: Terms, limits: Limits) -> None:
        self.failed: Callable[[Failure], None] | None = None
        self.extended: Callable[[str, bytes], None] | None = None
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
        super().__init__(self.outflow, self._intake)

    @property
    def agreement(self) -> Agreement | None:
        """What the handshake gave: the version, the extensions, the other side's identity. None before."""
        return self._shaking.agreement

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self._shaking.state is State.ESTABLISHED and self.outflow.link is not None

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        return len(self._handling) > 0 or len(self._asking) > 0

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
                await self._asking.ask(None, None)  # a ping: MicroMsg2 has no words for a login that was accepted
            except (Failure, ConnectionLost) as error:
                raise Refused(str(error), code=errors.FORBIDDEN) from error

    def goodbye(self) -> None:
        """A server goes away."""
        self._dismiss(Error(errors.SHUTTING_DOWN))

    def timed_out(self) -> None:
        """MICROMSG-176: a client took too long, for its handshake or to be heard of."""
        if self._shaking.state is State.ESTABLISHED:
            self._dismiss(Error(errors.SHUTTING_DOWN, (("reason", "nothing was heard of you for too long"),)))
        else:
            self._dismiss(Error(errors.BAD_HANDSHAKE, (("reason", "the handshake took too long"),)))

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
        else:
            self._inflow.attached.append((purpose, frame.payload))
            if self.extended is not None:
                self.extended(purpose, frame.payload)
        if wrong is not None:
            self._end(wrong)

    def _command(self, frame: Command) -> None:
        answer: Frame | None = None
        if frame.name == PING.name:
            answer = PONG
        elif frame.name == PONG.name:
            self._asking.answered()
        else:
            request = read_subscription(frame, pub_sub=self.agreement is not None and self.agreement.pub_sub)
            if isinstance(request, Error):
                answer = request
            else:
                destination, condition = request
                answer = self._audience.take(destination, condition if frame.name == SUBSCRIBE else None)
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
            if frame.name == errors.TOO_LARGE:
                self._too_large = True
                limit = failure.arguments.get("limit", "")
                self._limit = int(limit) if limit.isdecimal() else None
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
        if not self._server or self._admit is None:
            self._opened.set_result(None)
        else:
            self._held = []
            if self.outflow.link is not None:
                self.outflow.link.pause_reading()
            self._handling.work.start(self._let_in(self._admit, agreement.credentials))

    async def _let_in(self, admit: Admit, credentials: Mapping[str, str] | None) -> None:
        try:
            outcome = admit(credentials)
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

    def _dismiss(self, error: Error) -> None:
        """End the connection for this side's own reasons; MICROMSG-11: without a word before the client has begun."""
        silent = self._server and self._shaking.state is State.CONNECTED and not self._decoder.pending()
        self._end(None if silent else error)

    def _end(self, error: Error | None) -> None:
        """Acknowledge what is done, say what is wrong, and hang up (MICROMSG-100)."""
        if self._shaking.state is State.CLOSED or self.outflow.link is None:
            return
        self._inflow.flush()
        if error is not None:
            self.outflow.send(error)
            self.outflow.reason = self.outflow.reason or f"this side ended it: {Failure.of(error)}"
        self._shaking.state = State.CLOSED
        self._hang_up()
