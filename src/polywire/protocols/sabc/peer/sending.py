"""What an sABC peer sends: frames in the states that allow them, long messages in several.

A long message goes frame by frame as the connection takes it, so that short ones may come between.
"""

import asyncio
import contextlib

from polywire.client.errors import Closed, ConnectionLost
from polywire.client.link import Link
from polywire.protocols.sabc.errors import LocalProtocolError
from polywire.protocols.sabc.frames import Message, encode, split
from polywire.protocols.sabc.state import Session, State
from polywire.wire.frame import Frame


class Sender:
    """One peer's way out. ``messages``: the link keeps messages apart. ``reason`` says why it is closed.

    ``frame_size``: bytes of a frame, ``max_sent``: bytes of all frames of a message, 0 for any number.
    """

    def __init__(self, session: Session, *, messages: bool, frame_size: int, max_sent: int) -> None:
        self.session = session
        self.link: Link | None = None
        self.reason = ""
        self._messages = messages
        self._frame_size = frame_size
        self._max_sent = max_sent

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self.link is not None and self.session.state is State.OPEN

    @property
    def session_id(self) -> str:
        """The session's id, empty before it has one."""
        return self.session.session_id or ""

    def check(self) -> None:
        """Raise ``Closed`` where no message can be sent."""
        if not self.is_open:
            raise Closed(self.reason or "the session is not open", sent=False)

    def send(self, frame: Frame) -> None:
        """Send one frame."""
        octets = encode(frame)
        self.session.send(frame)
        self._write(octets)

    def refuse(self, frame: Frame) -> None:
        """Send the last frame of a session that was over before it began."""
        self._write(encode(frame))

    async def deliver(self, message: Message) -> None:
        """Send a message, in several frames where it is long, and wait where the connection does not take more."""
        pieces = self._frames(message)
        self.session.send(message)
        while pieces:
            self._write(pieces.pop(0))
            try:
                await self.room()
            except asyncio.CancelledError:
                # There is no way to take back what is begun, and the other side would wait for the rest.
                while pieces:
                    self._write(pieces.pop(0))
                raise
        if self.link is None:
            raise ConnectionLost(self.reason, sent=True)

    def answer(self, frame: Frame) -> None:
        """Send an answer at once, in several frames where it is long."""
        if isinstance(frame, Message):
            pieces = self._frames(frame)
            self.session.send(frame)
            for piece in pieces:
                self._write(piece)
        else:
            self.send(frame)

    async def room(self) -> None:
        """Wait while more is written than the connection takes, or until it has ended."""
        if self.link is not None and self.link.full:
            with contextlib.suppress(ConnectionLost):  # who waits for an answer is told with that
                await self.link.room()

    def close(self, reason: str) -> None:
        """The connection has ended."""
        self.link = None
        self.reason = self.reason or reason

    def _frames(self, message: Message) -> list[bytes]:
        """The message's frames. Raises ``LocalProtocolError`` where it is larger than the other side takes."""
        whole = encode(message)
        frames = [whole]
        if self._frame_size and len(whole) > self._frame_size:
            with contextlib.suppress(LocalProtocolError):  # its headers alone fill a frame: it goes in one
                frames = [encode(piece) for piece in split(message, self._frame_size)]
        size = sum(map(len, frames))
        if self._max_sent and size > self._max_sent:
            reason = f"the message has {size} bytes, more than the {self._max_sent} that the other side takes"
            raise LocalProtocolError(reason, rule="SABC-136")
        return frames

    def _write(self, octets: bytes) -> None:
        if self.link is None:
            return
        if self._messages:
            self.link.send(octets, text=True)
        else:
            self.link.write(octets)
