"""The one face over MQTT: topics, retained messages and queues, with the QoS of the connection's settings.

Whoever takes from a queue has a connection of its own: MQTT gives a message back only when its connection ends, and
wants acknowledgements in order, so that a job that takes long would hold everything else up.
"""

import asyncio
from collections.abc import Awaitable

from polywire.client.adapter import Adapter, Options, Settings, Source
from polywire.client.address import Address
from polywire.client.features import require
from polywire.client.message import NO_HEADERS, Message
from polywire.client.receipt import Promise
from polywire.client.source import Reading
from polywire.protocols.mqtt.client import Client
from polywire.protocols.mqtt.listening import Consuming
from polywire.protocols.mqtt.packets import Publish

QUEUE = "queue/"


class MqttAdapter(Adapter):
    """An MQTT client as the bus sees it."""

    protocol = "mqtt"

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        self._settings = settings
        self._qos = settings.qos
        self._consumers: set[Consumer] = set()

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self.client.connected

    def publish(self, channel: str, body: bytes, options: Options) -> Awaitable[Promise]:
        """Publish to a topic."""
        if "+" in channel or "#" in channel:
            require("a name with + or #", self.protocol)
        return self.client.publish(channel, body, qos=self._qos, retain=options.retain)

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe, and wait for the server's answer."""
        listening = await self.client.subscribe(topic_filter(pattern), qos=self._qos, limit=limit)
        return Reading(listening, _message)

    def put(self, queue: str, body: bytes, options: Options) -> Awaitable[Promise]:
        """Put into a queue."""
        return self.publish(QUEUE + queue, body, options)

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue. A message is its consumer's once that has acknowledged it."""
        name = topic_filter(QUEUE + queue)
        client = _client(self.client.address, self._settings, None)
        consumer = Consumer(client, self._consumers)
        try:
            await client.start()
            await consumer.begin(name, max(1, self._qos), limit)
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def ping(self) -> None:
        """A round trip to the server and back."""
        await self.client.ping()

    async def close(self) -> None:
        """Leave nothing behind."""
        await asyncio.gather(*[consumer.close() for consumer in list(self._consumers)])
        await self.client.close()


class Consumer:
    """Takes from a queue, over a connection of its own."""

    def __init__(self, client: Client, consumers: "set[Consumer]") -> None:
        self._client = client
        self._consumers = consumers
        self._deliveries: Consuming | None = None
        consumers.add(self)

    async def begin(self, name: str, qos: int, limit: int) -> None:
        """Ask for messages."""
        self._deliveries = await self._client.consume(name, qos=qos, limit=limit)

    async def __anext__(self) -> Message:
        if self._deliveries is None:
            raise StopAsyncIteration
        delivery = await self._deliveries.__anext__()
        frame = delivery.message
        return Message(frame.topic, frame.payload, NO_HEADERS, None, frame.retain, (), delivery.ack)

    async def close(self) -> None:
        """Want no more; what was not acknowledged goes to somebody else."""
        self._consumers.discard(self)
        await self._client.close()


async def connect(address: Address, settings: Settings) -> MqttAdapter:
    """A connected adapter. With a client id the server keeps the session while we are away."""
    client = _client(address, settings, settings.client_id)
    await client.start()
    return MqttAdapter(client, settings)


def topic_filter(pattern: str) -> str:
    """A pattern as MQTT writes it: ``+`` for ``*``, a last ``#`` for ``**``."""
    if "+" in pattern or "#" in pattern:
        require("a name with + or #", "mqtt")
    if "*" not in pattern:
        return pattern
    levels = ["+" if level == "*" else level for level in pattern.split("/")]
    if levels[-1] == "**":
        levels[-1] = "#"
    return "/".join(levels)


def _message(frame: Publish) -> Message:
    return Message(frame.topic, frame.payload, NO_HEADERS, None, frame.retain)


def _client(address: Address, settings: Settings, client_id: str | None) -> Client:
    return Client(
        address,
        client_id=client_id,
        clean_session=client_id is None,
        tls=settings.tls,
        connect_time=settings.connect_time,
        backoff=settings.backoff,
        buffer=settings.buffer,
    )
