"""Calls in flight, both ways: which ids await an answer.

``C`` and ``B`` of one sender share one space of ids, since their answers look the same (UMQ-99).
"""

from typing import Final, Generic, TypeVar

from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, error_text
from polywire.protocols.umq.frames import Call, Callback, CallException, Result, violation
from polywire.protocols.umq.ids import IdSequence, check_id

MAX_IN_FLIGHT: Final = 1024

T = TypeVar("T")


class IncomingCalls:
    """The peer's requests that this side still has to answer, at most ``limit`` at a time."""

    def __init__(self, *, limit: int = MAX_IN_FLIGHT) -> None:
        self.limit: Final = limit
        self._due: set[int] = set()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._due

    def begin(self, frame: Call | Callback) -> CallException | None:
        """Note a request. Returns what to answer at once where there are too many, else None.

        A request under an id whose answer is still due raises ``RemoteProtocolError``.
        """
        if frame.call_id in self._due:
            reason = f"id {frame.call_id} is used again before its answer"
            raise violation(FatalCode.PROTOCOL_ERROR, reason, "UMQ-99")
        if len(self._due) >= self.limit:
            detail = f"{self.limit} requests are in flight"
            return CallException(frame.call_id, error_text(FatalCode.LIMIT_EXCEEDED, detail))
        self._due.add(frame.call_id)
        return None

    def finish(self, frame: Result | CallException) -> None:
        """Note the answer that is about to be sent: one for each request."""
        if frame.call_id not in self._due:
            raise LocalProtocolError(f"no request {frame.call_id} awaits an answer", rule="UMQ-41")
        self._due.remove(frame.call_id)


class OutgoingCalls(Generic[T]):
    """This side's requests that the peer still has to answer, each with what waits for it.

    Ids count upwards and are not used twice, so the answer to a request that was given up finds nobody. ``ignored``
    counts the answers nobody waited for.
    """

    def __init__(self, *, limit: int = MAX_IN_FLIGHT) -> None:
        self.limit: Final = limit
        self.ignored = 0
        self._waiting: dict[int, T] = {}
        self._ids = IdSequence()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._waiting

    def start(self, waiter: T, call_id: int | None = None) -> int:
        """Note a request about to be sent, under an id of this object's choice unless one is given."""
        if len(self._waiting) >= self.limit:
            raise LocalProtocolError(f"{self.limit} requests await their answer, no more allowed", rule="UMQ-136")
        if call_id is None:
            call_id = self._ids.choose(self._waiting)
        check_id(call_id)
        if call_id in self._waiting:
            raise LocalProtocolError(f"id {call_id} still awaits its answer", rule="UMQ-99")
        self._waiting[call_id] = waiter
        return call_id

    def answered(self, frame: Result | CallException) -> T | None:
        """What waited for this answer, and no longer does, or None (counted) where nobody did."""
        waiter = self._waiting.pop(frame.call_id, None)
        if waiter is None:
            self.ignored += 1
        return waiter

    def abandon(self, call_id: int) -> None:
        """Wait no more; the answer, should it come, will be ignored."""
        self._waiting.pop(call_id, None)

    def drain(self) -> list[T]:
        """All that still wait, for the end of the connection; none do afterwards."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting
