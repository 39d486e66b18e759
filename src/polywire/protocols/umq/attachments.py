"""Which binary message belongs to which text message.

Messages with attachments are numbered 1, 2, … as they come, and what arrives is matched to them first-in-first-out
(UMQ-87). State is one pair of numbers for each message that still waits, whatever counts the peer announces.
"""

from collections import deque
from typing import final

from mypy_extensions import i64


@final
class AttachmentQueue:
    """The attachments that were announced and have not arrived.

    After ``take`` has returned True, ``owner`` and ``index`` say whose attachment it was, and its place in it.
    """

    def __init__(self) -> None:
        self.due: i64 = 0
        self.owner: i64 = 0
        self.index: i64 = 0
        self._announced: i64 = 0
        self._counts: deque[int] = deque()
        self._first: i64 = 1
        self._taken: i64 = 0

    def announce(self, count: i64) -> i64:
        """Expect ``count`` attachments, at least one, of the message whose ordinal this returns."""
        self.due += count
        self._announced += 1
        self._counts.append(count)
        return self._announced

    def take(self) -> bool:
        """Match what arrived with the oldest attachment that is due. False where none is."""
        if self.due == 0:
            return False
        self.owner = self._first
        self.index = self._taken
        self.due -= 1
        self._taken += 1
        if self._taken == self._counts[0]:
            self._counts.popleft()
            self._first += 1
            self._taken = 0
        return True
