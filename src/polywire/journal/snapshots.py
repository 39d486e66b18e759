"""The hub's state on disk: as it was at some offset, so that a start need not read the journal from its beginning.

A snapshot is an Arrow stream of the rows that ``state.fold`` leaves, named by the offset of the first row it does not
know of, with a checksum behind it that readers of streams do not see. It is made from the one before and the rows in
between, never from the hub's memory, so making it disturbs nobody and start does the same.
"""

import logging
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from polywire.journal.reader import Journal, open_journal
from polywire.journal.schema import PLAIN_SCHEMA
from polywire.journal.segments import STATE, segment_name, sync_folder
from polywire.journal.state import KEYS, NO_ROWS, fold, references, resolve

UNFINISHED: Final = "state-unfinished"
"""The suffix of a snapshot that is being written."""

NEAR: Final = 65536
"""Rows that are wanted and at most so far apart are read in one go."""

_TRAILER: Final = struct.Struct("<4sI")
_MAGIC: Final = b"PWST"

log = logging.getLogger("polywire.journal")


@dataclass(frozen=True, slots=True)
class State:
    """The rows that still mean something just before ``offset``; ``folded`` rows were looked at to find them."""

    offset: int
    rows: Any
    folded: int = 0


def state_of(folder: Path, *, to_offset: int | None = None) -> State:
    """The state at the journal's end, or just before an offset."""
    base = newest(folder, to_offset)
    journal = open_journal(folder)
    end = journal.end_offset if to_offset is None else to_offset
    if end <= base.offset:
        return base
    if journal.first_offset > base.offset:
        words = "the rows from %d to %d are gone, and no snapshot knows of them: what they left behind is lost"
        log.error(words, base.offset, journal.first_offset)
    batches = list(
        journal.scan(columns=list(KEYS), from_offset=base.offset, to_offset=end, state_only=True, on_corrupt="skip")
    )
    schema = pa.schema([PLAIN_SCHEMA.field(name) for name in KEYS])
    rows = pa.Table.from_batches(batches, schema)
    left = fold(pa.concat_tables([base.rows.select(KEYS), rows]))
    offsets = left["offset"].combine_chunks()
    old = base.rows.filter(pc.is_in(base.rows["offset"], value_set=offsets))
    new = _rows_at(journal, offsets.filter(pc.greater_equal(offsets, base.offset)), PLAIN_SCHEMA.names)
    found = pa.concat_tables([old, new])
    # What a delivery stands for may be a retained message of long ago, whose segment is gone; then the base has it.
    columns = ["offset", "body"]
    messages = pa.concat_tables([_rows_at(journal, references(found), columns), base.rows.select(columns)])
    return State(end, resolve(found, messages), rows.num_rows)


def save(folder: Path, state: State) -> Path:
    """Write a snapshot, whole or not at all."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, PLAIN_SCHEMA, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(state.rows)
    octets = sink.getvalue()
    path = folder / segment_name(state.offset, STATE)
    unfinished = path.with_suffix(f".{UNFINISHED}")
    with unfinished.open("wb") as file:
        file.write(octets)
        file.write(_TRAILER.pack(_MAGIC, zlib.crc32(octets)))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(folder)
    return path


def newest(folder: Path, to_offset: int | None = None) -> State:
    """The newest snapshot that is whole and knows nothing behind ``to_offset``; of nothing where there is none."""
    for path in _snapshots(folder):
        offset = int(path.stem)
        if to_offset is None or offset <= to_offset:
            try:
                return State(offset, _read(path))
            except (OSError, ValueError, pa.ArrowException) as error:
                log.warning("the snapshot %s can't be used, an older one is: %s", path, error)
    return State(0, NO_ROWS)


def _read(path: Path) -> Any:
    octets = path.read_bytes()
    content = memoryview(octets)[: -_TRAILER.size]
    if len(octets) < _TRAILER.size or _TRAILER.unpack(octets[-_TRAILER.size :]) != (_MAGIC, zlib.crc32(content)):
        raise ValueError("its checksum is not right")
    return ipc.open_stream(content).read_all()


def _snapshots(folder: Path) -> list[Path]:
    """The snapshots there are, the newest first."""
    return sorted((path for path in folder.glob(f"*.{STATE}") if path.stem.isdigit()), reverse=True)


def _rows_at(journal: Journal, offsets: Any, columns: list[str]) -> Any:
    """The rows with these offsets."""
    schema = pa.schema([PLAIN_SCHEMA.field(name) for name in columns])
    wanted = pc.sort_indices(offsets)
    ordered = offsets.take(wanted).to_pylist()
    found = []
    first = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] - ordered[at - 1] > NEAR:
            batches = journal.scan(
                columns=columns, from_offset=ordered[first], to_offset=ordered[at - 1] + 1, on_corrupt="skip"
            )
            found += [batch.filter(pc.is_in(batch.column("offset"), value_set=offsets)) for batch in batches]
            first = at
    return pa.Table.from_batches(found, schema)
