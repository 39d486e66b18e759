"""The machine at both ends of an MQTT connection, without IO: the hub's session and the client's peer run it.

``Connection`` is one connection: what may come and go when. ``Sender`` and ``Receiver`` are the acknowledgements of
QoS 1 and 2, SUBSCRIBE and UNSUBSCRIBE: one sender for the packets an end sends under its own packet ids, one receiver
for the publications it gets under the other end's, independent of each other (MQTT-025). They belong to the session,
which may outlive its connection. They return the packets to send, in the order in which they must be sent.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar, Final, cast, final

from mypy_extensions import i64, mypyc_attr

from polywire.protocols.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.mqtt.frames import (
    ACCEPTED,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FAILURE,
    MAX_FILTERS,
    MAX_PACKET,
    MAX_PACKET_BEFORE_CONNECT,
    MAX_PACKET_ID,
    NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    REFUSAL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Side,
    State,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    after,
    check_publication,
    encode,
    out_of_order,
)
from polywire.wire.frame import Frame, Role, Run

Acknowledgement = Puback | Pubrec | Pubcomp | Suback | Unsuback
"""A packet that ends one of the sender's flows, or moves it on."""

KINDS: Final[dict[type[Frame], int]] = {
    Connect: CONNECT,
    Connack: CONNACK,
    Publish: PUBLISH,
    Puback: PUBACK,
    Pubrec: PUBREC,
    Pubrel: PUBREL,
    Pubcomp: PUBCOMP,
    Subscribe: SUBSCRIBE,
    Suback: SUBACK,
    Unsubscribe: UNSUBSCRIBE,
    Unsuback: UNSUBACK,
    Pingreq: PINGREQ,
    Pingresp: PINGRESP,
    Disconnect: DISCONNECT,
}
"""The types of packets by their classes."""

FREE: Final = 0

OVERHEAD: Final = 256
"""Bytes that a stored publication takes besides its topic and payload."""

SENDER: Final[dict[tuple[int, int], int]] = {
    (PUBACK, PUBACK): FREE,  # MQTT-142
    (PUBREC, PUBREC): PUBCOMP,  # MQTT-144
    (PUBCOMP, PUBREC): PUBCOMP,  # the receiver has not seen PUBREL yet: it gets another
    (PUBCOMP, PUBCOMP): FREE,
    (SUBACK, SUBACK): FREE,
    (UNSUBACK, UNSUBACK): FREE,
}
"""The sender's table: the type of packet an id waits for and the one that has come, to what it waits for then."""

RECEIVER: Final[dict[tuple[bool, int], bool]] = {
    (False, PUBLISH): True,  # MQTT-145: new, to be delivered
    (True, PUBLISH): True,  # known, not delivered again
    (True, PUBREL): False,
    (False, PUBREL): False,  # MQTT-185
}
"""The receiver's table for QoS 2: whether an id is held and what has come, to whether it is held then."""


@final
class Connection:
    """One end of a connection: packets in and out, each checked against the table of its sender.

    ``receive`` takes bytes from the other end, ``next_event`` returns the packets in them one by one. ``send`` gives
    the bytes of a packet to be written. A server that has sent CONNACK may write publications and acknowledgements
    without it. The limits are those of ``Decoder``.
    """

    def __init__(
        self,
        role: Role,
        *,
        max_packet: int = MAX_PACKET,
        max_packet_before_connect: int = MAX_PACKET_BEFORE_CONNECT,
        max_filters: int = MAX_FILTERS,
    ) -> None:
        side: Side = "server" if role is Role.SERVER else "client"
        self._side: Final = side
        self._decoder: Final = Decoder(
            max_packet=max_packet,
            max_packet_before_connect=max_packet_before_connect,
            max_filters=max_filters,
            role=side,
        )
        self._order: Final = Order(side)
        self._items: list[object] = []  # decoded, from `_next` on not yet returned by ``next_event``
        self._next: i64 = 0
        self._failure: RemoteProtocolError | None = None
        self._closed = False

    def receive(self, data: bytes) -> None:
        """Decode what the other end has sent."""
        if self._closed:
            return
        try:
            self._add(cast("list[object]", self._decoder.feed(data)))
        except RemoteProtocolError as error:
            self._add(error.frames)
            self._failure = error

    def receive_runs(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None], max_qos: i64 = 0
    ) -> None:
        """As ``receive``, with publications to one route as one ``Run``: see ``Decoder.feed_runs``."""
        if self._closed:
            return
        try:
            self._add(cast("list[object]", self._decoder.feed_runs(data, routes, resolve, max_qos)))
        except RemoteProtocolError as error:
            self._add(error.frames)
            self._failure = error

    def next_event(self) -> Frame | Run | None:
        """The next packet, or None until more is received. Raises ``RemoteProtocolError`` in the place of a violation.

        Packets stay here until they are asked for, so a caller that has to finish something first just waits.
        """
        if self._next < len(self._items):
            item = self._items[self._next]
            self._next += 1
            return cast("Frame | Run", item)
        self._items = []  # a chunk that runs are part of is not kept until more comes
        self._next = 0
        if self._failure is not None:
            raise self._failure
        return None

    def send(self, frame: Frame) -> bytes:
        """The bytes of a packet that is sent now. Raises ``LocalProtocolError`` where it may not be."""
        data = encode(frame)
        self._order.sends(frame)
        return data

    def close(self, error: RemoteProtocolError | None = None) -> bytes:
        """Receive nothing more. Returns the last bytes to send, which may be none.

        They are a client's DISCONNECT, or the CONNACK by which a server answers a violation (MQTT-165).
        """
        self._closed = True
        self._items = []
        self._next = 0
        self._failure = None
        if error is not None:
            reply = error.reply
            new = self._side == "server" and self._order.state is State.NEW
            return self.send(reply) if new and isinstance(reply, Connack) else b""
        connected = self._side == "client" and self._order.state is State.CONNECTED
        return self.send(Disconnect()) if connected else b""

    def pending(self) -> int:
        """How many bytes of an incomplete packet are held."""
        return self._decoder.pending()

    def _add(self, items: list[object]) -> None:
        self._items = items if self._next == len(self._items) else self._items[self._next :] + items
        self._next = 0


