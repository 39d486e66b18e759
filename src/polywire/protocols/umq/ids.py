"""Ids this side chooses: for its calls, callbacks and subscriptions."""

from collections.abc import Container

from polywire.protocols.umq.base36 import MAX_NUMBER
from polywire.protocols.umq.errors import LocalProtocolError


class IdSequence:
    """Counts upwards from 1, so that an id comes again only after all others, and skips those in use."""

    def __init__(self) -> None:
        self._next = 1

    def choose(self, taken: Container[int]) -> int:
        """An id that is not taken."""
        while self._next in taken:
            self._advance()
        chosen = self._next
        self._advance()
        return chosen

    def _advance(self) -> None:
        self._next = self._next + 1 if self._next < MAX_NUMBER else 1


def check_id(number: int) -> None:
    """Refuse what is no id (UMQ-84)."""
    if not 0 <= number <= MAX_NUMBER:
        raise LocalProtocolError(f"{number} is not an id from 0 to {MAX_NUMBER}", rule="UMQ-84")
