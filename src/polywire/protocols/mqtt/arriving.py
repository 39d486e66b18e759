"""What a server sends to a client of MQTT: handed to those it is for, and answered."""

from collections.abc import Callable

from polywire.protocols.mqtt.flows import Receiver
from polywire.protocols.mqtt.frames import (
    Connack,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    encode,
    publications_in,
)
from polywire.protocols.mqtt.keep_alive import KeepAlive
from polywire.protocols.mqtt.listening import Listening, Table
from polywire.protocols.mqtt.publishing import Publishing
from polywire.protocols.mqtt.subscribing import Subscribing
from polywire.wire.frame import Frame, Run


class Arriving:
    """One client's way in. ``write`` sends on the live connection, ``connack`` takes the answer to CONNECT."""

    def __init__(
        self,
        table: Table,
        publishing: Publishing,
        subscribing: Subscribing,
        keep_alive: KeepAlive,
        write: Callable[[bytes], None],
        connack: Callable[[Connack], None],
    ) -> None:
        self._table = table
        self._acknowledgements = table.acknowledgements
        self._publishing = publishing
        self._subscribing = subscribing
        self._keep_alive = keep_alive
        self._write = write
        self._connack = connack
        self._receiver = Receiver()

    def begin_session(self) -> None:
        """The server knows nothing of what it has sent before."""
        self._receiver = Receiver()

    def take(self, item: object) -> None:
        """A packet, or a run of publications."""
        if isinstance(item, Run):
            found = publications_in(item.data, item.start, item.end)
            for ear in self._table.ears(item.route, item.count):
                if isinstance(ear, Listening):
                    ear.extend(found, item.end - item.start)
                else:
                    for frame in found:
                        ear.deliver(frame, None)
        elif isinstance(item, Puback | Pubrec | Pubcomp):
            self._publishing.acknowledged(item)
        elif isinstance(item, Publish):
            self._published(item)
        elif isinstance(item, Frame):
            self._seldom(item)

    def _published(self, frame: Publish) -> None:
        receipt = self._receiver.published(frame)
        if receipt.reply is None:
            self._table.deliver(frame, None)
            return
        # MQTT-148: acknowledged, whether somebody listens or not.
        owed = self._acknowledgements.owe(encode(receipt.reply))
        if receipt.new:
            self._table.deliver(frame, owed)
        self._acknowledgements.go_on()

    def _seldom(self, frame: Frame) -> None:
        if isinstance(frame, Pubrel):
            self._write(encode(self._receiver.released(frame)))
        elif isinstance(frame, Suback | Unsuback):
            self._subscribing.answered(frame, self._table)
        elif isinstance(frame, Pingresp):
            self._keep_alive.answered()
        elif isinstance(frame, Connack):
            self._connack(frame)
