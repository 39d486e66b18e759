"""What a client of MQTT publishes, from the call to the acknowledgement, over as many connections as that takes.

With QoS 0 a message goes to the connection, or waits for one. With QoS 1 and 2 it takes a packet id, as many at once
as the window allows, and is kept until it is acknowledged: a connection that ends before makes it go again. A message
that ends the connection each time it is sent fails in the end: that is all a server can do about one it does not want.
"""

import collections
from time import monotonic
from typing import Final

from polywire.client.errors import Closed
from polywire.client.link import Link
from polywire.client.posting import Suspicion, closed_each_time
from polywire.client.receipt import SENT, Promise, Receipt
from polywire.client.reconnect import Backlog, Entry
from polywire.protocols.mqtt.flows import Sender
from polywire.protocols.mqtt.frames import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    check_publication,
    encode,
    publication,
)

WINDOW: Final = 500
"""Messages that may be unacknowledged at once, unless told otherwise; servers have limits of their own."""

EXACT_WINDOW: Final = 20
"""The same for QoS 2: Mosquitto takes no more at once by default, and does not keep the order of what is beyond."""


class Publishing:
    """All that one client publishes. ``window`` bounds what is unacknowledged, ``buffer`` the octets that wait."""

    def __init__(self, *, window: int, buffer: int) -> None:
        self._window: Final = window
        self._backlog: Final = Backlog(buffer)
        self._receipts: dict[int, Receipt] = {}
        self._link: Link | None = None
        self._direct: Link | None = None  # the link while nothing waits to go before what is published
        self._drained: Receipt | None = None
        self._exact: set[int] = set()  # ids of QoS 2
        # What was unacknowledged at the end of a connection, and is to be sent again; with its id in a kept session.
        self._again: collections.deque[tuple[Publish, Receipt]] = collections.deque()
        self._suspicion: Suspicion[Receipt] = Suspicion()
        self._alone: Receipt | None = None  # nothing else is sent until it is acknowledged
        self._last_sent = 0.0
        self.sender = Sender()

    @property
    def idle(self) -> bool:
        """Whether nothing waits, neither to be sent nor to be acknowledged."""
        return not self._backlog and not self._receipts and not self._again

    @property
    def awaiting(self) -> bool:
        """Whether an acknowledgement is to come."""
        return bool(self._receipts) or bool(self._again) or len(self._backlog) > 0

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> Receipt:
        """Send a message now, or keep it."""
        link = self._direct
        if qos == 0:
            data = publication(topic, 0, retain, 0, payload)
            if link is not None and not link.full:
                link.write(data)
                return SENT
            self._direct = None
            return self._backlog.add(data, len(data), topic)
        check_publication(topic, payload)
        frame = Publish(topic, payload, qos, retain)
        if link is not None and not link.full and self._may_begin(qos):
            receipt = Receipt(channel=topic)
            self._begin(link, frame, receipt)
            return receipt
        self._direct = None
        return self._backlog.add(frame, len(topic) + len(payload), topic)

    def attach(self, link: Link, *, resumed: bool) -> None:
        """There is a connection. ``resumed``: the server still knows what was unacknowledged. ``go_on`` begins."""
        self._link = link
        if resumed:
            for frame in self.sender.resume():
                if isinstance(frame, Pubrel):
                    link.write(encode(frame))
        else:
            self._begin_again()
        self._send_again(link)
        link.on_room = self.go_on

    def detach(self, leftover: list[bytes]) -> None:
        """There is none any more. Of what it left over only what nobody else keeps is to be sent again."""
        self._link = self._direct = self._alone = None
        self._backlog.put_back([piece for piece in leftover if piece[0] & 0xF6 == 0x30])
        unfinished = [
            (frame, self._receipts.pop(frame.packet_id))
            for frame in self.sender.resume()
            if isinstance(frame, Publish) and frame.packet_id in self._receipts
        ]  # of the others the server has the message, and only the end of the flow is missing
        sizes = [(receipt, len(frame.payload)) for frame, receipt in unfinished]
        found = self._suspicion.ended(sizes, monotonic() - self._last_sent)
        for frame, receipt in unfinished:
            if receipt is found:
                self._give_up(frame, receipt)
        again = [(frame, receipt) for frame, receipt in unfinished if receipt is not found]
        self._again.extendleft(reversed(again))

    def acknowledged(self, frame: Puback | Pubrec | Pubcomp) -> None:
        """The server has acknowledged something."""
        reply = self.sender.acknowledged(frame)
        if reply is not None and self._link is not None:
            self._link.write(encode(reply))
        if isinstance(frame, Pubrec):
            return
        self._exact.discard(frame.packet_id)
        receipt = self._receipts.pop(frame.packet_id, None)
        if receipt is not None:
            receipt.keep(Promise.ACKNOWLEDGED)
            self._suspicion.forget(receipt, acknowledged=True)
            if receipt is self._alone:
                self._alone = None
            if self._direct is None:
                self.go_on()
            elif self._drained is not None:
                self._look_at_drained()

    def go_on(self) -> None:
        """There is room: send what has waited, and let what comes go straight."""
        if self._link is not None and self._send_again(self._link):
            self._backlog.drain(self._send)
            if not self._backlog:
                self._direct = self._link
                self._look_at_drained()

    def drained(self) -> Receipt:
        """A receipt that is kept once nothing waits any more, neither to be sent nor to be acknowledged."""
        self._drained = Receipt()
        self._look_at_drained()
        return self._drained

    def fail(self, error: Closed) -> None:
        """Nothing more will be sent or acknowledged."""
        receipts, self._receipts = self._receipts, {}
        again, self._again = self._again, collections.deque()
        for receipt in (*receipts.values(), *[receipt for _, receipt in again]):
            receipt.fail(error.about(sent=True))
        if self._drained is not None:
            self._drained.fail(error)
        self._backlog.fail(error.about(sent=False))

    def _look_at_drained(self) -> None:
        if self._drained is not None and self.idle:
            self._drained.keep(Promise.ACKNOWLEDGED)

    def _may_begin(self, qos: int) -> bool:
        return len(self._receipts) < self._window and (qos == 1 or len(self._exact) < EXACT_WINDOW)

    def _begin(self, link: Link, frame: Publish, receipt: Receipt) -> None:
        number = self.sender.begin(frame)
        receipt.withdraw = None  # what has been sent can't be taken back
        self._receipts[number] = receipt
        self._last_sent = monotonic()
        if frame.qos == 2:
            self._exact.add(number)
        link.write(publication(frame.topic, frame.qos, frame.retain, number, frame.payload))

    def _send(self, entry: Entry) -> bool:
        link = self._link
        if link is None or link.full:
            return False
        if isinstance(entry.what, bytes):
            link.write(entry.what)
            if entry.receipt is not None:
                entry.receipt.keep(Promise.SENT)
            return True
        assert isinstance(entry.what, Publish)  # noqa: S101 - nothing else is put in
        if not self._may_begin(entry.what.qos):
            return False
        self._begin(link, entry.what, entry.receipt or Receipt())
        return True

    def _begin_again(self) -> None:
        """The server knows nothing of what was unacknowledged: to it, these are new messages (MQTT-146)."""
        receipts, self._receipts = self._receipts, {}
        for receipt in receipts.values():
            # It had the message, and said so; only the end of the flow is missing.
            receipt.keep(Promise.ACKNOWLEDGED)
        self._exact.clear()
        self.sender = Sender()
        self._again = collections.deque(
            [(Publish(old.topic, old.payload, old.qos, old.retain), receipt) for old, receipt in self._again]
        )

    def _send_again(self, link: Link) -> bool:
        """Send what was unacknowledged, suspects alone. Whether all of it is sent, and other messages may follow."""
        while self._again and self._alone is None:
            frame, receipt = self._again[0]
            suspect = self._suspicion.suspect(receipt)
            if suspect and self._receipts:
                return False
            self._again.popleft()
            if suspect:
                self._alone = receipt
            if frame.packet_id is None:
                self._begin(link, frame, receipt)
            else:
                self._receipts[frame.packet_id] = receipt
                self._last_sent = monotonic()
                link.write(encode(frame))
        return self._alone is None

    def _give_up(self, frame: Publish, receipt: Receipt) -> None:
        """Never send it again."""
        self._suspicion.forget(receipt)
        if frame.packet_id is not None:
            self.sender.recall(frame.packet_id)
            self._exact.discard(frame.packet_id)
        receipt.fail(closed_each_time(len(frame.payload)))
