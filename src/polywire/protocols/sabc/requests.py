"""What an sABC client asks of the hub, done: one method for each ``op``."""

from typing import Final, final

from polywire.hub.channels import ANY, from_stars, name_problem
from polywire.hub.hub import DRAINING as HUB_DRAINING
from polywire.hub.hub import (
    FORBIDDEN,
    FULL_QUEUES,
    LARGE_NAMES,
    NO_QUEUE,
    QUEUE_FULL,
    QUEUE_PREFIX,
    QUEUES_FULL,
    RETAINED_FULL,
    SERVICE_CHANNEL,
    SUBSCRIPTION_REFUSALS,
    TOO_MANY_QUEUES,
    UNAVAILABLE,
    UNWRITABLE,
    Hub,
)
from polywire.hub.peer import Limits
from polywire.protocols.sabc import errors
from polywire.protocols.sabc.answers import Answers
from polywire.protocols.sabc.calls import SabcCaller, SabcProvider
from polywire.protocols.sabc.frames import CALL, PUBLISH, SERVE, SUBSCRIBE, UNSUBSCRIBE, Operation, Whole
from polywire.protocols.sabc.line import Line
from polywire.protocols.sabc.subscriptions import Queues, SabcSubscription
from polywire.protocols.sabc.translation import incoming

LIMIT: Final = "limit"
UNKNOWN: Final = "unknown"
BAD_NAME: Final = "bad-name"

REFUSED: Final[dict[str, tuple[str, str]]] = {
    FORBIDDEN: (errors.FORBIDDEN, "you may not publish there"),
    SERVICE_CHANNEL: (errors.FORBIDDEN, "channels under '$' are the hub's own"),
    QUEUE_FULL: (errors.LIMIT, "the queue is full"),
    QUEUES_FULL: (errors.LIMIT, FULL_QUEUES),
    TOO_MANY_QUEUES: (errors.LIMIT, NO_QUEUE),
    RETAINED_FULL: (errors.LIMIT, "the hub keeps no more retained messages"),
    UNAVAILABLE: (errors.DRAINING, UNWRITABLE),
    HUB_DRAINING: (errors.DRAINING, "the hub is shutting down"),
}
"""What a publication that the hub refuses is answered with, by the hub's reason."""


@final
class Requests:
    """One client's requests. ``queues``, ``caller`` and ``provider`` hold what they lead to."""

    def __init__(
        self,
        hub: Hub,
        line: Line,
        limits: Limits,
        answers: Answers,
        queues: Queues,
        caller: SabcCaller,
        provider: SabcProvider,
    ) -> None:
        self._hub: Final = hub
        self._line: Final = line
        self._client: Final = line.client
        self._limits: Final = limits
        self._answers: Final = answers
        self._queues: Final = queues
        self._caller: Final = caller
        self._provider: Final = provider

    def perform(self, asked: Operation, whole: Whole) -> None:
        """Do what a message asks for, and see to its answer."""
        op = asked.op
        about_topics = op in {PUBLISH, SUBSCRIBE, UNSUBSCRIBE}
        name = (asked.destination if about_topics else asked.service) or ""
        problem = name_problem(name)
        if problem is not None:
            self._answers.refuse(whole, errors.MALFORMED, problem, BAD_NAME)
        elif op == PUBLISH:
            self._publish(name, asked, whole)
        elif op == SUBSCRIBE:
            self._subscribe(name, whole)
        elif op == UNSUBSCRIBE:
            self._unsubscribe(name, whole)
        elif op == CALL:
            self._call(name, asked, whole)
        elif op == SERVE:
            self._serve(name, whole)
        elif self._provider.unserve(name):
            self._hub.release_name(self._client, name)
            self._answers.accept(whole)
        else:
            self._answers.refuse(whole, errors.NOT_FOUND, f"you don't offer the service {name!r}", UNKNOWN)

    def _publish(self, channel: str, asked: Operation, whole: Whole) -> None:
        client = self._client
        message = incoming(channel, whole.body, asked.headers, time=self._hub.clock(), origin=client.number)
        refused = self._hub.publish(message, client, acknowledged=not whole.send_only)
        if refused is None:
            self._answers.accept(whole)
        else:
            code, reason = REFUSED[refused]
            self._line.error(code, reason, whole.msg_id)  # counted by the hub

    def _subscribe(self, destination: str, whole: Whole) -> None:
        client = self._client
        pattern = from_stars(destination)
        is_queue = destination.startswith(QUEUE_PREFIX)
        known = destination in client.subscriptions or (is_queue and destination[len(QUEUE_PREFIX) :] in self._queues)
        if not client.grants.may_subscribe(pattern, dollar=False):
            self._deny(whole, SUBSCRIBE, pattern, "you may not subscribe to that")
        elif is_queue and ANY in pattern:
            self._answers.refuse(whole, errors.MALFORMED, "a queue is named in full, without '*'", BAD_NAME)
        elif not known and not self._another():
            self._too_many(whole)
        elif is_queue and not self._hub.takes_queue(destination):
            self._answers.refuse(whole, errors.LIMIT, NO_QUEUE, LIMIT)
        elif is_queue:
            self._answers.accept(whole)
            self._queues.start(destination[len(QUEUE_PREFIX) :], whole.msg_id or "")
        else:
            subscription = SabcSubscription(pattern, self._hub.next_number(), self._line, whole.msg_id or "")
            refused = self._hub.subscribe(client, destination, subscription)
            if refused is not None:
                self._line.error(errors.LIMIT, SUBSCRIPTION_REFUSALS[refused], whole.msg_id)  # counted by the hub
                return
            self._answers.accept(whole)
            self._hub.replay(client, subscription)

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
        if not client.grants.may_call(service):
            self._deny(whole, CALL, service, "you may not call that service")
        elif len(self._caller) >= self._limits.in_flight:
            self._answers.refuse(
                whole, errors.LIMIT, f"{self._limits.in_flight} of your calls are under way already", LIMIT
            )
        else:
            message = incoming(service, whole.body, asked.headers, time=self._hub.clock(), origin=client.number)
            msg_id, method = whole.msg_id or "", asked.method or ""
            seconds = self._limits.call_time
            silent, cut = whole.send_only, whole.truncated
            self._caller.call(service, method, message, msg_id, silent=silent, truncated=cut, seconds=seconds)

    def _serve(self, service: str, whole: Whole) -> None:
        if not self._client.grants.may_serve(service):
            self._deny(whole, SERVE, service, "you may not offer that service")
        elif service not in self._provider.offered and not self._another():
            self._too_many(whole)
        elif service not in self._provider.offered and not self._hub.hold_name(self._client, service):
            self._line.error(errors.LIMIT, LARGE_NAMES, whole.msg_id)  # counted by the hub
        else:
            self._provider.serve(service)
            self._answers.accept(whole)

    def _deny(self, whole: Whole, action: str, name: str, words: str) -> None:
        """Refuse what the access rules don't allow; an ``op`` is called as their action is."""
        self._hub.refuse(self._client, action, name, FORBIDDEN)
        self._line.error(errors.FORBIDDEN, words, whole.msg_id)

    def _another(self) -> bool:
        """Whether the client may have one subscription, or service, more."""
        held = len(self._client.subscriptions) + len(self._queues) + len(self._provider.offered)
        return held < self._limits.subscriptions

    def _too_many(self, whole: Whole) -> None:
        words = f"you have {self._limits.subscriptions} subscriptions already"
        self._answers.refuse(whole, errors.LIMIT, words, LIMIT)
