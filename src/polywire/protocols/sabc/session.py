"""sABC on the hub's side of one connection: events in, hub operations, answers out.

A byte stream or a WebSocket (``messages``). ``Connection`` reads frames and checks them against the session's state;
here a message's ``op`` is carried out, and the message answered through ``Line``.
"""

from collections.abc import Callable
from typing import Final, assert_never, final

from polywire.hub.access import SUBSCRIBE as ACCESS_SUBSCRIBE
from polywire.hub.access import Identity
from polywire.hub.channels import ANY, from_stars, name_problem
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.peer import Limits, Login, Peer, Refusal, Refused
from polywire.protocols.sabc import errors
from polywire.protocols.sabc.connection import Connection, State
from polywire.protocols.sabc.decoder import LEAST_HEAD
from polywire.protocols.sabc.delivery import Line, Queues, SabcCaller, SabcProvider, SabcSubscription, incoming
from polywire.protocols.sabc.errors import RemoteProtocolError
from polywire.protocols.sabc.frames import (
    CALL,
    PUBLISH,
    SERVE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Operation,
    Whole,
    is_publication,
    operation,
)
from polywire.protocols.sabc.headers import NACK, OP, Header, header, read_delay
from polywire.wire.frame import Discarded, Frame, Role

TOO_LARGE: Final = ("SABC-130", "SABC-133")
LAST_DATE: Final = 253402300800  # the year 10000, which no HTTP date can have
UNKNOWN: Final = "unknown"
BAD_NAME: Final = "bad-name"
KEPT: Final = 256
"""How many answers that were written may stay in front of those that are due."""

NOT_ALLOWED: Final = {
    PUBLISH: "you may not publish there",
    SUBSCRIBE: "you may not subscribe to that",
    CALL: "you may not call that service",
    SERVE: "you may not offer that service",
}


