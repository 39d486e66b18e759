"""What a writer does with the newest segment before it writes: check every batch, and cut off an invalid tail.

A crash leaves at most one batch that is not whole, at the very end, and its rows were never acknowledged. It is saved
in another file and cut off. Damage in the middle is left in place, skipped by readers, and reported.

Lost rows are different: the index lists them, or another file proves that their offsets were used. Then nothing is
repaired. The damaged segment is left unchanged and a new one begins after the last used offset, so that every reader
sees what is missing, and no offset is used twice.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from polywire.journal.damage import Hole, Survey, lost_batches, survey
from polywire.journal.errors import JournalLoss
from polywire.journal.format import BadMessage, Entry, Head, find_head, index_octets, read_index, write_head
from polywire.journal.readers import NamedReaders
from polywire.journal.segments import entries_of, parquet_end_offset
from polywire.journal.storage import (
    ARROW,
    INDEX,
    PARQUET,
    STATE,
    SegmentFile,
    choose_segments,
    offset_of,
    segment_name,
    sync_folder,
)

_COPY_OCTETS: Final = 1 << 20

MOST_ROWS: Final = 1 << 32
"""More rows than any segment has: offsets to skip if it is unknown how many were used."""

LARGEST_OFFSET: Final = 1 << 62
"""An offset beyond this in a reader's file is ignored as a mistake."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost rows that were on disk: those from ``first_offset`` up to ``end_offset``, of the file ``segment``."""

    segment: str
    first_offset: int
    end_offset: int
    reason: str

    @property
    def rows(self) -> int:
        """How many rows are lost."""
        return self.end_offset - self.first_offset

    def __str__(self) -> str:
        which = f"{self.rows} rows, offsets {self.first_offset} to {self.end_offset - 1},"
        return f"{which} were safe in {self.segment} and are lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found at start.

    ``octets`` were cut off ``segment`` from ``position`` on and are kept in ``kept``; ``rows`` is how many rows they
    contained, if known. ``lost`` are rows that were on disk and are lost, which happens only when a disk loses
    confirmed data, or files are removed. ``damage`` is what can't be read before that.
    """

    segment: str = ""
    position: int = 0
    octets: int = 0
    rows: int | None = None
    kept: Path | None = None
    reason: str = ""
    damage: tuple[Hole, ...] = ()
    index_rebuilt: bool = False
    lost: tuple[Loss, ...] = ()

    @property
    def lost_rows(self) -> int:
        """How many rows that were on disk are lost."""
        return sum(loss.rows for loss in self.lost)

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.octets or self.lost or self.damage)

    def __str__(self) -> str:
        if self.clean:
            return f"{self.segment}: nothing was cut off" if self.segment else "the journal is new"
        said = []
        if self.octets:
            rows = "" if self.rows is None else f" ({self.rows} rows)"
            said.append(f"{self.octets} bytes{rows} cut off at {self.position}, {self.reason}; kept in {self.kept}")
        said += [f"damaged from {hole.position} to {hole.end}: {hole.reason}" for hole in self.damage]
        told = [f"{self.segment}: " + "; ".join(said)] if said else []
        return "; ".join([*told, *map(str, self.lost)])


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where writing continues: ``next_offset``, and the segment that can be continued, if one can."""

    next_offset: int = 0
    first_offset: int | None = None
    """Of the newest segment; None where there is none that could be continued or ended."""
    head: Head | None = None
    size: int = 0
    entries: list[Entry] = field(default_factory=list)
    ended: bool = False
    report: RecoveryReport = RecoveryReport()


