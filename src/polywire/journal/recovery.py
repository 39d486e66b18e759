"""What a writer does with the newest segment before it writes: check every batch, and cut off a tail that is not right.

A crash leaves at most one batch that is not whole, at the very end, and nobody was told that it is safe. It is kept
aside in a file and cut off. Damage in the middle stays where it is, for readers to step over, and is reported.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polywire.journal.entries import entries_of
from polywire.journal.framing import BadMessage
from polywire.journal.head import Head
from polywire.journal.index import Entry, index_octets, read_index
from polywire.journal.lost_head import find_head, write_head
from polywire.journal.parquet import parquet_end_offset
from polywire.journal.segments import ARROW, INDEX, PARQUET, choose_segments, segment_name, sync_folder
from polywire.journal.survey import Hole, Survey, survey

_COPY_OCTETS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found at start.

    ``octets`` were cut off ``segment`` from ``position`` on and are kept in ``kept``; ``rows`` is how many rows they
    spoke of, where that can be told, and ``safe_rows`` how many of them readers had already been shown, which is more
    than 0 only when a disk loses what it said it had. ``damage`` is what can't be read before that.
    """

    segment: str = ""
    position: int = 0
    octets: int = 0
    rows: int | None = None
    safe_rows: int = 0
    kept: Path | None = None
    reason: str = ""
    damage: tuple[Hole, ...] = ()
    index_rebuilt: bool = False

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.octets or self.safe_rows or self.damage)

    def __str__(self) -> str:
        if self.clean:
            return f"{self.segment}: nothing was cut off" if self.segment else "the journal is new"
        said = []
        if self.octets:
            rows = "" if self.rows is None else f" ({self.rows} rows)"
            said.append(f"{self.octets} octets{rows} cut off at {self.position}, {self.reason}; kept in {self.kept}")
        if self.safe_rows:
            said.append(f"{self.safe_rows} rows that were safe are lost")
        for hole in self.damage:
            said.append(f"damaged from {hole.position} to {hole.end}: {hole.reason}")
        return f"{self.segment}: " + "; ".join(said)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where writing goes on: ``next_offset``, and the segment that can be continued, if one can."""

    next_offset: int = 0
    first_offset: int | None = None
    """Of the newest segment; None where there is none that could be continued or ended."""
    head: Head | None = None
    size: int = 0
    entries: list[Entry] = field(default_factory=list)
    ended: bool = False
    report: RecoveryReport = RecoveryReport()


def recover(folder: Path) -> Recovered:
    """Put the newest segment in order."""
    segments = choose_segments([path.name for path in folder.iterdir()])
    if not segments:
        return Recovered()
    newest = segments[-1]
    if newest.format == PARQUET:
        return Recovered(max(parquet_end_offset(folder / newest.name), newest.first_offset))
    return _Tail(folder, newest.first_offset).recover()


class _Tail:
    """The newest segment, under repair."""

    def __init__(self, folder: Path, first_offset: int) -> None:
        self._folder: Final = folder
        self._first_offset: Final = first_offset
        self._path: Final = folder / segment_name(first_offset, ARROW)
        self._index_path: Final = folder / segment_name(first_offset, INDEX)

    def recover(self) -> Recovered:
        size = self._path.stat().st_size
        known = self._read_index()
        with _mapped(self._path) as octets:
            head, reason = _head_of(octets)
            start = len(head) if head is not None else 0
            found = survey(octets, start, known or (), first_offset=self._first_offset)
            if head is None:
                return self._leave(reason, found) if found.batches else self._begin_anew(size, reason)
            entries = entries_of(found, known or [], head, octets)
        if head.damage:
            write_head(self._path, head)
        end = found.batches[-1].end if found.batches else start
        next_offset = max([self._first_offset, *(entry.end_offset for entry in [*entries, *(known or [])])])
        tail = [hole for hole in found.holes if hole.position >= end]
        kept = self._cut(end) if tail else None
        rebuilt = known != entries
        if rebuilt:
            self._write_index(entries)
        lost = [entry for entry in known or [] if entry.position >= end]
        report = RecoveryReport(
            segment=self._path.name,
            position=end,
            octets=size - end if tail else 0,
            rows=_rows(tail),
            safe_rows=sum(entry.rows for entry in lost),
            kept=kept,
            reason=tail[0].reason if tail else "",
            damage=(*_mended(head), *(hole for hole in found.holes if hole.position < end)),
            index_rebuilt=rebuilt,
        )
        return Recovered(next_offset, self._first_offset, head, end, entries, found.ended and not tail, report)

    def _begin_anew(self, size: int, reason: str) -> Recovered:
        """The segment was made, and nothing got as far as being in it."""
        kept = self._cut(0) if size else None
        report = RecoveryReport(self._path.name, 0, size, kept=kept, reason=reason)
        return Recovered(self._first_offset, report=report)

    def _leave(self, reason: str, found: Survey) -> Recovered:
        """Batches are there and right, but what is needed to decode them is not: nothing is thrown away."""
        holes = (Hole(0, found.batches[0].position, reason), *found.holes)
        return Recovered(found.batches[-1].end_offset, report=RecoveryReport(self._path.name, damage=holes))

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
        """Keep the tail aside, safely, before it is cut off."""
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
    return [Hole(0, len(head), f"{head.damage}; the head was written anew")] if head.damage else []


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
