"""Messages that their peer acknowledges: sent within a window, kept while there is no connection.

What was sent and not acknowledged when a connection is lost is sent again on the next one: each message arrives at
least once, or its receipt says that it may not have.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from polywire.client.errors import BufferFull, Closed, ConnectionLost
from polywire.client.receipt import Promise, Receipt

FIRST: Final = 16
"""Messages that may be under way on a new connection; with each acknowledgement one more, up to the window.

A connection that breaks over and over, say because something on its way can't take much at once, gets on so.
"""

OVERHEAD: Final = 64
"""Octets a waiting message counts beside its own."""

What = TypeVar("What")
Done = Callable[[Exception | None], None]
"""Told what became of a message: None where the peer has it."""


class _Post(Generic[What]):
    """One message. ``turn`` tells the sendings of it apart: only the last one counts."""

    __slots__ = ("octets", "receipt", "sent", "turn", "what", "withdrawn")

    def __init__(self, what: What, octets: int) -> None:
        self.what = what
        self.octets = octets
        self.receipt = Receipt()
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
        self._up = False
        self._closed: Exception | None = None
        self._settled: list[asyncio.Future[None]] = []
        self.octets = 0

    def __len__(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._waiting) + len(self._under_way)

    def post(self, what: What, octets: int) -> Receipt:
        """Send a message, or keep it. Raises ``BufferFull``, and what ``send`` raises for one that can't be sent."""
        if self._closed is not None:
            raise self._closed
        if self.octets + octets > self._limit and len(self):
            raise BufferFull(self.octets, self._limit)
        post = _Post(what, octets + OVERHEAD)
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

    def pause(self) -> None:
        """There is none: what is under way goes to the front of the line."""
        self._up = False
        again = [post for post in self._under_way.values() if not post.withdrawn]
        for post in self._under_way.values():
            if post.withdrawn:
                self.octets -= post.octets
        self._under_way.clear()
        self._waiting.extendleft(reversed(again))

    def pump(self) -> None:
        """Send what waits, as far as the connection takes it."""
        while self._waiting and self._may_send():
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
        return self._up and len(self._under_way) < self._allowed and self._room()

    def _give(self, post: _Post[What]) -> None:
        self._turns += 1
        turn = post.turn = self._turns
        self._under_way[turn] = post
        try:
            self._send(post.what, lambda problem: self._done(turn, problem))
        except BaseException:
            self._under_way.pop(turn, None)
            raise
        post.sent = True

    def _done(self, turn: int, problem: Exception | None) -> None:
        if isinstance(problem, ConnectionLost):
            return  # ``pause`` is about to have it sent again
        post = self._under_way.pop(turn, None)
        if post is None:
            return
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

    def _withdraw(self, post: _Post[What]) -> None:
        """Whoever awaited it was cancelled: it is not sent where it was not, and not again where it was."""
        post.withdrawn = True
        if post in self._waiting:
            self._waiting.remove(post)
            self._gone(post)

    def _tell(self) -> None:
        waiting, self._settled = self._settled, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
