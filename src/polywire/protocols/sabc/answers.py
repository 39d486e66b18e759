"""The hub's answers to an sABC client's messages: OK once a message is safe, or ERROR at once."""

from collections.abc import Callable
from typing import Final, final

from polywire.hub.hub import Hub
from polywire.hub.refusal import Refused
from polywire.protocols.sabc import errors
from polywire.protocols.sabc.frames import Whole
from polywire.protocols.sabc.line import Line

KEPT: Final = 256
"""How many answers that were written may stay in front of those that are due."""


@final
class Answers:
    """The acknowledgements due to one client, in the order of its messages. ``written`` is told of each."""

    def __init__(self, hub: Hub, line: Line, written: Callable[[], None]) -> None:
        self._hub: Final = hub
        self._line: Final = line
        self._written: Callable[[], None] | None = written
        self._due: Final[list[tuple[str, bytes]]] = []  # by msg-id
        self._first = 0  # those before it have been written; most often all have, and an empty list is small

    def __len__(self) -> int:
        return len(self._due) - self._first

    def accept(self, whole: Whole) -> None:
        """Answer OK as soon as what was accepted is safe (SABC-54), unless the client wants no answer."""
        msg_id = whole.msg_id
        if msg_id is not None and not whole.send_only:
            self._due.append((msg_id, self._line.ok(msg_id, truncated=whole.truncated)))
            self._hub.safe(self._safe, self._failed)

    def refuse(self, whole: Whole, code: str, reason: str, counted: str) -> None:
        """Answer ERROR, even to a message that wants no answer, and count it."""
        self._line.client.counters.drop(counted)
        self._line.error(code, reason, whole.msg_id)

    def end(self) -> None:
        """Nobody is there to be answered, or told, any more."""
        self._clear()
        self._written = None

    def _safe(self) -> None:
        if self._due:
            self._line.write(self._next()[1])
            self._tell()

    def _failed(self) -> None:
        if self._due:
            self._line.client.counters.drop(Refused.UNAVAILABLE.label)
            self._line.error(errors.DRAINING, Refused.UNAVAILABLE.message, self._next()[0])
            self._tell()

    def _tell(self) -> None:
        if self._written is not None:
            self._written()

    def _clear(self) -> None:
        self._due.clear()
        self._first = 0

    def _next(self) -> tuple[str, bytes]:
        """The oldest answer that is due."""
        answer = self._due[self._first]
        self._first += 1
        if self._first == len(self._due):
            self._clear()
        elif self._first >= KEPT:
            del self._due[: self._first]
            self._first = 0
        return answer
