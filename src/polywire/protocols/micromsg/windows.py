"""Sequence numbers and acks: one window for what this side sends, one for what it receives.

Each direction of a connection counts for itself. A window of 0 means that no acks were agreed on: numbers are counted
all the same, and nothing waits. With ``ack`` the window is 1, with ``batch-ack`` the agreed count. What the peer did
wrong comes as the ERROR frame to answer with, and changes nothing.
"""

from typing import Final, final

from mypy_extensions import i64

from polywire.protocols.micromsg.errors import BAD_ACK, BAD_FRAME, WINDOW_EXCEEDED, LocalProtocolError
from polywire.protocols.micromsg.frames import Error, Extension
from polywire.protocols.micromsg.text import LARGEST_COUNT

LAST: Final = 65535  # MICROMSG-118: followed by 1
LONGEST_DELAY: Final = 0xFFFF_FFFF
"""Milliseconds that a nack can say."""


def following(number: int) -> int:
    """The sequence number behind another."""
    return 1 if number == LAST else number + 1


def distance(earlier: i64, later: i64) -> i64:
    """How many numbers on from ``earlier`` is ``later``, across the wrap (MICROMSG-69)."""
    steps = later - earlier
    return steps if steps >= 0 else steps + LAST


def ack(number: int, sequence: int) -> Extension:
    """MICROMSG-67: the frame that acknowledges, with ``number`` the one of the ack extension."""
    return Extension(number, sequence.to_bytes(2, "big"))


def read_ack(payload: bytes) -> int | Error:
    """The sequence number in an ack, or the ERROR to answer with."""
    if len(payload) != 2:
        return _error(BAD_FRAME, f"an ack has a payload of 2 octets, not of {len(payload)}")
    return int.from_bytes(payload, "big")


def nack(number: int, sequence: int, delay: float, reason: str) -> Extension:
    """MICROMSG-196: the frame that rejects a message, with ``number`` the one of ``x-nack``."""
    milliseconds = min(max(0, round(delay * 1000)), LONGEST_DELAY)
    payload = sequence.to_bytes(2, "big") + milliseconds.to_bytes(4, "big")
    return Extension(number, payload + reason.encode(errors="replace"))


def read_nack(payload: bytes) -> tuple[int, float, str] | Error:
    """The sequence number, the delay in seconds and the reason in a nack, or the ERROR to answer with."""
    if len(payload) < 6:
        return _error(BAD_FRAME, f"a nack has a payload of at least 6 bytes, not of {len(payload)}")
    delay = int.from_bytes(payload[2:6], "big") / 1000
    return int.from_bytes(payload[:2], "big"), delay, payload[6:].decode(errors="replace")


@final
class SendWindow:
    """The numbers of what this side sends. ``size``: how many messages may be unacknowledged, 0 for no acks."""

    def __init__(self, size: int = 0) -> None:
        self._size: i64 = _checked(size)
        self._sent: i64 = LAST
        self._acked: i64 = LAST
        self._pending: i64 = 0

    def is_open(self) -> bool:
        """Whether another message may be sent now."""
        return self._size == 0 or self._pending < self._size

    def pending(self) -> int:
        """How many messages are sent and not acknowledged; 0 where there are no acks."""
        return self._pending

    def due(self) -> int:
        """The number the next message will have."""
        return 1 if self._sent == LAST else self._sent + 1

    def take(self) -> int:
        """The number of the message to be sent. Raises ``LocalProtocolError`` while the window is closed."""
        if not self.is_open():
            reason = f"{self._pending} messages are unacknowledged, {self._size} are allowed"
            raise LocalProtocolError(reason, rule="MICROMSG-06")
        self._sent = 1 if self._sent == LAST else self._sent + 1
        if self._size:
            self._pending += 1
        return self._sent

    def place(self, sequence: int) -> int | Error:
        """How many messages that wait for an ack were sent before this one, or the ERROR ``bad-ack``."""
        count: i64 = distance(self._acked, sequence) if 1 <= sequence <= LAST else 0
        if not 1 <= count <= self._pending:
            return _error(BAD_ACK, f"message {sequence} is not one of the {self._pending} that wait for an ack")
        return count - 1

    def acked(self, sequence: int) -> int | Error:
        """How many messages an ack of this number acknowledges, or the ERROR ``bad-ack``."""
        count: i64 = distance(self._acked, sequence) if 1 <= sequence <= LAST else 0
        if not 1 <= count <= self._pending:
            return _error(BAD_ACK, f"message {sequence} is not one of the {self._pending} that wait for an ack")
        self._acked = sequence
        self._pending -= count
        return count


@final
class ReceiveWindow:
    """The numbers of what the peer sends. ``size`` as for ``SendWindow``."""

    def __init__(self, size: int = 0) -> None:
        self._size: i64 = _checked(size)
        self._received: i64 = LAST
        self._acked: i64 = LAST
        self._pending: i64 = 0

    def pending(self) -> int:
        """How many messages came and were not acknowledged; 0 where there are no acks."""
        return self._pending

    def received(self, sequence: int) -> Error | None:
        """Count a message, or the ERROR ``bad-frame`` or ``window-exceeded``."""
        due: i64 = 1 if self._received == LAST else self._received + 1
        if sequence != due:
            return _error(BAD_FRAME, f"message {sequence} came where {due} was due")
        if self._size:
            if self._pending >= self._size:
                return _error(WINDOW_EXCEEDED, f"message {sequence} came while {self._pending} wait for their ack")
            self._pending += 1
        self._received = due
        return None

    def acknowledge(self, sequence: int) -> int:
        """Count an ack this side sends; how many messages it acknowledges. Raises ``LocalProtocolError``."""
        count: i64 = distance(self._acked, sequence) if 1 <= sequence <= LAST else 0
        if not 1 <= count <= self._pending:
            raise LocalProtocolError(f"message {sequence} does not wait for an ack", rule="MICROMSG-128")
        self._acked = sequence
        self._pending -= count
        return count


def _checked(size: int) -> i64:
    if not 0 <= size <= LARGEST_COUNT:
        raise LocalProtocolError(f"a window of {size} messages, allowed are 0 to {LARGEST_COUNT}", rule="MICROMSG-113")
    return size


def _error(name: str, reason: str) -> Error:
    return Error(name, (("reason", reason),))
