"""sABC on the hub's side of one connection: frames in, hub operations, frames out.

A byte stream or a WebSocket: ``messages`` tells. The life of the session is walked in ``state``; once it is open, a
message takes the short way: joined by ``assembly``, read by ``operations``, done here, answered through ``line``.
"""

from typing import Final, cast, final

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits, Login, Peer, Refusal
from polywire.hub.refusal import Refused
from polywire.protocols.sabc import errors
from polywire.protocols.sabc.answers import Answers
from polywire.protocols.sabc.calls import SabcCaller, SabcProvider
from polywire.protocols.sabc.connection import Session, State, new_session_id
from polywire.protocols.sabc.decoder import LEAST_HEAD, Decoder, MessageDecoder
from polywire.protocols.sabc.errors import RemoteProtocolError
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
    is_publication,
    operation,
)
from polywire.protocols.sabc.headers import NACK, OP, Header, header, read_delay
from polywire.protocols.sabc.line import Line
from polywire.protocols.sabc.requests import UNKNOWN, Requests
from polywire.protocols.sabc.subscriptions import Queues
from polywire.protocols.sabc.translation import incoming
from polywire.wire.frame import Discarded, Frame, Role

PROTOCOL: Final = "sabc"
TOO_LARGE: Final = ("SABC-130", "SABC-133")
LAST_DATE: Final = 253402300800  # the year 10000, which no HTTP date can tell


