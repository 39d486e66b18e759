"""One side of an sABC session in a program: messages that are answered, messages that are not, both ways.

``Peer`` is what a program talks to. It takes events from a ``Connection``, gives messages to the program's handler, and
returns answers to those who wait for them. ``client`` opens and accepts the links that carry peers.

A handler gets a ``Request`` and returns the body of the answer, a ``Reply`` if there are headers too, or None for the
acknowledgement ``OK``; at once or as something to await. ``Failure`` is answered as ERROR; any other exception is
logged, and answered without details. Send-only messages get no answer.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count

from polywire.client.errors import ClientError, Closed, ConnectionLost, Refused
from polywire.client.inbox import Intake
from polywire.client.link import Link
from polywire.client.message import Body, octets
from polywire.client.peer import LivePeer, Work, expire
from polywire.protocols.sabc.connection import Connection, State
from polywire.protocols.sabc.decoder import MAX_HEAD, MAX_HEADERS, MAX_MESSAGE, MAX_UNFINISHED
from polywire.protocols.sabc.errors import DRAINING, LIMIT, MEANINGS, NOT_FOUND, UNAUTHORIZED, RemoteProtocolError
from polywire.protocols.sabc.frames import Connect, Connected, Disconnect, Disconnecting, Error, Message, Whole
from polywire.protocols.sabc.headers import (
    BY_SERVICE,
    ERROR_SOURCE,
    ERROR_TAG,
    TRUNCATED,
    YES,
    Header,
    header,
    read_retry_after,
)
from polywire.wire.frame import Discarded, Frame, Role

IN_FLIGHT = 1000
"""Messages that may be unanswered each way by default, as on the hub."""

FRAME_SIZE = 64 * 1024
"""Bytes of a frame; longer messages are sent in several."""

OK = b"OK"
HANDLER_FAILED = "500"
TEMPORARY = (DRAINING, LIMIT)

log = logging.getLogger("polywire.sabc")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``Decoder``, how many messages may be unanswered each way, and the size of what is sent.

    ``frame_size``: longer messages are sent in several frames, 0 for one frame each. ``max_sent``: the other side's
    limit for a message, which is not exceeded here; None if it is the same as ``max_message``, 0 if it is not known.
    """

    max_message: int = MAX_MESSAGE
    max_head: int = MAX_HEAD
    max_headers: int = MAX_HEADERS
    max_unfinished: int = MAX_UNFINISHED
    in_flight: int = IN_FLIGHT
    frame_size: int = FRAME_SIZE
    max_sent: int | None = None

    def with_frames(self, frame_size: int | None) -> "Limits":
        """The same with frames of this size, unless it is None."""
        return self if frame_size is None else replace(self, frame_size=frame_size)

    def connection(self, role: Role, *, messages: bool) -> Connection:
        """A connection with these limits. ``messages``: the transport keeps messages apart."""
        return Connection(
            role,
            messages=messages,
            max_message=self.max_message,
            max_head=self.max_head,
            max_headers=self.max_headers,
            max_unfinished=self.max_unfinished,
            frame_size=self.frame_size,
            max_sent=self.max_message if self.max_sent is None else self.max_sent,
        )


DEFAULT_LIMITS = Limits()


class Failure(ClientError):  # noqa: N818 - read in "except Failure:"
    """The other side answered a message with ERROR; a handler or a server's ``login`` raises it to answer so.

    ``code`` is the ``error-code``, empty if there was none, ``text`` the body, ``headers`` the application's. A failed
    call also has ``tag``, ``retry_after`` in milliseconds and ``by_service``: a service answered, not the hub.
    """

    def __init__(self, code: str | int, text: str = "", headers: tuple[Header, ...] = ()) -> None:
        self.code = str(code)
        self.headers = headers
        self.tag = header(headers, ERROR_TAG) or ""
        self.retry_after = read_retry_after(headers)
        self.by_service = header(headers, ERROR_SOURCE) == BY_SERVICE
        self.text = text or ("" if self.by_service else MEANINGS.get(self.code, ""))
        super().__init__(f"{self.code} {self.text}".strip())


