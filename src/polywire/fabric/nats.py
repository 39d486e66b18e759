"""Membership of a cluster on NATS: nodes and owners of shards are keys of a JetStream bucket, batches are messages.

Each node has a key that it renews every ``BEAT`` of its lease, and each shard has one that names its owner. All are
changed by compare-and-set: every change names the revision that it replaces, so of two nodes that want a shard one gets
it. Nobody trusts another machine's clock:

- A node counts its own lease from the moment it sent the last renewal that was confirmed. Once that is over, by a clock
  that also runs while the process or its machine is suspended, it owns nothing, whatever it remembers.
- The others count from the moment they received that renewal, which is later. They give a node up when its lease is
  over and, in the meantime, some of their own renewals have come back to them: while the bucket has no leader nobody is
  given up. To give it up is to delete its key: a renewal that comes afterwards fails.

A batch goes to ``polywire.<cluster>.node.<name>``, with the sender's subject in the place of the reply's. One that is
too large for NATS goes in parts. What is sent while there is no connection is dropped, as NATS itself drops what was on
its way: links number their batches.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final

import msgspec
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from polywire.fabric.membership import CLUSTER_NAME, NODE_NAME, SHARDS, Events, MembershipError, preferred

CONNECT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 0.1
BEATS: Final = 4
"""Renewals in the time of a lease."""

SAFETY: Final = 0.9
"""The share of a lease in which its holder relies on it."""

SETTLE_BEATS: Final = 2
"""Beats without a change of the nodes after which shards move to those that should have them."""

MOST_REPLICAS: Final = 3
"""Of the bucket of nodes and owners. It is small and concerns every node, so it has them wherever there are servers."""

PART_ROOM: Final = 1024
"""What is left for NATS's own header in the largest message of its server."""

PART: Final = "Polywire-Part"
NO_SUCH_REPLICAS: Final = frozenset({10005, 10074})
"""Error codes of a server that has too few peers for so many replicas, or none."""

Result = TypeVar("Result")

log = logging.getLogger("polywire.fabric")


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """How to reach NATS, and who this node is in which cluster.

    ``lost_shards_wait``: a shard whose owner is lost waits for its return, as only its owner has what is in it.
    ``about`` is what other nodes and commands can read of this node, such as its addresses. ``monitors`` are URLs of
    the servers' monitoring ports, to see whether they sync what they store.
    """

    cluster: str
    node: str
    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: Path | None = None
    nkey: Path | None = None
    tls: ssl.SSLContext | None = None
    lease: float = 3.0
    lost_shards_wait: bool = True
    about: Mapping[str, str] = field(default_factory=dict)
    monitors: tuple[str, ...] = ()


class _Presence(msgspec.Struct, frozen=True):
    """The value of a node's key. ``place`` is where its process runs, as ``_place`` says it."""

    life: int
    place: str
    about: dict[str, str]
    leaving: bool = False


class _Ownership(msgspec.Struct, frozen=True):
    """The value of a shard's key."""

    node: str
    life: int


@dataclass(slots=True)
class _Node:
    """A node as this one knows it. ``beats`` of this node came in since its last renewal, which came at ``heard``."""

    life: int
    revision: int
    heard: float
    about: dict[str, str]
    beats: int = 0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class _Shard:
    node: str
    life: int
    revision: int


