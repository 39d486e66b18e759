"""Where the files of a journal are: a directory, anything that ``pyarrow.fs`` reaches by a URI, or a hub over HTTP.

Readers need little: a list of files, and a range of bytes of one of them. From a hub, ``GET /journal/`` lists the files
it offers, and ``GET /journal/<file>`` with ``Range`` returns bytes of one. The hub shows of each file only what is
safe, so reading from another machine shows no more than reading on this one.

Here are also the names of the files in a journal's directory, how they are made durable, and the lock of the one
writer, which the operating system releases when its holder dies, however it dies.
"""

import contextlib
import fcntl
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from pyarrow import NativeFile, PythonFile, fs

from polywire.http import Answer, HttpClient, NoAnswer
from polywire.journal.errors import JournalError, JournalLocked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ARROW: Final = "arrow"
PARQUET: Final = "parquet"
INDEX: Final = "index"
STATE: Final = "state"
LOCK_NAME: Final = "lock"

FILE_MODE: Final = 0o640
"""Files hold the bodies of messages: only the hub's user and group may read them."""

LOCK_TRIES: Final = 10
LOCK_PAUSE: Final = 0.01
"""Readers that check whether there is a writer hold the lock for a moment: the writer tries again."""

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
    """Make what was created, renamed or removed in the directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_data(descriptor: int) -> None:
    """Flush the file's data and size to disk; its times may wait, if the system supports that."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def write_at(descriptor: int, octets: memoryview, position: int) -> None:
    """Write all of it, however often the system takes only a part."""
    while octets:
        written = os.pwrite(descriptor, octets, position)
        octets = octets[written:]
        position += written


class Holder(msgspec.Struct):
    """What the holder of a lock writes into its file, for people to read."""

    pid: int | None = None
    node: str | None = None


class WriterLock:
    """Held from its making to ``release``; ``JournalLocked`` where another writer has it."""

    def __init__(self, folder: Path, node: str) -> None:
        self._descriptor: Final = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        if not _take(self._descriptor):
            holder = _read_holder(self._descriptor)
            os.close(self._descriptor)
            raise JournalLocked(str(folder), pid=holder.pid, node=holder.node)
        with contextlib.suppress(OSError):  # the flock is what counts, so a full disk does not matter here
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(Holder(os.getpid(), node)) + b"\n", 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def writer_alive(folder: Path) -> bool:
    """Whether a hub is writing the journal in this directory."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False


def _read_holder(descriptor: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()


class Storage(Protocol):
    """What a reader asks of the place where a journal is. It can be pickled, so that readers elsewhere can use it."""

    def sizes(self) -> dict[str, int]:
        """The files by name, with their bytes; ``JournalError`` where there is no such place."""

    def open(self, name: str) -> NativeFile:
        """The file, to read at any position; ``FileNotFoundError`` if it is gone."""

    def being_written(self) -> bool:
        """Whether a writer may be at work: then only what the index names is safe."""

    def __str__(self) -> str:
        """The place as people write it."""


@dataclass(frozen=True, slots=True)
class FileStorage:
    """A directory of a file system of ``pyarrow.fs``."""

    filesystem: fs.FileSystem
    root: str

    def sizes(self) -> dict[str, int]:
        """The files by name, with their bytes."""
        selector = fs.FileSelector(self.root)
        try:
            found = self.filesystem.get_file_info(selector)
        except FileNotFoundError:
            raise JournalError(f"{self.root}: no such directory") from None
        except NotADirectoryError:
            raise JournalError(f"{self.root}: a journal is a directory, this is a file") from None
        return {info.base_name: info.size for info in found if info.type == fs.FileType.File}

    def open(self, name: str) -> NativeFile:
        """One file, to read at any position."""
        return self.filesystem.open_input_file(f"{self.root}/{name}")

    def being_written(self) -> bool:
        """Whether a process on this machine writes here. Elsewhere there are only copies."""
        return isinstance(self.filesystem, fs.LocalFileSystem) and writer_alive(Path(self.root))

    def __str__(self) -> str:
        return self.root


def find_storage(place: str | Path, filesystem: fs.FileSystem | None = None, token: str | None = None) -> Storage:
    """The storage that a path, a URI, or a hub's address means; ``token`` is shown to a hub."""
    if filesystem is not None:
        return FileStorage(filesystem, str(place).rstrip("/"))
    if isinstance(place, str) and place.startswith(("http://", "https://")):
        return HubStorage(JournalServer(place, token=token))
    if isinstance(place, str) and "://" in place:
        try:
            found, root = fs.FileSystem.from_uri(place)
        except (ValueError, OSError) as error:
            raise JournalError(f"{place}: {error}") from error
        return FileStorage(found, root.rstrip("/"))
    return FileStorage(fs.LocalFileSystem(), str(Path(place).absolute()))