class Truncated(Failure):
    """The message, or its answer, was cut at a size limit (SABC-136). ``answer`` is what came, ``code`` is 413."""

    def __init__(self, answer: Whole) -> None:
        super().__init__("413", "the message, or its answer, was cut at the size limit")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with headers of its own."""

    body: bytes | str = OK
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A message that came from ``peer``."""

    peer: "Peer"
    message: Whole

    @property
    def body(self) -> bytes:
        """The body."""
        return self.message.body

    @property
    def headers(self) -> tuple[Header, ...]:
        """The application's headers, in order."""
        return self.message.headers

    def header(self, key: str) -> str | None:
        """The value of the first header with this key."""
        return header(self.message.headers, key)


class Later:
    """Returned by a handler that answers later, without anything to await, by calling ``answer`` or ``drop``."""

    def __init__(self) -> None:
        self._requests: Requests | None = None
        self._message: Whole | None = None
        self._dropped = False

    def answer(self, outcome: "Outcome" = None) -> None:
        """Answer now, as if the handler had returned this. Only the first call counts."""
        message, self._message = self._message, None
        if self._requests is not None and message is not None:
            self._requests.finish(message, outcome)

    def drop(self) -> None:
        """Never answer."""
        self._dropped = True
        message, self._message = self._message, None
        if self._requests is not None and message is not None:
            self._requests.finish(None, None)

    def begin(self, requests: "Requests", message: Whole) -> None:
        """It is the answer to this message."""
        if self._dropped:
            requests.finish(None, None)
        else:
            self._requests = requests
            self._message = message


Outcome = bytes | str | Reply | None
Handler = Callable[[Request], Outcome | Later | Awaitable[Outcome]]
Login = Callable[["Peer", Connect], float | Awaitable[float | None] | None]
"""Looks at a CONNECT: raises ``Failure`` to refuse it, else returns when the session expires (seconds since 1970)."""


class Sender:
    """What a peer sends. ``reason`` says why it is closed.

    A long message is sent frame by frame as the link takes it, so that short ones may come between.
    """

    def __init__(self, connection: Connection, *, messages: bool) -> None:
        self.connection = connection
        self.link: Link | None = None
        self.reason = ""
        self._messages = messages

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self.link is not None and self.connection.is_open

    def check(self) -> None:
        """Raise ``Closed`` if no message can be sent."""
        if not self.is_open:
            raise Closed(self.reason or "the session is not open", sent=False)

    def send(self, frame: Frame) -> None:
        """Send a frame, or a message in several, at once."""
        self.write(self.connection.send(frame))

    def write(self, pieces: list[bytes]) -> None:
        """Send frames that are encoded already."""
        if self.link is None:
            return
        for piece in pieces:
            if self._messages:
                self.link.send(piece, text=True)
            else:
                self.link.write(piece)

    async def deliver(self, message: Message) -> None:
        """Send a message, and wait while the link is full."""
        pieces = self.connection.send(message)
        while pieces:
            self.write([pieces.pop(0)])
            try:
                if self.link is not None and self.link.full:
                    with contextlib.suppress(ConnectionLost):  # the answer's waiter gets that
                        await self.link.room()
            except asyncio.CancelledError:
                self.write(pieces)  # what is begun can't be taken back, and the other side would wait for the rest
                raise
        if self.link is None:
            raise ConnectionLost(self.reason, sent=True)

    def close(self, reason: str) -> None:
        """The link has ended."""
        self.link = None
        self.reason = self.reason or reason


