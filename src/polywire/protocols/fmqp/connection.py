"""One end of an FMQP connection, without input and output: what may arrive there, and what may be sent.

FMQP has no handshake, no answers and no closing message, so a connection has no states. What it has are two ends that
may not do the same: only clients subscribe, and only the broker publishes to feedback topics.
"""

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.fmqp.errors import LocalProtocolError
from polywire.protocols.fmqp.frames import MAX_BODY, Decoder, Publication, Subscription, Unsubscription, encode
from polywire.wire.frame import RAW_KEPT, Discarded, Frame, Role, Run

NO_ROUTES: Final[dict[bytes, object]] = {}
POSITION_UNKNOWN: Final = -1


def no_route(_topic: bytes) -> object | None:
    """Have every publication as a frame."""
    return None


@final
class Connection:
    """One end of a connection. ``max_body``: longer bodies are skipped and discarded."""

    def __init__(self, role: Role, *, max_body: int = MAX_BODY) -> None:
        self._accepts: Final = role is Role.SERVER
        self._decoder: Final = Decoder(max_body=max_body)
        self._events: list[Frame | Run] = []  # decoded, from `_next` on not yet returned by ``next_event``
        self._next: i64 = 0

    def receive(
        self,
        data: bytes,
        routes: dict[bytes, object] = NO_ROUTES,
        resolve: Callable[[bytes], object | None] = no_route,
    ) -> None:
        """Decode what the other end has sent; ``next_event`` returns it.

        ``routes`` and ``resolve`` are those of ``Decoder.feed_runs``. With them, plain publications are ``Run`` events.
        """
        events = self._decoder.feed_runs(data, routes, resolve)
        self._events = events if self._next == len(self._events) else self._events[self._next :] + events
        self._next = 0

    def next_event(self) -> Frame | Run | None:
        """The next packet, or None until more data is received. What breaks a rule is ``Discarded`` (FMQP-35)."""
        if self._next == len(self._events):
            self._events = []  # a chunk that runs are part of is not kept until more comes
            self._next = 0
            return None
        event = self._events[self._next]
        self._next += 1
        if isinstance(event, Run):
            return event
        rule, reason = _problem(event, by_client=self._accepts)
        if not rule:
            return event
        packet = encode(event)
        return Discarded(rule, reason, POSITION_UNKNOWN, packet[:RAW_KEPT], len(packet))

    def send(self, frame: Frame) -> bytes:
        """The packet of a frame. Raises ``LocalProtocolError`` if this end may not send it."""
        rule, reason = _problem(frame, by_client=not self._accepts)
        if rule:
            raise LocalProtocolError(reason, rule=rule)
        return encode(frame)

    def pending(self) -> int:
        """How many bytes of an unfinished packet are held."""
        return self._decoder.pending()


def _problem(frame: Frame, *, by_client: bool) -> tuple[str, str]:
    """The rule that a frame from this end breaks, and how; empty if there is none."""
    if by_client:
        if isinstance(frame, Publication) and frame.feedback:
            return "FMQP-31", "only the broker publishes to feedback topics"
    elif isinstance(frame, Subscription | Unsubscription):
        return "FMQP-02", "only clients subscribe and unsubscribe"
    return "", ""