@final
class SabcSession:
    """One sABC connection. ``messages``: it is a WebSocket, each message of which is one frame."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits, *, messages: bool = False) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        session_id = new_session_id()
        self._state: Final = Session(Role.SERVER, session_id)
        self._line: Final = Line(client, session_id, messages=messages, frame_size=limits.sabc_frame_size)
        size = limits.message_size_before_auth
        head = max(LEAST_HEAD, min(limits.header_size, size))
        self._decoder: Final[Decoder | MessageDecoder] = (
            MessageDecoder(session_id=session_id, max_message=size, max_head=head, max_unfinished=limits.unfinished)
            if messages
            else Decoder(session_id=session_id, max_message=size, max_head=head, max_unfinished=limits.unfinished)
        )
        self._assembly: Final = Assembly()
        self._queues: Final = Queues(hub, self._line, limits.in_flight)
        self._caller: Final = SabcCaller(hub, self._line, self._work_done)
        self._provider: Final = SabcProvider(hub.services, self._line)
        self._answers: Final = Answers(hub, self._line, self._work_done)
        self._requests: Final = Requests(
            hub, self._line, limits, self._answers, self._queues, self._caller, self._provider
        )
        self._cuts = 0
        self._held: list[Frame] | None = None  # what came behind CONNECT while the login goes on
        self._open = False
        self._draining = False
        self._over = False
        client.outbox.on_room = self._queues.dispatch
        client.most_subscriptions = limits.subscriptions
        client.most_calls = limits.in_flight

    def received(self, data: bytes | str) -> None:
        """Handle what the peer has sent: octets of a stream, or one message of a WebSocket."""
        octets = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
        self._client.counters.octets_in += len(octets)
        if self._over:
            return
        try:
            frames = self._decoder.feed(octets)
        except RemoteProtocolError as error:
            self._handle(cast("list[Frame]", error.frames))
            self._break(error)
            return
        while self._cuts < self._decoder.cuts():
            self._cuts += 1
            # On a byte stream the rest of the message may still be on its way.
            self._hub.oversized(self._client, len(octets) if self._line.messages else 0, self._limit(), cut=True)
        self._handle(frames)

    def lost(self) -> None:
        """The connection has ended, for whatever reason."""
        if not self._over:
            for frame in self._decoder.finish():
                if isinstance(frame, Discarded):
                    self._hub.fault(self._client, frame.rule, frame.reason, frame.raw, frame.size)
        self._over = True
        self._open = False
        self._held = None
        self._client.outbox.on_room = None
        self._answers.end()
        self._queues.end(leaving=False)
        self._provider.gone()
        self._caller.gone()
        self._hub.leave(self._client)

    def drain(self) -> None:
        """The hub is going down: new messages are refused with 503, what was accepted is finished and answered."""
        self._draining = True

    def pending(self) -> int:
        """How many bytes of unfinished messages are held."""
        held = self._decoder.pending()
        return held + self._assembly.pending() if len(self._assembly) else held

    def no_room(self, reason: str) -> None:
        """SABC-143: ERROR 429, then DISCONNECTING."""
        if self._over:
            return
        if self._state.state in {State.OPEN, State.LEAVING}:
            self._line.error(errors.LIMIT, reason)
            self._line.frame(self._state.send(Disconnecting(self._line.session_id)))
        else:
            self._line.frame(error_reply(errors.LIMIT, reason))

    def busy(self) -> bool:
        """Whether something accepted is still to be answered, by the hub or by this client."""
        due = len(self._answers) + len(self._caller) + len(self._provider) + self._queues.unacknowledged()
        return not self._over and due > 0

    def goodbye(self, *, expired: bool = False) -> None:  # noqa: ARG002 - SABC-110: the words are the same
        """End the session from the hub's side: DISCONNECTING, then close."""
        if self._over:
            return
        if self._state.state in {State.OPEN, State.LEAVING}:
            self._line.frame(self._state.send(Disconnecting(self._line.session_id)))
        self._close()

    def timed_out(self) -> None:
        """SABC-101: the peer took too long, for its CONNECT or to be heard of: ERROR 408, then close."""
        if self._over:
            return
        if self._state.state in {State.OPEN, State.LEAVING}:
            self._line.error(errors.TOO_SLOW, "nothing was heard of you for too long")
        else:
            self._line.frame(error_reply(errors.TOO_SLOW, "the CONNECT took too long"))
        self.goodbye()

    def _handle(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._over:
                return
            if self._open and isinstance(frame, Message):
                self._piece(frame)
            elif self._held is not None:
                self._held.append(frame)
            else:
                self._control(self._state.receive(frame))

    def _control(self, frame: Frame) -> None:
        if isinstance(frame, Discarded):
            self._discarded(frame)
        elif isinstance(frame, Connect):
            self._connect(frame)
        elif isinstance(frame, Disconnect):
            self._leave()
        elif isinstance(frame, Disconnecting):
            self._close()
        elif isinstance(frame, Error) and self._open:
            about = frame.about
            if about is not None:
                self._answered_with_error(about, frame)

    def _limit(self) -> int:
        """The size limit of messages at this point."""
        return self._limits.message_size if self._open else self._limits.message_size_before_auth

    def _discarded(self, frame: Discarded) -> None:
        self._hub.fault(self._client, frame.rule, frame.reason, frame.raw, frame.size)
        if frame.rule in TOO_LARGE:
            self._hub.oversized(self._client, frame.size, self._limit())
        if frame.rule == "SABC-131":
            self._assembly.forget(self._decoder.given_up())
        if frame.reply is not None:
            self._line.frame(frame.reply)

    def _break(self, error: RemoteProtocolError) -> None:
        if self._over:
            return
        self._hub.fault(self._client, error.rule, error.reason)
        self._client.reason = error.rule
        if isinstance(error.reply, Error):
            self._line.frame(error.reply)
        self._close()

    def _close(self) -> None:
        self._over = True
        self._open = False
        self._peer.close()

    # The session's beginning and end.

    def _connect(self, frame: Connect) -> None:
        """SABC-32: whoever shows a passcode is to be the user its client-id names; others name no user."""
        if self._draining or self._hub.draining:
            self._client.counters.drop(Refused.DRAINING.label)
            self._line.frame(self._state.reject(errors.DRAINING, "the hub is shutting down"))
            self._close()
            return
        self._client.name = frame.client_id
        self._held = []
        passcode = frame.client_passcode
        self._peer.login(Login() if passcode is None else Login(frame.client_id, passcode), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        if self._over:
            return
        held = self._held or []
        self._held = None
        if isinstance(who, Refusal):
            self._client.counters.fault("SABC-98")
            self._line.frame(self._state.reject(errors.UNAUTHORIZED, who.reason))
            self._close()
            return
        self._decoder.allow(max_message=self._limits.message_size, max_head=max(LEAST_HEAD, self._limits.header_size))
        expires = who.expires
        if expires is not None and not 0 <= expires < LAST_DATE:
            expires = None
        connected = Connected(self._line.session_id, None if expires is None else int(expires))
        self._line.frame(self._state.send(connected))
        self._open = True
        self._peer.established()
        self._hub.join(self._client)
        self._handle(held)

    def _leave(self) -> None:
        """SABC-39: finish what was accepted. Answers count no more, so what waits for them is given back."""
        self._open = False
        self._queues.end(leaving=True)
        self._provider.gone()
        self._work_done()

    def _work_done(self) -> None:
        """Something was answered: a client that wants to leave may, once it is all."""
        if self._state.state is State.LEAVING and not self.busy():
            self.goodbye()

    # Messages.

    def _piece(self, frame: Message) -> None:
        whole = self._assembly.add(frame)
        if whole is None:
            return
        if isinstance(whole, Discarded):
            self._discarded(whole)
            return
        ref = whole.ref_msg_id
        if ref is not None:
            self._answered(ref, whole)
            return
        if is_publication(whole):
            self._client.counters.received += 1
        if self._draining:
            self._answers.refuse(whole, errors.DRAINING, Refused.DRAINING.message, Refused.DRAINING.label)
        else:
            asked = operation(whole)
            if isinstance(asked, Discarded):
                self._discarded(asked)
            else:
                self._requests.perform(asked, whole)

    # Answers.

    def _answered(self, ref: str, whole: Whole) -> None:
        """The client answers one of the hub's messages: a call, or one from a queue."""
        if whole.headers and header(whole.headers, OP) == NACK:
            known = self._rejected(ref, whole.headers, whole.body)
        else:
            known = self._queues.acknowledge(ref)
        if not known:
            origin = self._client.number
            reply = incoming("", whole.body, whole.headers, time=self._hub.clock(), origin=origin)
            known = self._provider.answered(ref, reply)
        if not known:
            self._client.counters.drop(UNKNOWN)
        if whole.msg_id is None:
            return
        if known:
            self._answers.accept(whole)
        else:
            self._line.error(errors.NOT_FOUND, f"no message {ref!r} waits for an answer", whole.msg_id)

    def _answered_with_error(self, ref: str, error: Error) -> None:
        if error.headers and header(error.headers, OP) == NACK:
            known = self._rejected(ref, error.headers, error.body)
        else:
            known = self._queues.acknowledge(ref)
        if not known and not self._provider.failed(ref, error):
            self._client.counters.drop(UNKNOWN)

    def _rejected(self, ref: str, headers: tuple[Header, ...], body: bytes) -> bool:
        """SABC-141: the client rejects a queue's message. False where none waits for an answer under this id."""
        if ref not in self._queues.pending:
            return False
        delay = read_delay(headers)
        if delay is None:
            self._hub.fault(self._client, "SABC-141", "delay is not a number of seconds", body)
            self._line.too_late(errors.MALFORMED, "delay is not a number of seconds", ref)
            return True
        return self._queues.reject(ref, delay, body.decode(errors="replace"))
