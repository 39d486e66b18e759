"""What waits to be written to one connection, with a cap and a policy for a reader that is too slow.

Everything a turn of the event loop produces for a connection is collected and written at once: the ``Flusher`` keeps
the outboxes that have something and flushes each of them once per turn. While the transport can't take more, bytes
wait here, up to the cap.

A reader that is merely slower than a burst is not a slow reader: with the policies ``drop`` and ``disconnect``, a
client that publishes into a full outbox waits for it first, but no longer than ``PATIENCE``. A reader that took nothing
in that time is slow; from then on its policy applies, and nobody waits for it until it has caught up.

Messages of topics, services' replies and queues' messages have a policy each. Queues deliver nothing to a full outbox,
and replies were requested: there a reader is slow if it has taken nothing at all for ``NOTICE``. To make that
measurable, the transport gets no more than a ``SLICE`` at a time.

Messages that wait for the peer's acknowledgement rather than for the transport are kept by the session, which has
their bytes counted here (``hold``), so that the same cap, patience and policy bound them.
"""

from collections.abc import Callable
from typing import Final, Protocol, final

from librt.strings import BytesWriter
from mypy_extensions import i64

DROP: Final = 0
DISCONNECT: Final = 1
BLOCK: Final = 2
POLICIES: Final = ("drop", "disconnect", "block")

DEFAULT_CAP: Final = 4 * 1024 * 1024
PATIENCE: Final = 0.1
"""Seconds a publisher waits for a full outbox before its reader counts as slow."""

NOTICE: Final = 2.0
"""Seconds in which the reader of a full outbox has to take something of what queues and services have for it."""

SLICE: Final = 256 * 1024
"""Bytes handed to the transport at once; further ones when it has not stalled."""

JOIN_BELOW: Final = 8192
"""Pieces shorter than this are copied together: many small writes cost more than the copy."""

STEADY: Final = 64
"""A reader that acknowledges this part of the cap while publishers wait for it is given as long again."""

CHANNELS_COUNTED: Final = 1000
"""How many channels a connection's drops are counted for by name; those of further ones are counted together."""

LONGEST_COUNTED: Final = 255
"""Channels with longer names are among those counted together."""


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None:
        """Cancel the call."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Runs a function after so many seconds."""


class Link(Protocol):
    """What an outbox needs of a connection's transport."""

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Write these, in order."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer until ``resume_reading`` has been called as often."""

    def resume_reading(self) -> None:
        """Continue reading from the peer."""

    def overflow(self) -> None:
        """The peer reads too slowly, and the policy is to disconnect it."""


@final
class Nowhere:
    """The transport of those who have none."""

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Discard the data."""

    def pause_reading(self) -> None:
        """Nothing to pause."""

    def resume_reading(self) -> None:
        """Nothing to resume."""

    def overflow(self) -> None:
        """Nothing can overflow."""


NOWHERE: Final = Nowhere()


@final
class Flusher:
    """The outboxes that have something to write in this turn.

    ``source`` is whose input is being handled, ``is_busy`` whether that takes more than its share of the loop.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], later: Later) -> None:
        self._soon: Final = soon
        self.later: Final = later
        self._dirty: list[Outbox] = []
        self.source: Link | None = None
        self.is_busy = False

    def mark(self, outbox: "Outbox") -> None:
        """Flush ``outbox`` when this turn ends."""
        if not self._dirty:
            self._soon(self.flush)
        self._dirty.append(outbox)

    def flush(self) -> None:
        """Write out everything collected."""
        dirty = self._dirty
        self._dirty = []
        for outbox in dirty:
            outbox.flush()


