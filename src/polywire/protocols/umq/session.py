"""UMQ on the hub's side of one connection: messages in, hub operations, messages out.

The handshake says who the peer is; after it both sides are equal. The peer calls the hub's methods, and the hub calls
back the services the peer offers. What goes out is written as whole WebSocket messages.
"""

from typing import Final, final

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits, Login, Peer, Refusal
from polywire.hub.services import CallError
from polywire.protocols.umq.answers import Answers, provider_error
from polywire.protocols.umq.attribute_book import Owned, book_of
from polywire.protocols.umq.calling import Calling
from polywire.protocols.umq.connection import Action, Attributes, Machine, State, Subscriptions
from polywire.protocols.umq.errors import FatalCode, MethodError, RemoteProtocolError, describe, error_text
from polywire.protocols.umq.frames import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Decoder,
    Fatal,
    Hello,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    violation,
)
from polywire.protocols.umq.gathering import Gathering, Unfinished
from polywire.protocols.umq.methods import CallService, Publish, read_bare_body, read_method
from polywire.protocols.umq.open_topics import OpenTopics
from polywire.protocols.umq.requests import Requests
from polywire.protocols.umq.serving import Serving
from polywire.security.credentials import CredentialsError, read_hello
from polywire.wire.frame import Frame, Role

TOO_BIG: Final = "UMQ-133"


