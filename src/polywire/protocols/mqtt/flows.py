"""Who owes whom which acknowledgement: the flows of QoS 0, 1 and 2, SUBSCRIBE and UNSUBSCRIBE, as pure state.

A session has one ``Sender`` for the packets it sends under ids of its own, and one ``Receiver`` for the publications
it gets under the other side's; the two know nothing of each other (MQTT-025). Both are the same for client and server.
They give the packets to send, in the order they must be sent; writing them, and when, is up to the caller.
"""

from collections.abc import Iterable
from typing import ClassVar, Final, final

from mypy_extensions import i64, mypyc_attr

from polywire.protocols.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.mqtt.frames import (
    FAILURE,
    MAX_PACKET_ID,
    NAMES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    check_publication,
    encode,
)
from polywire.wire.frame import Frame

Acknowledgement = Puback | Pubrec | Pubcomp | Suback | Unsuback
"""What ends, or moves on, a flow of the sender's."""

FREE: Final = 0

OVERHEAD: Final = 256
"""Octets a publication that is kept takes beside its topic and payload."""

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
class PacketIds:
    """The ids one side has in use (MQTT-018). ``most`` bounds how many those may be at once.

    ``used`` has each with the type of packet it waits for, or 0.
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
        """An id not in use, which now is. They go round, so one that was just freed comes last."""
        if len(self.used) >= self._most:
            reason = f"{len(self.used)} packets wait for their acknowledgement, and no more than {self._most} may"
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
        """Have an id in use that an earlier life of the session had, whatever ``most`` says."""
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


@final
class Sender:
    """What one side of a session has sent and the other has not acknowledged.

    ``max_in_flight`` bounds the number of such packets; one more raises ``LocalProtocolError`` and changes nothing.
    ``unfinished`` is what ``resume`` gave in an earlier life of the session. ``octets`` is about what the publications
    take that are kept to be sent again.
    """

    def __init__(self, *, max_in_flight: int = MAX_PACKET_ID, unfinished: Iterable[Publish | Pubrel] = ()) -> None:
        self._ids: Final = PacketIds(most=max_in_flight)
        self._waiting: Final[dict[int, int]] = self._ids.used  # an id taken out of it is free
        # Dictionaries keep the order in which things were put in, which is the order to send them in again.
        self._published: Final[dict[int, Publish]] = {}  # MQTT-149: the key is the id, the frame may lack it
        self._released: Final[dict[int, Pubrel]] = {}  # MQTT-152: by PUBREC
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

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> Publish:
        """The PUBLISH to send for a new message; with QoS 1 and 2 it is remembered until it is acknowledged."""
        if qos == 0:
            return Publish(topic, payload, 0, retain)
        if qos not in (1, 2):
            raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-089")
        check_publication(topic, payload)
        number = self.begin(Publish(topic, payload, qos, retain))
        return Publish(topic, payload, qos, retain, False, number)

    def begin(self, frame: Publish) -> int:
        """As ``publish``, for a frame with QoS 1 or 2 that can be written but for its packet id, which this gives."""
        number = self._ids.take(PUBACK if frame.qos == 1 else PUBREC)
        self._published[number] = frame
        self.octets += footprint(frame)
        return number

    def abandon(self, number: int) -> None:
        """Forget a packet that is never to be sent again, and whose acknowledgement no one waits for."""
        if number in self._waiting:
            self._forget(number)

    def recall(self, number: int) -> None:
        """Never send a packet again. With QoS 2 the other side may have it, and is told to let go of its id."""
        if self._waiting.get(number) == PUBREC:
            self._unpublish(number)
            self._waiting[number] = PUBCOMP
            self._released[number] = Pubrel(number)
        else:
            self.abandon(number)

    def received(self, number: int) -> bool:
        """Whether the other side has this QoS 2 message and only the end of its flow is still to come."""
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
        """Take an acknowledgement, and give the PUBREL to answer with, if any.

        Raises ``RemoteProtocolError``, with the frame's ``position`` in the stream, where the id waits for another
        kind (MQTT-186). What nothing waits for is ignored (MQTT-185).
        """
        number = frame.packet_id
        waiting = self._waiting.get(number)
        if waiting == PUBACK and isinstance(frame, Puback):
            # The one that comes most often, without the table.
            del self._waiting[number]
            self.octets -= footprint(self._published.pop(number))
            return None
        if waiting is None:
            return Pubrel(number) if isinstance(frame, Pubrec) else None
        kind = _kind(frame)
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
        """What to send again, in order, when the session goes on over a new connection (MQTT-146).

        First the PUBRELs, in the order of their PUBRECs, then the PUBLISH packets, with DUP, in the order they were
        first sent. SUBSCRIBE and UNSUBSCRIBE are not part of a session: their ids are free again.
        """
        for number, waiting in list(self._waiting.items()):
            if waiting in (SUBACK, UNSUBACK):
                self._forget(number)
        again: list[Publish | Pubrel] = list(self._released.values())
        for number, first in self._published.items():
            again.append(Publish(first.topic, first.payload, first.qos, first.retain, True, number))
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
        del self._waiting[number]
        self._unpublish(number)
        self._released.pop(number, None)
        self._asked.pop(number, None)


def footprint(frame: Publish) -> i64:
    """About how many octets of memory a publication takes while it is kept."""
    return OVERHEAD + i64(len(frame.topic)) + i64(len(frame.payload))


def _kind(frame: Acknowledgement) -> int:
    """The type of an acknowledgement."""
    if isinstance(frame, Puback):
        return PUBACK
    if isinstance(frame, Pubrec):
        return PUBREC
    if isinstance(frame, Pubcomp):
        return PUBCOMP
    return SUBACK if isinstance(frame, Suback) else UNSUBACK


@final
@mypyc_attr(acyclic=True)
class Receipt(Frame):
    """What to do with a publication: hand it on if it is ``new``, and send ``reply`` once it is safe."""

    __match_args__: ClassVar[tuple[str, ...]] = ("new", "reply")

    def __init__(self, new: bool, reply: Puback | Pubrec | None) -> None:
        self.new: Final = new
        self.reply: Final = reply


@final
class Receiver:
    """Which QoS 2 publications one side has got and not yet been told to let go.

    Replies are to be sent in the order they were given (MQTT-150, MQTT-151). ``max_held`` bounds what is held;
    ``held`` is what an earlier life of the session held.
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
            return Receipt(True, None)
        if frame.qos == 1:
            return Receipt(True, Puback(number))  # MQTT-143: whatever DUP says
        held = number in self._held
        if not held and len(self._held) >= self._max_held:
            reason = f"{len(self._held)} QoS 2 messages wait for their PUBREL, and no more than {self._max_held} may"
            raise RemoteProtocolError(reason, rule="MQTT-183", position=position)
        self._hold(number, RECEIVER[held, PUBLISH])
        return Receipt(not held, Pubrec(number))

    def released(self, frame: Pubrel) -> Pubcomp:
        """The answer to a PUBREL: its id now means a new message."""
        number = frame.packet_id
        self._hold(number, RECEIVER[number in self._held, PUBREL])
        return Pubcomp(number)

    def _hold(self, number: int, held: bool) -> None:
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
