"""MQTT 3.1.1 for programs: a native client, which stays connected.

    async with mqtt.connect("mqtt://127.0.0.1:1883") as client:
        await client.publish("home/door", b"open", qos=1)
        async with await client.subscribe("home/#", qos=1) as messages:
            async for message in messages: ...

It works with any MQTT 3.1.1 server. After a lost connection it reconnects, and subscribes again where the server has
forgotten it; what was published with QoS 1 or 2 is sent until it is acknowledged.
"""

import asyncio
import contextlib
import secrets
import ssl
from typing import Final

from polywire.backoff import BACKOFF, Backoff
from polywire.client.address import Address, parse
from polywire.client.errors import Closed, ConnectFailed, ConnectionLost, Refused
from polywire.client.inbox import LIMIT
from polywire.client.link import CLOSE_TIME, Link
from polywire.client.message import Body, octets
from polywire.client.outgoing import BUFFER, Receipt
from polywire.client.reconnect import Keeper, OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME, Opening, dial
from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import ACCEPTED, MAX_PACKET, SERVER_UNAVAILABLE, Connect, Will, encode
from polywire.protocols.mqtt.peer import WINDOW, Consuming, Listening, Peer, Subscriptions

KEEP_ALIVE: Final = 60

REFUSALS: Final = (
    "",
    "the server does not speak MQTT 3.1.1",
    "the server rejects the client id",
    "the server is not available",
    "wrong user name or password",
    "not authorized",
)
"""By return code of CONNACK (MQTT-083)."""


class Client:
    """A connection to a server. Made by ``connect``, which describes the arguments."""

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
        self._tls = tls
        self._connect_time = connect_time
        self._keeper = Keeper(
            str(address), self._open, backoff, self._gave_up, on_disconnect=on_disconnect, on_reconnect=on_reconnect
        )
        self._peer = Peer(
            _connect(address, client_id, keep_alive, will, clean_session=clean_session),
            window=window,
            buffer=buffer,
            max_packet=max_packet,
            on_lost=self._keeper.lost,
        )
        self._publications = self._peer.publications

    @property
    def client_id(self) -> str:
        """The one given, or one of our own."""
        return self._peer.connect.client_id

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._keeper.connected

    @property
    def session_present(self) -> bool:
        """Whether the server remembered this client when it connected last."""
        return self._peer.session_present

    @property
    def discarded(self) -> int:
        """Messages that arrived and that no subscription matched."""
        return self._peer.subscriptions.discarded

    async def start(self) -> None:
        """Connect for the first time. ``connect`` does it."""
        await self._keeper.start()

    def publish(self, topic: str, payload: Body, *, qos: int = 0, retain: bool = False) -> Receipt:
        """Publish a message. It is in flight when this returns, or kept while there is no connection.

        Awaiting the receipt waits until it is sent with QoS 0, until it is acknowledged with QoS 1 and 2.
        Raises ``BufferFull`` if too much is waiting already. MQTT 3.1.1 servers can't refuse a message, they can only
        close: one of QoS 1 or 2 that ends the connection each time it is sent raises ``Refused``.
        """
        data = payload if type(payload) is bytes else octets(payload, "payload")
        if not qos:
            return self._publications.publish(topic, data, retain)
        if self._keeper.closed is not None:
            raise self._keeper.closed.about(sent=False)
        receipt = self._publications.publish_acknowledged(topic, data, qos, retain=retain)
        if self._peer.intake.strained:
            self._peer.intake.decide()
        return receipt

    async def subscribe(self, topic_filter: str, *, qos: int = 0, limit: int = LIMIT) -> Listening:
        """Messages of the topics that match. Returns when the server has agreed, and raises ``Refused`` if it does not.

        ``limit`` messages may wait here; then the connection is not read until some are taken. Close it to
        unsubscribe.
        """
        listening = Listening(self._subscriptions(), topic_filter, qos, limit)
        await self._peer.subscriptions.add(listening)
        return listening

    async def consume(self, topic_filter: str, *, qos: int = 1, limit: int = LIMIT) -> Consuming:
        """As ``subscribe``, but each message is acknowledged by its reader, who may take its time.

        MQTT requires acknowledgements in order, so those of other subscriptions of this client wait for it. What is not
        acknowledged when the connection ends, or this is closed, the server delivers again.
        """
        consuming = Consuming(self._subscriptions(), topic_filter, qos, limit)
        await self._peer.subscriptions.add(consuming)
        return consuming

    async def ping(self) -> None:
        """Send a PINGREQ and wait for its answer."""
        await self._keeper.up()
        pong = self._peer.keep_alive.ping()
        self._peer.intake.decide()
        await pong

    async def close(self) -> None:
        """Wait a little for what is unacknowledged, disconnect, and free everything. The will is not published."""
        try:
            if self._keeper.connected:
                with contextlib.suppress(TimeoutError, Closed):
                    async with asyncio.timeout(CLOSE_TIME):
                        await self._publications.drained()
        finally:
            try:
                await self._keeper.close()
            finally:
                self._gave_up(self._keeper.closed or Closed("the client was closed"))
                await self._peer.close()

    def _subscriptions(self) -> Subscriptions:
        if self._keeper.closed is not None:
            raise self._keeper.closed
        return self._peer.subscriptions

    def _gave_up(self, error: Closed) -> None:
        self._peer.fail(error)

    async def _open(self) -> None:
        """One attempt to connect, and to restore everything as it was."""
        self._peer.renew()
        link = await dial(
            self.address, self._peer, tls=self._tls, timeout=self._connect_time, subprotocol="mqtt", stream=True
        )
        try:
            async with asyncio.timeout(self._connect_time):
                answer = await self._peer.open(link)
        except TimeoutError as error:
            await _end(link)
            raise ConnectFailed(str(self.address), f"no CONNACK received within {self._connect_time:g} s") from error
        except ConnectionLost as error:
            raise ConnectFailed(str(self.address), error.reason) from error
        except BaseException:
            link.abort()
            raise
        if answer.return_code != ACCEPTED:
            await _end(link)
            code = answer.return_code
            raise Refused(REFUSALS[code], code=code, temporary=code == SERVER_UNAVAILABLE)
        if self._peer.link is None:
            raise ConnectFailed(str(self.address), "the server closed the connection immediately")


async def _end(link: Link) -> None:
    """End a link at once, and return when the peer knows, so that the next one does not come before."""
    link.abort()
    await link.close()


def _connect(
    address: Address, client_id: str | None, keep_alive: int, will: Will | None, *, clean_session: bool
) -> Connect:
    """The CONNECT for an address, which has the credentials. A token is a password under the user name ``token``."""
    if client_id is None and not clean_session:
        raise LocalProtocolError("a session that outlives its connection needs a client id", rule="MQTT-063")
    user, password = address.user, address.password
    if address.token is not None:
        user, password = "token", address.token
    connect = Connect(
        client_id or f"polywire-{secrets.token_hex(8)}",
        clean_session,
        keep_alive,
        will,
        user,
        None if password is None else password.encode(),
    )
    encode(connect)  # raises before anything is sent
    return connect


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
    """A client of the server at ``url``, connected: use it with ``async with``, or await it and close it yourself.

    Without ``clean_session`` the server keeps subscriptions and messages for this ``client_id`` while it is away.
    ``will`` is published when the connection ends without ``close``. ``connect_time`` is for one attempt, ``backoff``
    says how to reconnect (None: not at all), ``buffer`` bytes may wait to be sent, ``window`` messages may be
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
