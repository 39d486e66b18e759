"""The journal over HTTP, for readers on other machines: ``/journal/`` lists it, ``/journal/<file>`` gives its bytes.

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
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from polywire.hub.channels import REST
from polywire.journal.format import ENTRY_OCTETS, MAGIC, unpack_entries
from polywire.journal.reader import Journal, open_journal
from polywire.journal.storage import ARROW, INDEX, choose_segments
from polywire.server.config.schema import LISTENED
from polywire.server.gate import Gate
from polywire.server.http import HttpServer, Refused

PART: Final = 128 * 1024
WHOLE: Final = 200
PARTIAL: Final = 206
_FILE: Final = re.compile(r"[0-9]{20}\.(?:arrow|index|parquet)", re.ASCII)
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


async def admit(gate: Gate, http: HttpServer, request: web.Request) -> None:
    """Refuse those who may not read the journal."""
    who = await http.door.who(request)
    # The journal has what came by every protocol, so what is forbidden on one of them is in it too.
    if not all(gate.rules.grants(who, protocol).may_subscribe(REST) for protocol in LISTENED):
        raise Refused(403, "reading the journal requires the right to subscribe to ** on every protocol")


class JournalPages:
    """Answers below ``/journal/``."""

    def __init__(self, folder: Path, gate: Gate, http: HttpServer) -> None:
        self._folder = folder
        self._gate = gate
        self._http = http
        self._list = JournalList(folder)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The list, or a file, for those who may have it."""
        return await self.show(request, request.match_info["name"])

    async def show(self, request: web.Request, name: str) -> web.StreamResponse:
        """The file of this name, or the list where it is empty."""
        await admit(self._gate, self._http, request)
        if not name:
            listed = await asyncio.to_thread(self._list.make)
            return web.Response(body=json.dumps(listed).encode() + b"\n", content_type="application/json")
        if not _FILE.fullmatch(name):
            raise Refused(404, "no such file; /journal/ lists the files")
        try:
            file, size = await asyncio.to_thread(_open, self._folder / name)
        except FileNotFoundError:
            raise Refused(404, "no such file (any more); /journal/ lists the files") from None
        except OSError as error:
            raise Refused(503, "the file can't be opened at the moment", fault="files") from error
        with file:
            return await self._send(request, file, size)

    async def _send(self, request: web.Request, file: io.FileIO, size: int) -> web.StreamResponse:
        """The file, or the range of it that is asked for, at the client's pace."""
        start, end, status = _range(request.headers.get("range"), size)
        response = web.StreamResponse(status=status, headers={"Accept-Ranges": "bytes", "Cache-Control": "no-store"})
        response.content_type = "application/octet-stream"
        response.content_length = end - start
        if status == PARTIAL:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        await response.prepare(request)
        while start < end and request.method != "HEAD":
            # In a thread, so that a slow disk delays nothing else.
            part = await asyncio.to_thread(os.pread, file.fileno(), min(PART, end - start), start)
            if not part:
                raise OSError(f"a file of the journal ends {end - start} bytes early")
            start += len(part)
            await self._write(request, response, part)
        await response.write_eof()
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, part: bytes) -> None:
        try:
            async with asyncio.timeout(self._http.limits.write_time):
                await response.write(part)
        except TimeoutError:
            self._http.count("write-time", "a download by %s was cut off: nothing was read", request.remote)
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


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
            "segments": [
                asdict(segment) | {"min_time": _iso(segment.min_time), "max_time": _iso(segment.max_time)}
                for segment in segments
            ],
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


def safe_size(path: Path, newest: str) -> int:
    """The bytes of a file of the journal that no crash can take back. ``newest`` is the segment being written."""
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


def _range(wanted: str | None, size: int) -> tuple[int, int, int]:
    """Which bytes of a file are asked for, and the status of the answer."""
    found = _RANGE.fullmatch(wanted.strip()) if wanted is not None else None
    if found is None or not (found[1] or found[2]):
        return 0, size, WHOLE
    first, last = found[1], found[2]
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise Refused(416, f"this file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return start, end, PARTIAL


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