@final
class Outbox:
    """One connection's unwritten output. ``cap`` bounds its bytes.

    ``policy`` is for messages of topics, ``replies`` for replies and acknowledgements, ``queues`` for queues' messages,
    of which none is dropped.
    """

    def __init__(
        self,
        link: Link,
        flusher: Flusher,
        *,
        cap: int = DEFAULT_CAP,
        policy: int = DROP,
        replies: int = BLOCK,
        queues: int = BLOCK,
    ) -> None:
        self._link: Link = link
        self._flusher: Final = flusher
        self._cap: i64 = cap
        self._policy: i64 = policy
        self._replies: i64 = replies
        self._queues: i64 = queues
        self._chunks: list[bytes | memoryview] = []
        self._joined: BytesWriter | None = None  # small pieces behind the chunks, not yet one of them
        self._size: i64 = 0
        self._held: i64 = 0  # bytes the session keeps until its peer acknowledges them
        self._held_cap: i64 = cap
        self._progress: i64 = 0  # bytes of them acknowledged since patience began
        self._marked = False
        self._stalled = False  # the transport takes nothing at the moment
        self._closed = False
        self._slow = False  # the reader took nothing for too long
        self._patience: Timer | None = None
        self._notice: Timer | None = None  # the reader is disconnected then, unless it has taken something
        self._own_pause = False  # its own peer is not read because of replies it does not take
        self._waiting: list[Link] = []  # publishers that are not read because of this outbox
        self.on_room: Callable[[], None] | None = None  # called when everything has been written after a stall
        self.on_relief: Callable[[], None] | None = None  # called when it is not loaded any more
        self.written: i64 = 0
        self.dropped: i64 = 0
        self.dropped_by_channel: dict[str, int] = {}

    def size(self) -> int:
        """How many bytes wait."""
        return self._size

    def full(self) -> bool:
        """Whether the cap is reached."""
        return self._size >= self._cap

    def loaded(self) -> bool:
        """Whether what can wait elsewhere is to wait: half of what may be here has not been taken yet."""
        return not self._closed and (2 * self._size >= self._cap or 2 * self._held >= self._held_cap)

    def offer(self, data: bytes | memoryview) -> bool:
        """Add whole messages of topics. False where the policy for a slow reader kept them out."""
        length: i64 = len(data)
        if self._size + length > self._cap and self._size > 0 and not self._admit(self._policy):
            return False
        if self._closed:
            return False
        self._append(data, length)
        return True

    def offer_pair(self, first: bytes, second: bytes | memoryview) -> bool:
        """Add one message of a topic in two pieces, both or neither; the second may be shared with other outboxes."""
        return self._offer_pair(first, second, self._policy)

    def offer_all(self, chunks: list[bytes | memoryview]) -> bool:
        """Add one message of a topic in any number of pieces, all or none; they may be shared with other outboxes."""
        return self._offer_all(chunks, self._policy)

    def reply_all(self, chunks: list[bytes | memoryview]) -> bool:
        """Add a service's reply in any number of pieces. False where the policy for replies kept it out."""
        if self._replies == DROP:
            return self._offer_all(chunks, DROP)
        for chunk in chunks:
            self.put(chunk)
        return True

    def reply(self, first: bytes, second: bytes | memoryview = b"") -> bool:
        """Add a service's reply, in one piece or two. False where the policy for replies kept it out."""
        if self._replies == DROP:
            return self._offer_pair(first, second, DROP)
        self.put(first)
        if second:
            self.put(second)
        return True

    def put(self, data: bytes | memoryview) -> None:
        """Add what must not be dropped: an acknowledgement, an error, an answer of the hub's own.

        Over the cap the connection's own input is paused, so that a peer that does not take its replies stops
        causing more of them.
        """
        if self._closed:
            return
        self._append(data, len(data))
        if self._size > self._cap:
            self._overfill()

    def push(self, data: bytes | memoryview) -> None:
        """Add a message that was kept elsewhere until there was room; the caller has checked that there is."""
        if not self._closed:
            self._append(data, len(data))

    def takes_queued(self) -> bool:
        """Whether a queue that has a message may hand it out. A reader that keeps it waiting is not kept for long."""
        if self._closed:
            return False
        if self._size < self._cap:
            return True
        if self._queues == DISCONNECT:
            self._give_notice()
        return False

    def hold(self, octets: i64) -> bool:
        """Count bytes that wait for an acknowledgement. False if the policy for a slow reader rejects them.

        A client whose acknowledgements are awaited may have to be read for others to continue, so nobody waits longer
        than ``PATIENCE`` here, under any policy.
        """
        if self._held + octets > self._held_cap and self._held > 0 and not self._admit_held():
            return False
        self._held += octets
        return True

    def keep(self, octets: i64) -> None:
        """Count bytes that wait since before this connection: they come on top of the cap."""
        self._held += octets
        self._held_cap += octets

    def release(self, octets: i64) -> None:
        """The peer has acknowledged so many of the bytes held."""
        self._held -= octets
        self._progress += octets
        if self._held < self._held_cap and (self._slow or self._patience is not None) and not self._stalled:
            self._slow = False
            self._be_patient_no_more()
            self._wake()
        if self.on_relief is not None and not self.loaded():
            self.on_relief()

    def roomy(self) -> bool:
        """Whether the bytes held are below their cap."""
        return self._held < self._held_cap

    def held(self) -> int:
        """How many bytes wait for an acknowledgement."""
        return self._held

    def count_dropped(self, channel: str, count: int) -> None:
        """Note that ``count`` messages of ``channel`` were kept out."""
        self.dropped += count
        counted = self.dropped_by_channel
        if len(channel) > LONGEST_COUNTED or (channel not in counted and len(counted) >= CHANNELS_COUNTED):
            channel = ""
        counted[channel] = counted.get(channel, 0) + count

    def flush(self) -> None:
        """Hand what waits to the transport, until it is stalled."""
        self._marked = False
        if not self._stalled and not self._closed and self._size > 0 and self._write():
            self._relieve()  # even if the transport is stalled now: nothing waits here any more

    def finish(self) -> None:
        """Hand everything to the transport, which is about to be closed and takes it whether stalled or not."""
        if not self._closed and self._size > 0:
            self._join()
            self._hand_over()

    def stall(self) -> None:
        """The transport's buffer is full."""
        self._stalled = True

    def drain(self) -> None:
        """The transport's buffer has room again."""
        self._stalled = False
        some = self._size > 0 and not self._closed
        if some and not self._write():
            if self._notice is not None:
                self._withdraw_notice()
                self._give_notice()
            return
        self._slow = False
        self._be_patient_no_more()
        if some:
            self._relieve()

    def close(self) -> None:
        """Nothing can be written any more; clients waiting for this outbox continue."""
        self._closed = True
        self._chunks = []
        self._joined = None
        self._size = 0
        self._held = 0
        self._withdraw_notice()
        self._be_patient_no_more()
        self._relieve()
        # No circle of references is left behind, so that all of a connection is freed at once.
        self._link = NOWHERE
        self.on_room = None
        self.on_relief = None

    def _append(self, data: bytes | memoryview, length: i64) -> None:
        if length < JOIN_BELOW and isinstance(data, bytes):
            joined = self._joined
            if joined is None:
                joined = BytesWriter()
                self._joined = joined
            joined.write(data)
        else:
            self._join()
            self._chunks.append(data)
        self._size += length
        if not self._marked:
            self._marked = True
            self._flusher.mark(self)

    def _write(self) -> bool:
        """Hand slices to the transport until it is stalled. Whether nothing is left."""
        self._join()
        while self._size > SLICE:
            self._link.send(self._slice())
            if self._stalled:
                return False
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        """Hand everything to the transport."""
        chunks = self._chunks
        self._chunks = []
        self.written += self._size
        self._size = 0
        self._withdraw_notice()
        self._link.send(chunks)

    def _slice(self) -> list[bytes | memoryview]:
        """Take the first chunks, or the begin of one that is larger than a slice."""
        chunks = self._chunks
        count: i64 = 0
        taken: i64 = 0
        for chunk in chunks:
            if taken + i64(len(chunk)) > SLICE:
                break
            taken += i64(len(chunk))
            count += 1
        if count == 0:
            whole = memoryview(chunks[0])
            chunks[0] = whole[SLICE:]
            taken = SLICE
            piece: list[bytes | memoryview] = [whole[:SLICE]]
        else:
            piece = chunks[:count]
            del chunks[:count]
        self._size -= taken
        self.written += taken
        return piece

    def _join(self) -> None:
        """Make one chunk of the small pieces."""
        joined = self._joined
        if joined is not None:
            self._chunks.append(joined.getvalue())
            self._joined = None

    def _offer_pair(self, first: bytes, second: bytes | memoryview, policy: i64) -> bool:
        length: i64 = i64(len(first)) + i64(len(second))
        if self._size + length > self._cap and self._size > 0 and not self._admit(policy):
            return False
        if self._closed:
            return False
        self._append(first, len(first))
        self._append(second, len(second))
        return True

    def _offer_all(self, chunks: list[bytes | memoryview], policy: i64) -> bool:
        length: i64 = 0
        for chunk in chunks:
            length += i64(len(chunk))
        if self._size + length > self._cap and self._size > 0 and not self._admit(policy):
            return False
        if self._closed:
            return False
        for chunk in chunks:
            self._append(chunk, len(chunk))
        return True

    def _overfill(self) -> None:
        """There is more than the cap, of what must not be dropped."""
        if self._replies == DISCONNECT:
            self._give_notice()
        if not self._own_pause:
            self._own_pause = True
            self._link.pause_reading()

    def _give_notice(self) -> None:
        """Disconnect the reader, unless it takes something within ``NOTICE``."""
        if self._notice is None:
            self._notice = self._flusher.later(NOTICE, self._end_notice)

    def _end_notice(self) -> None:
        self._notice = None
        self._disconnect()

    def _withdraw_notice(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    def _disconnect(self) -> None:
        """The reader is too slow to stay."""
        if not self._closed:
            self._closed = True
            self._link.overflow()

    def _admit(self, policy: i64) -> bool:
        """Whether messages under this policy may come in though the cap is reached."""
        if not self._stalled:
            # Not the reader is slow but this turn of the loop is rich: the transport may still take it.
            self.flush()
            if not self._stalled:
                return True
        if not self._slow and self._size < 2 * self._cap:
            self._let_source_wait(policy)
            return True
        if policy == BLOCK and self._flusher.source is not None:
            # The rest of what its publisher has sent already: nothing more is read after it, so it is little.
            self._let_source_wait(policy)
            return True
        if policy == DISCONNECT:
            self._disconnect()
        return False

    def _admit_held(self) -> bool:
        """Whether more may wait for acknowledgements though the cap is reached."""
        if self._closed:
            return False
        if not self._slow and self._held < self._held_cap + self._cap:
            if self._patience is None:
                self._progress = 0
                self._patience = self._flusher.later(PATIENCE, self._declare_slow)
            if self._flusher.source is not self._link:  # its own acknowledgements come by the same way
                self._let_source_wait(self._policy)
            return True
        if self._policy == DISCONNECT:
            self._disconnect()
        return False

    def _let_source_wait(self, policy: i64) -> None:
        """Stop reading from clients that publish into this full outbox until there is room, or ``PATIENCE`` ends."""
        source = self._flusher.source
        if source is not None and source not in self._waiting:
            self._waiting.append(source)
            source.pause_reading()
        if policy != BLOCK and self._patience is None:
            self._patience = self._flusher.later(PATIENCE, self._declare_slow)

    def _declare_slow(self) -> None:
        self._patience = None
        if self._progress > self._cap // STEADY and not self._stalled:
            # It acknowledges, just not as fast as messages come: let it have another while.
            self._progress = 0
            self._patience = self._flusher.later(PATIENCE, self._declare_slow)
            return
        self._slow = True
        self._wake()

    def _be_patient_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _relieve(self) -> None:
        """Go on reading those who were paused because of this outbox."""
        if self._own_pause:
            self._own_pause = False
            self._link.resume_reading()
        if self._held <= self._held_cap:
            self._wake()
        if self.on_room is not None and not self._closed:
            self.on_room()
        if self.on_relief is not None and not self.loaded():
            self.on_relief()

    def _wake(self) -> None:
        """Go on reading the publishers that waited."""
        waiting = self._waiting
        self._waiting = []
        for link in waiting:
            link.resume_reading()
