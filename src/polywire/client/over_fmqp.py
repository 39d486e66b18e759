"""The one face over FMQP: topics, cache, demand and queues. FMQP has no acknowledgements: what is published is sent."""

from polywire.client.adapter import Adapter, Options, Settings, Source
from polywire.client.address import Address
from polywire.client.errors import Closed, Timeout
from polywire.client.features import refuse_nack, require
from polywire.client.inbox import Inbox
from polywire.client.message import NO_HEADERS, Demand, Message
from polywire.client.receipt import Receipt
from polywire.client.source import Item, Own, Reading
from polywire.protocols.fmqp.client import ANSWER_TIME, Client
from polywire.protocols.fmqp.frames import Publication
from polywire.protocols.fmqp.listening import Demand as FmqpDemand

QUEUE = "queue/"


class FmqpAdapter(Adapter):
    """An FMQP client as the bus sees it."""

    protocol = "fmqp"

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self.client.connected

    def publish(self, channel: str, body: bytes, options: Options) -> Receipt:
        """Publish to a topic. An empty body clears the cache, with ``retain``, and is nothing otherwise."""
        if not body and not options.retain:
            require("an empty body", self.protocol)
        return self.client.publish(_topic(channel), body, cache=options.retain)

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe, and wait until the broker has done so, if it can tell."""
        listening = self.client.subscribe(_topic(pattern), limit=limit)
        return await self._settled(listening, Reading(listening, _message))

    def put(self, queue: str, body: bytes, options: Options) -> Receipt:
        """Put into a queue."""
        return self.publish(QUEUE + queue, body, options)

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue: what was written to the connection is taken."""
        listening = self.client.subscribe(_topic(QUEUE + queue), limit=limit)
        return await self._settled(listening, Reading(listening, _queued))

    async def watch_demand(self, pattern: str, limit: int, /) -> Source[Demand]:
        """Watch how many subscribers topics have."""
        watching = self.client.watch(_topic(pattern), limit=limit)
        return await self._settled(watching, Reading(watching, _demand))

    async def ping(self) -> None:
        """A round trip to the broker and back."""
        await self.client.settled()

    async def close(self) -> None:
        """Leave nothing behind."""
        await self.client.close()

    async def _settled(self, inbox: Inbox[Own], reading: Reading[Own, Item]) -> Reading[Own, Item]:
        try:
            if self.client.answers:
                await self.client.settled(ANSWER_TIME)
        except Timeout:
            pass  # it is subscribed once there is a connection, or was, by a broker that does not tell
        except Closed as closed:
            if closed.__cause__ is not None:
                inbox.close()
                raise
            # Its own program closed the client meanwhile: iterating just ends.
        except BaseException:
            inbox.close()
            raise
        return reading


async def connect(address: Address, settings: Settings) -> FmqpAdapter:
    """A connected adapter."""
    client = Client(
        address,
        tls=settings.tls,
        connect_time=settings.connect_time,
        backoff=settings.backoff,
        buffer=settings.buffer,
        on_disconnect=settings.on_disconnect,
        on_reconnect=settings.on_reconnect,
    )
    await client.start()
    return FmqpAdapter(client)


def _topic(name: str) -> str:
    """A channel's name, or a pattern, as FMQP has it: its topics have no slashes at the ends."""
    if name[:1] == "/" or name[-1:] == "/":
        require("a name that begins or ends with /", "fmqp")
    return name


def _message(frame: Publication) -> Message:
    return Message(frame.topic, frame.body, NO_HEADERS, None, frame.cache)


def _queued(frame: Publication) -> Message:
    return Message(frame.topic, frame.body, reject=refuse_nack("fmqp"))


def _demand(demand: FmqpDemand) -> Demand:
    return Demand(demand.topic, demand.subscribers)
