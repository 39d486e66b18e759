"""The journal over HTTP, for readers on other machines: ``/journal/`` lists it, ``/journal/<file>`` gives its octets.

Only what is safe is shown: of the file that is still being written, what its index knows. What is in a journal is what
passed the hub, so where clients log in a reader does too, and has to be allowed to subscribe to everything.
"""

import asyncio
import io
import json
import os
import re
import threading
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from polywire.hub.channels import REST
from polywire.journal.index import ENTRY_OCTETS, MAGIC, unpack_entries
from polywire.journal.reader import Journal, Segment, open_journal
from polywire.journal.segments import ARROW, INDEX, choose_segments
from polywire.server.config.schema import PROTOCOLS
from polywire.server.gate import Gate
from polywire.server.http_door import HttpDoor, words
from polywire.server.http_resources import Reply, Request

PART: Final = 128 * 1024
_FILE: Final = re.compile(r"[0-9]{20}\.(?:arrow|index|parquet)", re.ASCII)
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


class JournalPages:
    """The tree below ``/journal/``. ``local``: the listener can be reached from this machine only."""

    def __init__(self, folder: Path, gate: Gate, *, local: bool) -> None:
        self._folder = folder
        self._gate = gate
        self._door = HttpDoor(gate, local=local)
        self._list = JournalList(folder)

    async def __call__(self, request: Request) -> Reply:
        """The list, or a file, if whoever asks may have it."""
        refusal = await self._refusal(request)
        if refusal is not None:
            return refusal
        if not request.path:
            listed = await asyncio.to_thread(self._list.make)
            return Reply(200, "application/json", json.dumps(listed).encode() + b"\n")
        if not _FILE.fullmatch(request.path):
            return words(404, "no such file; /journal/ lists those there are")
        try:
            file, size = await asyncio.to_thread(_open, self._folder / request.path)
        except FileNotFoundError:
            return words(404, "no such file (any more); /journal/ lists those there are")
        return _ranged(file, size, request.headers.get("range"))

    async def _refusal(self, request: Request) -> Reply | None:
        """Why not, or None."""
        who = await self._door.who(request)
        if isinstance(who, Reply):
            return who
        # The journal has what came by every protocol, so what is forbidden on one of them is in it too.
        if not all(self._gate.rules.grants(who, protocol).may_subscribe(REST) for protocol in PROTOCOLS):
            return words(403, "only who may subscribe to ** on every protocol may read the journal")
        return None


class JournalList:
    """The list of a journal. Readers that follow it ask again and again, so what does not change is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._journal: Journal | None = None

    def make(self) -> dict[str, Any]:
        """The segments with their offsets, and the files with what may be read of them."""
        with self._guard:
            if self._journal is None:
                self._journal = open_journal(self._folder)
            else:
                self._journal.refresh()
            segments = self._journal.segments()
        return {
            "first_offset": segments[0].first_offset if segments else 0,
            "end_offset": segments[-1].end_offset if segments else 0,
            "segments": [_described(segment) for segment in segments],
            "files": self._files(),
        }

    def _files(self) -> list[dict[str, Any]]:
        names = sorted(path.name for path in self._folder.iterdir())
        newest = _newest(names)
        files = []
        for name in names:
            if _FILE.fullmatch(name):
                try:
                    files.append({"name": name, "octets": safe_size(self._folder / name, newest)})
                except FileNotFoundError:
                    continue  # compacted or deleted a moment ago
        return files


def _described(segment: Segment) -> dict[str, Any]:
    return {
        "name": segment.name,
        "format": segment.format,
        "first_offset": segment.first_offset,
        "end_offset": segment.end_offset,
        "rows": segment.rows,
        "octets": segment.octets,
        "min_time": _iso(segment.min_time),
        "max_time": _iso(segment.max_time),
        "closed": segment.closed,
    }


def safe_size(path: Path, newest: str) -> int:
    """The octets of a file of the journal that no crash can take back. ``newest`` is the segment being written."""
    size = path.stat().st_size
    if path.name != newest or path.suffix != f".{ARROW}":
        return size
    try:
        with path.with_suffix(f".{INDEX}").open("rb") as file:
            entries = max(0, file.seek(0, os.SEEK_END) - len(MAGIC)) // ENTRY_OCTETS
            file.seek(len(MAGIC) + max(0, entries - 1) * ENTRY_OCTETS)
            last = unpack_entries(file.read(ENTRY_OCTETS))
    except FileNotFoundError:
        return 0
    return min(size, last[-1].end) if last else 0


def _newest(names: Iterable[str]) -> str:
    segments = choose_segments(list(names))
    return segments[-1].name if segments else ""


def _open(path: Path) -> tuple[io.FileIO, int]:
    file = io.FileIO(path)
    try:
        return file, safe_size(path, _newest(each.name for each in path.parent.iterdir()))
    except FileNotFoundError:
        # Compacted between the two: what was opened is closed for good, so all of it counts.
        return file, os.fstat(file.fileno()).st_size


def _ranged(file: io.FileIO, size: int, wanted: str | None) -> Reply:
    start, end, status = 0, size, 200
    headers: tuple[tuple[str, str], ...] = (("accept-ranges", "bytes"), ("cache-control", "no-store"))
    found = _RANGE.fullmatch(wanted.strip()) if wanted is not None else None
    if found is not None and (found[1] or found[2]):
        first, last = found[1], found[2]
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= end:
            file.close()
            return words(416, f"of this file there are {size} octets", ("content-range", f"bytes */{size}"))
        status = 206
        headers += (("content-range", f"bytes {start}-{end - 1}/{size}"),)
    parts = FileParts(file, start, end)
    return Reply(status, "application/octet-stream", headers=headers, parts=parts, length=end - start)


class FileParts:
    """The octets of an open file from ``start`` to ``end``, read in threads so that a slow disk holds up nobody."""

    def __init__(self, file: io.FileIO, start: int, end: int) -> None:
        self._file = file
        self._position = start
        self._end = end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        left = self._end - self._position
        if left <= 0:
            raise StopAsyncIteration
        part = await asyncio.to_thread(os.pread, self._file.fileno(), min(PART, left), self._position)
        if not part:
            raise OSError(f"a file of the journal ends {left} octets early")
        self._position += len(part)
        return part

    async def aclose(self) -> None:
        """Close the file."""
        self._file.close()


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
