"""Messages that have come and wait for their reader: an async iterator with a bound.

A full inbox makes its connection stop reading, so that the peer feels it, and memory does not grow. All inboxes of a
connection share an ``Intake``, which pauses and resumes the link. While an acknowledgement or a reply is awaited,
reading goes on, beyond the bound: a subscription that nobody reads must not keep its program from publishing. An inbox
that has many times its bound by then, and from which nothing was taken for a while, is ended with an error.
"""

import asyncio
import collections
import logging
from collections.abc import Callable, Iterable
from typing import Final, Generic, Self, TypeVar

from polywire.client.errors import Closed, Overrun
from polywire.client.link import Link

Item = TypeVar("Item")
Own = TypeVar("Own")

LIMIT: Final = 1000
"""Messages an inbox holds before its connection is no longer read."""

OCTETS: Final = 32 * 1024 * 1024
"""Bytes it holds before that, however few messages they are."""

BEYOND: Final = 16
"""How many times that it may hold while a reply is awaited."""

STALL_TIME: Final = 5.0
"""Seconds without a message taken after which nobody is believed to read a full inbox."""

log = logging.getLogger("polywire.client")


class Intake:
    """Decides whether a connection is read: not while an inbox is full.

    ``owed`` tells whether a reply is awaited. A task that begins to wait for one while an inbox is ``strained`` has
    it decided again.
    """

    def __init__(self, owed: Callable[[], bool] = lambda: False) -> None:
        self._full: set[Inbox[object]] = set()
        self._owed = owed
        self._replies = 0
        self._link: Link | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.paused = False

    @property
    def strained(self) -> bool:
        """Whether an inbox is full."""
        return bool(self._full)

    def attach(self, link: Link | None) -> None:
        """From now on it is this connection."""
        self._link = link
        self.paused = False
        self.decide()

    def owe(self, change: int) -> None:
        """So many more replies, or fewer, are awaited: for those that count them."""
        self._replies += change
        self.reconsider()

    def reconsider(self) -> None:
        """Decide again where an inbox is full: a reply may be awaited now, or no longer."""
        if self._full:
            self.decide()

    def changed(self, inbox: "Inbox[object]") -> None:
        """An inbox has become full, or is no longer."""
        if inbox.full:
            self._full.add(inbox)
        else:
            self._full.discard(inbox)
        self.decide()

    def decide(self) -> None:
        """Read, or don't."""
        pause = bool(self._full)
        stuck: list[Inbox[object]] = []
        if pause and (self._replies > 0 or self._owed()):
            stuck = self._unread()
            pause = bool(stuck)
        self._watch(stuck if self._link is not None else [])
        if pause != self.paused and self._link is not None:
            self.paused = pause
            if pause:
                self._link.pause_reading()
            else:
                self._link.resume_reading()

    def _unread(self) -> "list[Inbox[object]]":
        """The inboxes that keep a reply from being read and whose readers have some time left; the others end here."""
        now = asyncio.get_running_loop().time()
        stuck = []
        for inbox in [inbox for inbox in self._full if inbox.overfull]:
            if now - inbox.last_taken < STALL_TIME:
                stuck.append(inbox)
                continue
            log.warning("a subscription is ended: %d messages wait in it, and nobody reads them", len(inbox))
            self._full.discard(inbox)
            inbox.overrun()
        return stuck

    def _watch(self, stuck: "list[Inbox[object]]") -> None:
        """Look again when the time of the first reader is up."""
        if stuck and self._stalled is None:
            due = min(inbox.last_taken for inbox in stuck) + STALL_TIME
            self._stalled = asyncio.get_running_loop().call_at(due, self._stall)
        elif not stuck and self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _stall(self) -> None:
        self._stalled = None
        self.decide()


