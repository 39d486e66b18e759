"""A client's end of MQTT, over as many connections as it takes: what it publishes, subscribes to and is sent.

``Peer`` runs a ``Connection`` on each link it is given and passes its packets on to the parts that stay: publications
and subscriptions. A message with QoS 1 or 2 is sent until it is acknowledged, over a new connection if need be.
"""

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from polywire.client.errors import Closed, ConnectionLost, Refused, Timeout
from polywire.client.inbox import Inbox, Intake
from polywire.client.link import Link
from polywire.client.outgoing import SENT, Entry, Outgoing, Promise, Receipt
from polywire.protocols.mqtt.connection import Connection, Receiver, Sender
from polywire.protocols.mqtt.frames import (
    ACCEPTED,
    FAILURE,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    check_publication,
    encode,
    publication,
    publications_in,
)
from polywire.protocols.mqtt.topics import matches
from polywire.wire.frame import Frame, Role, Run

WINDOW: Final = 500
"""Messages that may be unacknowledged at once, by default; servers have limits of their own."""

EXACT_WINDOW: Final = 20
"""The same for QoS 2: Mosquitto takes no more at once by default, and does not keep the order of what is beyond."""

ROUTES_KEPT: Final = 4096
FILTERS_AT_ONCE: Final = 500

CLAIM_TIME: Final = 10.0
"""Seconds in which a program subscribes again to what its remembered session has messages for."""

Item = TypeVar("Item")


class _Subscription(Inbox[Item]):
    """A subscription to ``topic_filter``, which ends when it is closed.

    ``granted`` is the QoS the server has granted, ``receipt`` the server's answer.
    """

    def __init__(self, subscriptions: "Subscriptions", topic_filter: str, qos: int, limit: int) -> None:
        super().__init__(subscriptions.intake, limit, on_close=self._remove)
        self._subscriptions: Final = subscriptions
        self.topic_filter: Final = topic_filter
        self.qos: Final = qos
        self.granted: int | None = None
        self.receipt = Receipt(withdraw=self.close)

    def deliver(self, frame: Publish, owed: "Owed | None") -> None:
        """Add one message, whose acknowledgement is ``owed``."""
        raise NotImplementedError

    def _remove(self) -> None:
        self._subscriptions.remove(cast("Subscriber", self))


