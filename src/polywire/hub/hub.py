"""The hub: what sessions ask for, and the core that does it.

Sessions publish, subscribe, consume, serve and call through here. Each of these methods checks the client's rights and
the limits before it records or changes anything, counts and logs what it refuses, and returns why (``Refused``), or
None. What a client has belongs to the hub, which ends it when the client leaves and suspends it when its rights change.
The hub runs in one thread and never waits: time and the end of a turn come in as functions.
"""

import time
from collections.abc import Callable
from typing import Final, cast, final

from librt.strings import BytesWriter, read_i64_le
from mypy_extensions import i64

from polywire.hub.access import CALL, PUBLISH, SERVE, SIGNAL, SUBSCRIBE, Grants
from polywire.hub.channels import MAX_LEVELS, REST, is_literal, to_stars
from polywire.hub.client import SLOW_READER, Client, Counters, Promise, Promises
from polywire.hub.demand import Demand, Watcher
from polywire.hub.message import Message
from polywire.hub.outbox import JOIN_BELOW, Flusher, Later, Outbox
from polywire.hub.peer import Refused
from polywire.hub.queues import (
    MAX_MESSAGES,
    MAX_OCTETS,
    NO_POLICY,
    Consumer,
    Delivery,
    Policy,
    Queue,
    Sharing,
    Totals,
    dead_letter,
    footprint,
)
from polywire.hub.recorder import Recorder, Runs
from polywire.hub.retained import Replay, Retained
from polywire.hub.routes import ELSEWHERE, Route, RouteTable, RouteView, Subscription, TopicFilter
from polywire.hub.services import DEFAULT_SECONDS, FAILED_BODY, Call, Provider, Services
from polywire.hub.trie import NODE, Trie, name_cost
from polywire.hub.work import DONE, MORE, PROMPT, Job, Work
from polywire.journal.kinds import WILL_FLAG
from polywire.wire.frame import Names, Run, same_bytes

MAX_VIEWS: Final = 4096
MAX_QUEUES: Final = 10_000
MAX_REACH: Final = 1_000
MAX_REACH_TOGETHER: Final = 20_000
MAX_WATCHERS: Final = 1_000
MAX_WATCHERS_TOGETHER: Final = 20_000
MAX_NAMES_SIZE: Final = 16 * 1024 * 1024
MAX_NAMES_SIZE_TOGETHER: Final = 128 * 1024 * 1024
MAX_WILLS_SIZE_TOGETHER: Final = 64 * 1024 * 1024
WILLS_AT_ONCE: Final = 32
"""Last wills of one client that are published in one step, and safe together."""

QUEUE_PREFIX: Final = "queue/"
SIGNALS: Final = ("$/signals/stop", "$/signals/terminate")

SHOWN: Final = 64
"""How much of a name that a client chose goes to the log."""

WhenSafe = Callable[[Callable[[], None], Callable[[], None]], None]
"""Calls the first function once everything accepted so far is safe, or the second where it can't be."""

NONE_REFUSED: Final[list[Outbox]] = []

PLACE_SIZE: Final = 16
"""Bytes that ``Runs.locate`` writes for each publication."""

LOW_HALF: Final = (1 << 32) - 1

MOST_APART: Final = 5_000_000_000
"""Nanoseconds by which the clocks of nodes are expected to differ at most."""

SERIES: Final = 1 << 11
SERIES_SHIFT: Final = 52
"""From this bit on, numbers of connections and calls say which series they are from: nodes have different ones."""

_names: Final = Names()


