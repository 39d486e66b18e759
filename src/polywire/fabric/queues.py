"""Queues of a fabric: each belongs to a shard, each shard to a node, which hands out the messages.

The owner uses the hub's own ``Queue``. Every other node with clients that consume has a queue of the same name, whose
messages are *on loan*: the owner treats that node as one consumer, gives it as many messages as it has asked for, and
learns what has become of each.

What the clients of other nodes do (put, acknowledge, reject) are *requests*: each node numbers those for a shard, keeps
them until the owner has confirmed that they are safe, and sends them again to the next owner. The owner records up to
which number it has done them, together with what they did, so each is done once, whoever owns the shard meanwhile.

With replicas, what happens in a shard is recorded in its log (``log.py``), which the next owner reads; a message's
place in its queue is its offset there, the same for every owner. Without, it is recorded in the owner's journal, and
the shard waits for its owner if that is lost. A message's place is its offset in the journal then. What was not on disk
when the owner was killed is gone, and others have its places.

A new owner announces itself (``Owning``). Each node answers with the requests that are not confirmed, then with what
its consumers hold (``Resume``); until all have answered nothing is handed out, so nothing is delivered twice, or too
early.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, cast, final

import msgspec

from polywire.fabric.fabric import Fabric
from polywire.fabric.frames import (
    ABANDONED,
    ACKNOWLEDGED,
    REJECTED,
    UNTOUCHED,
    UNWANTED,
    Done,
    Given,
    Leave,
    LoanEnded,
    Owning,
    Put,
    Record,
    Resume,
    Want,
    message_of,
    published,
)
from polywire.fabric.membership import Contents, Log, LogLost, Membership, shard_of
from polywire.hub.client import Client, Promise
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Message
from polywire.hub.peer import Refused
from polywire.hub.queues import UNACKNOWLEDGED, Consumer, Delivery, Lender, Queue, Sharing, footprint
from polywire.hub.recorder import Recorder
from polywire.hub.recorder import message_of as message_of_row
from polywire.journal.kinds import NO_PROTOCOL
from polywire.journal.state import to_json

CREDIT: Final = 32
"""Messages on loan to a node beyond those that its consumers have."""

RESUME_SECONDS: Final = 2.0
"""How long a new owner waits for the answers of nodes that seem to be there."""

STALE_SECONDS: Final = 1.0
"""How long a message waits at a node whose consumers have no room before it goes back."""

RETRY_SECONDS: Final = 1.0

REQUESTS_PREFIX: Final = "requests:"
"""Begins the names under which an owner's journal says up to where requests were done."""
SHARED: Final = "requests"
"""Where the hub keeps that, in ``Hub.shared``."""

log = logging.getLogger("polywire.fabric")


Request = Put | LoanEnded


