"""UMQ on the hub's side of one connection: events of the connection become hub operations, and their outcome answers.

The handshake says who the peer is; after it both sides are equal. The peer calls the hub's methods, and the hub calls
back the services the peer offers.
"""

from typing import Final, assert_never, cast, final

from mypy_extensions import i64

from polywire.hub.access import CALL, PUBLISH, SERVE, SIGNAL, SUBSCRIBE, Identity, fits_in_a_pattern
from polywire.hub.channels import from_stars, is_literal, name_problem
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub, is_queue
from polywire.hub.message import Attached, FailedAttachment, Headers, HeaderValue, Message
from polywire.hub.peer import Limits, Login, Peer, Refusal, Refused
from polywire.hub.services import Call as ServiceCall
from polywire.protocols.umq.connection import Attributes, Connection, State
from polywire.protocols.umq.delivery import (
    Answers,
    HubConnection,
    Topics,
    UmqCaller,
    UmqProvider,
    assembled,
    writable,
)
from polywire.protocols.umq.errors import FatalCode, MethodError, RemoteProtocolError
from polywire.protocols.umq.frames import (
    Attachment,
    AttachmentError,
    Call,
    CallException,
    Fatal,
    Hello,
    Result,
    TopicClose,
    Unsubscribe,
    Welcome,
    violation,
)
from polywire.protocols.umq.methods import (
    Body,
    CallService,
    Header,
    Method,
    Publish,
    ReadAttributes,
    Serve,
    SubscribeTopic,
    Unserve,
    UnsubscribeTopic,
    read_bare_body,
    read_method,
)
from polywire.security.credentials import CredentialsError, read_hello
from polywire.wire.frame import Frame, Role

TOO_BIG: Final = "UMQ-133"
MILLISECONDS: Final = 1000.0

ATTRIBUTES_OF: Final = "$attributes/"
"""What an access rule calls the attributes of a user's connections: this and the user's name."""

ALL_ATTRIBUTES: Final = from_stars(ATTRIBUTES_OF + "**")
NOT_YET: Final = FailedAttachment("not received yet")


@final
class Unfinished:
    """A request of the peer (``call_id`` and ``method``), or its answer (``body``) to a ``call`` of its service.

    ``problem`` is the limit that was exceeded.
    """

    def __init__(
        self,
        attachments: int,
        size: int,
        *,
        call_id: int = 0,
        method: Publish | CallService | None = None,
        call: ServiceCall | None = None,
        body: Body | None = None,
    ) -> None:
        self.call_id: Final = call_id
        self.method: Final = method
        self.call: Final = call
        self.body: Final = body
        self.due: i64 = attachments
        self.size: i64 = size
        self.attachments: Final[list[Attached]] = []
        self.problem: MethodError | None = None


