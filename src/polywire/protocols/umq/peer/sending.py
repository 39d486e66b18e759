"""What a peer sends: frames in the states that allow them, and their attachments behind them in the order announced.

An attachment may take its time: those behind it wait (UMQ-87), text messages do not.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Sequence
from inspect import iscoroutine

from polywire.client.errors import Closed, ConnectionLost
from polywire.client.link import Link
from polywire.protocols.umq.frames import Attachment, AttachmentError, encode
from polywire.protocols.umq.state import Machine, State
from polywire.wire.frame import Frame

Attachable = bytes | Awaitable[bytes]
"""What may be attached: octets, or what will give them. One that raises is told to the other side as failed."""


class Sender:
    """One peer's way out. ``reason`` says why it is closed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.link: Link | None = None
        self.reason = ""
        self._waiting: deque[Attachable] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection has not ended."""
        return self.machine.state is State.OPEN and self.link is not None

    def check(self, attachments: Sequence[Attachable] = ()) -> None:
        """Raise ``Closed`` where nothing can be sent; the attachments are given up then."""
        if self.machine.state is not State.OPEN or self.link is None:
            for each in attachments:
                give_up(each)
            raise Closed(self.reason or "the connection is not open", sent=False)

    def send(self, frame: Frame, attachments: Sequence[Attachable] = ()) -> None:
        """Send a frame, with as many attachments as it announces."""
        link = self.link
        message = encode(frame)
        self.machine.send(frame)
        if link is not None:
            if isinstance(message, str):
                link.send(message.encode(), text=True)
            else:
                link.send(message, text=False)
        if attachments:
            self._attach(attachments)

    async def room(self) -> None:
        """Wait while more is written than the connection takes, or until it has ended."""
        if self.link is not None and self.link.full:
            with contextlib.suppress(ConnectionLost):  # who waits for an answer is told with that
                await self.link.room()

    async def sent(self) -> None:
        """Wait until all attachments that were announced are sent."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self, reason: str) -> None:
        """The connection has ended: send nothing more; what is still being made is given up."""
        self.link = None
        self.reason = self.reason or reason
        if self._task is not None:
            self._task.cancel()
            self._task = None
        while self._waiting:
            give_up(self._waiting.popleft())

    def _attach(self, attachments: Sequence[Attachable]) -> None:
        for each in attachments:
            if isinstance(each, bytes) and not self._waiting:
                self.send(Attachment(each))
            else:
                self._waiting.append(each)
        if self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        while self._waiting:
            made = await _made(self._waiting[0])
            self._waiting.popleft()
            if self.machine.state is State.CLOSED:  # an F was the last message
                continue
            self.send(made)
            await self.room()
        self._task = None


async def _made(attachable: Attachable) -> Frame:
    if isinstance(attachable, bytes):
        return Attachment(attachable)
    try:
        return Attachment(await attachable)
    except Exception as error:  # noqa: BLE001 - whatever it was, only this attachment has failed (UMQ-88)
        return AttachmentError(str(error) or type(error).__name__)


def give_up(attachable: Attachable) -> None:
    """Let go of one that nobody will await."""
    if iscoroutine(attachable):
        attachable.close()
    elif isinstance(attachable, asyncio.Future):
        attachable.cancel()
