"""What the hub's methods do: the requests of one peer, carried out on the hub.

What a peer may not do, or asks for wrongly, is a ``MethodError``; the session answers it.
"""

from typing import Final, assert_never, final

from polywire.hub.access import CALL, PUBLISH, SERVE, SIGNAL
from polywire.hub.channels import from_stars, is_literal, name_problem
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub, is_queue
from polywire.hub.message import Attached, Headers, HeaderValue, Message
from polywire.hub.peer import Limits
from polywire.hub.refusal import Refused
from polywire.protocols.umq.answers import Answers, writable
from polywire.protocols.umq.attribute_book import ALL_ATTRIBUTES, answered_attributes, book_of
from polywire.protocols.umq.calling import Calling
from polywire.protocols.umq.connection import Attributes
from polywire.protocols.umq.errors import FatalCode, MethodError
from polywire.protocols.umq.gathering import assembled
from polywire.protocols.umq.methods import (
    CallService,
    Header,
    Method,
    Publish,
    ReadAttributes,
    Serve,
    SubscribeTopic,
    Unserve,
    UnsubscribeTopic,
)
from polywire.protocols.umq.open_topics import OpenTopics
from polywire.protocols.umq.serving import Serving

MILLISECONDS: Final = 1000.0


@final
class Receipt:
    """The answer to a publication, due when the message is safe (UMQ-144)."""

    def __init__(self, answers: Answers, call_id: int) -> None:
        self._answers: Final = answers
        self._call_id: Final = call_id

    def safe(self) -> None:
        """Answer."""
        self._answers.result(self._call_id)

    def failed(self) -> None:
        """Answer that it could not be made safe."""
        self._answers.refuse(self._call_id, *answer_to(Refused.UNAVAILABLE))