class Inbox(Generic[Item]):
    """What has come for one reader. Closing it ends the iteration; ``fail`` ends it with an error."""

    def __init__(self, intake: Intake, limit: int = LIMIT, *, on_close: Callable[[], None] | None = None) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}, and must be at least 1")
        self._intake = intake
        self._limit = limit
        self._items: collections.deque[Item] = collections.deque()
        self._octets = 0
        self._waiter: asyncio.Future[None] | None = None
        self._marked = False
        self._over = False  # nothing more is put in
        self._closed = False
        self._error: Exception | None = None
        self._on_close = on_close
        self.last_taken = 0.0
        """When something was taken from it last, or it became full; only while it is full."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        """Whether nothing more should come."""
        return (len(self._items) >= self._limit or self._octets >= OCTETS) and not self._over

    @property
    def overfull(self) -> bool:
        """Whether nothing more may come, even while a reply is awaited."""
        beyond = len(self._items) >= self._limit * BEYOND or self._octets >= OCTETS * 2
        return beyond and not self._over

    def put(self, item: Item, octets: int = 0) -> None:
        """One more, of so many bytes."""
        if self._over:
            return
        self._items.append(item)
        self._octets += octets
        self._came()

    def extend(self, items: Iterable[Item], octets: int = 0) -> None:
        """Several more, of so many bytes in all."""
        if self._over:
            return
        self._items.extend(items)
        self._octets += octets
        self._came()

    def clear(self) -> None:
        """Drop what waits."""
        self._items.clear()
        self._octets = 0
        self._mark()

    def close(self) -> None:
        """No more is wanted; what waits is dropped. Iterating ends."""
        if self._closed:
            return
        self._over = self._closed = True
        self._items.clear()
        self._octets = 0
        self._mark()
        self._wake()
        self._end()

    @property
    def taking(self) -> bool:
        """Whether what is put in is kept."""
        return not self._over

    def overrun(self) -> None:
        """Take nothing more; what waits can be read, then it is an error."""
        self._over = True
        self.fail(Overrun(len(self._items)))
        self._mark()
        self._end()

    def fail(self, error: Exception | None) -> None:
        """No more will come. What waits can still be read; then iterating ends, or raises ``error``."""
        self._error = self._error or error or Closed("the client was closed")
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                if type(self._error) is Closed and self._error.__cause__ is None:
                    raise StopAsyncIteration
                raise self._error
            if self._waiter is not None:
                raise RuntimeError("two tasks wait for the next message of one subscription; give each its own")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        # The bytes are those of all; each counts as an average one, which comes to the same in the end.
        self._octets -= self._octets // len(self._items)
        item = self._items.popleft()
        if self._marked:
            self.last_taken = asyncio.get_running_loop().time()
            self._mark()
        return item

    def _end(self) -> None:
        """Nothing more is wanted from the peer."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _came(self) -> None:
        self._wake()
        if len(self._items) >= self._limit or self._octets >= OCTETS:
            self._mark()

    def _mark(self) -> None:
        """Tell the intake where something has changed for it."""
        # Reading begins again only when half is taken, so that it does not stop and go with every message.
        half = len(self._items) <= self._limit // 2 and self._octets <= OCTETS // 2
        if self._marked and not self._over and not half:
            if self.overfull:
                self._intake.changed(self)  # type: ignore[arg-type] # the intake does not look at items
            return
        marked = self.full
        if marked != self._marked or self.overfull:
            if marked and not self._marked:
                self.last_taken = asyncio.get_running_loop().time()
            self._marked = marked
            self._intake.changed(self)  # type: ignore[arg-type] # as above

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Reading(Generic[Own, Item]):
    """A source for the bus: takes from an inbox, and gives what ``translate`` makes of it."""

    def __init__(self, inbox: Inbox[Own], translate: Callable[[Own], Item]) -> None:
        self._inbox = inbox
        self._translate = translate

    async def __anext__(self) -> Item:
        return self._translate(await self._inbox.__anext__())

    async def close(self) -> None:
        """Want no more."""
        self._inbox.close()
