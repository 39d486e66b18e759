"""MQTT 3.1.1 for programs: a client in the protocol's own words, which stays connected.

    async with mqtt.connect("mqtt://127.0.0.1:1883") as client:
        await client.publish("home/door", b"open", qos=1)
        async with await client.subscribe("home/#", qos=1) as messages:
            async for message in messages: ...

It works with any MQTT 3.1.1 server. After a lost connection it comes back and subscribes again where the server has
forgotten it; what was published with QoS 1 or 2 is sent until it is acknowledged.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from polywire.client.address import Address, parse
from polywire.client.dialing import DIAL_TIME, dial
from polywire.client.errors import Closed, ConnectFailed, ConnectionLost
from polywire.client.inbox import LIMIT, Intake
from polywire.client.link import CLOSE_TIME, Link
from polywire.client.message import Body, octets
from polywire.client.opening import Opening
from polywire.client.receipt import Receipt
from polywire.client.reconnect import BACKOFF, BUFFER, Backoff, Keeper, OnDisconnect, OnReconnect
from polywire.protocols.mqtt.arriving import Arriving
from polywire.protocols.mqtt.errors import RemoteProtocolError
from polywire.protocols.mqtt.frames import ACCEPTED, MAX_PACKET, Connack, Decoder, Disconnect, Will, encode
from polywire.protocols.mqtt.greeting import greeting, refusal
from polywire.protocols.mqtt.keep_alive import KeepAlive
from polywire.protocols.mqtt.listening import Acknowledgements, Consuming, Listening, Table
from polywire.protocols.mqtt.publishing import WINDOW, Publishing
from polywire.protocols.mqtt.subscribing import Subscribing

KEEP_ALIVE: Final = 60


class Client:
    """A connection to a server. Made by ``connect``, which says what the arguments are."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str | None = None,
        clean_session: bool = True,
        will: Will | None = None,
        keep_alive: int = KEEP_ALIVE,
        tls: ssl.SSLContext | None = None,
        connect_time: float = DIAL_TIME,
        backoff: Backoff | None = BACKOFF,
        buffer: int = BUFFER,
        window: int = WINDOW,
        max_packet: int = MAX_PACKET,
        on_disconnect: OnDisconnect | None = None,
        on_reconnect: OnReconnect | None = None,
    ) -> None:
        self.address: Final = address
        self._connect = greeting(address, client_id, clean_session, keep_alive, will)
        self._tls = tls
        self._connect_time = connect_time
        self._max_packet = max_packet
        self._keeper = Keeper(
            str(address), self._open, backoff, self._gave_up, on_disconnect=on_disconnect, on_reconnect=on_reconnect
        )
        self._link: Link | None = None
        self._connack: asyncio.Future[Connack] | None = None
        self._decoder = Decoder(role="client", max_packet=max_packet)
        self._publishing = Publishing(window=window, buffer=buffer)
        self._subscribing = Subscribing(self._publishing, self._write, remembered=not clean_session)
        self._intake = Intake(self._awaiting)
        self._table = Table(self._intake, Acknowledgements(self._write), self._subscribing.forget)
        self._keep_alive = KeepAlive(keep_alive, lambda: self._intake.paused)
        self._arriving = Arriving(
            self._table, self._publishing, self._subscribing, self._keep_alive, self._write, self._answered
        )
        self._first = True
        self.session_present = False
        """Whether the server remembered this client when it connected last."""

    @property
    def client_id(self) -> str:
        """The one given, or one of our own."""
        return self._connect.client_id

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._keeper.connected

    @property
    def discarded(self) -> int:
        """Messages that came and nobody here listens to."""
        return self._table.discarded

    async def start(self) -> None:
        """Connect for the first time. ``connect`` does it."""
        await self._keeper.start()

    def publish(self, topic: str, payload: Body, *, qos: int = 0, retain: bool = False) -> Receipt:
        """Publish a message. It is under way when this returns, or kept while there is no connection.

        Awaiting the receipt waits until it is sent with QoS 0, until it is acknowledged with QoS 1 and 2.
        ``BufferFull`` where too much waits already. MQTT 3.1.1 has no word for a message that the server does not want,
        it just closes: one of QoS 1 or 2 that ends the connection each time it is sent raises ``Refused``.
        """
        data = octets(payload, "payload")
        if self._keeper.closed is not None:
            raise self._keeper.closed.about(sent=False)
        receipt = self._publishing.publish(topic, data, qos, retain)
        if qos and self._intake.strained:
            self._intake.decide()
        return receipt

    async def subscribe(self, topic_filter: str, *, qos: int = 0, limit: int = LIMIT) -> Listening:
        """Messages of the topics that match; it returns when the server has agreed, and raises ``Refused`` if not.

        ``limit`` messages may wait here; then the connection is not read until some are taken. Close it to
        unsubscribe.
        """
        listening = Listening(self._table, topic_filter, qos, limit)
        await self._subscribing.listen(listening, self._open_table())
        return listening

    async def consume(self, topic_filter: str, *, qos: int = 1, limit: int = LIMIT) -> Consuming:
        """As ``subscribe``, but each message is acknowledged by its reader, who may take its time.

        MQTT wants acknowledgements in order, so those of other subscriptions of this client wait for it. What is not
        acknowledged when the connection ends, or this is closed, the server gives out again.
        """
        consuming = Consuming(self._table, topic_filter, qos, limit)
        await self._subscribing.listen(consuming, self._open_table())
        return consuming

    async def ping(self) -> None:
        """A PINGREQ and its answer."""
        await self._keeper.up()
        pong = self._keep_alive.ping()
        self._intake.decide()
        await pong

    async def close(self) -> None:
        """Wait a little for what is unacknowledged, disconnect, and leave nothing behind. The will is void then."""
        try:
            if self._keeper.connected:
                with contextlib.suppress(TimeoutError, Closed):
                    async with asyncio.timeout(CLOSE_TIME):
                        await self._publishing.drained()
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._keeper.close()
        finally:
            link, self._link = self._link, None
            self._keep_alive.stop()
            self._gave_up(self._keeper.closed or Closed("the client was closed"))
            self._intake.attach(None)
            if link is not None:
                link.write(encode(Disconnect()))
                await link.close()

    def received(self, data: bytes, text: bool, /) -> None:  # noqa: ARG002 - there are no texts
        """The link's: the server has sent this."""
        self._keep_alive.heard = True
        try:
            items = self._decoder.feed_runs(data, self._table.routes, self._table.resolve)
        except RemoteProtocolError as error:
            for item in error.frames:
                self._arriving.take(item)
            raise
        for item in items:
            self._arriving.take(item)
        if self._intake.strained:
            self._intake.decide()

    def lost(self, error: Exception | None, /) -> None:
        """The link's: the connection has ended."""
        link, self._link = self._link, None
        self._keep_alive.stop()
        self._intake.attach(None)
        self._table.end_connection()
        self._subscribing.detach()
        if link is not None:
            self._publishing.detach(link.leftover)
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(ConnectionLost("the server hung up before it answered CONNECT"))
        self._keeper.lost(error)

    async def _open(self) -> None:
        """One attempt to connect, and everything as it was."""
        self._decoder = Decoder(role="client", max_packet=self._max_packet)
        link = await dial(
            self.address, self, tls=self._tls, timeout=self._connect_time, subprotocol="mqtt", stream=True
        )
        self._link = link
        self._connack = asyncio.get_running_loop().create_future()
        link.write(encode(self._connect))
        try:
            async with asyncio.timeout(self._connect_time):
                answer = await self._connack
        except TimeoutError as error:
            self._drop(link)
            raise ConnectFailed(str(self.address), f"no CONNACK came in {self._connect_time:g} s") from error
        except ConnectionLost as error:
            raise ConnectFailed(str(self.address), error.reason) from error
        except BaseException:
            self._drop(link)
            raise
        if answer.return_code != ACCEPTED:
            self._drop(link)
            raise refusal(answer.return_code)
        if self._link is None:
            raise ConnectFailed(str(self.address), "the server hung up at once")

    def _open_table(self) -> Table:
        if self._keeper.closed is not None:
            raise self._keeper.closed
        return self._table

    def _drop(self, link: Link) -> None:
        self._link = None
        link.abort()

    def _established(self, frame: Connack) -> None:
        """The server has let us in: tell it what it does not know."""
        link = self._link
        if frame.return_code != ACCEPTED or link is None:
            return
        self.session_present = frame.session_present
        resumed = frame.session_present and not self._connect.clean_session
        if not resumed:
            self._arriving.begin_session()
        elif self._first:
            # Its subscriptions were made by an earlier run of this program, which makes them again in a moment.
            self._table.hold()
        self._first = False
        self._publishing.attach(link, resumed=resumed)
        self._subscribing.attach(self._table, resumed=resumed)
        self._publishing.go_on()
        self._intake.attach(link)
        self._keep_alive.start(link)

    def _answered(self, frame: Connack) -> None:
        if self._connack is not None and not self._connack.done():
            self._established(frame)
            self._connack.set_result(frame)

    def _write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    def _awaiting(self) -> bool:
        return self._publishing.awaiting or self._subscribing.awaiting or self._keep_alive.awaiting

    def _gave_up(self, error: Closed) -> None:
        self._publishing.fail(error)
        self._table.end(error)