class Listening(_Subscription[Publish]):
    """A subscription: what is published to topics that match ``topic_filter``. Closing it unsubscribes.

    Messages are acknowledged as they arrive. ``granted`` is the QoS the server has granted, ``receipt`` the server's
    answer.
    """

    def deliver(self, frame: Publish, owed: "Owed | None") -> None:  # noqa: ARG002 - nobody holds it back here
        """Add one message."""
        self.put(frame, len(frame.payload))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that its reader acknowledges. What is unacknowledged when the connection ends is delivered again."""

    message: Publish
    owed: "Owed | None"
    reader: "Consuming | None" = None

    def ack(self) -> None:
        """The message is done. A second call does nothing."""
        if self.owed is not None:
            self.owed.settle(self)


class Consuming(_Subscription[Delivery]):
    """A subscription whose messages are acknowledged by ``Delivery.ack``."""

    def deliver(self, frame: Publish, owed: "Owed | None") -> None:
        """Add one message, whose acknowledgement waits for ``Delivery.ack``."""
        delivery = Delivery(frame, owed, self)
        if owed is not None and self.taking:
            owed.to.append(delivery)
        self.put(delivery, len(frame.payload))


Subscriber = Listening | Consuming


class Owed:
    """An acknowledgement that waits for its readers, and for those of the messages before it (MQTT-150)."""

    __slots__ = ("acknowledgements", "reply", "to", "void")

    def __init__(self, acknowledgements: "Acknowledgements", reply: Puback | Pubrec) -> None:
        self.acknowledgements = acknowledgements
        self.reply = reply
        self.to: list[Delivery] = []
        self.void = False

    def settle(self, delivery: Delivery) -> None:
        """One of its readers is done."""
        for index, each in enumerate(self.to):
            if each is delivery:
                del self.to[index]
                break
        if not self.to:
            self.acknowledgements.go_on()


class Acknowledgements:
    """PUBACKs and PUBRECs in the order of their PUBLISH packets. ``send`` sends on the live connection."""

    def __init__(self, receiver: Receiver, send: Callable[[Frame], None]) -> None:
        self._receiver: Final = receiver
        self._send: Final = send
        self._owed: collections.deque[Owed] = collections.deque()

    def owe(self, reply: Puback | Pubrec) -> Owed:
        """One more to send, once ``go_on`` finds that no reader holds it back."""
        owed = Owed(self, reply)
        self._owed.append(owed)
        return owed

    def go_on(self) -> None:
        """Send what no reader holds back any more."""
        while self._owed and not self._owed[0].to:
            owed = self._owed.popleft()
            if owed.void:
                self._unhold(owed)
            else:
                self._send(owed.reply)

    def abandon(self, reader: Consuming) -> None:
        """What this reader has not acknowledged never is, on this connection, and holds nothing else back."""
        for owed in self._owed:
            kept = [delivery for delivery in owed.to if delivery.reader is not reader]
            owed.void = owed.void or len(kept) < len(owed.to)
            owed.to = kept
        self.go_on()

    def end(self) -> None:
        """The connection has ended: what is unacknowledged is delivered again, and acknowledged then."""
        for owed in self._owed:
            if owed.to or owed.void:
                self._unhold(owed)
        self._owed.clear()

    def _unhold(self, owed: Owed) -> None:
        """A message that its reader has not taken is a new one when the server sends it again."""
        if isinstance(owed.reply, Pubrec):
            self._receiver.released(Pubrel(owed.reply.packet_id))


class Subscriptions:
    """All subscriptions of one client, and what the server knows of them. ``send`` sends on the live connection.

    A server may send a message once for all of a client's subscriptions that match; here it goes to each of them.
    ``remembered``: the server may keep the subscriptions while the client is away.
    """

    def __init__(
        self,
        sender: Sender,
        acknowledgements: Acknowledgements,
        intake: Intake,
        send: Callable[[Frame], None],
        *,
        remembered: bool,
    ) -> None:
        self.intake: Final = intake
        self._sender: Final = sender
        self._acknowledgements: Final = acknowledgements
        self._send: Final = send
        self._remembered: Final = remembered
        self._live = False
        self._asked: Final[dict[int, list[str]]] = {}  # the filters of each SUBSCRIBE without an answer
        self._unsaid: Final[set[str]] = set()  # filters that a server which remembers us must still forget
        self._subscribers: Final[dict[str, list[Subscriber]]] = {}
        self._routes_to: Final[dict[tuple[int, ...], tuple[Subscriber, ...]]] = {}
        self.routes: Final[dict[bytes, object]] = {}
        self._unclaimed: list[tuple[Publish, Owed | None, Delivery]] | None = None
        self._claiming: asyncio.TimerHandle | None = None
        self.discarded = 0
        """Messages that no subscription matches."""

    @property
    def awaiting(self) -> bool:
        """Whether the server has yet to answer a SUBSCRIBE."""
        return bool(self._asked)

    async def add(self, subscriber: Subscriber) -> None:
        """Subscribe, and wait for the server's answer, over more than one connection if need be."""
        name = subscriber.topic_filter
        encode(Subscribe(1, ((name, subscriber.qos),)))  # raises before anything has changed
        self._subscribers.setdefault(name, []).append(subscriber)
        self._forget_routes()
        self._claim(subscriber)
        self._unsaid.discard(name)
        if self._live:
            self._subscribe([(name, max(each.qos for each in self._subscribers[name]))])
            self.intake.decide()
        try:
            await subscriber.receipt
        except BaseException:
            subscriber.close()
            raise

    def remove(self, subscriber: Subscriber) -> None:
        """Deliver nothing more to a subscriber, and unsubscribe where it was the last one of its filter."""
        name = subscriber.topic_filter
        found = self._subscribers.get(name, [])
        if subscriber not in found:
            return
        found.remove(subscriber)
        self._forget_routes()
        if isinstance(subscriber, Consuming):
            self._acknowledgements.abandon(subscriber)
        if not found:
            del self._subscribers[name]
            self._unsubscribe(name)

    def filters(self, *, unanswered: bool) -> list[tuple[str, int]]:
        """Each filter with the highest QoS of its subscribers; on request only those the server has not answered."""
        return [
            (name, max(each.qos for each in found))
            for name, found in self._subscribers.items()
            if not unanswered or any(each.granted is None for each in found)
        ]

    def attach(self, *, resumed: bool) -> None:
        """There is a connection: send what the server does not know. ``resumed``: it knows what it has answered."""
        self._live = True
        wanted = self.filters(unanswered=resumed)
        for start in range(0, len(wanted), FILTERS_AT_ONCE):
            self._subscribe(wanted[start : start + FILTERS_AT_ONCE])
        if resumed:
            for name in sorted(self._unsaid):
                self._unsubscribe(name)
        self._unsaid.clear()

    def detach(self) -> None:
        """The connection has ended. What was not acknowledged is delivered again, so readers must not see it now."""
        self._live = False
        self._asked.clear()
        self._acknowledgements.end()
        if self._unclaimed:
            self._unclaimed = []
        for found in self._subscribers.values():
            for each in found:
                if isinstance(each, Consuming):
                    each.clear()

    def answered(self, frame: Suback | Unsuback) -> None:
        """The server has answered a SUBSCRIBE or UNSUBSCRIBE."""
        self._sender.acknowledged(frame)
        if isinstance(frame, Suback):
            names = self._asked.pop(frame.packet_id, [])
            for name, code in zip(names, frame.return_codes, strict=False):
                self._granted(name, code)

    def fail(self, error: Exception) -> None:
        """There will be no more messages."""
        if self._claiming is not None:
            self._claiming.cancel()
        for found in list(self._subscribers.values()):
            for each in list(found):
                each.receipt.fail(error)
                each.fail(error)

    def deliver(self, frame: Publish, owed: Owed | None) -> None:
        """Give one message to its subscribers."""
        name = frame.topic.encode()
        found = cast("tuple[Subscriber, ...]", self.routes.get(name) or self.resolve(name))
        if not found and self._unclaimed is not None:
            holder = Delivery(frame, owed)
            if owed is not None:
                owed.to.append(holder)
            self._unclaimed.append((frame, owed, holder))
        elif not found:
            self.discarded += 1
        for each in found:
            each.deliver(frame, owed)

    def deliver_run(self, run: Run) -> None:
        """Give the messages of a run, all with QoS 0, to their subscribers."""
        found = publications_in(run.data, run.start, run.end)
        subscribers = cast("tuple[Subscriber, ...]", run.route)
        if not subscribers:
            self.discarded += run.count
        for each in subscribers:
            if isinstance(each, Listening):
                each.extend(found, run.end - run.start)
            else:
                for frame in found:
                    each.deliver(frame, None)

    def resolve(self, name: bytes) -> object:
        """The subscribers of a topic: the same tuple for the same ones, so that their messages form one run."""
        topic = name.decode()
        found: list[Subscriber] = []
        for topic_filter, subscribers in self._subscribers.items():
            if matches(topic_filter, topic):
                found += subscribers
        route = self._routes_to.setdefault(tuple(map(id, found)), tuple(found))
        if len(self.routes) >= ROUTES_KEPT:
            self.routes.clear()
        self.routes[name] = route
        return route

    def hold_unclaimed(self) -> None:
        """Keep what nobody has subscribed to yet: the server knows subscriptions that this program has yet to make."""
        self._unclaimed = []
        self._claiming = asyncio.get_running_loop().call_later(CLAIM_TIME, self._discard_unclaimed)

    def _discard_unclaimed(self) -> None:
        """Acknowledge and drop unclaimed messages."""
        unclaimed, self._unclaimed = self._unclaimed or [], None
        self.discarded += len(unclaimed)
        for _, _, holder in unclaimed:
            holder.ack()

    def _claim(self, subscriber: Subscriber) -> None:
        """Give a new subscriber what was held for it."""
        if self._unclaimed:
            mine = [each for each in self._unclaimed if matches(subscriber.topic_filter, each[0].topic)]
            self._unclaimed = [each for each in self._unclaimed if each not in mine]
            for frame, owed, holder in mine:
                subscriber.deliver(frame, owed)
                holder.ack()

    def _granted(self, name: str, code: int) -> None:
        """The server has answered a subscription."""
        found = self._subscribers.get(name, [])
        for each in list(found):
            if code != FAILURE:
                each.granted = code
                each.receipt.keep(Promise.ACKNOWLEDGED)
                continue
            refusal = Refused(f"the server refused the subscription to {name!r}", code=code)
            found.remove(each)
            each.receipt.fail(refusal)
            each.fail(refusal)
        if name in self._subscribers and not found:
            del self._subscribers[name]
            self._forget_routes()

    def _subscribe(self, filters: list[tuple[str, int]]) -> None:
        frame = self._sender.subscribe(tuple(filters))
        self._asked[frame.packet_id] = [name for name, _ in filters]
        self._send(frame)

    def _unsubscribe(self, name: str) -> None:
        if self._live:
            self._send(self._sender.unsubscribe((name,)))
        elif self._remembered:
            self._unsaid.add(name)

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._routes_to.clear()


