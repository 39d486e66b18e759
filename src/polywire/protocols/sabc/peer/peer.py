"""One side of an sABC session in a program: messages that are answered, messages that are not, both ways.

Stands on the codec and its tables, and below ``client`` and ``server``. It receives what comes on a ``Link``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import cast

from polywire.client.errors import ConnectionLost, Refused
from polywire.client.inbox import Intake
from polywire.client.message import Body, octets
from polywire.client.peer import LivePeer
from polywire.protocols.sabc.errors import DRAINING, LIMIT, TOO_SLOW, UNAUTHORIZED, RemoteProtocolError
from polywire.protocols.sabc.frames import (
    Assembly,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    Whole,
    error_reply,
)
from polywire.protocols.sabc.headers import Header
from polywire.protocols.sabc.peer.asking import Asking
from polywire.protocols.sabc.peer.failures import Failure
from polywire.protocols.sabc.peer.handling import ANSWERING, Handler, Handling, log
from polywire.protocols.sabc.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.sabc.peer.sending import Sender
from polywire.protocols.sabc.state import Session, Side, State, new_session_id
from polywire.wire.frame import Discarded, Frame

TEMPORARY = (DRAINING, LIMIT)

Login = Callable[["Peer", Connect], float | Awaitable[float | None] | None]
"""Looks at a CONNECT: raises ``Failure`` to refuse it, else returns when the session expires (seconds since 1970)."""


class Peer(LivePeer):
    """One side of a session. ``handler`` takes its messages; without one they are refused with 404.

    ``session_id`` and ``expires`` are known once the session is open, ``client_id`` at the server too. ``failed`` is
    called with each ERROR that answers no message of this side, ``on_lost`` at the end of the connection,
    ``on_room`` when what was written has been passed on.
    """

    def __init__(
        self,
        side: Side,
        handler: Handler | None = None,
        *,
        messages: bool = False,
        login: Login | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.client_id = ""
        self.expires: float | None = None
        self.failed: Callable[[Failure], None] | None = None
        self.intake = Intake(lambda: len(self._asking) > 0)
        own = new_session_id() if side is Side.SERVER else None
        self._login = login
        self._session = Session(side, own)
        self._decoder = limits.decoder(own, messages=messages)
        self._assembly = Assembly()
        most = limits.max_message if limits.max_sent is None else limits.max_sent
        self._sender = Sender(self._session, messages=messages, frame_size=limits.frame_size, max_sent=most)
        self._handling = Handling(self, self._sender, limit=limits.in_flight)
        self._handling.handler = handler
        self._asking = Asking(self._sender, self.intake, limit=limits.in_flight)
        super().__init__(self._sender, self.intake)
        self._held: list[Frame] | None = None  # what came behind CONNECT while the login goes on
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def session_id(self) -> str:
        """The session's id, empty before it has one."""
        return self._session.session_id or ""

    @property
    def handler(self) -> Handler | None:
        """Who takes the other side's messages."""
        return self._handling.handler

    @handler.setter
    def handler(self, handler: Handler | None) -> None:
        self._handling.handler = handler

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self._sender.is_open

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        return len(self._handling) > 0 or len(self._asking) > 0

    async def ask(
        self,
        body: Body = b"",
        headers: tuple[Header, ...] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than a context of its own for each message
        msg_id: str | None = None,
    ) -> Whole:
        """Send a message, and wait for its answer; an acknowledgement has the body ``OK``. An ERROR raises ``Failure``.

        A message over the limit in ``Limits.max_sent`` is not sent (``LocalProtocolError``). One that was cut at the
        other side's limit raises ``Truncated``.

        Where this is cancelled or timed out, the answer, should it come, is passed over. ``msg_id`` is one of
        ``new_id``, for those who want to know it before.
        """
        return await self._asking.ask(msg_id or self._asking.new_id(), octets(body), headers, timeout)

    async def send(self, body: Body = b"", headers: tuple[Header, ...] = ()) -> None:
        """Send a message that wants no answer."""
        self._sender.check()
        data = octets(body)
        await self._sender.deliver(Message(self.session_id, self.new_id(), data, headers, send_only=True))

    def tell(self, body: bytes, headers: tuple[Header, ...] = ()) -> "asyncio.Future[Whole]":
        """Send a message that wants an answer and wait for nothing; the future is done as ``ask`` would be.

        Mind ``has_room``.
        """
        return self._asking.tell(body, headers)

    def new_id(self) -> str:
        """An id for a message of this side, not used before."""
        return self._asking.new_id()

    async def disconnect(self, *, seconds: float = 10.0) -> None:
        """A client's end in good order: the server finishes what it has accepted, then ends the session."""
        if not self._sender.is_open:
            await self.close()
            return
        self.closed_here = True
        self._sender.send(Disconnect(self.session_id))
        try:
            async with asyncio.timeout(seconds):
                await self.wait_ended()
        except TimeoutError:
            log.warning("the server did not end the session within %g s", seconds)
        finally:
            await self.close()

    async def drain(self) -> None:
        """Refuse new messages with 503, and wait until those there are have been answered."""
        self._handling.draining = True
        await self._handling.work.idle()

    async def close(self) -> None:
        """End the session here and now: DISCONNECTING, where it is open."""
        self.closed_here = True
        self._say_goodbye()
        link = self._sender.link
        if link is not None:
            await link.close()

    # For those who carry the connection.

    async def say_hello(self, client_id: str, passcode: str | None, headers: tuple[Header, ...] = ()) -> None:
        """A client's CONNECT. Raises ``Refused``."""
        self.client_id = client_id
        self._sender.send(Connect(client_id, passcode, headers))
        await self.opened()

    def goodbye(self) -> None:
        """End the session: DISCONNECTING, then close."""
        self._say_goodbye()
        self._hang_up()

    def timed_out(self) -> None:
        """SABC-101: a client took too long, for its CONNECT or to be heard of."""
        if self._sender.link is not None and self._session.state is not State.CLOSED:
            if self._session.state in ANSWERING:
                self._sender.send(Error(TOO_SLOW, b"nothing was heard of you for too long", self.session_id))
            else:
                self._sender.send(error_reply(TOO_SLOW, "the CONNECT took too long"))
        self.goodbye()

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - on a WebSocket both are spoken (SABC-72)
        """Take octets of a stream, or one message of a WebSocket."""
        try:
            self._handle(self._decoder.feed(data))
        except RemoteProtocolError as error:
            self._handle(cast("list[Frame]", error.frames))
            if self._session.state is State.CLOSED:
                return
            self._sender.reason = f"the other side broke a rule: {error}"
            if isinstance(error.reply, Error) and self._session.side is Side.SERVER:
                self._sender.send(error.reply)
            raise

    def _end_all(self, reason: str) -> None:
        self._sender.close(reason)
        self._session.state = State.CLOSED
        if self._expiry is not None:
            self._expiry.cancel()
        self._asking.lost(reason)
        self._handling.work.lost()

    def _handle(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._held is not None:
                self._held.append(frame)
                continue
            taken = self._session.receive(frame)
            if isinstance(taken, Message):
                whole = self._assembly.add(taken)
                if isinstance(whole, Whole):
                    self._message(whole)
                elif whole is not None:
                    self._discarded(whole)
            else:
                self._control(taken)

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Discarded):
            self._discarded(frame)
        elif isinstance(frame, Error):
            self._error(frame)
        elif isinstance(frame, Connect):
            self.client_id = frame.client_id
            self._held = []
            if self._sender.link is not None:
                self._sender.link.pause_reading()
            self._handling.work.start(self._admit(frame))
        elif isinstance(frame, Connected):
            self.expires = frame.session_expiry
            self._opened.set_result(None)
        elif isinstance(frame, Disconnect):
            self._handling.work.start(self._finish())
        elif isinstance(frame, Disconnecting):
            self._sender.reason = "the other side ended the session"
            raise ConnectionLost(self._sender.reason)

    def _discarded(self, frame: Discarded) -> None:
        log.warning("the other side broke a rule of sABC: %s (%s)", frame.reason, frame.rule)
        if frame.rule == "SABC-131":
            self._assembly.forget(self._decoder.given_up())
        allowed = (Side.SERVER, State.NEW), (Side.SERVER, State.CONNECTING)
        if isinstance(frame.reply, Error) and (
            self._session.state in ANSWERING or (self._session.side, self._session.state) in allowed
        ):
            self._sender.send(frame.reply)

    def _message(self, whole: Whole) -> None:
        if whole.ref_msg_id is not None:
            self._asking.answered(whole.ref_msg_id, whole)
            if whole.msg_id is None:
                return
        self._handling.take(whole)

    def _error(self, frame: Error) -> None:
        failure = Failure(frame.error_code or "", frame.body.decode(errors="replace"), frame.headers)
        if not self._opened.done() and self._session.side is Side.CLIENT:
            self._sender.reason = f"the server refused: {failure}"
            self._not_opened(Refused(failure.text, code=failure.code, temporary=failure.code in TEMPORARY))
            return
        about = frame.about
        if about is not None and self._asking.answered(about, failure):
            return
        if self.failed is not None:
            self.failed(failure)
        elif about is None:
            log.warning("the other side reports an error: %s", failure)

    # A session's beginning and end.

    async def _admit(self, frame: Connect) -> None:
        try:
            expires = None if self._login is None else self._login(self, frame)
            if isinstance(expires, Awaitable):
                expires = await expires
        except Exception as error:  # noqa: BLE001 - told to the client, and logged
            if not isinstance(error, Failure):
                log.error("the login of %r failed", frame.client_id, exc_info=error)
                error = Failure(DRAINING, "the login could not be checked")
            self._refuse(error)
            return
        if self._sender.link is None:
            return
        self.expires = expires
        self._sender.send(Connected(self.session_id, None if expires is None else int(expires)))
        if expires is not None:
            self._expiry = self._loop.call_later(max(0.0, expires - time.time()), self.goodbye)
        held, self._held = self._held or [], None
        self._sender.link.resume_reading()
        self._opened.set_result(None)
        try:
            self._handle(held)
        except ConnectionLost:  # it has left already
            self.goodbye()

    def _refuse(self, failure: Failure) -> None:
        if self._session.state is State.CONNECTING and self._sender.link is not None:
            refusal = self._session.reject(failure.code or UNAUTHORIZED, failure.text)
            self._sender.refuse(refusal)
            self._not_opened(Refused(failure.text, code=failure.code))
            self.goodbye()

    async def _finish(self) -> None:
        """SABC-39: a client wants to leave: what was accepted is answered first."""
        await self._handling.work.idle()
        self.goodbye()

    def _say_goodbye(self) -> None:
        if self._sender.link is not None and self._session.state in {State.OPEN, State.LEAVING}:
            self._sender.reason = self._sender.reason or "this side ended the session"
            self._sender.send(Disconnecting(self.session_id))
