"""The hub: what sessions ask for, and the core that does it.

Sessions publish, subscribe, queue and call through here, so access is checked and numbers are counted in one place.
The hub runs in one thread and never waits: time and the end of a turn come in as functions.
"""

import time
from collections.abc import Callable
from typing import Final, cast, final

from polywire.hub.access import PUBLISH, SIGNAL, Grants
from polywire.hub.channels import MAX_LEVELS, REST, is_literal, to_stars
from polywire.hub.client import Client
from polywire.hub.counters import Counters
from polywire.hub.demand import Demand, Watcher
from polywire.hub.message import Message
from polywire.hub.outbox import JOIN_BELOW, Flusher, Later, Outbox
from polywire.hub.queues import (
    MAX_MESSAGES,
    MAX_OCTETS,
    NO_POLICY,
    Consumer,
    Delivery,
    Policy,
    Queue,
    Totals,
    dead_letter,
    footprint,
)
from polywire.hub.recorder import Recorder
from polywire.hub.retained import Retained
from polywire.hub.routes import Route, RouteTable, RouteView, Subscription, TopicFilter
from polywire.hub.services import FAILED_BODY, Services
from polywire.hub.trie import Trie
from polywire.journal.kinds import WILL_FLAG
from polywire.protocols.frame import Run

MAX_VIEWS: Final = 4096
MAX_QUEUES: Final = 10_000
MAX_REACH: Final = 1_000
MAX_REACH_TOGETHER: Final = 20_000
COSTLY_PATTERN: Final = "your patterns overlap in too many ways; use fewer, or fewer levels and wildcards in each"
NO_QUEUE: Final = "the hub has no room for another queue"
FULL_QUEUES: Final = "the hub's queues are full"
QUEUE_PREFIX: Final = "queue/"
SIGNALS: Final = ("$/signals/stop", "$/signals/terminate")

FORBIDDEN: Final = "forbidden"
SERVICE_CHANNEL: Final = "service-channel"
QUEUE_FULL: Final = "queue-full"
QUEUES_FULL: Final = "queues-full"
TOO_MANY_QUEUES: Final = "too-many-queues"
RETAINED_FULL: Final = "retained-full"
TOO_DEEP: Final = "too-deep"
TOO_COSTLY: Final = "pattern-cost"
DRAINING: Final = "draining"
UNAVAILABLE: Final = "journal-unavailable"

UNWRITABLE: Final = "the journal can't be written at the moment; try again later"

SHOWN: Final = 64
"""How much of a name that a client chose goes to the log."""

WhenSafe = Callable[[Callable[[], None], Callable[[], None]], None]
"""Calls the first function once everything accepted so far is safe, or the second where it can't be."""

NONE_REFUSED: Final[list[Outbox]] = []


