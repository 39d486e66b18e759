"""FMQP for programs: a client in the protocol's own words, which stays connected.

    async with fmqp.connect("fmqp://127.0.0.1:7103") as client:
        client.publish("home/kitchen/temperature", b"21.5", cache=True)
        async with client.subscribe("home/*/temperature") as messages:
            async for message in messages: ...

It works with any broker that speaks FMQP. After a lost connection it comes back, subscribes and watches again, and
leaves its last wills again; what was published meanwhile is sent then.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from polywire.client.address import Address, parse
from polywire.client.dialing import DIAL_TIME, dial
from polywire.client.errors import Closed, ConnectFailed, ConnectionLost, Timeout
from polywire.client.inbox import LIMIT, Intake
from polywire.client.link import CLOSE_TIME, Link
from polywire.client.message import Body, octets
from polywire.client.opening import Opening
from polywire.client.receipt import SENT, Promise, Receipt
from polywire.client.reconnect import BACKOFF, BUFFER, Backlog, Backoff, Entry, Keeper, OnDisconnect, OnReconnect
from polywire.protocols.fmqp.frames import (
    CACHE,
    DEBUG,
    LAST_WILL,
    MAX_BODY,
    Decoder,
    Subscription,
    Unsubscription,
    encode,
    publication,
)
from polywire.protocols.fmqp.listening import Listening, Table, Watching
from polywire.protocols.fmqp.round_trips import RoundTrips

SETTLE_TIME: Final = 10.0

ANSWER_TIME: Final = 2.0
"""Seconds a broker has to show that it is there; one that doesn't is believed to be, from then on."""