def recover(folder: Path, *, refuse_loss: bool = False) -> Recovered:
    """Put the newest segment in order.

    ``refuse_loss``: where rows are lost that were safe, change nothing and raise ``JournalLoss``.
    """
    names = [path.name for path in folder.iterdir()]
    segments = choose_segments(names)
    newest = segments[-1] if segments else None
    orphan = _orphan_index(folder, names, -1 if newest is None else newest.first_offset)
    given, proof = _offsets_given(folder, names)
    if orphan is not None:
        recovered = _missing_file(orphan)
    elif newest is None:
        recovered = Recovered()
    elif newest.format == PARQUET:
        recovered = _after_compacted(folder, newest, given)
    else:
        return _Tail(folder, newest.first_offset).recover(given, proof, refuse_loss=refuse_loss)
    recovered = _with_proof(recovered, given, proof, "a file that is missing")
    if refuse_loss and recovered.report.lost:
        raise JournalLoss(str(folder), str(recovered.report))
    if orphan is not None:
        # An empty file in its place: together with the index it shows every reader what is missing.
        (folder / orphan[0].name).touch(mode=0o640)
        sync_folder(folder)
    return recovered


def _orphan_index(folder: Path, names: list[str], newest: int) -> tuple[SegmentFile, list[Entry]] | None:
    """The newest segment, where nothing is left of it but an index that lists batches."""
    found = [SegmentFile(offset, ARROW) for name in names if (offset := offset_of(name, INDEX)) is not None]
    for segment in sorted(found, reverse=True):
        if segment.first_offset <= newest:
            return None
        entries = read_index((folder / segment_name(segment.first_offset, INDEX)).read_bytes())
        if entries:
            return segment, entries
    return None


def _missing_file(orphan: tuple[SegmentFile, list[Entry]]) -> Recovered:
    segment, entries = orphan
    end = entries[-1].end_offset
    loss = Loss(segment.name, segment.first_offset, end, "the file is missing; its index lists these rows")
    return Recovered(end, report=RecoveryReport(segment.name, lost=(loss,)))


def _after_compacted(folder: Path, newest: SegmentFile, given: int) -> Recovered:
    try:
        return Recovered(max(parquet_end_offset(folder / newest.name), newest.first_offset))
    except (pa.ArrowException, OSError) as error:
        end = max(given, newest.first_offset + MOST_ROWS)
        loss = Loss(newest.name, newest.first_offset, end, f"it can't be opened: {error}")
        return Recovered(end, report=RecoveryReport(newest.name, lost=(loss,)))


def _offsets_given(folder: Path, names: list[str]) -> tuple[int, str]:
    """The least offset that no file besides the segments proves to have been given, and the file that proves it."""
    proofs = [
        (offset, name) for name in names for kind in (STATE, INDEX) if (offset := offset_of(name, kind)) is not None
    ]
    readers = [reader for reader in NamedReaders(folder) if reader.offset <= LARGEST_OFFSET]
    proofs += [(reader.offset, f"the reader {reader.name}") for reader in readers]
    return max(proofs, default=(0, ""))


def _with_proof(recovered: Recovered, given: int, proof: str, segment: str) -> Recovered:
    """Continue after the last used offset, and report what is missing before it."""
    if given <= recovered.next_offset:
        return recovered
    reason = f"{proof} proves that offsets up to {given - 1} were used, but no file has these rows"
    loss = Loss(segment, recovered.next_offset, given, reason)
    report = replace(recovered.report, lost=(*recovered.report.lost, loss))
    return replace(recovered, next_offset=given, report=report)


