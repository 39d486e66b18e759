"""The calls a peer makes through the hub, and the streams that some of them answer with."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.refusal import Refused
from polywire.hub.services import END, Call, Caller, CallError
from polywire.protocols.umq.answers import Answers, call_error_text
from polywire.protocols.umq.connection import Publications
from polywire.protocols.umq.errors import FatalCode, error_text
from polywire.protocols.umq.methods import CallService
from polywire.protocols.umq.updates import TopicWriter

CANCELLED: Final = CallError(499, "cancelled", "the caller has ended the stream")
NOT_READ: Final = "the responses were not read in time"


@final
class Asked:
    """A call under way: the id of its ``C`` and, where it is streamed, the topic id and what writes to it."""

    def __init__(self, call_id: int, topic_id: int, stream: TopicWriter | None) -> None:
        self.call_id: Final = call_id
        self.topic_id: Final = topic_id
        self.stream: Final = stream


@final
class Calling(Caller):
    """One peer as a caller. ``topics`` are the peer's topic ids, which streams share with its subscriptions."""

    def __init__(self, hub: Hub, client: Client, answers: Answers, topics: Publications) -> None:
        self.connection = client
        self.takes_failed_body = True
        self._hub: Final = hub
        self._client: Final = client
        self._answers: Final = answers
        self._topics: Final = topics
        self._asked: Final[dict[Call, Asked]] = {}
        self._streams: Final[dict[int, Call]] = {}

    def start(self, call_id: int, method: CallService, message: Message, seconds: float) -> Refused | None:
        """Make a call. Raises ``MethodError`` where its stream's topic id can't be had."""
        stream: TopicWriter | None = None
        topic_id = 0
        if method.stream is not None:
            topic_id = method.stream
            self._topics.open(topic_id)
            stream = TopicWriter(self._client, topic_id)
        call = Call(self, method.service, method.method, streamed=stream is not None)
        self._asked[call] = Asked(call_id, topic_id, stream)
        if stream is not None:
            self._streams[topic_id] = call
        refused = self._hub.call(self._client, call, message, seconds=seconds)
        if refused is not None:
            self._end(call, self._asked[call])
        return refused

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        """UMQ-110: the answer is the bare body; UMQ-127: of a stream it is a ``T``."""
        asked = self._asked.get(call)
        if asked is None:
            return
        if asked.stream is None:
            del self._asked[call]
            self._answers.body(asked.call_id, message)
            return
        # UMQ-146: the end without a response is no update.
        if message is not END and not asked.stream.offer(message):
            self._end(call, asked)
            self._hub.services.cancel(call, CallError(499, "slow-reader", NOT_READ))
            self._answers.error(asked.call_id, error_text(FatalCode.LIMIT_EXCEEDED, NOT_READ))
        elif last:
            self._end(call, asked)
            self._answers.result(asked.call_id)

    def fail(self, call: Call, error: CallError) -> None:
        """The answer is an ``E``; a stream has ended before."""
        asked = self._asked.get(call)
        if asked is not None:
            self._end(call, asked)
            self._answers.error(asked.call_id, call_error_text(error))

    def ended_by_peer(self, topic_id: int) -> bool:
        """The peer wants no more of a stream: the call is cancelled. False where the topic id is no stream's."""
        call = self._streams.get(topic_id)
        if call is None:
            return False
        asked = self._asked[call]
        self._end(call, asked)
        self._hub.services.cancel(call, CANCELLED)
        self._answers.result(asked.call_id)
        return True

    def gone(self) -> None:
        """The peer waits for nothing any more. The hub cancels its calls."""
        self._asked.clear()
        self._streams.clear()

    def _end(self, call: Call, asked: Asked) -> None:
        del self._asked[call]
        if asked.stream is not None:
            del self._streams[asked.topic_id]
            closing = self._topics.close(asked.topic_id)
            if closing is not None:
                self._answers.send(closing)
