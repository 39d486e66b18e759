"""The adapter for ``polywire.connect``: topics, queues, calls and services by the methods of a hub over UMQ."""

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from polywire.client.adapter import (
    QUEUE,
    Handler,
    Options,
    PeerAdapter,
    PeerConnection,
    Publication,
    Settings,
    answered,
    refuse_nack,
)
from polywire.client.address import Address
from polywire.client.errors import AttachmentFailed, CallFailed, Refused, call_failed
from polywire.client.message import NO_HEADERS, Header, Message, Request, delivery_count
from polywire.client.outgoing import Entry, Promise
from polywire.protocols.umq.client import HubRequest, HubSubscription, RemoteHub, credentials, open_peer, publishing
from polywire.protocols.umq.errors import FatalCode, RpcException, read_failure, write_failure
from polywire.protocols.umq.peer import TEMPORARY, Peer, Received
from polywire.wire.frame import Role

log = logging.getLogger("polywire.client")

WINDOW: Final = 512
"""Publications that may be unacknowledged; by default the hub allows a connection 1000 requests."""


class UmqStream:
    """A subscription as the bus reads it."""

    def __init__(self, subscription: HubSubscription) -> None:
        self._subscription = subscription

    async def __anext__(self) -> Message:
        while True:
            try:
                found = await self._subscription.__anext__()
                break
            except AttachmentFailed as error:  # on every other protocol it would not have come at all
                log.warning("a message was dropped, its body failed: %s", error.reason)
        when = dt.datetime.fromtimestamp(found.ts / 1000, dt.UTC) if found.ts else None
        is_queued = found.channel.startswith(QUEUE)
        headers: dict[str, Header] = dict(found.headers)
        return Message(
            found.channel,
            found.body,
            headers,
            found.content_type,
            attachments=found.attachments,
            timestamp=when,
            deliveries=delivery_count(headers) if is_queued else None,
            reject=refuse_nack("umq") if is_queued else None,
        )

    async def leave(self) -> None:
        """End the subscription."""
        self._subscription.leave()


class UmqConnection(PeerConnection[Peer]):
    """One connection to a hub."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._hub = RemoteHub(peer)

    def send(self, entry: Entry[Publication], /) -> None:
        """Publish."""
        publication, options = entry.what, entry.what.options
        payload = publishing(
            publication.channel,
            publication.body,
            _headers(options.headers),
            options.content_type,
            retain=options.retain,
        )
        self._peer.tell(payload.text, payload.attachments).add_done_callback(partial(_told, entry))

    async def listen(self, pattern: str, limit: int) -> UmqStream:
        """Subscribe, or take from a queue."""
        try:
            return UmqStream(await self._hub.subscribe(pattern, limit=limit))
        except RpcException as error:
            raise _refused(error) from error

    async def offer(self, service: str, handler: Handler) -> None:
        """Offer a service."""

        async def answer(request: HubRequest) -> bytes:
            asked = Request(request.service, request.method, request.body, content_type=request.content_type)
            try:
                found = await answered(handler, asked)
            except CallFailed as error:
                retry_after = round((error.retry_after or 0) * 1000)
                raise RpcException(write_failure(error.code, error.tag, error.text, retry_after)) from error
            return found.body

        try:
            await self._hub.serve(service, answer)
        except RpcException as error:
            raise _refused(error) from error

    async def withdraw(self, service: str) -> None:
        """Offer a service no longer."""
        await self._hub.unserve(service)

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float) -> Message:
        """Call a service."""
        try:
            found = await self._hub.call(
                service,
                method,
                body,
                headers=_headers(options.headers),
                content_type=options.content_type,
                timeout=seconds,
            )
        except AttachmentFailed as error:
            raise CallFailed(502, "failed-body", f"the body failed: {error.reason}") from error
        except RpcException as error:
            failure = read_failure(error.text)
            raise call_failed(
                failure.code, failure.tag, failure.text, failure.retry_after, from_hub=failure.by_runtime
            ) from error
        return Message("", found.body, attachments=found.attachments)

    async def ping(self) -> None:
        """Wait for an answer of the hub."""
        await self._hub.whoami()


async def connect(address: Address, settings: Settings) -> PeerAdapter[UmqConnection]:
    """A connected adapter."""
    adapter: PeerAdapter[UmqConnection] = PeerAdapter(address, settings, _dial, window=WINDOW)
    await adapter.start()
    return adapter


async def _dial(adapter: PeerAdapter[UmqConnection]) -> UmqConnection:
    peer = Peer(Role.CLIENT)
    address, settings = adapter.address, adapter.settings
    await open_peer(peer, address, credentials(address), tls=settings.tls, connect_time=settings.connect_time)
    peer.on_lost = adapter.lost
    peer.on_room = adapter.moved
    return UmqConnection(peer)


def _headers(headers: Mapping[str, Header] | None) -> Mapping[str, str | int | float]:
    """JSON has no dates: they go as ISO 8601 writes them."""
    if not headers:
        return NO_HEADERS  # type: ignore[return-value] # there is no date in none
    return {key: value.isoformat() if isinstance(value, dt.datetime) else value for key, value in headers.items()}


def _told(entry: Entry[Publication], answer: "asyncio.Future[Received]") -> None:
    error = None if answer.cancelled() else answer.exception()
    if error is None:
        entry.settle(Promise.ACKNOWLEDGED)
    elif isinstance(error, RpcException):
        if error.code != FatalCode.SHUTTING_DOWN:  # the connection is about to end, and it is sent again on the next
            entry.settle(_refused(error))
    elif isinstance(error, Exception):
        entry.settle(error)


def _refused(error: RpcException) -> Refused:
    return Refused(error.message, code=error.code, temporary=error.code in TEMPORARY)
