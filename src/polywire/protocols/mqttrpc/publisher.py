"""The hub's own voice on service topics: a client without a connection."""

from typing import Final, final

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.protocols.mqttrpc.errors import LocalProtocolError
from polywire.protocols.mqttrpc.frames import encode
from polywire.wire.frame import Frame

PROTOCOL: Final = "mqttrpc"


@final
class TopicPublisher:
    """Publishes Requests and Responses. Its ``client`` may do everything, and is not one of the hub's clients."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Final = hub
        number = [counters.protocol for counters in hub.counters].index(PROTOCOL)
        self.client: Final[Client] = hub.client(number, Outbox(Nowhere(), hub.flusher))

    def publish(self, topic: str, frame: Frame) -> bool:
        """Publish a Request or a Response. False where it can't be written: it is too large for MQTT."""
        try:
            payload = encode(frame)
        except LocalProtocolError:
            return False
        self._hub.publish(Message(topic, payload, time=self._hub.clock(), origin=self.client.number), self.client)
        return True