class Client:
    """A connection to a broker. Made by ``connect``."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        connect_time: float = DIAL_TIME,
        backoff: Backoff | None = BACKOFF,
        buffer: int = BUFFER,
        max_body: int = MAX_BODY,
        on_disconnect: OnDisconnect | None = None,
        on_reconnect: OnReconnect | None = None,
    ) -> None:
        self.address: Final = address
        self._tls = tls
        self._connect_time = connect_time
        self._max_body = max_body
        self._keeper = Keeper(
            str(address), self._open, backoff, self._gave_up, on_disconnect=on_disconnect, on_reconnect=on_reconnect
        )
        self._backlog = Backlog(buffer)
        self._link: Link | None = None
        self._direct: Link | None = None  # the link while nothing waits to go before what is published
        self._decoder = Decoder(max_body=max_body)
        self._intake = Intake(lambda: len(self._round_trips) > 0)
        self._round_trips = RoundTrips(self._say, self._intake.decide)
        self._table = Table(self._intake, self._tell, self._round_trips)
        self._answers = True  # whether the broker does, as far as we know
        self._wills: list[bytes] = []

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._keeper.connected

    @property
    def answers(self) -> bool:
        """Whether the broker answers what ``settled`` asks, as far as we know."""
        return self._answers

    @property
    def discarded(self) -> int:
        """Packets that came and were dropped: they broke a rule, or nobody here listens to their topic."""
        return self._table.discarded

    async def start(self) -> None:
        """Connect for the first time. ``connect`` does it."""
        await self._keeper.start()

    def publish(self, topic: str, body: Body, *, cache: bool = False) -> Receipt:
        """Publish a message. With ``cache`` the broker keeps it for later subscribers.

        It is under way when this returns, or kept while there is no connection. Await the receipt to wait until it
        is sent, and for room where the connection is slow; ``BufferFull`` where too much waits already.
        """
        data = publication(topic, octets(body), CACHE if cache else 0)
        link = self._direct
        if link is not None and not link.full:
            link.write(data)
            return SENT
        return self._later(data, topic)

    def clear(self, topic: str) -> Receipt:
        """Have the broker forget the cached message of a topic."""
        return self.publish(topic, b"", cache=True)

    def leave_will(self, topic: str, body: Body, *, cache: bool = False) -> None:
        """Have the broker publish this when the connection ends, however it ends.

        Each will is published, in the order in which they were left, also several for one topic; FMQP has no way to
        withdraw one. After a lost connection they are left again.
        """
        data = publication(topic, octets(body), LAST_WILL | (CACHE if cache else 0))
        self._wills.append(data)
        self._say(data)

    def subscribe(self, topic: str, *, debug: bool = False, limit: int = LIMIT) -> Listening:
        """Messages of all topics equivalent to this one; ``*`` is any one level. Close it to unsubscribe.

        With ``debug`` publishers that watch the demand do not hear of it. ``limit`` messages may wait here; then the
        connection is not read until some are taken. The broker does not answer a subscription: ``settled`` waits
        until it has dealt with it.
        """
        self._must_be_open()
        flags = DEBUG if debug else 0
        encode(Subscription(topic, flags))  # raises before anything has changed
        listening = Listening(self._table, topic.strip("/"), flags, limit)
        self._table.add(listening)
        return listening

    def watch(self, topic: str, *, limit: int = LIMIT) -> Watching:
        """The demand for all topics equivalent to this one: how many subscribers each has, whenever that changes.

        A new watch gets today's numbers at once. A topic that was deserted recently has 0 subscribers; nothing comes
        for one nobody has subscribed to yet. A number may come again without a change: somebody subscribed again.
        """
        self._must_be_open()
        encode(Subscription(topic))
        watching = Watching(self._table, topic.strip("/"), limit)
        self._table.add(watching)
        return watching

    async def settled(self, seconds: float = SETTLE_TIME) -> None:
        """Wait until the broker has dealt with everything said so far: a round trip.

        ``Timeout`` where the broker does not answer, as one may whose access rules leave no room for what is asked.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._keeper.up()
                    try:
                        await self._round_trips.make()
                    except ConnectionLost:
                        continue
                    return
        except TimeoutError as error:
            raise Timeout("settling", seconds) from error

    def stop_broker(self, *, now: bool = False) -> Receipt:
        """Have the broker end: softly, or with ``now`` at once. It may refuse to, without a word."""
        return self.publish("$/signals/terminate" if now else "$/signals/stop", b"\1")

    async def close(self) -> None:
        """Send what can be sent, and leave nothing behind. Iterating over subscriptions ends."""
        link = self._link
        try:
            if link is not None and self._keeper.closed is None:
                with contextlib.suppress(TimeoutError, ConnectionLost):
                    async with asyncio.timeout(CLOSE_TIME):
                        while self._backlog and link.is_open:
                            await link.room()
                            await asyncio.sleep(0)
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._keeper.close()
        finally:
            link, self._link, self._direct = self._link, None, None
            self._backlog.fail(Closed("the client was closed", sent=False))
            self._table.end(self._keeper.closed)
            self._round_trips.lost()
            self._intake.attach(None)
            if link is not None:
                await link.close()

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - there are no texts
        """The link's: the broker has sent this."""
        self._table.received(self._decoder, data)

    def lost(self, error: Exception | None, /) -> None:
        """The link's: the connection has ended."""
        link, self._link, self._direct = self._link, None, None
        self._intake.attach(None)
        if link is not None:
            self._backlog.put_back(link.leftover)
        self._round_trips.lost()
        self._keeper.lost(error)

    async def _open(self) -> None:
        """One attempt to connect, and everything as it was."""
        self._decoder = Decoder(max_body=self._max_body)
        link = await dial(self.address, self, tls=self._tls, timeout=self._connect_time)
        self._link = link
        try:
            await self._see_broker()
        except ConnectionLost as error:
            raise ConnectFailed(str(self.address), "it hung up before it said anything") from error
        except BaseException:
            self._link = None
            link.abort()
            raise
        for data in self._wills:
            link.write(data)
        for subscription in self._table.again():
            link.write(encode(subscription))
        self._intake.attach(link)
        link.on_room = self._drain
        self._drain()

    async def _see_broker(self) -> None:
        """Something that accepts connections and passes nothing on must not be given what has waited."""
        if self._answers:
            try:
                async with asyncio.timeout(ANSWER_TIME):
                    await self._round_trips.make()
            except TimeoutError:
                self._answers = False

    def _gave_up(self, error: Closed) -> None:
        self._backlog.fail(error.about(sent=False))
        self._table.end(error)

    def _must_be_open(self) -> None:
        if self._keeper.closed is not None:
            raise self._keeper.closed

    def _tell(self, frame: Subscription | Unsubscription) -> None:
        self._say(encode(frame))

    def _say(self, data: bytes) -> None:
        """Send what is said again with every connection: it need not wait for one."""
        if self._link is not None:
            self._link.write(data)

    def _later(self, data: bytes, topic: str) -> Receipt:
        if self._keeper.closed is not None:
            raise self._keeper.closed.about(sent=False)
        self._direct = None
        return self._backlog.add(data, len(data), topic)

    def _drain(self) -> None:
        """There is room: send what has waited, and let what comes go straight."""
        if self._link is not None:
            self._backlog.drain(self._send)
            if not self._backlog:
                self._direct = self._link

    def _send(self, entry: Entry) -> bool:
        link = self._link
        if link is None or link.full:
            return False
        assert isinstance(entry.what, bytes)  # noqa: S101 - nothing else is put in
        link.write(entry.what)
        if entry.receipt is not None:
            entry.receipt.keep(Promise.SENT)
        return True


def connect(
    url: str | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    backoff: Backoff | None = BACKOFF,
    buffer: int = BUFFER,
    max_body: int = MAX_BODY,
    on_disconnect: OnDisconnect | None = None,
    on_reconnect: OnReconnect | None = None,
) -> Opening[Client]:
    """A client of the broker at ``url``, connected: ``async with`` it, or await it and close it yourself.

    ``connect_time`` is for one attempt, ``backoff`` says how to come back (None: not at all), ``buffer`` octets may
    wait to be sent. The client is identified by its certificate in ``tls``. ``on_disconnect`` and ``on_reconnect``
    are as in ``polywire.connect``.
    """
    client_address = parse(url, protocol="fmqp")

    async def opened() -> Client:
        client = Client(
            client_address,
            tls=tls,
            connect_time=connect_time,
            backoff=backoff,
            buffer=buffer,
            max_body=max_body,
            on_disconnect=on_disconnect,
            on_reconnect=on_reconnect,
        )
        await client.start()
        return client

    return Opening(opened)
