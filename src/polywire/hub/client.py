"""A connected client as the hub sees it, independent of its protocol, and what is counted by protocol."""

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from polywire.hub.access import ANONYMOUS, EVERYTHING, Grants, Identity
from polywire.hub.demand import Watcher
from polywire.hub.message import Message
from polywire.hub.outbox import Outbox
from polywire.hub.queues import Consumer, Queue
from polywire.hub.retained import Replay
from polywire.hub.routes import Subscription


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


UNLIMITED: Final = 1 << 60

SLOW_READER: Final = "slow-reader"
UNENCODABLE: Final = "unencodable"
"""Why a client does not get a message: it reads too slowly, or its protocol can't carry the message."""


@final
class Wills:
    """What a client wants published when its connection ends, in the order in which it was sent."""

    def __init__(self) -> None:
        self.size = 0
        """How many bytes the wills hold together."""
        self._messages: Final[list[Message]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message, size: int) -> None:
        """Keep one more, which holds this many bytes."""
        self._messages.append(message)
        self.size += size

    def take(self) -> list[Message]:
        """All of them; none is left."""
        messages = list(self._messages)
        self.clear()
        return messages

    def clear(self) -> None:
        """Forget all of them."""
        self._messages.clear()
        self.size = 0


@final
class Waiter:
    """Someone who is to be told when something is safe: on disk here, and ``open`` promises kept."""

    def __init__(
        self, promises: "Promises", done: Callable[[], None], failed: Callable[[], None], made: list["Promise"]
    ) -> None:
        self.done: Final = done
        self.failed: Final = failed
        self.is_safe = False
        self.open = 0
        self.broken = False
        self.promises: Final = promises
        for each in made:
            if each.broken:
                self.broken = True
            elif not each.kept:
                each.waiter = self
                self.open += 1

    def safe(self) -> None:
        """What was accepted is on disk."""
        self.is_safe = True
        self.promises.settle()

    def unsafe(self) -> None:
        """It can't be written."""
        self.broken = True
        self.promises.settle()


@final
class Promise:
    """Something that an acknowledgement depends on besides the disk, such as another node: kept or broken, once."""

    def __init__(self) -> None:
        self.kept = False
        self.broken = False
        self.waiter: Waiter | None = None

    def keep(self) -> None:
        """It has been done."""
        if not (self.kept or self.broken):
            self.kept = True
            if self.waiter is not None:
                self.waiter.open -= 1
                self.waiter.promises.settle()

    def fail(self) -> None:
        """It can't be done."""
        if not (self.kept or self.broken):
            self.broken = True
            if self.waiter is not None:
                self.waiter.unsafe()


@final
class Promises:
    """What a client waits for, in the order in which it is to be told."""

    def __init__(self, client: "Client") -> None:
        self._client: Final = client
        self._made: list[Promise] = []
        self._line: Final[deque[Waiter]] = deque()
        self._settling = False

    def make(self) -> Promise:
        """One more for the next who waits."""
        promise = Promise()
        self._made.append(promise)
        return promise

    def waiter(self, done: Callable[[], None], failed: Callable[[], None]) -> Waiter:
        """Someone who waits for the promises made since the last one, and for those before."""
        made, self._made = self._made, []
        waiter = Waiter(self, done, failed, made)
        self._line.append(waiter)
        return waiter

    def settle(self) -> None:
        """Tell those whose turn it is."""
        if self._settling:
            return
        self._settling = True
        line = self._line
        try:
            while line:
                first = line[0]
                if first.broken:
                    line.popleft()
                    first.failed()
                elif first.is_safe and first.open == 0:
                    line.popleft()
                    first.done()
                else:
                    break
        finally:
            self._settling = False
        if not line and not self._made and self._client.promises is self:
            self._client.promises = None


@final
class Client:
    """One connection. ``name`` is what the client calls itself, ``identity`` who it proved to be.

    ``number`` is unique while the hub runs; ``protocol`` numbers its protocol for cut-through; ``local``: it
    connected over loopback or a Unix socket.
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
        self.identity: Identity = ANONYMOUS
        self.grants: Grants = EVERYTHING
        self.connected = 0
        self.reason = ""  # why its connection ended, where that was no ordinary end
        self.joined = False
        self.subscriptions: Final[dict[object, Subscription]] = {}
        self.consumers: Final[dict[Consumer, Queue]] = {}
        self.parting: Final[set[Consumer]] = set()  # of these, those that only wait for acknowledgements
        self.watchers: Final[dict[object, Watcher]] = {}
        self.revoked: Final[set[object]] = set()  # of these, and its services, what its rights don't allow any more
        self.most_subscriptions = UNLIMITED  # how many subscriptions, queues, watchers and services it may have in all
        self.most_calls = UNLIMITED  # how many of its calls may be in flight
        self.serves = True  # its services may be called
        self.leaving = False  # its connection has ended
        self.replay: Replay | None = None  # what it is still to get of what it has subscribed to
        self.names_size = 0  # about how many bytes its subscriptions, watchers and services take
        self.reach = 0  # how much its patterns added to the work a publication may cause
        self.demands: Final[dict[str, int]] = {}
        self.wills: Final = Wills()
        self.promises: Promises | None = None  # what its acknowledgements wait for besides the disk
        self.forwards_empty = True  # whether subscribers get what it publishes without a body

    def may_signal(self, channel: str) -> bool:
        """Whether the client may stop the hub: if a rule allows it, or without rules if it is on this machine."""
        return self.local if self.grants.everything else self.grants.may_signal(channel)

    def deliver(self, data: bytes | memoryview, channel: str) -> bool:
        """Write a message of a topic. False where the client reads too slowly for it; either is counted."""
        if self.outbox.offer(data):
            self.counters.messages_out += 1
            return True
        self.too_slow(channel)
        return False

    def deliver_pair(self, first: bytes, second: bytes | memoryview, channel: str) -> bool:
        """As ``deliver``, in two pieces; the second may be shared with other clients."""
        return self._counted(channel, taken=self.outbox.offer_pair(first, second))

    def deliver_all(self, chunks: list[bytes | memoryview], channel: str) -> bool:
        """As ``deliver``, in any number of pieces, which may be shared with other clients."""
        return self._counted(channel, taken=self.outbox.offer_all(chunks))

    def reply(self, chunks: list[bytes | memoryview], channel: str) -> bool:
        """Write a service's reply. False where the client reads too slowly for replies; either is counted."""
        return self._counted(channel, taken=self.outbox.reply_all(chunks))

    def push(self, data: bytes | memoryview) -> None:
        """Write a message that was kept elsewhere until there was room for it, and count it."""
        self.outbox.push(data)
        self.counters.messages_out += 1

    def too_slow(self, channel: str) -> None:
        """Count a message that the client does not get because it reads too slowly."""
        self.counters.drop(SLOW_READER)
        self.outbox.count_dropped(channel, 1)

    def _counted(self, channel: str, *, taken: bool) -> bool:
        if taken:
            self.counters.messages_out += 1
        else:
            self.too_slow(channel)
        return taken

    def __repr__(self) -> str:
        return f"Client({self.number}, {self.counters.protocol}, {self.name or self.address!r})"
