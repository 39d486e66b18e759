"""FMQP for programs: a client with FMQP's own operations, which stays connected.

    async with fmqp.connect("fmqp://127.0.0.1:7103") as client:
        client.publish("home/kitchen/temperature", b"21.5", cache=True)
        async with client.subscribe("home/*/temperature") as messages:
            async for message in messages: ...

It works with any broker that speaks FMQP. After a lost connection it reconnects, subscribes and watches again, and
leaves its last wills again; what was published in the meantime is sent then.
"""

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from polywire.backoff import BACKOFF, Backoff
from polywire.client.address import Address, parse
from polywire.client.errors import Closed, ConnectFailed, ConnectionLost, Timeout
from polywire.client.inbox import LIMIT, Inbox, Intake
from polywire.client.link import CLOSE_TIME, Link
from polywire.client.message import Body, octets
from polywire.client.outgoing import BUFFER, SENT, LinkCarrier, Outgoing, Receipt
from polywire.client.reconnect import Keeper, OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME, Opening, dial
from polywire.protocols.fmqp.connection import Connection
from polywire.protocols.fmqp.frames import (
    CACHE,
    DEBUG,
    FEEDBACK,
    LAST_WILL,
    MAX_BODY,
    Publication,
    Subscription,
    Unsubscription,
    decode_count,
    encode,
    equivalent,
    publication,
    publications_in,
)
from polywire.wire.frame import Discarded, Role, Run

SETTLE_TIME: Final = 10.0

ANSWER_TIME: Final = 2.0
"""Seconds a broker has for the first round trip. One that takes longer is taken for one that does not send feedback."""

ROUTES_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Demand:
    """How many subscribers a topic has, not counting debug subscriptions."""

    topic: str
    subscribers: int