@final
class Order:
    """What one side has sent on one connection, to be asked before each packet is written."""

    def __init__(self, sender: Side) -> None:
        self._sender: Final = sender
        self.state = State.NEW

    def sends(self, frame: Frame) -> None:
        """Go on to the state after ``frame``, or raise ``LocalProtocolError`` and stay."""
        kind = KINDS.get(type(frame))
        if kind is None:
            raise LocalProtocolError(f"{type(frame).__name__} is not an MQTT packet", rule="MQTT-008")
        refused = isinstance(frame, Connack) and frame.return_code != ACCEPTED
        following = after(self._sender, self.state, REFUSAL if refused else kind)
        if following is None:
            rule, reason = out_of_order(self._sender, self.state, kind)
            raise LocalProtocolError(reason, rule=rule)
        self.state = following


@final
class PacketIds:
    """The ids one side has in use (MQTT-018), at most ``most`` at once.

    ``used`` maps each of them to the type of packet it waits for, or to 0.
    """

    def __init__(self, *, most: int = MAX_PACKET_ID) -> None:
        if not 1 <= most <= MAX_PACKET_ID:
            raise ValueError(f"most is {most}, and must be 1 to {MAX_PACKET_ID}")
        self._most: Final = most
        self.used: Final[dict[int, int]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self.used)

    def __contains__(self, number: int) -> bool:
        return number in self.used

    def take(self, waits_for: int = 0) -> int:
        """An unused id, which is in use from now on. Ids are used in turn, so one that was just freed comes last."""
        if len(self.used) >= self._most:
            reason = (
                f"{len(self.used)} packets are waiting for their acknowledgement, and no more than {self._most} may"
            )
            raise LocalProtocolError(reason, rule="MQTT-182")
        number = self._last
        while True:
            number = number % MAX_PACKET_ID + 1
            if number not in self.used:
                break
        self.used[number] = waits_for
        self._last = number
        return number

    def claim(self, number: int, waits_for: int = 0) -> None:
        """Use an id that the session used before a restart, even beyond ``most``."""
        if not 1 <= number <= MAX_PACKET_ID or number in self.used:
            raise LocalProtocolError(
                f"packet id {number} is in use, or not one of 1 to {MAX_PACKET_ID}", rule="MQTT-018"
            )
        self.used[number] = waits_for

    def full(self) -> bool:
        """Whether as many are in use as may be."""
        return len(self.used) >= self._most

    def free(self, number: int) -> None:
        """Let an id be used again."""
        self.used.pop(number, None)

    def reset(self) -> None:
        """Free all ids, and begin again with the first."""
        self.used.clear()
        self._last = 0