@final
class UmqSession:
    """One UMQ connection, by WebSocket: ``received`` takes whole messages, the outbox gets whole frames."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        self._max_octets = limits.message_size_before_auth
        self._decoder: Final = Decoder(
            max_text=self._max_octets, max_binary=self._max_octets, max_unfinished=limits.unfinished
        )
        self._machine: Final = Machine(Role.SERVER)
        self._answers: Final = Answers(client, limit=limits.in_flight)
        self._topics: Final = OpenTopics(hub, client, self._answers, limit=limits.subscriptions)
        self._calling: Final = Calling(hub, client, self._answers, self._topics.ids)
        self._serving: Final = Serving(
            hub, client, self._answers, limit=limits.subscriptions, in_flight=limits.in_flight
        )
        self.attributes: Final = Attributes()
        self._requests: Final = Requests(
            hub, client, limits, self._answers, self._topics, self._calling, self._serving, self.attributes
        )
        self._gathering: Final = Gathering(limits.message_size)
        self._subscribed: Final = Subscriptions()
        self._draining = False

    def received(self, data: str | bytes) -> None:
        """Handle one message of the peer: ``str`` is a text message, ``bytes`` a binary one."""
        if self._machine.state is State.CLOSED:
            return
        size = len(data)
        if isinstance(data, str) and not data.isascii() and size <= self._max_octets:
            size = len(data.encode(errors="surrogatepass"))
        self._client.counters.octets_in += size
        try:
            for frame in self._decoder.feed(data):
                if size > self._max_octets:
                    reason = f"the text message has {size} octets, more than the {self._max_octets} allowed"
                    raise violation(FatalCode.LIMIT_EXCEEDED, reason, "UMQ-133")
                if self._machine.receive(frame):
                    self._frame(frame)
        except RemoteProtocolError as error:
            raw = data.encode(errors="replace") if isinstance(data, str) else data
            self._hub.fault(self._client, error.rule, error.reason, raw, size)
            self._client.reason = error.rule
            if error.rule == TOO_BIG:
                self._hub.oversized(self._client, size, self._max_octets)
            if isinstance(error.reply, Fatal) and self._last(error.reply):
                self._peer.close(too_big=error.rule == TOO_BIG)

    def lost(self) -> None:
        """The connection has ended, for whatever reason."""
        self._release()
        book_of(self._hub).pop(self._client.number, None)
        self._hub.leave(self._client)

    def drain(self) -> None:
        """UMQ-145: the hub is going down. New requests get code 10, and so does a peer not yet welcomed."""
        self._draining = True
        if self._machine.state is not State.OPEN:
            self._fatal(FatalCode.SHUTTING_DOWN)

    def pending(self) -> int:
        """How many bytes of messages are held that wait for attachments."""
        return self._gathering.held()

    def no_room(self, reason: str) -> None:
        """UMQ-169: ``F`` with code 9."""
        self._last(Fatal(FatalCode.LIMIT_EXCEEDED.value, describe(FatalCode.LIMIT_EXCEEDED, reason)))

    def busy(self) -> bool:
        """Whether an answer is due, from the hub or from the peer."""
        due = len(self._answers.due) + len(self._serving) + len(self._gathering)
        return not self._answers.closed and due > 0

    def goodbye(self, *, expired: bool = False) -> None:
        """End the connection from the hub's side: ``F`` with code 10, or with 1 where the login has expired."""
        if expired:
            self._fatal(FatalCode.REJECTED, "the login has expired")
        else:
            self._fatal(FatalCode.SHUTTING_DOWN)

    def timed_out(self) -> None:
        """UMQ-137: the peer took too long, for its handshake or to be heard of: ``F`` with code 9."""
        if self._machine.state is State.OPEN:
            self._fatal(FatalCode.LIMIT_EXCEEDED, "nothing was heard of you for too long")
        else:
            self._fatal(FatalCode.LIMIT_EXCEEDED, "the handshake took too long")

    def too_big(self) -> None:
        """UMQ-133: a message was too big to be read. ``F`` with code 9; the transport closes the connection."""
        reason = f"a message has more than {self._max_octets} bytes"
        self._last(Fatal(FatalCode.LIMIT_EXCEEDED.value, describe(FatalCode.LIMIT_EXCEEDED, reason)))

    def _fatal(self, code: FatalCode, detail: str = "") -> None:
        """UMQ-97: report why, and close the connection."""
        if self._last(Fatal(code.value, describe(code, detail))):
            self._peer.close()

    def _last(self, fatal: Fatal) -> bool:
        """Send the last message, if none was sent before. Nothing is written after it (UMQ-25)."""
        if self._answers.closed:
            return False
        self._machine.send(fatal)
        self._answers.send(fatal)
        self._release()
        return True

    def _release(self) -> None:
        """UMQ-140: topics, calls and services end with the connection."""
        self._answers.closed = True
        self._client.outbox.on_room = None
        self._gathering.clear()
        self._calling.gone()
        self._serving.gone()
        self._topics.gone()

    def _frame(self, frame: Frame) -> None:
        if isinstance(frame, Call):
            self._call(frame)
        elif isinstance(frame, (Attachment, AttachmentError)):
            self._attachment(frame)
        elif isinstance(frame, Result):
            self._result(frame)
        elif isinstance(frame, CallException):
            call = self._serving.answered(frame)
            if call is not None:
                self._serving.fail(call, provider_error(frame.payload))
        elif isinstance(frame, Unsubscribe):
            if not self._requests.end_topic(frame.topic_id):
                self._topics.ids.ignored += 1
        elif isinstance(frame, Callback):
            # UMQ-106: the hub has no callbacks. As E, since the id is the peer's own.
            self._answers.send(CallException(frame.call_id, error_text(FatalCode.CALLBACK_NOT_FOUND)))
        elif isinstance(frame, TopicUpdate):
            # The hub subscribes to nothing at its peers.
            if self._subscribed.updated(frame) is Action.SEND_UNSUBSCRIBE:
                self._answers.send(Unsubscribe(frame.topic_id))
        elif isinstance(frame, TopicClose):
            self._subscribed.closed(frame)
        elif isinstance(frame, SetAttribute):
            self.attributes.set(frame)
        elif isinstance(frame, UnsetAttribute):
            self.attributes.unset(frame)
        elif isinstance(frame, Hello):
            self._hello(frame)
        elif isinstance(frame, Fatal):
            self._release()
            self._peer.close()

    def _hello(self, frame: Hello) -> None:
        """UMQ-141: the payload says who the peer is."""
        if self._hub.draining:
            self._fatal(FatalCode.SHUTTING_DOWN)
            return
        try:
            shown = read_hello(frame.payload)
        except CredentialsError as error:
            self._client.counters.fault("UMQ-141")
            self._fatal(FatalCode.REJECTED, error.problem)
            return
        self._peer.login(Login(shown.user, shown.password, shown.token), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        if self._answers.closed:  # the connection ended meanwhile
            return
        if isinstance(who, Refusal):
            self._client.counters.fault("login")
            wait = f"; try again in {who.retry_after:g} s" if who.retry_after > 0 else ""
            self._fatal(FatalCode.REJECTED, who.reason + wait)
            return
        self._max_octets = self._limits.message_size
        self._decoder.allow(max_text=self._max_octets, max_binary=self._max_octets)
        welcome = Welcome(self._machine.offered)
        self._machine.send(welcome)
        self._answers.send(welcome)
        self._client.outbox.on_room = self._topics.room
        self._peer.established()
        self._hub.join(self._client)
        book_of(self._hub)[self._client.number] = Owned(self._client, self.attributes)

    def _call(self, frame: Call) -> None:
        """A request to the hub."""
        if not self._answers.begin(frame):
            self._client.counters.fault("UMQ-136")
            self._count_refused(frame)
            return
        if self._draining:
            self._answers.refuse(frame.call_id, FatalCode.SHUTTING_DOWN)
            self._count_refused(frame)
            return
        try:
            method = read_method(frame.payload, frame.attachments)
            if isinstance(method, Publish):
                self._client.counters.received += 1
            if frame.attachments > 0 and isinstance(method, (Publish, CallService)):
                self._wait(frame, method)
            else:
                self._requests.perform(frame.call_id, method, ())
        except MethodError as error:
            self._refuse(frame.call_id, error)

    def _count_refused(self, frame: Call) -> None:
        """Count a publication that is refused before its request is read."""
        try:
            if isinstance(read_method(frame.payload, frame.attachments), Publish):
                self._client.counters.received += 1
        except MethodError:
            pass  # not a publication, as far as can be told

    def _wait(self, frame: Call, method: Publish | CallService) -> None:
        """UMQ-121: the attachments are part of the message."""
        self._requests.check(method)
        waiting = Unfinished(frame.attachments, len(frame.payload), call_id=frame.call_id, method=method)
        if not self._gathering.add(frame.ordinal, waiting):
            self._finish(waiting)

    def _result(self, frame: Result) -> None:
        """UMQ-124: the peer's answer to a request for its service."""
        call = self._serving.answered(frame)
        if call is None:
            return
        body = read_bare_body(frame.payload, frame.attachments)
        if frame.attachments > 0:
            waiting = Unfinished(frame.attachments, len(frame.payload), call=call, body=body)
            if not self._gathering.add(frame.ordinal, waiting):
                self._finish(waiting)
        else:
            self._serving.reply(call, body, (), self._hub.clock())

    def _attachment(self, frame: Attachment | AttachmentError) -> None:
        waiting = self._gathering.take(frame)
        if waiting is not None:
            self._finish(waiting)
        else:
            self.attributes.fill(frame)

    def _finish(self, message: Unfinished) -> None:
        """All attachments have come or failed, or a limit was passed."""
        call, method, problem = message.call, message.method, message.problem
        attachments = tuple(message.attachments)
        if call is not None:
            if problem is not None:
                self._client.counters.fault(problem.rule)
                self._hub.oversized(self._client, 0, self._limits.message_size)
                self._serving.fail(call, CallError(413, "bad-reply", f"the reply is not whole: {problem.reason}"))
            else:
                self._serving.reply(call, message.body, attachments, self._hub.clock())
        elif problem is not None:
            self._hub.oversized(self._client, 0, self._limits.message_size)
            self._refuse(message.call_id, problem)
        elif method is not None:
            try:
                self._requests.perform(message.call_id, method, attachments)
            except MethodError as error:
                self._refuse(message.call_id, error)

    def _refuse(self, call_id: int, error: MethodError) -> None:
        if error.code is not FatalCode.FORBIDDEN:  # which is counted as a drop
            self._client.counters.fault(error.rule)
        self._answers.error(call_id, error.payload)
