"""What the hub sends to one MicroMsg2 connection: numbered, within the window the two sides agreed on.

Messages of topics that find the window closed wait here in order, and count against the outbox's cap: beyond it the
policy for slow readers decides. A queue's messages wait in their queue; only one of them stands in line with the
topics' messages, so that neither kind keeps the other out. A message counts as sent once it is in the outbox.
"""

from collections import deque
from typing import Final, final

from mypy_extensions import i64

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.queues import Consumer, Delivery
from polywire.protocols.micromsg.bridge import (
    WITH_DOTNET,
    WITH_JSON,
    as_topic,
    encoded,
    is_json,
    type_name,
    vendor_frames,
)
from polywire.protocols.micromsg.connection import SendWindow
from polywire.protocols.micromsg.dotnet import TypeWriter
from polywire.protocols.micromsg.frames import Error, Extension, encode, renumbered

SLOW_READER: Final = "slow-reader"
UNENCODABLE: Final = "unencodable"
NOT_JSON: Final = "not-json"
PARCEL_SIZE: Final = 128
"""Octets a waiting message takes beside its own."""


@final
class Parcel:
    """A message that waits for the window to open: a topic's, or a queue's with its ``delivery``.

    ``before`` are the frames of vendor extensions that go before it.
    """

    def __init__(self, before: bytes, octets: bytes, named_type: str, delivery: Delivery | None) -> None:
        self.before: Final = before
        self.octets: Final = octets
        self.named_type: Final = named_type
        self.delivery: Final = delivery

    def size(self) -> int:
        """How many octets it takes in the outbox while it waits."""
        return len(self.before) + len(self.octets) + PARCEL_SIZE


