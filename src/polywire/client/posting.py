"""Messages that their peer acknowledges: sent within a window, kept while there is no connection.

What was sent and not acknowledged when a connection is lost is sent again on the next one: each message arrives at
least once, or its receipt says that it may not have. A message that ends the connection each time it is sent is not
sent for ever: it fails, and those behind it go on.
"""

import asyncio
import collections
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from polywire.client.errors import BufferFull, Closed, ConnectionLost, Refused, TooLarge
from polywire.client.receipt import Promise, Receipt

FIRST: Final = 16
"""Messages that may be under way on a new connection; with each acknowledgement one more, up to the window.

A connection that breaks over and over, say because something on its way can't take much at once, gets on so.
"""

OVERHEAD: Final = 64
"""Octets a waiting message counts beside its own."""

RIGHT_AFTER: Final = 30.0
"""Seconds after the last message was sent in which the end of the connection may be that message's doing."""

LARGE: Final = 64 * 1024
"""Bytes from which a message's size is the likely reason that a server closed the connection."""

TOGETHER: Final = 4
"""Connections that may end with a message in flight, among others, before it is sent alone; a large one: 1."""

ALONE: Final = 4
"""Connections that may end with nothing but a message in flight before it fails; with a large one: 2."""

UNSTABLE: Final = 4
"""How many more, at most, where connections were seen to end for other reasons."""

Key = TypeVar("Key")
What = TypeVar("What")
Done = Callable[[Exception | None], None]
"""Told what became of a message: None where the peer has it."""


class Suspicion(Generic[Key]):
    """Finds the message that ends the connection each time it is sent, by looking at what was in flight at each end.

    Each message that was in flight at the ends of several connections is a ``suspect``, to be sent alone. One that was
    alone at the ends of several is the culprit. An unstable network looks much the same, so it takes more of them for a
    small message, and more again where messages that were alone got through later.
    """

    def __init__(self) -> None:
        self._endings: dict[Key, int] = {}
        self._alone: dict[Key, int] = {}
        self._unstable = 0

    def suspect(self, key: Key) -> bool:
        """Whether this message must be sent alone."""
        return bool(self._endings) and (key in self._alone or self._endings.get(key, 0) >= TOGETHER)

    def forget(self, key: Key, *, acknowledged: bool = False) -> None:
        """It was acknowledged, or given up."""
        if self._endings:
            self._endings.pop(key, None)
            if self._alone.pop(key, 0) and acknowledged:
                self._unstable = min(UNSTABLE, self._unstable + 1)

    def ended(self, in_flight: Sequence[tuple[Key, int]], seconds: float) -> Key | None:
        """A connection has ended, so many seconds after the last message was sent. The culprit, if it is certain.

        ``in_flight`` are the messages that were, each with the size of its body.
        """
        for each, _ in in_flight:
            self._endings[each] = self._endings.get(each, 0) + 1
        if not in_flight or seconds > RIGHT_AFTER:
            return None
        key, size = max(in_flight, key=lambda each: each[1])
        if len(in_flight) > 1:
            if size >= LARGE:
                self._endings[key] = TOGETHER
            return None
        self._alone[key] = self._alone.get(key, 0) + 1
        enough = (2 if size >= LARGE else ALONE) + self._unstable
        return key if self._alone[key] >= enough else None


def closed_each_time(size: int) -> Refused:
    """The error of a message that ended each connection it was sent on."""
    return Refused(
        f"the server closed the connection each time this message of {size} bytes was sent; "
        "it may be larger than the server allows"
    )


class _Post(Generic[What]):
    """One message, with a body of ``size`` bytes. ``turn`` tells the sendings of it apart: only the last one counts."""

    __slots__ = ("octets", "receipt", "sent", "size", "turn", "what", "withdrawn")

    def __init__(self, what: What, octets: int, size: int, channel: str) -> None:
        self.what = what
        self.octets = octets
        self.size = size
        self.receipt = Receipt(channel=channel)
        self.turn = 0
        self.sent = False
        self.withdrawn = False