class Unanswered:
    """The messages of a peer that wait for an answer, at most ``limit``; more wait until one is answered."""

    def __init__(self, sender: Sender, intake: Intake, *, limit: int) -> None:
        self._sender = sender
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._slots = asyncio.Semaphore(limit)
        self._waiting: dict[str, asyncio.Future[Whole]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def new_id(self) -> str:
        """An id for a message of this side, not used before."""
        return str(next(self._numbers))

    async def ask(self, msg_id: str, body: bytes, headers: tuple[Header, ...], seconds: float | None) -> Whole:
        """Send a message and wait for its answer. Raises ``Failure``, ``Timeout``, ``ConnectionLost``."""
        async with self._slots:
            self._sender.check()
            waiter: asyncio.Future[Whole] = self._loop.create_future()
            self._waiting[msg_id] = waiter
            timer = None
            self._intake.reconsider()
            try:
                if seconds is not None:
                    timer = self._loop.call_later(seconds, expire, waiter, "the answer", seconds)
                await self._sender.deliver(Message(self._sender.connection.session_id, msg_id, body, headers))
                return await waiter
            finally:
                self._waiting.pop(msg_id, None)
                self._intake.reconsider()
                if timer is not None:
                    timer.cancel()
                if waiter.done() and not waiter.cancelled():
                    waiter.exception()  # it may have failed while ``deliver`` waited

    def expect(self, msg_id: str) -> "asyncio.Future[Whole]":
        """A message is sent at once, however many are unanswered: the future of its answer."""
        waiter: asyncio.Future[Whole] = self._loop.create_future()
        self._waiting[msg_id] = waiter
        self._intake.reconsider()  # the answer must be read, however full the subscriptions are
        return waiter

    def forget(self, msg_id: str) -> None:
        """It could not be sent."""
        del self._waiting[msg_id]
        self._intake.reconsider()

    def answered(self, ref_msg_id: str, answer: Whole | Failure) -> bool:
        """Pass an answer on. False if nothing waits for it."""
        waiter = self._waiting.pop(ref_msg_id, None)
        self._intake.reconsider()
        if waiter is None or waiter.done():
            return False
        if isinstance(answer, Whole) and answer.truncated:
            waiter.set_exception(Truncated(answer))
        elif isinstance(answer, Whole):
            waiter.set_result(answer)
        else:
            waiter.set_exception(answer)
        return True

    def lost(self, reason: str) -> None:
        """No answers will come."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(reason, sent=True))
        self._waiting.clear()


class Requests:
    """The other side's messages that are being answered here, at most ``limit`` at a time."""

    def __init__(self, peer: "Peer", sender: Sender, handler: Handler | None, *, limit: int) -> None:
        self.handler = handler
        self.draining = False
        self.work = Work()
        self._peer = peer
        self._sender = sender
        self._limit = limit

    def __len__(self) -> int:
        return self.work.due

    def take(self, whole: Whole) -> None:
        """Call the handler with a message, and answer with what it returns."""
        if self.draining:
            self._refuse(whole, Failure(DRAINING))
        elif self.handler is None:
            self._refuse(whole, Failure(NOT_FOUND, "messages are not accepted here"))
        elif self.work.due >= self._limit:
            self._refuse(whole, Failure(LIMIT, f"{self._limit} messages are being handled already"))
        else:
            self.work.due += 1
            try:
                outcome = self.handler(Request(self._peer, whole))
                if isinstance(outcome, Awaitable):
                    self.work.start(self._handle(whole, outcome))
                    return
                if isinstance(outcome, Later):
                    outcome.begin(self, whole)
                    return
                self._reply(whole, outcome)
            except Exception as error:  # noqa: BLE001 - the sender gets it, and it is logged
                self._refuse(whole, error)
            self.work.done()

    def finish(self, whole: Whole | None, outcome: Outcome) -> None:
        """``Later`` is done: answer the message, unless it was dropped."""
        try:
            if whole is not None:
                self._reply(whole, outcome)
        finally:
            self.work.done()

    async def _handle(self, whole: Whole, outcome: Awaitable[Outcome]) -> None:
        try:
            self._reply(whole, await outcome)
        except Exception as error:  # noqa: BLE001 - the sender gets it, and it is logged
            self._refuse(whole, error)
        finally:
            self.work.done()

    def _reply(self, whole: Whole, outcome: Outcome) -> None:
        if not whole.wants_answer:
            return
        reply = outcome if isinstance(outcome, Reply) else Reply(OK if outcome is None else outcome)
        headers = reply.headers
        if whole.truncated and header(headers, TRUNCATED) is None:
            headers = (*headers, (TRUNCATED, YES))
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        self._answer(Message(whole.session_id, None, body, headers, whole.msg_id))

    def _refuse(self, whole: Whole, error: Exception) -> None:
        """Answer ERROR, even to a message that wants no answer, as the hub does."""
        if not isinstance(error, Failure):
            log.error("a handler of sABC messages failed", exc_info=error)
            error = Failure(HANDLER_FAILED, "the handler failed")
        text = error.text.encode(errors="replace")
        self._answer(Error(error.code or None, text, whole.session_id, whole.msg_id, error.headers))

    def _answer(self, frame: Frame) -> None:
        if self._sender.link is not None and self._sender.connection.answers:
            self._sender.send(frame)


class Peer(LivePeer):
    """One side of a session. ``handler`` takes its messages; without one they are refused with 404.

    ``session_id`` and ``expires`` are known once the session is open, ``client_id`` at the server too. ``failed`` is
    called with each ERROR that answers no message of this side, ``on_lost`` at the end of the connection, ``on_room``
    when everything written so far was passed on.
    """

    def __init__(
        self,
        role: Role,
        handler: Handler | None = None,
        *,
        messages: bool = False,
        login: Login | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.client_id = ""
        self.expires: float | None = None
        self.failed: Callable[[Failure], None] | None = None
        self.intake = Intake(lambda: len(self._unanswered) > 0)
        self._login = login
        self._connection = limits.connection(role, messages=messages)
        self._sender = Sender(self._connection, messages=messages)
        self._requests = Requests(self, self._sender, handler, limit=limits.in_flight)
        self._unanswered = Unanswered(self._sender, self.intake, limit=limits.in_flight)
        super().__init__(self._sender, self.intake)
        self._admitting = False
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def session_id(self) -> str:
        """The session's id, empty before it has one."""
        return self._connection.session_id

    @property
    def handler(self) -> Handler | None:
        """What takes the other side's messages."""
        return self._requests.handler

    @handler.setter
    def handler(self, handler: Handler | None) -> None:
        self._requests.handler = handler

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self._sender.is_open

    @property
    def busy(self) -> bool:
        """Whether a message of either side is unanswered."""
        return len(self._requests) > 0 or len(self._unanswered) > 0

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

        If this is cancelled or times out, a late answer is ignored. ``msg_id`` is one of ``new_id``, for callers that
        need to know it before.
        """
        return await self._unanswered.ask(msg_id or self.new_id(), octets(body), headers, timeout)

    async def send(self, body: Body = b"", headers: tuple[Header, ...] = ()) -> None:
        """Send a message that wants no answer."""
        self._sender.check()
        data = octets(body)
        await self._sender.deliver(Message(self.session_id, self.new_id(), data, headers, send_only=True))

    def tell(self, body: bytes, headers: tuple[Header, ...] = ()) -> "asyncio.Future[Whole]":
        """Send a message that wants an answer without waiting; the future has the result that ``ask`` would.

        Check ``has_room`` first.
        """
        self._sender.check()
        msg_id = self._unanswered.new_id()
        answer = self._unanswered.expect(msg_id)
        try:
            self._sender.send(Message(self._connection.session_id, msg_id, body, headers))
        except BaseException:
            self._unanswered.forget(msg_id)
            raise
        return answer

    def new_id(self) -> str:
        """An id for a message of this side, not used before."""
        return self._unanswered.new_id()

    async def disconnect(self, *, seconds: float = 10.0) -> None:
        """Leave gracefully, as a client: the server finishes what it has accepted, then ends the session."""
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
        """Refuse new messages with 503, and wait until the others are answered."""
        self._requests.draining = True
        await self._requests.work.idle()

    async def close(self) -> None:
        """End the session at once, with DISCONNECTING if it is open."""
        self.closed_here = True
        self._end_session(self._connection.close())
        link = self._sender.link
        if link is not None:
            await link.close()

    # For the owner of the link.

    async def say_hello(self, client_id: str, passcode: str | None, headers: tuple[Header, ...] = ()) -> None:
        """Send a client's CONNECT and wait for the answer. Raises ``Refused``."""
        self.client_id = client_id
        self._sender.send(Connect(client_id, passcode, headers))
        await self.opened()

    def goodbye(self) -> None:
        """End the session: DISCONNECTING, then close."""
        self._end_session(self._connection.close())
        self._hang_up()

    def timed_out(self) -> None:
        """SABC-101: a client took too long, for its CONNECT or to send anything."""
        self._end_session(self._connection.time_out())
        self._hang_up()

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - a WebSocket may use both (SABC-72)
        """Take bytes of a stream, or one message of a WebSocket."""
        self._connection.receive(data)
        self._pull()

    def _end_all(self, reason: str) -> None:
        self._sender.close(reason)
        self._connection.finish()
        if self._expiry is not None:
            self._expiry.cancel()
        self._unanswered.lost(reason)
        self._requests.work.lost()

    def _pull(self) -> None:
        """Handle what has come, up to a CONNECT whose login takes time."""
        try:
            while not self._admitting:
                event = self._connection.next_event()
                if event is None:
                    return
                self._handle(event)
        except RemoteProtocolError as error:
            self._sender.reason = f"the other side broke a rule: {error}"
            if self._connection.role is Role.SERVER:
                self._sender.write(self._connection.reply(error))
            raise

    def _handle(self, event: Frame) -> None:
        if isinstance(event, Whole):
            self._message(event)
        elif isinstance(event, Discarded):
            log.warning("the other side broke a rule of sABC: %s (%s)", event.reason, event.rule)
            self._sender.write(self._connection.reply(event))
        elif isinstance(event, Error):
            self._error(event)
        elif isinstance(event, Connect):
            self.client_id = event.client_id
            self._admitting = True
            if self._sender.link is not None:
                self._sender.link.pause_reading()
            self._requests.work.start(self._admit(event))
        elif isinstance(event, Connected):
            self.expires = event.session_expiry
            self._opened.set_result(None)
        elif isinstance(event, Disconnect):
            self._requests.work.start(self._finish())
        elif isinstance(event, Disconnecting):
            self._sender.reason = "the other side ended the session"
            raise ConnectionLost(self._sender.reason)

    def _message(self, whole: Whole) -> None:
        if whole.ref_msg_id is not None:
            self._unanswered.answered(whole.ref_msg_id, whole)
            if whole.msg_id is None:
                return
        self._requests.take(whole)

    def _error(self, frame: Error) -> None:
        failure = Failure(frame.error_code or "", frame.body.decode(errors="replace"), frame.headers)
        if not self._opened.done() and self._connection.role is Role.CLIENT:
            self._sender.reason = f"the server refused: {failure}"
            self._not_opened(Refused(failure.text, code=failure.code, temporary=failure.code in TEMPORARY))
            return
        about = frame.about
        if about is not None and self._unanswered.answered(about, failure):
            return
        if self.failed is not None:
            self.failed(failure)
        elif about is None:
            log.warning("the other side reports an error: %s", failure)

    # The beginning and the end of a session.

    async def _admit(self, frame: Connect) -> None:
        try:
            expires = None if self._login is None else self._login(self, frame)
            if isinstance(expires, Awaitable):
                expires = await expires
        except Exception as error:
            if not isinstance(error, Failure):
                log.exception("the login of %r failed", frame.client_id)
                error = Failure(DRAINING, "the login could not be checked")
            self._refuse(error)
            return
        if self._sender.link is None or self._connection.state is not State.CONNECTING:
            return
        self.expires = expires
        self._sender.send(Connected(self.session_id, None if expires is None else int(expires)))
        if expires is not None:
            self._expiry = self._loop.call_later(max(0.0, expires - time.time()), self.goodbye)
        self._admitting = False
        self._sender.link.resume_reading()
        self._opened.set_result(None)
        try:
            self._pull()
        except (ConnectionLost, RemoteProtocolError):  # it has left already, or can't be understood
            self._hang_up()

    def _refuse(self, failure: Failure) -> None:
        if self._sender.link is not None:
            self._sender.write(self._connection.close(failure.code or UNAUTHORIZED, failure.text))
            self._not_opened(Refused(failure.text, code=failure.code))
            self._hang_up()

    async def _finish(self) -> None:
        """SABC-39: a client wants to leave; what was accepted is answered first."""
        await self._requests.work.idle()
        self.goodbye()

    def _end_session(self, last: list[bytes]) -> None:
        self._sender.reason = self._sender.reason or "this side ended the session"
        self._sender.write(last)