class Publications:
    """All that one client publishes, from the call to the acknowledgement.

    With QoS 0 a message goes to the connection, or waits for one. With QoS 1 and 2 it takes a packet id, at most
    ``window`` at once, and is kept until it is acknowledged: if the connection ends before, it is sent again. A message
    that ends the connection each time it is sent fails in the end: closing is all a server can do about one it does not
    want. At most ``buffer`` bytes wait.
    """

    def __init__(self, sender: Sender, send: Callable[[Frame], None], *, window: int, buffer: int) -> None:
        self._sender: Final = sender
        self._send: Final = send
        self._window: Final = window
        self._outgoing: Final[Outgoing[Publish | bytes]] = Outgoing(buffer, window=window, first=window)
        self._entries: Final[dict[int, Entry[Publish | bytes]]] = {}  # by packet id, from sending to the last answer
        self._exact: Final[set[int]] = set()  # ids of QoS 2
        self._link: Link | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits, neither to be sent nor to be acknowledged."""
        return self._outgoing.idle

    def publish(self, topic: str, payload: bytes, retain: bool) -> Receipt:
        """Send a message with QoS 0 now, or keep it."""
        data = publication(topic, 0, retain, 0, payload)
        link = self._outgoing.direct
        if link is not None and not link.full:
            link.write(data)
            return SENT
        return self._outgoing.post(data, len(data), channel=topic)

    def publish_acknowledged(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> Receipt:
        """Send a message with QoS 1 or 2 now, or keep it."""
        check_publication(topic, payload)
        size = len(payload)
        frame = Publish(topic, payload, qos, retain)
        return self._outgoing.post(frame, len(topic) + size, channel=topic, size=size)

    def attach(self, link: Link, *, resumed: bool) -> None:
        """There is a connection; ``go_on`` starts. ``resumed``: the server still knows what was unacknowledged."""
        self._link = link
        if resumed:
            for frame in self._sender.resume():
                if isinstance(frame, Pubrel):
                    self._send(frame)
        else:
            self._begin_again()
        self._outgoing.begin(self, link)
        self._outgoing.pump(again=True)
        link.on_room = self._outgoing.pump

    def detach(self, leftover: list[bytes]) -> None:
        """The connection has ended. Of what it left over, only messages with QoS 0 are not kept elsewhere."""
        self._link = None
        self._outgoing.put_back((piece, len(piece)) for piece in leftover if piece[0] & 0xF6 == 0x30)
        for frame in self._sender.resume():
            if isinstance(frame, Publish) and frame.packet_id in self._entries:
                self._entries.pop(frame.packet_id).what = frame  # with its id and the flag of a duplicate
        # Of what is left in ``_entries`` the server has the message, and only the end of the flow is missing.
        culprit = self._outgoing.pause(ConnectionLost("the connection ended"))
        if culprit is not None and isinstance(culprit.what, Publish) and culprit.what.packet_id is not None:
            self._sender.recall(culprit.what.packet_id)
            self._exact.discard(culprit.what.packet_id)

    def acknowledged(self, frame: Puback | Pubrec | Pubcomp) -> None:
        """The server has acknowledged something."""
        reply = self._sender.acknowledged(frame)
        if reply is not None:
            self._send(reply)
        if isinstance(frame, Pubrec):
            if frame.packet_id in self._entries:
                self._outgoing.accepted(self._entries[frame.packet_id])
            return
        self._exact.discard(frame.packet_id)
        entry = self._entries.pop(frame.packet_id, None)
        if entry is not None:
            self._outgoing.settle(entry, Promise.ACKNOWLEDGED)

    def go_on(self) -> None:
        """There is room: send what has waited, and then let new messages go straight to the link."""
        self._outgoing.pump()

    async def drained(self) -> None:
        """Wait until nothing waits, neither to be sent nor to be acknowledged."""
        await self._outgoing.settled()

    def fail(self, error: Closed) -> None:
        """Nothing more will be sent or acknowledged."""
        self._entries.clear()
        self._outgoing.fail(error)

    def room(self, what: Publish | bytes, /) -> bool:
        """Whether the connection takes this message now."""
        if self._link is None or self._link.full:
            return False
        if isinstance(what, bytes) or what.packet_id is not None:
            return True
        return len(self._entries) < self._window and (what.qos == 1 or len(self._exact) < EXACT_WINDOW)

    def send(self, entry: Entry[Publish | bytes], /) -> None:
        """Send a message, with the packet id that it had on an earlier connection."""
        assert self._link is not None  # noqa: S101 - there is room on it
        frame = entry.what
        if isinstance(frame, bytes):
            self._link.write(frame)
            entry.settle(Promise.SENT)
            return
        entry.receipt.withdraw = None  # what has been sent can't be taken back
        number = frame.packet_id
        if number is not None:
            self._send(frame)
        else:
            number = self._sender.begin(frame)
            if frame.qos == 2:
                self._exact.add(number)
            self._link.write(publication(frame.topic, frame.qos, frame.retain, number, frame.payload))
        self._entries[number] = entry

    def _begin_again(self) -> None:
        """The server knows nothing of what was unacknowledged: to it, these are new messages (MQTT-146)."""
        for entry in self._entries.values():
            # It had the message, as its PUBREC shows; only the end of the flow is missing.
            entry.settle(Promise.ACKNOWLEDGED)
        self._entries.clear()
        self._exact.clear()
        self._sender.reset()
        for entry in self._outgoing:
            old = entry.what
            if isinstance(old, Publish) and old.packet_id is not None:
                entry.what = Publish(old.topic, old.payload, old.qos, old.retain)


class KeepAlive:
    """A client's side of keep alive: it sends something in time, and notices a server that is gone (MQTT-053).

    Three times in ``seconds`` it checks whether anything was sent and ``heard``; 0 disables it. If not, it sends a
    PINGREQ, and ends the connection if nothing is heard until the next check, unless the connection is not read.
    """

    def __init__(self, seconds: int, intake: Intake, send: Callable[[Frame], None]) -> None:
        self._every: Final = seconds / 3
        self._intake: Final = intake
        self._send: Final = send
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._passed = 0
        self._asked = False
        self._waiting: list[asyncio.Future[None] | None] = []  # one for each PINGREQ; None if it is not awaited
        self.heard = False

    def start(self, link: Link) -> None:
        """Watch this connection from now on."""
        self._link = link
        self._passed = link.passed
        self._asked = self.heard = False
        self._next()

    def stop(self) -> None:
        """The connection has ended."""
        self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for pong in waiting:
            if pong is not None and not pong.done():
                pong.set_exception(ConnectionLost("the connection ended"))

    @property
    def awaiting(self) -> bool:
        """Whether an answer is awaited."""
        return any(pong is not None for pong in self._waiting)

    def ping(self) -> "asyncio.Future[None]":
        """Send a PINGREQ, and return a future that is done when its answer comes."""
        if self._link is None:
            raise ConnectionLost("there is no connection", sent=False)
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(pong)
        self._send(Pingreq())
        return pong

    def answered(self) -> None:
        """PINGRESP has come."""
        pong = self._waiting.pop(0) if self._waiting else None
        if pong is not None and not pong.done():
            pong.set_result(None)

    def _next(self) -> None:
        if self._every:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._check)

    def _check(self) -> None:
        link = self._link
        if link is None:
            return
        if self._asked and not self.heard and not self._intake.paused:
            link.abort(Timeout("the answer to PINGREQ", self._every))
            return
        # A client that only listens must send, and one that only sends must hear the server.
        self._asked = link.passed == self._passed or not self.heard
        if self._asked:
            self._waiting.append(None)
            self._send(Pingreq())
        self.heard = False
        self._passed = link.passed
        self._next()


class Peer:
    """One client, on the link it has at the moment. ``connect`` is its first packet, ``on_lost`` is called at its end.

    ``session_present``: the server remembered this client when it connected last.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        window: int,
        buffer: int,
        max_packet: int,
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self.connect: Final = connect
        self._max_packet: Final = max_packet
        self._on_lost: Final = on_lost
        self._connection = Connection(Role.CLIENT)
        self._connack: asyncio.Future[Connack] | None = None
        self._first = True
        self._receiver: Final = Receiver()
        sender = Sender()
        self.intake: Final = Intake(self._awaiting)
        self._acknowledgements: Final = Acknowledgements(self._receiver, self._send)
        self.publications: Final = Publications(sender, self._send, window=window, buffer=buffer)
        self.subscriptions: Final = Subscriptions(
            sender, self._acknowledgements, self.intake, self._send, remembered=not connect.clean_session
        )
        self.keep_alive: Final = KeepAlive(connect.keep_alive, self.intake, self._send)
        self.link: Link | None = None
        self.session_present = False

    def renew(self) -> None:
        """Expect a new link."""
        self._connection = Connection(Role.CLIENT, max_packet=self._max_packet)

    def open(self, link: Link) -> "asyncio.Future[Connack]":
        """Send CONNECT over a new link. The future is done when its answer has been handled."""
        self._connack = asyncio.get_running_loop().create_future()
        self.link = link
        self._send(self.connect)
        return self._connack

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - there are no texts
        """The link's: the server has sent this."""
        self.keep_alive.heard = True
        connection = self._connection
        connection.receive_runs(data, self.subscriptions.routes, self.subscriptions.resolve)
        while (event := connection.next_event()) is not None:
            self._handle(event)
        if self.intake.strained:
            self.intake.decide()

    def lost(self, error: Exception | None, /) -> None:
        """The link's: the connection has ended."""
        link, self.link = self.link, None
        self._stop()
        self.subscriptions.detach()
        if link is not None:
            self.publications.detach(link.leftover)
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(ConnectionLost("the server closed the connection before answering CONNECT"))
        self._on_lost(error)

    def fail(self, error: Closed) -> None:
        """There will be no connection any more."""
        self.publications.fail(error)
        self.subscriptions.fail(error)

    async def close(self) -> None:
        """Disconnect."""
        link, self.link = self.link, None
        self._stop()
        if link is not None:
            link.write(self._connection.close())
            await link.close()

    def _stop(self) -> None:
        self.keep_alive.stop()
        self.intake.attach(None)

    def _send(self, frame: Frame) -> None:
        if self.link is not None:
            self.link.write(self._connection.send(frame))

    def _handle(self, event: Frame | Run) -> None:
        if isinstance(event, Run):
            self.subscriptions.deliver_run(event)
        elif isinstance(event, Puback | Pubrec | Pubcomp):
            self.publications.acknowledged(event)
        elif isinstance(event, Publish):
            self._published(event)
        elif isinstance(event, Pubrel):
            self._send(self._receiver.released(event))
        elif isinstance(event, Suback | Unsuback):
            self.subscriptions.answered(event)
        elif isinstance(event, Pingresp):
            self.keep_alive.answered()
        elif isinstance(event, Connack):
            self._answered(event)

    def _published(self, frame: Publish) -> None:
        receipt = self._receiver.published(frame)
        if receipt.reply is None:
            self.subscriptions.deliver(frame, None)
            return
        # MQTT-148: acknowledged, whether there is a subscriber or not.
        owed = self._acknowledgements.owe(receipt.reply)
        if receipt.new:
            self.subscriptions.deliver(frame, owed)
        self._acknowledgements.go_on()

    def _answered(self, frame: Connack) -> None:
        """The server has answered CONNECT: where it accepts, send what it does not know."""
        link = self.link
        if self._connack is None or self._connack.done() or link is None:
            return
        if frame.return_code == ACCEPTED:
            self.session_present = frame.session_present
            resumed = frame.session_present and not self.connect.clean_session
            if not resumed:
                self._receiver.reset()
            elif self._first:
                # Its subscriptions were made by an earlier run of this program, which makes them again in a moment.
                self.subscriptions.hold_unclaimed()
            self._first = False
            self.publications.attach(link, resumed=resumed)
            self.subscriptions.attach(resumed=resumed)
            self.publications.go_on()
            self.intake.attach(link)
            self.keep_alive.start(link)
        self._connack.set_result(frame)

    def _awaiting(self) -> bool:
        """Whether an answer of the server is awaited."""
        return not self.publications.idle or self.subscriptions.awaiting or self.keep_alive.awaiting
