"""The thread that writes the journal: takes groups of rows as columns, writes them, and reports when each is on disk.

It makes a batch of the columns and appends it to the log, one group after the other. If that fails, it logs that once
and retries the same batch until it works or it is stopped: rows are never skipped.

Batches are made by Arrow's kernels on whole buffers, which release the interpreter's lock: while a batch is made and
compressed, the hub's thread continues. Unless a group is large, though, its batch is made before it goes to the thread,
and encoded too if it is small. That takes many short calls into Arrow, each of which releases the lock, and after each
of them the thread would have to wait for the lock whenever the event loop is busy.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import arange  # type: ignore[attr-defined] # came with pyarrow 21, the stubs describe 20

from polywire.journal.columns import Columns
from polywire.journal.format import KIND_VALUES, SCHEMA, Array, node_values, protocol_values, values
from polywire.journal.log import EncodedBatch, Log

NAMES: Final[list[str]] = SCHEMA.names
WORDS: Final = ("client", "correlation", "content_type", "headers")

FIRST_CONSTANT: Final = 1 << 12
LARGEST_CONSTANT: Final = 1 << 16
MOST_CONSTANTS: Final = 64
"""Columns of one value are kept to be used again: how long at first and at most, and how many."""

SMALL_PART: Final = 1 << 14
"""Bytes from which on it is worth while to let go of the interpreter's lock while a part is copied."""

LARGEST_ROOM: Final = 32 << 20
"""The buffer for joining parts is kept from batch to batch, unless one huge batch needs far more."""

# Made once: turning one of Python's values into Arrow's costs more than a kernel over a small batch.
BINARY: Final = pa.binary()
CODE: Final = pa.int8()
FLAGS: Final = pa.int32()
NUMBER: Final = pa.int64()
RUN_END: Final = pa.int32()
TEXT: Final = pa.utf8()
TIME: Final = pa.timestamp("us", tz="UTC")
TAKE: Final = pc.get_function("array_take")
UNCHECKED: Final = pc.TakeOptions(boundscheck=False)
ZERO: Final = pa.scalar(0, pa.int32())
EVERY_FOURTH: Final[Array] = arange(0, 4 * LARGEST_CONSTANT, 4)
NO_TEXT: Final = pa.scalar(None, pa.utf8())
CODES: Final = pa.array([None, *range(127)], pa.int8())


