"""MQTT sessions that are kept move to the node that their client connects to.

A client that connects is asked for on all nodes, as its session may be anywhere. A node that has the session ends the
connection that uses it, if there is one, and hands it over:

1. It sends what the session has, keeps it, and collects what comes for it from now on.
2. The new node asks all nodes for an answer: what they publish after that comes to it. It collects from then on, too,
   and needs nothing of what was before, though it may not have wanted that, should they send again what it missed.
3. Then the old node does the same: it has got all that was published before. It sends what it has collected.
4. The new node stores the session and what both have collected, each message once. When that is safe, the old node
   forgets the session, and the client goes on where it was.

Until then the session is the old node's: if one of the two is lost, nothing of it is. Who else asks for it meanwhile is
answered when it has moved, or stays. A node that leaves for good has
the others take its sessions in the same way, and one that comes back with a session that another node has meanwhile
hands over what it has.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol, final

from polywire.fabric.fabric import Fabric, Neighbour
from polywire.fabric.frames import (
    Claim,
    Claimed,
    Extras,
    Outcome,
    Probe,
    Published,
    Record,
    SessionKept,
    SessionSent,
    SessionsHeld,
    message_of,
    published,
)
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.outbox import NOWHERE, Outbox
from polywire.hub.routes import Subscription
from polywire.hub.work import DONE, WAIT, Turns

ASK_SECONDS: Final = 5.0
"""How long a client that connects waits for other nodes at most."""

HELD_AT_ONCE: Final = 500


class Book(Protocol):
    """The sessions of this node, as MQTT's ``kept`` has them."""

    elsewhere: Callable[[str, str, object, bool], int] | None

    def whereabouts(self) -> list[tuple[str, bool, int]]:
        """The client id of each session that is kept, whether its client is connected, and when that changed."""

    def owner_of(self, client_id: str) -> str | None:
        """Whose session this is; None if there is none."""

    def take_over(self, client_id: str) -> None:
        """End the connection that has the session."""

    def must_wait(self, client_id: str, owner: object) -> bool:
        """Whether the session is still being stored; ``owner`` is woken when it is."""

    def pack(self, client_id: str) -> tuple[bytes, tuple[tuple[str, int], ...]] | None:
        """A stored session as bytes, and the patterns of its subscriptions with their QoS; None if there is none."""

    def unpack(self, data: bytes, extras: list[tuple[Message, str, int]]) -> None:
        """Store a session, or add to it if there is one, and what has come for it since."""

    def forget(self, client_id: str) -> None:
        """A stored session is another node's now, or is not to be kept."""


@final
class Collector(Subscription):
    """Collects what comes for one subscription of a session while it is handed over."""

    def __init__(self, pattern: str, qos: int, group: int, hub: Hub, collecting: "Collecting") -> None:
        super().__init__(pattern, Outbox(NOWHERE, hub.flusher), group, rank=qos, counted=False)
        self._collecting: Final = collecting

    def deliver(self, message: Message) -> None:
        """Keep it, unless it is one with QoS 0."""
        qos = min(message.qos, self.rank)
        if qos and not self._collecting.is_early():
            self._collecting.found.append((message, self.pattern, qos))


@final
class Collecting:
    """All that comes for one session.

    ``awaited`` are the nodes that have yet to answer: what they had published before is with the session's old node.
    """

    def __init__(self, hub: Hub, filters: tuple[tuple[str, int], ...]) -> None:
        self.found: Final[list[tuple[Message, str, int]]] = []
        self.awaited: set[str] = set()
        self._hub: Final = hub
        group = hub.next_number()
        self._all: Final = [Collector(pattern, qos, group, hub, self) for pattern, qos in filters if qos]
        for each in self._all:
            hub.table.add(each)

    def is_early(self) -> bool:
        """Whether what is delivered now comes from a node that is awaited."""
        source = self._hub.flusher.source
        return isinstance(source, Neighbour) and source.node in self.awaited

    def end(self) -> None:
        """Collect no more."""
        for each in self._all:
            self._hub.table.discard(each)


@final
class _Probing:
    """Waits until all nodes have answered, or are gone."""

    def __init__(self, nodes: set[str], done: Callable[[], None]) -> None:
        self.nodes: Final = nodes
        self._done: Final = done
        self._called = False

    def settle(self, node: str) -> None:
        """A node has answered, or will never do that."""
        self.nodes.discard(node)
        self.check()

    def check(self) -> None:
        """Go on if nobody is left."""
        if not self.nodes and not self._called:
            self._called = True
            self._done()


