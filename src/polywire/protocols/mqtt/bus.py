"""``polywire.connect`` over MQTT: topics, retained messages, queues and calls, with the QoS of the settings.

Each consumer of a queue has a connection of its own: an MQTT message goes back to its queue only when its connection
ends, and acknowledgements must be in order, so a job that takes long would hold up everything else.
"""

import asyncio
from typing import Protocol

from polywire.client.adapter import Adapter, Handler, Options, Service, Settings, Source, refuse_nack, require
from polywire.client.address import Address
from polywire.client.inbox import Reading
from polywire.client.message import NO_HEADERS, Message
from polywire.client.outgoing import Receipt
from polywire.protocols.mqtt.client import Client
from polywire.protocols.mqtt.frames import Publish
from polywire.protocols.mqtt.peer import Consuming
from polywire.registry import by_name

QUEUE = "queue/"


class Rpc(Protocol):
    """The calls and services of one connection. MQTT has none; those of the protocol ``mqttrpc`` are used."""

    async def call(self, service: str, method: str, body: bytes, seconds: float, /) -> Message:
        """Call a service."""

    async def serve(self, service: str, handler: Handler, /) -> Service:
        """Offer a service."""

    async def close(self) -> None:
        """Wait for no more answers, and offer nothing more."""


class MqttAdapter(Adapter):
    """An MQTT client as the bus sees it."""

    protocol = "mqtt"

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        self._settings = settings
        self._qos = settings.qos
        self._consumers: set[Consumer] = set()
        self._rpc: Rpc | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self.client.connected

    def publish(self, channel: str, body: bytes, options: Options) -> Receipt:
        """Publish to a topic."""
        if "+" in channel or "#" in channel:
            require("a name with + or #", self.protocol)
        return self.client.publish(channel, body, qos=self._qos, retain=options.retain)

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe, and wait for the server's answer."""
        listening = await self.client.subscribe(topic_filter(pattern), qos=self._qos, limit=limit)
        return Reading(listening, _message)

    def put(self, queue: str, body: bytes, options: Options) -> Receipt:
        """Put into a queue."""
        return self.publish(QUEUE + queue, body, options)

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue. A message leaves the queue when its consumer has acknowledged it."""
        name = topic_filter(QUEUE + queue)
        client = _client(self.client.address, self._settings.quiet(), None)
        consumer = Consumer(client, self._consumers)
        try:
            await client.start()
            await consumer.begin(name, max(1, self._qos), limit)
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def call(self, service: str, method: str, body: bytes, _: Options, seconds: float, /) -> Message:
        """Call a service, as RPC over MQTT does."""
        return await self._with_rpc().call(service, method, body, seconds)

    async def serve(self, service: str, handler: Handler, /) -> Service:
        """Offer a service, as RPC over MQTT does."""
        return await self._with_rpc().serve(service, handler)

    async def ping(self) -> None:
        """Send a PINGREQ and wait for its answer."""
        await self.client.ping()

    async def close(self) -> None:
        """Close everything that was opened on this bus."""
        try:
            await asyncio.gather(*[each.close() for each in list(self._consumers)])
            if self._rpc is not None:
                await self._rpc.close()
        finally:
            await self.client.close()

    def _with_rpc(self) -> Rpc:
        """Calls and services, loaded when they are first used: most programs need no protobuf."""
        if self._rpc is None:
            loaded: Rpc = by_name("mqttrpc").load("bus:MqttRpc")(self.client, self._qos)
            self._rpc = loaded
        return self._rpc


class Consumer:
    """Takes from a queue, over a connection of its own."""

    def __init__(self, client: Client, consumers: "set[Consumer]") -> None:
        self._client = client
        self._consumers = consumers
        self._deliveries: Consuming | None = None
        consumers.add(self)

    async def begin(self, name: str, qos: int, limit: int) -> None:
        """Subscribe to the queue."""
        self._deliveries = await self._client.consume(name, qos=qos, limit=limit)

    async def __anext__(self) -> Message:
        if self._deliveries is None:
            raise StopAsyncIteration
        delivery = await self._deliveries.__anext__()
        frame = delivery.message
        return Message(
            frame.topic,
            frame.payload,
            retain=frame.retain,
            acknowledge=delivery.ack,
            reject=refuse_nack("mqtt"),
        )

    async def close(self) -> None:
        """Take no more; what was not acknowledged goes to another consumer."""
        self._consumers.discard(self)
        await self._client.close()


async def connect(address: Address, settings: Settings) -> MqttAdapter:
    """A connected adapter. With a client id the server keeps the session while the client is away."""
    client = _client(address, settings, settings.client_id)
    await client.start()
    return MqttAdapter(client, settings)


def topic_filter(pattern: str) -> str:
    """A pattern as a topic filter: ``+`` for ``*``, a last ``#`` for ``**``."""
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
        on_disconnect=settings.on_disconnect,
        on_reconnect=settings.on_reconnect,
    )
