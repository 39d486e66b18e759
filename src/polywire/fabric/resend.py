"""What was promised to publishers and has not reached another node: it is sent again, from the journal.

A message that was acknowledged to its publisher is in the journal of the publisher's node. The other node remembers up
to which offset it has that journal (``Heard``), and says so when a link is set up; what is behind is read from the disk
and sent first, and then what is published meanwhile, in order. The same happens where a link was too slow for a message
that had been promised. The journal of the other node remembers the offset too, together with what it has stored of the
messages before it: a node that is killed gets again what it had not yet stored, and nothing else.

Publications without a promise, those over FMQP and with MQTT's QoS 0, are not sent again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

from polywire.hub.message import Message
from polywire.hub.recorder import message_of
from polywire.journal.kinds import QOS_MASK

if TYPE_CHECKING:
    from polywire.journal.reader import Journal

MESSAGES_AT_ONCE: Final = 1000
NEAR: Final = 20_000
"""How many rows may be left to be read when what is published meanwhile begins to be held."""

log = logging.getLogger("polywire.fabric")

Found = Callable[[list[Message], int], None]
"""Called with messages, and the offset up to which they were looked for."""


class Archive(Protocol):
    """The journal of this node, as far as it is on disk."""

    def read(self, first: int, done: Found) -> None:
        """Look for promised messages to topics from an offset on, and call ``done`` later."""


@final
class DiskArchive:
    """The journal in a directory, read in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._journal: Journal | None = None

    def read(self, first: int, done: Found) -> None:
        """Look for them."""
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(None, self._read, first)

        def finish(read: "asyncio.Future[tuple[list[Message], int]]") -> None:
            problem = read.exception()
            if problem is None:
                done(*read.result())
            else:
                log.error("what other nodes have missed can't be read from the journal: %s", problem)
                loop.call_later(1.0, self.read, first, done)

        reading.add_done_callback(finish)

    def _read(self, first: int) -> tuple[list[Message], int]:
        # Only a journal needs Arrow.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from polywire.journal.reader import open_journal  # noqa: PLC0415

        journal = self._journal
        if journal is None:
            journal = self._journal = open_journal(self._folder)
        else:
            journal.refresh()
        end = journal.end_offset
        found: list[Message] = []
        for batch in journal.scan(from_offset=first, to_offset=end, kinds="publish", on_corrupt="skip"):
            qos = pc.bit_wise_and(batch["flags"], pa.scalar(QOS_MASK, batch["flags"].type))
            promised = batch.filter(pc.greater(qos, pa.scalar(0, qos.type)))
            found += [message_of(row) for row in promised.to_pylist()]
            if len(found) >= MESSAGES_AT_ONCE:
                return found, int(batch["offset"][-1].as_py()) + 1
        return found, max(first, end)


class Line(Protocol):
    """One node, to which messages are sent again: a ``Node`` of the hub's routes."""

    over: bool

    def wants(self, channel: str) -> bool:
        """Whether its clients have subscribed to a channel."""

    def resend(self, message: Message) -> bool:
        """Send it a message. False if it must wait for room: ``Resending.go_on`` is called then."""

    def hold(self, offset: int) -> None:
        """Hold what is published from now on, from this offset on."""

    def go_live(self) -> bool:
        """Send what was held, and from now on everything at once. False where that was too much to be held."""


@final
class Resending:
    """Sends one node what it has missed, from the offset ``position`` on, until it has everything.

    ``next_offset`` is that of the journal's next row. ``safe`` calls the first function when everything before is on
    disk, or the second where it can't be.
    """

    def __init__(
        self,
        line: Line,
        archive: Archive,
        position: int,
        next_offset: Callable[[], int],
        safe: Callable[[Callable[[], None], Callable[[], None]], None],
    ) -> None:
        self.position = position
        self.resent = 0
        self.done = False
        self._line: Final = line
        self._archive: Final = archive
        self._next_offset: Final = next_offset
        self._safe: Final = safe
        self._found: Final[deque[Message]] = deque()
        self._read_to = position
        self._held_from = -1
        self._stuck = False

    def begin(self) -> None:
        """Read what is on disk."""
        if not self._line.over:
            self._archive.read(self._read_to, self._read)

    def go_on(self) -> None:
        """There is room again, or time has passed."""
        if self._stuck:
            self._stuck = False
            self._wait_for_disk()
        elif self._found:
            self._send()

    def _read(self, found: list[Message], end: int) -> None:
        self._found.extend(found)
        self._read_to = end
        self._send()

    def _send(self) -> None:
        line = self._line
        while self._found and not line.over:
            message = self._found[0]
            if line.wants(message.channel):
                if not line.resend(message):
                    return
                self.resent += 1
            self._found.popleft()
        if not line.over:
            self.position = self._read_to
            self._next()

    def _next(self) -> None:
        """All that was read has been sent."""
        if self._held_from >= 0 and self.position >= self._held_from:
            if self._line.go_live():
                self.done = True
                return
            self._held_from = -1
        if self._held_from < 0 and self._next_offset() - self.position <= NEAR:
            self._held_from = self._next_offset()
            self._line.hold(self._held_from)
        if self.position >= self._held_from >= 0:
            self._next()
        elif self._held_from >= 0:
            self._wait_for_disk()
        else:
            self.begin()

    def _wait_for_disk(self) -> None:
        self._safe(self.begin, self._fail)

    def _fail(self) -> None:
        self._stuck = True  # until the next tick


@final
class Heard:
    """Up to which offset this node has the journals of others. ``record`` writes that into its own journal."""

    def __init__(self, known: dict[str, int], record: Callable[[str, int], None]) -> None:
        self._offsets: Final = known
        self._record: Final = record
        self._moved: Final[set[str]] = set()
        self.repeated = 0  # messages that had come before

    def upto(self, node: str) -> int:
        """The offset behind the last message of a node; -1 where none is known."""
        return self._offsets.get(node, -1)

    def is_new(self, node: str, first: int, count: int = 1) -> bool:
        """Whether promised messages, the first with this offset, have not come before; they have from now on."""
        if first < 0:
            return True
        behind = first + count
        if behind <= self._offsets.get(node, -1):
            self.repeated += count
            return False
        self._offsets[node] = behind
        self._moved.add(node)
        return True

    def begin_at(self, node: str, offset: int) -> None:
        """A node says that this one has all of its journal before this offset."""
        if offset != self._offsets.get(node, -1):
            self._offsets[node] = offset
            self._moved.add(node)

    def note(self, node: str) -> None:
        """Record how far it is, if that has changed."""
        if node in self._moved:
            self._moved.discard(node)
            self._record(node, self._offsets[node])
