"""FMQP on the hub's side of one connection: packets in, hub operations, packets out.

Plain publications are forwarded verbatim, in runs; everything else is handled packet by packet. FMQP has no error
packet: what is wrong or not allowed is discarded and counted.
"""

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.hub.access import Identity
from polywire.hub.channels import ANY, from_stars
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Login, Peer, Refusal
from polywire.hub.recorder import Runs
from polywire.hub.trie import name_cost
from polywire.protocols.fmqp.connection import Connection
from polywire.protocols.fmqp.delivery import FmqpConsumer, FmqpSubscription, FmqpWatcher
from polywire.protocols.fmqp.frames import (
    CACHE,
    LAST_WILL,
    SUBSCRIPTION,
    Decoder,
    Publication,
    Unsubscription,
    forwarded,
    is_service,
    locate,
    publications_in,
)
from polywire.protocols.fmqp.frames import Subscription as Subscribe
from polywire.wire.frame import Discarded, Frame, Role, Run

TOO_LARGE: Final = "FMQP-52"
ANY_QOS: Final = 2
"""FMQP has no QoS: a subscriber that has gets its messages with its own."""


@final
class FmqpRuns(Runs):
    """Where the parts of FMQP's publications are."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, ANY_QOS)

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Write where their topics and bodies are."""
        locate(data, start, end, base, places)

    def scan(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None]
    ) -> list[Frame | Run]:
        """Scan them again."""
        return Decoder(max_body=len(data)).feed_runs(data, routes, resolve)


