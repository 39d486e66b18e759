"""What a client has to send: it waits for a connection and for room on it, and is in flight until it is acknowledged.

``publish`` is a plain call that returns a ``Receipt``: what is known of the message, as soon as it is known. Awaiting
it gives a ``Promise``, or raises what became of the message instead. A failure that nobody awaits is logged as a
warning when the receipt is dropped.

What was sent and not acknowledged when a connection is lost is sent again on the next one: each message arrives at
least once, or its receipt says that it may not have. A message that ends the connection each time it is sent is not
sent for ever: it fails, and those behind it go on.
"""

import asyncio
import collections
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import Enum
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from polywire.client.errors import BufferFull, Closed, ConnectionLost, Refused, Timeout, TooLarge
from polywire.client.link import Link

log = logging.getLogger("polywire.client")


class Promise(Enum):
    """How much is known of a message that was published."""

    SENT = "sent"
    """It was given to the connection. The protocol, or the QoS, has no acknowledgement."""

    ACKNOWLEDGED = "acknowledged"
    """The peer has taken it over; a hub with a journal has it on disk."""


class _Unread:
    """A failure that nobody has asked for yet: logged when its receipt is dropped. Only failures pay for it."""

    __slots__ = ("channel", "error", "read")

    def __init__(self, channel: str, error: Exception) -> None:
        self.channel = channel
        self.error = error
        self.read = False

    def __del__(self) -> None:
        if not self.read:
            log.warning("a message to %s was not delivered, and nobody awaited it: %s", self.channel, self.error)


class Receipt:
    """What becomes of one message, published to ``channel``.

    ``withdraw`` is called where the only one who awaits it is cancelled; it returns whether the message was sent.
    """

    __slots__ = ("_error", "_promise", "_timer", "_unread", "_waiting", "channel", "withdraw")

    def __init__(
        self, promise: Promise | None = None, withdraw: Callable[[], object] | None = None, channel: str = ""
    ) -> None:
        self._promise = promise
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread: _Unread | None = None
        self.channel = channel
        self.withdraw = withdraw

    @property
    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self._promise is not None or self._error is not None

    def __await__(self) -> Generator[Any, None, Promise]:
        promise = self._promise
        if promise is not None:
            return promise
        while not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            try:
                yield from waiter
            except asyncio.CancelledError:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                if not self._waiting and self.withdraw is not None:
                    self.withdraw()
                raise
        return self._outcome()

    def expire(self, seconds: float) -> None:
        """Give up after so many seconds: what was not sent by then is not sent, and awaiting raises ``Timeout``."""
        if not self.done:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expired, seconds)

    def keep(self, promise: Promise) -> None:
        """The promise is kept."""
        if not self.done:
            self._promise = promise
            self._wake()

    def fail(self, error: Exception) -> None:
        """It can't be."""
        if not self.done:
            self._error = error
            # At the end of the client there may be thousands of them, and one line says it all.
            if self._waiting is None and self.channel and not isinstance(error, Closed):
                self._unread = _Unread(self.channel, error)
            self._wake()

    def _outcome(self) -> Promise:
        if self._unread is not None:
            self._unread.read = True
        if self._error is not None:
            raise self._error
        return self._promise or Promise.SENT

    def _expired(self, seconds: float) -> None:
        withdraw, self.withdraw = self.withdraw, None
        sent = withdraw is None or bool(withdraw())
        self.fail(Timeout("publishing", seconds, sent=sent))

    def _wake(self) -> None:
        self.withdraw = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting or [], []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


SENT = Receipt(Promise.SENT)
"""The receipt of everything that went straight to a live connection."""


BUFFER: Final = 8 * 1024 * 1024
"""Bytes that may wait to be sent, by default."""

OVERHEAD: Final = 64
"""Bytes a waiting message counts beside its own."""

FIRST: Final = 16
"""Messages that may be in flight on a new connection; with each acknowledgement one more, up to the window.

A connection that breaks over and over, say because something on its way can't take much at once, gets on so.
"""

LARGE: Final = 64 * 1024
"""Bytes from which a message's size is the likely reason that a server closed the connection."""

TOGETHER: Final = 4
"""Connections that may end with a message in flight, among others, before it is sent alone; a large one: 1."""

ALONE: Final = 3
"""Connections that a message must have ended, sent alone and after a while, before it fails; a large one: 2."""

CONTROL: Final = 4
"""How many times longer a connection must have lasted without a message than with it to blame the message."""

LEAST_HOLD: Final = 0.1
MOST_HOLD: Final = 30.0
"""Seconds for which a suspected message is held back on a new connection, from the second time on."""

What = TypeVar("What")


class Carrier(Protocol[What]):
    """A connection, as what is to be sent sees it."""

    def room(self, what: What, /) -> bool:
        """Whether it takes this message now."""

    def send(self, entry: "Entry[What]", /) -> None:
        """Send a message, and ``settle`` it once it is known what became of it. Raises where it can't be sent."""


