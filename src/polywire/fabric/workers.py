"""Workers of one machine as a fabric: links over Unix sockets, and a supervisor that says who is alive.

The supervisor started every worker, so it knows when one has gone, and nobody else has to guess. It sends each of them
the list of all (``Members``) whenever that changes. Two workers share one connection: the one whose name sorts first
opens it, and a worker counts as joined once both have named themselves on it. A shard always belongs to the same
worker, because the worker's own journal is the log of the shard: while that worker is down, its shards have no owner.
"""

import asyncio
import functools
import logging
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec

from polywire.errors import PolywireError
from polywire.fabric.membership import SHARDS, Events, preferred

MOST: Final = 1 << 30
"""The largest frame: a batch may hold a message of the largest size there is."""

JOIN_SECONDS: Final = 5.0
"""How long a start waits for the links to the workers that are there; then it goes on without the missing ones."""

REDIAL_SECONDS: Final = 0.05

_LENGTH = struct.Struct("<I")

log = logging.getLogger("polywire.fabric")


class WorkerError(PolywireError):
    """A worker gave no answer, or said why it can't do what it was asked for."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A worker that can be reached: ``path`` is its Unix socket."""

    node: str
    life: int
    path: str


class Members(msgspec.Struct, frozen=True, tag=True):
    """All workers there are now, and why those that were there before have gone."""

    members: tuple[Member, ...] = ()
    gone: dict[str, str] = {}


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame on a link, in both directions."""

    node: str
    life: int


class Frames(asyncio.Protocol):
    """Frames over a stream, each after its length. ``received`` gets them one by one, ``lost`` the end."""

    def __init__(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self.received = received
        self.lost = lost
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = 0  # bytes until the first frame in the pieces is whole; 0: its length is not known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The end."""
        self._transport = None
        self.lost()

    @property
    def pending(self) -> int:
        """Bytes that wait to be written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes | memoryview) -> None:
        """Send one; without a connection it is lost."""
        if self._transport is not None:
            self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    def close(self) -> None:
        """End it once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Cut what has arrived into frames."""
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        place, end = 0, len(data)
        while end - place >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, place)
            if length > MOST:
                log.error("a frame of %d bytes between workers: the connection is closed", length)
                self.abort()
                return
            if end - place < _LENGTH.size + length:
                self._keep(data[place:], _LENGTH.size + length)
                return
            self.received(data[place + _LENGTH.size : place + _LENGTH.size + length])
            place += _LENGTH.size + length
        if place < end:
            self._keep(data[place:], _LENGTH.size)

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._pieces.append(rest)
        self._size = len(rest)
        self._wanted = wanted


class _Peer:
    """Another worker, as the supervisor has named it. ``dialling`` is the task that keeps a connection to it open."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.frames: Frames | None = None  # once both have named themselves
        self.dialling: asyncio.Task[None] | None = None
        self.joined = False

    def end(self) -> None:
        """It has gone."""
        if self.dialling is not None:
            self.dialling.cancel()
        if self.frames is not None:
            self.frames.received = _ignore
            self.frames.abort()
            self.frames = None