@final
class UnfinishedMessages:
    """The messages of one connection that wait for attachments. Those behind them don't wait (UMQ-90).

    Attachments come in the order of the messages that announced them, so only the oldest message ever holds some; the
    others hold their text. ``limit``: characters and bytes in all.
    """

    def __init__(self, limit: int) -> None:
        self._limit: i64 = limit
        self._held: i64 = 0
        self._waiting: Final[dict[int, Unfinished]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def held(self) -> int:
        """How many characters and bytes are held."""
        return self._held

    def add(self, ordinal: int, message: Unfinished) -> bool:
        """Let a message wait. False, and its ``problem`` is set, where there is no room."""
        if self._held + message.size > self._limit:
            message.problem = self._too_much()
            return False
        self._held += message.size
        self._waiting[ordinal] = message
        return True

    def take(self, frame: Attachment | AttachmentError) -> Unfinished | None:
        """Give an attachment to its message. Returns the message where no further attachment is waited for.

        An attachment of a message that does not wait is ignored.
        """
        message = self._waiting.get(frame.owner)
        if message is None:
            return None
        message.due -= 1
        attachment: Attached
        size: i64
        if isinstance(frame, AttachmentError):
            attachment, size = FailedAttachment(frame.message), len(frame.message)  # UMQ-154: it fails nothing else
        else:
            attachment, size = frame.body, len(frame.body)
        if self._held + size > self._limit:
            message.problem = self._too_much()
        else:
            self._held += size
            message.size += size
            message.attachments.append(attachment)
        if message.due > 0 and message.problem is None:
            return None
        del self._waiting[frame.owner]
        self._held -= message.size
        return message

    def clear(self) -> None:
        """Forget all of them."""
        self._waiting.clear()
        self._held = 0

    def _too_much(self) -> MethodError:
        reason = f"messages that are waiting for attachments have more than {self._limit} bytes"
        return MethodError(reason, rule="UMQ-151", code=FatalCode.LIMIT_EXCEEDED)


@final
class Receipt:
    """The answer to a publication, due when the message is on disk (UMQ-144)."""

    def __init__(self, answers: Answers, call_id: int) -> None:
        self._answers: Final = answers
        self._call_id: Final = call_id

    def safe(self) -> None:
        """Answer that it is."""
        self._answers.result(self._call_id)

    def failed(self) -> None:
        """Answer that it could not be written."""
        self._answers.refuse(self._call_id, *answer_to(Refused.UNAVAILABLE))


@final
class UmqSession:
    """One UMQ connection, by WebSocket: ``received`` takes whole messages, the outbox gets whole frames."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        self._max_octets = limits.message_size_before_auth
        self._connection: Final[HubConnection] = Connection(
            Role.SERVER,
            max_text=self._max_octets,
            max_binary=self._max_octets,
            max_unfinished=limits.unfinished,
            in_flight=limits.in_flight,
            topics=limits.subscriptions,
        )
        self._answers: Final = Answers(self._connection, client)
        self._topics: Final = Topics(hub, client)
        self._caller: Final = UmqCaller(hub, client, self._connection, self._answers)
        self._provider: Final = UmqProvider(hub, client, self._connection, limit=limits.subscriptions)
        self._unfinished: Final = UnfinishedMessages(limits.message_size)
        self._draining = False

    def received(self, data: str | bytes) -> None:
        """Handle one message of the peer: ``str`` is a text message, ``bytes`` a binary one."""
        connection = self._connection
        if connection.closed:
            return
        size = len(data)
        if isinstance(data, str) and not data.isascii() and size <= self._max_octets:
            size = len(data.encode(errors="surrogatepass"))
        self._client.counters.octets_in += size
        try:
            if size > self._max_octets >= len(data):
                reason = f"the text message has {size} bytes, more than the {self._max_octets} allowed"
                raise violation(FatalCode.LIMIT_EXCEEDED, reason, TOO_BIG)
            connection.receive(data)
            event = connection.next_event()
            while event is not None:
                self._take(event, connection.reply)
                event = connection.next_event()
        except RemoteProtocolError as error:
            raw = data.encode(errors="replace") if isinstance(data, str) else data
            self._hub.fault(self._client, error.rule, error.reason, raw, size)
            self._client.reason = error.rule
            if error.rule == TOO_BIG:
                self._hub.oversized(self._client, size, self._max_octets)
            if isinstance(error.reply, Fatal):
                self._answers.send(error.reply)
                self._release()
                self._peer.close(too_big=error.rule == TOO_BIG)

    def lost(self) -> None:
        """The connection has ended, for any reason."""
        self._connection.lost()
        self._release()
        book_of(self._hub).pop(self._client.number, None)
        self._hub.leave(self._client)

    def drain(self) -> None:
        """UMQ-145: the hub is going down. New requests get code 10, and so does a peer not yet welcomed."""
        self._draining = True
        if self._connection.state is not State.OPEN:
            self._fatal(FatalCode.SHUTTING_DOWN)

    def pending(self) -> int:
        """How many bytes of messages are held that wait for attachments."""
        return self._unfinished.held()

    def no_room(self, reason: str) -> None:
        """UMQ-169: ``F`` with code 9."""
        self._last(self._connection.close(FatalCode.LIMIT_EXCEEDED, reason))

    def busy(self) -> bool:
        """Whether an answer is due, from the hub or from the peer."""
        connection = self._connection
        due = len(connection.requests) + len(connection.calls) + len(self._unfinished)
        return not connection.closed and due > 0

    def goodbye(self, *, expired: bool = False) -> None:
        """End the connection from the hub's side: ``F`` with code 10, or with 1 where the login has expired."""
        if expired:
            self._fatal(FatalCode.REJECTED, "the login has expired")
        else:
            self._fatal(FatalCode.SHUTTING_DOWN)

    def timed_out(self) -> None:
        """UMQ-137: the peer took too long, for its handshake or while idle: ``F`` with code 9."""
        if self._last(self._connection.time_out()):
            self._peer.close()

    def too_big(self) -> None:
        """UMQ-133: a message was too big to be read. ``F`` with code 9; the transport closes the connection."""
        reason = f"a message has more than {self._max_octets} bytes"
        self._last(self._connection.close(FatalCode.LIMIT_EXCEEDED, reason))

    def _fatal(self, code: FatalCode, detail: str = "") -> None:
        """UMQ-97: report why, and close the connection."""
        if self._last(self._connection.close(code, detail)):
            self._peer.close()

    def _last(self, message: str | None) -> bool:
        """Write the last message. False where one was sent or received before."""
        if message is None:
            return False
        self._answers.write(message)
        self._release()
        return True

    def _release(self) -> None:
        """UMQ-140: topics, calls and services end with the connection."""
        self._client.outbox.on_room = None
        self._unfinished.clear()
        self._caller.gone()
        self._provider.gone()
        self._topics.gone()

    def _take(self, event: Frame, reply: Frame | None) -> None:
        if reply is not None:
            self._answers.send(reply)
        if isinstance(event, Call):
            self._call(event, refused=reply is not None)
        elif isinstance(event, (Attachment, AttachmentError)):
            waiting = self._unfinished.take(event)
            if waiting is not None:
                self._finish(waiting)
        elif isinstance(event, Result):
            self._result(event)
        elif isinstance(event, CallException):
            call = self._provider.answered(event)
            if call is not None:
                self._provider.fail(call, event.payload)
        elif isinstance(event, Unsubscribe):
            self._topic_ended(event.topic_id)
        elif isinstance(event, Hello):
            self._hello(event)
        elif isinstance(event, Fatal):
            self._release()
            self._peer.close()

    def _hello(self, frame: Hello) -> None:
        """UMQ-141: the payload says who the peer is."""
        if self._hub.draining:
            self._fatal(FatalCode.SHUTTING_DOWN)
            return
        try:
            presented = read_hello(frame.payload)
        except CredentialsError as error:
            self._client.counters.fault("UMQ-141")
            self._fatal(FatalCode.REJECTED, error.problem)
            return
        self._peer.login(Login(presented.user, presented.password, presented.token), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        connection = self._connection
        if connection.closed:  # meanwhile
            return
        if isinstance(who, Refusal):
            self._client.counters.fault("login")
            wait = f"; try again in {who.retry_after:g} s" if who.retry_after > 0 else ""
            self._fatal(FatalCode.REJECTED, who.reason + wait)
            return
        self._max_octets = self._limits.message_size
        connection.allow(max_text=self._max_octets, max_binary=self._max_octets)
        self._answers.send(Welcome(connection.machine.offered))
        self._client.outbox.on_room = self._topics.room
        self._peer.established()
        self._hub.join(self._client)
        book_of(self._hub)[self._client.number] = Owned(self._client, connection.attributes)

    def _call(self, frame: Call, *, refused: bool) -> None:
        """A request to the hub; ``refused`` where it has been answered, because there are too many."""
        if refused:
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
                self._perform(frame.call_id, method, ())
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
        self._check(method)
        waiting = Unfinished(frame.attachments, len(frame.payload), call_id=frame.call_id, method=method)
        if not self._unfinished.add(frame.ordinal, waiting):
            self._finish(waiting)

    def _result(self, frame: Result) -> None:
        """UMQ-124: the peer's answer to a request for its service."""
        call = self._provider.answered(frame)
        if call is None:
            return
        body = read_bare_body(frame.payload, frame.attachments)
        if frame.attachments > 0:
            waiting = Unfinished(frame.attachments, len(frame.payload), call=call, body=body)
            if not self._unfinished.add(frame.ordinal, waiting):
                self._finish(waiting)
        else:
            self._provider.reply(call, body, ())

    def _finish(self, message: Unfinished) -> None:
        """All attachments have come or failed, or a limit was exceeded."""
        call, method, problem = message.call, message.method, message.problem
        attachments = tuple(message.attachments)
        if problem is not None:
            self._hub.oversized(self._client, 0, self._limits.message_size)
            if call is not None:
                self._client.counters.fault(problem.rule)
                self._provider.fail_incomplete(call, problem.reason)
            else:
                self._refuse(message.call_id, problem)
        elif call is not None:
            self._provider.reply(call, message.body, attachments)
        elif method is not None:
            try:
                self._perform(message.call_id, method, attachments)
            except MethodError as error:
                self._refuse(message.call_id, error)

    def _refuse(self, call_id: int, error: MethodError) -> None:
        if error.code is not FatalCode.FORBIDDEN:  # which is counted as a drop
            self._client.counters.fault(error.rule)
        self._answers.error(call_id, error.payload)

    # The hub's methods. What a peer may not do, or asks for wrongly, is a ``MethodError``.

    def _check(self, method: Publish | CallService) -> None:
        """Raise what can be known before the attachments have come, so that nothing is held for it."""
        headers_size = 0
        for name, value in method.headers:
            headers_size += len(name) + (len(value) if isinstance(value, str) else 8)
        if headers_size > self._limits.header_size:
            most = self._limits.header_size
            reason = f"the headers have {headers_size} characters, more than the {most} allowed"
            raise MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        if isinstance(method, Publish):
            check_name(method.channel, "channel", "UMQ-114")
            if not is_literal(from_stars(method.channel)):
                raise MethodError("a message is published to one channel, not to a pattern", rule="UMQ-114")
            refused = self._hub.forbids(self._client, PUBLISH, method.channel)
        else:
            check_name(method.service, "service", "UMQ-115")
            refused = self._hub.forbids(self._client, CALL, method.service)
        if refused is not None:
            raise method_error(refused)

    def _perform(self, call_id: int, method: Method, attachments: tuple[Attached, ...]) -> None:
        """Carry out a request whose attachments have all come or failed, and answer it, now or later."""
        if isinstance(method, Publish):
            self._check(method)
            self._publish(call_id, method, attachments)
        elif isinstance(method, CallService):
            self._check(method)
            self._call_service(call_id, method, attachments)
        elif isinstance(method, SubscribeTopic):
            self._subscribe(call_id, method)
        elif isinstance(method, UnsubscribeTopic):
            if method.topic_id not in self._connection.publications:
                raise MethodError(f"topic id {method.topic_id} is not open", rule="UMQ-113")
            self._answers.send(TopicClose(method.topic_id))
            self._topic_ended(method.topic_id)
            self._answers.result(call_id)
        elif isinstance(method, Serve):
            self._serve(call_id, method)
        elif isinstance(method, Unserve):
            self._provider.unserve(method.service)
            self._answers.result(call_id)
        elif isinstance(method, ReadAttributes):
            values, its_attachments = answered_attributes(self._readable(method.connection))
            self._answers.json(call_id, values, its_attachments)
        else:
            self._who(call_id)

    def _publish(self, call_id: int, method: Publish, attachments: tuple[Attached, ...]) -> None:
        body, rest, failed = assembled(method.body, attachments)
        if failed and (method.retain or is_queue(method.channel)):
            raise MethodError("a queued or retained message needs a body, and its body failed", rule="UMQ-155")
        message = Message(
            method.channel,
            body,
            method.body.content_type or "",
            headers(method.headers),
            rest,
            method.retain,
            self._hub.clock(),
            self._client.number,
            body_failed=failed,
            binary=method.body.data is None,
        )
        refused = self._hub.publish(message, self._client)
        if refused is None:
            receipt = Receipt(self._answers, call_id)
            self._hub.safe(receipt.safe, receipt.failed, self._client)
        else:
            self._answers.refuse(call_id, *answer_to(refused))

    def _call_service(self, call_id: int, method: CallService, attachments: tuple[Attached, ...]) -> None:
        body, rest, failed = assembled(method.body, attachments)
        message = Message(
            method.service,
            body,
            method.body.content_type or "",
            headers(method.headers),
            rest,
            retain=False,
            time=self._hub.clock(),
            origin=self._client.number,
            body_failed=failed,
            binary=method.body.data is None,
        )
        seconds = self._limits.call_time if method.timeout is None else method.timeout / MILLISECONDS
        refused = self._caller.start(call_id, method, message, seconds)
        if refused is not None:
            raise method_error(refused)

    def _subscribe(self, call_id: int, method: SubscribeTopic) -> None:
        check_name(method.pattern, "pattern", "UMQ-112")
        if "**" in method.pattern.split("/")[:-1]:
            raise MethodError("'**' is only allowed at the end of a pattern; '*' is one level", rule="UMQ-112")
        pattern = from_stars(method.pattern)
        if pattern.startswith(QUEUE_PREFIX) and not is_literal(pattern):
            raise MethodError("a queue is consumed by its name, not by a pattern", rule="UMQ-150")
        publications = self._connection.publications
        try:
            publications.open(method.topic_id)
        except MethodError:
            denied = self._hub.forbids(self._client, SUBSCRIBE, pattern, dollar=False)
            if denied is not None:
                raise method_error(denied) from None
            raise
        refused = self._topics.subscribe(method.topic_id, pattern, envelope=method.envelope)
        if refused is not None:
            publications.close(method.topic_id)
            raise method_error(refused)
        self._answers.result(call_id)
        self._topics.begin(method.topic_id)

    def _topic_ended(self, topic_id: int) -> None:
        """The peer has ended a subscription, a queue's topic or a stream; its ``D`` is sent."""
        if not self._caller.cancel(topic_id):
            self._topics.end(topic_id)

    def _serve(self, call_id: int, method: Serve) -> None:
        check_name(method.service, "service", "UMQ-116")
        problem = self._provider.problem(method.service)
        if problem is not None:
            refused = self._hub.forbids(self._client, SERVE, method.service)
            raise problem if refused is None else method_error(refused)
        refused = self._provider.serve(method)
        if refused is not None:
            raise method_error(refused)
        self._answers.result(call_id)

    def _who(self, call_id: int) -> None:
        """UMQ-142: who the peer is to the hub."""
        who = self._client.identity
        attributes, attachments = answered_attributes(self._connection.attributes)
        found: dict[str, object] = {
            "user": writable(who.name),
            "groups": sorted([writable(group) for group in who.groups]),
            "how": who.how,
            "connection": self._client.number,
            "address": self._client.address,
            "attributes": attributes,
        }
        self._answers.json(call_id, found, attachments)

    def _readable(self, connection: int) -> Attributes:
        """UMQ-158: a connection's attributes. One that may not be read looks like one that does not exist."""
        client = self._client
        found = book_of(self._hub).get(connection)
        if found is not None and found.may_be_read_by(client):
            return found.attributes
        if found is None and client.may_signal(ALL_ATTRIBUTES):
            raise MethodError(f"there is no connection {connection} that speaks UMQ", rule="UMQ-158")
        self._hub.refuse(client, SIGNAL, ALL_ATTRIBUTES, Refused.FORBIDDEN)
        reason = "there is no such connection, or the access rules don't allow it"
        raise MethodError(reason, rule="UMQ-158", code=FatalCode.FORBIDDEN)


def answer_to(refused: Refused) -> tuple[FatalCode, str]:
    """UMQ-143: why the hub does not do what was asked for, as a code and a text."""
    match refused:
        case Refused.FORBIDDEN:
            return FatalCode.FORBIDDEN, refused.message
        case Refused.SERVICE_CHANNEL:
            return FatalCode.FORBIDDEN, "channels under $ are the hub's own"
        case Refused.RETAINED_FULL:
            return FatalCode.LIMIT_EXCEEDED, "the limit on retained messages is reached"
        case (
            Refused.TOO_MANY_QUEUES
            | Refused.LIMIT
            | Refused.PATTERN_COST
            | Refused.NAMES_SIZE
            | Refused.WATCHERS
            | Refused.WILLS_SIZE
        ):
            return FatalCode.LIMIT_EXCEEDED, refused.message
        case Refused.QUEUE_FULL | Refused.QUEUES_FULL | Refused.UNAVAILABLE:
            return FatalCode.UNAVAILABLE, refused.message
        case Refused.TOO_DEEP | Refused.UNSUPPORTED:
            return FatalCode.UNAVAILABLE, refused.label
        case Refused.DRAINING:
            return FatalCode.SHUTTING_DOWN, ""
        case _:
            assert_never(refused)


def method_error(refused: Refused) -> MethodError:
    """The same for requests other than publications."""
    code, detail = answer_to(refused)
    return MethodError(detail, rule="UMQ-143" if refused is Refused.FORBIDDEN else "UMQ-136", code=code)


def check_name(name: str, what: str, rule: str) -> None:
    """Raise ``MethodError`` for what can't name a channel or a service."""
    problem = name_problem(name)
    if problem is not None:
        raise MethodError(f"{what}: {problem}", rule=rule)


def headers(given: tuple[tuple[str, Header], ...]) -> Headers:
    """The headers as the hub has them: names in lower case, the last one of a name."""
    if not given:
        return ()
    found: dict[str, HeaderValue] = {}
    for name, value in given:
        found[name.lower()] = value
    return tuple(found.items())


@final
class Owned:
    """One connection and the attributes that its client has set, for those who may read them (UMQ-157, UMQ-158)."""

    def __init__(self, client: Client, attributes: Attributes) -> None:
        self.client: Final = client
        self.attributes: Final = attributes

    def may_be_read_by(self, reader: Client) -> bool:
        """Its own connection, one of the same user, one that a rule allows; without rules, one from this machine."""
        owner = self.client.identity
        if reader is self.client:
            return True
        if owner.how != "anonymous" and owner.name and owner.name == reader.identity.name:
            return reader.identity.how != "anonymous"
        named = fits_in_a_pattern(owner.name)
        return reader.may_signal(ATTRIBUTES_OF + owner.name if named else ALL_ATTRIBUTES)


def book_of(hub: Hub) -> dict[int, Owned]:
    """Every UMQ connection of a hub, by its number."""
    return cast("dict[int, Owned]", hub.shared.setdefault("umq", {}))


def answered_attributes(attributes: Attributes) -> tuple[dict[str, object], tuple[Attached, ...]]:
    """Attributes as an answer has them: each a text, or with the places of its attachments among the answer's."""
    values: dict[str, object] = {}
    sent: list[Attached] = []
    for name, attribute in attributes.view.items():
        if not attribute.attachments:
            values[name] = attribute.value
            continue
        places = list(range(len(sent), len(sent) + len(attribute.attachments)))
        values[name] = {"value": attribute.value, "attachments": places}
        for each in attribute.attachments:
            if isinstance(each, bytes):
                sent.append(each)
            else:
                sent.append(FailedAttachment(each.message) if isinstance(each, AttachmentError) else NOT_YET)
    return values, tuple(sent)
