"""The hub's state on disk: as it was at some offset, so that a start need not read the journal from its beginning.

A snapshot is an Arrow stream of the rows that ``state.fold_keys`` leaves, named by the offset of the first row it does
not know of, with a checksum after it that readers of streams do not see. It is made from the one before and the rows in
between, never from the hub's memory, so it does not disturb the hub, and startup uses the same code.

Only the columns that decide what is left are ever in memory as a whole; the rows themselves are read, and written, a
slice at a time. ``python -m polywire.journal.snapshots FOLDER OFFSET`` writes a snapshot in a separate process at the
lowest priority; ``housekeeping.py`` starts it.
"""

import bisect
import io
import itertools
import json
import logging
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc
from pyarrow.lib import concat_batches

from polywire.journal.compaction import begin_work
from polywire.journal.errors import JournalError
from polywire.journal.format import PLAIN_SCHEMA, Array, values
from polywire.journal.kinds import GAP, KINDS
from polywire.journal.reader import Journal, open_journal
from polywire.journal.state import KEY_SOURCES, fold_keys, keys_of, references, resolve, unresolved
from polywire.journal.storage import FILE_MODE, STATE, choose_segments, offset_of, segment_name, sync_folder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNFINISHED: Final = "state-unfinished"
"""The suffix of a snapshot that is being written."""

NEAR: Final = 65536
"""Rows that are wanted and at most so far apart are read in one go."""

SLICE_OCTETS: Final = 4 << 20
SLICE_ROWS: Final = 65536
"""What is held of rows at once, and written as one batch."""

FOLD_ROWS: Final = 1 << 18
"""Rows whose keys are gathered before those are dropped that later ones have undone."""

SYNC_OCTETS: Final = 16 << 20
"""A file system may make others who sync wait for all that is due, so it is synced in small parts."""

_COPY_OCTETS: Final = 1 << 20
_TRAILER: Final = struct.Struct("<4sI")
_MAGIC: Final = b"PWST"

