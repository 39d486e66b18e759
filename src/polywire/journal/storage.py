"""Where the files of a journal are: a directory, anything that ``pyarrow.fs`` reaches by a URI, or a hub over HTTP.

Readers need little: a list of files, and a range of bytes of one of them. From a hub, ``GET /journal/`` lists the files
it offers, and ``GET /journal/<file>`` with ``Range`` returns bytes of one. The hub shows of each file only what is
safe, so reading from another machine shows no more than reading on this one.
"""

import base64
import http.client
import io
import json
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pyarrow import PythonFile, fs

from polywire.journal.errors import JournalError
from polywire.journal.files import writer_alive


class Storage(Protocol):
    """What a reader asks of the place where a journal is. It can be pickled, so that readers elsewhere can use it."""

    def sizes(self) -> dict[str, int]:
        """The files by name, with their octets; ``JournalError`` where there is no such place."""

    def open(self, name: str) -> Any:
        """A ``pyarrow.NativeFile`` to read at any position; ``FileNotFoundError`` where it is gone."""

    def being_written(self) -> bool:
        """Whether a writer may be at work: then only what the index names is safe."""

    def __str__(self) -> str:
        """The place as people write it."""


@dataclass(frozen=True, slots=True)
class FileStorage:
    """A folder of a file system of ``pyarrow.fs``."""

    filesystem: Any
    root: str

    def sizes(self) -> dict[str, int]:
        """The files by name, with their octets."""
        selector = fs.FileSelector(self.root)
        try:
            found = self.filesystem.get_file_info(selector)
        except FileNotFoundError:
            raise JournalError(f"{self.root}: there is no such folder, so no journal") from None
        except NotADirectoryError:
            raise JournalError(f"{self.root}: a journal is a folder, this is a file") from None
        return {info.base_name: info.size for info in found if info.type == fs.FileType.File}

    def open(self, name: str) -> Any:
        """One file, to read at any position."""
        return self.filesystem.open_input_file(f"{self.root}/{name}")

    def being_written(self) -> bool:
        """Whether a process on this machine writes here. Elsewhere there are only copies."""
        return isinstance(self.filesystem, fs.LocalFileSystem) and writer_alive(Path(self.root))

    def __str__(self) -> str:
        return self.root


def find_storage(place: str | Path, filesystem: Any = None, token: str | None = None) -> Storage:
    """The storage that a path, a URI, or a hub's address means; ``token`` is shown to a hub."""
    if filesystem is not None:
        return FileStorage(filesystem, str(place).rstrip("/"))
    if isinstance(place, str) and place.startswith(("http://", "https://")):
        return hub_storage(place, token=token)
    if isinstance(place, str) and "://" in place:
        try:
            found, root = fs.FileSystem.from_uri(place)
        except (ValueError, OSError) as error:
            raise JournalError(f"{place}: {error}") from error
        return FileStorage(found, root.rstrip("/"))
    return FileStorage(fs.LocalFileSystem(), str(Path(place).absolute()))


TIMEOUT: Final = 30.0
BLOCK: Final = 1 << 20
"""Octets that are asked for at least: small reads come one after the other, and each request takes its time."""

LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be another one when asked again."""


class RemoteJournalError(JournalError):
    """A hub did not give what was asked for. ``status`` is that of HTTP, None where there was no answer at all."""

    def __init__(self, url: str, reason: str, *, status: int | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.status = status


class JournalAwayError(RemoteJournalError):
    """The hub is not there, or can't answer now: it may well do so later."""


class JournalServer:
    """A hub's HTTP listener. Connections are kept for the next request, which may come from any thread."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise RemoteJournalError(_shown(url), "this is not the URL of a hub, such as http://127.0.0.1:7100")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port
        self._path = parts.path.rstrip("/").removesuffix("/journal") + "/journal/"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{self._path}"
        self._headers = {"user-agent": "polywire", "accept-encoding": "identity"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        elif parts.username:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        self._idle: list[http.client.HTTPConnection] = []

    def __getstate__(self) -> dict[str, Any]:
        """A split of the journal goes to other processes, and this with it."""
        return {**self.__dict__, "_idle": []}

    def __del__(self) -> None:
        for connection in getattr(self, "_idle", ()):
            connection.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JournalServer) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.url)

    def files(self) -> dict[str, int]:
        """The files by name, each with its octets."""
        _, body, _ = self._get("", {})
        try:
            return {str(each["name"]): int(each["octets"]) for each in json.loads(body)["files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteJournalError(self.url, "the answer is not a list of files; is this a hub?") from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """Octets of a file; fewer than ``length`` where it ends."""
        if length <= 0:
            return b""
        status, body, _ = self._get(name, {"range": f"bytes={start}-{start + length - 1}"})
        return body if status == http.client.PARTIAL_CONTENT else body[start : start + length]

    def size(self, name: str) -> int:
        """The octets of a file that may be read by now."""
        _, _, headers = self._get(name, {}, method="HEAD")
        return int(headers["content-length"])

    def _get(
        self, name: str, headers: dict[str, str], *, method: str = "GET"
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        url = self.url + name
        for last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, self._path + name, headers={**self._headers, **headers})
                answer = connection.getresponse()
                body = answer.read()
                self._idle.append(connection)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A connection that was kept may have been closed meanwhile, so a new one is tried as well.
                if last or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise JournalAwayError(url, f"no answer: {str(error) or type(error).__name__}") from error
                continue
            if answer.status == http.client.NOT_FOUND and name:
                raise FileNotFoundError(2, "the hub has no such file (any more)", url)
            if answer.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return http.client.PARTIAL_CONTENT, b"", answer.headers
            if answer.status not in {http.client.OK, http.client.PARTIAL_CONTENT}:
                words = body[:300].decode(errors="replace").strip() or answer.reason
                kind = JournalAwayError if answer.status in LATER else RemoteJournalError
                raise kind(url, f"{answer.status} {words}", status=answer.status)
            return answer.status, body, answer.headers
        raise AssertionError("not reached")

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            return kind(self._host, self._port, timeout=TIMEOUT)


class RemoteFile(io.RawIOBase):
    """One file of a hub's journal, to be read anywhere; ``BLOCK`` octets are fetched at least, and kept."""

    def __init__(self, server: JournalServer, name: str) -> None:
        super().__init__()
        self._server = server
        self._name = name
        self._size: int | None = None
        self._position = 0
        self._block = b""
        self._block_at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where it is."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere else."""
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
        """The next octets, all of them where no number is given; fewer where the file ends."""
        wanted = max(0, self.size() - self._position) if size is None or size < 0 else size
        skipped = self._position - self._block_at
        if not 0 <= skipped <= skipped + wanted <= len(self._block):
            self._block = self._server.read(self._name, self._position, max(wanted, BLOCK))
            self._block_at, skipped = self._position, 0
        octets = self._block[skipped : skipped + wanted]
        self._position += len(octets)
        return octets

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Into a buffer."""
        octets = self.read(len(buffer))
        buffer[: len(octets)] = octets
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
        """The files by name, with the octets that are safe."""
        return self._server.files()

    def open(self, name: str) -> Any:
        """One file, to read at any position."""
        return PythonFile(RemoteFile(self._server, name), mode="r")

    def being_written(self) -> bool:
        """A hub that answers writes."""
        return True


def hub_storage(url: str, *, token: str | None = None) -> HubStorage:
    """The journal of the hub at ``url``. It is shown the token, or the user and password that stand in the URL."""
    return HubStorage(JournalServer(url, token=token))


def _shown(url: str) -> str:
    """The URL without what stands before its ``@``."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