@final
class Hub:
    """One hub. ``soon`` runs a function when the turn of the loop ends, ``later`` after some seconds.

    ``clock`` is the time of day, for timestamps; ``monotonic`` measures durations, and never jumps. Both
    count nanoseconds. Connections and calls are numbered from ``first_number`` on.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        later: Later,
        clock: Callable[[], int],
        protocols: list[str],
        *,
        first_number: int = 0,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.clock: Final = clock
        self.monotonic: Final = monotonic
        self.soon: Final = soon
        self.later: Final = later
        self.flusher: Final = Flusher(soon, later)
        self.table: Final = RouteTable()
        self.retained: Final = Retained()
        self.work: Final = Work(soon, monotonic)
        self.demand: Final = Demand(self.work)
        self.services: Final = Services(later, monotonic)
        self.counters: Final = [Counters(name) for name in protocols]
        self.clients: Final[dict[int, Client]] = {}
        self.queues: Final[dict[str, Queue]] = {}
        self.queue_messages = MAX_MESSAGES
        self.queue_octets = MAX_OCTETS
        self.queue_totals: Final = Totals()
        self.sharing: Sharing | None = None  # where other hubs own queues too
        self.queue_policies: tuple[Policy, ...] = ()
        self.most_queues = MAX_QUEUES
        self.most_reach = MAX_REACH
        self.most_reach_together = MAX_REACH_TOGETHER
        self.most_watchers = MAX_WATCHERS
        self.most_watchers_together = MAX_WATCHERS_TOGETHER
        self.most_names_size = MAX_NAMES_SIZE
        self.most_names_size_together = MAX_NAMES_SIZE_TOGETHER
        self.most_wills_size_together = MAX_WILLS_SIZE_TOGETHER
        self.names_size = 0  # of all clients, and of the queues
        self.wills_size = 0
        self.draining = False
        self.regranting = 0  # clients whose new rights are not yet applied to all they have
        self.on_regranted: Callable[[], None] | None = None  # called when there is none any more
        self.on_presence: list[Callable[[int], None]] = []
        self.clients_elsewhere = 0  # how many clients other nodes have
        self.on_signal: Callable[[str], None] | None = None
        self.on_warning: Callable[[str, str], None] | None = None
        self.on_service_topic: Callable[[Message, Client], None] | None = None
        self.on_keep: Callable[[Message, bool], None] | None = None  # a client has changed what a channel retains
        self.on_refused: Callable[[Client, str, str, Refused], None] | None = None
        self.on_oversized: Callable[[Client, int, int, bool], None] | None = None
        self.recorder: Recorder | None = None  # the journal's, as the next two
        self.when_safe: WhenSafe | None = None
        self.strict = False  # while the journal can't be written, nothing is taken, acknowledged or not
        self.shared: Final[dict[str, object]] = {}  # what the sessions of one protocol share, by the protocol's name
        self._views: Final[dict[tuple[int, Grants], RouteView]] = {}
        self._idle: Final[dict[object, Callable[[], None]]] = {}
        self.work.on_idle = self._rests
        self._last_number = first_number
        self.services.last_number = first_number

    def client(self, protocol: int, outbox: Outbox, address: str = "", *, local: bool = True) -> Client:
        """A new client, not yet part of the hub: it joins when its protocol's handshake is done."""
        return Client(self.next_number(), protocol, outbox, self.counters[protocol], address, local=local)

    def renumber(self, first: int) -> None:
        """Number connections and calls from here on: another node numbers its own as this one has so far."""
        self._last_number = first
        self.services.last_number = first

    def last_number(self) -> int:
        """The number given last."""
        return self._last_number

    def next_number(self) -> int:
        """A number no client and no group of subscriptions has had: for a client that wants several groups."""
        self._last_number += 1
        return self._last_number

    def join(self, client: Client) -> None:
        """The client's handshake is done: it counts from now on."""
        client.joined = True
        client.connected = self.clock()
        self.clients[client.number] = client
        client.counters.connections += 1
        client.counters.connected += 1
        if self.recorder is not None:
            self.recorder.connected(client)
        self._presence()

    def leave(self, client: Client) -> None:
        """The client's connection has ended: all it has goes, in steps, then its last wills are published."""
        if not client.leaving:
            client.leaving = True
            client.serves = False
            if client.replay is not None:
                client.replay.clear()
                self.work.wake(-client.number)
            self.work.start(client.number, _Leaving(self, client))

    def left(self, client: Client) -> None:
        """Nothing of the client is left but its name."""
        self.names_size -= client.names_size
        client.names_size = 0
        client.revoked.clear()
        if client.joined:
            client.joined = False
            if self.recorder is not None:
                self.recorder.disconnected(client)
            del self.clients[client.number]
            client.counters.connected -= 1
            self._presence()

    def will_refusal(self, client: Client, message: Message) -> Refused | None:
        """Why a last will would not be published today; that is counted and logged.

        Rights are checked again when it is published, so a protocol need not ask.
        """
        if is_service_channel(message.channel):
            refused = self.signal_refusal(message.channel, client)
        else:
            refused = None if client.grants.may_publish(message.channel) else Refused.FORBIDDEN
        if refused is not None:
            signal = refused is Refused.FORBIDDEN and is_service_channel(message.channel)
            self.refuse(client, SIGNAL if signal else PUBLISH, message.channel, refused, message.body)
        return refused

    def leave_will(self, client: Client, message: Message, size: int, mark: int = 0) -> Refused | None:
        """Keep a last will of ``size`` bytes until the client's connection ends, even if the hub is killed first.

        ``mark`` comes back from the journal with the will, for the client's protocol. A signal is not journaled.
        It is refused if the last wills of all clients exceed their limit.
        """
        if self.wills_size + size > self.most_wills_size_together:
            return self._full(client, Refused.WILLS_SIZE, "a last will", message.channel, "limits.wills_size_total")
        group = len(client.wills) // WILLS_AT_ONCE
        client.wills.add(message, size)
        self.wills_size += size
        if self.recorder is not None and not is_service_channel(message.channel):
            self.recorder.will_left(message, client, mark, group)
        return None

    def withdraw_wills(self, client: Client) -> None:
        """The client's last wills are not to be published."""
        count = len(client.wills)
        self.wills_size -= client.wills.size
        client.wills.clear()
        if self.recorder is not None:
            for group in range((count + WILLS_AT_ONCE - 1) // WILLS_AT_ONCE):
                self.recorder.wills_over(client.protocol, client.number, client.name, group)

    def send_wills(self, client: Client) -> None:
        """Publish what the client wanted published at its end, in the order in which it was sent, in steps."""
        if len(client.wills) > 0:
            self.work.start(client.number, self.publishing(client))

    def publishing(self, client: Client) -> "Publishing":
        """The publication of a client's last wills, which are no longer the client's."""
        size = client.wills.size
        return Publishing(self, client, client.wills.take(), size)

    def publish_wills(self, client: Client, wills: list[Message], group: int) -> None:
        """Publish a group of last wills."""
        recorder = self.recorder
        if recorder is not None:
            # A hub that is killed now publishes all of them when it starts again, or none.
            recorder.together(on=True)
        now = self.clock()
        for will in wills:
            message = Message(will.channel, will.body, retain=will.retain, time=now, origin=will.origin, qos=will.qos)
            message.encoded.update(will.encoded)
            if is_service_channel(message.channel):
                self.signal(message.channel, client)
            elif message.body or client.forwards_empty:
                self.publish(message, client, acknowledged=False, must_retain=False, flags=WILL_FLAG)
            else:
                self.clear(message, client)
        if recorder is not None:
            recorder.wills_over(client.protocol, client.number, client.name, group)
            recorder.together(on=False)

    def signal(self, channel: str, client: Client) -> Refused | None:
        """A client has published to a service channel: do what it asks for, if it may."""
        refused = self.signal_refusal(channel, client)
        if refused is not None:
            self.refuse(client, SIGNAL if refused is Refused.FORBIDDEN else PUBLISH, channel, refused)
        elif self.on_signal is not None:
            self.on_signal(channel.rpartition("/")[2])
        return refused

    def signal_refusal(self, channel: str, client: Client) -> Refused | None:
        """Why a publication to a service channel does nothing, or None where it is a signal the client may give."""
        if channel not in SIGNALS or self.on_signal is None:
            return Refused.SERVICE_CHANNEL
        return None if client.may_signal(channel) else Refused.FORBIDDEN

    def clear(self, message: Message, client: Client) -> Refused | None:
        """Accept a message without a body, which is not forwarded: with the retain flag it clears its channel."""
        if not message.retain:
            return None
        if not client.grants.may_publish(message.channel):
            return self.refuse(client, PUBLISH, message.channel, Refused.FORBIDDEN, message.body)
        self.keep(message, forwarded=False)
        if self.recorder is not None:
            self.recorder.cleared(client.protocol, client.number, client.name, to_stars(message.channel))
        return None

    def publish(
        self,
        message: Message,
        client: Client,
        *,
        acknowledged: bool = True,
        must_retain: bool = True,
        flags: int = 0,
    ) -> Refused | None:
        """Route a client's message to subscribers, queue and retained messages. Returns why it was refused, or None.

        ``acknowledged``: the client will be notified that it is on disk. ``must_retain``: a message that can't be
        retained is refused; without it, for protocols that can't report that, it is delivered but not retained.
        ``flags`` are the journal's. Everything is decided before anything is recorded.
        """
        if message.retain and not must_retain and not self.retained.has_room(message):
            client.counters.drop(Refused.RETAINED_FULL.label)
            message = message.unretained()
        refused = self.refusal(message, client, acknowledged=acknowledged, is_will=flags & WILL_FLAG != 0)
        if refused is None:
            if self.recorder is not None:
                self.record(message, client, self.recorder, flags)
            self.deliver(message, client, acknowledged=acknowledged)
            client.counters.messages_in += 1
        else:
            self.refuse(client, PUBLISH, message.channel, refused, message.body)
        return refused

    def forbids(self, client: Client, action: str, name: str, *, dollar: bool = True) -> Refused | None:
        """``FORBIDDEN``, counted and logged, where the access rules don't allow an action; one of ``ACTIONS``.

        For a session that wants to know before the hub can be asked for the action itself. ``dollar``: as in
        ``Subscription``.
        """
        grants = client.grants
        allowed = grants.may_subscribe(name, dollar=dollar) if action == SUBSCRIBE else grants.may(action, name)
        return None if allowed else self.refuse(client, action, name, Refused.FORBIDDEN)

    def allows(self, grants: Grants, subscription: Subscription) -> bool:
        """Whether a client with these rights may have a subscription."""
        return grants.may_subscribe(subscription.pattern, dollar=subscription.dollar)

    def refuse(self, client: Client, action: str, channel: str, reason: Refused, body: bytes | None = None) -> Refused:
        """Count and log what a client may not or can't do, since not every protocol can report it to the client.

        ``action`` is one of ``ACTIONS``, ``channel`` what it was about, a service perhaps. ``body`` is that of a
        message, which the journal gets.
        """
        client.counters.drop(reason.label)
        if reason is Refused.FORBIDDEN:
            client.counters.deny(action)
        if body is not None and self.recorder is not None:
            self.recorder.discarded(client, channel, reason.label, "", body, len(body))
        if self.on_refused is not None:
            self.on_refused(client, action, to_stars(channel), reason)
        return reason

    def oversized(self, client: Client, size: int, limit: int, *, cut: bool = False) -> None:
        """A client's message is larger than ``limit``, and was refused or ``cut``: count and log it.

        ``size`` is 0 where it is not known how large the message is.
        """
        client.counters.oversized += 1
        if self.on_oversized is not None:
            self.on_oversized(client, size, limit, cut)

    def refusal(self, message: Message, client: Client, *, acknowledged: bool, is_will: bool = False) -> Refused | None:
        """Why a message can't be taken, or None where it can. A last will is in the journal already."""
        channel = message.channel
        if not client.grants.may_publish(channel):
            return Refused.FORBIDDEN
        if is_service_channel(channel):
            return Refused.SERVICE_CHANNEL
        if is_queue(channel) and not self.takes_queue(channel):
            return Refused.TOO_MANY_QUEUES
        if is_too_deep(channel):
            return Refused.TOO_DEEP
        if self.recorder is not None and self.recorder.failed and (acknowledged or (self.strict and not is_will)):
            return Refused.UNAVAILABLE
        if is_queue(channel) and self.sharing is not None:
            name = channel[len(QUEUE_PREFIX) :]
            refused = self.sharing.refusal(name, message)
            if refused is not None or not self.sharing.owns(name):
                return refused
        if is_queue(channel) and not self.queue(channel[len(QUEUE_PREFIX) :]).has_room(message):
            return Refused.QUEUE_FULL
        if is_queue(channel) and self.queue_totals.size + footprint(message) > self.queue_totals.most:
            return Refused.QUEUES_FULL
        if message.retain and not self.retained.has_room(message):
            return Refused.RETAINED_FULL
        return None

    def record(self, message: Message, client: Client, recorder: Recorder, flags: int = 0) -> None:
        """Give a message that can be taken its place in the journal."""
        channel = message.channel
        if is_queue(channel) and self.sharing is not None:
            message.offset = self.sharing.record(channel[len(QUEUE_PREFIX) :], message, client)
        elif is_queue(channel):
            message.offset = recorder.enqueued(message, client)
        else:
            heard = len(self.subscribers(channel)) > 0
            message.offset = recorder.published(message, client, flags, heard=heard)

    def deliver(self, message: Message, client: Client, *, acknowledged: bool = True) -> None:
        """Pass on what can be taken, and is recorded. ``acknowledged`` as for ``publish``."""
        channel = message.channel
        if is_queue(channel):
            name = channel[len(QUEUE_PREFIX) :]
            if self.sharing is None or not self.sharing.put(name, message, client, acknowledged=acknowledged):
                self.queue(name).enter(message)
            return
        if message.body_failed:
            self._relay_failed(message, client)
            return
        if message.retain:
            self.keep(message)
        self._route(message)
        if self.on_service_topic is not None and is_service_topic(channel):
            self.on_service_topic(message, client)

    def deliver_here(self, message: Message, *, late: bool = False) -> None:
        """Pass on a message that came from another node: to clients of this one only.

        One that comes ``late`` is not for those who have subscribed since it was published.
        """
        channel = message.channel
        for subscription in self.subscribers(channel):
            if subscription.protocol == ELSEWHERE or (late and subscription.since > message.time + MOST_APART):
                continue
            if not message.body_failed or subscription.takes_failed_body:
                subscription.deliver(message)

    def keep(self, message: Message, *, forwarded: bool = True) -> None:
        """Keep a client's retained message, or let it clear its channel. ``forwarded``: subscribers get it as well."""
        self.retained.keep(message)
        if self.on_keep is not None:
            self.on_keep(message, forwarded)

    def announce(self, message: Message) -> None:
        """Publish what the hub itself has to say on a service channel, which is neither recorded nor counted."""
        if message.retain:
            self.retained.keep(message)
        self.deliver_here(message)

    def fault(self, client: Client, rule: str, reason: str = "", raw: bytes = b"", size: int = -1) -> None:
        """Count what a client did wrong, and record what it sent, of which ``raw`` may be the first part only."""
        client.counters.fault(rule)
        if self.recorder is not None:
            self.recorder.discarded(client, "", rule, reason, raw, len(raw) if size < 0 else size)

    def warn(self, kind: str, text: str) -> None:
        """Log what clients can cause as often as they like: lines of one ``kind`` are written now and then."""
        if self.on_warning is not None:
            self.on_warning(kind, text)

    def forward(self, run: Run, runs: Runs) -> bool:
        """Record a run of plain publications, and pass it on: as it is, or message by message.

        False where each publication must be looked at, and published, by itself: subscriptions may have changed the
        routes since the run was found, or the journal can't be written.
        """
        recorder = self.recorder
        if recorder is not None:
            if self.table.changes != runs.version or (recorder.failed and (run.qos != 0 or self.strict)):
                runs.record(recorder)
                return False
            runs.add(run, recorder)
        elif self.table.changes != runs.version:
            return False
        runs.client.counters.messages_in += run.count
        route = cast("Route", run.route)
        if route.remotes:
            self._forward_elsewhere(run, runs, route)
        self.forward_here(run, runs)
        return True

    def _forward_elsewhere(self, run: Run, runs: Runs, route: Route) -> None:
        """Send a run to other nodes."""
        recorder = self.recorder
        promised = run.qos != 0 and recorder is not None and not recorder.failed
        offset: i64 = runs.next_offset(recorder) - run.count if promised and recorder is not None else -1
        client = runs.client
        head = (client.protocol, run.count, client.number, int(runs.now), int(offset))
        data = _octets(run)
        for remote in route.remotes:
            remote.forward(data, head)

    def forward_here(self, run: Run, runs: Runs) -> None:
        """Pass on a run, which may come from another node, to clients of this one."""
        client = runs.client
        route = cast("Route", run.route)
        if run.qos != 0:  # each subscriber gets them with its own QoS
            if route.here:
                self._fan_out(run, runs, route.here, NONE_REFUSED)
            return
        outboxes = route.raw(client.protocol)
        refused = NONE_REFUSED
        if outboxes:
            data = _octets(run)
            for outbox in outboxes:
                if not outbox.offer(data):
                    if refused is NONE_REFUSED:
                        refused = []
                    refused.append(outbox)
            client.counters.messages_out += run.count * (len(outboxes) - len(refused))
        cooked = route.cooked(client.protocol)
        if cooked or refused:
            self._fan_out(run, runs, cooked, refused)

    def _fan_out(self, run: Run, runs: Runs, subscriptions: list[Subscription], refused: list[Outbox]) -> None:
        """Deliver the messages of a run one by one, and count them for those who were too slow for the whole run."""
        client = runs.client
        recorder = self.recorder
        offset: i64 = -1
        if recorder is not None and subscriptions:
            offset = runs.record(recorder) - run.count
        data = run.data
        qos = run.qos if runs.qos < 0 else runs.qos
        now: int = runs.now
        origin = runs.origin
        out = BytesWriter()
        runs.locate(data, run.start, run.end, 0, out)
        places = out.getvalue()
        size: i64 = len(places)
        channel = ""
        at: i64 = 0
        known: i64 = -1  # the length of the name at `at`, which is `channel`
        pos: i64 = 0
        while pos < size:
            name: i64 = read_i64_le(places, pos)
            body: i64 = read_i64_le(places, pos + 8)
            pos += PLACE_SIZE
            start: i64 = name & LOW_HALF
            length: i64 = (name >> 32) - start
            if length != known or not same_bytes(data, at, start, length):
                channel = _names.text(data[start : start + length])
                at = start
                known = length
            for outbox in refused:
                outbox.count_dropped(channel, 1)
            if subscriptions:
                message = Message(
                    channel,
                    data[body & LOW_HALF : body >> 32],
                    "",
                    (),
                    (),
                    retain=False,
                    time=now,
                    origin=origin,
                    qos=qos,
                )
                if offset >= 0:
                    message.offset = offset
                    offset += 1
                for subscription in subscriptions:
                    subscription.deliver(message)
        if refused:
            client.counters.drop(SLOW_READER, run.count * len(refused))

    def view(self, client: Client) -> RouteView:
        """The routes for the scanner of this client's protocol, with this client's rights."""
        key = (client.protocol, client.grants)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            view = self.table.view(Forwardable(client.grants))
            self._views[key] = view
        return view

    def forget_views(self) -> None:
        """The access rules have changed: what was allowed is looked up again."""
        self._views.clear()

    def takes_queue(self, channel: str) -> bool:
        """Whether the queue of this channel exists or may be created."""
        if channel[len(QUEUE_PREFIX) :] in self.queues:
            return True
        return len(self.queues) < self.most_queues and self.names_total() < self.most_names_size_together

    def stop_work(self) -> None:
        """The hub goes down: queues hand out nothing more, and no calls begin."""
        self.draining = True
        self.services.draining = True
        for queue in self.queues.values():
            queue.stopped = True

    def subscribe(self, client: Client, key: object, subscription: Subscription) -> Refused | None:
        """Add a subscription under the session's own ``key``; ``replay`` sends it the retained messages.

        It takes the place of another one under that key.
        """
        old = client.subscriptions.get(key)
        pattern = subscription.pattern
        refused: Refused | None = None
        if not self.allows(client.grants, subscription):
            refused = Refused.FORBIDDEN
        elif is_too_deep(pattern):
            refused = Refused.TOO_DEEP
        elif old is None and not self._has_place(client):
            refused = Refused.LIMIT
        if refused is not None:
            return self.refuse(client, SUBSCRIBE, pattern, refused)
        if old is None or old.pattern != pattern:
            refused = self._hold_name(client, pattern)
            if refused is not None:
                return refused
        before = self.table.reach()
        subscription.since = self.clock()
        self.table.add(subscription)
        grown = self.table.reach() - before
        if grown > 0 and (client.reach + grown > self.most_reach or before + grown > self.most_reach_together):
            self.table.discard(subscription)
            self._release_name(client, pattern)
            return self.refuse(client, SUBSCRIBE, pattern, Refused.PATTERN_COST)
        client.reach += grown
        if self.recorder is not None:
            self.recorder.subscribed(client, to_stars(pattern))
        client.subscriptions[key] = subscription
        self._count(client, subscription)
        if old is not None:
            # After the new one, so that demand does not seem to go away in between.
            if old.pattern != pattern:
                self._release_name(client, old.pattern)
            self._end(client, old, replaced=True)
        return None

    def replay(self, client: Client, subscription: Subscription) -> None:
        """Send a new subscription the retained messages there are, in steps, as fast as the client takes them."""
        self._replay(client).subscribed(subscription)

    def _has_place(self, client: Client) -> bool:
        """Whether a client may have one subscription, queue, watcher or service more."""
        held = len(client.subscriptions) + len(client.consumers) - len(client.parting) + len(client.watchers)
        return held + self.services.offer_count(client) < client.most_subscriptions

    def _hold_name(self, client: Client, name: str) -> Refused | None:
        """Count what a client keeps under a name, unless that is too much."""
        cost = name_cost(name)
        if client.names_size + cost > self.most_names_size:
            return self._full(client, Refused.NAMES_SIZE, "a subscription", name, "limits.names_size")
        if self.names_size + cost + NODE * (self.table.nodes() + self.demand.nodes()) > self.most_names_size_together:
            return self._full(client, Refused.NAMES_SIZE, "a subscription", name, "limits.names_size_total")
        client.names_size += cost
        self.names_size += cost
        return None

    def _release_name(self, client: Client, name: str) -> None:
        """A client keeps nothing under a name any more."""
        cost = min(name_cost(name), client.names_size)
        client.names_size -= cost
        self.names_size -= cost

    def names_total(self) -> int:
        """About how many bytes the names take that clients subscribe to, watch and serve, and those of queues."""
        return self.names_size + NODE * (self.table.nodes() + self.demand.nodes())

    def busy(self, client: Client) -> bool:
        """Whether what the client has asked for is not done yet, apart from what it is sent because of it."""
        return self.work.busy(client.number) or client.number in self.demand.untold

    def when_idle(self, client: Client, call: Callable[[], None]) -> None:
        """Call a function once, when all that a busy client has asked for is done."""
        self._idle[client.number] = call

    def unsubscribe(self, client: Client, key: object) -> bool:
        """Remove the subscription under ``key``. False where there is none."""
        subscription = client.subscriptions.pop(key, None)
        if subscription is None:
            return False
        self._release_name(client, subscription.pattern)
        if self.recorder is not None:
            self.recorder.unsubscribed(client, to_stars(subscription.pattern))
        self._end(client, subscription, replaced=False)
        return True

    def silence(self, client: Client, *, topics: bool = True, calls: bool = True) -> None:
        """Let a client have nothing from others any more, though it is still there, in steps.

        It takes from no queue and serves nothing; its subscriptions to ``topics`` and the ``calls`` it has made end as
        well.
        """
        client.serves = False
        if (topics and client.subscriptions) or client.consumers or self.services.has(client):
            self.work.start(client.number, _Silencing(self, client, topics=topics, calls=calls))

    def queue(self, name: str) -> Queue:
        """The queue of this name, which exists from its first use."""
        queue = self.queues.get(name)
        if queue is None:
            queue = Queue(
                name,
                max_messages=self.queue_messages,
                max_octets=self.queue_octets,
                totals=self.queue_totals,
                later=self.later,
            )
            queue.policy = self.policy(name)
            queue.on_dead = self._dead
            if self.recorder is not None:
                queue.on_ack = self.recorder.dequeued
                queue.on_return = self.recorder.returned
            self.queues[name] = queue
            self.names_size += name_cost(name)
            if self.sharing is not None:
                self.sharing.made(queue)
        return queue

    def policy(self, queue: str) -> Policy:
        """The first policy that is for the queue of this name."""
        for policy in self.queue_policies:
            if policy.covers(queue):
                return policy
        return NO_POLICY

    def set_policies(self, policies: tuple[Policy, ...]) -> None:
        """Handle what is delivered again and again in this way from now on."""
        self.queue_policies = policies
        for queue in self.queues.values():
            queue.policy = self.policy(queue.name)

    def _dead(self, queue: Queue, delivery: Delivery, reason: str) -> bool:
        """Move a message that is given up to its dead-letter queue. False where it can't be: then it stays."""
        name = queue.policy.dead_letter
        message = dead_letter(delivery, QUEUE_PREFIX + name, reason, self.clock())
        recorder = self.recorder
        totals = self.queue_totals
        if self.sharing is not None:
            return self.sharing.move(delivery, message)
        if not self.takes_queue(message.channel):
            problem = Refused.TOO_MANY_QUEUES.label
        elif recorder is not None and recorder.failed:
            problem = Refused.UNAVAILABLE.label
        elif not self.queue(name).has_room(message):
            problem = Refused.QUEUE_FULL.label
        elif totals.size + footprint(message) - footprint(delivery.message) > totals.most:
            problem = Refused.QUEUES_FULL.label
        else:
            if recorder is not None:
                message.offset = recorder.moved(message, queue.name, delivery.message.offset)
            self.queue(name).enter(message)
            return True
        where = queue.name[:SHOWN]
        self.warn(
            f"dead letter {problem}",
            f"a message of the queue {where!r} that was delivered {delivery.attempts} times stays there, as it can't "
            f"be moved to {name[:SHOWN]!r}: {problem}",
        )
        return False

    def forget_queue(self, name: str) -> None:
        """A queue is empty and has no consumers."""
        if self.queues.pop(name, None) is not None:
            self.names_size -= name_cost(name)

    def consume(
        self,
        client: Client,
        name: str,
        consumer: Consumer,
        *,
        begin: bool = True,
        replacing: Consumer | None = None,
        resumed: bool = False,
    ) -> Refused | None:
        """Let a client's consumer take from the queue of this name; once more is no more, but rights are checked.

        Without ``begin`` it gets nothing before ``begin_consuming``. It may take the place of another one of the
        client's, ``replacing``, that will be stopped. ``resumed``: the client was granted the queue earlier, and may
        have it however many queues there are by now.
        """
        refused: Refused | None = None
        known = consumer in client.consumers and consumer not in client.parting
        if not client.grants.may_subscribe(QUEUE_PREFIX + name):
            refused = Refused.FORBIDDEN
        elif is_too_deep(QUEUE_PREFIX + name):
            refused = Refused.TOO_DEEP
        elif not known and replacing is None and not self._has_place(client):
            refused = Refused.LIMIT
        elif not known and not resumed and not self.takes_queue(QUEUE_PREFIX + name):
            refused = Refused.TOO_MANY_QUEUES
        if refused is not None:
            return self.refuse(client, SUBSCRIBE, QUEUE_PREFIX + name, refused)
        if consumer in client.parting:
            client.parting.discard(consumer)
        elif not known:
            queue = self.queue(name)
            queue.admit(consumer)
            client.consumers[consumer] = queue
            if begin:
                queue.resume(consumer)
        return None

    def begin_consuming(self, client: Client, consumer: Consumer) -> None:
        """Hand out to a consumer what its queue holds and will hold."""
        queue = client.consumers.get(consumer)
        if queue is not None and consumer not in client.revoked:
            queue.resume(consumer)

    def stop_consuming(self, client: Client, consumer: Consumer) -> None:
        """Remove a consumer. An empty queue without consumers is forgotten."""
        queue = client.consumers.pop(consumer, None)
        if queue is None:
            return
        client.revoked.discard(consumer)
        client.parting.discard(consumer)
        queue.detach(consumer)
        if queue.idle():
            self.forget_queue(queue.name)

    def watch(self, client: Client, key: object, watcher: Watcher) -> Refused | None:
        """Notify a client's watcher of the demand for topics, now and on every change."""
        if client.watchers.get(key) is not watcher:
            refused: Refused | None = None
            pattern = watcher.pattern
            if not client.grants.may_subscribe(pattern):
                refused = Refused.FORBIDDEN
            elif not self._has_place(client):
                refused = Refused.LIMIT
            if refused is not None:
                return self.refuse(client, SUBSCRIBE, pattern, refused)
            if len(client.watchers) >= self.most_watchers:
                return self._full(client, Refused.WATCHERS, "a watcher", pattern, "limits.watchers")
            if len(self.demand) >= self.most_watchers_together:
                return self._full(client, Refused.WATCHERS, "a watcher", pattern, "limits.watchers_total")
            refused = self._hold_name(client, pattern)
            if refused is not None:
                return refused
            client.watchers[key] = watcher
            self.demand.watch(watcher, remind=False)
        elif not client.grants.may_subscribe(watcher.pattern):
            return self.refuse(client, SUBSCRIBE, watcher.pattern, Refused.FORBIDDEN)
        self._replay(client).watched(watcher)
        return None

    def unwatch(self, client: Client, key: object) -> bool:
        """Stop notifying the watcher under ``key``. False if there is none."""
        watcher = client.watchers.pop(key, None)
        if watcher is None:
            return False
        client.revoked.discard(watcher)
        self.end_watching(client, watcher)
        self._release_name(client, watcher.pattern)
        return True

    def end_watching(self, client: Client, watcher: Watcher) -> None:
        """Tell a watcher nothing more, at least for now."""
        if client.replay is not None:
            client.replay.forget(watcher)
        self.demand.unwatch(watcher)

    def serve(self, client: Client, service: str, provider: Provider) -> Refused | None:
        """Let a client's provider take calls to a service; once more is no more, but rights are checked."""
        if not client.grants.may_serve(service):
            return self.refuse(client, SERVE, service, Refused.FORBIDDEN)
        if self.services.offers(client, service):
            return None
        if not self._has_place(client):
            return self.refuse(client, SERVE, service, Refused.LIMIT)
        refused = self._hold_name(client, service)
        if refused is None:
            self.services.serve(service, provider)
        return refused

    def unserve(self, client: Client, service: str) -> bool:
        """Stop offering a service; calls in flight continue. False if the client does not offer it."""
        if not self.services.unserve(service, client):
            return False
        client.revoked.discard(service)
        self._release_name(client, service)
        return True

    def call(
        self, client: Client, call: Call, message: Message, *, last: bool = True, seconds: float = DEFAULT_SECONDS
    ) -> Refused | None:
        """Begin a client's call with its first request. What can't begin for another reason has failed at once."""
        refused: Refused | None = None
        if not client.grants.may_call(call.service):
            refused = Refused.FORBIDDEN
        elif self.services.call_count(client) >= client.most_calls:
            refused = Refused.LIMIT
        if refused is not None:
            call.ended = True
            return self.refuse(client, CALL, call.service, refused)
        call.client = client
        self.services.start(call, message, last=last, seconds=seconds)
        return None

    def regrant(self, client: Client, grants: Grants) -> None:
        """Give a client other rights: suspend what they no longer allow, resume what they allow again.

        This is done in steps. Calls in flight continue.
        """
        client.grants = grants
        if client.subscriptions or client.watchers or client.consumers or self.services.offer_count(client) > 0:
            self.regranting += 1
            self.work.start(client.number, _Regranting(self, client), PROMPT)

    def regranted(self) -> None:
        """One client less whose rights have changed and are to be applied to what it has."""
        self.regranting -= 1
        if self.regranting == 0 and self.on_regranted is not None:
            self.on_regranted()

    def regrant_one(self, client: Client, what: object) -> None:
        """Suspend or resume one of a client's subscriptions, watchers, consumers or services.

        A service is given by its name.
        """
        if isinstance(what, Subscription):
            allowed = self.allows(client.grants, what)
        elif isinstance(what, Watcher):
            allowed = client.grants.may_subscribe(what.pattern)
        elif isinstance(what, Consumer):
            queue = client.consumers.get(what)
            if queue is None:
                return
            allowed = client.grants.may_subscribe(QUEUE_PREFIX + queue.name)
        elif isinstance(what, str):
            if not self.services.offers(client, what):
                return
            allowed = client.grants.may_serve(what)
        if allowed != (what in client.revoked):
            return
        if allowed:
            client.revoked.discard(what)
        else:
            client.revoked.add(what)
        if isinstance(what, Subscription):
            if allowed:
                self.table.add(what)
                self._count(client, what)
            else:
                self._drop(client, what, replaced=False)
        elif isinstance(what, Watcher):
            if allowed:
                self.demand.watch(what, remind=False)
                self._replay(client).watched(what)
            else:
                self.end_watching(client, what)
        elif isinstance(what, Consumer) and allowed:
            client.consumers[what].resume(what)
        elif isinstance(what, Consumer):
            client.consumers[what].suspend(what)
        elif isinstance(what, str) and allowed:
            self.services.resume(what, client)
        elif isinstance(what, str):
            self.services.suspend(what, client)

    def safe(self, done: Callable[[], None], failed: Callable[[], None], client: Client | None = None) -> None:
        """Call ``done`` once everything accepted so far is on disk (immediately if there is no journal).

        If it can't be written, call ``failed``. Callbacks of one session are called in order. For a ``client`` of which
        something depends on more than this hub's disk (``promise``), that is waited for as well.
        """
        promises = None if client is None else client.promises
        if promises is not None:
            waiter = promises.waiter(done, failed)
            if self.when_safe is None:
                waiter.safe()
            else:
                self.when_safe(waiter.safe, waiter.unsafe)
        elif self.when_safe is None:
            done()
        else:
            self.when_safe(done, failed)

    def promise(self, client: Client) -> Promise:
        """What this client is told of next with ``safe`` waits for this promise too."""
        if client.promises is None:
            client.promises = Promises(client)
        return client.promises.make()

    def _replay(self, client: Client) -> Replay:
        replay = client.replay
        if replay is None:
            replay = Replay(client.outbox, self.retained, self.demand, self.work, -client.number)
            client.replay = replay
        return replay

    def _rests(self, owner: object) -> None:
        """All jobs of an owner are done, or all watchers know what it has changed."""
        if owner in self._idle and not self.work.busy(owner) and owner not in self.demand.untold:
            self._idle.pop(owner)()

    def _full(self, client: Client, reason: Refused, what: str, name: str, limit: str) -> Refused:
        """Count and log that a limit keeps the hub from storing something for a client."""
        client.counters.drop(reason.label)
        who = f"user {client.identity.name[:SHOWN]!r}" if client.identity.name else "the anonymous user"
        mine = (client.name or client.address)[:SHOWN]
        where = to_stars(name[:SHOWN])
        text = f"{what} of {client.counters.protocol} client {mine!r} of {who} to {where!r} was refused"
        self.warn(f"{reason.label} {limit}", f"{text}: {limit} is reached")
        return reason

    def subscribers(self, channel: str) -> list[Subscription]:
        """The subscriptions to a channel, or to all channels that a pattern meets."""
        return self.table.route(channel).subscriptions if is_literal(channel) else self.table.meeting(channel)

    def _route(self, message: Message) -> None:
        """Deliver a message to the subscribers of its channel, or of all channels its pattern meets."""
        for subscription in self.subscribers(message.channel):
            subscription.deliver(message)

    def _relay_failed(self, message: Message, client: Client) -> None:
        """Deliver a message whose body failed to those who can be told of that; to the others it is lost."""
        for subscription in self.subscribers(message.channel):
            if subscription.takes_failed_body:
                subscription.deliver(message)
            else:
                client.counters.drop(FAILED_BODY)

    def _count(self, client: Client, subscription: Subscription) -> None:
        """One more subscription is demand."""
        if subscription.counted:
            pattern = subscription.pattern
            times = client.demands.get(pattern, 0)
            client.demands[pattern] = times + 1
            if times == 0:
                self.demand.add(pattern, client.number)
            else:
                self.demand.repeat(pattern, client.number)

    def _end(self, client: Client, subscription: Subscription, *, replaced: bool) -> None:
        """A subscription is no longer the client's; one that was revoked has been dropped already."""
        if subscription in client.revoked:
            client.revoked.discard(subscription)
        else:
            self._drop(client, subscription, replaced=replaced)

    def _drop(self, client: Client, subscription: Subscription, *, replaced: bool) -> None:
        if client.replay is not None:
            client.replay.forget(subscription)
        before = self.table.reach()
        self.table.discard(subscription)
        client.reach = max(0, client.reach + self.table.reach() - before)
        if subscription.counted:
            pattern = subscription.pattern
            times = client.demands.get(pattern, 0) - 1
            if times > 0:
                client.demands[pattern] = times
                if not replaced:
                    self.demand.repeat(pattern, client.number)
            elif times == 0:
                del client.demands[pattern]
                self.demand.remove(pattern, client.number)

    def client_count(self) -> int:
        """How many clients there are, on all nodes."""
        return len(self.clients) + self.clients_elsewhere

    def count_elsewhere(self, clients: int) -> None:
        """Other nodes have so many clients."""
        self.clients_elsewhere = clients
        self._presence()

    def _presence(self) -> None:
        count = self.client_count()
        for told in self.on_presence:
            told(count)


@final
class Publishing(Job):
    """The last wills of a client, published group by group. Until the last one they take ``size`` bytes."""

    def __init__(self, hub: Hub, client: Client, wills: list[Message], size: int) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._wills: Final = wills
        self._size: Final = size
        self._group = 0

    def step(self) -> int:
        """Publish one group."""
        start = self._group * WILLS_AT_ONCE
        some = self._wills[start : start + WILLS_AT_ONCE]
        if some:
            self._hub.publish_wills(self._client, some, self._group)
            self._group += 1
        if start + WILLS_AT_ONCE < len(self._wills):
            return MORE
        self._hub.wills_size -= self._size
        return DONE


@final
class _Leaving(Job):
    """The end of a client: its services and calls, one subscription after the other, then its last wills."""

    def __init__(self, hub: Hub, client: Client) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._wills: Publishing | None = None

    def step(self) -> int:
        """One service, call, subscription, watcher, consumer or topic less, or some wills published."""
        hub, client = self._hub, self._client
        if hub.services.end_one(client):
            return MORE
        if client.subscriptions:
            subscription = client.subscriptions.popitem()[1]
            subscription.leave()
            hub.table.discard(subscription)
        elif client.watchers:
            hub.demand.unwatch(client.watchers.popitem()[1])
        elif client.consumers:
            hub.stop_consuming(client, next(reversed(client.consumers)))
        elif client.demands:
            hub.demand.remove(client.demands.popitem()[0], client.number)
        else:
            if self._wills is None:
                self._wills = hub.publishing(client)
            if self._wills.step() == DONE:
                hub.left(client)
                return DONE
        return MORE


@final
class _Silencing(Job):
    """The end of what a client is sent, while it is still there."""

    def __init__(self, hub: Hub, client: Client, *, topics: bool, calls: bool) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._topics: Final = topics
        self._calls: Final = calls

    def step(self) -> int:
        """End one subscription, service or call, or stop one consumer."""
        hub, client = self._hub, self._client
        if self._topics and client.subscriptions:
            hub.unsubscribe(client, next(reversed(client.subscriptions)))
        elif client.consumers:
            hub.stop_consuming(client, next(reversed(client.consumers)))
        elif not hub.services.end_one(client, made=self._calls):
            return DONE
        return MORE


@final
class _Regranting(Job):
    """What a client has, looked at after its rights have changed."""

    def __init__(self, hub: Hub, client: Client) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._left: list[object] | None = None

    def step(self) -> int:
        """Update one of the client's entries."""
        client = self._client
        if self._left is None:
            services = self._hub.services.offers_of(client)
            self._left = [*services, *client.consumers, *client.watchers.values(), *client.subscriptions.values()]
        if self._left and not client.leaving:
            self._hub.regrant_one(client, self._left.pop())
            return MORE
        self._hub.regranted()
        return DONE


@final
class Forwardable(TopicFilter):
    """The topics that publishers with these rights may publish to, and whose messages need no further look."""

    def __init__(self, grants: Grants) -> None:
        self._grants: Final = grants

    def takes(self, channel: str) -> bool:
        """Whether they may publish there, and only subscribers get it."""
        if channel.startswith(QUEUE_PREFIX) or is_service_topic(channel) or is_too_deep(channel):
            return False
        return self._grants.may_publish(channel)

    def tries(self) -> list[Trie[str]]:
        """The tries of its publish rights."""
        return self._grants.publish_tries()


def _octets(run: Run) -> bytes | memoryview:
    """The frames of a run."""
    if run.end - run.start < JOIN_BELOW:
        return run.data[run.start : run.end]
    # Not copied, at the price of keeping the whole chunk alive until it is written.
    return memoryview(run.data)[run.start : run.end]


def is_queue(channel: str) -> bool:
    """Whether a channel, or a subscription to it, is a queue's; a pattern never is."""
    return channel.startswith(QUEUE_PREFIX) and is_literal(channel)


def is_service_channel(channel: str) -> bool:
    """Whether a channel is the hub's own: FMQP's service topics."""
    return channel == "$" or channel.startswith("$/")


def is_too_deep(channel: str) -> bool:
    """Whether a channel has more levels than the tries are to hold."""
    return len(channel) >= MAX_LEVELS and channel.count("/") >= MAX_LEVELS


def is_service_topic(channel: str) -> bool:
    """Whether a topic is where requests and responses of a service go: ``/<name>``, one level."""
    return channel.startswith("/") and channel.count("/") == 1 and channel not in {"/", f"/{REST}"}
