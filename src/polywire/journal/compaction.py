"""Compaction: a closed segment becomes Parquet, with the same rows, smaller and faster to read.

The new file gets its name only when it is whole and safe, and the old one goes after that. So at every moment a reader
finds the segment once (Parquet counts where both are there), and one that has the old file open reads on undisturbed.

``python -m polywire.journal.compaction SEGMENT`` does it in a process of its own at the lowest priority, which is what
``housekeeping.py`` starts: in a thread of the hub it would now and then hold the interpreter's lock while others run.
"""

import contextlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc
from pyarrow.lib import concat_batches

from polywire.journal.damage import lost_batches, survey
from polywire.journal.errors import CorruptBatch, JournalError
from polywire.journal.format import SCHEMA, BadMessage, find_head, read_index, write_head
from polywire.journal.segments import row_groups
from polywire.journal.storage import (
    ARROW,
    FILE_MODE,
    INDEX,
    PARQUET,
    choose_segments,
    parse_name,
    segment_name,
    sync_folder,
)

GROUP_ROWS: Final = 128 * 1024
"""Rows of a row group, about: what a reader can leave out by its statistics, and what is held in memory at once."""

GROUP_OCTETS: Final = 64 << 20
"""What is held in memory at most, about: bodies may be large."""

CHUNK_ROWS: Final = 8 * 1024
"""Batches are joined up to about so many rows before they are written: a quiet hub's are tiny, and each costs."""

NICE: Final = 19
NICE_IN_A_HURRY: Final = 5
HURRY: Final = "--hurry"
PART_SUFFIX: Final = ".part"
DAMAGED: Final = 3
"""How the process ends where the segment has damage, so that trying again is of no use."""

_REPEATED: Final = ["node", "kind", "protocol", "client", "channel", "content_type", "headers"]
"""Columns whose values come again and again: written once each, and then by number."""

_COUNTING: Final = {"offset": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"}
_COMPARED: Final = [name for name in SCHEMA.names if name not in {"headers", "attachments", "body"}]
"""Columns whose least and greatest value are worth writing down."""

_LEVEL: Final = 1
"""Of zstd. Level 3 takes a fifth longer and, on messages, saves nothing."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a segment: ``name`` is the new file's."""

    name: str
    rows: int
    octets_before: int
    octets: int
    seconds: float


def compactable(folder: Path) -> list[Path]:
    """The segments to compact, the oldest first: all Arrow ones but the newest, which may still be written."""
    found = choose_segments([path.name for path in folder.iterdir()])
    return [folder / segment.name for segment in found[:-1] if segment.format == ARROW]


def compact(source: Path, *, told: Callable[[int], None] | None = None) -> Compacted:
    """Rewrite one closed segment as Parquet, and put that in its place. ``told`` is called with the rows so far.

    ``CorruptBatch`` if the segment is damaged: it is left unchanged.
    """
    begun = time.monotonic()
    segment = parse_name(source.name)
    if segment is None or segment.format != ARROW:
        raise JournalError(f"{source}: this is not a segment to compact, such as {segment_name(0, ARROW)}")
    target = source.with_name(segment_name(segment.first_offset, PARQUET))
    part = target.with_name(target.name + PART_SUFFIX)
    rows, end_offset = _check(source, segment.first_offset)
    try:
        _write(source, part, told)
        _compare(source, part, rows, end_offset)
        octets_before, octets = source.stat().st_size, part.stat().st_size
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(source.parent)
    remove_original(target)
    return Compacted(target.name, rows, octets_before, octets, time.monotonic() - begun)


def remove_original(compacted: Path) -> bool:
    """Remove what a compacted segment was made of. Returns whether there was anything left of it."""
    first_offset = int(compacted.stem)
    found = False
    for suffix in (ARROW, INDEX):
        with contextlib.suppress(FileNotFoundError):
            compacted.with_name(segment_name(first_offset, suffix)).unlink()
            found = True
    if found:
        sync_folder(compacted.parent)
    return found


def _check(source: Path, first_offset: int) -> tuple[int, int]:
    """Rows and end of a segment of which every batch is right, each by its CRC."""
    with source.open("rb") as file, _mapped(file, source.name) as octets:
        try:
            with memoryview(octets) as view:
                head = find_head(view)
        except BadMessage as error:
            raise CorruptBatch(source.name, 0, error.reason) from error
        try:
            entries = read_index(source.with_suffix(f".{INDEX}").read_bytes()) or []
        except FileNotFoundError:
            entries = []
        found = survey(octets, len(head), entries, first_offset=first_offset)
    if found.holes:
        raise CorruptBatch(source.name, found.holes[0].position, found.holes[0].reason)
    end_offset = max((entry.end_offset for entry in entries), default=0)
    size = source.stat().st_size
    for lost in lost_batches(source.name, first_offset, found.batches, end_offset, size=size, known=entries):
        raise lost
    if head.damage:
        write_head(source, head)
    if not found.batches:
        return 0, 0
    return sum(batch.rows for batch in found.batches), found.batches[-1].end_offset


def _mapped(file: IO[bytes], name: str) -> mmap.mmap:
    if not os.fstat(file.fileno()).st_size:
        raise CorruptBatch(name, 0, "the file is empty")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _compare(source: Path, part: Path, rows: int, end_offset: int) -> None:
    with pq.ParquetFile(part) as file:
        groups = row_groups(file.metadata)
        end = groups[-1].end_offset if groups else 0
        if file.metadata.num_rows != rows or end != end_offset:
            raise JournalError(f"{part}: not all rows of {source.name} came through; it is left as it was")


def _write(source: Path, part: Path, told: Callable[[int], None] | None) -> None:
    options: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": _LEVEL,
        "use_dictionary": _REPEATED,
        "column_encoding": _COUNTING,
        "write_statistics": _COMPARED,
        "write_page_index": True,
        "write_page_checksum": True,
        # Not Arrow's own schema: every reader should see the text instead of codes.
        "store_schema": False,
    }
    rows = 0
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as sink, pq.ParquetWriter(sink, SCHEMA, **options) as writer:
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in SCHEMA.metadata.items()})
        for group in _groups(source):
            writer.write_table(group, row_group_size=group.num_rows)
            # In small parts: a file system may make others who sync wait for all that is due.
            sink.flush()
            os.fdatasync(sink.fileno())
            rows += group.num_rows
            if told is not None:
                told(rows)
        writer.close()
        sink.flush()
        os.fsync(sink.fileno())