@final
class BatchMaker:
    """Makes the batches of one node, whose rows' protocols are numbered by ``protocols``; see ``Log``."""

    def __init__(self, node: str, protocols: Sequence[str] | None = None) -> None:
        self._node = node_values(node)
        self._protocols = protocol_values(protocols)
        self._constants: dict[tuple[pa.DataType, int | None], Array] = {}
        self._room = bytearray()

    def make(self, columns: Columns) -> pa.RecordBatch:
        """The rows of ``columns``, which must be closed, as a record batch of the journal's schema.

        Small batches are made a thousand times a second, and then each call into Arrow counts, not least because the
        interpreter's lock is let go of and waited for each time: what the columns say of themselves saves most of them.
        """
        rows = int(columns.rows)
        channel, body = self._pieces(columns, rows)
        attachments, size = _attached(columns, rows, _lengths(body))
        shared = self._shared(columns, rows)
        found = {
            "offset": arange(int(columns.first), int(columns.first) + rows),
            "node": pa.DictionaryArray.from_arrays(self._constant(CODE, 0, rows), self._node, safe=False),
            "kind": pa.DictionaryArray.from_arrays(shared.pop("kind"), KIND_VALUES, safe=False),
            "protocol": pa.DictionaryArray.from_arrays(shared.pop("protocol"), self._protocols, safe=False),
            "channel": _present(channel) if columns.nameless else channel,
            "attachments": attachments,
            "body": body,
            "size": size,
            **shared,
        }
        return pa.RecordBatch.from_arrays([found[name] for name in NAMES], schema=SCHEMA)

    def _pieces(self, columns: Columns, rows: int) -> list[Array]:
        """Channels and bodies. They are in the arena with other bytes between them.

        As offsets, the positions make an array of pieces, of which every fourth is a channel, and every fourth from the
        third on a body.
        """
        arena = self._arena(columns.parts)
        places = pa.py_buffer(columns.places.getvalue())
        return self._fourths(rows, places, arena, ((TEXT, 0), (BINARY, 2)))

    def _fourths(
        self, count: int, offsets: pa.Buffer, data: pa.Buffer, kinds: Iterable[tuple[pa.DataType, int]]
    ) -> list[Array]:
        """Of the pieces that ``offsets`` cut ``data`` into, every fourth; for each of ``kinds`` from another one on."""
        length = 4 * count - 3
        pieces = [pa.Array.from_buffers(kind, length, [None, offsets, data], offset=first) for kind, first in kinds]
        return _taken(pieces, EVERY_FOURTH.slice(0, count) if count <= LARGEST_CONSTANT else arange(0, length, 4))

    def _arena(self, parts: list[bytes]) -> pa.Buffer:
        """The parts as one. Valid until the next batch is made: what it becomes columns of is copied out of it."""
        octets = sum(map(len, parts))
        if not len(parts) * SMALL_PART <= octets <= LARGEST_ROOM:
            return pa.py_buffer(b"".join(parts))
        if octets > len(self._room):
            self._room = bytearray(octets + octets // 4)
        room = pa.py_buffer(self._room)
        sink = pa.FixedSizeBufferWriter(room)
        for part in parts:
            sink.write(part)
        return room

    def _shared(self, columns: Columns, rows: int) -> dict[str, Array]:
        """The columns of what rows that follow each other have in common: one value for each stretch, spread."""
        count = len(columns.kinds)
        kinds, protocols, flags = columns.kinds.getvalue(), columns.protocols.getvalue(), columns.flags.getvalue()
        found = {
            "ts": _numbers(TIME, count, columns.times.getvalue()),
            "connection": _numbers(NUMBER, count, columns.connections.getvalue()),
            **self._words(columns, count),
        }
        if columns.mixed:
            found["kind"] = _numbers(CODE, count, kinds)
            found["protocol"] = CODES.take(_numbers(CODE, count, protocols))
            found["flags"] = _numbers(FLAGS, count, flags)
        spread = dict(zip(found, _taken(found.values(), self._stretch_of_row(columns, count, rows)), strict=True))
        if not columns.mixed:
            spread["kind"] = self._constant(CODE, kinds[0], rows)
            spread["protocol"] = self._constant(CODE, protocols[0] - 1 if protocols[0] else None, rows)
            spread["flags"] = self._constant(FLAGS, int.from_bytes(flags[:4], "little", signed=True), rows)
        return {name: pa.nulls(rows, TEXT) for name in WORDS} | spread

    def _stretch_of_row(self, columns: Columns, count: int, rows: int) -> Array:
        if count == 1:
            return self._constant(CODE, 0, rows)
        run_ends = _numbers(RUN_END, count, columns.run_ends.getvalue())
        numbers = pa.RunEndEncodedArray.from_arrays(run_ends, arange(0, count))  # type: ignore[call-overload] # as below
        decoded: Array = pc.run_end_decode(numbers)  # type: ignore[attr-defined] # as arange
        return decoded

    def _words(self, columns: Columns, count: int) -> dict[str, Array]:
        """Client, correlation, content type and headers of each stretch; without those that none has."""
        words = pa.py_buffer(columns.words.getvalue())
        ends = pa.py_buffer(b"\0\0\0\0" + columns.word_ends.getvalue())
        names = WORDS if columns.worded else WORDS[:1]
        texts = self._fourths(count, ends, words, [(TEXT, place) for place in range(len(names))])
        if columns.worded or columns.anonymous:
            texts = [_present(each) for each in texts]
        return {name: each for name, each in zip(names, texts, strict=True) if each.null_count < count}

    def _constant(self, kind: pa.DataType, value: int | None, rows: int) -> Array:
        """So many times the same, out of a longer one that is kept."""
        if rows > LARGEST_CONSTANT:
            return _repeated(kind, value, rows)
        found = self._constants.get((kind, value))
        if found is None or len(found) < rows:
            found = _repeated(kind, value, max(FIRST_CONSTANT, 2 * rows))
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()
            self._constants[kind, value] = found
        return found.slice(0, rows)


def _repeated(kind: pa.DataType, value: int | None, times: int) -> Array:
    made: Array = pa.repeat(pa.scalar(value, kind), times)  # type: ignore[call-overload] # as below
    return made


def _lengths(texts: Array) -> Array:
    found: Array = pc.binary_length(texts)  # type: ignore[call-overload] # the stubs want to know the type of the values
    return found


def _numbers(kind: pa.DataType, count: int, data: bytes) -> Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _taken(arrays: Iterable[Array], indices: Array) -> list[Array]:
    """These elements of each of the arrays."""
    return [TAKE.call([each, indices], UNCHECKED) for each in arrays]


def _present(texts: Array) -> Array:
    """Null for each text that is empty."""
    length = _lengths(texts)
    least = pc.min_max(length)
    if least["min"].as_py():
        return texts
    if not least["max"].as_py():
        return pa.nulls(len(texts), TEXT)
    found: Array = pc.if_else(pc.equal(length, ZERO), NO_TEXT, texts)
    return found


def _attached(columns: Columns, rows: int, size: Array) -> tuple[Array, Array]:
    """The columns ``attachments`` and ``size``; few rows have more than a body."""
    if not columns.attachments and not columns.sizes:
        return pa.nulls(rows, pa.list_(pa.binary())), size
    attachments: list[tuple[bytes | None, ...] | None] = [None] * rows
    sizes = values(size)
    for row, each in columns.attachments:
        attachments[row] = each
        sizes[row] += sum(len(attachment) for attachment in each if attachment is not None)
    for row, octets in columns.sizes:
        sizes[row] = octets
    return pa.array(attachments, pa.list_(pa.binary())), pa.array(sizes, pa.int32())


RETRY_SECONDS = 1.0

SMALL_GROUP = 256 * 1024
LARGE_GROUP = 2 * 1024 * 1024
"""Bytes of a group up to which it is encoded at once, and up to which its batch is made at once."""

log = logging.getLogger("polywire.journal")

Group = tuple[list[Columns], EncodedBatch | pa.RecordBatch | None, Callable[[], None]]
"""Columns, what was made of them already, and what to call when they are written."""


@final
class Committer:
    """Writes to ``journal``. ``tell`` runs a function in the thread that submits.

    ``on_failure`` and ``on_recovery`` are run there when writing begins to fail and when it works again.
    """

    def __init__(
        self,
        journal: Log,
        tell: Callable[[Callable[[], None]], object],
        on_failure: Callable[[], None],
        on_recovery: Callable[[], None],
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._journal = journal
        self._maker = BatchMaker(journal.node, journal.protocols)
        self._tell = tell
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._retry_seconds = retry_seconds
        self._groups: SimpleQueue[Group | None] = SimpleQueue()
        self._submitted = 0  # groups that are not written yet
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="polywire-journal", daemon=True)
        self._thread.start()

    def submit(self, columns: list[Columns], done: Callable[[], None]) -> None:
        """Write these; ``done`` is called when they are on disk."""
        prepared: EncodedBatch | pa.RecordBatch | None = None
        # There is room for one encoded batch, so the thread must not be using it.
        if not self._submitted and len(columns) == 1 and columns[0].octets() <= LARGE_GROUP:
            with contextlib.suppress(Exception):  # the thread tries it again, and reports what is wrong
                made = prepared = self._maker.make(columns[0])
                if columns[0].octets() <= SMALL_GROUP:
                    prepared = self._journal.encode(made)
        self._submitted += 1
        self._groups.put((columns, prepared, done))

    def stop(self) -> bool:
        """Write what was submitted, unless that fails, and end. Returns whether everything was written."""
        self._groups.put(None)
        self._stopping.set()
        self._thread.join()
        return not self._failing

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            columns, prepared, done = group
            for each in columns:
                if not self._write(each, prepared):
                    return
            self._tell(partial(self._written, done))

    def _written(self, done: Callable[[], None]) -> None:
        self._submitted -= 1
        done()

    def _write(self, columns: Columns, batch: EncodedBatch | pa.RecordBatch | None) -> bool:
        """Write one batch, retrying until it works. False if it was stopped before that.

        ``batch`` is what was built from the columns: nothing, a record batch, or an encoded one.
        """
        times = (int(columns.earliest), int(columns.latest))
        while True:
            try:
                if batch is None:
                    batch = self._maker.make(columns)
                if not isinstance(batch, EncodedBatch):
                    batch = self._journal.encode(batch)
                self._journal.write(batch, state=columns.state, times=times)
            except Exception as error:  # noqa: BLE001 - whatever it is, rows must not be skipped
                if not self._failing:
                    self._failing = True
                    words = "the journal in %s can't be written: %s; nothing is acknowledged until it can"
                    log.error(words, self._journal.path, error)  # noqa: TRY400 - the words say it all
                    self._tell(self._on_failure)
                if self._stopping.wait(self._retry_seconds):
                    return False
            else:
                if self._failing:
                    self._failing = False
                    log.warning("the journal in %s can be written again", self._journal.path)
                    self._tell(self._on_recovery)
                return True