TIMEOUT: Final = 30.0
BLOCK: Final = 1 << 20
"""Bytes that are asked for at least: small reads come one after the other, and each request takes its time."""


class RemoteJournalError(JournalError):
    """A hub did not give what was asked for. ``status`` is that of HTTP, None where there was no answer at all."""

    def __init__(self, url: str, reason: str, *, status: int | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.status = status


class JournalAwayError(RemoteJournalError):
    """The hub is not there, or can't answer now: it may well do so later."""


class JournalServer:
    """A hub's HTTP listener, to be asked from any thread."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        try:
            at = HttpClient(url, token=token, timeout=TIMEOUT)
        except ValueError:
            reason = "this is not the URL of a hub, such as http://127.0.0.1:7100"
            raise RemoteJournalError(_shown(url), reason) from None
        self._http = at
        # Where a hub has several nodes, each one's journal is below its name.
        self._prefix = "/" if "/journal/" in f"{at.path}/" else "/journal/"
        self.url = at.url + self._prefix

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JournalServer) and self._http == other._http

    def __hash__(self) -> int:
        return hash(self.url)

    def files(self) -> dict[str, int]:
        """The files by name, each with its bytes."""
        body = self._get("").body
        try:
            return {str(each["name"]): int(each["octets"]) for each in json.loads(body)["files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteJournalError(self.url, "the answer is not a list of files; is this a Polywire hub?") from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """Bytes of a file; fewer than ``length`` where it ends."""
        if length <= 0:
            return b""
        answer = self._get(name, {"range": f"bytes={start}-{start + length - 1}"})
        return answer.body if answer.status == HTTPStatus.PARTIAL_CONTENT else answer.body[start : start + length]

    def size(self, name: str) -> int:
        """The bytes of a file that may be read by now."""
        return int(self._get(name, method="HEAD").headers["content-length"])

    def _get(self, name: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> Answer:
        url = self.url + name
        try:
            answer = self._http.request(method, self._prefix + name, headers=headers)
        except NoAnswer as error:
            raise JournalAwayError(url, str(error)) from error
        if answer.status == HTTPStatus.NOT_FOUND and name:
            raise FileNotFoundError(2, "the hub has no such file (any more)", url)
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return Answer(HTTPStatus.PARTIAL_CONTENT, b"", answer.headers)
        if answer.status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            kind = JournalAwayError if answer.passing else RemoteJournalError
            raise kind(url, f"{answer.status} {answer.text(300)}".strip(), status=answer.status)
        return answer


class RemoteFile(io.RawIOBase):
    """One file of a hub's journal, to be read anywhere; ``BLOCK`` bytes are fetched at least, and kept."""

    def __init__(self, server: JournalServer, name: str) -> None:
        super().__init__()
        self._server = server
        self._name = name
        self._size: int | None = None
        self._position = 0
        self._block = b""
        self._block_at = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The current position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        if whence == io.SEEK_END:
            offset += self.size()
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = max(0, offset)
        return self._position

    def size(self) -> int:
        """How large the file was when this was first asked."""
        if self._size is None:
            self._size = self._server.size(self._name)
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, all of them where no number is given; fewer where the file ends."""
        wanted = max(0, self.size() - self._position) if size is None or size < 0 else size
        skipped = self._position - self._block_at
        if not 0 <= skipped <= skipped + wanted <= len(self._block):
            self._block = self._server.read(self._name, self._position, max(wanted, BLOCK))
            self._block_at, skipped = self._position, 0
        octets = self._block[skipped : skipped + wanted]
        self._position += len(octets)
        return octets

    def readall(self) -> bytes:
        """Read the rest of the file."""
        return self.read()

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")
        octets = self.read(len(view))
        view[: len(octets)] = octets
        return len(octets)


class HubStorage:
    """The journal of a running hub, as readers ask for it."""

    def __init__(self, server: JournalServer) -> None:
        self._server = server

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HubStorage) and self._server == other._server

    def __hash__(self) -> int:
        return hash(self._server)

    def __str__(self) -> str:
        return self._server.url

    def sizes(self) -> dict[str, int]:
        """The files by name, with the bytes that are safe."""
        return self._server.files()

    def open(self, name: str) -> NativeFile:
        """One file, to read at any position."""
        return PythonFile(RemoteFile(self._server, name), mode="r")

    def being_written(self) -> bool:
        """A hub that answers writes."""
        return True


def _shown(url: str) -> str:
    """The URL without its credentials."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
