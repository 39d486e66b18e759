"""Which messages of a session are unfinished, how large each is so far, and which are being dropped.

The size limit counts all frames of a message (SABC-62), and the number of unfinished messages is limited (SABC-108).
So a decoder asks here, before it holds a body, how many octets the next frame may still have.
"""

from typing import Final, final

from mypy_extensions import i64

DROP: Final = -1


@final
class Unfinished:
    """The unfinished messages of one session, by key."""

    def __init__(self, max_message: int, max_unfinished: int, max_dropped: int) -> None:
        self.max_message = max_message
        self.max_unfinished: Final[int] = max_unfinished
        self.max_dropped: Final[int] = max_dropped
        self._total: i64 = 0
        self._sizes: dict[str, int] = {}
        # Only hashes are kept of the messages being dropped, so that their number and not their ids bounds the memory.
        self._dropped: set[int] = set()

    def idle(self) -> bool:
        """Whether every message so far is complete."""
        return not self._sizes and not self._dropped

    def allowance(self, key: str) -> i64:
        """How many octets the next frame of this message may have, or ``DROP``."""
        if self._dropped and hash(key) in self._dropped:
            return DROP
        return self.max_message - self._sizes.get(key, 0)

    def too_much(self, size: i64) -> bool:
        """SABC-131: whether a further frame of this size is more than all unfinished messages may have together."""
        return self._total + size > 2 * self.max_message

    def grow(self, key: str, size: i64) -> bool:
        """Count a frame that is not the last. False where the message would be one too many."""
        known = self._sizes.get(key)
        if known is None:
            if len(self._sizes) >= self.max_unfinished:
                return False
            known = 0
        self._sizes[key] = known + size
        self._total += size
        return True

    def end(self, key: str) -> None:
        """The message has come to its real end."""
        self._total -= self._sizes.pop(key, 0)
        self._dropped.discard(hash(key))

    def drop(self, key: str) -> bool:
        """Drop what is still to come of this message. False where too many are being dropped already."""
        self._total -= self._sizes.pop(key, 0)
        self._dropped.add(hash(key))
        return len(self._dropped) <= self.max_dropped
