"""Topics by their ids, at the publisher and at the subscriber.

The subscriber chooses the id. ``Publications`` are the topics the peer has subscribed to here, ``Subscriptions`` those
this side has subscribed to at the peer; after the handshake either side may have both.
"""

from enum import Enum, unique
from typing import Final

from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, MethodError
from polywire.protocols.umq.frames import TopicClose, TopicUpdate, Unsubscribe, violation
from polywire.protocols.umq.ids import IdSequence, check_id

MAX_TOPICS: Final = 1024
MAX_REFUSED: Final = 1024


class Publications:
    """The live topics this side publishes to the peer, at most ``limit``. ``ignored`` counts ``U`` for others."""

    def __init__(self, *, limit: int = MAX_TOPICS) -> None:
        self.limit: Final = limit
        self.ignored = 0
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._live

    def open(self, topic_id: int) -> None:
        """Accept a subscription under the id the peer chose. Raises ``MethodError`` for the ``E`` to answer."""
        if topic_id in self._live:
            raise MethodError(f"topic id {topic_id} is in use", rule="UMQ-96")
        if len(self._live) >= self.limit:
            reason = f"{self.limit} topics are open"
            raise MethodError(reason, rule="UMQ-136", code=FatalCode.LIMIT_EXCEEDED)
        self._live.add(topic_id)

    def update(self, frame: TopicUpdate) -> None:
        """Check an update about to be sent: its topic must be live."""
        if frame.topic_id not in self._live:
            raise LocalProtocolError(f"topic {frame.topic_id} is not open", rule="UMQ-56")

    def close(self, topic_id: int) -> TopicClose | None:
        """End a topic from this side: the ``D`` to send, or None where it is not live."""
        if topic_id not in self._live:
            return None
        self._live.remove(topic_id)
        return TopicClose(topic_id)

    def unsubscribed(self, frame: Unsubscribe) -> TopicClose | None:
        """Note a ``U``: the ``D`` to answer with, or None (counted) where there is no such topic."""
        answer = self.close(frame.topic_id)
        if answer is None:
            self.ignored += 1
        return answer


@unique
class TopicState(Enum):
    """What a subscriber knows of a topic id. ``UNKNOWN`` is not stored."""

    UNKNOWN = "unknown"
    LIVE = "live"
    LEAVING = "leaving"  # U sent, D not yet there
    REFUSED = "refused"  # never subscribed to, U sent

    __hash__ = object.__hash__  # members are looked up for every message, and Enum's own hash is Python code


@unique
class TopicEvent(Enum):
    """What happens to a topic at its subscriber."""

    SUBSCRIBE = "subscribe"
    UPDATE = "T"
    CLOSE = "D"
    LEAVE = "leave"

    __hash__ = object.__hash__  # members are looked up for every message, and Enum's own hash is Python code


@unique
class Action(Enum):
    """What the subscriber does then."""

    DELIVER = "deliver"
    DROP = "drop"
    IGNORE = "ignore and count"
    SEND_UNSUBSCRIBE = "send U"
    END = "end of the stream"


TRANSITIONS: Final[dict[tuple[TopicState, TopicEvent], tuple[TopicState, Action]]] = {
    (TopicState.UNKNOWN, TopicEvent.SUBSCRIBE): (TopicState.LIVE, Action.DELIVER),
    (TopicState.UNKNOWN, TopicEvent.UPDATE): (TopicState.REFUSED, Action.SEND_UNSUBSCRIBE),  # UMQ-101
    (TopicState.UNKNOWN, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.IGNORE),  # UMQ-103
    (TopicState.UNKNOWN, TopicEvent.LEAVE): (TopicState.UNKNOWN, Action.DROP),
    (TopicState.LIVE, TopicEvent.UPDATE): (TopicState.LIVE, Action.DELIVER),  # UMQ-52
    (TopicState.LIVE, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.END),  # UMQ-56
    (TopicState.LIVE, TopicEvent.LEAVE): (TopicState.LEAVING, Action.SEND_UNSUBSCRIBE),  # UMQ-60
    (TopicState.LEAVING, TopicEvent.UPDATE): (TopicState.LEAVING, Action.DROP),  # UMQ-104
    (TopicState.LEAVING, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.END),
    (TopicState.LEAVING, TopicEvent.LEAVE): (TopicState.LEAVING, Action.DROP),
    (TopicState.REFUSED, TopicEvent.UPDATE): (TopicState.REFUSED, Action.DROP),  # UMQ-101: once
    (TopicState.REFUSED, TopicEvent.CLOSE): (TopicState.UNKNOWN, Action.DROP),
    (TopicState.REFUSED, TopicEvent.LEAVE): (TopicState.REFUSED, Action.DROP),
}


