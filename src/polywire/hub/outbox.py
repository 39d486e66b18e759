"""What waits to be written to one connection, with a cap and a policy for a reader that is too slow.

Everything a turn of the event loop produces for a connection is collected and written at once: the ``Flusher`` keeps
the outboxes that have something and flushes each of them once per turn. While the transport can't take more, octets
wait here, up to the cap.

A reader that is merely slower than a burst is not a slow reader: with the policies ``drop`` and ``disconnect``, whoever
publishes into a full outbox waits for it first, but no longer than ``PATIENCE``. A reader that took nothing in that
time is slow, and from then on its policy holds, and nobody waits for it, until it has caught up.

A protocol with windows may have to keep messages back although the transport would take them. They stay with the
session, and are counted here (``hold``, ``release``) under the same cap. Publishers wait for those no longer than
``PATIENCE`` whatever the policy: while they are not read, their own acknowledgements are not read either.
"""

from collections.abc import Callable
from typing import Final, Protocol, final

from mypy_extensions import i64

DROP: Final = 0
DISCONNECT: Final = 1
BLOCK: Final = 2
POLICIES: Final = ("drop", "disconnect", "block")

DEFAULT_CAP: Final = 4 * 1024 * 1024
PATIENCE: Final = 0.1
"""Seconds a publisher waits for a full outbox before its reader counts as slow."""

CHANNELS_COUNTED: Final = 1000
"""How many channels a connection's drops are counted for by name; those of further ones are counted together."""


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None:
        """Let it not happen."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Runs a function after so many seconds."""