log = logging.getLogger("polywire.journal")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is whole, or with no file the state at the very beginning: nothing."""

    offset: int = 0
    path: Path | None = None

    def batches(self, columns: Iterable[str] = tuple(PLAIN_SCHEMA.names)) -> Iterator[pa.RecordBatch]:
        """Its rows, with these columns, in order of offsets."""
        if self.path is None:
            return
        fields = [PLAIN_SCHEMA.names.index(name) for name in columns]
        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pa.OSFile(str(self.path), "rb") as file, ipc.open_stream(file, options=options) as stream:
            yield from stream


@dataclass(frozen=True, slots=True)
class State:
    """The rows that still mean something just before ``offset``; ``folded`` rows were looked at to find them.

    ``lost`` says which rows could not be looked at, so that what they did is missing here.
    """

    offset: int
    base: Snapshot
    journal: Journal
    offsets: "Array | None" = None
    """Of its rows, ascending; None where it is just what the base has."""
    folded: int = 0
    lost: tuple[str, ...] = ()

    @property
    def rows(self) -> pa.Table:
        """All of it, as one table."""
        return pa.Table.from_batches(list(self.batches()), PLAIN_SCHEMA)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in order of offsets, read slice by slice."""
        if self.offsets is None:
            return self.base.batches()
        return _slices(self._batches(self.offsets))

    def first_reference(self) -> int | None:
        """The first message in the journal that a delivery since the base refers to; None if there is none."""
        if self.offsets is None:
            return None
        middle = _place(self.offsets, self.base.offset)
        columns = ["offset", "kind", "correlation"]
        found = [pc.min(references(batch)) for batch in _rows_at(self.journal, self.offsets.slice(middle), columns)]
        return min((each.as_py() for each in found if each.is_valid), default=None)

    def _batches(self, offsets: Array) -> Iterator[pa.RecordBatch]:
        middle = _place(offsets, self.base.offset)
        yield from _chosen(self.base.batches(), offsets.slice(0, middle))
        for batch in _rows_at(self.journal, offsets.slice(middle), PLAIN_SCHEMA.names):
            yield from self._resolved(batch)

    def _resolved(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows, with the bodies of the messages that deliveries refer to."""
        if not pc.any(unresolved(batch)).as_py():
            yield batch
            return
        sizes = self._messages(references(batch), "size")
        first = octets = 0
        for row, reference in enumerate(batch.column("correlation").to_pylist()):
            size = sizes.get(int(reference), 0) if reference is not None and reference.isdigit() else 0
            if octets + size > SLICE_OCTETS and row > first:
                yield from self._resolved_slice(batch.slice(first, row - first))
                first, octets = row, 0
            octets += size
        yield from self._resolved_slice(batch.slice(first))

    def _resolved_slice(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        bodies = self._messages(references(batch), "body")
        yield from resolve(pa.Table.from_batches([batch]), bodies).combine_chunks().to_batches()

    def _messages(self, offsets: Array, column: str) -> dict[int, Any]:
        """One column of the messages with these offsets, by offset.

        A delivery may refer to an old retained message whose segment is deleted; then the base has it.
        """
        columns = ["offset", column]
        found: dict[int, Any] = {}
        ordered = offsets.take(pc.sort_indices(offsets))
        for batch in _rows_at(self.journal, ordered, columns):
            found.update(zip(values(batch.column(0)), values(batch.column(1)), strict=True))
        if len(found) < len(ordered):
            for batch in _chosen(self.base.batches(columns), ordered):
                found.update(zip(values(batch.column(0)), values(batch.column(1)), strict=True))
        return found


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that was written, and what could not be read for it."""

    name: str
    rows: int
    octets: int
    seconds: float
    lost: list[str] = field(default_factory=list)


def state_of(folder: Path, *, to_offset: int | None = None) -> State:
    """The state at the journal's end, or just before an offset."""
    base = newest(folder, to_offset)
    journal = open_journal(folder)
    end = journal.end_offset if to_offset is None else to_offset
    if end <= base.offset:
        return State(base.offset, base, journal)
    lost: list[str] = []
    if journal.first_offset > base.offset:
        lost.append(f"{_range(base.offset, journal.first_offset)} are gone, and no snapshot covers them")
    held = [keys_of(PLAIN_SCHEMA.empty_table()), *map(keys_of, base.batches(KEY_SOURCES))]
    folded = waiting = 0
    for batch in journal.scan(
        columns=[*KEY_SOURCES, "headers"], from_offset=base.offset, to_offset=end, state_only=True, on_corrupt="gap"
    ):
        if batch.column("kind")[0].as_py() == KINDS[GAP]:
            lost.append(_told(batch.to_pylist()[0]))
            continue
        held.append(keys_of(batch))
        folded += batch.num_rows
        waiting += batch.num_rows
        if waiting >= FOLD_ROWS:
            held, waiting = [fold_keys(pa.concat_tables(held)).combine_chunks()], 0
    keys = fold_keys(pa.concat_tables(held))
    offsets = pa.concat_arrays(keys["offset"].chunks) if keys.num_rows else pa.array([], pa.int64())
    return State(end, base, journal, offsets, folded, tuple(lost))


def save(folder: Path, state: State) -> Path:
    """Write a snapshot, whole or not at all."""
    path = folder / segment_name(state.offset, STATE)
    unfinished = path.with_suffix(f".{UNFINISHED}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        sink = _Checked(file)
        with ipc.new_stream(sink, PLAIN_SCHEMA, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
            for batch in state.batches():
                writer.write_batch(batch)
        file.write(_TRAILER.pack(_MAGIC, sink.crc))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(folder)
    return path


def due(folder: Path, to_offset: int) -> bool:
    """Whether a snapshot just before this offset is worth its writing.

    It is when the segments since the last one have as many bytes as that one: so snapshots never cost more writing
    than the journal itself does, and a start never reads more than the last one, that much again and a segment.
    """
    names = [path.name for path in folder.iterdir()]
    last = max((offset for name in names if (offset := offset_of(name, STATE)) is not None), default=0)
    if last >= to_offset:
        return False
    segments = choose_segments(names)
    ends = [segment.first_offset for segment in segments[1:]] + [to_offset]
    octets = 0
    for segment, end in zip(segments, ends, strict=True):
        if end > last and segment.first_offset < to_offset:
            octets += _size(folder / segment.name)
    return octets >= _size(folder / segment_name(last, STATE))


def newest(folder: Path, to_offset: int | None = None) -> Snapshot:
    """The newest snapshot that is whole and knows nothing after ``to_offset``; of nothing where there is none."""
    for path in _snapshots(folder):
        offset = int(path.stem)
        if to_offset is None or offset <= to_offset:
            try:
                _check(path)
            except (OSError, ValueError, pa.ArrowException) as error:
                log.warning("the snapshot %s can't be used; using an older one: %s", path, error)
            else:
                return Snapshot(offset, path)
    return Snapshot()


class _Checked(io.RawIOBase):
    """Passes on what Arrow writes to a file, which is closed by its owner, and computes its checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._due = 0
        self.crc = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, octets: "ReadableBuffer") -> int:
        """Write, and update the checksum."""
        size = memoryview(octets).nbytes
        self.crc = zlib.crc32(octets, self.crc)
        self._file.write(octets)
        self._due += size
        if self._due >= SYNC_OCTETS:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._due = 0
        return size


def _check(path: Path) -> None:
    """That the file is as it was written."""
    crc = 0
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - _TRAILER.size
        while left > 0 and (piece := file.read(min(left, _COPY_OCTETS))):
            crc = zlib.crc32(piece, crc)
            left -= len(piece)
        if left or file.read() != _TRAILER.pack(_MAGIC, crc):
            raise ValueError("its checksum does not match")
    with pa.OSFile(str(path), "rb") as opened, ipc.open_stream(opened) as stream:
        if not stream.schema.equals(PLAIN_SCHEMA):
            raise ValueError("its columns are not those of this version")


def _snapshots(folder: Path) -> list[Path]:
    """The snapshots there are, the newest first."""
    return sorted((path for path in folder.glob(f"*.{STATE}") if path.stem.isdigit()), reverse=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # compacted or deleted a moment ago
        return 0


def _rows_at(journal: Journal, offsets: Array, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows with these offsets, which are in order."""
    if not len(offsets):
        return
    jumps = pc.greater(pc.pairwise_diff(offsets), pa.scalar(NEAR))
    begins = [0, *values(pc.indices_nonzero(jumps.fill_null(fill_value=False))), len(offsets)]
    for at, end in itertools.pairwise(begins):
        wanted = offsets.slice(at, end - at)
        first, last = wanted[0].as_py(), wanted[-1].as_py()
        batches = journal.scan(columns=columns, from_offset=first, to_offset=last + 1, on_corrupt="skip")
        yield from _chosen(batches, wanted)


def _chosen(batches: Iterable[pa.RecordBatch], offsets: Array) -> Iterator[pa.RecordBatch]:
    """Of batches in order, the rows with these offsets, which are in order too."""
    for batch in batches:
        found = batch.column("offset")
        if not len(found):
            continue
        first, end = _place(offsets, found[0].as_py()), _place(offsets, found[-1].as_py() + 1)
        if first < end:
            yield batch.filter(pc.is_in(found, value_set=offsets.slice(first, end - first)))


def _place(offsets: Array, offset: int) -> int:
    """Where in these offsets this one would be."""
    return bisect.bisect_left(range(len(offsets)), offset, key=lambda at: offsets[at].as_py())


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are neither tiny nor huge."""
    held: list[pa.RecordBatch] = []
    rows = octets = 0
    for batch in batches:
        parts = max(1, -(-batch.nbytes // SLICE_OCTETS))
        step = max(1, -(-batch.num_rows // parts))
        for at in range(0, batch.num_rows, step):
            part = batch.slice(at, step)
            held.append(part)
            rows += part.num_rows
            octets += part.nbytes
            if rows >= SLICE_ROWS or octets >= SLICE_OCTETS:
                yield concat_batches(held)
                held, rows, octets = [], 0, 0
    if held:
        yield concat_batches(held)


def _range(first: int, end: int) -> str:
    return f"{end - first} rows, offsets {first} to {end - 1},"


def _told(gap: dict[str, Any]) -> str:
    """A description of a row of kind ``gap``."""
    headers = json.loads(gap["headers"])
    place = f"{headers['segment']} at {headers['position']}: {headers['reason']}"
    if headers["rows"] is None:
        return f"rows from offset {gap['offset']} on can't be read: {place}"
    return f"{_range(gap['offset'], gap['offset'] + headers['rows'])} can't be read: {place}"


def main() -> int:
    """Write a snapshot of the journal in a directory just before an offset, and print what it is as JSON."""
    begin_work()
    folder, offset = Path(sys.argv[1]), int(sys.argv[2])
    begun = time.monotonic()
    try:
        state = state_of(folder, to_offset=offset)
        path = save(folder, state)
        rows = 0 if state.offsets is None else len(state.offsets)
        saved = Saved(path.name, rows, path.stat().st_size, time.monotonic() - begun, list(state.lost))
        print(json.dumps(asdict(saved)))  # noqa: T201 - this is the answer
    except (JournalError, OSError, pa.ArrowException) as error:
        print(error, file=sys.stderr)  # noqa: T201 - so is this
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