class Listening(Inbox[Publication]):
    """A subscription: what is published to ``topic``, as it arrives. Closing it unsubscribes."""

    def __init__(self, table: "Table", topic: str, flags: int, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic: Final = topic
        self.flags: Final = flags


class Watching(Inbox[Demand]):
    """A watch of the demand for ``topic``. Closing it ends the watch."""

    flags: Final = FEEDBACK

    def __init__(self, table: "Table", topic: str, limit: int) -> None:
        super().__init__(table.intake, limit, on_close=lambda: table.remove(self))
        self.topic: Final = topic


Subscriber = Listening | Watching


class RoundTrips:
    """Waiting until the broker has handled what it was sent, although it answers nothing.

    A topic with an unguessable name is watched and then subscribed to. When the feedback for it arrives, the broker has
    handled everything before it. ``send`` writes to the broker, ``begun`` is called when a round trip has begun.
    """

    def __init__(self, send: Callable[[bytes], None], begun: Callable[[], None]) -> None:
        self._send = send
        self._begun = begun
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def make(self) -> None:
        """There and back. Raises ``ConnectionLost`` if the connection ends first."""
        topic = f"$/settled/{secrets.token_hex(8)}"
        arrived = asyncio.get_running_loop().create_future()
        self._waiting[topic] = arrived
        self._send(encode(Subscription(topic, FEEDBACK)) + encode(Subscription(topic)))
        self._begun()
        try:
            await arrived
        finally:
            del self._waiting[topic]
            self._send(encode(Unsubscription(topic, FEEDBACK)) + encode(Unsubscription(topic)))

    def feedback(self, topic: str) -> bool:
        """There is demand for this topic. Returns whether it is the topic of a round trip."""
        waiter = self._waiting.get(topic)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return waiter is not None

    def lost(self) -> None:
        """The connection has ended."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost("the connection ended"))


class Table:
    """All subscriptions and watches of one client. ``send`` sends a frame to the broker, if there is a connection.

    The broker sends a message once, however many subscriptions of a client match it. Here it goes to each of them.
    """

    def __init__(
        self, intake: Intake, send: Callable[[Subscription | Unsubscription], None], round_trips: RoundTrips
    ) -> None:
        self.intake: Final = intake
        self._send: Final = send
        self._subscribers: Final[dict[tuple[str, int], list[Subscriber]]] = {}  # by topic and system of topics
        self._routes: Final[dict[bytes, object]] = {}
        self._same: Final[dict[tuple[int, ...], tuple[Listening, ...]]] = {}
        self._round_trips: Final = round_trips
        self.discarded = 0
        """Packets that broke a rule, and publications that nobody here subscribed to."""

    def add(self, subscriber: Subscriber) -> None:
        """Subscribe, or watch."""
        self._subscribers.setdefault((subscriber.topic, subscriber.flags & FEEDBACK), []).append(subscriber)
        self._forget_routes()
        # Sent even if the broker knows the topic: so the cached message comes for the new subscription, too.
        self._send(Subscription(subscriber.topic, subscriber.flags))

    def remove(self, subscriber: Subscriber) -> None:
        """Unsubscribe, or stop watching."""
        key = (subscriber.topic, subscriber.flags & FEEDBACK)
        subscribers = self._subscribers.get(key, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
            self._forget_routes()
            if not subscribers:
                del self._subscribers[key]
                self._send(Unsubscription(subscriber.topic, subscriber.flags & FEEDBACK))

    def subscriptions(self) -> list[Subscription]:
        """What to send over a new connection."""
        found = []
        for (topic, system), subscribers in self._subscribers.items():
            debug = DEBUG if all(subscriber.flags & DEBUG for subscriber in subscribers) else 0
            found.append(Subscription(topic, system | debug))
        return found

    def end(self, error: Exception | None) -> None:
        """Nothing more will arrive."""
        for subscribers in list(self._subscribers.values()):
            for subscriber in list(subscribers):
                subscriber.fail(error)

    def received(self, connection: Connection, data: bytes) -> None:
        """Hand out what the broker has sent."""
        connection.receive(data, self._routes, self._resolve)
        while (event := connection.next_event()) is not None:
            if isinstance(event, Run):
                route = cast("tuple[Listening, ...]", event.route)
                if not route:
                    self.discarded += event.count
                    continue
                found = publications_in(event.data, event.start, event.end)
                for listening in route:
                    listening.extend(found, event.end - event.start)
            elif isinstance(event, Publication):
                self._publication(event)
            elif isinstance(event, Discarded):
                self.discarded += 1

    def _publication(self, frame: Publication) -> None:
        round_trip = frame.feedback and self._round_trips.feedback(frame.topic)
        found = self._find(frame.topic, frame.flags & FEEDBACK)
        if not found and not round_trip:
            self.discarded += 1
        for subscriber in found:
            if isinstance(subscriber, Listening):
                subscriber.put(frame, len(frame.body))
            else:
                subscriber.put(Demand(frame.topic, decode_count(frame.body) or 0))

    def _find(self, topic: str, system: int) -> list[Subscriber]:
        found: list[Subscriber] = []
        for (wanted, of), subscribers in self._subscribers.items():
            if of == system and equivalent(wanted, topic):
                found += subscribers
        return found

    def _resolve(self, name: bytes) -> object:
        found = tuple(cast("list[Listening]", self._find(name.decode(), 0)))
        # The same tuple for the same subscriptions, so that topics that share them come as one run.
        route = self._same.setdefault(tuple(map(id, found)), found)
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[name] = route
        return route

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._same.clear()


class Client:
    """A connection to a broker. Made by ``connect``."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        connect_time: float = DIAL_TIME,
        backoff: Backoff | None = BACKOFF,
        buffer: int = BUFFER,
        max_body: int = MAX_BODY,
        on_disconnect: OnDisconnect | None = None,
        on_reconnect: OnReconnect | None = None,
    ) -> None:
        self.address: Final = address
        self._tls = tls
        self._connect_time = connect_time
        self._max_body = max_body
        self._keeper = Keeper(
            str(address), self._open, backoff, self._gave_up, on_disconnect=on_disconnect, on_reconnect=on_reconnect
        )
        self._outgoing: Outgoing[bytes] = Outgoing(buffer)
        self._link: Link | None = None
        self._connection = Connection(Role.CLIENT, max_body=max_body)
        self._intake = Intake(lambda: len(self._round_trips) > 0)
        self._round_trips = RoundTrips(self._write, self._intake.decide)
        self._table = Table(self._intake, self._send, self._round_trips)
        self._answers = True  # as far as we know
        self._wills: list[bytes] = []

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._keeper.connected

    @property
    def answers(self) -> bool:
        """Whether the broker sends the feedback that ``settled`` waits for, as far as we know."""
        return self._answers

    @property
    def discarded(self) -> int:
        """Packets that arrived and were dropped: they broke a rule, or nobody here subscribed to their topic."""
        return self._table.discarded

    async def start(self) -> None:
        """Connect for the first time. ``connect`` does this."""
        await self._keeper.start()

    def publish(self, topic: str, body: Body, *, cache: bool = False) -> Receipt:
        """Publish a message. With ``cache`` the broker keeps it for later subscribers.

        It is in flight when this returns, or kept while there is no connection. Await the receipt to wait until it
        is sent, and for room if the connection is slow. Raises ``BufferFull`` if too much is waiting already.
        """
        data = publication(topic, body if type(body) is bytes else octets(body), CACHE if cache else 0)
        link = self._outgoing.direct
        if link is not None and not link.full:
            link.write(data)
            return SENT
        if self._keeper.closed is not None:
            raise self._keeper.closed.about(sent=False)
        return self._outgoing.post(data, len(data), channel=topic)

    def clear(self, topic: str) -> Receipt:
        """Remove the cached message of a topic from the broker."""
        return self.publish(topic, b"", cache=True)

    def leave_will(self, topic: str, body: Body, *, cache: bool = False) -> None:
        """Have the broker publish this when the connection ends, however it ends.

        All wills are published, in the order in which they were left, even several for one topic. FMQP has no way to
        withdraw one. After a lost connection they are left again.
        """
        data = publication(topic, octets(body), LAST_WILL | (CACHE if cache else 0))
        self._wills.append(data)
        self._write(data)

    def subscribe(self, topic: str, *, debug: bool = False, limit: int = LIMIT) -> Listening:
        """Messages of all topics equivalent to this one; ``*`` is any one level. Close it to unsubscribe.

        With ``debug``, publishers that watch the demand do not see it. ``limit`` messages may wait here; then the
        connection is not read until some are taken. The broker does not answer a subscription: ``settled`` waits
        until it has handled it.
        """
        self._must_be_open()
        flags = DEBUG if debug else 0
        encode(Subscription(topic, flags))  # raises before anything has changed
        listening = Listening(self._table, topic.strip("/"), flags, limit)
        self._table.add(listening)
        return listening

    def watch(self, topic: str, *, limit: int = LIMIT) -> Watching:
        """The demand for all topics equivalent to this one: how many subscribers each has, whenever that changes.

        A new watch gets the current numbers immediately. A topic that lost its last subscriber recently has 0;
        nothing is sent for one that nobody has subscribed to yet. A number may be repeated: somebody subscribed again.
        """
        self._must_be_open()
        encode(Subscription(topic))
        watching = Watching(self._table, topic.strip("/"), limit)
        self._table.add(watching)
        return watching

    async def settled(self, seconds: float = SETTLE_TIME) -> None:
        """Wait until the broker has handled everything sent so far: a round trip.

        Raises ``Timeout`` if the broker does not answer, for example because its access rules forbid the topic used.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._keeper.up()
                    try:
                        await self._round_trips.make()
                    except ConnectionLost:
                        continue
                    return
        except TimeoutError as error:
            raise Timeout("settling", seconds) from error

    def stop_broker(self, *, now: bool = False) -> Receipt:
        """Shut the broker down: gracefully, or with ``now`` at once. It may refuse silently."""
        return self.publish("$/signals/terminate" if now else "$/signals/stop", b"\1")

    async def close(self) -> None:
        """Send what can be sent, then disconnect. Iterating over subscriptions ends."""
        link = self._link
        try:
            if link is not None and self._keeper.closed is None:
                with contextlib.suppress(TimeoutError, ConnectionLost):
                    async with asyncio.timeout(CLOSE_TIME):
                        while not self._outgoing.idle and link.is_open:
                            await link.room()
                            await asyncio.sleep(0)
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._keeper.close()
        finally:
            link, self._link = self._link, None
            self._outgoing.fail(Closed("the client was closed"))
            self._table.end(self._keeper.closed)
            self._round_trips.lost()
            self._intake.attach(None)
            if link is not None:
                await link.close()

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - FMQP has no text messages
        """Called by the link: the broker has sent this."""
        self._table.received(self._connection, data)

    def lost(self, error: Exception | None, /) -> None:
        """Called by the link: the connection has ended."""
        link, self._link = self._link, None
        self._intake.attach(None)
        self._outgoing.pause()
        if link is not None:
            self._outgoing.put_back((piece, len(piece)) for piece in link.leftover)
        self._round_trips.lost()
        self._keeper.lost(error)

    async def _open(self) -> None:
        """One attempt to connect and to restore wills and subscriptions."""
        self._connection = Connection(Role.CLIENT, max_body=self._max_body)
        link = await dial(self.address, self, tls=self._tls, timeout=self._connect_time)
        self._link = link
        try:
            await self._check_broker()
        except ConnectionLost as error:
            raise ConnectFailed(str(self.address), "it closed the connection before sending anything") from error
        except BaseException:
            self._link = None
            link.abort()
            raise
        for data in self._wills:
            link.write(data)
        for subscription in self._table.subscriptions():
            link.write(encode(subscription))
        self._intake.attach(link)
        self._outgoing.begin(LinkCarrier(link), link)
        link.on_room = self._outgoing.pump
        self._outgoing.pump()

    async def _check_broker(self) -> None:
        """A proxy that accepts connections while its broker is down must not be given what has waited."""
        if self._answers:
            try:
                async with asyncio.timeout(ANSWER_TIME):
                    await self._round_trips.make()
            except TimeoutError:
                self._answers = False

    def _gave_up(self, error: Closed) -> None:
        self._outgoing.fail(error)
        self._table.end(error)

    def _must_be_open(self) -> None:
        if self._keeper.closed is not None:
            raise self._keeper.closed

    def _send(self, frame: Subscription | Unsubscription) -> None:
        self._write(self._connection.send(frame))

    def _write(self, data: bytes) -> None:
        """Send what is sent again over every new connection, so it need not wait for one."""
        if self._link is not None:
            self._link.write(data)


def connect(
    url: str | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    backoff: Backoff | None = BACKOFF,
    buffer: int = BUFFER,
    max_body: int = MAX_BODY,
    on_disconnect: OnDisconnect | None = None,
    on_reconnect: OnReconnect | None = None,
) -> Opening[Client]:
    """A client of the broker at ``url``, connected: ``async with`` it, or await it and close it yourself.

    ``connect_time`` is for one attempt, ``backoff`` says how to reconnect (None: not at all), ``buffer`` bytes may
    wait to be sent. The client is identified by its certificate in ``tls``. ``on_disconnect`` and ``on_reconnect``
    are as in ``polywire.connect``.
    """
    client_address = parse(url, protocol="fmqp")

    async def opened() -> Client:
        client = Client(
            client_address,
            tls=tls,
            connect_time=connect_time,
            backoff=backoff,
            buffer=buffer,
            max_body=max_body,
            on_disconnect=on_disconnect,
            on_reconnect=on_reconnect,
        )
        await client.start()
        return client

    return Opening(opened)
