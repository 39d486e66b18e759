"""One end of a link between two nodes: what was sent, what has arrived, and how much more may be sent.

The engine below may lose batches (a connection that breaks, a NATS server that is killed) but not change their order.
So batches with records are numbered, kept until the other end has them, and sent again where some are missing. The
other end grants a window: so many bytes of records may be on their way or waiting for it to handle them.

Each end has a number of its own, larger each time it is set up. Nothing counts but what was sent by an end to the end
it is linked to now: an end that has forgotten everything, because its node was restarted or thought the other one gone,
is known by its new number, and the other end starts again too.

There is no IO here, and no clock.
"""

from collections import deque
from enum import Enum
from typing import Final, final

from polywire.fabric.frames import Header, Hello, Kind, decode_batch, decode_hello, encode_batch, encode_hello


class News(Enum):
    """What a batch brought besides its records: nothing, the link is up, or its other end has begun again."""

    NOTHING = 0
    UP = 1
    RESTARTED = 2


@final
class Link:
    """One end. ``mine`` is its number, ``hello`` what it says about its node.

    What is to be sent is in ``answers`` after each call, for the caller to take.
    """

    def __init__(self, mine: int, hello: Hello) -> None:
        self.mine: Final = mine
        self.theirs = 0
        self.hello: Final = hello
        self.peer: Hello | None = None
        self.up = False
        self.answers: list[bytes] = []
        self.sent = 0  # batches with records
        self.sent_octets = 0  # of records
        self.received = 0
        self.received_octets = 0
        self.gaps = 0  # how often batches were missing
        self.resent = 0
        self.stale = 0  # batches of or for an end that is no more, and batches that had arrived before
        self._arrived = 0  # the other end has received all up to this number
        self._done_there = 0  # bytes of records the other end has handled
        self._done = 0
        self._told = 0  # of those, what the other end knows
        self._kept: deque[tuple[int, bytes]] = deque()
        self._again = False  # it was asked for what is missing
        self._last_seen = -1

    def greet(self) -> None:
        """Introduce this end, or answer an introduction."""
        self._say(Kind.HELLO, encode_hello(self.hello))

    def send(self, records: bytes) -> None:
        """Send the next part of the stream of records."""
        self.sent += 1
        self.sent_octets += len(records)
        self._kept.append((self.sent, records))
        self._say(Kind.RECORDS, records)

    def has_credit(self) -> bool:
        """Whether more records may be sent now."""
        return self.up and self.peer is not None and self.waiting() < self.peer.window

    def waiting(self) -> int:
        """How many bytes of records the other end has not handled."""
        return self.sent_octets - self._done_there

    def kept(self) -> int:
        """How many batches the other end may not have."""
        return len(self._kept)

    def receive(self, data: bytes) -> tuple[News, memoryview | None]:
        """A batch has come: what is new, and the records in it that are to be handled now.

        ``RESTARTED``: give the batch to a new end. A batch of no use, and one that comes too late, brings nothing.
        """
        header, payload = decode_batch(data)
        if self.theirs and header.mine > self.theirs:
            return News.RESTARTED, None
        if header.mine < self.theirs:
            self.stale += 1
        elif header.kind is Kind.HELLO:
            return self._greeted(header, payload), None
        elif header.mine != self.theirs or header.theirs != self.mine or not self.up:
            self.stale += 1
            self.greet()
        else:
            self._heed(header)
            if header.kind is Kind.RECORDS:
                return News.NOTHING, self._next(header, payload)
            self._answer(header)
        return News.NOTHING, None

    def handled(self, octets: int) -> None:
        """Records of so many bytes were handled. The other end is told when that is worth a batch."""
        self._done += octets
        if self._done - self._told > self.hello.window // 4:
            self._say(Kind.STATUS)

    def tick(self) -> bool:
        """Called from time to time: repeat what may have been lost. False where the other end has made no progress."""
        if not self.up:
            self.greet()
            return False
        if self._told != self._done:
            self._say(Kind.STATUS)
        seen, self._last_seen = self._last_seen, self._arrived + self._done_there
        if not self._kept and self.waiting() == 0:
            return True
        if seen == self._last_seen:
            self._say(Kind.REQUEST)
            return False
        return True

    def _greeted(self, header: Header, payload: memoryview) -> News:
        self.theirs = header.mine
        self.peer = decode_hello(payload)
        if header.theirs != self.mine:  # it does not know this end yet
            self.greet()
            return News.NOTHING
        if self.up:
            if not header.number:
                self.greet()
            return News.NOTHING
        self.up = True
        self.greet()
        return News.UP

    def _answer(self, header: Header) -> None:
        """The other end wants to know what has arrived here, or misses something."""
        if header.kind is Kind.AGAIN:
            for number, records in self._kept:
                self.resent += 1
                self._say(Kind.RECORDS, records, number)
        elif header.kind is Kind.REQUEST:
            self._again = False
            if header.number > self.received:
                self._ask()
            else:
                self._say(Kind.STATUS)

    def _next(self, header: Header, payload: memoryview) -> memoryview | None:
        """The records of a batch whose turn it is."""
        if header.number != self.received + 1:
            if header.number > self.received:
                self._ask()
            else:
                self.stale += 1
            return None
        self.received += 1
        self.received_octets += len(payload)
        self._again = False
        return payload

    def _ask(self) -> None:
        """Something is missing: ask for it, once until it comes or the other end wants to know."""
        if not self._again:
            self._again = True
            self.gaps += 1
            self._say(Kind.AGAIN)

    def _heed(self, header: Header) -> None:
        """What the other end has received and handled."""
        if header.got > self.sent or header.done > self.sent_octets:
            return  # nobody can have more than there is
        self._arrived = max(self._arrived, header.got)
        self._done_there = max(self._done_there, header.done)
        while self._kept and self._kept[0][0] <= self._arrived:
            self._kept.popleft()

    def _say(self, kind: Kind, payload: bytes = b"", number: int = -1) -> None:
        self._told = self._done
        if kind is Kind.HELLO:
            number = int(self.up)
        elif number < 0:
            number = self.sent
        header = Header(kind, self.mine, self.theirs, number, self.received, self._done)
        self.answers.append(encode_batch(header, payload))
