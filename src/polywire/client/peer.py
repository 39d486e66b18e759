"""What the peers of UMQ, sABC and MicroMsg2 have in common, whoever opened the connection: its beginning and its end.

A peer is given the link that carries it, and lives as long as that. ``protocols/<p>/peer/`` has one each.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from polywire.client.errors import ConnectionLost
from polywire.client.inbox import Intake
from polywire.client.link import Link
from polywire.client.reconnect import Callbacks, OnDisconnect
from polywire.errors import PolywireError


class WayOut(Protocol):
    """Where a peer writes. ``reason`` says why it is closed."""

    link: Link | None
    reason: str


class LivePeer:
    """One side of a connection. ``on_lost`` is called at its end, ``on_room`` when what was written was passed on.

    ``on_disconnect`` is the program's: called with the reason, unless it was this side that closed the connection.
    """

    def __init__(self, way_out: WayOut, intake: Intake) -> None:
        self.on_lost: Callable[[ConnectionLost], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_disconnect: OnDisconnect | None = None
        self.closed_here = False
        self._callbacks = Callbacks()
        self._too_large = False  # what the other side says of a message of ours
        self._limit: int | None = None
        self._way_out = way_out
        self._way_in = intake
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        raise NotImplementedError

    @property
    def has_room(self) -> bool:
        """Whether the connection takes more without delay."""
        return self.is_open and self._way_out.link is not None and not self._way_out.link.full

    @property
    def busy(self) -> bool:
        """Whether one side works on something that the other one waits for."""
        raise NotImplementedError

    async def opened(self) -> None:
        """Wait for the end of the handshake. Raises ``Refused`` where it failed."""
        await asyncio.shield(self._opened)

    async def wait_ended(self) -> None:
        """Wait for the end of the connection."""
        await asyncio.shield(self._ended)

    async def close(self) -> None:
        """End the connection, and wait until it has ended."""
        raise NotImplementedError

    # For those who carry the connection.

    def attach(self, link: Link) -> None:
        """It is carried by this link."""
        self._way_out.link = link
        self._way_in.attach(link)
        link.on_room = self._room

    def lost(self, error: Exception | None, /) -> None:
        """The connection has ended."""
        ending = "the connection ended" if error is None else f"the connection broke: {error}"
        reason = self._way_out.reason or ending
        link = self._way_out.link
        too_large = self._too_large or (link is not None and link.peer_says_too_large)
        self._end_all(reason)
        self._not_opened(ConnectionLost(reason))
        lost = ConnectionLost(reason, too_large=too_large, limit=self._limit)
        if self.on_lost is not None:
            self.on_lost(lost)
        if not self.closed_here:
            self._callbacks.call(self.on_disconnect, lost)
        if not self._ended.done():
            self._ended.set_result(None)

    def _end_all(self, reason: str) -> None:
        """Nothing is sent any more, and nothing will come: tell all who wait."""
        raise NotImplementedError

    def _not_opened(self, error: PolywireError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # nobody may have waited for it

    def _hang_up(self) -> None:
        """Close, once what was written is sent."""
        if self._way_out.link is not None and self._closing is None:
            self._closing = self._loop.create_task(self._way_out.link.close())

    def _room(self) -> None:
        if self.on_room is not None:
            self.on_room()