class Link(Protocol):
    """What an outbox needs of a connection's transport."""

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Write these, in order."""

    def pause_reading(self) -> None:
        """Take nothing more from the peer until ``resume_reading`` has been called as often."""

    def resume_reading(self) -> None:
        """The way back."""

    def overflow(self) -> None:
        """The peer reads too slowly, and the policy is to disconnect it."""


@final
class Flusher:
    """The outboxes that have something to write in this turn. ``source`` is whose input is being handled."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], later: Later) -> None:
        self._soon: Final = soon
        self.later: Final = later
        self._dirty: list[Outbox] = []
        self.source: Link | None = None

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
    """One connection's unwritten output. ``cap`` bounds its octets; ``policy`` is for messages of topics."""

    def __init__(self, link: Link, flusher: Flusher, *, cap: int = DEFAULT_CAP, policy: int = DROP) -> None:
        self._link: Final = link
        self._flusher: Final = flusher
        self._cap: i64 = cap
        self._policy: i64 = policy
        self._chunks: list[bytes | memoryview] = []
        self._size: i64 = 0
        self._marked = False
        self._stalled = False  # the transport takes nothing at the moment
        self._closed = False
        self._slow = False  # the reader took nothing for too long
        self._patience: Timer | None = None
        self._own_pause = False  # its own peer is not read because of replies it does not take
        self._held: i64 = 0  # octets that a session keeps back
        self._lagging = False  # the peer let them be kept back for too long
        self._lag: Timer | None = None
        self._waiting: list[Link] = []  # publishers that are not read because of this outbox
        self.on_room: Callable[[], None] | None = None  # told when everything has been written after a stall
        self.written: i64 = 0
        self.dropped: i64 = 0
        self.dropped_by_channel: dict[str, int] = {}

    def size(self) -> int:
        """How many octets wait."""
        return self._size

    def full(self) -> bool:
        """Whether the cap is reached."""
        return self._size >= self._cap

    def hold(self, octets: int) -> bool:
        """Count a topic's message that a session keeps back until its peer may get it. False: drop it."""
        total: i64 = self._held + self._size + octets
        if self._closed or (total > self._cap and self._held > 0 and not self._admit_held()):
            return False
        self._held += octets
        return True

    def release(self, octets: int) -> None:
        """The session no longer keeps these octets back."""
        if self._closed:
            return
        self._held -= octets
        if self._held == 0:
            self._lagging = False
        if self._held + self._size < self._cap:
            if self._lag is not None:
                self._lag.cancel()
                self._lag = None
            self._wake()

    def offer(self, data: bytes | memoryview) -> bool:
        """Add whole messages of topics. False where the policy for a slow reader kept them out."""
        length: i64 = len(data)
        if self._size + length > self._cap and self._size > 0 and not self._admit():
            return False
        if self._closed:
            return False
        self._append(data, length)
        return True

    def put(self, data: bytes | memoryview) -> None:
        """Add what must not be dropped: a reply, an acknowledgement, a queue's message.

        Over the cap the connection's own input is paused, so that a peer that does not take its replies stops
        causing more of them.
        """
        if self._closed:
            return
        self._append(data, len(data))
        if self._size > self._cap and not self._own_pause:
            self._own_pause = True
            self._link.pause_reading()

    def count_dropped(self, channel: str, count: int) -> None:
        """Note that ``count`` messages of ``channel`` were kept out."""
        self.dropped += count
        counted = self.dropped_by_channel
        if channel not in counted and len(counted) >= CHANNELS_COUNTED:
            channel = ""
        counted[channel] = counted.get(channel, 0) + count

    def flush(self) -> None:
        """Hand everything to the transport, unless it is stalled."""
        self._marked = False
        if self._stalled or self._closed or not self._chunks:
            return
        chunks = self._chunks
        self._chunks = []
        self.written += self._size
        self._size = 0
        self._link.send(chunks)
        if not self._stalled:
            self._relieve()

    def stall(self) -> None:
        """The transport's buffer is full."""
        self._stalled = True

    def drain(self) -> None:
        """The transport's buffer has room again."""
        self._stalled = False
        self._slow = False
        self._be_patient_no_more()
        self.flush()

    def close(self) -> None:
        """Nothing can be written any more; whoever waits for this outbox goes on."""
        self._closed = True
        self._chunks = []
        self._size = 0
        self._held = 0
        self._be_patient_no_more()
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        self._relieve()

    def _append(self, data: bytes | memoryview, length: i64) -> None:
        self._chunks.append(data)
        self._size += length
        if not self._marked:
            self._marked = True
            self._flusher.mark(self)

    def _admit(self) -> bool:
        """Whether messages of topics may come in though the cap is reached."""
        if not self._stalled:
            # Not the reader is slow but this turn of the loop is rich: the transport may still take it.
            self.flush()
            if not self._stalled:
                return True
        if not self._slow and self._size < 2 * self._cap:
            self._let_source_wait()
            return True
        if self._policy == DISCONNECT and not self._closed:
            self._closed = True
            self._link.overflow()
        return False

    def _let_source_wait(self) -> None:
        """Whoever publishes into this full outbox is not read until there is room, or patience ends."""
        source = self._flusher.source
        if source is not None and source not in self._waiting:
            self._waiting.append(source)
            source.pause_reading()
        if self._policy != BLOCK and self._patience is None:
            self._patience = self._flusher.later(PATIENCE, self._declare_slow)

    def _admit_held(self) -> bool:
        """Whether another message may be kept back though the cap is reached."""
        source = self._flusher.source
        others = source is not None and source is not self._link
        if others and not self._lagging and self._held + self._size < 2 * self._cap:
            if source is not None and source not in self._waiting:
                self._waiting.append(source)
                source.pause_reading()
            if self._lag is None:
                self._lag = self._flusher.later(PATIENCE, self._declare_lagging)
            return True
        if self._policy == DISCONNECT:
            self._closed = True
            self._link.overflow()
        return False

    def _declare_lagging(self) -> None:
        self._lag = None
        self._lagging = True
        self._wake()

    def _declare_slow(self) -> None:
        self._patience = None
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
        if self._held < self._cap:
            self._wake()
        if self.on_room is not None and not self._closed:
            self.on_room()

    def _wake(self) -> None:
        """Go on reading the publishers that waited."""
        waiting = self._waiting
        self._waiting = []
        for link in waiting:
            link.resume_reading()