@final
class _Asking:
    """One client that connects, or one session that is taken from a node."""

    def __init__(self, number: int, client_id: str, at: int, owner: object) -> None:
        self.number: Final = number
        self.client_id: Final = client_id
        self.at: Final = at
        self.owner: Final = owner  # of the work that waits; None for nobody
        self.outcome = Outcome.NONE
        self.packed = b""
        self.giver = ""
        self.collecting: Collecting | None = None
        self.answers: _Probing | None = None
        self.over = False


@final
class _Giving:
    """A session that another node takes."""

    def __init__(self, client_id: str, node: str, collecting: Collecting) -> None:
        self.client_id: Final = client_id
        self.node: Final = node
        self.collecting: Final = collecting


@final
class Sessions:
    """The part of a fabric that moves sessions."""

    def __init__(self, fabric: Fabric, book: Book) -> None:
        self._fabric: Final = fabric
        self._hub: Final = fabric.hub
        self._book: Final = book
        self._leaves = False  # this node, and so do those in `_leaving`
        self._leaving: Final[set[str]] = set()
        self._last = 0
        self._asking: Final[dict[int, _Asking]] = {}
        self._waiting: Final[dict[object, _Asking]] = {}  # by the owner of the work that waits
        self._giving: Final[dict[tuple[str, int], _Giving]] = {}
        self._deferred: Final[dict[str, list[object]]] = {}  # who waits until a session has moved, by client id
        self._probes: Final[dict[int, _Probing]] = {}
        book.elsewhere = self.ask
        fabric.hand_over_sessions = self.hand_over
        fabric.introductions.append(self._introduce)
        fabric.on_down.append(self._lost)
        fabric.heeds[Claim] = self.heed_claim
        fabric.heeds[Claimed] = self.heed_claimed
        fabric.heeds[SessionSent] = self.heed_session
        fabric.heeds[Probe] = self.heed_probe
        fabric.heeds[Extras] = self.heed_extras
        fabric.heeds[SessionKept] = self.heed_kept
        fabric.heeds[SessionsHeld] = self.heed_held

    def ask(self, client_id: str, user: str, owner: object, clean: bool) -> int:  # noqa: FBT001 - as MQTT asks
        """A client connects: whether it may, or must ``WAIT``. Then the work of ``owner`` is woken, and asks again."""
        known = self._waiting.get(owner)
        if known is not None:
            if not known.over:
                return Outcome.WAIT
            del self._waiting[owner]
            return known.outcome
        nodes = {node for node, each in self._fabric.neighbours.items() if each.link.up}
        if not nodes:
            return Outcome.NONE
        asking = self._begin(client_id, None if clean else owner)
        claim = Claim(asking.number, client_id, user, asking.at, clean)
        if clean:
            del self._asking[asking.number]
        else:
            self._waiting[owner] = asking
            asking.answers = _Probing(nodes, lambda: self._answered(asking))
            self._hub.later(ASK_SECONDS, lambda: self._give_up(asking))
        for node in nodes:
            self._fabric.send(node, claim)
        return Outcome.NONE if clean else Outcome.WAIT

    def hand_over(self) -> bool:
        """This node leaves: let the others take its sessions. False when there is none left, or nobody to take them."""
        self._leaves = True
        known = self._fabric.neighbours
        nodes = sorted(node for node, each in known.items() if each.ready and node not in self._leaving)
        held = [client_id for client_id, live, _ in self._book.whereabouts() if not live]
        if not nodes or not held:
            return False
        moving = {each.client_id for each in self._giving.values()}
        for index, client_id in enumerate(held):
            if client_id not in moving:
                node = nodes[index % len(nodes)]
                self._fabric.send(node, SessionsHeld(((client_id, False, 0),), leaving=True))
        return True

    def heed_claim(self, neighbour: Neighbour, record: Claim) -> None:
        """A client has connected to another node."""
        client_id = record.client_id
        for mine in [each for each in self._asking.values() if each.client_id == client_id]:
            if mine.owner is None:
                continue  # then it is here, or stays where it is
            if (mine.at, self._fabric.membership.node) > (record.at, neighbour.node):
                neighbour.put(Claimed(record.ask, Outcome.NONE))
                return
            mine.outcome = Outcome.TAKEN  # the client has connected there later
            self._finish(mine)
        owner = self._book.owner_of(client_id)
        if owner is not None and record.user is not None and owner != record.user:
            neighbour.put(Claimed(record.ask, Outcome.ANOTHER))
            return
        self._book.take_over(client_id)
        place = ("session", neighbour.node, record.ask)
        self._hub.work.start(place, Turns(lambda: self._give(neighbour, record, place)))

    def heed_claimed(self, neighbour: Neighbour, record: Claimed) -> None:
        """A node has no session, or another user's, or has answered a probe."""
        if record.outcome is Outcome.PROBED:
            probing = self._probes.get(record.ask)
            if probing is not None:
                probing.settle(neighbour.node)
            return
        if record.outcome is Outcome.TAKEN:
            self._end_giving(neighbour.node, record.ask)
            return
        asking = self._asking.get(record.ask)
        if asking is not None:
            if record.outcome is Outcome.ANOTHER:
                asking.outcome = Outcome.ANOTHER
            if asking.answers is not None:
                asking.answers.settle(neighbour.node)
            elif asking.giver == neighbour.node and asking.collecting is None:
                self._finish(asking)

    def heed_session(self, neighbour: Neighbour, record: SessionSent) -> None:
        """A node hands a session over: collect what comes for it from now on."""
        asking = self._asking.get(record.ask)
        if asking is None or asking.collecting is not None:
            neighbour.put(Claimed(record.ask, Outcome.TAKEN))
            return
        asking.packed = record.data
        asking.giver = neighbour.node
        collecting = asking.collecting = Collecting(self._hub, record.filters)
        self._fabric.tell_interest()
        collecting.awaited = self._probe(lambda: self._fabric.send(neighbour.node, Probe(record.ask, last=True)))

    def heed_probe(self, neighbour: Neighbour, record: Probe) -> None:
        """A node wants to know when all that was sent before has arrived, or is the last of a session's two to ask."""
        if not record.last:
            neighbour.mark()
            neighbour.put(Claimed(record.ask, Outcome.PROBED))
            return
        place = (neighbour.node, record.ask)
        if place in self._giving:
            self._probe(lambda: self._send_extras(place))

    def heed_extras(self, neighbour: Neighbour, record: Extras) -> None:
        """What the old node has collected: with that the session is complete."""
        asking = self._asking.get(record.ask)
        if asking is None or asking.collecting is None or asking.giver != neighbour.node:
            return
        asking.collecting.end()
        theirs = [(message_of(each), pattern, qos) for each, pattern, qos in record.messages]
        known = Counter([_key(each[0]) for each in theirs])
        mine: list[tuple[Message, str, int]] = []
        for each in asking.collecting.found:
            key = _key(each[0])
            if known[key] > 0:
                known[key] -= 1
            else:
                mine.append(each)
        self._book.unpack(asking.packed, theirs + mine)
        ask, client_id = record.ask, asking.client_id

        def kept() -> None:
            self._fabric.send(neighbour.node, SessionKept(ask, client_id))

        self._hub.safe(kept, kept)
        asking.collecting = None
        if asking.answers is not None:
            asking.answers.settle(neighbour.node)
        else:
            self._finish(asking)

    def heed_kept(self, neighbour: Neighbour, record: SessionKept) -> None:
        """The session is another node's now."""
        self._end_giving(neighbour.node, record.ask, kept=True)

    def heed_held(self, neighbour: Neighbour, record: SessionsHeld) -> None:
        """A node has these sessions. Take those that belong here, or that it can't keep."""
        if record.leaving:
            self._leaving.add(neighbour.node)
        if self._leaves:
            return
        mine = {client_id: (live, since) for client_id, live, since in self._book.whereabouts()}
        me = self._fabric.membership.node
        taking = {each.client_id for each in self._asking.values() if each.giver == neighbour.node}
        for client_id, live, since in record.sessions:
            if client_id in taking:
                continue
            here = mine.get(client_id)
            if here is None and not record.leaving:
                continue
            if here is None or (*here, me) > (live, since, neighbour.node):
                user = self._book.owner_of(client_id)
                asking = self._begin(client_id, None)
                asking.giver = neighbour.node
                neighbour.put(Claim(asking.number, client_id, user, asking.at, clean=False))

    def _begin(self, client_id: str, owner: object) -> _Asking:
        self._last += 1
        asking = _Asking(self._last, client_id, self._hub.clock(), owner)
        self._asking[self._last] = asking
        return asking

    def _give(self, neighbour: Neighbour, record: Claim, place: object) -> int:
        """Hand a session over, once it is stored."""
        client_id = record.client_id
        if not neighbour.link.up:
            return DONE
        if self._book.must_wait(client_id, place):
            return WAIT
        if self._is_moving(client_id):
            self._deferred.setdefault(client_id, []).append(place)
            return WAIT
        if record.clean:
            self._book.forget(client_id)
            return DONE
        packed = self._book.pack(client_id)
        if packed is None:
            neighbour.put(Claimed(record.ask, Outcome.NONE))
            return DONE
        data, filters = packed
        self._giving[neighbour.node, record.ask] = _Giving(client_id, neighbour.node, Collecting(self._hub, filters))
        neighbour.put(SessionSent(record.ask, data, filters))
        return DONE

    def _is_moving(self, client_id: str) -> bool:
        """Whether a session is about to be another node's, or this one's without a client that wants it here."""
        taking = any(each.client_id == client_id and each.owner is None for each in self._asking.values())
        return taking or any(each.client_id == client_id for each in self._giving.values())

    def _end_giving(self, node: str, ask: int, *, kept: bool = False) -> None:
        """A node has a session now, or does not take it: then it stays here, where it has collected everything too."""
        giving = self._giving.pop((node, ask), None)
        if giving is not None:
            giving.collecting.end()
            if kept:
                self._book.forget(giving.client_id)
            self._moved(giving.client_id)

    def _moved(self, client_id: str) -> None:
        """Answer those who have waited for a session to come to rest."""
        for place in self._deferred.pop(client_id, ()):
            self._hub.work.wake(place)

    def _probe(self, done: Callable[[], object]) -> set[str]:
        """Call ``done`` when all nodes have answered: what they had sent before has arrived.

        Returns those that have not, which become fewer.
        """
        self._last += 1
        number = self._last

        def settled() -> None:
            del self._probes[number]
            done()

        nodes = {node for node, each in self._fabric.neighbours.items() if each.ready}
        probing = _Probing(nodes, settled)
        self._probes[number] = probing
        for node in list(nodes):
            self._fabric.send(node, Probe(number))
        probing.check()
        return nodes

    def _send_extras(self, place: tuple[str, int]) -> None:
        giving = self._giving.get(place)
        if giving is not None:
            found = giving.collecting.found
            messages: tuple[tuple[Published, str, int], ...] = tuple(
                [(published(message, offset=False), pattern, qos) for message, pattern, qos in found]
            )
            self._fabric.send(giving.node, Extras(place[1], messages))

    def _answered(self, asking: _Asking) -> None:
        """All nodes have answered."""
        if asking.collecting is None:
            self._finish(asking)

    def _give_up(self, asking: _Asking) -> None:
        if not asking.over:
            self._hub.warn("session", f"the session of MQTT client {asking.client_id[:64]!r} could not be looked for")
            self._finish(asking)

    def _finish(self, asking: _Asking) -> None:
        if asking.over:
            return
        asking.over = True
        self._asking.pop(asking.number, None)
        if asking.collecting is not None:
            asking.collecting.end()
            asking.collecting = None
            self._fabric.send(asking.giver, Claimed(asking.number, Outcome.TAKEN))
        if asking.owner is not None:
            self._hub.work.wake(asking.owner)
        self._moved(asking.client_id)

    def _introduce(self, _neighbour: Neighbour) -> Iterator[Record]:
        held = self._book.whereabouts()
        for start in range(0, len(held), HELD_AT_ONCE):
            yield SessionsHeld(tuple(held[start : start + HELD_AT_ONCE]))

    def _lost(self, node: str) -> None:
        self._leaving.discard(node)
        for giving_to, ask in list(self._giving):
            if giving_to == node:
                self._end_giving(node, ask)
        for asking in list(self._asking.values()):
            if asking.giver == node and asking.collecting is not None:
                asking.collecting.end()
                asking.collecting = None
            if asking.answers is not None:
                asking.answers.settle(node)
            elif asking.giver == node:
                self._finish(asking)
        for probing in list(self._probes.values()):
            probing.settle(node)


def _key(message: Message) -> tuple[str, int, int, bytes]:
    """What two copies of a message have in common that went different ways."""
    return message.channel, message.origin, message.time, message.body
