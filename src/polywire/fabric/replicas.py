"""What every node has a copy of, or a part in: retained messages, demand, and the number of clients.

**Retained messages**: each node keeps all of them, and journals its copies. Of two messages for a channel the later
one counts, by the time of day of the node it was published on and then by the name of that node; a channel that was
cleared is remembered for a while, so that an older message does not come back. A change goes to all nodes. When a link
is set up, each end sends all it has.

**Demand**: each node counts its own clients. The clients of a node that watch the demand for some topics make it ask
the others for their part in it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final, final

from polywire.fabric.calls import Calls
from polywire.fabric.fabric import Fabric, Neighbour, Settings
from polywire.fabric.frames import RETAIN, Clients, Counted, Kept, Published, Record, Watched, message_of, published
from polywire.fabric.membership import Membership
from polywire.fabric.resend import Archive
from polywire.fabric.sessions import Sessions
from polywire.hub.channels import REST
from polywire.hub.demand import Watcher
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.retained import OWN
from polywire.hub.work import DONE, MORE, Turns
from polywire.protocols.mqtt.kept import sessions_of
from polywire.registry import by_name

CLEARED_KEPT: Final = 100_000
"""Channels that were cleared and are remembered; the one cleared longest ago is forgotten first."""

TOPICS_AT_ONCE: Final = 200
"""Topics of a node that is gone whose demand is corrected in one step."""

MICROSECOND: Final = 1000

Version = tuple[int, str]


@final
class Retention:
    """The versions of retained messages. Those that are not noted are of this node, and as old as the message."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric: Final = fabric
        self._hub: Final = fabric.hub
        self._node: Final = fabric.membership.node
        self._versions: Final[dict[str, Version]] = {}
        self._cleared: Final[OrderedDict[str, Version]] = OrderedDict()
        self.outdated = 0  # copies that came later than a newer one
        self._missed: Final[dict[str, OrderedDict[str, None]]] = {}  # by node: channels whose change it did not get
        self._hub.on_keep = self.kept
        fabric.replicates = True
        fabric.ticks.append(self._repeat)
        fabric.on_down.append(self._lost)
        fabric.introductions.append(self._introduce)
        fabric.heeds[Kept] = self.heed

    def kept(self, message: Message, forwarded: bool) -> None:  # noqa: FBT001 - as the hub calls it
        """A client of this node has changed what a channel retains."""
        channel = message.channel
        if channel.startswith(OWN):
            return
        known = self._versions.get(channel) or self._cleared.get(channel)
        micros = message.time // MICROSECOND
        version = (micros if known is None else max(micros, known[0] + 1), self._node)
        self._note(message, version)
        for node, neighbour in self._fabric.neighbours.items():
            if neighbour.link.up and not self._send(neighbour, message, version, forwarded=forwarded):
                self._missed.setdefault(node, OrderedDict())[channel] = None

    def _send(self, neighbour: Neighbour, message: Message, version: Version, *, forwarded: bool) -> bool:
        """Send a node what is retained, for its clients as well unless it is behind. False: it is to be repeated."""
        remote = neighbour.remote
        if not (forwarded and remote.is_live()):
            return neighbour.offer(Kept(published(message), version))
        if neighbour.offer(Kept(remote.record_of(message), version, fresh=True)):
            return True
        if message.offset >= 0 and message.qos and self._fabric.archive is not None:
            neighbour.fall_behind(int(message.offset))  # its clients get it from the journal
        return False

    def heed(self, neighbour: Neighbour, record: Kept) -> None:
        """A channel retains something else on another node."""
        message = message_of(record.message)
        if record.version > self._version(message.channel):
            message.offset = -1
            if self._hub.retained.keep(message):
                self._note(message, record.version)
                recorder = self._hub.recorder
                if recorder is not None:
                    recorder.copied(message, record.version[1])
        else:
            self.outdated += 1
        if record.fresh and self._fabric.heard.is_new(neighbour.node, record.message.offset):
            self._hub.deliver_here(message)

    def _lost(self, node: str) -> None:
        self._missed.pop(node, None)

    def _version(self, channel: str) -> Version:
        """The version of what a channel retains, or of its clearing."""
        found = self._versions.get(channel) or self._cleared.get(channel)
        if found is not None:
            return found
        message = self._hub.retained.get(channel)
        return (-1, "") if message is None else (message.time // MICROSECOND, self._node)

    def _note(self, message: Message, version: Version) -> None:
        channel = message.channel
        self._cleared.pop(channel, None)
        if _is_clearing(message):
            self._versions.pop(channel, None)
            self._cleared[channel] = version
            if len(self._cleared) > CLEARED_KEPT:
                self._cleared.popitem(last=False)
        elif version == (message.time // MICROSECOND, self._node):
            self._versions.pop(channel, None)
        else:
            self._versions[channel] = version

    def _repeat(self) -> None:
        """Send what nodes have missed because they were slow, if they are not any more."""
        for node, channels in list(self._missed.items()):
            neighbour = self._fabric.neighbours.get(node)
            while neighbour is not None and channels and not neighbour.remote.outbox.loaded():
                channel = channels.popitem(last=False)[0]
                message = self._hub.retained.get(channel)
                kept = _cleared(channel, self._version(channel)) if message is None else published(message)
                neighbour.put(Kept(kept, self._version(channel), fresh=self._fabric.archive is None))
            if not channels:
                del self._missed[node]

    def _introduce(self, _neighbour: Neighbour) -> Iterator[Record]:
        retained = self._hub.retained
        search = retained.search(REST, dollar=True)
        names = search.some()
        while names is not None:
            for name in names:
                message = None if name.startswith(OWN) else retained.get(name)
                if message is not None:
                    yield Kept(published(message), self._version(name))
            names = search.some()
        for name, version in list(self._cleared.items()):
            if self._cleared.get(name) == version:
                yield Kept(_cleared(name, version), version)


@final
class Presence:
    """How many clients each node has."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric: Final = fabric
        self._hub: Final = fabric.hub
        self._counts: Final[dict[str, int]] = {}
        self._told = -1
        self._telling = False
        self._hub.on_presence.append(self._changed)
        fabric.introductions.append(self._introduce)
        fabric.on_down.append(self._lost)
        fabric.heeds[Clients] = self.heed

    def heed(self, neighbour: Neighbour, record: Clients) -> None:
        """Another node has another number of clients."""
        self._counts[neighbour.node] = record.count
        self._hub.count_elsewhere(sum(self._counts.values()))

    def _changed(self, _count: int) -> None:
        if not self._telling and len(self._hub.clients) != self._told:
            self._telling = True
            self._hub.soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._told = len(self._hub.clients)
        self._fabric.tell_all(Clients(self._told))

    def _introduce(self, _neighbour: Neighbour) -> Iterator[Record]:
        yield Clients(len(self._hub.clients))

    def _lost(self, node: str) -> None:
        if self._counts.pop(node, 0):
            self._hub.count_elsewhere(sum(self._counts.values()))


@final
class FarWatcher(Watcher):
    """Another node, some of whose clients want to know the demand for the topics that meet a pattern."""

    def __init__(self, pattern: str, neighbour: Neighbour, hub: Hub) -> None:
        super().__init__(pattern)
        self._neighbour: Final = neighbour
        self._hub: Final = hub
        self.told: Final[dict[str, int]] = {}

    def demand(self, topic: str, subscribers: int) -> None:  # noqa: ARG002 - those of all nodes
        """The demand for a topic has changed: tell the node this one's part, if that has."""
        count = self._hub.demand.count_here(topic)
        if self.told.get(topic, 0) == count:
            return
        if count:
            self.told[topic] = count
        else:
            del self.told[topic]
        self._neighbour.put(Counted(((topic, count),)))


@final
class Shares:
    """Each node's part in the demand for topics."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric: Final = fabric
        self._hub: Final = fabric.hub
        self._watched: Final[Counter[str]] = Counter()  # what clients of this node watch
        self._watchers: Final[dict[str, dict[str, FarWatcher]]] = {}  # by node and pattern
        self._hub.demand.on_watch = self._watches
        fabric.introductions.append(self._introduce)
        fabric.on_down.append(self._lost)
        fabric.heeds[Watched] = self.heed_watched
        fabric.heeds[Counted] = self.heed_counted

    def heed_watched(self, neighbour: Neighbour, record: Watched) -> None:
        """Another node wants to know the demand for other topics."""
        watchers = self._watchers.setdefault(neighbour.node, {})
        for pattern in record.added:
            if pattern not in watchers:
                watchers[pattern] = FarWatcher(pattern, neighbour, self._hub)
                self._hub.demand.watch(watchers[pattern])
        for pattern in record.removed:
            watcher = watchers.pop(pattern, None)
            if watcher is not None:
                self._hub.demand.unwatch(watcher)
                left = [topic for topic in watcher.told if not any(topic in each.told for each in watchers.values())]
                if left:
                    neighbour.put(Counted(tuple([(topic, 0) for topic in left])))

    def heed_counted(self, neighbour: Neighbour, record: Counted) -> None:
        """Another node has a different part in the demand for some topics."""
        for topic, count in record.topics:
            self._hub.demand.set_part(neighbour.node, topic, count)

    def _watches(self, watcher: Watcher, yes: bool) -> None:  # noqa: FBT001 - as the hub calls it
        if isinstance(watcher, FarWatcher):
            return
        pattern = watcher.pattern
        self._watched[pattern] += 1 if yes else -1
        if not yes and not self._watched[pattern]:
            del self._watched[pattern]
            self._fabric.tell_all(Watched((), (pattern,)))
        elif yes and self._watched[pattern] == 1:
            self._fabric.tell_all(Watched((pattern,)))

    def _introduce(self, _neighbour: Neighbour) -> Iterator[Record]:
        for pattern in list(self._watched):
            if pattern in self._watched:
                yield Watched((pattern,))

    def _lost(self, node: str) -> None:
        for watcher in self._watchers.pop(node, {}).values():
            self._hub.demand.unwatch(watcher)
        owner = f"demand of {node}"
        self._hub.work.start(owner, Turns(lambda: self._forget(node)))

    def _forget(self, node: str) -> int:
        known = self._fabric.neighbours.get(node)
        if known is not None and known.ready:
            return DONE  # it is back
        return MORE if self._hub.demand.end_part(node, TOPICS_AT_ONCE) else DONE


def _cleared(channel: str, version: Version) -> Published:
    """A message that clears a channel."""
    return Published(channel, b"", RETAIN, version[0] * MICROSECOND, 0)


def _is_clearing(message: Message) -> bool:
    return not message.body and not message.attachments


def make_fabric(
    hub: Hub, membership: Membership, settings: Settings | None = None, archive: Archive | None = None
) -> Fabric:
    """A hub's part in a fabric, with all that nodes share. ``Fabric.start`` joins the other nodes.

    ``archive`` is the hub's journal, a ``DiskArchive`` as a rule, or None where it has none.
    """
    fabric = Fabric(hub, membership, settings, archive)
    Retention(fabric)
    Presence(fabric)
    Shares(fabric)
    Calls(fabric)
    Sessions(fabric, sessions_of(hub, by_name("mqtt").code))
    return fabric
