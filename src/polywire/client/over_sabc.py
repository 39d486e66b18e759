"""The one face over sABC, against the hub: topics, queues, calls and services by the hub's headers."""

import asyncio
import datetime as dt
from collections.abc import Mapping
from typing import Final

from polywire.client.adapter import Handler, Options, Settings, answered
from polywire.client.address import Address
from polywire.client.connection import PeerConnection, Publication
from polywire.client.errors import CallFailed, ConnectionLost, Refused, call_failed
from polywire.client.message import Header, Message, Request
from polywire.client.over_peers import PeerAdapter
from polywire.client.posting import Done
from polywire.protocols.sabc.client import open_peer
from polywire.protocols.sabc.errors import DRAINING, LIMIT, NOT_FOUND
from polywire.protocols.sabc.frames import UNSUBSCRIBE, Whole
from polywire.protocols.sabc.headers import DESTINATION, OP, error_headers, http_date
from polywire.protocols.sabc.peer.failures import Failure
from polywire.protocols.sabc.peer.handling import Reply
from polywire.protocols.sabc.peer.limits import Limits
from polywire.protocols.sabc.peer.peer import Peer
from polywire.protocols.sabc.remote_hub import HubSubscription, RemoteHub, publishing, replying
from polywire.protocols.sabc.state import Side

WINDOW: Final = 512
"""Publications that may be unanswered."""

LIMITS: Final = Limits(max_sent=0)
"""The hub's limit is not known here. What passes it is reported when the hub answers ``truncated::yes``."""

# The tags of errors without one: those of the hub about a request it refused, and of our own side.
TAGS: Final[Mapping[str, str]] = {
    "400": "bad-request",
    "403": "forbidden",
    "404": "no-service",
    "408": "timeout",
    "413": "too-large",
    "429": "limit",
    "503": "unavailable",
    "504": "timeout",
}
FAILED: Final = 500
NOWHERE: Final = ((OP, UNSUBSCRIBE), (DESTINATION, "polywire/nowhere"))
"""sABC has no ping. The answer to this is 404, and changes nothing."""


class SabcConnection(PeerConnection[Peer]):
    """One session with a hub."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._hub = RemoteHub(peer)

    def send(self, publication: Publication, done: Done) -> None:
        """Publish."""
        options = publication.options
        headers = publishing(publication.channel, _headers(options.headers), options.content_type)
        self._peer.tell(publication.body, headers).add_done_callback(lambda told: _told(told, done))

    async def listen(self, pattern: str, limit: int) -> HubSubscription:
        """Subscribe, or take from a queue."""
        try:
            return await self._hub.subscribe(pattern, limit=limit)
        except Failure as error:
            raise _refused(error) from error

    async def offer(self, service: str, handler: Handler) -> None:
        """Offer a service."""

        async def answer(request: Request) -> Reply:
            try:
                return replying(await answered(handler, request))
            except CallFailed as error:
                headers = error_headers(error.tag, round((error.retry_after or 0) * 1000), by_service=True)
                raise Failure(error.code, error.text, headers) from error

        try:
            await self._hub.serve(service, answer)
        except Failure as error:
            raise _refused(error) from error

    async def withdraw(self, service: str) -> None:
        """Offer it no more."""
        await self._hub.unserve(service)

    async def call(self, service: str, method: str, body: bytes, options: Options, seconds: float) -> Message:
        """Call a service."""
        headers = _headers(options.headers)
        try:
            return await self._hub.call(
                service, method, body, headers=headers, content_type=options.content_type, timeout=seconds
            )
        except Failure as error:
            code = int(error.code) if error.code.isdecimal() else FAILED
            tag = error.tag if error.by_service else error.tag or TAGS.get(error.code, "")
            raise call_failed(code, tag, error.text, error.retry_after, from_hub=not error.by_service) from error

    async def ping(self) -> None:
        """There and back."""
        try:
            await self._peer.ask(b"", NOWHERE)
        except Failure as error:
            if error.code != NOT_FOUND:
                raise _refused(error) from error


async def connect(address: Address, settings: Settings) -> PeerAdapter[SabcConnection]:
    """A connected adapter."""
    adapter: PeerAdapter[SabcConnection] = PeerAdapter(address, settings, _dial, window=WINDOW)
    await adapter.start()
    return adapter


async def _dial(adapter: PeerAdapter[SabcConnection]) -> SabcConnection:
    address, settings = adapter.address, adapter.settings
    peer = Peer(Side.CLIENT, messages=address.websocket, limits=LIMITS)
    await open_peer(peer, address, settings.client_id, tls=settings.tls, connect_time=settings.connect_time)
    connection = SabcConnection(peer)
    peer.on_room = adapter.moved
    ended = peer.on_lost

    def lost(error: ConnectionLost) -> None:
        if ended is not None:
            ended(error)
        adapter.lost(error)

    peer.on_lost = lost
    return connection


def _headers(headers: Mapping[str, Header] | None) -> dict[str, str]:
    """SABC's headers are texts; dates go as HTTP writes them."""
    return {key: _text(value) for key, value in (headers or {}).items()}


def _text(value: Header) -> str:
    if isinstance(value, dt.datetime):
        return http_date(int(value.timestamp())) or value.isoformat()
    return str(value)


def _told(answer: "asyncio.Future[Whole]", done: Done) -> None:
    error = None if answer.cancelled() else answer.exception()
    if isinstance(error, Failure):
        if error.code != DRAINING:  # the session is about to end, and it is sent again on the next one
            done(_refused(error))
    elif error is None or isinstance(error, Exception):
        done(error)


def _refused(error: Failure) -> Refused:
    return Refused(error.text, code=error.code, temporary=error.code in {DRAINING, LIMIT})