@final
class Requests:
    """The methods, for one peer."""

    def __init__(
        self,
        hub: Hub,
        client: Client,
        limits: Limits,
        answers: Answers,
        topics: OpenTopics,
        calling: Calling,
        serving: Serving,
        attributes: Attributes,
    ) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._header_size: Final = limits.header_size
        self._call_time: Final = limits.call_time
        self._answers: Final = answers
        self._topics: Final = topics
        self._calling: Final = calling
        self._serving: Final = serving
        self._attributes: Final = attributes

    def check(self, method: Publish | CallService) -> None:
        """Raise what can be told before the attachments are there, so that nothing is held for it."""
        headers_size = 0
        for name, value in method.headers:
            headers_size += len(name) + (len(value) if isinstance(value, str) else 8)
        if headers_size > self._header_size:
            reason = f"the headers have {headers_size} characters, more than the {self._header_size} allowed"
            raise MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        if isinstance(method, Publish):
            check_name(method.channel, "channel", "UMQ-114")
            if not is_literal(from_stars(method.channel)):
                raise MethodError("a message is published to one channel, not to a pattern", rule="UMQ-114")
            if self._hub.forbids(self._client, PUBLISH, method.channel) is not None:
                raise method_error(Refused.FORBIDDEN)
        else:
            check_name(method.service, "service", "UMQ-115")
            if self._hub.forbids(self._client, CALL, method.service) is not None:
                raise method_error(Refused.FORBIDDEN)

    def perform(self, call_id: int, method: Method, attachments: tuple[Attached, ...]) -> None:
        """Carry out a request whose attachments have all come or failed, and answer it, now or later."""
        if isinstance(method, Publish):
            self.check(method)
            self._publish(call_id, method, attachments)
        elif isinstance(method, CallService):
            self.check(method)
            self._call(call_id, method, attachments)
        elif isinstance(method, SubscribeTopic):
            self._subscribe(call_id, method)
        elif isinstance(method, UnsubscribeTopic):
            if not self.end_topic(method.topic_id):
                raise MethodError(f"topic id {method.topic_id} is not open", rule="UMQ-113")
            self._answers.result(call_id)
        elif isinstance(method, Serve):
            self._serve(call_id, method)
        elif isinstance(method, Unserve):
            self._serving.unserve(method)
            self._answers.result(call_id)
        elif isinstance(method, ReadAttributes):
            values, its_attachments = answered_attributes(self._readable(method.connection))
            self._answers.json(call_id, values, its_attachments)
        else:
            self._who(call_id)

    def end_topic(self, topic_id: int) -> bool:
        """End a subscription, a queue's or a stream's topic with its ``D``. False where the id is not open."""
        return self._calling.ended_by_peer(topic_id) or self._topics.end(topic_id)

    def _publish(self, call_id: int, method: Publish, attachments: tuple[Attached, ...]) -> None:
        body, rest, failed = assembled(method.body, attachments)
        if failed and (method.retain or is_queue(method.channel)):
            raise MethodError("what is queued or retained needs a body, and that failed", rule="UMQ-155")
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
            self._hub.safe(receipt.safe, receipt.failed)
        else:
            self._answers.refuse(call_id, *answer_to(refused))

    def _call(self, call_id: int, method: CallService, attachments: tuple[Attached, ...]) -> None:
        body, rest, failed = assembled(method.body, attachments)
        message = Message(
            method.service,
            body,
            method.body.content_type or "",
            headers(method.headers),
            rest,
            False,
            self._hub.clock(),
            self._client.number,
            body_failed=failed,
            binary=method.body.data is None,
        )
        seconds = self._call_time if method.timeout is None else method.timeout / MILLISECONDS
        refused = self._calling.start(call_id, method, message, seconds)
        if refused is not None:
            raise method_error(refused)

    def _subscribe(self, call_id: int, method: SubscribeTopic) -> None:
        check_name(method.pattern, "pattern", "UMQ-112")
        if "**" in method.pattern.split("/")[:-1]:
            raise MethodError("'**' stands at the end of a pattern only; '*' is one level", rule="UMQ-112")
        pattern = from_stars(method.pattern)
        queued = pattern.startswith(QUEUE_PREFIX)
        if queued and not is_literal(pattern):
            raise MethodError("a queue is consumed by its name, not by a pattern", rule="UMQ-150")
        self._topics.ids.open(method.topic_id)
        if queued:
            refused = self._topics.consume(method.topic_id, pattern, envelope=method.envelope)
        else:
            refused = self._topics.subscribe(method.topic_id, pattern, envelope=method.envelope)
        if refused is not None:
            self._topics.ids.close(method.topic_id)
            raise method_error(refused)
        self._answers.result(call_id)
        self._topics.begin(method.topic_id)

    def _serve(self, call_id: int, method: Serve) -> None:
        check_name(method.service, "service", "UMQ-116")
        problem = self._serving.problem(method.service)
        if problem is not None:
            refused = self._hub.forbids(self._client, SERVE, method.service)
            raise problem if refused is None else method_error(refused)
        refused = self._serving.serve(method)
        if refused is not None:
            raise method_error(refused)
        self._answers.result(call_id)

    def _who(self, call_id: int) -> None:
        """UMQ-142: who the peer is to the hub."""
        who = self._client.identity
        attributes, attachments = answered_attributes(self._attributes)
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
        """UMQ-158: a connection's attributes. One that may not be read looks like one that is not there."""
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
    """UMQ-143: why the hub does not do what was asked for, as a code and in words."""
    match refused:
        case Refused.FORBIDDEN:
            return FatalCode.FORBIDDEN, refused.message
        case Refused.SERVICE_CHANNEL:
            return FatalCode.FORBIDDEN, "channels under $ are the hub's own"
        case Refused.RETAINED_FULL:
            return FatalCode.LIMIT_EXCEEDED, "no room for another retained message"
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
    """The same for requests that are no publications."""
    code, detail = answer_to(refused)
    return MethodError(detail, rule="UMQ-143" if refused is Refused.FORBIDDEN else "UMQ-136", code=code)


def check_name(name: str, what: str, rule: str) -> None:
    """Refuse what can't name a channel or a service."""
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
