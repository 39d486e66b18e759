"""What a fabric needs of the engine below it: who is there, who owns which shard, and how batches get to a node.

NATS is one engine (``nats.py``), the supervisor of workers on one machine another. Both call ``Events``, and are used
through ``Membership``, in the event loop's thread. Nothing here does IO.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from polywire.errors import PolywireError
from polywire.journal.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
"""What names may be made of, as they are parts of those in NATS."""

SHARDS: Final = 64
"""How many shards the queues of a cluster are divided into. It is part of what is stored: it never changes."""


class MembershipError(PolywireError):
    """This node can't be part of its cluster: the engine can't be reached, or another node has its name."""


class Events(Protocol):
    """What a membership reports. None of these may raise, and only ``handing_over`` may wait."""

    def joined(self, node: str, life: int) -> None:
        """A node is there. ``life`` is another number each time it starts."""

    def left(self, node: str, reason: str) -> None:
        """A node has gone: it said so, its lease is over, or its connection is lost for good."""

    def received(self, node: str, batch: bytes) -> None:
        """One whole batch from a node's link."""

    def owners(self, changed: Mapping[int, str | None]) -> None:
        """These shards have another owner, which may be this node. None: nobody at the moment."""

    async def handing_over(self, shards: Collection[int]) -> None:
        """These shards of this node are about to be given to others: stop serving them, and bring them to safety.

        Afterwards ``owners`` says who has them.
        """

    def reachable(self, yes: bool, why: str) -> None:  # noqa: FBT001 - a state, not an option
        """The engine can be reached, or can't."""


class Membership(Protocol):
    """The engine of a fabric. ``node`` is this node's name, ``life`` this start of it, from ``start`` on."""

    node: str
    life: int

    async def start(self, events: Events) -> None:
        """Join. Nodes and owners that are known already are reported before this returns."""

    def send(self, node: str, batch: bytes | memoryview) -> None:
        """Send a batch. It never waits, and what it is given may be lost with a connection: links number batches."""

    def owner(self, shard: int) -> str | None:
        """Who owns a shard now. This node is only named while its lease lasts, by its own clock."""

    def term(self, shard: int) -> int:
        """A number that grows with each change of the shard's owner; 0 where it never had one."""

    async def hand_over(self) -> None:
        """Give the shards to other nodes, where others may have them, and take none from now on."""

    async def retire(self) -> None:
        """Say that nothing is left here, so that no shard has to wait for this node."""

    async def leave(self) -> None:
        """Hand over the shards and say goodbye."""

    async def unsynced(self) -> list[str]:
        """Which parts of the engine may lose what they have acknowledged when the power fails, and why."""

    def status(self) -> dict[str, object]:
        """What operators may want to know: for ``/metrics``, ``/v1/cluster`` and ``polywire cluster status``."""


class LogLost(PolywireError):  # noqa: N818 - it is not this node's fault
    """Another node has taken the log over."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a log: a table of rows that still mean something, the next offset, and up to where requests were done.

    ``seen`` has the number of the last one by the node's name and life.
    """

    rows: "pa.Table"
    next_offset: int
    seen: dict[str, int]


class Log(Protocol):
    """The log of a shard that is kept by the engine, on several machines: ``log.py`` has one in NATS."""

    @property
    def busy(self) -> bool:
        """Whether rows had better be gathered."""

    async def take_over(self, term: int) -> Contents:
        """Become the owner."""

    def append(self, columns: Columns, seen: Mapping[str, int], done: Callable[[], None]) -> None:
        """Write rows."""

    async def flushed(self) -> None:
        """Wait until all is stored."""

    async def close(self) -> None:
        """Write no more."""

    def status(self) -> dict[str, object]:
        """What operators may want to know."""


def shard_of(queue: str) -> int:
    """The shard that a queue belongs to, by its name."""
    return zlib.crc32(queue.encode("utf-8", "surrogatepass")) % SHARDS


def preferred(shard: int, nodes: Iterable[str]) -> str | None:
    """Who of these nodes should own a shard; None if there are none.

    Each node is drawn by lot for each shard, and the highest lot wins (rendezvous hashing): a node that comes or goes
    changes the owners of its own share only, and all nodes agree without asking each other.
    """
    return max(nodes, key=lambda node: _lot(shard, node), default=None)


def _lot(shard: int, node: str) -> bytes:
    return hashlib.blake2b(f"{shard}/{node}".encode(), digest_size=8).digest()