class Links(Protocol):
    """The links to other nodes."""

    def send_queue(self, node: str, record: Record) -> None:
        """Send a record to a node that is there: in order, and reliably unless its link begins again."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """``open_log`` makes the log of a shard, None without replicas; its last parameter is called when it is lost.

    ``refuse``: what can't be confirmed soon is refused, instead of waiting. ``buffer`` is how many bytes may wait.
    """

    open_log: Callable[[int, Callable[[str], None]], Log] | None = None
    refuse: bool = False
    buffer: int = 4 * 1024 * 1024


@dataclass(slots=True)
class _Kept:
    """A request that is not confirmed. ``settled`` is told whether it was done."""

    request: Request
    size: int
    settled: Callable[[Refused | None], None] | None = None


@dataclass(slots=True)
class _Requests:
    """What this node wants of a shard that another one owns, or nobody at the moment."""

    kept: deque[_Kept] = field(default_factory=deque)
    last: int = 0
    owner: str | None = None  # who has announced itself
    term: int = 0


class _Due(NamedTuple):
    """What is to be told once rows are stored, or the shard is lost before."""

    done: Callable[[], None]
    failed: Callable[[], None]


@dataclass(slots=True)
class _Owned:
    """A shard that this node owns. It is ``ready`` to take requests, and ``serving`` once it hands out messages."""

    shard: int
    term: int
    log: Log | None = None
    recorder: Recorder | None = None
    ready: bool = False
    serving: bool = False
    leaving: bool = False
    awaited: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    fresh: dict[str, int] = field(default_factory=dict)  # of these, what the next batch of rows has done
    refused: dict[str, dict[int, str]] = field(default_factory=dict)
    due: "list[_Due]" = field(default_factory=list)  # what waits for the rows that come next
    sent: "deque[list[_Due]]" = field(default_factory=deque)  # and for those that were sent
    planned: bool = False


class _Borrower(Consumer):
    """Another node, as a consumer of a queue that this one owns."""

    def __init__(self, queues: "Queues", node: str) -> None:
        super().__init__(choosy=True)
        self.node: Final = node
        self.credit = 0
        self.refused: Final[set[int]] = set()  # the places of messages that no consumer there wants
        self._queues: Final = queues

    def room(self) -> bool:
        """Whether it has asked for more."""
        return self.credit > 0

    def wants(self, message: Message) -> bool:  # noqa: ARG002 - the queue knows which it is
        """Whether it is not known to refuse the message."""
        return self.queue.offered not in self.refused

    def take(self, delivery: Delivery) -> None:
        """Send it there."""
        self.credit -= 1
        self._queues.give(self.node, delivery)


class _Loans(Lender):
    """What becomes of the messages that other nodes have given to this one."""

    def __init__(self, queues: "Queues") -> None:
        super().__init__()
        self._queues: Final = queues

    def changed(self, queue: Queue) -> None:
        """Ask for messages, or for none."""
        self._queues.consumers_changed(queue)

    def hungry(self, queue: Queue) -> None:
        """Ask for what was given back."""
        self._queues.ask_again(queue)

    def taken(self, delivery: Delivery) -> None:
        """Ask for another one."""
        self._queues.ask(delivery.queue, 1)

    def acknowledged(self, delivery: Delivery) -> None:
        """Tell the owner."""
        self._queues.loan_ended(delivery, ACKNOWLEDGED)

    def rejected(self, delivery: Delivery, delay: float, reason: str) -> None:
        """Tell the owner."""
        self._queues.loan_ended(delivery, REJECTED, delay, reason)

    def abandoned(self, delivery: Delivery, *, counted: bool) -> None:
        """Tell the owner."""
        self._queues.loan_ended(delivery, ABANDONED if counted else UNTOUCHED)

    def unwanted(self, delivery: Delivery) -> None:
        """Tell the owner."""
        self._queues.loan_ended(delivery, UNWANTED)


@dataclass(slots=True)
class _Stage:
    """A queue whose messages are on loan here. ``wanted`` is what its owner is to be asked for at the end of the turn.

    ``owed`` is what it is to be asked for once somebody has room, after messages were given back; ``loans`` has the
    term of each message, ``lender`` is who has given them.
    """

    queue: Queue
    asked: bool = False
    wanted: int = 0
    fresh: bool = False
    owed: int = 0
    planned: bool = False
    watched: bool = False
    loans: dict[int, int] = field(default_factory=dict)
    lender: str = ""


@final
class Queues(Sharing):
    """The queues of one node. ``hub.sharing`` is set to this."""

    def __init__(self, hub: Hub, membership: Membership, links: Links, settings: QueueSettings) -> None:
        super().__init__()
        self._hub: Final = hub
        self._membership: Final = membership
        self._links: Final = links
        self._settings: Final = settings
        self._nodes: Final[dict[str, int]] = {}
        self._owned: Final[dict[int, _Owned]] = {}
        self._requests: Final[dict[int, _Requests]] = {}
        self._stages: Final[dict[str, _Stage]] = {}
        self._borrowers: Final[dict[tuple[str, str], _Borrower]] = {}
        self._loans: Final = _Loans(self)
        self._kept_size = 0
        self._reachable = True
        self.introducing = False
        """Whether nodes are there that have not said what they have: until then nothing is handed out."""
        self._first = 0 if hub.recorder is None else hub.recorder.next_offset()
        """Where the places begin that are new since this node was started."""
        self._jobs: Final[set[asyncio.Task[None]]] = set()
        self._protocols: Final = {counters.protocol: code for code, counters in enumerate(hub.counters)}
        self._idle = asyncio.Event()
        self.duplicates = 0
        self.faults: Final[dict[str, int]] = {}
        hub.sharing = self
        for queue in list(hub.queues.values()):  # what the hub's own journal has
            queue.fence = _never
            if settings.open_log is not None:
                self._lend(queue)
                self._move_out(queue)

    # What the hub asks for.

    def owns(self, name: str) -> bool:
        """Whether this node owns the queue's shard by its own clock, and has read its log."""
        shard = shard_of(name)
        owned = self._owned.get(shard)
        return owned is not None and owned.ready and self._membership.owner(shard) == self._membership.node

    def made(self, queue: Queue) -> None:
        """The hub has created a queue: it is one of this node's own, or its messages are on loan."""
        shard = shard_of(queue.name)
        owned = self._owned.get(shard)
        if owned is not None and owned.ready:
            self._own(queue, owned)
        else:
            self._lend(queue)

    def refusal(self, name: str, message: Message) -> Refused | None:
        """Why a message can't be taken: what waits for another node, or for NATS, is too much, or is not to wait."""
        shard = shard_of(name)
        if self._settings.refuse and not self._is_served(shard):
            return Refused.UNAVAILABLE
        owned = self._owned.get(shard)
        if owned is None or not owned.ready:
            waiting = self._kept_size
        else:
            waiting = 0 if owned.recorder is None else owned.recorder.pending()
        return Refused.UNAVAILABLE if waiting + footprint(message) > self._settings.buffer else None

    def record(self, name: str, message: Message, client: object) -> int:
        """The row in the hub's journal, if that is what the shard is recorded in."""
        owned = self._owned.get(shard_of(name))
        recorder = self._hub.recorder
        if owned is None or owned.recorder is not None or recorder is None or not self.owns(name):
            return -1
        return recorder.enqueued(message, cast("Client", client))

    def put(self, name: str, message: Message, client: object, *, acknowledged: bool) -> bool:
        """Put a client's message into a queue of another node, or record it in this one's log."""
        publisher = cast("Client", client)
        if not self.owns(name):
            promise = self._hub.promise(publisher) if acknowledged else None
            settled = partial(self._publisher_told, publisher, promise, name, int(message.offset))
            request = partial(
                Put, message=published(message), protocol=publisher.counters.protocol, client=publisher.name
            )
            self._ask_owner(shard_of(name), request, message.size(), settled)
            return True
        owned = self._owned[shard_of(name)]
        if owned.recorder is not None:
            if message.offset >= 0:
                owned.due.append(_Due(partial(self._moved_out, name, int(message.offset), None), _nothing))
            elif self._hub.recorder is not None:
                self._hub.recorder.replicated(message, publisher.protocol, publisher.number, publisher.name)
            message.offset = owned.recorder.enqueued(message, publisher)
            if acknowledged:
                promise = self._hub.promise(publisher)
                owned.due.append(_Due(promise.keep, promise.fail))
        return False

    def move(self, delivery: Delivery, message: Message) -> bool:
        """Put a dead letter into its queue, wherever that is; then it leaves its own."""
        name = message.channel[len(QUEUE_PREFIX) :]
        if self.refusal(name, message) is not None:
            return False
        settled = partial(self._moved, delivery)
        self._ask_owner(shard_of(name), partial(Put, message=published(message)), message.size(), settled)
        return True

    def _moved(self, delivery: Delivery, refused: Refused | None) -> None:
        """A dead letter is where it belongs, or was refused: then it waits again in its own queue."""
        queue = delivery.queue
        if refused is None:
            if queue.on_ack is not None:
                queue.on_ack(queue.name, delivery.message.offset)
            return
        self._hub.warn("dead letter", f"a message of the queue {queue.name!r} can't be moved: {refused.message}")
        queue.insert(delivery.message, delivery.number, delivery.attempts)

    def _publisher_told(
        self, client: Client, promise: Promise | None, name: str, offset: int, refused: Refused | None
    ) -> None:
        """A client's message is safe in its queue, or was refused. Where it had a row here, that is not needed now."""
        if offset >= 0:
            self._moved_out(name, offset, None)
        if refused is not None:
            client.counters.drop(refused.label)
        if promise is not None:
            if refused is None:
                promise.keep()
            else:
                promise.fail()

    def _is_served(self, shard: int) -> bool:
        """Whether somebody owns the shard and can be reached."""
        owner = self._membership.owner(shard)
        if owner == self._membership.node:
            owned = self._owned.get(shard)
            return owned is not None and owned.ready and (owned.log is None or self._reachable)
        requests = self._requests.get(shard)
        return owner is not None and owner in self._nodes and requests is not None and requests.owner == owner

    # What the fabric reports.

    def joined(self, node: str, life: int) -> None:
        """A node is there. Its link may not be up yet: ``linked`` is called when it is."""
        self._nodes[node] = life

    def linked(self, node: str) -> None:
        """The link to a node has begun, or begun again: what was sent over an earlier one may be lost.

        What the node has on loan stays with it until it has said what its consumers hold.
        """
        for owned in self._owned.values():
            if owned.ready:
                self._announce(owned, node)

    def introduced(self) -> None:
        """All nodes that are there have said what they have."""
        self.introducing = False
        for owned in list(self._owned.values()):
            self._answered(owned, "")

    def left(self, node: str) -> None:
        """A node has gone: what it had on loan is handed out again."""
        self._nodes.pop(node, None)
        self._end_loans_of(node)
        for requests in self._requests.values():
            if requests.owner == node:
                requests.owner = None
        for owned in list(self._owned.values()):
            self._answered(owned, node)

    def _announce(self, owned: _Owned, node: str) -> None:
        """Tell a node, perhaps again, who owns a shard. It sends again what is not confirmed, and what it holds."""
        if any(name == node and shard_of(queue) == owned.shard for name, queue in self._borrowers):
            owned.serving = False
            owned.awaited.add(node)
            self._hub.later(RESUME_SECONDS, partial(self._serve, owned))
            self._end_loans_of(node, owned.shard)
        elif not owned.serving:
            owned.awaited.add(node)
        self._send(node, self._owning(owned))

    def _owning(self, owned: _Owned) -> Owning:
        return Owning(owned.shard, owned.term, self._first if owned.log is None else 0)

    def _end_loans_of(self, node: str, shard: int = -1) -> None:
        """Take back what a node has on loan: all of it, or that of one shard."""
        for key in [key for key in self._borrowers if key[0] == node and shard in {-1, shard_of(key[1])}]:
            borrower = self._borrowers.pop(key)
            borrower.leaving = True  # what it did not acknowledge is not held against a message
            borrower.queue.detach(borrower)

    def reachable(self, *, yes: bool) -> None:
        """The engine can be reached, or can't."""
        self._reachable = yes

    def owners(self, changed: Mapping[int, str | None]) -> None:
        """Shards have other owners."""
        me = self._membership.node
        for shard, node in changed.items():
            owned = self._owned.get(shard)
            term = self._membership.term(shard)
            if node == me and (owned is None or owned.term != term):
                if owned is not None:
                    self._disown(owned)
                self._take_over(shard, term)
            elif node == me and owned is not None:
                self._go_on(owned)
            elif node is not None and owned is not None:
                self._disown(owned)

    def _go_on(self, owned: _Owned) -> None:
        """The shard is this node's as before: the lease was over for a moment, or it was to go and nobody took it."""
        if owned.leaving:  # then nothing was done for others in the meantime
            owned.leaving = False
            for each in self._nodes:
                self._announce(owned, each)
            self._answered(owned, "")
        self._dispatch(owned)
        self._send_requests(owned.shard)

    async def handing_over(self, shards: Collection[int]) -> None:
        """Shards of this node are about to be given away: hand out nothing more, and store what was done."""
        leaving = [owned for shard in shards if (owned := self._owned.get(shard)) is not None]
        for owned in leaving:
            owned.leaving = True
            self._flush(owned)
        for owned in leaving:
            if owned.log is None:
                await self._journal_written()
            else:
                while (owned.due or owned.sent) and self._owned.get(owned.shard) is owned:
                    self._flush(owned)
                    await owned.log.flushed()
                    await asyncio.sleep(0)

    async def _journal_written(self) -> None:
        """Wait until what was done is in the hub's journal, and confirmed: the next owner does not know of it."""
        while True:
            written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._hub.safe(partial(written.set_result, True), partial(written.set_result, False))  # noqa: FBT003
            if await written:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def received(self, node: str, record: Record) -> None:
        """A node has sent a record about queues."""
        if isinstance(record, Put | LoanEnded):
            self._requested(node, record)
        elif isinstance(record, Done):
            self._confirmed(node, record)
        elif isinstance(record, Given):
            self._lent(record)
        elif isinstance(record, Want | Leave):
            self._wanted(node, record)
        elif isinstance(record, Owning):
            self._announced(node, record)
        elif isinstance(record, Resume):
            self._resumed(node, record)

    async def settled(self, seconds: float) -> bool:
        """Give back what is on loan, and wait until no request is open any more. False if that takes too long."""
        for stage in self._stages.values():
            self._give_back(stage)
        try:
            async with asyncio.timeout(seconds):
                while any(each.kept for each in self._requests.values()):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def is_empty_handed(self) -> bool:
        """Whether no message is here that another node would need."""
        if any(each.kept for each in self._requests.values()):
            return False
        mine = [queue for shard in self._owned for queue in self._queues_of(shard)]
        return self._settings.open_log is not None or not any(len(queue) for queue in mine)

    async def stop(self) -> None:
        """End what is being done. The shards were handed over before."""
        for job in list(self._jobs):
            job.cancel()
        for owned in list(self._owned.values()):
            if owned.log is not None:
                await owned.log.close()

    def status(self) -> dict[str, object]:
        """What operators may want to know."""
        shards = {
            shard: {
                "term": owned.term,
                "ready": owned.ready,
                "serving": owned.serving,
                "queues": len(self._queues_of(shard)),
                **({} if owned.log is None else {"log": owned.log.status()}),
            }
            for shard, owned in sorted(self._owned.items())
        }
        return {
            "owned": shards,
            "unconfirmed": sum(len(each.kept) for each in self._requests.values()),
            "unconfirmed_bytes": self._kept_size,
            "duplicates": self.duplicates,
            "faults": dict(self.faults),
        }

    # Owning a shard.

    def _take_over(self, shard: int, term: int) -> None:
        owned = _Owned(shard, term)
        self._owned[shard] = owned
        if self._settings.open_log is None:
            self._begin(owned)
        else:
            job = asyncio.get_running_loop().create_task(self._open(owned, self._settings.open_log))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _open(self, owned: _Owned, open_log: Callable[[int, Callable[[str], None]], Log]) -> None:
        """Read the shard's log, again and again until that works or somebody else owns it."""
        while self._owned.get(owned.shard) is owned:
            owned.log = open_log(owned.shard, partial(self._log_lost, owned))
            try:
                contents = await owned.log.take_over(owned.term)
            except LogLost as error:
                log.info("shard %d: %s", owned.shard, error)
                self._owned.pop(owned.shard, None)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the shard must not stay without an owner
                log.warning("the log of shard %d can't be read, trying again: %s", owned.shard, error)
                await owned.log.close()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if self._owned.get(owned.shard) is owned:
                    self._restore(owned, contents)
                    self._begin(owned)
                return

    def _restore(self, owned: _Owned, contents: Contents) -> None:
        """Put the messages of a log into their queues."""
        owned.recorder = Recorder(contents.next_offset, self._hub.clock, partial(self._plan, owned))
        for name, number in contents.seen.items():
            node, is_refusal, refused = name.partition("!")
            if is_refusal:
                owned.refused.setdefault(node, {})[int(refused)] = Refused.QUEUE_FULL.name
            else:
                owned.seen[node] = number
        messages: dict[int, Message] = {}
        attempts: dict[int, int] = {}
        for row in contents.rows.to_pylist():
            if row["kind"] == "enqueue":
                messages[row["offset"]] = message_of_row(row)
            elif row["kind"] == "nack":
                attempts[int(row["correlation"])] = msgspec.json.decode(row["headers"])["deliveries"]
        for queue in self._queues_of(owned.shard):
            self._own(queue, owned)
        owned.ready = True
        for offset, message in messages.items():
            queue = self._hub.queue(message.channel[len(QUEUE_PREFIX) :])
            queue.insert(message, offset, attempts.get(offset, 0))

    def _begin(self, owned: _Owned) -> None:
        """Take requests, and ask all nodes what their consumers hold."""
        owned.ready = True
        for queue in self._queues_of(owned.shard):
            self._own(queue, owned)
        owned.awaited = set(self._nodes)
        for node in self._nodes:
            self._send(node, self._owning(owned))
        if owned.log is None:
            self._recall_requests(owned)
        requests = self._requests.setdefault(owned.shard, _Requests())
        requests.owner, requests.term = self._membership.node, owned.term
        self._send_requests(owned.shard)
        self._hub.later(RESUME_SECONDS, partial(self._serve, owned))
        self._answered(owned, "")

    def _recall_requests(self, owned: _Owned) -> None:
        """What was done before this node started again, as its journal says."""
        for name, (number, refused) in requests_done(self._hub).items():
            shard, _, origin = name.partition(":")
            if int(shard) == owned.shard:
                owned.seen[origin] = number
                owned.refused[origin] = dict.fromkeys(refused, Refused.QUEUE_FULL.name)

    def _own(self, queue: Queue, owned: _Owned) -> None:
        """Make a queue one whose messages this node hands out."""
        stage = self._stages.pop(queue.name, None)
        if stage is not None:
            queue.recall()
            if owned.log is None:
                queue.disown()
        queue.lender = None
        queue.fence = partial(self._may_hand_out, owned)
        if owned.recorder is not None:
            queue.by_offset = True  # and all its messages come from the log
            queue.on_ack = owned.recorder.dequeued
            queue.on_return = owned.recorder.returned
        elif self._hub.recorder is not None:
            queue.place_by_offset()
            queue.on_ack = self._hub.recorder.dequeued
            queue.on_return = self._hub.recorder.returned

    def _may_hand_out(self, owned: _Owned) -> bool:
        node = self._membership.node
        return owned.serving and not owned.leaving and self._membership.owner(owned.shard) == node

    def _disown(self, owned: _Owned) -> None:
        """Another node owns the shard now, or it is to be read again."""
        self._owned.pop(owned.shard, None)
        requests = self._requests.get(owned.shard)
        if requests is not None:
            requests.owner = None
        queues = self._queues_of(owned.shard)
        for queue in queues:
            queue.fence = _never
        for key in [key for key in self._borrowers if shard_of(key[1]) == owned.shard]:
            borrower = self._borrowers.pop(key)
            borrower.leaving = True
            borrower.queue.detach(borrower)
        for queue in queues:
            stage = self._lend(queue)
            stage.loans.update(dict.fromkeys(queue.held(), owned.term))
            stage.lender = self._membership.node
            if owned.log is None:
                self._move_out(queue)
            else:
                queue.recall()  # they are in the log
            if queue.idle():
                self._stages.pop(queue.name, None)
                self._hub.forget_queue(queue.name)
        waiting = [*(each for sent in owned.sent for each in sent), *owned.due]
        owned.sent.clear()
        owned.due.clear()
        for each in waiting:
            each.failed()
        if owned.log is not None:
            job = asyncio.get_running_loop().create_task(owned.log.close())
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    def _log_lost(self, owned: _Owned, why: str) -> None:
        """The log can't be written. If the shard is this node's nevertheless, it is read again."""
        if self._owned.get(owned.shard) is owned:
            log.warning("shard %d: %s", owned.shard, why)
            self._disown(owned)
            membership = self._membership
            if membership.owner(owned.shard) == membership.node and membership.term(owned.shard) == owned.term:
                self._take_over(owned.shard, owned.term)

    def _serve(self, owned: _Owned) -> None:
        """Begin to hand out."""
        if self._owned.get(owned.shard) is owned and not owned.serving:
            owned.serving = True
            owned.awaited.clear()
            self._dispatch(owned)

    def _dispatch(self, owned: _Owned) -> None:
        for queue in self._queues_of(owned.shard):
            queue.dispatch()

    def _answered(self, owned: _Owned, node: str) -> None:
        owned.awaited.discard(node)
        if owned.ready and not owned.awaited and not self.introducing:
            self._serve(owned)

    def _queues_of(self, shard: int) -> list[Queue]:
        return [queue for queue in self._hub.queues.values() if shard_of(queue.name) == shard]

    # Requests of other nodes, and of this one from before it owned the shard.

    def _requested(self, node: str, request: Request) -> None:
        owned = self._owned.get(request.shard)
        if owned is None or not owned.ready or owned.leaving:
            return  # it is sent again to whoever owns the shard
        origin = f"{node}/{self._life(node)}"
        if origin not in owned.seen:
            self._forget_earlier_lives(owned, node)
        if owned.log is None and self._hub.recorder is not None:
            self._hub.recorder.together(on=True)  # with the note that it was done; see _flush
        refused = owned.refused.setdefault(origin, {})
        for number in [number for number in refused if number < request.first]:
            del refused[number]
        if request.number <= owned.seen.get(origin, 0):
            self.duplicates += 1
        else:
            reason = self._apply(owned, node, request)
            owned.seen[origin] = owned.fresh[origin] = request.number
            if reason is not None:
                refused[request.number] = reason.name
                owned.fresh[f"{origin}!{request.number}"] = request.number
        owned.due.append(_Due(partial(self._confirm, owned, node, request.number), _nothing))
        self._plan(owned)

    def _forget_earlier_lives(self, owned: _Owned, node: str) -> None:
        """A node that has started again sends nothing of what it wanted before."""
        for origin in [each for each in owned.seen if each.rpartition("/")[0] == node]:
            del owned.seen[origin]
            owned.refused.pop(origin, None)
            name = f"{owned.shard}:{origin}"
            if requests_done(self._hub).pop(name, None) is not None and self._hub.recorder is not None:
                self._hub.recorder.session(NO_PROTOCOL, REQUESTS_PREFIX + name, "", kept=False, clean=True)

    def _life(self, node: str) -> int:
        return self._membership.life if node == self._membership.node else self._nodes.get(node, 0)

    def _apply(self, owned: _Owned, node: str, request: Request) -> Refused | None:
        if isinstance(request, Put):
            return self._apply_put(owned, request)
        queue = self._hub.queues.get(request.queue)
        if queue is None or (owned.log is None and request.term != owned.term and not self._has_kept(request)):
            return None
        borrower = self._borrowers.get((node, request.queue))
        delivery = None if borrower is None else borrower.pending.get(request.place)
        if request.how == ACKNOWLEDGED:
            queue.settle(request.place)
        elif delivery is not None and borrower is not None:
            if request.how == UNWANTED:
                borrower.refused.add(request.place)
            if request.how == UNTOUCHED:
                borrower.credit = 0  # it asks again when it has room
            if request.how in {UNTOUCHED, UNWANTED}:
                queue.give_back(delivery)
            else:
                reason = UNACKNOWLEDGED if request.how == ABANDONED else request.reason
                queue.nack(delivery, request.delay, reason)
        return None

    def _has_kept(self, request: LoanEnded) -> bool:
        """Whether this node has given a message in an earlier life, and still has it at that place."""
        return request.lender == self._membership.node and request.place < self._first

    def _apply_put(self, owned: _Owned, request: Put) -> Refused | None:
        message = message_of(request.message)
        name = message.channel[len(QUEUE_PREFIX) :]
        hub = self._hub
        if not hub.takes_queue(message.channel):
            return Refused.TOO_MANY_QUEUES
        queue = hub.queue(name)
        if request.attempts < 0 and not queue.has_room(message):
            return Refused.QUEUE_FULL
        if request.attempts < 0 and hub.queue_totals.size + footprint(message) > hub.queue_totals.most:
            return Refused.QUEUES_FULL
        recorder = owned.recorder if owned.recorder is not None else hub.recorder
        if recorder is not None:
            protocol = self._protocols.get(request.protocol, NO_PROTOCOL)
            if owned.recorder is not None and hub.recorder is not None and request.attempts < 0:
                hub.recorder.replicated(message, protocol, message.origin, request.client)
            message.offset = recorder.enqueued_elsewhere(message, protocol, request.client)
        delivery = queue.enter(message)
        if request.attempts > 0:
            delivery.attempts = request.attempts
        return None

    def _plan(self, owned: _Owned) -> None:
        """Store what was done when the turn of the loop ends."""
        if not owned.planned:
            owned.planned = True
            self._hub.soon(partial(self._flush, owned))

    def _flush(self, owned: _Owned) -> None:
        owned.planned = False
        if owned.log is None:
            due, owned.due = owned.due, []
            self._note_done(owned)
            if due:
                self._hub.safe(partial(_all, due), partial(self._not_safe, owned, due))
            return
        if owned.recorder is None or owned.log.busy:
            return  # it is done when a batch is stored
        batches = owned.recorder.take()
        due, owned.due = owned.due, []
        for index, columns in enumerate(batches):
            is_last = index == len(batches) - 1
            owned.sent.append(due if is_last else [])
            owned.log.append(columns, owned.fresh if is_last else {}, partial(self._stored, owned))
        if batches:
            owned.fresh = {}
        elif owned.sent:
            owned.sent[-1].extend(due)
        else:
            _all(due)

    def _note_done(self, owned: _Owned) -> None:
        """Write into the hub's journal up to where requests were done."""
        recorder = self._hub.recorder
        if recorder is None:
            owned.fresh.clear()
            return
        for origin in [each for each in owned.fresh if "!" not in each]:
            refused = list(owned.refused.get(origin, {}))
            name = f"{owned.shard}:{origin}"
            requests_done(self._hub)[name] = (owned.fresh[origin], refused)
            about = to_json({"refused": refused}) if refused else ""
            recorder.applied(REQUESTS_PREFIX + name, str(owned.fresh[origin]), about)
        owned.fresh.clear()
        recorder.together(on=False)

    def _not_safe(self, owned: _Owned, due: list[_Due]) -> None:
        """The hub's journal can't be written: what waits for it waits on."""
        owned.due = [*due, *owned.due]
        self._hub.later(RETRY_SECONDS, partial(self._plan, owned))

    def _stored(self, owned: _Owned) -> None:
        if owned.sent:
            _all(owned.sent.popleft())
        if self._owned.get(owned.shard) is owned:
            self._flush(owned)

    def _confirm(self, owned: _Owned, node: str, number: int) -> None:
        if self._owned.get(owned.shard) is owned:
            refused = owned.refused.get(f"{node}/{self._life(node)}", {})
            found = {each: why for each, why in refused.items() if each <= number}
            self._send(node, Done(owned.shard, number, found))

    # Requests of this node.

    def _ask_owner(
        self,
        shard: int,
        request: Callable[..., Request],
        size: int,
        settled: Callable[[Refused | None], None] | None = None,
    ) -> None:
        """Make a request, and keep it until it is confirmed."""
        requests = self._requests.setdefault(shard, _Requests())
        requests.last += 1
        first = requests.kept[0].request.number if requests.kept else requests.last
        made = request(shard=shard, first=first, number=requests.last)
        requests.kept.append(_Kept(made, size, settled))
        self._kept_size += size
        if requests.owner is not None:
            self._send(requests.owner, made)

    def _send_requests(self, shard: int) -> None:
        """Send again all requests that are not confirmed."""
        requests = self._requests.get(shard)
        if requests is not None and requests.owner is not None:
            for kept in list(requests.kept):
                self._send(requests.owner, kept.request)

    def _confirmed(self, node: str, record: Done) -> None:
        requests = self._requests.get(record.shard)
        if requests is None or requests.owner != node:
            return
        kept = requests.kept
        while kept and kept[0].request.number <= record.number:
            done = kept.popleft()
            self._kept_size -= done.size
            if done.settled is not None:
                why = record.refused.get(done.request.number)
                done.settled(None if why is None else Refused.__members__.get(why, Refused.UNAVAILABLE))
        if not kept:
            self._idle.set()

    def _announced(self, node: str, record: Owning) -> None:
        """A node owns a shard: it gets all requests that are not confirmed, what is held, and what is wanted."""
        requests = self._requests.setdefault(record.shard, _Requests())
        if record.term < requests.term:
            return
        is_new = record.term != requests.term
        requests.owner, requests.term = node, record.term
        held: dict[str, list[int]] = {}
        for queue in self._queues_of(record.shard):
            known = self._stages.get(queue.name)
            stage = self._lend(queue)
            if known is not stage:  # nobody has owned it since this hub has it
                self._move_out(queue)
            queue.recall()  # what is on loan and has not been handed out: the owner has it too
            if is_new and self._settings.open_log is None:
                queue.disown(record.first if stage.lender == node else 0)
            stage.lender = node
            places = queue.held()
            stage.loans = dict.fromkeys(places, record.term)
            if places:
                held[queue.name] = places
        self._send_requests(record.shard)
        self._send(node, Resume(record.shard, record.term, held))
        for name in [name for name in self._stages if shard_of(name) == record.shard]:
            stage = self._stages[name]
            stage.asked, stage.owed, stage.wanted = False, 0, 0
            self.consumers_changed(stage.queue)

    def _move_out(self, queue: Queue) -> None:
        """Messages wait here that only this node's journal has: put them into the queue where that is now."""
        for delivery in queue.recall():
            message = delivery.message
            request = partial(Put, message=published(message), attempts=delivery.attempts)
            settled = partial(self._moved_out, queue.name, int(message.offset))
            self._ask_owner(shard_of(queue.name), request, message.size(), settled)

    def _moved_out(self, name: str, offset: int, refused: Refused | None) -> None:
        if refused is None and self._hub.recorder is not None:
            self._hub.recorder.dequeued(name, offset)

    # Lending and borrowing.

    def _lend(self, queue: Queue) -> _Stage:
        """Make a queue one whose messages are on loan, if it is not."""
        stage = self._stages.get(queue.name)
        if stage is not None and stage.queue is queue:
            return stage
        stage = _Stage(queue)
        self._stages[queue.name] = stage
        queue.lender = self._loans
        queue.on_ack = queue.on_return = None
        queue.fence = None
        queue.by_offset = False
        self.consumers_changed(queue)
        return stage

    def consumers_changed(self, queue: Queue) -> None:
        """Consumers have come or gone, or want other messages."""
        stage = self._stages.get(queue.name)
        if stage is None or stage.queue is not queue:
            if queue.lender is self._loans and queue.consumers():
                self._lend(queue)
            return
        if queue.consumers():
            stage.fresh = True
            self.ask(queue, 0 if stage.asked else CREDIT)
            stage.asked = True
        elif stage.asked:
            stage.asked, stage.wanted, stage.owed = False, 0, 0
            self._give_back(stage)
            self._tell_owner(queue.name, Leave(queue.name))
            if not queue.held():
                del self._stages[queue.name]

    def ask(self, queue: Queue, count: int) -> None:
        """Ask the owner for so many messages more, when the turn of the loop ends."""
        stage = self._stages.get(queue.name)
        if stage is not None:
            stage.wanted += count
            if not stage.planned:
                stage.planned = True
                self._hub.soon(partial(self._ask_now, stage))

    def ask_again(self, queue: Queue) -> None:
        """Ask for messages instead of those that were given back, if a consumer has room now."""
        stage = self._stages.get(queue.name)
        if stage is not None and stage.owed and queue.roomy():
            owed, stage.owed = stage.owed, 0
            self.ask(queue, owed)

    def _ask_now(self, stage: _Stage) -> None:
        stage.planned = False
        if stage.asked and self._stages.get(stage.queue.name) is stage and (stage.wanted or stage.fresh):
            wanted, stage.wanted = stage.wanted, 0
            fresh, stage.fresh = stage.fresh, False
            self._tell_owner(stage.queue.name, Want(stage.queue.name, wanted, fresh))

    def _tell_owner(self, name: str, record: Record) -> None:
        requests = self._requests.get(shard_of(name))
        if requests is not None and requests.owner is not None:
            self._send(requests.owner, record)

    def _give_back(self, stage: _Stage) -> None:
        """Give back what waits for consumers here."""
        for delivery in stage.queue.recall():
            self.loan_ended(delivery, UNTOUCHED)

    def loan_ended(self, delivery: Delivery, how: int, delay: float = 0.0, reason: str = "") -> None:
        """Tell the owner what has become of a message."""
        queue = delivery.queue
        stage = self._stages.get(queue.name)
        term = None if stage is None else stage.loans.pop(delivery.number, None)
        if term is None:
            return
        lender = "" if stage is None else stage.lender
        request = partial(
            LoanEnded, queue=queue.name, term=term, place=delivery.number, how=how, delay=delay, reason=reason,
            lender=lender,
        )  # fmt: skip
        self._ask_owner(shard_of(queue.name), request, 64)
        if how in {UNTOUCHED, UNWANTED} and stage is not None and stage.asked:
            if how == UNWANTED:
                self.ask(queue, 1)
            else:
                stage.owed = CREDIT

    def _lent(self, record: Given) -> None:
        """A message has come on loan."""
        requests = self._requests.get(shard_of(record.queue))
        if requests is None or record.term != requests.term:
            return  # from an owner that is none any more
        queue = self._hub.queues.get(record.queue)
        stage = self._stages.get(record.queue)
        if queue is None or stage is None or not stage.asked:
            shard = shard_of(record.queue)
            untouched = partial(LoanEnded, queue=record.queue, term=record.term, place=record.place, how=UNTOUCHED)
            self._ask_owner(shard, untouched, 64)
            return
        stage.loans[record.place] = record.term
        stage.lender = requests.owner or ""
        message = message_of(record.message)
        message.offset = -1
        queue.insert(message, record.place, record.attempts - 1)
        if queue.waiting() and not stage.watched:
            stage.watched = True
            self._hub.later(STALE_SECONDS, partial(self._look_after, stage, record.place))

    def _look_after(self, stage: _Stage, place: int) -> None:
        """Give back what waits, if the message that came first still does."""
        stage.watched = False
        queue = stage.queue
        if self._stages.get(queue.name) is not stage or not queue.waiting():
            return
        if queue.waits(place):
            self._give_back(stage)
        else:
            stage.watched = True
            self._hub.later(STALE_SECONDS, partial(self._look_after, stage, queue.first_place()))

    def _wanted(self, node: str, record: Want | Leave) -> None:
        """A node's consumers want messages of a queue that this one owns."""
        key = (node, record.queue)
        borrower = self._borrowers.get(key)
        if isinstance(record, Leave):
            if borrower is not None:
                self._return_all(key, borrower)
            return
        if not self._is_mine(record.queue) or node not in self._nodes:
            return
        if borrower is None:
            borrower = self._borrow(node, record.queue)
        borrower.credit += record.credit
        if record.fresh:
            borrower.refused.clear()
            borrower.queue.reconsider()
        else:
            borrower.queue.dispatch()

    def _return_all(self, key: tuple[str, str], borrower: _Borrower) -> None:
        del self._borrowers[key]
        borrower.leaving = True
        borrower.queue.detach(borrower)
        if borrower.queue.idle():
            self._hub.forget_queue(borrower.queue.name)

    def _is_mine(self, name: str) -> bool:
        owned = self._owned.get(shard_of(name))
        return owned is not None and owned.ready

    def _borrow(self, node: str, name: str) -> _Borrower:
        queue = self._hub.queue(name)
        borrower = _Borrower(self, node)
        self._borrowers[node, name] = borrower
        queue.admit(borrower)
        queue.resume(borrower)
        return borrower

    def give(self, node: str, delivery: Delivery) -> None:
        """Lend a message to a node."""
        name = delivery.queue.name
        owned = self._owned[shard_of(name)]
        given = Given(name, owned.term, delivery.number, delivery.attempts, published(delivery.message))
        self._send(node, given)

    def _resumed(self, node: str, record: Resume) -> None:
        """A node has said what its consumers hold."""
        owned = self._owned.get(record.shard)
        if owned is None or owned.term != record.term:
            return
        for name, places in record.held.items():
            if shard_of(name) == record.shard:
                queue = self._hub.queue(name)
                borrower = self._borrowers.get((node, name)) or self._borrow(node, name)
                for place in places:
                    queue.hand_back(place, borrower)
        self._answered(owned, node)

    def _send(self, node: str, record: Record) -> None:
        if node == self._membership.node:
            self._received_here(record)
        elif node in self._nodes:
            self._links.send_queue(node, record)

    def _received_here(self, record: Record) -> None:
        """A record of this node to itself: a request from before it owned the shard, or the answer."""
        if isinstance(record, Put | LoanEnded):
            self._requested(self._membership.node, record)
        elif isinstance(record, Done):
            self._confirmed(self._membership.node, record)


