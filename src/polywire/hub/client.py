"""A connected client as the hub sees it, whatever protocol it speaks."""

from typing import Final, final

from polywire.hub.counters import Counters
from polywire.hub.grants import ALL, Grants
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.routes import Subscription


@final
class Client:
    """One connection. ``name`` is what the client calls itself, ``user`` who it proved to be.

    ``number`` is unique while the hub runs; ``protocol`` numbers its protocol for cut-through; ``local`` tells that
    it came by loopback or a Unix socket.
    """

    def __init__(
        self, number: int, protocol: int, outbox: Outbox, counters: Counters, address: str = "", *, local: bool = True
    ) -> None:
        self.number: Final = number
        self.protocol: Final = protocol
        self.outbox: Final = outbox
        self.counters: Final = counters
        self.address: Final = address
        self.local: Final = local
        self.name = ""
        self.user = ""
        self.grants: Grants = ALL
        self.connected = 0
        self.joined = False
        self.subscriptions: Final[dict[object, Subscription]] = {}
        self.demands: Final[dict[str, int]] = {}
        self.wills: Final[dict[str, Message]] = {}

    def __repr__(self) -> str:
        return f"Client({self.number}, {self.counters.protocol}, {self.name or self.address!r})"
