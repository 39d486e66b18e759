"""What the other side has subscribed to here, and whether a message is for it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from polywire.protocols.micromsg.errors import FORBIDDEN
from polywire.protocols.micromsg.filters import Filter, covers, matches, no_such_destination
from polywire.protocols.micromsg.frames import Error
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.text import Value

if TYPE_CHECKING:
    from polywire.protocols.micromsg.peer.peer import Peer

Subscribed = Callable[["Peer", str, Filter | None], None]
"""Told of each ``subscribe`` (with its filter) and ``unsubscribe`` (None); raises ``Failure`` to refuse."""


class Audience:
    """The destinations one peer has subscribed to, at most ``limit``, each with its filter."""

    def __init__(self, peer: "Peer", told: Subscribed | None, *, limit: int) -> None:
        self.subscriptions: dict[str, Filter] = {}
        self._peer = peer
        self._told = told
        self._limit = limit

    def take(self, destination: str, condition: Filter | None) -> Error | None:
        """Subscribe, or without a filter unsubscribe; or the ERROR to answer with."""
        known = destination in self.subscriptions
        if condition is None and not known:
            return no_such_destination(destination)  # MICROMSG-134
        if not known and len(self.subscriptions) >= self._limit:
            return Failure(FORBIDDEN, limit=str(self._limit)).frame(destination=destination)
        try:
            if self._told is not None:
                self._told(self._peer, destination, condition)
        except Failure as failure:
            return failure.frame(destination=destination)
        if condition is None:
            del self.subscriptions[destination]
        else:
            self.subscriptions[destination] = condition
        return None

    def wants(self, destination: str, properties: Mapping[str, Value]) -> bool:
        """Whether a message like this is for the other side."""
        for subscribed, condition in self.subscriptions.items():
            if covers(subscribed, destination) and matches(condition, dict(properties)):
                return True
        return False