@final
class Sender:
    """What one side of a session has sent and the other has not acknowledged.

    ``max_in_flight`` limits the number of such packets; one more raises ``LocalProtocolError`` and changes nothing.
    ``unfinished`` is what ``resume`` returned before a restart. ``octets`` is about how much memory the publications
    take that are kept to be sent again.
    """

    def __init__(self, *, max_in_flight: int = MAX_PACKET_ID, unfinished: Iterable[Publish | Pubrel] = ()) -> None:
        self._ids: Final = PacketIds(most=max_in_flight)
        self._waiting: Final[dict[int, int]] = self._ids.used  # an id taken out of it is free
        # Dictionaries keep the order of insertion, which is the order in which to send again.
        self._published: Final[dict[int, Publish]] = {}  # MQTT-149: by id, which the frame itself may lack
        self._released: Final[dict[int, Pubrel]] = {}  # MQTT-152: in the order of their PUBRECs
        self._asked: Final[dict[int, int]] = {}  # SUBSCRIBE: the number of its filters
        self.octets: i64 = 0
        for frame in unfinished:
            self._restore(frame)

    def in_flight(self) -> int:
        """How many packets wait for an acknowledgement."""
        return len(self._ids)

    def full(self) -> bool:
        """Whether one more would be too many."""
        return self._ids.full()

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,  # noqa: FBT001, FBT002 - as the fields of Publish
    ) -> Publish:
        """The PUBLISH to send for a new message; with QoS 1 and 2 it is remembered until it is acknowledged."""
        if qos == 0:
            return Publish(topic, payload, 0, retain)
        if qos not in (1, 2):
            raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-089")
        check_publication(topic, payload)
        number = self.begin(Publish(topic, payload, qos, retain))
        return Publish(topic, payload, qos, retain, dup=False, packet_id=number)

    def begin(self, frame: Publish) -> int:
        """As ``publish``, for a valid frame with QoS 1 or 2 that lacks only its packet id, which is returned."""
        number = self._ids.take(PUBACK if frame.qos == 1 else PUBREC)
        self._published[number] = frame
        self.octets += footprint(frame)
        return number

    def abandon(self, number: int) -> None:
        """Forget a packet that is never sent again, and whose acknowledgement is not awaited."""
        if number in self._waiting:
            self._forget(number)

    def recall(self, number: int) -> None:
        """Never send a packet again. With QoS 2 the other side may have it, and gets a PUBREL for its id."""
        if self._waiting.get(number) == PUBREC:
            self._unpublish(number)
            self._waiting[number] = PUBCOMP
            self._released[number] = Pubrel(number)
        else:
            self.abandon(number)

    def reset(self) -> None:
        """Forget everything: the other side has no session."""
        self._ids.reset()
        self._published.clear()
        self._released.clear()
        self._asked.clear()
        self.octets = 0

    def received(self, number: int) -> bool:
        """Whether the other side has this QoS 2 message and only the end of its flow is missing."""
        return number in self._released

    def subscribe(self, filters: tuple[tuple[str, int], ...]) -> Subscribe:
        """The SUBSCRIBE to send."""
        encode(Subscribe(MAX_PACKET_ID, filters))  # raises before an id is taken
        number = self._ids.take(SUBACK)
        self._asked[number] = len(filters)
        return Subscribe(number, filters)

    def unsubscribe(self, filters: tuple[str, ...]) -> Unsubscribe:
        """The UNSUBSCRIBE to send."""
        encode(Unsubscribe(MAX_PACKET_ID, filters))  # as above
        number = self._ids.take(UNSUBACK)
        return Unsubscribe(number, filters)

    def acknowledged(self, frame: Acknowledgement, *, position: int = 0) -> Pubrel | None:
        """Handle an acknowledgement, and return the PUBREL to answer with, if any.

        Raises ``RemoteProtocolError``, with the frame's ``position`` in the stream, where the id waits for another
        kind (MQTT-186). An acknowledgement that nothing waits for is ignored (MQTT-185).
        """
        number = frame.packet_id
        waiting = self._waiting.get(number)
        if waiting == PUBACK and isinstance(frame, Puback):
            # The most frequent one, without the table.
            del self._waiting[number]
            self.octets -= footprint(self._published.pop(number))
            return None
        if waiting is None:
            return Pubrel(number) if isinstance(frame, Pubrec) else None
        kind = KINDS[type(frame)]
        following = SENDER.get((waiting, kind))
        if following is None:
            reason = f"{NAMES[kind]} has come for packet id {number}, which waits for {NAMES[waiting]}"
            raise RemoteProtocolError(reason, rule="MQTT-186", position=position)
        if isinstance(frame, Suback) and len(frame.return_codes) != self._asked[number]:
            reason = f"SUBACK has {len(frame.return_codes)} return codes for {self._asked[number]} topic filters"
            raise RemoteProtocolError(reason, rule="MQTT-186", position=position)
        if following == FREE:
            self._forget(number)
            return None
        self._unpublish(number)
        self._waiting[number] = following
        return self._released.setdefault(number, Pubrel(number))

    def resume(self) -> list[Publish | Pubrel]:
        """What to send again, in order, when the session continues over a new connection (MQTT-146).

        First the PUBRELs, in the order of their PUBRECs, then the PUBLISH packets, with DUP, in the order they were
        first sent. SUBSCRIBE and UNSUBSCRIBE are not part of a session: their ids are free again.
        """
        for number, waiting in list(self._waiting.items()):
            if waiting in (SUBACK, UNSUBACK):
                self._forget(number)
        again: list[Publish | Pubrel] = list(self._released.values())
        for number, first in self._published.items():
            again.append(Publish(first.topic, first.payload, first.qos, first.retain, dup=True, packet_id=number))
        return again

    def _restore(self, frame: Publish | Pubrel) -> None:
        if isinstance(frame, Pubrel):
            self._ids.claim(frame.packet_id, PUBCOMP)
            self._released[frame.packet_id] = frame
            return
        number = frame.packet_id
        if number is None:
            raise LocalProtocolError("a PUBLISH with QoS 0 is never unfinished", rule="MQTT-141")
        self._ids.claim(number, PUBACK if frame.qos == 1 else PUBREC)
        self._published[number] = frame
        self.octets += footprint(frame)

    def _unpublish(self, number: int) -> None:
        frame = self._published.pop(number, None)
        if frame is not None:
            self.octets -= footprint(frame)

    def _forget(self, number: int) -> None:
        self._ids.free(number)
        self._unpublish(number)
        self._released.pop(number, None)
        self._asked.pop(number, None)


