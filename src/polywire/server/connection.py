"""One connection: the event loop's side of a session.

Octets come in here and go to the session; what the session leaves in the outbox is written from here. A session is
anything with ``received``, ``lost`` and ``drain``; it never sees a socket.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.outbox import DEFAULT_CAP, DROP, Outbox

HIGH_WATER = 256 * 1024
"""How many octets the transport may hold before the outbox keeps the rest."""

log = logging.getLogger("polywire.server")


class Session(Protocol):
    """The hub's side of one connection, in one protocol."""

    def received(self, data: bytes, /) -> None:
        """The peer has sent this."""

    def lost(self) -> None:
        """The connection has ended."""

    def drain(self) -> None:
        """The hub is going down: refuse new work in the protocol's own words, finish what was accepted."""


MakeSession = Callable[[Client, "Connection"], Session]


class Connection(asyncio.Protocol):
    """The transport of one session, and what its outbox writes to."""

    def __init__(self, hub: Hub, protocol: int, make_session: MakeSession, *, cap: int = DEFAULT_CAP) -> None:
        self.hub = hub
        self.outbox = Outbox(self, hub.flusher, cap=cap, policy=DROP)
        self._protocol = protocol
        self._make_session = make_session
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is there: make its session."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        client = self.hub.client(self._protocol, self.outbox, address, local=not isinstance(peer, tuple))
        self._session = self._make_session(client, self)

    def data_received(self, data: bytes) -> None:
        """Octets for the session."""
        session = self._session
        if session is None:
            return
        self.hub.flusher.source = self
        try:
            session.received(data)
        finally:
            self.hub.flusher.source = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        """The end, whoever caused it."""
        self.outbox.close()
        session, self._session = self._session, None
        if session is not None:
            session.lost()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.outbox.stall()

    def resume_writing(self) -> None:
        """It has room again."""
        self.outbox.drain()

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Write what the outbox collected."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(chunks)

    def pause_reading(self) -> None:
        """Leave the peer's octets where they are."""
        self._pauses += 1
        if self._pauses == 1 and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, once nobody wants it paused."""
        self._pauses -= 1
        if self._pauses == 0 and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def overflow(self) -> None:
        """A reader too slow for its policy."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Write what is left, then hang up."""
        self.outbox.flush()
        if self._transport is not None:
            self._transport.close()
