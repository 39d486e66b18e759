"""Rows on their way into the journal, collected column by column.

The hub's thread appends here, and nothing is made per field: bytes go into one arena, and a row is four positions in
it. Chunks of input are not copied into the arena but become parts of it as they are. What many rows in a row have in
common (kind, connection, time and so on) is kept once for the whole stretch of them. ``batches`` puts the parts
together and makes Arrow's columns of it, in another thread.
"""

from typing import Final, final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

MICROSECOND: Final = 1000  # nanoseconds

MAX_OCTETS: Final = 1 << 30
"""What one group's arena may hold: positions in it have 31 bits."""

MAX_SIZE: Final = (1 << 31) - 1
"""The largest number the column ``size`` can hold; a client may announce more than that."""


@final
class Columns:
    """The rows of one group commit, from the offset ``first`` on. ``state``: some of them change the hub's state."""

    def __init__(self, first: int) -> None:
        self.first: i64 = first
        self.rows: i64 = 0
        self.state = False
        self.earliest: i64 = 0  # of its rows' times, in microseconds
        self.latest: i64 = 0
        # What all rows have in common is not looked for again when Arrow's columns are made.
        self.mixed = False  # they differ in kind, protocol or flags
        self.worded = False  # one has a correlation, a content type or headers
        self.anonymous = False  # one has no client
        self.nameless = False  # one has no channel
        self.parts: Final[list[bytes]] = []  # the arena, once closed
        self.places: Final = BytesWriter()  # of each row: where its channel begins and ends, where its body does
        self.words: Final = BytesWriter()  # of each stretch: client, correlation, content type, headers
        self.word_ends: Final = BytesWriter()
        self.run_ends: Final = BytesWriter()
        self.kinds: Final = BytesWriter()
        self.protocols: Final = BytesWriter()  # one more than the code, 0 for none
        self.flags: Final = BytesWriter()
        self.connections: Final = BytesWriter()
        self.times: Final = BytesWriter()
        self.attachments: Final[list[tuple[int, tuple[bytes | None, ...]]]] = []  # by row
        self.sizes: Final[list[tuple[int, int]]] = []  # by row: where the body is not all there was
        self._kind: i64 = -1
        self._protocol: i64 = 0
        self._flags: i64 = 0
        self._first_kind: i64 = 0
        self._first_protocol: i64 = 0
        self._first_flags: i64 = 0
        self._connection: i64 = 0
        self._time: i64 = 0
        self._client = ""
        self._held: bytes | None = None
        self._base: i64 = 0
        self._tail = BytesWriter()  # the arena's last part, while it grows
        self._before_tail: i64 = 0

    def octets(self) -> int:
        """About how much it holds."""
        return self._before_tail + len(self._tail) + len(self.places) + len(self.words)

    def stretch(self, kind: i64, protocol: i64, flags: i64, connection: i64, time: i64, client: str) -> None:
        """What the next rows have in common. ``time`` is in nanoseconds."""
        if (
            kind == self._kind
            and time == self._time
            and connection == self._connection
            and flags == self._flags
            and protocol == self._protocol
            and client == self._client
        ):
            return
        self._begin(kind, protocol, flags, connection, time, client, "", "", "")

    def append(
        self,
        kind: i64,
        protocol: i64,
        flags: i64,
        connection: i64,
        time: i64,
        client: str,
        channel: str,
        body: bytes,
        correlation: str = "",
        content_type: str = "",
        headers: str = "",
    ) -> i64:
        """One row. Returns its offset."""
        if correlation or content_type or headers:
            self._begin(kind, protocol, flags, connection, time, client, correlation, content_type, headers)
            self._kind = -1  # not shared
        else:
            self.stretch(kind, protocol, flags, connection, time, client)
        tail = self._tail
        before = self._before_tail
        start: i64 = before + len(tail)
        if channel:
            tail.write(channel.encode("utf-8", "replace"))
        else:
            self.nameless = True
        middle: i64 = before + len(tail)
        if body:
            tail.write(body)
        end: i64 = before + len(tail)
        places = self.places
        write_i64_le(places, start | (middle << 32))
        write_i64_le(places, middle | (end << 32))
        self.rows += 1
        return self.first + self.rows - 1

    def hold(self, data: bytes) -> i64:
        """Take a chunk of input in, once, and say where it begins in the arena."""
        if data is not self._held:
            self._end_tail()
            self._base = self._before_tail
            self.parts.append(data)
            self._before_tail += len(data)
            self._held = data
        return self._base

    def attach(self, attachments: tuple[bytes | None, ...]) -> None:
        """The last row has attachments; None is one that failed."""
        self.attachments.append((self.rows - 1, attachments))

    def size(self, octets: int) -> None:
        """The last row represents something of that size, of which its body is a part."""
        self.sizes.append((self.rows - 1, octets if octets < MAX_SIZE else MAX_SIZE))

    def close(self) -> None:
        """No row will follow."""
        if len(self.kinds) > 0:
            write_i32_le(self.run_ends, i32(self.rows))
        self._end_tail()
        self._held = None

    def _end_tail(self) -> None:
        if len(self._tail) > 0:
            self.parts.append(self._tail.getvalue())
            self._before_tail += len(self._tail)
            self._tail = BytesWriter()

    def _begin(
        self,
        kind: i64,
        protocol: i64,
        flags: i64,
        connection: i64,
        time: i64,
        client: str,
        correlation: str,
        content_type: str,
        headers: str,
    ) -> None:
        micros = time // MICROSECOND
        if len(self.kinds) > 0:
            write_i32_le(self.run_ends, i32(self.rows))
            if kind != self._first_kind or flags != self._first_flags or protocol != self._first_protocol:
                self.mixed = True
        else:
            self._first_kind = kind
            self._first_protocol = protocol
            self._first_flags = flags
            self.earliest = micros
            self.latest = micros
        if micros < self.earliest:
            self.earliest = micros
        elif micros > self.latest:
            self.latest = micros
        if not client:
            self.anonymous = True
        if correlation or content_type or headers:
            self.worded = True
        self._kind = kind
        self._protocol = protocol
        self._flags = flags
        self._connection = connection
        self._time = time
        self._client = client
        self.kinds.append(kind)
        self.protocols.append(protocol + 1)
        write_i32_le(self.flags, i32(flags))
        write_i64_le(self.connections, connection)
        write_i64_le(self.times, micros)
        self._word(client)
        self._word(correlation)
        self._word(content_type)
        self._word(headers)

    def _word(self, text: str) -> None:
        words = self.words
        if text:
            words.write(text.encode("utf-8", "replace"))
        write_i32_le(self.word_ends, i32(len(words)))
