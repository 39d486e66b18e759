"""What the hub's methods do: the requests of one peer, carried out on the hub.

What a peer may not do, or asks for wrongly, is a ``MethodError``; the session answers it.
"""

from typing import Final, final

from polywire.hub.channels import from_stars, is_literal, name_problem
from polywire.hub.client import Client
from polywire.hub.hub import (
    DRAINING,
    FORBIDDEN,
    NO_QUEUE,
    QUEUE_FULL,
    QUEUE_PREFIX,
    RETAINED_FULL,
    SERVICE_CHANNEL,
    TOO_MANY_QUEUES,
    UNAVAILABLE,
    UNWRITABLE,
    Hub,
)
from polywire.hub.message import Headers, HeaderValue, Message
from polywire.hub.peer import Limits
from polywire.protocols.umq.answers import Answers, writable
from polywire.protocols.umq.bodies import Body
from polywire.protocols.umq.calling import Calling
from polywire.protocols.umq.codes import FatalCode
from polywire.protocols.umq.envelopes import write_answer
from polywire.protocols.umq.errors import MethodError
from polywire.protocols.umq.json_objects import Header
from polywire.protocols.umq.methods import (
    CallService,
    Method,
    Publish,
    Serve,
    SubscribeTopic,
    Unserve,
    UnsubscribeTopic,
)
from polywire.protocols.umq.open_topics import OpenTopics
from polywire.protocols.umq.serving import Serving

# UMQ-143: why the hub did not take a publication, as a code and in words.
REFUSALS: Final = {
    FORBIDDEN: (FatalCode.FORBIDDEN, ""),
    SERVICE_CHANNEL: (FatalCode.FORBIDDEN, "channels under $ are the hub's own"),
    QUEUE_FULL: (FatalCode.UNAVAILABLE, "the queue is full"),
    TOO_MANY_QUEUES: (FatalCode.LIMIT_EXCEEDED, NO_QUEUE),
    RETAINED_FULL: (FatalCode.LIMIT_EXCEEDED, "no room for another retained message"),
    DRAINING: (FatalCode.SHUTTING_DOWN, ""),
    UNAVAILABLE: (FatalCode.UNAVAILABLE, UNWRITABLE),
}

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
        self._answers.refuse(self._call_id, *REFUSALS[UNAVAILABLE])


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
    ) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._header_size: Final = limits.header_size
        self._call_time: Final = limits.call_time
        self._answers: Final = answers
        self._topics: Final = topics
        self._calling: Final = calling
        self._serving: Final = serving

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
            if not self._client.grants.may_publish(method.channel):
                raise self._forbidden()
        else:
            check_name(method.service, "service", "UMQ-115")
            if not self._client.grants.may_call(method.service):
                raise self._forbidden()

    def perform(self, call_id: int, method: Method, attachments: tuple[bytes, ...]) -> None:
        """Carry out a request whose attachments are all there, and answer it, now or later."""
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
        else:
            self._answers.result(call_id, self._who())

    def end_topic(self, topic_id: int) -> bool:
        """End a subscription, a queue's or a stream's topic with its ``D``. False where the id is not open."""
        return self._calling.ended_by_peer(topic_id) or self._topics.end(topic_id)

    def _publish(self, call_id: int, method: Publish, attachments: tuple[bytes, ...]) -> None:
        body, rest = assembled(method.body, attachments)
        message = Message(
            method.channel,
            body,
            method.body.content_type or "",
            headers(method.headers),
            rest,
            method.retain,
            self._hub.clock(),
            self._client.number,
        )
        refused = self._hub.publish(message, self._client)
        if refused is None:
            receipt = Receipt(self._answers, call_id)
            self._hub.safe(receipt.safe, receipt.failed)
        else:
            code, detail = REFUSALS.get(refused, (FatalCode.UNAVAILABLE, refused))
            self._answers.refuse(call_id, code, detail)

    def _call(self, call_id: int, method: CallService, attachments: tuple[bytes, ...]) -> None:
        body, rest = assembled(method.body, attachments)
        message = Message(
            method.service,
            body,
            method.body.content_type or "",
            headers(method.headers),
            rest,
            False,
            self._hub.clock(),
            self._client.number,
        )
        seconds = self._call_time if method.timeout is None else method.timeout / MILLISECONDS
        self._calling.start(call_id, method, message, seconds)

    def _subscribe(self, call_id: int, method: SubscribeTopic) -> None:
        check_name(method.pattern, "pattern", "UMQ-112")
        if "**" in method.pattern.split("/")[:-1]:
            raise MethodError("'**' stands at the end of a pattern only; '*' is one level", rule="UMQ-112")
        pattern = from_stars(method.pattern)
        queued = pattern.startswith(QUEUE_PREFIX)
        if queued and not is_literal(pattern):
            raise MethodError("a queue is consumed by its name, not by a pattern", rule="UMQ-150")
        if not self._client.grants.may_subscribe(pattern, dollar=False):
            raise self._forbidden()
        if queued and not self._hub.takes_queue(pattern):
            raise MethodError(NO_QUEUE, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        self._topics.ids.open(method.topic_id)
        self._answers.result(call_id)
        if queued:
            self._topics.consume(method.topic_id, pattern, envelope=method.envelope)
        else:
            self._topics.subscribe(method.topic_id, pattern, envelope=method.envelope)

    def _serve(self, call_id: int, method: Serve) -> None:
        check_name(method.service, "service", "UMQ-116")
        if not self._client.grants.may_serve(method.service):
            raise self._forbidden()
        self._serving.serve(method)
        self._answers.result(call_id)

    def _who(self) -> str:
        """UMQ-142: who the peer is to the hub."""
        who = self._client.identity
        found: dict[str, object] = {
            "user": writable(who.name),
            "groups": sorted([writable(group) for group in who.groups]),
            "how": who.how,
            "connection": self._client.number,
            "address": self._client.address,
        }
        return write_answer(found)

    def _forbidden(self) -> MethodError:
        self._client.counters.drop(FORBIDDEN)
        return MethodError("the access rules don't allow it", rule="UMQ-143", code=FatalCode.FORBIDDEN)


def check_name(name: str, what: str, rule: str) -> None:
    """Refuse what can't name a channel or a service."""
    problem = name_problem(name)
    if problem is not None:
        raise MethodError(f"{what}: {problem}", rule=rule)


def assembled(body: Body | None, attachments: tuple[bytes, ...]) -> tuple[bytes, tuple[bytes, ...]]:
    """The octets of a body and the attachments beside it (UMQ-121)."""
    if body is not None and body.data is not None:
        return body.data, attachments
    return attachments[0], attachments[1:]


def headers(given: tuple[tuple[str, Header], ...]) -> Headers:
    """The headers as the hub has them: names in lower case, the last one of a name."""
    if not given:
        return ()
    found: dict[str, HeaderValue] = {}
    for name, value in given:
        found[name.lower()] = value
    return tuple(found.items())