class LinkCarrier:
    """A link that takes messages as bytes. There are no acknowledgements: what is written counts as sent."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def room(self, _what: bytes, /) -> bool:
        """Whether the link is not full."""
        return not self._link.full

    def send(self, entry: "Entry[bytes]", /) -> None:
        """Write it."""
        self._link.write(entry.what)
        entry.settle(Promise.SENT)


class Doubt:
    """What speaks against a message that was in flight when connections ended."""

    __slots__ = ("alone", "endings", "hold")

    def __init__(self) -> None:
        self.endings = 0  # connections that ended while it was in flight
        self.alone = 0  # those of which it must have been the cause
        self.hold = 0.0

    @property
    def suspect(self) -> bool:
        """Whether the message may be what ended them, and must be sent alone."""
        return self.endings >= TOGETHER

    def ended_alone(self, before: float, after: float) -> None:
        """A connection ended ``after`` seconds with nothing else in flight.

        An unstable network looks much the same. What tells them apart is how long a connection lasts ``before`` the
        message is sent: on the next one it is held back for several times as long as the last one lasted with it.
        """
        if self.hold and before >= CONTROL * after:
            self.alone += 1
        if self.suspect:
            self.hold = min(MOST_HOLD, max(LEAST_HOLD, self.hold, CONTROL * after))
        self.endings += TOGETHER


class Entry(Generic[What]):
    """One message, with a body of ``size`` bytes."""

    __slots__ = ("_outgoing", "doubt", "octets", "receipt", "sent", "size", "what", "withdrawn")

    def __init__(self, outgoing: "Outgoing[What]", what: What, octets: int, size: int, channel: str) -> None:
        self._outgoing = outgoing
        self.what = what
        self.octets = octets + OVERHEAD
        self.size = size
        self.receipt = Receipt(None, self.withdraw, channel)
        self.sent = False
        self.withdrawn = False
        self.doubt: Doubt | None = None

    def settle(self, outcome: Promise | Exception) -> None:
        """It is known what became of it."""
        self._outgoing.settle(self, outcome)

    def withdraw(self) -> bool:
        """Nobody awaits it any more: it is not sent if it was not, and not again if it was. Whether it was."""
        self.withdrawn = True
        self._outgoing.withdraw(self)
        return self.sent


class Outgoing(Generic[What]):
    """All that one client sends, in order. ``limit`` bounds the bytes that wait, ``window`` the messages in flight.

    ``direct`` is the connection's link while nothing waits: what needs no acknowledgement may be written to it.
    """

    def __init__(self, limit: int = BUFFER, *, window: int = sys.maxsize, first: int = FIRST) -> None:
        self._limit = limit
        self._window = window
        self._first = min(first, window)
        self._allowed = 0
        self._carrier: Carrier[What] | None = None
        self._link: Link | None = None
        # In order, and any of them can be taken out at once.
        self._waiting: collections.OrderedDict[Entry[What], None] = collections.OrderedDict()
        self._in_flight: dict[Entry[What], None] = {}
        self._accepted: set[Entry[What]] = set()
        self._alone = False  # one is in flight that must be alone
        self._pumping = False
        self._began = self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed: Exception | None = None
        self._settled: list[asyncio.Future[None]] = []
        self._clear = False  # nothing waits, and what is posted may be sent at once
        self.octets = 0
        self.direct: Link | None = None

    def __iter__(self) -> Iterator[Entry[What]]:
        """What waits."""
        return iter(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, neither to be sent nor to be acknowledged."""
        return not self._waiting and not self._in_flight and not self._accepted

    def post(self, what: What, octets: int, *, channel: str = "", size: int = 0) -> Receipt:
        """Send a message, or keep it. Raises ``BufferFull``, and what the connection raises for one it can't send.

        ``size`` is that of its body, and ``channel`` where it goes: for what is reported if it fails.
        """
        if self._closed is not None:
            raise self._closed.about(sent=False) if isinstance(self._closed, Closed) else self._closed
        entry = Entry(self, what, octets, size, channel)
        carrier = self._carrier
        if self._clear and carrier is not None and len(self._in_flight) < self._allowed and carrier.room(what):
            self._send(entry, carrier)
        elif self._waiting and self.octets + octets > self._limit:
            raise BufferFull(self.octets, self._limit)
        else:
            self._set_clear(clear=False)
            self.octets += entry.octets
            self._waiting[entry] = None
        return entry.receipt

    def put_back(self, pieces: Iterable[tuple[What, int]]) -> None:
        """What was given to a connection and did not get out goes first, whatever the bound; each with its bytes."""
        self._put_back([Entry(self, piece, octets, 0, "") for piece, octets in pieces])

    def begin(self, carrier: Carrier[What], link: Link | None = None) -> None:
        """There is a connection; ``pump`` starts. ``link`` is where what needs no acknowledgement may be written."""
        self._carrier = carrier
        self._link = link
        self._began = monotonic()
        self._allowed = self._first

    def pause(self, lost: ConnectionLost | None = None) -> Entry[What] | None:
        """There is none: what is in flight goes to the front of the line, but for the message that ended it.

        That one, if it is known, has failed, and is returned.
        """
        self._carrier = None
        self._alone = False
        self._set_clear(clear=False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        culprit = None if lost is None else self._blame(lost, in_flight)
        self._put_back([entry for entry in in_flight if not entry.withdrawn and entry is not culprit])
        self._tell()
        return culprit

    def pump(self, *, again: bool = False) -> None:
        """Send what waits, as far as the connection takes it; with ``again`` only what was sent before."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and not self._alone:
                entry, carrier = next(iter(self._waiting)), self._carrier
                if again and not entry.sent:
                    break
                if carrier is None or len(self._in_flight) >= self._allowed or not carrier.room(entry.what):
                    break
                if entry.doubt is not None and entry.doubt.suspect:
                    if not self._may_send_alone(entry.doubt):
                        break
                    self._alone = True
                del self._waiting[entry]
                self.octets -= entry.octets
                try:
                    self._send(entry, carrier)
                except Exception as error:  # noqa: BLE001 - it can't be sent on this connection; its publisher is notified
                    entry.receipt.fail(error)
        finally:
            self._pumping = False
        self._set_clear(clear=self._carrier is not None and not self._waiting and not self._alone)
        self._tell()

    def settle(self, entry: Entry[What], outcome: Promise | Exception) -> None:
        """It is known what became of a message. A lost connection is not the end: ``pause`` has it sent again."""
        if isinstance(outcome, ConnectionLost):
            return
        if entry in self._in_flight:
            self._landed(entry)
        elif entry in self._accepted:
            self._accepted.remove(entry)
        else:
            return
        if isinstance(outcome, Promise):
            entry.receipt.keep(outcome)
        else:
            entry.receipt.fail(outcome)
        if not self._clear:
            self.pump()
        elif self._settled:
            self._tell()

    def accepted(self, entry: Entry[What]) -> None:
        """The peer has a message, although it has yet to acknowledge it for good: it is not sent again."""
        if entry in self._in_flight:
            self._landed(entry)
            self._accepted.add(entry)

    def withdraw(self, entry: Entry[What]) -> None:
        """A message is not to be sent any more."""
        if entry in self._waiting:
            del self._waiting[entry]
            self.octets -= entry.octets
            self._tell()

    def fail(self, error: Exception) -> None:
        """There will be no connection any more."""
        self._closed = error
        self.pause()
        failed = [*self._accepted, *self._waiting]
        self._accepted.clear()
        self._waiting.clear()
        self.octets = 0
        for entry in failed:
            entry.receipt.fail(error.about(sent=entry.sent) if isinstance(error, Closed) else error)
        self._tell()

    async def settled(self) -> None:
        """Wait until every message is acknowledged, or given up."""
        while not self.idle:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter

    def _set_clear(self, *, clear: bool) -> None:
        self._clear = clear
        self.direct = self._link if clear else None

    def _may_send_alone(self, doubt: Doubt) -> bool:
        """Whether a suspect may be sent: nothing else is in flight, and the connection has lasted without it."""
        left = self._began + doubt.hold - monotonic()
        if left > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left, self._held)
        return left <= 0 and not self._in_flight

    def _held(self) -> None:
        self._timer = None
        self.pump()

    def _send(self, entry: Entry[What], carrier: Carrier[What]) -> None:
        self._in_flight[entry] = None
        self._last_sent = monotonic()
        try:
            carrier.send(entry)
        except BaseException:
            self._in_flight.pop(entry, None)
            self._alone = False
            raise
        entry.sent = True

    def _landed(self, entry: Entry[What]) -> None:
        del self._in_flight[entry]
        if entry.doubt is not None:
            entry.doubt = None
            self._alone = False
        if self._allowed < self._window:
            self._allowed += 1

    def _put_back(self, entries: Sequence[Entry[What]]) -> None:
        for entry in reversed(entries):
            self._waiting[entry] = None
            self._waiting.move_to_end(entry, last=False)
        self.octets += sum(entry.octets for entry in entries)

    def _blame(self, lost: ConnectionLost, in_flight: Sequence[Entry[What]]) -> Entry[What] | None:
        """Fail the message that ended the connection, where it is known which one did."""
        if not in_flight:
            for entry in self._waiting:  # connections end without any of them, too
                entry.doubt = None
            return None
        largest = max(in_flight, key=lambda entry: entry.size)
        is_large = largest.size >= LARGE
        if lost.too_large:
            # If any of them is too large, the largest is.
            largest.receipt.fail(TooLarge(largest.size, lost.limit, lost.reason))
            return largest
        for entry in in_flight:
            entry.doubt = entry.doubt or Doubt()
            entry.doubt.endings += 1
        doubt = largest.doubt or Doubt()
        if len(in_flight) > 1:
            doubt.endings += TOGETHER if is_large else 0
            return None
        doubt.ended_alone(self._last_sent - self._began, monotonic() - self._last_sent)
        if doubt.alone < (ALONE - 1 if is_large else ALONE):
            return None
        reason = f"the server closed the connection each time this message of {largest.size} bytes was sent"
        largest.receipt.fail(Refused(f"{reason}; it may be larger than the server allows"))
        return largest

    def _tell(self) -> None:
        if self._settled and self.idle:
            waiting, self._settled = self._settled, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
