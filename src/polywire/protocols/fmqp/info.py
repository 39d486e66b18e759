"""What the broker itself tells on FMQP's service topics: how many clients there are, how many messages came in."""

from typing import Final, final

from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.protocols.fmqp.frames import encode_count

CLIENTS: Final = "$/info/clients"
MESSAGES: Final = "$/info/messages/second"


@final
class BrokerInfo:
    """Publishes to the service topics of one hub, from ``start`` on."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Final = hub
        self._received = 0

    def start(self) -> None:
        """Tell the number of clients now and when it changes (FMQP-27), and of messages each second (FMQP-28)."""
        self._hub.on_presence.append(self._clients)
        self._clients(len(self._hub.clients))
        self._received = self._total()
        self._hub.later(1.0, self._second)

    def _clients(self, count: int) -> None:
        message = Message(CLIENTS, encode_count(count), retain=True, time=self._hub.clock())
        self._hub.retained.keep(message)
        self._hub.route(message)

    def _second(self) -> None:
        total = self._total()
        self._hub.route(Message(MESSAGES, encode_count(total - self._received), time=self._hub.clock()))
        self._received = total
        self._hub.later(1.0, self._second)

    def _total(self) -> int:
        return sum([counters.received for counters in self._hub.counters])