@final
class FmqpSession:
    """One FMQP connection. Its client joins the hub at once: FMQP has no handshake."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._connection: Final = Connection(Role.SERVER, max_body=limits.message_size)
        self._message_size: Final = limits.message_size
        self._max_wills: Final = limits.wills
        self._max_wills_size: Final = limits.wills_size
        self._consumers: Final[dict[str, FmqpConsumer]] = {}
        self._draining = False
        self._runs: Final = FmqpRuns(client)
        client.forwards_empty = False  # FMQP-09
        client.most_subscriptions = limits.subscriptions
        client.outbox.on_room = self._room
        peer.login(Login(), self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        """FMQP-03: the certificate or the listener identifies the client."""
        if isinstance(who, Refusal):
            self._client.counters.fault("login")
            self._peer.close()
            return
        self._peer.established()
        self._hub.join(self._client)

    def received(self, data: bytes) -> None:
        """Handle what the peer has sent."""
        client = self._client
        client.counters.octets_in += len(data)
        if self._is_draining():
            return
        hub, runs = self._hub, self._runs
        runs.now = hub.clock()
        view = hub.view(client)
        connection = self._connection
        connection.receive(data, view.current(), view.resolve)
        runs.version = hub.table.changes
        recorder = hub.recorder
        while not self._is_draining():  # a signal in this chunk: what follows it is not accepted
            event = connection.next_event()
            if event is None:
                break
            if isinstance(event, Run):
                client.counters.received += event.count
                if not hub.forward(event, runs):
                    for frame in publications_in(event.data, event.start, event.end):
                        self._publish(frame)
            else:
                if recorder is not None:
                    runs.record(recorder)
                self._frame(event)
        if recorder is not None:
            runs.record(recorder)

    def lost(self) -> None:
        """The connection has ended."""
        self._consumers.clear()
        self._hub.leave(self._client)

    def drain(self) -> None:
        """The hub is shutting down: accept no more messages. FMQP has no message for it."""
        self._draining = True

    def pending(self) -> int:
        """How many bytes of an unfinished message are held."""
        return self._connection.pending()

    def no_room(self, reason: str) -> None:
        """FMQP-81: FMQP has no message for it."""

    def busy(self) -> bool:
        """FMQP has no answers and no acknowledgements."""
        return False

    def goodbye(self, *, expired: bool = False) -> None:  # noqa: ARG002 - FMQP has no message for either
        """Close."""
        self._peer.close()

    def timed_out(self) -> None:
        """Close: FMQP has no message for it."""
        self._peer.close()

    def _is_draining(self) -> bool:
        return self._draining  # asked again after each event, which may have changed it

    def _frame(self, frame: Frame) -> None:
        if isinstance(frame, Publication):
            self._client.counters.received += 1
            self._publish(frame)
        elif isinstance(frame, Subscribe):
            self._subscribe(frame)
        elif isinstance(frame, Unsubscription):
            self._unsubscribe(frame)
        elif isinstance(frame, Discarded):
            if frame.raw[0] & SUBSCRIPTION == 0:
                self._client.counters.received += 1
            self._hub.fault(self._client, frame.rule, frame.reason, frame.raw, frame.size)
            if frame.rule == TOO_LARGE:
                self._hub.oversized(self._client, frame.size, self._message_size)

    def _publish(self, frame: Publication) -> None:
        client = self._client
        topic = frame.topic
        if is_service(topic) and not frame.last_will:
            self._hub.signal(topic, client)
            return
        channel = from_stars(topic, rest=False)
        message = Message(channel, frame.body, retain=frame.cache, time=self._runs.now, origin=client.number)
        if frame.body and frame.flags & ~(CACHE | LAST_WILL):
            # FMQP-53: subscribers get the publisher's flags, even those without a meaning.
            message.encoded[client.protocol * 16] = forwarded(topic, frame.body, frame.flags & ~LAST_WILL) or b""
        if frame.last_will:
            self._leave_will(message)
        elif frame.body:
            self._hub.publish(message, client, acknowledged=False, must_retain=False)
        else:
            # FMQP-09: never forwarded. FMQP-57: with the cache flag it clears the cache.
            self._hub.clear(message, client)

    def _leave_will(self, message: Message) -> None:
        """FMQP-62: keep a last will until the connection ends, within the limits."""
        client = self._client
        wills = client.wills
        service = is_service(message.channel)
        if self._hub.will_refusal(client, message) is not None:
            return
        if not message.body and not message.retain and not service:
            return  # FMQP-09: publishing it would do nothing
        size = name_cost(message.channel) + message.size() + (len(message.body) if message.encoded else 0)
        if len(wills) >= self._max_wills:
            reason = f"more than {self._max_wills} last wills"
        elif wills.size + size > self._max_wills_size:
            reason = f"last wills of more than {self._max_wills_size} bytes"
        else:
            encoded = message.encoded.get(client.protocol * 16)
            mark = encoded[0] if isinstance(encoded, bytes) and encoded else 0
            if self._hub.leave_will(client, message, size, mark) is None:
                return
            reason = "the last wills of all clients have too many bytes"
        self._hub.fault(client, "FMQP-76", reason, message.body)

    def _subscribe(self, frame: Subscribe) -> None:
        client = self._client
        pattern = from_stars(frame.topic, rest=False)
        if frame.feedback:
            self._watch(frame.topic, pattern)
        elif frame.topic.startswith(QUEUE_PREFIX) and ANY not in pattern:
            self._consume(frame.topic)
        else:
            subscription = FmqpSubscription(pattern, client, counted=not frame.debug)
            if self._hub.subscribe(client, frame.topic, subscription) is None:
                self._hub.replay(client, subscription)

    def _watch(self, topic: str, pattern: str) -> None:
        watcher = self._client.watchers.get(topic)
        if watcher is None:
            watcher = FmqpWatcher(pattern, self._client.outbox)
        self._hub.watch(self._client, topic, watcher)

    def _consume(self, topic: str) -> None:
        consumer = self._consumers.get(topic)
        if consumer is None:
            consumer = FmqpConsumer(self._client)
        if self._hub.consume(self._client, topic[len(QUEUE_PREFIX) :], consumer) is None:
            self._consumers[topic] = consumer

    def _unsubscribe(self, frame: Unsubscription) -> None:
        if frame.feedback:
            self._hub.unwatch(self._client, frame.topic)
            return
        consumer = self._consumers.pop(frame.topic, None)
        if consumer is not None:
            self._hub.stop_consuming(self._client, consumer)
        else:
            self._hub.unsubscribe(self._client, frame.topic)

    def _room(self) -> None:
        for consumer in self._consumers.values():
            consumer.queue.dispatch()
