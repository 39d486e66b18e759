"""Checking a journal: every byte of every segment is read, and nothing is believed that a CRC does not prove.

Nothing is changed. What a writer is just adding is not looked at.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from polywire.journal.damage import Survey, lost_batches, survey
from polywire.journal.errors import CorruptBatch, NoJournal
from polywire.journal.format import END_OF_STREAM
from polywire.journal.segments import decode, load_head, load_index, lost_rows, row_groups
from polywire.journal.storage import (
    ARROW,
    INDEX,
    PARQUET,
    SegmentFile,
    Storage,
    choose_segments,
    find_storage,
    offset_of,
)

DAMAGE: Final = "damage"
NOTE: Final = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. ``damage``: rows are lost or wrong; ``note``: nothing is."""

    severity: str
    position: int
    reason: str
    first_offset: int | None = None
    rows: int | None = None

    def __str__(self) -> str:
        lost = ""
        if self.first_offset is not None and self.severity == DAMAGE:
            lost = f"; lost from offset {self.first_offset}" + (f": {self.rows} rows" if self.rows else "")
        return f"{self.severity} at {self.position}: {self.reason}{lost}"


@dataclass(slots=True)
class Verified:
    """What was found in one segment; ``batches`` are the row groups of a compacted one."""

    name: str
    first_offset: int
    end_offset: int
    octets: int = 0
    batches: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether all rows that were ever safe in it are still there."""
        return all(finding.severity != DAMAGE for finding in self.findings)

    @property
    def lost_rows(self) -> int:
        """How many rows are lost, as far as that is known."""
        return sum(finding.rows or 0 for finding in self.findings if finding.severity == DAMAGE)


def verify(place: str | Path, *, filesystem: fs.FileSystem | None = None) -> Iterator[Verified]:
    """Check one segment after the other; what is found comes as each is done."""
    return verify_storage(find_storage(place, filesystem))


def verify_storage(storage: Storage) -> Iterator[Verified]:
    """The same for a place that is known already."""
    sizes = storage.sizes()
    files = choose_segments(list(sizes))
    missing = list(_missing(storage, list(sizes), files[-1].first_offset if files else -1))
    if not files and not missing:
        raise NoJournal(str(storage))
    end_offset = files[0].first_offset if files else 0
    for number, file in enumerate(files):
        behind = files[number + 1].first_offset if number + 1 < len(files) else None
        try:
            if file.format == PARQUET:
                found = _verify_parquet(storage, file, behind)
            else:
                found = _verify_arrow(storage, file, sizes[file.name], behind)
        except FileNotFoundError:
            continue  # compacted or removed meanwhile
        if file.first_offset < end_offset:
            found.findings.insert(
                0, Finding(DAMAGE, 0, f"it starts at offset {file.first_offset}, before the previous one ends")
            )
        end_offset = max(found.end_offset, end_offset)
        yield found
    yield from missing


def _missing(storage: Storage, names: list[str], newest: int) -> Iterator[Verified]:
    """Segments after the newest one of which nothing is left but an index."""
    for first_offset in sorted(offset for name in names if (offset := offset_of(name, INDEX)) is not None):
        file = SegmentFile(first_offset, ARROW)
        entries = load_index(storage, file.first_offset) if first_offset > newest else None
        if entries:
            end_offset = entries[-1].end_offset
            reason = "the file is missing; its index lists these rows"
            finding = Finding(DAMAGE, 0, reason, first_offset, end_offset - first_offset)
            yield Verified(file.name, first_offset, end_offset, findings=[finding])


def _verify_arrow(storage: Storage, file: SegmentFile, size: int, behind: int | None) -> Verified:
    known = load_index(storage, file.first_offset)
    live = behind is None and storage.being_written()
    if live:
        size = known[-1].end if known else 0
    found = Verified(file.name, file.first_offset, file.first_offset, octets=size)
    if live and not known:
        return found
    with storage.open(file.name) as opened:
        if behind is not None:  # it may have grown since it was listed, but does no more
            size = found.octets = opened.size()
        octets = opened.read(size)
        try:
            head = load_head(opened, file.name)
        except CorruptBatch as error:
            seen = survey(octets, 0, known or (), first_offset=file.first_offset)
            ends = [batch.end_offset for batch in seen.batches] + [entry.end_offset for entry in known or []]
            proven = max(ends, default=file.first_offset)
            rows = (proven if behind is None else behind) - file.first_offset
            if rows or behind is not None:
                reason = error.reason if size else "the file is empty"
                found.findings.append(Finding(DAMAGE, 0, reason, file.first_offset, rows))
                found.end_offset = file.first_offset + rows
            else:
                found.findings.append(Finding(NOTE, 0, f"a crash left {size} bytes: {error.reason}"))
            return found
    if head.damage:
        found.findings.append(Finding(NOTE, 0, f"{head.damage}; polywire can still read it"))
    if known is None:
        found.findings.append(Finding(NOTE, 0, "its index is missing or damaged"))
    seen = survey(octets, len(head), known or (), first_offset=file.first_offset)
    found.batches = len(seen.batches)
    found.rows = sum(batch.rows for batch in seen.batches)
    if seen.batches:
        found.end_offset = seen.batches[-1].end_offset
    end_offset = max([found.end_offset, *(entry.end_offset for entry in known or [])]) if behind is None else behind
    lost = list(
        _lost(
            lost_batches(
                file.name,
                file.first_offset,
                seen.batches,
                end_offset,
                size=size,
                holes=seen.holes,
                known=known or [],
            )
        )
    )
    found.findings.extend([*lost, *_notes(seen, lost, size, behind)])
    found.end_offset = max(found.end_offset, end_offset)
    indexed = {entry.position for entry in known or []}
    missing = sum(batch.position not in indexed for batch in seen.batches)
    if missing and known is not None:
        found.findings.append(Finding(NOTE, 0, f"its index does not list {missing} of {found.batches} batches"))
    for batch in seen.batches:
        table = decode(head, octets[batch.position : batch.end], ["offset"])
        offsets = table.column(0)
        if table.num_rows != batch.rows or offsets[0].as_py() != batch.first_offset:
            reason = "its rows do not match its header"
            found.findings.append(Finding(DAMAGE, batch.position, reason, batch.first_offset, batch.rows))
    return found


def _lost(lost: Iterable[CorruptBatch]) -> Iterator[Finding]:
    for each in lost:
        yield Finding(DAMAGE, each.position, each.reason, each.first_offset, each.rows)


def _notes(seen: Survey, lost: list[Finding], size: int, behind: int | None) -> Iterator[Finding]:
    """What is not as it should be without costing any rows."""
    for hole in seen.holes:
        if any(finding.position == hole.position for finding in lost):
            continue
        if behind is None:
            yield Finding(NOTE, hole.position, f"a crash left {hole.end - hole.position} bytes: {hole.reason}")
        elif hole.end >= size:
            yield Finding(NOTE, hole.position, "its end marker is damaged")
        else:
            yield Finding(NOTE, hole.position, f"{hole.end - hole.position} bytes contain no batch: {hole.reason}")
    if behind is not None and not seen.ended and not seen.holes:
        yield Finding(NOTE, size, f"its end marker of {len(END_OF_STREAM)} bytes is missing")


def _verify_parquet(storage: Storage, file: SegmentFile, behind: int | None) -> Verified:
    found = Verified(file.name, file.first_offset, file.first_offset)
    with storage.open(file.name) as opened:
        found.octets = opened.size()
        try:
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            groups = row_groups(parquet.metadata)
        except (pa.ArrowException, OSError) as error:
            rows = None if behind is None else behind - file.first_offset
            found.findings.append(Finding(DAMAGE, 0, f"it can't be opened: {error}", file.first_offset, rows))
            return found
        for group in groups:
            found.batches += 1
            found.rows += group.rows
            try:
                for _ in parquet.iter_batches(row_groups=[group.number]):
                    pass
            except (pa.ArrowException, OSError) as error:
                found.findings.append(Finding(DAMAGE, group.position, str(error), group.first_offset, group.rows))
            if group.first_offset < found.end_offset:
                reason = "its rows repeat offsets of earlier rows"
                found.findings.append(Finding(DAMAGE, group.position, reason, group.first_offset, group.rows))
            if group.rows != group.end_offset - group.first_offset:
                reason = f"it has {group.rows} rows for {group.end_offset - group.first_offset} offsets"
                found.findings.append(Finding(DAMAGE, group.position, reason, group.first_offset))
            found.end_offset = group.end_offset
    found.findings.extend(_lost(lost_rows(file.name, file.first_offset, groups, behind)))
    return found