class _Tail:
    """The newest segment, under repair."""

    def __init__(self, folder: Path, first_offset: int) -> None:
        self._folder: Final = folder
        self._first_offset: Final = first_offset
        self._path: Final = folder / segment_name(first_offset, ARROW)
        self._index_path: Final = folder / segment_name(first_offset, INDEX)

    def recover(self, given: int, proof: str, *, refuse_loss: bool) -> Recovered:
        size = self._path.stat().st_size
        known = self._read_index()
        with _mapped(self._path) as octets:
            head, reason = _head_of(octets)
            start = len(head) if head is not None else 0
            found = survey(octets, start, known or (), first_offset=self._first_offset)
            entries = entries_of(found, known or [], head, octets) if head is not None else []
        recovered = self._look(size, head, reason, found, entries, known or [])
        damaged = bool(recovered.report.lost)
        recovered = _with_proof(recovered, given, proof, f"a file after {self._path.name}")
        if refuse_loss and recovered.report.lost:
            raise JournalLoss(str(self._folder), str(recovered.report))
        return recovered if damaged else self._repair(recovered, size, found, known)

    def _look(
        self, size: int, head: Head | None, reason: str, found: Survey, entries: list[Entry], known: list[Entry]
    ) -> Recovered:
        """What is there and what is not; nothing is changed."""
        end = found.batches[-1].end if found.batches else 0 if head is None else len(head)
        end_offset = max([self._first_offset, *(batch.end_offset for batch in found.batches[-1:])])
        damage = [hole for hole in found.holes if hole.position < end]
        if head is None:
            damage = [Hole(0, found.batches[0].position, reason), *damage] if found.batches else []
        else:
            damage = [*_mended(head), *damage]
        proven = max([end_offset, *(entry.end_offset for entry in known)])
        lost = [
            Loss(self._path.name, batch.first_offset or 0, proven, batch.reason)
            for batch in lost_batches(
                self._path.name, end_offset, [], proven, size=size, holes=found.holes, known=known
            )
        ]
        report = RecoveryReport(self._path.name, end, damage=tuple(damage), lost=tuple(lost), reason=reason)
        if head is None or lost:
            return Recovered(proven, report=report)
        return Recovered(proven, self._first_offset, head, end, entries, found.ended, report)

    def _repair(self, recovered: Recovered, size: int, found: Survey, known: list[Entry] | None) -> Recovered:
        """Cut off what a crash left, and write down what the head and the index should say."""
        report, head = recovered.report, recovered.head
        if head is None:
            return recovered if found.batches else self._begin_anew(recovered, size)
        if head.damage:
            write_head(self._path, head)
        tail = [hole for hole in found.holes if hole.position >= recovered.size]
        rebuilt = known != recovered.entries
        kept = self._cut(recovered.size) if tail else None
        if rebuilt:
            self._write_index(recovered.entries)
        report = replace(
            report,
            octets=size - recovered.size if tail else 0,
            rows=_rows(tail),
            kept=kept,
            reason=tail[0].reason if tail else "",
            index_rebuilt=rebuilt,
        )
        return replace(recovered, ended=recovered.ended and not tail, report=report)

    def _begin_anew(self, recovered: Recovered, size: int) -> Recovered:
        """The segment was made, and nothing got as far as being in it."""
        kept = self._cut(0) if size else None
        return replace(recovered, report=replace(recovered.report, octets=size, kept=kept))

    def _read_index(self) -> list[Entry] | None:
        try:
            return read_index(self._index_path.read_bytes())
        except FileNotFoundError:
            return None

    def _write_index(self, entries: list[Entry]) -> None:
        made = self._index_path.with_name(f".{self._index_path.name}.new")
        made.write_bytes(index_octets(entries))
        made.chmod(0o640)
        made.replace(self._index_path)

    def _cut(self, position: int) -> Path:
        """Save the tail to disk before it is cut off."""
        kept = _unused(self._path.with_suffix(f".torn-{position}"))
        with self._path.open("r+b") as segment, kept.open("xb") as aside:
            os.fchmod(aside.fileno(), 0o640)
            segment.seek(position)
            while piece := segment.read(_COPY_OCTETS):
                aside.write(piece)
            aside.flush()
            os.fsync(aside.fileno())
            sync_folder(self._folder)
            segment.truncate(position)
            os.fsync(segment.fileno())
        return kept


def _head_of(octets: mmap.mmap | bytes) -> tuple[Head | None, str]:
    with memoryview(octets) as data:
        try:
            return find_head(data), ""
        except BadMessage as error:
            return None, error.reason


def _mended(head: Head) -> list[Hole]:
    return [Hole(0, len(head), f"{head.damage}; the head was rewritten")] if head.damage else []


def _rows(holes: list[Hole]) -> int | None:
    return sum(hole.rows or 0 for hole in holes) if any(hole.rows is not None for hole in holes) else None


def _unused(path: Path) -> Path:
    """This path, or where an earlier tail is kept under it, one beside it."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped
