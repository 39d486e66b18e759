"""Columns as they were collected, made into Arrow's.

Everything here is done by Arrow's kernels on whole buffers, which let go of the interpreter's lock: while a batch is
made and compressed, the hub's thread goes on.
"""

from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.columns import Columns
from polywire.journal.schema import KIND_VALUES, PROTOCOL_VALUES, SCHEMA, node_values

WORDS: Final = 4
PLACES: Final = 4

FIRST_CONSTANT: Final = 1 << 12
LARGEST_CONSTANT: Final = 1 << 16
MOST_CONSTANTS: Final = 64
"""Columns of one value are kept to be used again: how long at first and at most, and how many."""

# Made once: turning one of Python's values into Arrow's costs more than a kernel over a small batch.
CODE: Final[Any] = pa.int8()
FLAGS: Final[Any] = pa.int32()
NUMBER: Final[Any] = pa.int64()
RUN_END: Final[Any] = pa.int32()
TEXT: Final[Any] = pa.utf8()
TIME: Final[Any] = pa.timestamp("us", tz="UTC")
ZERO: Final[Any] = pa.scalar(0, pa.int32())
NO_TEXT: Final[Any] = pa.scalar(None, pa.utf8())
CODES: Final[Any] = pa.array([None, *range(len(PROTOCOL_VALUES))], pa.int8())


@final
class BatchMaker:
    """Makes the batches of one node."""

    def __init__(self, node: str) -> None:
        self._node = node_values(node)
        self._constants: dict[tuple[Any, int | None], Any] = {}

    def make(self, columns: Columns) -> Any:
        """The rows of ``columns``, which must be closed, as a record batch of the journal's schema.

        Small batches are made a thousand times a second, and then each call into Arrow counts: what the columns say
        of themselves saves most of them.
        """
        rows = int(columns.rows)
        arena = pa.py_buffer(columns.arena.getvalue())
        places = pa.py_buffer(columns.places.getvalue())
        # Channels and bodies lie in the arena with other octets between them. As offsets, the positions make an array
        # in which every other value is such a gap, and those that are not can be taken.
        pieces = rows * PLACES - 1
        channel = _elements(TEXT, pieces, places, arena, 0)
        body = _elements(pa.binary(), pieces, places, arena, 2)
        attachments, size = _attached(columns, rows, pc.binary_length(body))
        stretches = _Stretches(columns, rows)
        kind, protocol, flags = self._common(columns, stretches)
        client, correlation, content_type, headers = stretches.words()
        values = [
            pa.arange(int(columns.first), int(columns.first) + rows),
            stretches.numbers(TIME, columns.times.getvalue()),
            pa.DictionaryArray.from_arrays(self._constant(CODE, 0, rows), self._node, safe=False),
            pa.DictionaryArray.from_arrays(kind, KIND_VALUES, safe=False),
            pa.DictionaryArray.from_arrays(protocol, PROTOCOL_VALUES, safe=False),
            stretches.numbers(NUMBER, columns.connections.getvalue()),
            client,
            _present(channel) if columns.nameless else channel,
            correlation,
            content_type,
            headers,
            attachments,
            body,
            size,
            flags,
        ]
        return pa.RecordBatch.from_arrays(values, schema=SCHEMA)

    def _common(self, columns: Columns, stretches: "_Stretches") -> tuple[Any, Any, Any]:
        """The columns kind, protocol and flags: most often the same for all rows."""
        kinds, protocols, flags = columns.kinds.getvalue(), columns.protocols.getvalue(), columns.flags.getvalue()
        if columns.mixed:
            protocol = CODES.take(stretches.each(CODE, protocols))
            return stretches.numbers(CODE, kinds), stretches.repeated(protocol), stretches.numbers(FLAGS, flags)
        rows = stretches.rows
        return (
            self._constant(CODE, kinds[0], rows),
            self._constant(CODE, protocols[0] - 1 if protocols[0] else None, rows),
            self._constant(FLAGS, int.from_bytes(flags[:4], "little", signed=True), rows),
        )

    def _constant(self, kind: Any, value: int | None, rows: int) -> Any:
        """So many times the same, out of a longer one that is kept."""
        if rows > LARGEST_CONSTANT:
            return pa.repeat(pa.scalar(value, kind), rows)
        found = self._constants.get((kind, value))
        if found is None or len(found) < rows:
            found = pa.repeat(pa.scalar(value, kind), max(FIRST_CONSTANT, 2 * rows))
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()
            self._constants[kind, value] = found
        return found.slice(0, rows)


@final
class _Stretches:
    """What rows that follow each other have in common, spread over the rows."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self.rows = rows
        self._columns = columns
        self._count = len(columns.kinds)
        self._of_row: Any = None
        if self._count > 1:
            run_ends = self.each(RUN_END, columns.run_ends.getvalue())
            self._of_row = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, pa.arange(0, self._count)))

    def each(self, kind: Any, data: bytes) -> Any:
        """One number for each stretch."""
        return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(data)])

    def numbers(self, kind: Any, data: bytes) -> Any:
        """One number for each row, from one for each stretch."""
        return self.repeated(self.each(kind, data))

    def words(self) -> list[Any]:
        """Client, correlation, content type and headers."""
        columns = self._columns
        words = pa.py_buffer(columns.words.getvalue())
        ends = pa.py_buffer(b"\0\0\0\0" + columns.word_ends.getvalue())
        found = []
        for place in range(WORDS):
            if place > 0 and not columns.worded:
                found.append(pa.nulls(self.rows, TEXT))
                continue
            texts = _elements(TEXT, self._count * WORDS, ends, words, place)
            found.append(self.repeated(_present(texts) if place > 0 or columns.anonymous else texts))
        return found

    def repeated(self, values: Any) -> Any:
        """One value for each row, from one for each stretch."""
        if values.null_count == self._count:
            return pa.nulls(self.rows, values.type)
        return values.take(self._of_row) if self._count > 1 else pa.repeat(values[0], self.rows)


def _elements(kind: Any, count: int, offsets: Any, data: Any, place: int) -> Any:
    """Of the pieces that ``offsets`` cut ``data`` into, every fourth, from ``place`` on."""
    pieces = pa.Array.from_buffers(kind, count, [None, offsets, data])
    return pieces.take(pa.arange(place, count, PLACES))


def _present(texts: Any) -> Any:
    """Null for each text that is empty."""
    length = pc.binary_length(texts)
    least = pc.min_max(length)
    if least["min"].as_py():
        return texts
    if not least["max"].as_py():
        return pa.nulls(len(texts), TEXT)
    return pc.if_else(pc.equal(length, ZERO), NO_TEXT, texts)


def _attached(columns: Columns, rows: int, size: Any) -> tuple[Any, Any]:
    """The columns ``attachments`` and ``size``; few rows have more than a body."""
    if not columns.attachments and not columns.sizes:
        return pa.nulls(rows, pa.list_(pa.binary())), size
    attachments: list[tuple[bytes, ...] | None] = [None] * rows
    sizes = size.to_pylist()
    for row, each in columns.attachments:
        attachments[row] = each
        sizes[row] += sum(map(len, each))
    for row, octets in columns.sizes:
        sizes[row] = octets
    return pa.array(attachments, pa.list_(pa.binary())), pa.array(sizes, pa.int32())
