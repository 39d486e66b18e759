"""The replicated log of one shard: what happened in its queues, as messages of a JetStream stream.

A message holds a batch of the journal's own rows, as an Arrow stream; a batch that is too large for NATS takes several.
Rows have offsets of their own, counted from the beginning of the log. What is in the queues is what the journal's fold
leaves of them, so a new owner reads the stream, folds it, and goes on where the last one was.

Only the owner writes. Each message names the sequence number of the one before it, and a new owner begins with a
message of its own, its *claim*: from then on everything that an earlier owner still sends is refused, whatever that
believes its lease to be. Of what it has sent the owner waits for each acknowledgement in order. After an error it asks
for the last message of the stream, which says how far it has got, and sends the rest again: nothing is lost or written
twice.

From time to time the owner reads the stream up to some message, folds it, and appends what is left as a *snapshot*,
which takes the place of all messages up to that one; these are then deleted.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError
from pyarrow import ipc

from polywire.errors import PolywireError
from polywire.fabric.membership import Contents, LogLost
from polywire.journal.columns import Columns
from polywire.journal.committer import BatchMaker
from polywire.journal.format import PLAIN_SCHEMA, WRITE_OPTIONS
from polywire.journal.state import KEY_SOURCES, fold_keys, keys_of

ABOUT: Final = "Polywire-Log"
"""The header that says what a message is, in JSON; see ``_About``."""
EXPECTED: Final = "Nats-Expected-Last-Sequence"
WRONG_SEQUENCE: Final = frozenset({10070, 10071, 10164})

IN_FLIGHT: Final = 8
"""Messages that wait for their acknowledgement at once. Rows that come meanwhile are gathered in larger batches."""

ACK_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.25
FETCH: Final = 256
FETCH_SECONDS: Final = 5.0
PART_ROOM: Final = 4096
"""What is left for headers in the largest message of a server."""

SNAPSHOT_AFTER: Final = 64 << 20
"""Bytes of messages after which a snapshot is worth writing, if that of the last one is not larger."""

SLICE_OCTETS: Final = 512 << 10
"""About how large the parts of a snapshot are."""

log = logging.getLogger("polywire.fabric")


class LogDamaged(PolywireError):  # noqa: N818 - as LogLost
    """The stream holds what this version can't read, or lacks something."""


