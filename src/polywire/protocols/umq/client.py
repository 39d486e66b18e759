"""UMQ between programs: opening a connection, or accepting connections without a hub. Each has a ``Peer`` at its end.

    async with umq.connect("umq://127.0.0.1:7101") as peer:
        answer = await peer.call('["whoami"]')

    async with umq.serve(handler, "127.0.0.1", 7101) as server:
        await server.wait_closed()

Both work with any peer. ``RemoteHub`` calls the methods of a hub over a ``Peer``: subscribe, publish, call, serve. UMQ
leaves payloads to its users; these are the ones the hub understands (docs/protocols/umq.md, "The hub's methods").
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from polywire.client.address import PORTS, Address, parse
from polywire.client.errors import AttachmentFailed
from polywire.client.inbox import LIMIT
from polywire.client.message import Body as Content
from polywire.client.message import JsonBody, octets
from polywire.client.peer import CONNECTIONS, DRAIN_TIME, Bounds, Joined, Server, linked, serving
from polywire.client.reconnect import OnDisconnect
from polywire.client.transport import DIAL_TIME, HANDSHAKE_TIME, Opening
from polywire.protocols.umq.connection import Attribute
from polywire.protocols.umq.errors import FatalCode, RpcException, write_failure
from polywire.protocols.umq.frames import Attachment, AttachmentError
from polywire.protocols.umq.methods import (
    MAX_TIMEOUT,
    Body,
    CallService,
    Header,
    Method,
    Payload,
    Publish,
    ReadAttributes,
    Serve,
    SubscribeTopic,
    Unserve,
    WhoAmI,
    read_bare_body,
    read_envelope,
    read_request,
    write_bare_body,
    write_method,
)
from polywire.protocols.umq.peer import (
    DEFAULT_LIMITS,
    Arriving,
    Attachable,
    Greet,
    Handler,
    Limits,
    Peer,
    Received,
    Reply,
    Request,
    Subscription,
    log,
)
from polywire.wire.frame import Role

SUBPROTOCOL = "umq"  # UMQ-74
PATH = "/umq"

NO_HEADERS: Mapping[str, Header] = {}


def connect(
    url: str | None = None,
    *,
    handler: Handler | None = None,
    hello: str | None = None,
    attachments: Sequence[Attachable] = (),
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    limits: Limits = DEFAULT_LIMITS,
    on_disconnect: OnDisconnect | None = None,
) -> Opening[Peer]:
    """A connection to ``url``: ``async with`` it, or ``await`` it and close the peer yourself.

    ``hello`` and ``attachments`` go with the first message. Without ``hello`` that is the user and password, or the
    token, of the URL, the arguments or the environment, as the hub reads them. Raises ``ConnectFailed``, ``Refused``.
    ``on_disconnect``, perhaps a coroutine function, is called with a ``ConnectionLost`` when the connection ends,
    unless this side closed it; a peer does not reconnect.
    """
    address = parse(url, protocol="umq", user=user, password=password, token=token)

    async def opened() -> Peer:
        peer = Peer(Role.CLIENT, handler, limits=limits)
        payload = credentials(address) if hello is None else hello
        await open_peer(peer, address, payload, attachments, tls=tls, connect_time=connect_time)
        peer.on_disconnect = on_disconnect
        return peer

    return Opening(opened)


async def open_peer(
    peer: Peer,
    address: Address,
    hello: str,
    attachments: Sequence[Attachable] = (),
    *,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
) -> None:
    """Connect a new peer, handshake included."""
    async with linked(
        peer, address, "no welcome received", tls=tls, connect_time=connect_time, subprotocol=SUBPROTOCOL
    ):
        await peer.say_hello(hello, attachments)


def credentials(address: Address) -> str:
    """The credentials of an address, as the payload of ``H`` that the hub reads."""
    if address.token is not None:
        return json.dumps({"token": address.token})
    if address.user is not None:
        return json.dumps({"user": address.user, "password": address.password or ""})
    return ""


def serve(
    handler: Handler | None,
    host: str = "127.0.0.1",
    port: int = PORTS["umq"],
    *,
    path: str = PATH,
    greet: Greet | None = None,
    joined: Joined[Peer] | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    handshake_time: float = HANDSHAKE_TIME,
    idle_time: float | None = None,
    drain_time: float = DRAIN_TIME,
    connections: int = CONNECTIONS,
) -> Opening[Server[Peer]]:
    """A server whose calls ``handler`` answers: ``async with`` it, or ``await`` it and close it yourself.

    ``greet`` sees what each client brings with its ``H``, and may raise ``Rejected``. ``joined`` is called with each
    accepted peer, and may be a coroutine that keeps using it. Port 0 picks a free one, which is in
    ``url``. When the server is closed, requests in progress are answered first, within ``drain_time`` seconds; then
    every client gets ``F``, code 10.

    A client has ``handshake_time`` seconds until it is welcomed; one that is silent for ``idle_time`` seconds, without
    requests in progress, gets ``F``, code 9. At most ``connections`` are open; further ones are closed at once.
    """
    address = Address("umq", "ws" if tls is None else "wss", host, port, path)
    return serving(
        lambda: Peer(Role.SERVER, handler, greet=greet, limits=limits),
        address,
        joined=joined,
        tls=tls,
        subprotocol=SUBPROTOCOL,
        bounds=Bounds(handshake_time, idle_time, drain_time, connections),
    )


@dataclass(frozen=True, slots=True)
class HubMessage:
    """A message that was published, or the answer to a call, which has no channel.

    ``ts`` is in milliseconds since 1970, UTC. An attachment that failed is there as its error.
    """

    channel: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    content_type: str | None = None
    attachments: tuple[bytes | AttachmentFailed, ...] = ()
    ts: int = 0


@dataclass(frozen=True, slots=True)
class HubRequest:
    """A call that came to a service of this program."""

    service: str
    method: str
    body: bytes
    content_type: str | None = None
    attachments: tuple[bytes | AttachmentFailed, ...] = ()


ServiceHandler = Callable[[HubRequest], Content | Awaitable[Content]]


class HubSubscription:
    """The messages of a pattern or a queue, as an async iterator. Leave it with ``leave`` or ``async with``.

    A message whose body was an attachment that failed raises ``AttachmentFailed``; the next one can still be awaited.
    """

    def __init__(self, topic: Subscription) -> None:
        self.topic = topic

    def leave(self) -> None:
        """End the subscription."""
        self.topic.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HubMessage:
        update = await self.topic.__anext__()
        envelope = read_envelope(update.text, len(update.attachments))
        body, rest = await _whole(envelope.body, update)
        return HubMessage(envelope.channel, body, dict(envelope.headers), envelope.body.content_type, rest, envelope.ts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class Responses:
    """The responses of a streaming service, as an async iterator. It raises if the call fails in the end."""

    def __init__(self, topic: Subscription, outcome: Awaitable[Received]) -> None:
        self._topic = topic
        self._outcome = outcome

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            update = await self._topic.__anext__()
        except StopAsyncIteration:
            await self._outcome
            raise
        return (await _whole(read_bare_body(update.text, len(update.attachments)), update))[0]


class RemoteHub:
    """The hub at the other end of a peer's connection. What it refuses raises ``RpcException`` with its code."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._callbacks: dict[str, int] = {}

    async def publish(
        self,
        channel: str,
        body: Content,
        *,
        headers: Mapping[str, Header] = NO_HEADERS,
        content_type: str | None = None,
        retain: bool = False,
        attachments: Sequence[bytes] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - as in Peer.call
    ) -> None:
        """Publish to a topic, or put into ``queue/<name>``. Returns when the hub has it on disk."""
        payload = publishing(channel, body, headers, content_type, attachments, retain=retain)
        await self.peer.call(payload.text, payload.attachments, timeout=timeout)

    async def subscribe(self, pattern: str, *, limit: int = LIMIT) -> HubSubscription:
        """Subscribe to a pattern (``*`` is one level, a last ``**`` any number), or take from a queue."""
        topic = self.peer.subscription(limit=limit)
        try:
            await self._ask(SubscribeTopic(pattern, topic.topic_id, envelope=True))
        except RpcException:
            topic.forget()
            raise
        except BaseException:
            topic.leave()  # it may have been accepted
            raise
        return HubSubscription(topic)

    async def call(
        self,
        service: str,
        method: str,
        body: Content = b"",
        *,
        headers: Mapping[str, Header] = NO_HEADERS,
        content_type: str | None = None,
        attachments: Sequence[bytes] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - it is sent to the hub
    ) -> HubMessage:
        """Call a service of any protocol. A reply whose body failed raises ``AttachmentFailed``."""
        asked = CallService(service, method, _body(body, content_type), _milliseconds(timeout), tuple(headers.items()))
        answer = await self._ask(asked, attachments, timeout)
        reply, rest = await _whole(read_bare_body(answer.text, len(answer.attachments)), answer)
        return HubMessage("", reply, attachments=rest)

    def stream(self, service: str, method: str, body: Content = b"", *, time_limit: float | None = None) -> "Streamed":
        """Call a service that answers with a stream: ``async with hub.stream(…) as responses``."""
        return Streamed(self, service, method, _body(body, None), time_limit)

    async def serve(self, service: str, handler: ServiceHandler) -> None:
        """Offer a service. A failure of ``handler`` is reported to the caller; ``RpcException`` with its text."""

        async def answer(request: Request) -> Reply:
            asked = read_request(request.text, len(request.attachments))
            try:
                whole, rest = await _whole(asked.body, request.message)
            except AttachmentFailed as error:
                raise RpcException.of(FatalCode.BAD_REQUEST, f"the body failed: {error.reason}") from error
            try:
                outcome = handler(HubRequest(service, asked.method, whole, asked.body.content_type, rest))
                reply = await outcome if isinstance(outcome, Awaitable) else outcome
                payload = write_bare_body(octets(reply, "what a service returns"))
            except RpcException:
                raise
            except Exception as error:
                log.exception("the service %s failed", service)
                raise RpcException(write_failure(500, "handler-failed", "the handler failed")) from error
            return Reply(payload.text, payload.attachments)

        number = self.peer.register(answer)
        try:
            await self._ask(Serve(service, number))
        except BaseException:
            self.peer.unregister(number)
            raise
        self._callbacks[service] = number

    async def unserve(self, service: str) -> None:
        """Offer a service no longer; calls in progress are still answered."""
        await self._ask(Unserve(service))
        number = self._callbacks.pop(service, None)
        if number is not None:
            self.peer.unregister(number)

    async def whoami(self) -> dict[str, Any]:
        """Who this connection is to the hub."""
        found: dict[str, Any] = json.loads((await self._ask(WhoAmI())).text)
        return found

    async def attributes(self, connection: int) -> dict[str, Attribute]:
        """The attributes of a connection to the hub; ``whoami`` has the number of this one."""
        answer = await self._ask(ReadAttributes(connection))
        found: dict[str, Attribute] = {}
        for name, value in json.loads(answer.text).items():
            if isinstance(value, str):
                found[name] = Attribute(value, 0, 0)
                continue
            found[name] = attribute = Attribute(value["value"], len(value["attachments"]), 0)
            for index, place in enumerate(value["attachments"]):
                sent = await _outcome(answer.attachments[place])
                if isinstance(sent, bytes):
                    attribute.fill(Attachment(sent, 0, index))
                else:
                    attribute.fill(AttachmentError(sent.reason, 0, index))
        return found

    async def _ask(self, method: Method, attachments: Sequence[bytes] = (), seconds: float | None = None) -> Received:
        payload = write_method(method, attachments)
        return await self.peer.call(payload.text, payload.attachments, timeout=seconds)