def _groups(source: Path) -> Iterator[pa.Table]:
    """The segment's rows, as the tables that become row groups."""
    held: list[pa.RecordBatch] = []
    rows = octets = 0
    for chunk in _chunks(source):
        held.append(chunk)
        rows += chunk.num_rows
        octets += chunk.nbytes
        if rows >= GROUP_ROWS or octets >= GROUP_OCTETS:
            yield pa.Table.from_batches(held)
            held, rows, octets = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _chunks(source: Path) -> Iterator[pa.RecordBatch]:
    """The segment's rows, in batches of a size that is worth its handling."""
    held: list[pa.RecordBatch] = []
    rows = 0
    with pa.memory_map(str(source)) as octets:
        for batch in ipc.open_stream(octets, options=ipc.IpcReadOptions(use_threads=False)):
            held.append(batch)
            rows += batch.num_rows
            if rows >= CHUNK_ROWS:
                yield held[0] if len(held) == 1 else concat_batches(held)
                held, rows = [], 0
        if held:
            yield concat_batches(held)


def main() -> int:
    """Compact the segment named by the first argument, and print what became of it as JSON."""
    begin_work()
    try:
        print(json.dumps(asdict(compact(Path(sys.argv[1])))))  # noqa: T201 - this is the answer
    except (JournalError, OSError, pa.ArrowException) as error:
        print(error, file=sys.stderr)  # noqa: T201 - so is this
        return DAMAGED if isinstance(error, CorruptBatch) else 1
    return 0


def begin_work() -> None:
    """Run as a helper process of a hub, and end with it.

    It runs at idle priority, unless ``HURRY`` is the last argument.
    """
    if sys.argv[-1] == HURRY:
        sys.argv.pop()
        os.nice(NICE_IN_A_HURRY)
    else:
        _be_modest()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _be_modest() -> None:
    """Run at idle priority."""
    os.nice(NICE)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_parent() -> None:
    """The parent holds the other end of standard input: when it is closed, the parent has ended."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