@final
class Hub:
    """One hub. ``soon`` runs a function when the turn of the loop ends, ``later`` after some seconds.

    ``clock`` is the time of day, for timestamps; ``monotonic`` measures durations, and is not set by anybody. Both
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
        self.later: Final = later
        self.flusher: Final = Flusher(soon, later)
        self.table: Final = RouteTable()
        self.retained: Final = Retained()
        self.demand: Final = Demand()
        self.services: Final = Services(later, monotonic)
        self.counters: Final = [Counters(name) for name in protocols]
        self.clients: Final[dict[int, Client]] = {}
        self.queues: Final[dict[str, Queue]] = {}
        self.queue_messages = MAX_MESSAGES
        self.queue_octets = MAX_OCTETS
        self.queue_totals: Final = Totals()
        self.queue_policies: tuple[Policy, ...] = ()
        self.most_queues = MAX_QUEUES
        self.most_reach = MAX_REACH
        self.most_reach_together = MAX_REACH_TOGETHER
        self.draining = False
        self.on_presence: list[Callable[[int], None]] = []
        self.on_signal: Callable[[str], None] | None = None
        self.on_warning: Callable[[str, str], None] | None = None
        self.on_service_topic: Callable[[Message, Client], None] | None = None
        self.on_refused: Callable[[Client, str, str, str], None] | None = None
        self.on_oversized: Callable[[Client, int, int, bool], None] | None = None
        self.recorder: Recorder | None = None  # the journal's, as the next two
        self.when_safe: WhenSafe | None = None
        self.strict = False  # while the journal can't be written, nothing is taken, acknowledged or not
        self.shared: Final[dict[str, object]] = {}  # what the sessions of one protocol share, by the protocol's name
        self._views: Final[dict[tuple[int, Grants], RouteView]] = {}
        self._last_number = first_number
        self.services.last_number = first_number

    def client(self, protocol: int, outbox: Outbox, address: str = "", *, local: bool = True) -> Client:
        """A new client, not yet part of the hub: it joins when its protocol's handshake is done."""
        return Client(self.next_number(), protocol, outbox, self.counters[protocol], address, local=local)

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
        """The client's connection has ended: its subscriptions go, its last wills are published."""
        for subscription in list(client.subscriptions.values()):
            self.table.discard(subscription)
        client.subscriptions.clear()
        for watcher in client.watchers.values():
            self.demand.unwatch(watcher)
        client.watchers.clear()
        for consumer in list(client.consumers):
            self.stop_consuming(client, consumer)
        client.revoked.clear()
        for topic in list(client.demands):
            self.demand.remove(topic)
        client.demands.clear()
        self.send_wills(client)
        if client.joined:
            client.joined = False
            if self.recorder is not None:
                self.recorder.disconnected(client)
            del self.clients[client.number]
            client.counters.connected -= 1
            self._presence()

    def leave_will(self, client: Client, message: Message, size: int, mark: int = 0) -> None:
        """Keep a last will of ``size`` bytes until the client's connection ends, even if the hub is killed first.

        ``mark`` comes back from the journal with the will, for the client's protocol. A signal is for this life only.
        """
        client.wills.add(message, size)
        if self.recorder is not None and not is_service_channel(message.channel):
            self.recorder.will_left(message, client, mark)

    def withdraw_wills(self, client: Client) -> None:
        """The client's last wills are not to be published."""
        if len(client.wills) > 0:
            client.wills.clear()
            if self.recorder is not None:
                self.recorder.wills_over(client)

    def send_wills(self, client: Client) -> None:
        """Publish what the client wanted published at its end, in the order in which it was sent."""
        wills = client.wills.take()
        if not wills:
            return
        recorder = self.recorder
        if recorder is not None:
            recorder.together(True)  # a hub that is killed now publishes all of them when it starts again, or none
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
            recorder.wills_over(client)
            recorder.together(False)

    def signal(self, channel: str, client: Client) -> None:
        """A client has published to a service channel: do what it asks for, if it may."""
        refused = self.signal_refusal(channel, client)
        if refused is not None:
            self.refuse(client, SIGNAL if refused == FORBIDDEN else PUBLISH, channel, refused)
        elif self.on_signal is not None:
            self.on_signal(channel.rpartition("/")[2])

    def signal_refusal(self, channel: str, client: Client) -> str | None:
        """Why a publication to a service channel does nothing, or None where it is a signal the client may give."""
        if channel not in SIGNALS or self.on_signal is None:
            return SERVICE_CHANNEL
        return None if client.may_signal(channel) else FORBIDDEN

    def clear(self, message: Message, client: Client) -> None:
        """Take a message without a body that is forwarded to nobody: one to be retained clears its channel."""
        if not message.retain:
            return
        if client.grants.may_publish(message.channel):
            self.retained.keep(message)
            if self.recorder is not None:
                self.recorder.cleared(to_stars(message.channel), client)
        else:
            self.refuse(client, PUBLISH, message.channel, FORBIDDEN, message.body)

    def publish(
        self,
        message: Message,
        client: Client,
        *,
        acknowledged: bool = True,
        must_retain: bool = True,
        flags: int = 0,
    ) -> str | None:
        """Pass a client's message on: to the subscribers, the queue, the retained ones. Why not, where it can't be.

        ``acknowledged``: the client will be notified that it is on disk. ``must_retain``: a message that can't be
        retained is refused; without it, for protocols that can't say so, it is passed on and not retained. ``flags``
        are the journal's. Everything is decided before anything is recorded.
        """
        if message.retain and not must_retain and not self.retained.has_room(message):
            client.counters.drop(RETAINED_FULL)
            message = message.unretained()
        refused = self.refusal(message, client, acknowledged=acknowledged)
        if refused is None:
            if self.recorder is not None:
                self.record(message, client, self.recorder, flags)
            self.deliver(message, client)
            client.counters.messages_in += 1
        else:
            self.refuse(client, PUBLISH, message.channel, refused, message.body)
        return refused

    def refuse(self, client: Client, action: str, channel: str, reason: str, body: bytes | None = None) -> None:
        """A client may not do something, or can't: count and log it, since not every protocol can tell the client.

        ``action`` is one of ``ACTIONS``, ``channel`` what it was about, a service perhaps. ``reason`` is ``FORBIDDEN``
        where the access rules don't allow it. ``body`` is that of a message, which the journal gets.
        """
        client.counters.drop(reason)
        if reason == FORBIDDEN:
            client.counters.deny(action)
        if body is not None and self.recorder is not None:
            self.recorder.discarded(client, channel, reason, "", body, len(body))
        if self.on_refused is not None:
            self.on_refused(client, action, to_stars(channel), reason)

    def oversized(self, client: Client, size: int, limit: int, *, cut: bool = False) -> None:
        """A client's message is larger than ``limit``, and was refused or ``cut``: count and log it.

        ``size`` is 0 where it is not known how large the message is.
        """
        client.counters.oversized += 1
        if self.on_oversized is not None:
            self.on_oversized(client, size, limit, cut)

    def refusal(self, message: Message, client: Client, *, acknowledged: bool) -> str | None:
        """Why a message can't be taken, or None where it can."""
        channel = message.channel
        if not client.grants.may_publish(channel):
            return FORBIDDEN
        if is_service_channel(channel):
            return SERVICE_CHANNEL
        if is_queue(channel) and not self.takes_queue(channel):
            return TOO_MANY_QUEUES
        if is_too_deep(channel):
            return TOO_DEEP
        if self.recorder is not None and self.recorder.failed and (acknowledged or self.strict):
            return UNAVAILABLE
        if is_queue(channel) and not self.queue(channel[len(QUEUE_PREFIX) :]).has_room(message):
            return QUEUE_FULL
        if is_queue(channel) and self.queue_totals.size + footprint(message) > self.queue_totals.most:
            return QUEUES_FULL
        if message.retain and not self.retained.has_room(message):
            return RETAINED_FULL
        return None

    def record(self, message: Message, client: Client, recorder: Recorder, flags: int = 0) -> None:
        """Give a message that can be taken its place in the journal."""
        channel = message.channel
        if is_queue(channel):
            message.offset = recorder.enqueued(message, client)
        else:
            heard = len(self._subscriptions(channel)) > 0
            message.offset = recorder.published(message, client, flags, heard=heard)

    def deliver(self, message: Message, client: Client) -> None:
        """Pass on what can be taken, and is recorded."""
        channel = message.channel
        if is_queue(channel):
            self.queue(channel[len(QUEUE_PREFIX) :]).enter(message)
            return
        if message.body_failed:
            self._relay_failed(message, client)
            return
        if message.retain:
            self.retained.keep(message)
        self.route(message)
        if self.on_service_topic is not None and is_service_topic(channel):
            self.on_service_topic(message, client)

    def route(self, message: Message) -> None:
        """Deliver a message to the subscribers of its channel, or of all channels its pattern meets."""
        for subscription in self._subscriptions(message.channel):
            subscription.deliver(message)

    def fault(self, client: Client, rule: str, reason: str = "", raw: bytes = b"", size: int = -1) -> None:
        """Count what a client did wrong, and record what it sent, of which ``raw`` may be the first part only."""
        client.counters.fault(rule)
        if self.recorder is not None:
            self.recorder.discarded(client, "", rule, reason, raw, len(raw) if size < 0 else size)

    def warn(self, kind: str, text: str) -> None:
        """Log what clients can cause as often as they like: lines of one ``kind`` are written now and then."""
        if self.on_warning is not None:
            self.on_warning(kind, text)

    def refusing(self) -> bool:
        """Whether nothing can be taken at the moment, because the journal can't be written."""
        return self.strict and self.recorder is not None and self.recorder.failed

    def forward(self, run: Run, client: Client) -> list[Outbox]:
        """Write a run of plain publications to all who take them as they are. Returns those who were too slow."""
        route = cast("Route", run.route)
        outboxes = route.raw(client.protocol)
        client.counters.messages_in += run.count
        if not outboxes:
            return NONE_REFUSED
        data: bytes | memoryview
        if run.end - run.start < JOIN_BELOW:
            data = run.data[run.start : run.end]
        else:  # not copied, at the price of keeping the whole chunk alive until it is written
            data = memoryview(run.data)[run.start : run.end]
        refused = NONE_REFUSED
        for outbox in outboxes:
            if not outbox.offer(data):
                if refused is NONE_REFUSED:
                    refused = []
                refused.append(outbox)
        client.counters.messages_out += run.count * (len(outboxes) - len(refused))
        return refused

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
        """The access rules have changed: what was allowed is looked up anew."""
        self._views.clear()

    def takes_queue(self, channel: str) -> bool:
        """Whether the queue of this channel is there, or there is room for another."""
        return len(self.queues) < self.most_queues or channel[len(QUEUE_PREFIX) :] in self.queues

    def stop_work(self) -> None:
        """The hub goes down: queues hand out nothing more, and no calls begin."""
        self.draining = True
        self.services.draining = True
        for queue in self.queues.values():
            queue.stopped = True

    def subscribe(self, client: Client, key: object, subscription: Subscription) -> list[Message] | None:
        """Add a subscription under the session's own ``key``. Returns the retained messages it is to get first.

        None, and it is counted, where the client's patterns would make publications too much work.
        """
        before = self.table.reach()
        self.table.add(subscription)
        grown = self.table.reach() - before
        if grown > 0 and (client.reach + grown > self.most_reach or before + grown > self.most_reach_together):
            self.table.discard(subscription)
            client.counters.drop(TOO_COSTLY)
            return None
        client.reach += grown
        if self.recorder is not None:
            self.recorder.subscribed(client, to_stars(subscription.pattern))
        old = client.subscriptions.get(key)
        client.subscriptions[key] = subscription
        self._count(client, subscription)
        if old is not None:
            # After the new one, so that demand does not seem to go away in between.
            self._end(client, old, replaced=True)
        return self.retained.find(subscription.pattern, dollar=subscription.dollar)

    def unsubscribe(self, client: Client, key: object) -> bool:
        """Remove the subscription under ``key``. False where there is none."""
        subscription = client.subscriptions.pop(key, None)
        if subscription is None:
            return False
        if self.recorder is not None:
            self.recorder.unsubscribed(client, to_stars(subscription.pattern))
        self._end(client, subscription, replaced=False)
        return True

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
        if not self.takes_queue(message.channel):
            problem = TOO_MANY_QUEUES
        elif recorder is not None and recorder.failed:
            problem = UNAVAILABLE
        elif not self.queue(name).has_room(message):
            problem = QUEUE_FULL
        elif totals.size + footprint(message) - footprint(delivery.message) > totals.most:
            problem = QUEUES_FULL
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

    def consume(self, client: Client, queue: Queue, consumer: Consumer) -> None:
        """Let a client's consumer take from a queue."""
        client.consumers[consumer] = queue
        queue.attach(consumer)

    def stop_consuming(self, client: Client, consumer: Consumer) -> None:
        """A consumer goes away. A queue with nothing in it and nobody at it is forgotten."""
        queue = client.consumers.pop(consumer, None)
        if queue is None:
            return
        client.revoked.discard(consumer)
        queue.detach(consumer)
        if queue.idle():
            self.queues.pop(queue.name, None)

    def watch(self, client: Client, key: object, watcher: Watcher) -> None:
        """Tell a client's watcher of the demand for topics, now and whenever it changes."""
        client.watchers[key] = watcher
        self.demand.watch(watcher)

    def unwatch(self, client: Client, key: object) -> bool:
        """Tell the watcher under ``key`` nothing more. False where there is none."""
        watcher = client.watchers.pop(key, None)
        if watcher is None:
            return False
        client.revoked.discard(watcher)
        self.demand.unwatch(watcher)
        return True

    def regrant(self, client: Client, grants: Grants) -> None:
        """Give a client other rights: what they don't allow any more gets nothing, what they allow again goes on.

        Call ``Services.regrant`` when all clients have theirs.
        """
        client.grants = grants
        revoked = client.revoked
        for subscription in client.subscriptions.values():
            if grants.may_subscribe(subscription.pattern, dollar=subscription.dollar):
                if subscription in revoked:
                    revoked.discard(subscription)
                    self.table.add(subscription)
                    self._count(client, subscription)
            elif subscription not in revoked:
                revoked.add(subscription)
                self._drop(client, subscription, replaced=False)
        for watcher in client.watchers.values():
            if grants.may_subscribe(watcher.pattern):
                if watcher in revoked:
                    revoked.discard(watcher)
                    self.demand.watch(watcher)
            elif watcher not in revoked:
                revoked.add(watcher)
                self.demand.unwatch(watcher)
        for consumer, queue in list(client.consumers.items()):
            if grants.may_subscribe(QUEUE_PREFIX + queue.name):
                if consumer in revoked:
                    revoked.discard(consumer)
                    queue.resume(consumer)
            elif consumer not in revoked:
                revoked.add(consumer)
                queue.suspend(consumer)

    def safe(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call ``done`` once everything accepted so far is safe, without a journal at once; ``failed`` if it can't be.

        It calls those of one session in the order in which they came.
        """
        if self.when_safe is None:
            done()
        else:
            self.when_safe(done, failed)

    def _subscriptions(self, channel: str) -> list[Subscription]:
        return self.table.route(channel).subscriptions if is_literal(channel) else self.table.meeting(channel)

    def _relay_failed(self, message: Message, client: Client) -> None:
        """Deliver a message whose body failed to those who can be told of that; to the others it is lost."""
        for subscription in self._subscriptions(message.channel):
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
                self.demand.add(pattern)
            else:
                self.demand.repeat(pattern)

    def _end(self, client: Client, subscription: Subscription, *, replaced: bool) -> None:
        """A subscription is no longer the client's; one that was revoked has been dropped already."""
        if subscription in client.revoked:
            client.revoked.discard(subscription)
        else:
            self._drop(client, subscription, replaced=replaced)

    def _drop(self, client: Client, subscription: Subscription, *, replaced: bool) -> None:
        before = self.table.reach()
        self.table.discard(subscription)
        client.reach = max(0, client.reach + self.table.reach() - before)
        if subscription.counted:
            pattern = subscription.pattern
            times = client.demands.get(pattern, 0) - 1
            if times > 0:
                client.demands[pattern] = times
                if not replaced:
                    self.demand.repeat(pattern)
            elif times == 0:
                del client.demands[pattern]
                self.demand.remove(pattern)

    def _presence(self) -> None:
        for told in self.on_presence:
            told(len(self.clients))


@final
class Forwardable(TopicFilter):
    """The topics that publishers with these rights may publish to, and whose messages need no further look."""

    def __init__(self, grants: Grants) -> None:
        self._grants: Final = grants

    def takes(self, channel: str) -> bool:
        """Whether they may publish there, and nobody but subscribers gets it."""
        if channel.startswith(QUEUE_PREFIX) or is_service_topic(channel) or is_too_deep(channel):
            return False
        return self._grants.may_publish(channel)

    def tries(self) -> list[Trie[str]]:
        """Their rights."""
        return self._grants.publish_tries()


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