class _About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a message is: of the owner in ``term`` the one with this ``number``, ``part`` of ``parts`` of its batch.

    ``seen`` is up to which request of each node the rows answer. ``snapshot``: the batch belongs to the snapshot that
    takes the place of all messages up to this sequence number; the ``last`` one makes it whole.
    """

    term: int
    number: int
    part: int = 0
    parts: int = 1
    seen: dict[str, int] = {}
    snapshot: int = 0
    last: bool = False


@dataclass(slots=True)
class _Piece:
    """A message to be sent. ``done`` is called once it is stored."""

    about: _About
    payload: bytes
    done: Callable[[], None] | None
    sent: "asyncio.Future[Any] | None" = None


@dataclass(slots=True)
class _Reading:
    """What was read of a stream so far."""

    tables: list[pa.Table] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    snapshot: list[pa.Table] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    next_offset: int = 0
    term: int = 0
    number: int = 0
    covered: list[int] = field(default_factory=list)  # the sequence number of each of ``tables``


@final
class ShardLog:
    """The log of one shard, since this node has taken it over. ``lost`` is called if it can't be written any more.

    ``stream`` names the stream and ``subject`` what its messages are published to. The stream is created with the first
    message, as most shards of a small cluster have no queues.
    """

    def __init__(
        self, js: JetStreamContext, stream: str, subject: str, *, node: str, replicas: int, lost: Callable[[str], None]
    ) -> None:
        self.stream: Final = stream
        self.term = 0
        self._js: Final = js
        self._subject: Final = subject
        self._replicas: Final = replicas
        self._lost: Final = lost
        self._maker: Final = BatchMaker(node)
        self._waiting: Final[deque[_Piece]] = deque()
        self._flight: Final[deque[_Piece]] = deque()
        self._number = 0
        self._sequence = 0  # of the last message that was sent
        self._stored = 0  # of the last one that was acknowledged
        self._octets = 0  # since the last snapshot
        self._snapshot_octets = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._writer: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        self._exists = True
        self.over = False
        self.batches = 0
        self.retries = 0
        self.snapshots = 0

    async def take_over(self, term: int) -> Contents:
        """Become the owner, with a term that is larger than all before, and read what there is.

        ``LogLost`` where a later term has it already.
        """
        self.term = term
        try:
            await self._js.stream_info(self.stream)
        except NotFoundError:
            self._exists = False
            found = Contents(PLAIN_SCHEMA.empty_table(), 0, {})
        else:
            await self._claim()
            found = await self._read(self._sequence)
        self._writer = asyncio.create_task(self._write())
        return found

    @property
    def busy(self) -> bool:
        """Whether as many messages as are allowed wait for their acknowledgement: rows had better be gathered."""
        return len(self._waiting) + len(self._flight) >= IN_FLIGHT

    def append(self, columns: Columns, seen: Mapping[str, int], done: Callable[[], None]) -> None:
        """Write closed columns. ``done`` is called once they are stored on as many servers as are wanted."""
        payload = _encoded(self._maker.make(columns))
        self._add(payload, dict(seen), done)
        if self._octets > max(SNAPSHOT_AFTER, self._snapshot_octets) and self._compaction is None:
            self._compaction = asyncio.create_task(self._compact())

    async def flushed(self) -> None:
        """Wait until all that was appended is stored, or the log is lost."""
        await self._empty.wait()

    async def close(self) -> None:
        """Send nothing more."""
        self.over = True
        tasks = {each for each in (self._writer, self._compaction) if each is not None}
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=RETRY_SECONDS)

    async def compact(self) -> None:
        """Write a snapshot now, and delete what it takes the place of."""
        await self.flushed()
        if self._exists:
            await self._compact()

    def status(self) -> dict[str, object]:
        """What operators may want to know."""
        return {
            "stream": self.stream,
            "term": self.term,
            "waiting": len(self._waiting) + len(self._flight),
            "batches": self.batches,
            "retries": self.retries,
            "snapshots": self.snapshots,
        }

    async def _create(self) -> None:
        """Create the stream, unless another owner has: then its messages are to be read first."""
        config = StreamConfig(
            name=self.stream,
            subjects=[self._subject],
            storage=StorageType.FILE,
            num_replicas=self._replicas,
            max_msgs=-1,
            max_bytes=-1,
            max_age=0,
            duplicate_window=1,  # the sequence numbers do that
        )
        await self._js.add_stream(config)
        about = (await self._last())[1]
        if about is not None and (about.term, about.number) != (self.term, 0):
            self._give_up("another node has begun it meanwhile")
            return
        try:
            await self._claim()
        except LogLost as error:
            self._give_up(str(error))
            return
        self._exists = True

    async def _last(self) -> tuple[int, _About | None]:
        """The last message: its sequence number, and what it is."""
        try:
            found = await self._js.get_last_msg(self.stream, self._subject)
        except NotFoundError:
            state = (await self._js.stream_info(self.stream)).state
            return state.last_seq, None
        return found.seq or 0, _about(found.headers)

    async def _claim(self) -> None:
        """Append this owner's first message."""
        while True:
            sequence, about = await self._last()
            if about is not None and about.term >= self.term:
                if about.term == self.term and about.number == 0:  # sent before, and its answer was lost
                    self._sequence = self._stored = sequence
                    return
                raise LogLost(f"the log {self.stream} belongs to an owner with term {about.term}, not {self.term}")
            try:
                answer = await self._js.publish(self._subject, b"", headers=_headers(_About(self.term, 0), sequence))
            except APIError as error:
                if error.err_code not in WRONG_SEQUENCE:
                    raise
            else:
                self._sequence = self._stored = answer.seq
                return

    def _add(self, payload: bytes, seen: dict[str, int], done: Callable[[], None] | None, **more: Any) -> None:
        most = self._js._nc.max_payload - PART_ROOM  # noqa: SLF001 - it has no public name
        parts = max(1, -(-len(payload) // most))
        for part in range(parts):
            is_last = part == parts - 1
            self._number += 1
            about = _About(self.term, self._number, part, parts, seen if is_last else {}, **more)
            data = payload[part * most : (part + 1) * most]
            self._octets += len(data)
            self._waiting.append(_Piece(about, data, done if is_last else None))
        self._empty.clear()
        self._wake.set()

    async def _write(self) -> None:
        """Send what waits, in order, and wait for what was sent, until the end."""
        while not self.over:
            try:
                await self._send_some()
                await self._await_one()
            except (NatsError, TimeoutError) as error:
                log.debug("the log %s: %s", self.stream, str(error) or type(error).__name__)
                self.retries += 1
                if self._exists:
                    await self._recover()
                else:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _send_some(self) -> None:
        if not self._waiting and not self._flight:
            self._empty.set()
            self._wake.clear()
            await self._wake.wait()
        if not self._exists:
            await self._create()
        while self._waiting and len(self._flight) < IN_FLIGHT:
            piece = self._waiting.popleft()
            self._flight.append(piece)
            headers = _headers(piece.about, self._sequence)
            self._sequence += 1
            piece.sent = await self._js.publish_async(self._subject, piece.payload, headers=headers)

    async def _await_one(self) -> None:
        """The oldest message in flight is stored, or something new is to be sent."""
        if not self._flight:  # it was lost
            return
        piece = self._flight[0]
        assert piece.sent is not None  # noqa: S101 - it is in flight
        answer = await asyncio.wait_for(asyncio.shield(piece.sent), ACK_SECONDS)
        self._is_stored(answer.seq)

    def _is_stored(self, sequence: int) -> None:
        piece = self._flight.popleft()
        self._stored = sequence
        self.batches += 1
        if piece.done is not None:
            piece.done()

    async def _recover(self) -> None:
        """Find out how far the stream has got, and send the rest again."""
        for piece in self._flight:
            if piece.sent is not None:
                piece.sent.cancel()
                piece.sent = None
        while not self.over:
            try:
                sequence, about = await self._last()
            except (NatsError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if about is None or about.term != self.term:
                self._give_up("another node has taken it over" if about is not None else "its messages were deleted")
                return
            while self._flight and self._flight[0].about.number <= about.number:
                self._is_stored(sequence)
            self._waiting.extendleft(reversed(self._flight))
            self._flight.clear()
            self._sequence = sequence
            return

    def _give_up(self, why: str) -> None:
        self.over = True
        self._waiting.clear()
        self._flight.clear()
        self._empty.set()
        self._lost(f"the log {self.stream}: {why}")

    async def _read(self, last: int) -> Contents:
        """All that the messages up to this sequence number say."""
        reading = _Reading()
        async for sequence, about, payload in self._messages(last):
            _take(reading, sequence, about, payload)
        rows = await asyncio.to_thread(_folded, [*reading.snapshot, *reading.tables])
        return Contents(rows, reading.next_offset, reading.seen)

    async def _messages(self, last: int) -> AsyncIterator[tuple[int, _About | None, bytes]]:
        """The messages up to ``last``, each with its sequence number."""
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True, num_replicas=1
        )
        reader = await self._js.pull_subscribe(self._subject, stream=self.stream, config=config)
        expected = 0
        try:
            while expected <= last:
                for message in await reader.fetch(FETCH, timeout=FETCH_SECONDS):
                    sequence = message.metadata.sequence.stream
                    if expected and sequence != expected:
                        raise LogDamaged(
                            f"the log {self.stream} lacks the message {expected}; was a part of it deleted?"
                        )
                    if sequence > last:
                        return
                    expected = sequence + 1
                    yield sequence, _about(message.headers), message.data
        finally:
            with contextlib.suppress(NatsError, TimeoutError):
                await reader.unsubscribe()

    async def _compact(self) -> None:
        """Append a snapshot of what is stored now, and delete all up to that."""
        last, before = self._stored, self._snapshot_octets
        try:
            found = await self._read(last)
            self._octets = 0
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            slices = list(_slices(found.rows))
            for index, rows in enumerate(slices):
                is_last = index == len(slices) - 1
                done = partial(_settle, stored) if is_last else None
                more = {"snapshot": last, "last": is_last}
                self._add(_encoded(rows), {**found.seen, "": found.next_offset} if is_last else {}, done, **more)
            self._snapshot_octets = self._octets
            await stored
            await self._js.purge_stream(self.stream, seq=last + 1)
            self.snapshots += 1
        except (NatsError, TimeoutError, LogDamaged) as error:
            self._snapshot_octets = before
            log.warning("the log %s was not shortened: %s", self.stream, str(error) or type(error).__name__)
        finally:
            self._compaction = None


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _take(reading: _Reading, sequence: int, about: _About | None, payload: bytes) -> None:
    """One message, in order."""
    if about is None:
        raise LogDamaged(f"message {sequence} of the log is none of Polywire's, or of a later version")
    if about.part == 0 or about.term != reading.term:  # an owner may have ended within a batch
        reading.parts.clear()
    reading.term = about.term
    if about.number == 0 or about.part != len(reading.parts):
        return
    reading.parts.append(payload)
    if about.part < about.parts - 1:
        return
    table = _decoded(b"".join(reading.parts), sequence)
    reading.parts.clear()
    if not about.snapshot:
        reading.tables.append(table)
        reading.covered.append(sequence)
        reading.seen.update(about.seen)
        if table.num_rows:
            reading.next_offset = max(reading.next_offset, table["offset"][-1].as_py() + 1)
        return
    reading.snapshot.append(table)
    if about.last:
        _snapshot_read(reading, about)


def _snapshot_read(reading: _Reading, about: _About) -> None:
    """A snapshot is whole: what it takes the place of may still be there, if its writer ended before deleting it."""
    kept = [each for each, sequence in zip(reading.tables, reading.covered, strict=True) if sequence > about.snapshot]
    reading.tables = [*reading.snapshot, *kept]
    reading.covered = [0] * len(reading.snapshot) + [each for each in reading.covered if each > about.snapshot]
    reading.snapshot = []
    reading.next_offset = max(reading.next_offset, about.seen.get("", 0))
    for node, number in about.seen.items():
        if node:
            reading.seen[node] = max(reading.seen.get(node, 0), number)


def _folded(tables: list[pa.Table]) -> pa.Table:
    """The rows that still mean something, in the order of their offsets."""
    if not tables:
        return PLAIN_SCHEMA.empty_table()
    rows = pa.concat_tables(tables).sort_by("offset")
    keys = fold_keys(keys_of(rows.select([*KEY_SOURCES])))
    return rows.filter(pc.is_in(rows["offset"], value_set=keys["offset"].combine_chunks()))


def _slices(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches of moderate size; one without rows if there are none."""
    if not rows.num_rows:
        yield pa.RecordBatch.from_pylist([], PLAIN_SCHEMA)
        return
    parts = max(1, -(-rows.nbytes // SLICE_OCTETS))
    step = max(1, -(-rows.num_rows // parts))
    for at in range(0, rows.num_rows, step):
        yield rows.slice(at, step).combine_chunks().to_batches()[0]


def _encoded(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _decoded(data: bytes, sequence: int) -> pa.Table:
    try:
        with ipc.open_stream(data) as stream:
            return stream.read_all().cast(PLAIN_SCHEMA)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise LogDamaged(f"message {sequence} of the log can't be read: {error}") from error


def _headers(about: _About, expected: int) -> dict[str, str]:
    return {ABOUT: msgspec.json.encode(about).decode(), EXPECTED: str(expected)}


def _about(headers: Mapping[str, str] | None) -> _About | None:
    try:
        return msgspec.json.decode((headers or {}).get(ABOUT, ""), type=_About)
    except msgspec.DecodeError:
        return None