class UnixLinks:
    """The connections to other workers. ``update`` says which there are; ``events`` hears of those that joined.

    A connection that breaks while its worker is alive is opened again: what was sent meanwhile is lost, which the
    numbers of the batches show.
    """

    def __init__(self, node: str, life: int, path: Path, events: Events) -> None:
        self.path: Final = path
        self._hello = msgspec.msgpack.encode(Hello(node, life))
        self._node = node
        self._events = events
        self._peers: dict[str, _Peer] = {}
        self._strangers: set[Frames] = set()  # connections on which nobody is named yet, or an unknown life
        self._server: asyncio.AbstractServer | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accepted, self.path)

    def update(self, members: Iterable[Member], gone: dict[str, str]) -> None:
        """These are the others from now on."""
        wanted = {each.node: each for each in members if each.node != self._node}
        for name, peer in list(self._peers.items()):
            if wanted.get(name) != peer.member:
                del self._peers[name]
                peer.end()
                if peer.joined:
                    self._events.left(name, gone.get(name, "restarted"))
        for name, member in wanted.items():
            if name not in self._peers:
                peer = self._peers[name] = _Peer(member)
                if self._node < name:
                    peer.dialling = asyncio.get_running_loop().create_task(self._dial(peer))
        self._changed.set()

    async def connected(self, seconds: float) -> None:
        """Wait until every worker that is known has joined."""
        try:
            async with asyncio.timeout(seconds):
                while any(not peer.joined for peer in self._peers.values()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = ", ".join(name for name, peer in self._peers.items() if not peer.joined)
            log.warning("no link to %s within %g s", missing, seconds)

    def send(self, node: str, batch: bytes | memoryview) -> None:
        """Send a batch to a worker that has joined; to any other it is lost."""
        peer = self._peers.get(node)
        if peer is not None and peer.frames is not None:
            peer.frames.send(batch)

    def has(self, node: str) -> bool:
        """Whether there is a connection to a node."""
        peer = self._peers.get(node)
        return peer is not None and peer.frames is not None

    def status(self) -> dict[str, object]:
        """Every other worker, and what waits to be written to it."""
        return {
            name: {
                "life": peer.member.life,
                "connected": peer.frames is not None,
                "pending_bytes": 0 if peer.frames is None else peer.frames.pending,
            }
            for name, peer in sorted(self._peers.items())
        }

    def close(self) -> None:
        """Close all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for peer in self._peers.values():
            peer.end()
        self._peers.clear()
        for frames in self._strangers:
            frames.abort()
        self.path.unlink(missing_ok=True)

    async def _dial(self, peer: _Peer) -> None:
        """Keep a connection to a worker open for as long as it is named."""
        loop = asyncio.get_running_loop()
        while True:
            ended = asyncio.Event()
            frames = Frames(_ignore, ended.set)
            frames.received = functools.partial(self._answered, frames, peer)
            try:
                await loop.create_unix_connection(lambda made=frames: made, peer.member.path)  # type: ignore[misc]
                frames.send(self._hello)
                await ended.wait()
            except OSError:  # it is about to listen, or has just ended, which the supervisor will report
                pass
            finally:
                frames.abort()
            peer.frames = None
            await asyncio.sleep(REDIAL_SECONDS)

    def _answered(self, frames: Frames, peer: _Peer, data: bytes) -> None:
        """The first frame of a worker that was dialled."""
        if _hello(data) == Hello(peer.member.node, peer.member.life):
            self._joined(peer, frames)
        else:
            frames.abort()

    def _accepted(self) -> Frames:
        frames = Frames(_ignore, _nothing)
        frames.received = functools.partial(self._named, frames)
        frames.lost = functools.partial(self._strangers.discard, frames)
        self._strangers.add(frames)
        return frames

    def _named(self, frames: Frames, data: bytes) -> None:
        """The first frame of a worker that has dialled."""
        self._strangers.discard(frames)
        hello = _hello(data)
        peer = None if hello is None else self._peers.get(hello.node)
        if peer is None or hello is None or peer.member.life != hello.life:
            # The supervisor has told the other one first. It dials again until this one knows too.
            frames.abort()
            return
        frames.lost = functools.partial(self._lost, peer, frames)
        frames.send(self._hello)
        self._joined(peer, frames)

    def _joined(self, peer: _Peer, frames: Frames) -> None:
        member = peer.member
        peer.frames = frames
        frames.received = functools.partial(self._events.received, member.node)
        if not peer.joined:
            peer.joined = True
            self._events.joined(member.node, member.life)
        self._changed.set()

    def _lost(self, peer: _Peer, frames: Frames) -> None:
        """A connection ended, though the supervisor has not said that its worker did."""
        if peer.frames is frames:
            peer.frames = None


class Supervisor(Protocol):
    """A worker's line to its supervisor, as far as the membership needs it."""

    def present(self, member: Member) -> None:
        """This worker can be reached, and owns its shards again."""

    def leaving(self) -> None:
        """This worker wants to be named no more."""


class WorkerMembership:
    """The membership of one worker. ``workers`` are the names of all, those that are down included."""

    def __init__(self, node: str, life: int, folder: Path, workers: Iterable[str], supervisor: Supervisor) -> None:
        self.node = node
        self.life = life
        self._path = folder / f"{node}.{life}"
        self._supervisor = supervisor
        names = sorted(workers)
        self._homes: Final = {shard: cast("str", preferred(shard, names)) for shard in range(SHARDS)}
        self._owners: dict[int, str | None] = dict.fromkeys(range(SHARDS))
        self._terms: dict[int, int] = dict.fromkeys(range(SHARDS), 0)
        self._present: set[str] = set()
        self._events: Events | None = None
        self._links: UnixLinks | None = None
        self._told = asyncio.Event()
        self._absent = asyncio.Event()
        self._reachable = True

    async def start(self, events: Events) -> None:
        """Listen, be named by the supervisor, and connect to the other workers."""
        self._events = events
        self._links = UnixLinks(self.node, self.life, self._path, events)
        await self._links.start()
        self._supervisor.present(Member(self.node, self.life, str(self._path)))
        await self._told.wait()
        await self._links.connected(JOIN_SECONDS)

    def members(self, found: Members) -> None:
        """The supervisor has named those who are there."""
        if self._links is None or self._events is None:
            return
        self._links.update(found.members, found.gone)
        lives = {each.node: each.life for each in found.members}
        self._present = set(lives)
        if self.node in self._present:
            self._told.set()
        else:
            self._absent.set()
        changed: dict[int, str | None] = {}
        for shard, home in self._homes.items():
            owner = home if home in lives else None
            term = lives.get(home, self._terms[shard])
            if (self._owners[shard], self._terms[shard]) != (owner, term):
                self._owners[shard] = changed[shard] = owner
                self._terms[shard] = term
        if changed:
            self._events.owners(changed)

    def orphaned(self) -> None:
        """The supervisor has gone."""
        self._reachable = False
        self._told.set()
        self._absent.set()
        if self._events is not None:
            self._events.reachable(False, "the supervisor has ended")  # noqa: FBT003 - as Events has it

    def send(self, node: str, batch: bytes | memoryview) -> None:
        """Send a batch."""
        if self._links is not None:
            self._links.send(node, batch)

    def owner(self, shard: int) -> str | None:
        """Who owns a shard now."""
        return self._owners[shard]

    def term(self, shard: int) -> int:
        """The life of the shard's owner, or of its last one."""
        return self._terms[shard]

    async def hand_over(self) -> None:
        """Do nothing: a shard stays where its log is, and waits for its owner to come back."""

    async def unsynced(self) -> list[str]:
        """There is no engine that stores anything."""
        return []

    async def retire(self) -> None:
        """The supervisor sees for itself that a worker is gone."""

    async def leave(self) -> None:
        """Be named no more, and close the links once everybody was notified.

        Where all workers are to end, the supervisor lets none go before all are ready to: until then each of them may
        wait for an answer of another one.
        """
        if self._links is None:
            return
        if self.node in self._present and self._reachable:
            self._supervisor.leaving()
            await self._absent.wait()
        self._links.close()

    def status(self) -> dict[str, object]:
        """Who is there, and how this worker is connected to them."""
        return {
            "kind": "workers",
            "node": self.node,
            "life": self.life,
            "connected": self._reachable,
            "nodes": {} if self._links is None else self._links.status(),
            "owners": dict(self._owners),
        }


def _hello(data: bytes) -> Hello | None:
    try:
        return msgspec.msgpack.decode(data, type=Hello)
    except msgspec.DecodeError:
        return None


def _nothing() -> None:
    """Nobody wants to know."""


def _ignore(_: bytes) -> None:
    """Replaced before anything can arrive."""