def boot_time() -> float:
    """Seconds, by a clock that never jumps and does not stop while the machine is suspended, where there is one."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@final
class NatsMembership:
    """A node's part in a cluster on NATS."""

    def __init__(self, settings: NatsSettings, *, clock: Callable[[], float] = boot_time) -> None:
        if not CLUSTER_NAME.fullmatch(settings.cluster):
            raise MembershipError(f"{settings.cluster!r} can't be a cluster's name: use letters, digits, - and _")
        if not NODE_NAME.fullmatch(settings.node):
            raise MembershipError(
                f"{settings.node!r} can't be a node's name: use letters, digits, -, _ and single dots"
            )
        self.node = settings.node
        self.life = 0
        self.settings: Final = settings
        self._clock: Final = clock
        self._client: Final = NatsClient()
        self._prefix: Final = f"polywire.{settings.cluster}.node."
        self._events: Events | None = None
        self._js: JetStreamContext | None = None
        self._bucket: KeyValue | None = None
        self._nodes: dict[str, _Node] = {}
        self._shards: dict[int, _Shard] = {}
        self._owners: dict[int, str | None] = {}  # as they were reported
        self._gone_lives: dict[str, int] = {}  # of nodes that have left, and have nothing
        self._revision = 0  # of this node's key
        self._lease_end = 0.0
        self._holds = False  # as it was reported
        self._seen_beat = 0.0
        self._calm = 0  # beats since the nodes changed last
        self._leaving = False
        self._watched = asyncio.Event()  # the bucket is known
        self._wake = asyncio.Event()
        self._outgoing: Final[deque[tuple[str, bytes]]] = deque()
        self._parts: Final[dict[str, list[bytes]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._watches = 0
        self._giving: asyncio.Task[None] | None = None
        self._handing = asyncio.Lock()
        self._dropped = 0
        self._batches_out = self._batches_in = self._octets_out = self._octets_in = 0
        self._number = 0  # of batches in parts

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream, for logs that are kept there; from ``start`` on."""
        assert self._js is not None  # noqa: S101 - a mistake of the caller
        return self._js

    @property
    def connected(self) -> bool:
        """Whether there is a connection to NATS at the moment."""
        return bool(self._client.is_connected)

    async def start(self, events: Events) -> None:
        """Connect, take this node's name, and learn who else is there."""
        self._events = events
        await self._connect()
        try:
            self._js = self._client.jetstream(timeout=max(self.settings.lease / 2, 0.5))
            self._bucket = await _insist(self._open_bucket)
            await _insist(self._take_name)
            await self._client.subscribe(
                self._prefix + self.node, cb=self._received, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            self._spawn(self._write())
            self._watch = asyncio.create_task(self._follow())
            await asyncio.wait_for(self._watched.wait(), CONNECT_SECONDS)
            self._spawn(self._keep())
        except (NatsError, TimeoutError, OSError) as error:
            await self._close()
            raise MembershipError(
                f"NATS at {self._where()} does not answer as JetStream does: {_words(error)}"
            ) from error
        except BaseException:
            await self._close()
            raise
        events.reachable(yes=True, why="")

    def send(self, node: str, batch: bytes | memoryview) -> None:
        """Send a batch, unless there is no connection."""
        if not self._client.is_connected:
            self._dropped += 1
            return
        self._outgoing.append((node, bytes(batch)))
        self._wake.set()

    def owner(self, shard: int) -> str | None:
        """Who owns a shard now; this node only while its lease lasts."""
        node = self._owners.get(shard)
        return None if node == self.node and not self.holds_lease() else node

    def term(self, shard: int) -> int:
        """The revision with which the shard got its owner."""
        known = self._shards.get(shard)
        return 0 if known is None else known.revision

    def holds_lease(self) -> bool:
        """Whether the others still count on this node, by its own clock."""
        return self._clock() < self._lease_end

    async def hand_over(self) -> None:
        """Give the shards to other nodes, and take none from now on."""
        self._leaving = True
        end = self._clock() + 2 * self.settings.lease
        while self._others() and self._clock() < end:
            with contextlib.suppress(NatsError, TimeoutError):
                await self._renew()  # so that nobody gives this node a shard
                await self._hand_over(self._others())
                if not any(shard.node == self.node for shard in self._shards.values()):
                    return
            await asyncio.sleep(self.settings.lease / BEATS)

    async def retire(self) -> None:
        """Say that nothing is left here: shards that are given to this life of the node nevertheless are free."""
        with contextlib.suppress(NatsError, TimeoutError):
            await self._kv().put(_gone_key(self.node), str(self.life).encode())

    async def leave(self) -> None:
        """Hand over the shards, remove this node's key and close the connection."""
        if not self._leaving:
            await self.hand_over()
        await self._stop_tasks()
        with contextlib.suppress(NatsError, TimeoutError):
            bucket = self._bucket
            if bucket is not None and self._revision:
                await bucket.delete(_node_key(self.node), last=self._revision)
        await self._close()

    def status(self) -> dict[str, object]:
        """Nodes, owners and the state of the connection."""
        now = self._clock()
        return {
            "kind": "nats",
            "cluster": self.settings.cluster,
            "node": self.node,
            "connected": self.connected,
            "server": _address(self._client) if self.connected else None,
            "lease": round(max(0.0, self._lease_end - now), 3),
            "nodes": {
                name: {"life": node.life, "heard": round(now - node.heard, 3), **node.about}
                for name, node in sorted(self._nodes.items())
            },
            "owners": {shard: self.owner(shard) for shard in sorted(self._owners)},
            "batches": {"in": self._batches_in, "out": self._batches_out, "dropped": self._dropped},
            "bytes": {"in": self._octets_in, "out": self._octets_out},
        }

    async def unsynced(self) -> list[str]:
        """Which servers may lose what they have acknowledged when the power fails, as they sync it only later.

        Servers are asked at their monitoring ports; without ``monitors`` nobody is.
        """
        return [each for each in await asyncio.to_thread(self._ask_monitors) if each]

    def _ask_monitors(self) -> list[str]:
        found = []
        for url in self.settings.monitors:
            try:
                with urllib.request.urlopen(f"{url.rstrip('/')}/jsz?config=true", timeout=2) as answer:  # noqa: S310
                    config = json.load(answer).get("config", {})
            except (OSError, ValueError) as error:
                found.append(f"{url} can't be asked: {error}")
            else:
                if not config.get("sync_always"):
                    found.append(f"{url} has not set sync_interval: always")
        return found

    async def _connect(self) -> None:
        settings = self.settings
        options: dict[str, Any] = {"user": settings.user, "password": settings.password, "token": settings.token}
        if settings.credentials is not None:
            options["user_credentials"] = str(settings.credentials)
        if settings.nkey is not None:
            options["nkeys_seed"] = str(settings.nkey)
        if settings.tls is not None:
            options["tls"] = settings.tls
        try:
            await asyncio.wait_for(
                self._client.connect(
                    list(settings.urls),
                    name=f"polywire {settings.cluster}/{settings.node}",
                    error_cb=self._failed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    connect_timeout=2,
                    reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]
                    max_reconnect_attempts=-1,
                    ping_interval=max(settings.lease / 3, 0.5),  # type: ignore[arg-type]
                    max_outstanding_pings=2,
                    pending_size=0,  # nothing is kept for a connection to come
                    **options,
                ),
                CONNECT_SECONDS,
            )
        except (NatsError, TimeoutError, OSError) as error:
            await self._close()
            raise MembershipError(
                f"can't reach NATS at {self._where()}: {_words(error)}; check fabric.url and that nats-server runs"
            ) from error

    def _where(self) -> str:
        """The URLs, without passwords."""
        return ", ".join(re.sub(r"//[^@/]*@", "//", url) for url in self.settings.urls)

    async def _open_bucket(self) -> KeyValue:
        """The cluster's bucket, created by the first node, with as many replicas as there are servers for."""
        js = self.jetstream
        name = f"polywire_{self.settings.cluster}"
        try:
            return await js.key_value(name)
        except NotFoundError:
            pass
        for replicas in (MOST_REPLICAS, 1):
            try:
                return await js.create_key_value(
                    KeyValueConfig(bucket=name, history=1, replicas=replicas, direct=False)
                )
            except BadRequestError as error:
                if error.err_code not in NO_SUCH_REPLICAS or replicas == 1:
                    with contextlib.suppress(NotFoundError):  # another node was faster, with other replicas
                        return await js.key_value(name)
                    raise
            except APIError as error:
                if error.err_code not in NO_SUCH_REPLICAS or replicas == 1:
                    raise
        raise AssertionError

    async def _take_name(self) -> None:
        """Create this node's key; ``MembershipError`` where a node that lives has it."""
        bucket, key = self._kv(), _node_key(self.node)
        end = self._clock() + self.settings.lease * 1.25
        known = 0
        while True:
            sent = self._clock()
            try:
                entry = await bucket.get(key)
            except KeyNotFoundError:
                self.life = time.time_ns()
                with contextlib.suppress(KeyWrongLastSequenceError):
                    self._renewed(await bucket.create(key, self._presence()), sent)
                    return
                continue
            value = msgspec.json.decode(entry.value or b"", type=_Presence)
            known = known or entry.revision or 0
            if entry.revision != known:
                raise MembershipError(
                    f"a node called {self.node!r} is part of the cluster {self.settings.cluster!r}, at {value.place}; "
                    "give this one another name with fabric.node"
                )
            if self._clock() >= end or _has_ended(value.place):
                self.life = max(time.time_ns(), value.life + 1)
                with contextlib.suppress(KeyWrongLastSequenceError):
                    self._renewed(await bucket.update(key, self._presence(), last=known), sent)
                    return
            await asyncio.sleep(self.settings.lease / BEATS)

    def _presence(self) -> bytes:
        about = dict(self.settings.about)
        return msgspec.json.encode(_Presence(self.life, _place(), about, leaving=self._leaving))

    def _renewed(self, revision: int, sent: float) -> None:
        self._revision = revision
        self._lease_end = sent + self.settings.lease * SAFETY

    def _kv(self) -> KeyValue:
        assert self._bucket is not None  # noqa: S101 - it is opened first
        return self._bucket

    def _report(self) -> Events:
        assert self._events is not None  # noqa: S101 - given at the start
        return self._events

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(job))

    async def _stop_tasks(self) -> None:
        """End what runs here. It is asked again and again: before Python 3.12 ``wait_for`` may lose a cancellation."""
        tasks = {*self._tasks, *(each for each in (self._watch, self._giving) if each is not None)}
        self._tasks, self._watch, self._giving = [], None, None
        self._watches += 1
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=RECONNECT_SECONDS)

    async def _close(self) -> None:
        await self._stop_tasks()
        with contextlib.suppress(NatsError, TimeoutError, OSError, AttributeError):  # one that never connected
            await asyncio.wait_for(self._client.close(), CONNECT_SECONDS)

    async def _keep(self) -> None:
        """Renew the lease, and look after the others and the shards, until the end."""
        beat = self.settings.lease / BEATS
        while True:
            try:
                await self._beat()
            except (NatsError, TimeoutError, OSError) as error:
                log.debug("the cluster's bucket does not answer: %s", _words(error))
            self._report_lease()
            await asyncio.sleep(beat)

    async def _beat(self) -> None:
        await self._renew()
        if self._clock() - self._seen_beat > self.settings.lease and self.connected:
            self._watch_again()
            return
        await self._give_up_lost()
        self._calm += 1
        if not self._leaving:
            await self._claim()
            if self._calm > SETTLE_BEATS:
                self._balance()

    def _balance(self) -> None:
        """Give shards away that other nodes should have. The lease is renewed while that takes its time."""
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give_away())

    async def _give_away(self) -> None:
        try:
            await self._hand_over({*self._others(), self.node})
        except (NatsError, TimeoutError) as error:
            log.debug("shards were not handed over: %s", _words(error))

    async def _renew(self) -> None:
        bucket, key = self._kv(), _node_key(self.node)
        sent = self._clock()
        try:
            self._renewed(await bucket.update(key, self._presence(), last=self._revision), sent)
        except KeyWrongLastSequenceError:
            await self._renew_unsure()

    async def _renew_unsure(self) -> None:
        """The key has another revision: by a renewal whose answer was lost, or because this node was given up."""
        bucket, key = self._kv(), _node_key(self.node)
        sent = self._clock()
        try:
            entry = await bucket.get(key)
        except KeyNotFoundError:
            self._lease_end = 0.0
            self._report_lease()
            log.warning(
                "the cluster had given up the node %s, which did not renew its lease: it joins again", self.node
            )
            self.life = max(time.time_ns(), self.life + 1)
            with contextlib.suppress(KeyWrongLastSequenceError):
                self._renewed(await bucket.create(key, self._presence()), sent)
            return
        value = msgspec.json.decode(entry.value or b"", type=_Presence)
        if value.life == self.life:
            self._renewed(await bucket.update(key, self._presence(), last=entry.revision), sent)
        else:
            self._lease_end = 0.0
            self._report_lease()
            log.error("another process has taken the name %s in the cluster, at %s", self.node, value.place)

    def _report_lease(self) -> None:
        """Report shards of this node when its lease ends and when it is there again."""
        holds = self.holds_lease()
        if holds != self._holds:
            self._holds = holds
            mine = {shard: self.node if holds else None for shard, node in self._owners.items() if node == self.node}
            if mine:
                self._report().owners(mine)

    async def _give_up_lost(self) -> None:
        """Delete the keys of nodes that did not renew their lease."""
        now = self._clock()
        for name, node in list(self._nodes.items()):
            if name != self.node and node.beats >= BEATS - 1 and now - node.heard >= self.settings.lease:
                with contextlib.suppress(KeyWrongLastSequenceError):
                    await self._kv().delete(_node_key(name), last=node.revision)

    def _others(self) -> set[str]:
        """The other nodes that may have shards."""
        return {name for name, node in self._nodes.items() if name != self.node and not node.leaving}

    def _is_alive(self, shard: _Shard) -> bool:
        if shard.node == self.node:
            return shard.life == self.life
        node = self._nodes.get(shard.node)
        return node is not None and node.life == shard.life

    def _is_free(self, shard: _Shard | None) -> bool:
        """Whether any node may take it."""
        if shard is None:
            return True
        waits = self.settings.lost_shards_wait and self._gone_lives.get(shard.node, 0) < shard.life
        return not (self._is_alive(shard) or waits)

    async def _claim(self) -> None:
        """Take the shards that nobody has and this node should have, and those it had before it started again."""
        wanted = []
        nodes = {*self._others(), self.node}
        for shard in range(SHARDS):
            known = self._shards.get(shard)
            if known is not None and known.node == self.node and known.life != self.life:
                wanted.append((shard, known.revision))
            elif self._calm > SETTLE_BEATS and self._is_free(known) and preferred(shard, nodes) == self.node:
                wanted.append((shard, 0 if known is None else known.revision))
        for shard, revision in wanted:
            await self._assign(shard, self.node, self.life, revision)

    async def _hand_over(self, nodes: set[str]) -> None:
        """Give the shards of this node to those of ``nodes`` that should have them."""
        async with self._handing:
            await self._hand_over_now(nodes)

    async def _hand_over_now(self, nodes: set[str]) -> None:
        leaving: dict[int, str] = {}
        for shard, known in self._shards.items():
            if known.node == self.node and known.life == self.life and self.holds_lease():
                new = preferred(shard, nodes)
                if new is not None and new != self.node and new in self._nodes:
                    leaving[shard] = new
        if not leaving:
            return
        await self._report().handing_over(frozenset(leaving))
        try:
            for shard, new in leaving.items():
                heir = self._nodes.get(new)
                if heir is not None:
                    await self._assign(shard, new, heir.life, self._shards[shard].revision)
        finally:
            kept = {shard: self.node for shard in leaving if self.owner(shard) == self.node}
            if kept:  # the heir has gone, or NATS does not answer
                self._report().owners(kept)

    async def _assign(self, shard: int, node: str, life: int, revision: int) -> None:
        """Make a node the owner of a shard, if it has not changed since this revision."""
        value = msgspec.json.encode(_Ownership(node, life))
        with contextlib.suppress(KeyWrongLastSequenceError):
            found = await self._kv().update(_shard_key(shard), value, last=revision)
            self._note_shard(shard, _Shard(node, life, found))
            self._report_owners()

    def _watch_again(self) -> None:
        """Follow the bucket from the beginning: what comes from it has stopped, or may have a gap."""
        if self._watch is not None:
            self._watch.cancel()
        self._seen_beat = self._clock()
        self._watch = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Read the bucket: all there is, then what changes."""
        self._watches += 1
        number = self._watches
        while number == self._watches:  # a cancellation may be lost, before Python 3.12
            try:
                watcher = await self._kv().watchall()
                try:
                    await self._read(aiter(watcher), number)
                finally:
                    with contextlib.suppress(NatsError, TimeoutError):
                        await watcher.stop()  # type: ignore[no-untyped-call]
            except (NatsError, TimeoutError, OSError) as error:
                log.debug("the cluster's bucket can't be read: %s", _words(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _read(self, watcher: AsyncIterator[KeyValue.Entry | None], number: int) -> None:
        found: set[str] | None = set()
        async for entry in watcher:
            if number != self._watches:
                return
            if entry is None:
                for key in self._known_keys() - (found or set()):
                    self._gone(key, "it is not in the cluster's bucket any more")
                found = None
                self._watched.set()
            else:
                if found is not None:
                    found.add(entry.key)
                self._changed(entry)
            if found is None:
                self._report_owners()

    def _known_keys(self) -> set[str]:
        return {*map(_node_key, self._nodes), *map(_shard_key, self._shards)}

    def _changed(self, entry: KeyValue.Entry) -> None:
        """One key of the bucket has this value now."""
        kind, _, name = entry.key.partition(".")
        if entry.operation is not None:
            self._gone(entry.key, "it did not renew its lease, or has left")
            return
        try:
            if kind == "node":
                self._heard(name, entry.revision or 0, msgspec.json.decode(entry.value or b"", type=_Presence))
            elif kind == "gone":
                self._gone_lives[name] = int(entry.value or b"0")
            elif kind == "shard":
                owned = msgspec.json.decode(entry.value or b"", type=_Ownership)
                self._note_shard(int(name), _Shard(owned.node, owned.life, entry.revision or 0))
        except (msgspec.DecodeError, ValueError):
            log.warning("the cluster's bucket has a key %r that this version can't read", entry.key)

    def _heard(self, name: str, revision: int, presence: _Presence) -> None:
        now = self._clock()
        if name == self.node:
            self._seen_beat = now
            for node in self._nodes.values():
                node.beats += 1
        known = self._nodes.get(name)
        if known is not None and known.life == presence.life:
            known.revision, known.heard, known.beats, known.about = revision, now, 0, presence.about
            if known.leaving != presence.leaving:
                known.leaving = presence.leaving
                self._calm = 0
            return
        if known is not None:
            self._gone(_node_key(name), "it has started again")
        self._nodes[name] = _Node(presence.life, revision, now, presence.about, leaving=presence.leaving)
        self._calm = 0
        if name != self.node:
            self._report().joined(name, presence.life)

    def _gone(self, key: str, why: str) -> None:
        kind, _, name = key.partition(".")
        if kind == "shard":
            self._shards.pop(int(name), None)
        elif kind == "node" and self._nodes.pop(name, None) is not None:
            self._calm = 0
            if name != self.node:
                self._parts.pop(self._prefix + name, None)
                self._report().left(name, why)

    def _note_shard(self, number: int, shard: _Shard) -> None:
        known = self._shards.get(number)
        if 0 <= number < SHARDS and (known is None or known.revision <= shard.revision):
            self._shards[number] = shard

    def _report_owners(self) -> None:
        """Report which shards have another owner than they were reported to have."""
        changed: dict[int, str | None] = {}
        for number in {*self._owners, *self._shards}:
            shard = self._shards.get(number)
            owner = shard.node if shard is not None and self._is_alive(shard) else None
            if owner != self._owners.get(number):
                self._owners[number] = owner
                changed[number] = owner
        if changed:
            self._report().owners({number: self.owner(number) for number in changed})

    async def _write(self) -> None:
        """Publish what is to be sent, in order."""
        client, outgoing = self._client, self._outgoing
        sender = self._prefix + self.node
        while True:
            await self._wake.wait()
            self._wake.clear()
            while outgoing:
                node, batch = outgoing.popleft()
                self._batches_out += 1
                self._octets_out += len(batch)
                try:
                    most = client.max_payload - PART_ROOM
                    if len(batch) <= most:
                        await client.publish(self._prefix + node, batch, sender)
                    else:
                        await self._write_parts(self._prefix + node, batch, most)
                except (NatsError, OSError):
                    self._dropped += 1

    async def _write_parts(self, subject: str, batch: bytes, most: int) -> None:
        self._number += 1
        count = -(-len(batch) // most)
        for index in range(count):
            part = batch[index * most : (index + 1) * most]
            headers = {PART: f"{self._number}/{index}/{count}"}
            await self._client.publish(subject, part, self._prefix + self.node, headers)

    async def _received(self, message: Msg) -> None:
        if not message.reply.startswith(self._prefix):
            return
        batch: bytes | None = message.data
        if message.headers and PART in message.headers:
            batch = self._joined(message.reply, message.headers[PART], message.data)
        if batch is not None:
            self._batches_in += 1
            self._octets_in += len(batch)
            self._report().received(message.reply[len(self._prefix) :], batch)

    def _joined(self, sender: str, place: str, data: bytes) -> bytes | None:
        """The batch that is whole with this part. Parts of one that has lost some are dropped."""
        _, index, count = place.split("/")
        parts = self._parts.setdefault(sender, [])
        if index == "0":
            parts.clear()
        if len(parts) != int(index):
            parts.clear()
            return None
        parts.append(data)
        return b"".join(self._parts.pop(sender)) if len(parts) == int(count) else None

    async def _failed(self, error: Exception) -> None:
        log.debug("NATS: %s", _words(error))

    async def _disconnected(self) -> None:
        self._outgoing.clear()
        self._parts.clear()
        if self._events is not None and not self._leaving and self._tasks:
            self._events.reachable(yes=False, why=f"no connection to NATS at {self._where()}")

    async def _reconnected(self) -> None:
        log.info("connected to NATS at %s again", _address(self._client))
        for node in self._nodes.values():  # nobody was heard of in the meantime
            node.beats = 0
        if self._tasks and not self._leaving:
            self._watch_again()
            self._report().reachable(yes=True, why="")


async def _insist(job: Callable[[], Awaitable[Result]]) -> Result:
    """Do something that may be done twice, again while JetStream elects a leader."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return await job()
        except (NatsError, TimeoutError):
            if time.monotonic() > end:
                raise
        await asyncio.sleep(RECONNECT_SECONDS)


def _node_key(name: str) -> str:
    return f"node.{name}"


def _gone_key(name: str) -> str:
    return f"gone.{name}"


def _shard_key(shard: int) -> str:
    return f"shard.{shard}"


def _address(client: NatsClient) -> str:
    url = client.connected_url
    return "" if url is None else f"{url.hostname}:{url.port}"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _place() -> str:
    """Where this process runs, such that another process on the same machine can tell whether it has ended."""
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def _has_ended(place: str) -> bool:
    """Whether the process at this place ran on this machine and has ended. Of other machines nothing is known."""
    machine, _, process = place.partition("/")
    pid, _, started = process.partition("/")
    if machine != _machine() or not pid.isdigit() or not started:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's, who may hide more than that from us
        pass
    return _started(int(pid)) not in {"", started}


def _machine() -> str:
    """This start of this machine, and the processes that can be seen from here; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{os.uname().nodename}:{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


def _started(pid: int) -> str:
    """When a process has started, in the machine's own units; empty where that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