class Subscriptions:
    """The topics this side has subscribed to: at most ``limit``, and ``max_refused`` ids it never asked for.

    ``ignored`` counts ``D`` for unknown topics, ``dropped`` the updates that reach nobody.
    """

    def __init__(self, *, limit: int = MAX_TOPICS, max_refused: int = MAX_REFUSED) -> None:
        self.limit: Final = limit
        self.max_refused: Final = max_refused
        self.ignored = 0
        self.dropped = 0
        self._states: dict[int, TopicState] = {}
        self._refused = 0
        self._ids = IdSequence()

    def __len__(self) -> int:
        """How many topics were subscribed to and have not ended."""
        return len(self._states) - self._refused

    def state(self, topic_id: int) -> TopicState:
        """What is known of an id."""
        return self._states.get(topic_id, TopicState.UNKNOWN)

    def open(self, topic_id: int | None = None) -> int:
        """Choose an id, unless one is given, and expect updates on it; to be done before the subscribing call."""
        if len(self) >= self.limit:
            raise LocalProtocolError(f"{self.limit} topics are subscribed to, no more allowed", rule="UMQ-136")
        if topic_id is None:
            topic_id = self._ids.choose(self._states)
        check_id(topic_id)
        if (self.state(topic_id), TopicEvent.SUBSCRIBE) not in TRANSITIONS:
            reason = f"topic id {topic_id} is in use: {self.state(topic_id).value}"
            raise LocalProtocolError(reason, rule="UMQ-53")
        self._apply(topic_id, TopicEvent.SUBSCRIBE)
        return topic_id

    def forget(self, topic_id: int) -> None:
        """Undo ``open``: the subscribing call has failed."""
        if self.state(topic_id) is TopicState.LIVE:
            del self._states[topic_id]

    def leave(self, topic_id: int) -> Unsubscribe | None:
        """The ``U`` to send, or None where there is nothing to leave or it was sent already."""
        return Unsubscribe(topic_id) if self._apply(topic_id, TopicEvent.LEAVE) is Action.SEND_UNSUBSCRIBE else None

    def updated(self, frame: TopicUpdate) -> Action:
        """What to do with a ``T``: deliver it, drop it (counted), or answer with ``U``."""
        if frame.topic_id not in self._states and self._refused >= self.max_refused:
            reason = f"updates on more than {self.max_refused} topics nobody subscribed to"
            raise violation(FatalCode.LIMIT_EXCEEDED, reason, "UMQ-136")
        action = self._apply(frame.topic_id, TopicEvent.UPDATE)
        if action is not Action.DELIVER:
            self.dropped += 1
        return action

    def closed(self, frame: TopicClose) -> Action:
        """What to do with a ``D``: end the stream, or nothing."""
        action = self._apply(frame.topic_id, TopicEvent.CLOSE)
        if action is Action.IGNORE:
            self.ignored += 1
        return action

    def _apply(self, topic_id: int, event: TopicEvent) -> Action:
        before = self.state(topic_id)
        after, action = TRANSITIONS[before, event]
        self._refused += (after is TopicState.REFUSED) - (before is TopicState.REFUSED)
        if after is TopicState.UNKNOWN:
            self._states.pop(topic_id, None)
        else:
            self._states[topic_id] = after
        return action
