"""FMQP for ``polywire.connect``: topics, cache, demand and queues.

FMQP has no acknowledgements: a message that was sent counts as published, and one that arrived as taken.
"""

from polywire.client.adapter import Adapter, Options, Settings, Source, refuse_nack, require
from polywire.client.address import Address
from polywire.client.errors import Closed, Timeout
from polywire.client.inbox import Inbox, Item, Own, Reading
from polywire.client.message import NO_HEADERS, Demand, Message
from polywire.client.outgoing import Receipt
from polywire.protocols.fmqp.client import ANSWER_TIME, Client
from polywire.protocols.fmqp.client import Demand as FmqpDemand
from polywire.protocols.fmqp.frames import Publication

QUEUE = "queue/"


class FmqpAdapter(Adapter):
    """An FMQP client as the bus uses it."""

    protocol = "fmqp"

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self.client.connected

    def publish(self, channel: str, body: bytes, options: Options) -> Receipt:
        """Publish to a topic. With ``retain``, an empty body clears the cache; without, it is not supported."""
        retain = options.retain
        if not body and not retain:
            require("an empty body", self.protocol)
        return self.client.publish(_topic(channel), body, cache=retain)

    async def subscribe(self, pattern: str, limit: int) -> Source[Message]:
        """Subscribe, and wait until the broker has done so, if it sends feedback."""
        listening = self.client.subscribe(_topic(pattern), limit=limit)
        return await self._settled(listening, Reading(listening, _message))

    def put(self, queue: str, body: bytes, options: Options) -> Receipt:
        """Put into a queue."""
        return self.publish(QUEUE + queue, body, options)

    async def consume(self, queue: str, limit: int) -> Source[Message]:
        """Take from a queue. What the broker has sent is taken."""
        listening = self.client.subscribe(_topic(QUEUE + queue), limit=limit)
        return await self._settled(listening, Reading(listening, _queued))

    async def watch_demand(self, pattern: str, limit: int, /) -> Source[Demand]:
        """Watch how many subscribers topics have."""
        watching = self.client.watch(_topic(pattern), limit=limit)
        return await self._settled(watching, Reading(watching, _demand))

    async def ping(self) -> None:
        """A round trip to the broker."""
        await self.client.settled()

    async def close(self) -> None:
        """Send what can be sent, then disconnect."""
        await self.client.close()

    async def _settled(self, inbox: Inbox[Own], reading: Reading[Own, Item]) -> Reading[Own, Item]:
        try:
            if self.client.answers:
                await self.client.settled(ANSWER_TIME)
        except Timeout:
            pass  # it is subscribed once there is a connection, or is already, by a broker without feedback
        except Closed as closed:
            if closed.__cause__ is not None:
                inbox.close()
                raise
            # Its own program closed the client: iterating just ends.
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
    """The topic of a channel or pattern. FMQP ignores slashes at the ends, so names that have them are refused."""
    if name and (name[0] == "/" or name[-1] == "/"):
        require("a name that begins or ends with /", "fmqp")
    return name


def _message(frame: Publication) -> Message:
    return Message(frame.topic, frame.body, NO_HEADERS, None, frame.cache)


def _queued(frame: Publication) -> Message:
    return Message(frame.topic, frame.body, reject=refuse_nack("fmqp"))


def _demand(demand: FmqpDemand) -> Demand:
    return Demand(demand.topic, demand.subscribers)