class Streamed:
    """A streamed call: starts with ``async with``, and is cancelled if that is left before its end."""

    def __init__(self, hub: RemoteHub, service: str, method: str, body: Body, seconds: float | None) -> None:
        self._hub = hub
        self._asked = (service, method, body, seconds)
        self._topic: Subscription | None = None
        self._outcome: asyncio.Task[Received] | None = None

    async def __aenter__(self) -> Responses:
        service, method, body, seconds = self._asked
        topic = self._hub.peer.subscription()
        payload = write_method(CallService(service, method, body, _milliseconds(seconds), (), topic.topic_id))
        call = self._hub.peer.call(payload.text, payload.attachments, timeout=seconds)
        outcome = asyncio.get_running_loop().create_task(call)
        outcome.add_done_callback(lambda _: topic.inbox.fail(None))  # after the D, or where there is none
        self._topic, self._outcome = topic, outcome
        return Responses(topic, outcome)

    async def __aexit__(self, *_: object) -> None:
        if self._topic is None or self._outcome is None:
            return
        if self._outcome.done() and not self._outcome.cancelled() and self._outcome.exception() is not None:
            self._topic.forget()
        self._topic.leave()
        self._outcome.cancel()
        await asyncio.wait([self._outcome])


def publishing(
    channel: str,
    body: Content,
    headers: Mapping[str, Header] = NO_HEADERS,
    content_type: str | None = None,
    attachments: Sequence[bytes] = (),
    *,
    retain: bool = False,
) -> Payload:
    """The payload of a ``publish``."""
    return write_method(Publish(channel, _body(body, content_type), tuple(headers.items()), retain), attachments)


def _body(body: Content, content_type: str | None) -> Body:
    if content_type is None and isinstance(body, JsonBody):
        content_type = body.content_type
    return Body(octets(body), content_type)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else min(max(1, round(seconds * 1000)), MAX_TIMEOUT)


async def _whole(body: Body, message: Received) -> tuple[bytes, tuple[bytes | AttachmentFailed, ...]]:
    """A body's bytes, and the attachments that are not the body. Raises ``AttachmentFailed`` for a body that failed."""
    attachments = tuple([await _outcome(each) for each in message.attachments]) if message.attachments else ()
    if body.data is not None:
        return body.data, attachments
    if isinstance(attachments[0], AttachmentFailed):
        raise attachments[0]
    return attachments[0], attachments[1:]


async def _outcome(attachment: Arriving) -> bytes | AttachmentFailed:
    try:
        return await attachment
    except AttachmentFailed as error:
        return error
