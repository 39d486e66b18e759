"""One side of a MicroMsg2 connection in a program: messages both ways, extensions, subscriptions with filters, windows.

Stands on the codec and its tables, and below ``client`` and ``server``. It receives what comes on a ``Link``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from polywire.client.inbox import LIMIT
from polywire.client.message import Body, octets
from polywire.protocols.micromsg.filters import Filter
from polywire.protocols.micromsg.negotiation import Terms
from polywire.protocols.micromsg.peer.audience import Audience, Subscribed
from polywire.protocols.micromsg.peer.conversation import Conversation
from polywire.protocols.micromsg.peer.handling import Handler, Handling
from polywire.protocols.micromsg.peer.limits import DEFAULT_LIMITS, Limits
from polywire.protocols.micromsg.peer.outflow import Done
from polywire.protocols.micromsg.peer.subscribing import Subscription
from polywire.protocols.micromsg.text import Value, write_properties

NO_PROPERTIES: Mapping[str, Value] = {}
NO_FILTER = Filter()

Login = Callable[["Peer", Mapping[str, str] | None], Awaitable[None] | None]
"""Looks at what ``x-auth`` says (None without it): raises ``Failure`` to refuse."""


class Peer(Conversation):
    """One side of a connection. ``handler`` takes the messages that no subscription of this side takes.

    ``failed`` is called with each ERROR that nothing of this side is about, ``extended`` with the name and payload of
    each frame of a vendor's extension, ``on_lost`` at the end of the connection, ``on_room`` when the
    connection or its window has room again.
    """

    def __init__(
        self,
        role: str,
        terms: Terms,
        handler: Handler | None = None,
        *,
        login: Login | None = None,
        subscribed: Subscribed | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(role, terms, limits)
        self._admit = None if login is None else partial(login, self)
        self._audience = Audience(self, subscribed, limit=limits.subscriptions)
        self._handling = Handling(self, self.outflow.send)
        self._handling.handler = handler

    @property
    def subscriptions(self) -> Mapping[str, Filter]:
        """The destinations the other side has subscribed to here, each with its filter."""
        return self._audience.subscriptions

    async def send(
        self,
        destination: str,
        payload: Body,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message. Returns once it is acknowledged; without an ack extension, once it is written.

        ``extensions`` are frames of vendor extensions to send before it, each with the extension's name and payload.
        Raises ``Failure`` where the other side refuses it, ``ConnectionLost`` where the connection ends before.
        """
        await (await self.post(destination, payload, properties, type_name=type_name, extensions=extensions))

    async def post(
        self,
        destination: str,
        payload: Body,
        properties: Mapping[str, Value] = NO_PROPERTIES,
        *,
        type_name: str = "",
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> "asyncio.Future[None]":
        """Send a message as soon as the window allows, and return then; the future is done as ``send`` would be."""
        text = write_properties(dict(properties)) if properties else ""
        data = octets(payload, "payload")
        await self.outflow.turn()
        acknowledged: asyncio.Future[None] = self._loop.create_future()
        self.put(destination, data, text, type_name, lambda problem: _settle(acknowledged, problem), extensions)
        await self.outflow.room()
        return acknowledged

    def put(
        self,
        destination: str,
        payload: bytes,
        properties: str,
        type_name: str,
        done: Done,
        extensions: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message at once, for those who have waited for the window; ``done`` is told what became of it."""
        self.outflow.put(destination, payload, properties, type_name, done, extensions)
        # Its acknowledgement must be read, however full the subscriptions are.
        if self._intake.strained:
            self._intake.decide()

    async def subscribe(
        self,
        destination: str,
        condition: Filter = NO_FILTER,
        *,
        limit: int = LIMIT,
        timeout: float | None = None,  # noqa: ASYNC109 - cheaper than a context of its own
    ) -> Subscription:
        """Subscribe to ``topic/<path>``, perhaps a pattern, or take from a queue; only what passes the filter comes.

        Returns when the other side has done so. Raises ``Failure`` where it refuses.
        """
        return await self._subscribing.subscribe(destination, condition, limit, timeout)

    async def ping(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until the other side has come to everything that was sent before."""
        await self._asking.ask(None, timeout)

    def extend(self, name: str, payload: bytes) -> None:
        """Send a frame of a vendor extension that was agreed on; the other side gets it before the next message."""
        self.outflow.send(self.outflow.vendor_frame(name, payload))

    def wants(self, destination: str, properties: Mapping[str, Value] = NO_PROPERTIES) -> bool:
        """Whether the other side has subscribed to messages like this."""
        return self.is_open and self._audience.wants(destination, properties)

    async def drain(self) -> None:
        """Refuse new messages, and wait until what was taken is worked off and what was sent is acknowledged."""
        self._handling.draining = True
        await self._handling.work.idle()
        await self.outflow.idle()

    async def close(self) -> None:
        """Acknowledge what the program is done with, and end the connection."""
        link = self.outflow.link
        self.closed_here = True
        if link is not None:
            self._inflow.flush()
            self.outflow.reason = self.outflow.reason or "this side closed the connection"
            await link.close()


def _settle(acknowledged: "asyncio.Future[None]", problem: Exception | None) -> None:
    if acknowledged.done():
        return
    if problem is None:
        acknowledged.set_result(None)
    else:
        acknowledged.set_exception(problem)
        acknowledged.exception()  # nobody may wait for it
