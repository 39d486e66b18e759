"""What the hub counts, by protocol. Plain integers; ``server.metrics`` exports them."""

from typing import Final, final

from mypy_extensions import i64


@final
class Counters:
    """One protocol's numbers since the start.

    ``received`` counts every publication that clients sent, also those that were discarded, and last wills when they
    were sent. ``messages_in`` counts those that were accepted, and last wills when they were published.
    """

    def __init__(self, protocol: str) -> None:
        self.protocol: Final = protocol
        self.connections: i64 = 0
        self.connected: i64 = 0
        self.received: i64 = 0
        self.messages_in: i64 = 0
        self.messages_out: i64 = 0
        self.octets_in: i64 = 0
        self.octets_out: i64 = 0
        self.oversized: i64 = 0
        self.dropped: Final[dict[str, int]] = {}
        self.denied: Final[dict[str, int]] = {}
        self.faults: Final[dict[str, int]] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """``count`` messages went nowhere."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def deny(self, action: str) -> None:
        """The access rules did not allow this action."""
        self.denied[action] = self.denied.get(action, 0) + 1

    def fault(self, reason: str) -> None:
        """Something broke a rule."""
        self.faults[reason] = self.faults.get(reason, 0) + 1