def requests_done(hub: Hub) -> dict[str, tuple[int, list[int]]]:
    """Up to where requests were done, by shard and origin, and which of the last ones were refused."""
    return cast("dict[str, tuple[int, list[int]]]", hub.shared.setdefault(SHARED, {}))


@final
class _FabricLinks:
    """The links of a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric: Final = fabric

    def send_queue(self, node: str, record: Record) -> None:
        """Send a record; where there is no link, another one will begin."""
        self._fabric.send(node, record)


def share_queues(fabric: Fabric, settings: QueueSettings) -> Queues:
    """Share a hub's queues with the other nodes of a fabric that has not started. Its journal is restored before."""
    queues = Queues(fabric.hub, fabric.membership, _FabricLinks(fabric), settings)

    def up(node: str) -> None:
        queues.joined(node, fabric.neighbours[node].life)
        queues.linked(node)

    for kind in (Put, LoanEnded, Done, Want, Leave, Given, Owning, Resume):
        fabric.heeds[kind] = lambda neighbour, record: queues.received(neighbour.node, record)
    fabric.on_up.append(up)
    fabric.on_down.append(queues.left)
    fabric.on_owners = queues.owners
    fabric.on_handing_over = queues.handing_over
    fabric.on_reachable.append(lambda yes, _: queues.reachable(yes=yes))
    return queues


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


def _all(due: list[_Due]) -> None:
    for each in due:
        each.done()