def connect(
    url: str | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    client_id: str | None = None,
    clean_session: bool = True,
    will: Will | None = None,
    keep_alive: int = KEEP_ALIVE,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    backoff: Backoff | None = BACKOFF,
    buffer: int = BUFFER,
    window: int = WINDOW,
    max_packet: int = MAX_PACKET,
    on_disconnect: OnDisconnect | None = None,
    on_reconnect: OnReconnect | None = None,
) -> Opening[Client]:
    """A client of the server at ``url``, connected: ``async with`` it, or await it and close it yourself.

    Without ``clean_session`` the server keeps subscriptions and messages for this ``client_id`` while it is away.
    ``will`` is published when the connection ends without ``close``. ``connect_time`` is for one attempt, ``backoff``
    says how to come back (None: not at all), ``buffer`` octets may wait to be sent, ``window`` messages may be
    unacknowledged at once. ``on_disconnect`` and ``on_reconnect`` are as in ``polywire.connect``.
    """
    address = parse(url, protocol="mqtt", user=user, password=password, token=token)

    async def opened() -> Client:
        client = Client(
            address,
            client_id=client_id,
            clean_session=clean_session,
            will=will,
            keep_alive=keep_alive,
            tls=tls,
            connect_time=connect_time,
            backoff=backoff,
            buffer=buffer,
            window=window,
            max_packet=max_packet,
            on_disconnect=on_disconnect,
            on_reconnect=on_reconnect,
        )
        await client.start()
        return client

    return Opening(opened)
