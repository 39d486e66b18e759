"""What a peer sends: messages numbered in order, as many unacknowledged as the window allows."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable

from polywire.client.errors import Closed, ConnectionLost
from polywire.client.link import Link
from polywire.protocols.micromsg.dotnet import TypeWriter
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import Error, Extension, Message, encode
from polywire.protocols.micromsg.negotiation import Agreement
from polywire.protocols.micromsg.peer.failures import Failure
from polywire.protocols.micromsg.text import DOTNET, json_problem
from polywire.protocols.micromsg.windows import SendWindow
from polywire.wire.frame import Frame

Done = Callable[[Exception | None], None]
"""Told what became of a message: None where it was acknowledged, or written and there are no acks."""


class _Pending:
    """A message that is sent and not acknowledged."""

    __slots__ = ("done", "failure", "sequence")

    def __init__(self, sequence: int, done: Done) -> None:
        self.sequence = sequence
        self.done = done
        self.failure: Failure | None = None


class Outflow:
    """One peer's way out. ``reason`` says why it is closed; ``on_open`` is called whenever the window has opened."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.reason = ""
        self.on_open: Callable[[], None] | None = None
        self._established = False
        self._window = SendWindow()
        self._acks = False
        self._json = False
        self._types: TypeWriter | None = None
        self._vendors: dict[str, int] = {}
        self._pending: deque[_Pending] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many messages are unacknowledged."""
        return len(self._pending)

    @property
    def is_open(self) -> bool:
        """Whether a message may be sent now."""
        return self._established and self.link is not None and self._window.is_open()

    def agree(self, agreement: Agreement) -> None:
        """The handshake is done."""
        self._established = True
        self._window = SendWindow(agreement.window)
        self._acks = agreement.window > 0
        self._json = agreement.json
        number = agreement.number(DOTNET)
        self._types = None if number is None else TypeWriter(number)
        self._vendors = agreement.vendors

    def send(self, frame: Frame) -> None:
        """Send a frame that has no number."""
        if self.link is not None:
            self.link.write(encode(frame))

    async def room(self) -> None:
        """Wait while more is written than the connection takes, or until it has ended."""
        if self.link is not None and self.link.full:
            with contextlib.suppress(ConnectionLost):  # who waits for an answer is told with that
                await self.link.room()

    async def turn(self) -> None:
        """Wait until a message may be sent. Raises ``Closed`` where none ever may."""
        while not self.is_open:
            if self.link is None or not self._established:
                raise Closed(self.reason or "the connection is not open", sent=False)
            await self._moved()

    def vendor_frame(self, name: str, payload: bytes) -> Extension:
        """A frame of a vendor extension. Raises ``LocalProtocolError`` where it was not agreed on."""
        number = self._vendors.get(name)
        if number is None:
            raise LocalProtocolError(f"{name} was not agreed on, or is not a vendor's", rule="MICROMSG-167")
        return Extension(number, payload)

    def put(
        self,
        destination: str,
        payload: bytes,
        properties: str,
        type_name: str,
        done: Done,
        extensions: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message. Raises ``LocalProtocolError``, and sends nothing, for what can't be sent here."""
        wrong = json_problem(payload) if self._json else None
        if wrong is not None:
            raise LocalProtocolError(wrong, rule="MICROMSG-150")
        if type_name and self._types is None:
            raise LocalProtocolError("dotnet was not agreed on, so messages have no type", rule="MICROMSG-172")
        before = [self.vendor_frame(name, attached) for name, attached in extensions]
        octets = encode(Message(self._window.due(), destination, payload, properties))
        named = None if self._types is None else self._types.before(type_name)
        for frame in before:
            self.send(frame)
        if named is not None:
            self.send(named)
        sequence = self._window.take()
        if self.link is not None:
            self.link.write(octets)
        if self._acks:
            self._pending.append(_Pending(sequence, done))
        else:
            done(None)

    def acked(self, sequence: int) -> Error | None:
        """The other side has acknowledged messages, or the ERROR to answer with."""
        count = self._window.acked(sequence)
        if isinstance(count, Error):
            return count
        for _ in range(count):
            pending = self._pending.popleft()
            pending.done(pending.failure)
        self._tell()
        if self.on_open is not None:
            self.on_open()
        return None

    def refused(self, failure: Failure) -> bool:
        """An ERROR that names a message by its ``sequence``; its ack follows. False where there is no such message."""
        for pending in self._pending:
            if str(pending.sequence) == failure.arguments.get("sequence"):
                pending.failure = failure
                return True
        return False

    async def idle(self) -> None:
        """Wait until nothing is unacknowledged."""
        while self._pending:
            await self._moved()

    def close(self, reason: str) -> None:
        """The connection has ended: what was not acknowledged may have arrived or not."""
        self.link = None
        self.reason = self.reason or reason
        while self._pending:
            pending = self._pending.popleft()
            pending.done(pending.failure or ConnectionLost(reason, sent=True))
        self._tell()

    async def _moved(self) -> None:
        """Wait for an ack, or the end."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