def footprint(frame: Publish) -> i64:
    """About how many bytes of memory a stored publication takes."""
    return OVERHEAD + i64(len(frame.topic)) + i64(len(frame.payload))


@final
@mypyc_attr(acyclic=True)
class Receipt(Frame):
    """What to do with a publication: deliver it if it is ``new``, and send ``reply`` once it is safe."""

    __match_args__: ClassVar[tuple[str, ...]] = ("new", "reply")

    def __init__(self, new: bool, reply: Puback | Pubrec | None) -> None:  # noqa: FBT001 - frames are built by position
        self.new: Final = new
        self.reply: Final = reply


@final
class Receiver:
    """Which QoS 2 publications one side has received and not yet released.

    Replies are to be sent in the order they were returned (MQTT-150, MQTT-151). At most ``max_held`` ids are held;
    ``held`` is what was held before a restart.
    """

    def __init__(self, *, max_held: int = MAX_PACKET_ID, held: Iterable[int] = ()) -> None:
        self._max_held: Final = max_held
        self._held: Final[set[int]] = set(held)

    def held(self) -> frozenset[int]:
        """The ids that wait for their PUBREL."""
        return frozenset(self._held)

    def published(self, frame: Publish, *, position: int = 0) -> Receipt:
        """What to do with a PUBLISH that has come. Raises ``RemoteProtocolError`` past ``max_held``."""
        number = frame.packet_id
        if frame.qos == 0 or number is None:
            return Receipt(new=True, reply=None)
        if frame.qos == 1:
            return Receipt(new=True, reply=Puback(number))  # MQTT-143: with or without DUP
        held = number in self._held
        if not held and len(self._held) >= self._max_held:
            reason = (
                f"{len(self._held)} QoS 2 messages are waiting for their PUBREL, and no more than {self._max_held} may"
            )
            raise RemoteProtocolError(reason, rule="MQTT-183", position=position)
        self._hold(number, held=RECEIVER[held, PUBLISH])
        return Receipt(not held, Pubrec(number))

    def released(self, frame: Pubrel) -> Pubcomp:
        """The answer to a PUBREL: its id now means a new message."""
        number = frame.packet_id
        self._hold(number, held=RECEIVER[number in self._held, PUBREL])
        return Pubcomp(number)

    def reset(self) -> None:
        """Forget everything: the other side has no session."""
        self._held.clear()

    def _hold(self, number: int, *, held: bool) -> None:
        if held:
            self._held.add(number)
        else:
            self._held.discard(number)


def suback(frame: Subscribe, return_codes: tuple[int, ...]) -> Suback:
    """The answer to a SUBSCRIBE, with one return code for each filter, in their order (MQTT-117)."""
    if len(return_codes) != len(frame.filters):
        reason = f"there are {len(return_codes)} return codes for {len(frame.filters)} topic filters"
        raise LocalProtocolError(reason, rule="MQTT-117")
    for code, (topic_filter, qos) in zip(return_codes, frame.filters, strict=True):
        if code != FAILURE and not 0 <= code <= qos:
            reason = f"return code {code} for {topic_filter!r} is neither failure nor a QoS up to the {qos} asked for"
            raise LocalProtocolError(reason, rule="MQTT-117")
    return Suback(frame.packet_id, return_codes)


def unsuback(frame: Unsubscribe) -> Unsuback:
    """The answer to an UNSUBSCRIBE."""
    return Unsuback(frame.packet_id)