@final
class SabcSession:
    """One sABC connection. ``messages``: it is a WebSocket, each message of which is one frame."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits, *, messages: bool = False) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        size = limits.message_size_before_auth
        self._connection: Final = Connection(
            Role.SERVER,
            messages=messages,
            max_message=size,
            max_head=max(LEAST_HEAD, min(limits.header_size, size)),
            max_unfinished=limits.unfinished,
        )
        session_id = self._connection.session_id
        self._line: Final = Line(client, session_id, messages=messages, frame_size=limits.sabc_frame_size)
        self._queues: Final = Queues(hub, self._line, limits.in_flight)
        self._caller: Final = SabcCaller(hub, self._line, self._work_done)
        self._provider: Final = SabcProvider(hub.services, self._line)
        self._answers: Final = Answers(hub, self._line, self._work_done)
        self._cuts = 0
        self._logging_in = False
        self._draining = False
        self._over = False
        client.outbox.on_room = self._queues.dispatch
        client.most_subscriptions = limits.subscriptions
        client.most_calls = limits.in_flight

    def received(self, data: bytes | str) -> None:
        """Handle what the peer has sent: bytes of a stream, or one message of a WebSocket."""
        content = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
        self._client.counters.octets_in += len(content)
        if self._over:
            return
        self._connection.receive(content)
        while self._cuts < self._connection.cuts:
            self._cuts += 1
            # On a byte stream the rest of the message may still be on its way.
            self._hub.oversized(self._client, len(content) if self._line.messages else 0, self._limit(), cut=True)
        self._pull()

    def lost(self) -> None:
        """The connection has ended, for any reason."""
        for cut in self._connection.finish():
            self._hub.fault(self._client, cut.rule, cut.reason, cut.raw, cut.size)
        self._over = True
        self._client.outbox.on_room = None
        self._answers.end()
        self._queues.end(leaving=False)
        self._provider.gone()
        self._caller.gone()
        self._hub.leave(self._client)

    def drain(self) -> None:
        """The hub is shutting down: refuse new messages with 503, finish and answer what was accepted."""
        self._draining = True

    def pending(self) -> int:
        """How many bytes of unfinished messages are held."""
        return self._connection.pending()

    def no_room(self, reason: str) -> None:
        """SABC-143: ERROR 429, then DISCONNECTING."""
        if not self._over:
            self._line.write_all(self._connection.close(errors.LIMIT, reason))

    def busy(self) -> bool:
        """Whether something accepted is still to be answered, by the hub or by this client."""
        due = len(self._answers) + len(self._caller) + len(self._provider) + len(self._queues.pending)
        return not self._over and due > 0

    def goodbye(self, *, expired: bool = False) -> None:  # noqa: ARG002 - SABC-110: the frames are the same
        """End the session from the hub's side: DISCONNECTING, then close."""
        self._end(self._connection.close())

    def timed_out(self) -> None:
        """SABC-101: the peer took too long, for its CONNECT or to send anything: ERROR 408, then close."""
        self._end(self._connection.time_out())

    def _pull(self) -> None:
        """Handle what has come, up to a CONNECT whose login takes time."""
        while not self._logging_in and not self._over:
            try:
                event = self._connection.next_event()
            except RemoteProtocolError as error:
                self._hub.fault(self._client, error.rule, error.reason)
                self._client.reason = error.rule
                self._end(self._connection.reply(error))
                return
            if event is None:
                return
            if isinstance(event, Whole):
                self._message(event)
            else:
                self._control(event)

    def _control(self, event: Frame) -> None:
        if isinstance(event, Discarded):
            self._discarded(event)
        elif isinstance(event, Connect):
            self._connect(event)
        elif isinstance(event, Disconnect):
            self._leave()
        elif isinstance(event, Disconnecting):
            self._end([])
        elif isinstance(event, Error) and self._connection.is_open:
            about = event.about
            if about is not None:
                self._answered_with_error(about, event)

    def _limit(self) -> int:
        """The size limit of messages at this point."""
        return self._limits.message_size if self._connection.is_open else self._limits.message_size_before_auth

    def _discarded(self, frame: Discarded) -> None:
        self._hub.fault(self._client, frame.rule, frame.reason, frame.raw, frame.size)
        if frame.rule in TOO_LARGE:
            self._hub.oversized(self._client, frame.size, self._limit())
        self._line.write_all(self._connection.reply(frame))

    # The beginning and the end of a session.

    def _connect(self, frame: Connect) -> None:
        """SABC-32: with a passcode, the client-id is a user's name; without one, no user is claimed."""
        if self._draining or self._hub.draining:
            self._client.counters.drop(Refused.DRAINING.label)
            self._end(self._connection.close(errors.DRAINING, Refused.DRAINING.message))
            return
        self._client.name = frame.client_id
        self._logging_in = True
        passcode = frame.client_passcode
        self._peer.login(Login() if passcode is None else Login(frame.client_id, passcode), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        self._logging_in = False
        if self._over:
            return
        if isinstance(who, Refusal):
            self._client.counters.fault("SABC-98")
            self._end(self._connection.close(errors.UNAUTHORIZED, who.reason))
            return
        limits = self._limits
        self._connection.allow(max_message=limits.message_size, max_head=max(LEAST_HEAD, limits.header_size))
        expires = who.expires
        if expires is not None and not 0 <= expires < LAST_DATE:
            expires = None
        connected = Connected(self._connection.session_id, None if expires is None else int(expires))
        self._line.write_all(self._connection.send(connected))
        self._peer.established()
        self._hub.join(self._client)
        self._pull()

    def _leave(self) -> None:
        """SABC-39: finish what was accepted. Answers no longer count, so what waits for them is given back."""
        self._queues.end(leaving=True)
        self._provider.gone()
        self._work_done()

    def _work_done(self) -> None:
        """Something was answered: a client that wants to leave may, once everything is."""
        if self._connection.state is State.LEAVING and not self.busy():
            self.goodbye()

    def _end(self, last: list[bytes]) -> None:
        """Write the last frames, then close."""
        if not self._over:
            self._over = True
            self._line.write_all(last)
            self._peer.close()

    # Messages.

    def _message(self, whole: Whole) -> None:
        ref = whole.ref_msg_id
        if ref is not None:
            self._answered(ref, whole)
            return
        if is_publication(whole):
            self._client.counters.received += 1
        if self._draining:
            self._answers.refuse(whole, errors.DRAINING, Refused.DRAINING.message, Refused.DRAINING.label)
            return
        asked = operation(whole)
        if isinstance(asked, Discarded):
            self._discarded(asked)
            return
        op = asked.op
        name = (asked.destination if op in {PUBLISH, SUBSCRIBE, UNSUBSCRIBE} else asked.service) or ""
        problem = name_problem(name)
        if problem is not None:
            self._answers.refuse(whole, errors.MALFORMED, problem, BAD_NAME)
        elif op == PUBLISH:
            message = incoming(name, whole.body, asked.headers, time=self._hub.clock(), origin=self._client.number)
            self._settle(whole, op, self._hub.publish(message, self._client, acknowledged=not whole.send_only))
        elif op == SUBSCRIBE:
            self._subscribe(name, whole)
        elif op == UNSUBSCRIBE:
            self._unsubscribe(name, whole)
        elif op == CALL:
            self._call(name, asked, whole)
        elif op == SERVE:
            self._settle(whole, op, self._hub.serve(self._client, name, self._provider))
        elif self._hub.unserve(self._client, name):
            self._answers.accept(whole)
        else:
            self._answers.refuse(whole, errors.NOT_FOUND, f"you do not offer the service {name!r}", UNKNOWN)

    def _subscribe(self, destination: str, whole: Whole) -> None:
        client = self._client
        pattern = from_stars(destination)
        msg_id = whole.msg_id or ""
        if not destination.startswith(QUEUE_PREFIX):
            subscription = SabcSubscription(pattern, self._hub.next_number(), self._line, msg_id)
            if self._settle(whole, SUBSCRIBE, self._hub.subscribe(client, destination, subscription)):
                self._hub.replay(client, subscription)
            return
        queue = destination[len(QUEUE_PREFIX) :]
        if ANY not in pattern:
            if self._settle(whole, SUBSCRIBE, self._queues.start(queue, msg_id)):
                self._queues.begin(queue)
            return
        refused = self._hub.forbids(client, ACCESS_SUBSCRIBE, pattern, dollar=False)
        if refused is None:
            self._answers.refuse(whole, errors.MALFORMED, "a queue is named in full, without '*'", BAD_NAME)
        else:
            self._refuse(whole, SUBSCRIBE, refused)

    def _unsubscribe(self, destination: str, whole: Whole) -> None:
        if destination.startswith(QUEUE_PREFIX):
            found = self._queues.stop(destination[len(QUEUE_PREFIX) :])
        else:
            found = self._hub.unsubscribe(self._client, destination)
        if found:
            self._answers.accept(whole)
        else:
            self._answers.refuse(whole, errors.NOT_FOUND, f"you are not subscribed to {destination!r}", UNKNOWN)

    def _call(self, service: str, asked: Operation, whole: Whole) -> None:
        client = self._client
        message = incoming(service, whole.body, asked.headers, time=self._hub.clock(), origin=client.number)
        refused = self._caller.call(
            service,
            asked.method or "",
            message,
            whole.msg_id or "",
            silent=whole.send_only,
            truncated=whole.truncated,
            seconds=self._limits.call_time,
        )
        if refused is not None:
            self._refuse(whole, CALL, refused)

    def _settle(self, whole: Whole, op: str, refused: Refused | None) -> bool:
        """Answer what the hub has accepted or refused. Whether it has accepted it."""
        if refused is None:
            self._answers.accept(whole)
        else:
            self._refuse(whole, op, refused)
        return refused is None

    def _refuse(self, whole: Whole, op: str, refused: Refused) -> None:
        """Answer ERROR, even to a message that wants no answer. The hub has counted it."""
        text = refused.message
        match refused:
            case Refused.FORBIDDEN:
                code, text = errors.FORBIDDEN, NOT_ALLOWED[op]
            case Refused.SERVICE_CHANNEL | Refused.UNSUPPORTED:
                code = errors.FORBIDDEN
            case Refused.TOO_DEEP:
                code = errors.MALFORMED
            case Refused.LIMIT:
                code = errors.LIMIT
                if op == CALL:
                    text = f"the limit of {self._limits.in_flight} calls in flight is reached"
                else:
                    text = f"the limit of {self._limits.subscriptions} subscriptions is reached"
            case (
                Refused.PATTERN_COST
                | Refused.NAMES_SIZE
                | Refused.WATCHERS
                | Refused.WILLS_SIZE
                | Refused.RETAINED_FULL
                | Refused.TOO_MANY_QUEUES
                | Refused.QUEUE_FULL
                | Refused.QUEUES_FULL
            ):
                code = errors.LIMIT
            case Refused.DRAINING | Refused.UNAVAILABLE:
                code = errors.DRAINING
            case _:
                assert_never(refused)
        self._line.error(code, text, whole.msg_id)

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
        """SABC-141: the client rejects a queue's message. False if none waits for an answer under this id."""
        if ref not in self._queues.pending:
            return False
        delay = read_delay(headers)
        if delay is None:
            self._hub.fault(self._client, "SABC-141", "delay is not a number of seconds", body)
            self._line.too_late(errors.MALFORMED, "delay is not a number of seconds", ref)
            return True
        return self._queues.reject(ref, delay, body.decode(errors="replace"))


@final
class Answers:
    """The acknowledgements due to one client, in the order of its messages. ``written`` is called after each."""

    def __init__(self, hub: Hub, line: Line, written: Callable[[], None]) -> None:
        self._hub: Final = hub
        self._line: Final = line
        self._written: Callable[[], None] | None = written
        self._due: Final[list[tuple[str, bytes]]] = []  # by msg-id
        self._first = 0  # those before it have been written; most often all have, and an empty list is small

    def __len__(self) -> int:
        return len(self._due) - self._first

    def accept(self, whole: Whole) -> None:
        """Answer OK as soon as what was accepted is on disk (SABC-54), unless the client wants no answer."""
        msg_id = whole.msg_id
        if msg_id is not None and not whole.send_only:
            self._due.append((msg_id, self._line.ok(msg_id, truncated=whole.truncated)))
            self._hub.safe(self._safe, self._failed, self._line.client)

    def refuse(self, whole: Whole, code: str, reason: str, counted: str) -> None:
        """Answer ERROR, even to a message that wants no answer, and count it."""
        self._line.client.counters.drop(counted)
        self._line.error(code, reason, whole.msg_id)

    def end(self) -> None:
        """The client is gone: write and report nothing any more."""
        self._clear()
        self._written = None

    def _safe(self) -> None:
        if self._due:
            self._line.write(self._next()[1])
            self._report()

    def _failed(self) -> None:
        if self._due:
            self._line.client.counters.drop(Refused.UNAVAILABLE.label)
            self._line.error(errors.DRAINING, Refused.UNAVAILABLE.message, self._next()[0])
            self._report()

    def _report(self) -> None:
        if self._written is not None:
            self._written()

    def _clear(self) -> None:
        self._due.clear()
        self._first = 0

    def _next(self) -> tuple[str, bytes]:
        """The oldest answer that is due."""
        answer = self._due[self._first]
        self._first += 1
        if self._first == len(self._due):
            self._clear()
        elif self._first >= KEPT:
            del self._due[: self._first]
            self._first = 0
        return answer
