"""What an sABC client asks of the hub, done: one method for each ``op``."""

from typing import Final, assert_never, final

from polywire.hub.access import SUBSCRIBE as ACCESS_SUBSCRIBE
from polywire.hub.channels import ANY, from_stars, name_problem
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.peer import Limits
from polywire.hub.refusal import Refused
from polywire.protocols.sabc import errors
from polywire.protocols.sabc.answers import Answers
from polywire.protocols.sabc.calls import SabcCaller, SabcProvider
from polywire.protocols.sabc.frames import CALL, PUBLISH, SERVE, SUBSCRIBE, UNSUBSCRIBE, Operation, Whole
from polywire.protocols.sabc.line import Line
from polywire.protocols.sabc.subscriptions import Queues, SabcSubscription
from polywire.protocols.sabc.translation import incoming

UNKNOWN: Final = "unknown"
BAD_NAME: Final = "bad-name"

NOT_ALLOWED: Final = {
    PUBLISH: "you may not publish there",
    SUBSCRIBE: "you may not subscribe to that",
    CALL: "you may not call that service",
    SERVE: "you may not offer that service",
}


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
        elif self._hub.unserve(self._client, name):
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
            self._refuse(whole, PUBLISH, refused)

    def _subscribe(self, destination: str, whole: Whole) -> None:
        client = self._client
        pattern = from_stars(destination)
        msg_id = whole.msg_id or ""
        if destination.startswith(QUEUE_PREFIX):
            refused: Refused | None
            if ANY in pattern:
                refused = self._hub.forbids(client, ACCESS_SUBSCRIBE, pattern, dollar=False)
                if refused is None:
                    self._answers.refuse(whole, errors.MALFORMED, "a queue is named in full, without '*'", BAD_NAME)
                    return
            else:
                refused = self._queues.start(destination[len(QUEUE_PREFIX) :], msg_id)
            if refused is not None:
                self._refuse(whole, SUBSCRIBE, refused)
                return
            self._answers.accept(whole)
            self._queues.begin(destination[len(QUEUE_PREFIX) :])
            return
        subscription = SabcSubscription(pattern, self._hub.next_number(), self._line, msg_id)
        refused = self._hub.subscribe(client, destination, subscription)
        if refused is not None:
            self._refuse(whole, SUBSCRIBE, refused)
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
        message = incoming(service, whole.body, asked.headers, time=self._hub.clock(), origin=client.number)
        msg_id, method = whole.msg_id or "", asked.method or ""
        seconds = self._limits.call_time
        silent, cut = whole.send_only, whole.truncated
        refused = self._caller.call(service, method, message, msg_id, silent=silent, truncated=cut, seconds=seconds)
        if refused is not None:
            self._refuse(whole, CALL, refused)

    def _serve(self, service: str, whole: Whole) -> None:
        refused = self._hub.serve(self._client, service, self._provider)
        if refused is None:
            self._answers.accept(whole)
        else:
            self._refuse(whole, SERVE, refused)

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
                    text = f"{self._limits.in_flight} of your calls are under way already"
                else:
                    text = f"you have {self._limits.subscriptions} subscriptions already"
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
