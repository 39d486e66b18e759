"""What a peer receives: messages in order, acknowledged once the program is done with them.

An ack stands for all messages up to its number, so one is sent as far as everything before is done. All that become
due in a turn of the event loop go as one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from polywire.protocols.micromsg.dotnet import TypeReader
from polywire.protocols.micromsg.errors import BAD_FRAME, LocalProtocolError
from polywire.protocols.micromsg.frames import Error, Message
from polywire.protocols.micromsg.negotiation import Agreement
from polywire.protocols.micromsg.text import X_NACK, Value, json_problem, read_properties
from polywire.protocols.micromsg.windows import ReceiveWindow, ack, nack
from polywire.wire.frame import Frame


def _nothing() -> None:
    """Acknowledge a message where there are no acks."""


ATTACHED = 16
"""How many frames of vendor extensions are kept for the message behind them."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the program gets it. ``type_name`` is empty where it has none.

    ``extensions`` are the frames of vendor extensions that came before it, each with the extension's name and payload;
    of more than ``ATTACHED`` the last ones.
    ``ack`` says that the program is done with it; until then it counts against the window of the other side, and is
    not lost where it came from a queue. ``nack`` gives it back to its queue.
    """

    destination: str
    payload: bytes
    properties_text: str = ""
    type_name: str = ""
    acknowledge: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    extensions: tuple[tuple[str, bytes], ...] = ()
    reject: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, Value]:
        """The properties by key: numbers, texts and dates."""
        return read_properties(self.properties_text) if self.properties_text else {}

    def ack(self) -> None:
        """Be done with it. Only the first time counts."""
        self.acknowledge()

    def nack(self, delay: float = 0.0, reason: str = "") -> None:
        """Reject it: its queue delivers it again, after ``delay`` seconds at the earliest.

        After ``ack`` it does nothing. Raises ``LocalProtocolError`` where ``x-nack`` was not agreed on.
        """
        if self.reject is None:
            raise LocalProtocolError(f"{X_NACK} was not agreed on, so messages can't be rejected", rule="MICROMSG-196")
        self.reject(delay, reason)


class _Due:
    """A message that came and is not acknowledged."""

    __slots__ = ("done", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.done = False


class Inflow:
    """One peer's way in. ``send`` writes an ack."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self.types = TypeReader()
        self.attached: deque[tuple[str, bytes]] = deque(maxlen=ATTACHED)
        self._send = send
        self._window = ReceiveWindow()
        self._number = 0
        self._nack_number = 0
        self._json = False
        self._due: deque[_Due] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        """How many messages came and were not acknowledged."""
        return len(self._due)

    def agree(self, agreement: Agreement) -> None:
        """The handshake is done."""
        self._window = ReceiveWindow(agreement.window)
        self._number = agreement.number(agreement.acks or "") or 0
        self._nack_number = agreement.number(X_NACK) or 0
        self._json = agreement.json

    def take(self, frame: Message) -> Received | Error:
        """The message for the program, or the ERROR that ends the connection."""
        wrong = self._window.received(frame.sequence)
        if wrong is None and self._json:
            reason = json_problem(frame.payload)
            wrong = None if reason is None else Error(BAD_FRAME, (("reason", reason),))
        if wrong is not None:
            return wrong
        attached: tuple[tuple[str, bytes], ...] = ()
        if self.attached:
            attached = tuple(self.attached)
            self.attached.clear()
        acknowledge: Callable[[], None] = _nothing
        reject: Callable[[float, str], None] | None = None
        if self._number:
            due = _Due(frame.sequence)
            self._due.append(due)
            acknowledge = partial(self._done, due)
            if self._nack_number:
                reject = partial(self._reject, due)
        return Received(
            frame.destination, frame.payload, frame.properties, self.types.current, acknowledge, attached, reject
        )

    def flush(self) -> None:
        """Acknowledge what the program is done with, without waiting for the end of the turn."""
        self._scheduled = False
        last = 0
        while self._due and self._due[0].done:
            last = self._due.popleft().sequence
        if last:
            self._window.acknowledge(last)
            self._send(ack(self._number, last))

    def close(self) -> None:
        """The connection has ended: nothing can be acknowledged any more."""
        self._due.clear()

    def _reject(self, due: _Due, delay: float, reason: str) -> None:
        if not due.done and self._due:  # without any the connection has ended
            self._send(nack(self._nack_number, due.sequence, delay, reason))
            self._done(due)  # behind the nack its number is acknowledged like any other

    def _done(self, due: _Due) -> None:
        due.done = True
        if not self._scheduled and self._due and self._due[0].done:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