@final
class Outgoing:
    """One connection's messages. ``window``: how many may be unacknowledged, 0 where there are no acks.

    ``types``: the number of ``dotnet``, 0 without it. ``vendors``: the numbers of the vendor extensions, by name.
    ``json``: whether that was agreed on.
    """

    def __init__(self, client: Client, window: int, types: int, vendors: dict[str, int], *, json: bool) -> None:
        self._client: Final = client
        self._window: Final = SendWindow(window)
        self._acks: Final = window > 0
        self._types: Final = TypeWriter(types) if types else None
        self._vendors: Final = vendors
        self._json: Final = json
        self._form: Final = (WITH_DOTNET if types else 0) | (WITH_JSON if json else 0)
        self._waiting: Final[deque[Parcel]] = deque()
        self._queued: i64 = 0  # how many of the waiting are a queue's
        self._unacknowledged: Final[deque[Delivery | None]] = deque()
        self._busy = False  # between numbers: nothing may be sent from below
        self.draining = False
        self.closed = False

    def is_busy(self) -> bool:
        """Whether messages are on their way that the peer, or the hub for it, still has to deal with."""
        if self._waiting:
            return True
        for delivery in self._unacknowledged:
            if delivery is not None:
                return True
        return False

    def topic(self, message: Message) -> None:
        """Send a topic's message, now or when the window opens."""
        if self.closed:
            return
        client = self._client
        protocol = client.protocol
        if self._json and not is_json(message, protocol):
            client.counters.drop(NOT_JSON)
            return
        octets = as_topic(message, protocol, self._form)
        if not octets:
            client.counters.drop(UNENCODABLE)
            return
        named_type = "" if self._types is None else type_name(message)
        before = self._before(message) if self._vendors and message.headers else b""
        if self._waiting or not self._window.is_open():
            parcel = Parcel(before, octets, named_type, None)
            if client.outbox.hold(parcel.size()):
                self._waiting.append(parcel)
            else:
                self._dropped(message)
            return
        types = self._types
        told = "" if types is None else types.told
        ready = self._ready(before, octets, named_type)
        # Making room in the outbox may call back here, before this message has got its number.
        self._busy = True
        accepted = client.outbox.offer(ready)
        self._busy = False
        if accepted:
            self._sent(None)
        else:
            if types is not None:
                types.told = told
            self._dropped(message)

    def room(self) -> bool:
        """Whether a queue may hand out a message for this connection."""
        if self.closed or self.draining or self._busy:
            return False
        return self._client.outbox.takes_queued() and self._queued == 0

    def suits(self, message: Message) -> bool:
        """Whether the connection can carry a queue's message."""
        return not self._json or is_json(message, self._client.protocol)

    def queued(self, delivery: Delivery, destination: str) -> None:
        """Send a queue's message, now or when the window opens. Without acks it is the peer's once it is written."""
        message = delivery.outgoing()
        octets = encoded(message, destination, self._form)
        if not octets:
            self._client.counters.drop(UNENCODABLE)
            delivery.ack()
            return
        named_type = "" if self._types is None else type_name(message)
        before = self._before(message) if self._vendors and message.headers else b""
        if self._waiting or not self._window.is_open():
            self._queued += 1
            self._waiting.append(Parcel(before, octets, named_type, delivery))
            return
        self._put(before, octets, named_type, delivery)

    def acked(self, sequence: int) -> Error | None:
        """The peer has acknowledged messages, or the ERROR to answer with."""
        count = self._window.acked(sequence)
        if isinstance(count, Error):
            return count
        done: list[Delivery] = []
        for _ in range(count):
            delivery = self._unacknowledged.popleft()
            if delivery is not None:
                done.append(delivery)
        self.resume()
        # The queues these came from get no room before the others: whoever calls this lets them take turns.
        self._busy = True
        for delivery in done:
            delivery.ack()
        self._busy = False
        return None

    def nacked(self, sequence: int, delay: float, reason: str) -> Error | None:
        """MICROMSG-196: the peer rejects a queue's message, whose number it acknowledges all the same.

        A second nack, or one of a topic's message, changes nothing.
        """
        place = self._window.place(sequence)
        if isinstance(place, Error):
            return place
        delivery = self._unacknowledged[place]
        if delivery is not None:
            self._unacknowledged[place] = None
            self._busy = True
            delivery.nack(delay, reason)
            self._busy = False
        return None

    def resume(self) -> None:
        """Send what waits, as far as window and outbox allow."""
        waiting = self._waiting
        while waiting and self._window.is_open() and not self._client.outbox.full() and not self._busy:
            parcel = waiting.popleft()
            if parcel.delivery is not None:
                self._queued -= 1
            else:
                self._client.outbox.release(parcel.size())
            self._put(parcel.before, parcel.octets, parcel.named_type, parcel.delivery)

    def has_sent_to(self, consumer: Consumer) -> bool:
        """Whether the peer has messages of this consumer that it did not acknowledge."""
        for delivery in self._unacknowledged:
            if delivery is not None and delivery.consumer is consumer:
                return True
        return False

    def forget(self, consumer: Consumer) -> list[Delivery]:
        """Take a consumer's messages out of the line, for their queue to have back."""
        removed: list[Delivery] = []
        kept: list[Parcel] = []
        for parcel in self._waiting:
            delivery = parcel.delivery
            if delivery is not None and delivery.consumer is consumer:
                removed.append(delivery)
                self._queued -= 1
            else:
                kept.append(parcel)
        self._waiting.clear()
        self._waiting.extend(kept)
        return removed

    def close(self) -> None:
        """Send nothing more."""
        self.closed = True
        for parcel in self._waiting:
            if parcel.delivery is None:
                self._client.outbox.release(parcel.size())
            else:
                parcel.delivery.attempts -= 1  # it was not sent
        self._waiting.clear()
        self._queued = 0

    def _put(self, before: bytes, octets: bytes, named_type: str, delivery: Delivery | None) -> None:
        self._client.outbox.push(self._ready(before, octets, named_type))
        self._sent(delivery)
        if delivery is not None and not self._acks:
            delivery.ack()

    def _before(self, message: Message) -> bytes:
        """MICROMSG-193: the frames of the vendor extensions this connection has agreed on, under its own numbers."""
        found: list[bytes] = []
        for name, payload in vendor_frames(message, self._client.protocol):
            number = self._vendors.get(name)
            if number is not None:
                found.append(encode(Extension(number, payload)))
        return b"".join(found)

    def _ready(self, before: bytes, octets: bytes, named_type: str) -> bytes:
        """The octets to write: with the next number, behind the vendors' frames and the one that names the type."""
        numbered = renumbered(octets, self._window.due())
        if self._types is not None:
            named = self._types.before(named_type)
            if named is not None:
                return before + encode(named) + numbered
        return before + numbered if before else numbered

    def _sent(self, delivery: Delivery | None) -> None:
        self._window.take()
        if self._acks:
            self._unacknowledged.append(delivery)
        self._client.counters.messages_out += 1

    def _dropped(self, message: Message) -> None:
        self._client.counters.drop(SLOW_READER)
        self._client.outbox.count_dropped(message.channel, 1)