class Posting(Generic[What]):
    """``send`` gives a message to the connection; ``room`` tells whether that would take another one.

    ``limit`` bounds the octets of all that is not acknowledged, ``promise`` is what an acknowledgement is worth.
    """

    def __init__(
        self,
        send: Callable[[What, Done], None],
        room: Callable[[], bool],
        *,
        limit: int,
        window: int,
        promise: Callable[[], Promise] = lambda: Promise.ACKNOWLEDGED,
    ) -> None:
        self._send = send
        self._room = room
        self._limit = limit
        self._window = window
        self._allowed = 0
        self._promise = promise
        self._waiting: collections.deque[_Post[What]] = collections.deque()
        self._under_way: dict[int, _Post[What]] = {}
        self._turns = 0
        self._suspicion: Suspicion[_Post[What]] = Suspicion()
        self._alone = False  # one is under way that must be alone
        self._last_sent = 0.0
        self._up = False
        self._closed: Exception | None = None
        self._settled: list[asyncio.Future[None]] = []
        self.octets = 0

    def __len__(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._waiting) + len(self._under_way)

    def post(self, what: What, octets: int, *, size: int = 0, channel: str = "") -> Receipt:
        """Send a message, or keep it. Raises ``BufferFull``, and what ``send`` raises for one that can't be sent.

        ``size`` is that of its body, and ``channel`` where it goes: for what is reported if it fails.
        """
        if self._closed is not None:
            raise self._closed
        if self.octets + octets > self._limit and len(self):
            raise BufferFull(self.octets, self._limit)
        post = _Post(what, octets + OVERHEAD, size, channel)
        self.octets += post.octets
        if self._waiting or not self._may_send():
            self._waiting.append(post)
        else:
            try:
                self._give(post)
            except BaseException:
                self._gone(post)
                raise
        if not post.receipt.done:
            post.receipt.withdraw = lambda: self._withdraw(post)
        return post.receipt

    def begin(self) -> None:
        """There is a connection."""
        self._up = True
        self._allowed = min(FIRST, self._window)
        self.pump()

    def pause(self, lost: ConnectionLost | None = None) -> None:
        """There is none: what is under way goes to the front of the line, but for the message that ended it."""
        self._up = self._alone = False
        under_way = list(self._under_way.values())
        self._under_way.clear()
        if lost is not None and under_way:
            self._blame(lost, under_way)
        again = []
        for post in under_way:
            if post.withdrawn or post.receipt.done:
                self.octets -= post.octets
                self._suspicion.forget(post)
            else:
                again.append(post)
        self._waiting.extendleft(reversed(again))
        if under_way and not len(self):
            self._tell()

    def pump(self) -> None:
        """Send what waits, as far as the connection takes it."""
        while self._waiting and self._may_send():
            if self._under_way and self._suspicion.suspect(self._waiting[0]):
                return
            post = self._waiting.popleft()
            if post.withdrawn:
                continue
            try:
                self._give(post)
            except Exception as error:  # noqa: BLE001 - it can't be sent on this connection; its publisher is told
                post.receipt.fail(error)
                self._gone(post)

    def fail(self, error: Exception) -> None:
        """There will be no connection any more."""
        self._closed = error
        self.pause()
        waiting, self._waiting = self._waiting, collections.deque()
        self.octets = 0
        for post in waiting:
            post.receipt.fail(error.about(sent=post.sent) if isinstance(error, Closed) else error)
        self._tell()

    async def settled(self) -> None:
        """Wait until every message is acknowledged, or given up."""
        while len(self):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter

    def _may_send(self) -> bool:
        return self._up and not self._alone and len(self._under_way) < self._allowed and self._room()

    def _blame(self, lost: ConnectionLost, under_way: Sequence[_Post[What]]) -> None:
        """Fail the message that ended the connection, where it is known which one did."""
        if lost.too_large:
            # Where any of them is too large, the largest is.
            culprit = max(under_way, key=lambda post: post.size)
            culprit.receipt.fail(TooLarge(culprit.size, lost.limit, lost.reason))
            return
        sizes = [(post, post.size) for post in under_way]
        found = self._suspicion.ended(sizes, asyncio.get_running_loop().time() - self._last_sent)
        if found is not None:
            found.receipt.fail(closed_each_time(found.size))

    def _give(self, post: _Post[What]) -> None:
        self._turns += 1
        turn = post.turn = self._turns
        self._under_way[turn] = post
        self._alone = self._suspicion.suspect(post)
        self._last_sent = asyncio.get_running_loop().time()
        try:
            self._send(post.what, lambda problem: self._done(turn, problem))
        except BaseException:
            self._under_way.pop(turn, None)
            self._alone = False
            raise
        post.sent = True

    def _done(self, turn: int, problem: Exception | None) -> None:
        if isinstance(problem, ConnectionLost):
            return  # ``pause`` is about to have it sent again
        post = self._under_way.pop(turn, None)
        if post is None:
            return
        self._alone = False
        self._suspicion.forget(post, acknowledged=problem is None)
        if self._allowed < self._window:
            self._allowed += 1
        if problem is None:
            post.receipt.keep(self._promise())
        else:
            post.receipt.fail(problem)
        self._gone(post)
        self.pump()

    def _gone(self, post: _Post[What]) -> None:
        self.octets -= post.octets
        if not len(self):
            self._tell()

    def _withdraw(self, post: _Post[What]) -> bool:
        """Nobody awaits it any more: it is not sent where it was not, and not again where it was. Whether it was."""
        post.withdrawn = True
        if post in self._waiting:
            self._waiting.remove(post)
            self._suspicion.forget(post)
            self._gone(post)
        return post.sent

    def _tell(self) -> None:
        waiting, self._settled = self._settled, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
