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

# Made once: turning one of Python's values into Arrow's costs more than a kernel over a small batch.
ZERO: Final[Any] = pa.scalar(0, pa.int32())
FIRST_CODE: Final[Any] = pa.scalar(0, pa.int8())
NO_TEXT: Final[Any] = pa.scalar(None, pa.utf8())
CODES: Final[Any] = pa.array([None, *range(len(PROTOCOL_VALUES))], pa.int8())


@final
class BatchMaker:
    """Makes the batches of one node."""

    def __init__(self, node: str) -> None:
        self._node = node_values(node)

    def make(self, columns: Columns) -> Any:
        """The rows of ``columns``, which must be closed, as a record batch of the journal's schema."""
        rows = int(columns.rows)
        arena = pa.py_buffer(columns.arena.getvalue())
        places = pa.py_buffer(columns.places.getvalue())
        # Channels and bodies lie in the arena with other octets between them. As offsets, the positions make an array
        # in which every other value is such a gap, and those that are not can be taken.
        pieces = rows * PLACES - 1
        channel = _elements(pa.utf8(), pieces, places, arena, 0)
        body = _elements(pa.binary(), pieces, places, arena, 2)
        attachments, size = _attached(columns, rows, pc.binary_length(body))
        stretches = len(columns.kinds)
        run_ends = pa.Array.from_buffers(pa.int32(), stretches, [None, pa.py_buffer(columns.run_ends.getvalue())])
        if stretches > 1:
            of_row = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, pa.arange(0, stretches)))

        def repeated(values: Any) -> Any:
            if values.null_count == stretches:
                return pa.nulls(rows, values.type)
            return values.take(of_row) if stretches > 1 else pa.repeat(values[0], rows)

        def numbers(kind: Any, data: bytes) -> Any:
            return pa.Array.from_buffers(kind, stretches, [None, pa.py_buffer(data)])

        protocol = numbers(pa.int8(), columns.protocols.getvalue())
        protocol = CODES.take(protocol)  # they are stored as one more
        kind = repeated(numbers(pa.int8(), columns.kinds.getvalue()))
        words = pa.py_buffer(columns.words.getvalue())
        word_ends = pa.py_buffer(b"\0\0\0\0" + columns.word_ends.getvalue())
        texts = [
            repeated(_present(_elements(pa.utf8(), stretches * WORDS, word_ends, words, place)))
            for place in range(WORDS)
        ]
        values = [
            pa.arange(int(columns.first), int(columns.first) + rows),
            repeated(numbers(pa.timestamp("us", tz="UTC"), columns.times.getvalue())),
            pa.DictionaryArray.from_arrays(pa.repeat(FIRST_CODE, rows), self._node),
            pa.DictionaryArray.from_arrays(kind, KIND_VALUES),
            pa.DictionaryArray.from_arrays(repeated(protocol), PROTOCOL_VALUES),
            repeated(numbers(pa.int64(), columns.connections.getvalue())),
            texts[0],
            _present(channel),
            texts[1],
            texts[2],
            texts[3],
            attachments,
            body,
            size,
            repeated(numbers(pa.int32(), columns.flags.getvalue())),
        ]
        return pa.RecordBatch.from_arrays(values, schema=SCHEMA)


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
        return pa.nulls(len(texts), pa.utf8())
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
