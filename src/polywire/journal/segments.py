"""The files of a journal's folder and their names."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ARROW: Final = "arrow"
PARQUET: Final = "parquet"
INDEX: Final = "index"
STATE: Final = "state"
LOCK_NAME: Final = "lock"

_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, order=True)
class SegmentFile:
    """A file that holds rows: named by the offset of its first one, Arrow or, once compacted, Parquet."""

    first_offset: int
    format: str

    @property
    def name(self) -> str:
        """The file's name."""
        return segment_name(self.first_offset, self.format)


def segment_name(first_offset: int, suffix: str) -> str:
    """The name of a segment's file, or of one beside it."""
    return f"{first_offset:0{_DIGITS}d}.{suffix}"


def parse_name(name: str) -> SegmentFile | None:
    """The segment that a file of this name is, or None where it is something else."""
    stem, _, suffix = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()) or suffix not in {ARROW, PARQUET}:
        return None
    return SegmentFile(int(stem), suffix)


def offset_of(name: str, suffix: str) -> int | None:
    """The offset that a file with this suffix is named by; None for any other file."""
    stem, _, found = name.partition(".")
    segment = parse_name(f"{stem}.{ARROW}") if found == suffix else None
    return None if segment is None else segment.first_offset


def choose_segments(names: list[str]) -> list[SegmentFile]:
    """The segments among these files, in order. One that is there in both forms counts as Parquet.

    A compacted segment is whole before it gets its name, and the other form goes after that, so at every moment each
    segment is there once.
    """
    found: dict[int, SegmentFile] = {}
    for name in names:
        segment = parse_name(name)
        if segment is not None and (segment.format == PARQUET or segment.first_offset not in found):
            found[segment.first_offset] = segment
    return sorted(found.values())


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
