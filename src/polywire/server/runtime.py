"""The runtime file: what ``polywire status``, ``reload`` and ``stop`` know of a running hub.

The hub keeps a lock on the file for as long as it runs, so a file without a lock was left behind by one that was
killed; process ids, which the system uses again, prove nothing. Each change is a new file under the old name, locked
before it gets that name, so readers always find a whole file.

It is in the directory of the journal, which no two hubs share. A hub without a journal puts it into a directory of its
user's, under a name made from the configuration and the process id.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

import polywire
from polywire.errors import PolywireError
from polywire.server.config import ConfigError, Loaded, Problem

NAME: Final = "hub.json"
LARGEST: Final = 1 << 20


class RuntimeFileError(PolywireError):
    """A runtime file that can't be read or written."""


@dataclass(frozen=True, slots=True)
class Reload:
    """How the last reload ended. ``number`` counts reloads since the start; ``restart`` are sections that need one."""

    number: int = 0
    time: float = 0.0
    error: str = ""
    restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """A hub as its runtime file describes it. ``started`` is in seconds since 1970."""

    pid: int
    started: float
    version: str
    listeners: dict[str, str]
    config: str | None = None
    journal: str | None = None
    drain_time: float = 0.0
    draining: bool = False
    reload: Reload = field(default_factory=Reload)


def describe(loaded: Loaded, listeners: dict[str, str]) -> Runtime:
    """This process."""
    return Runtime(
        pid=os.getpid(),
        started=time.time(),
        version=polywire.__version__,
        listeners=listeners,
        config=None if loaded.path is None else str(loaded.path.absolute()),
        journal=str(loaded.config.journal.path.absolute()) if loaded.config.journal.enabled else None,
        drain_time=loaded.config.limits.drain_time,
    )


class RuntimeFile:
    """The file of this process. ``update`` changes what it says, ``remove`` ends it."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path: Final = path
        self.runtime = runtime
        self._file = -1
        self._write()

    def update(self, **changes: Any) -> None:
        """Change some of it."""
        self.runtime = replace(self.runtime, **changes)
        self._write()

    def remove(self) -> None:
        """The hub ends now."""
        if self._file >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _write(self) -> None:
        number, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # for its owner only
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(number, json.dumps(asdict(self.runtime), indent=2).encode() + b"\n")
            Path(name).replace(self.path)
        except BaseException:
            os.close(number)
            Path(name).unlink(missing_ok=True)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = number


def create(path: Path | None, loaded: Loaded, listeners: dict[str, str]) -> RuntimeFile:
    """The file of a hub that has just started, at ``path`` or where it is looked for. Raises ``OSError``."""
    runtime = describe(loaded, listeners)
    if path is None:
        path = journal_file(loaded) or _own_folder() / f"{_key(loaded)}-{runtime.pid}.json"
        for left in path.parent.glob(f"{_key(loaded)}-*.json"):
            _forget_if_left(left)
    return RuntimeFile(path, runtime)


def check_free(path: Path) -> None:
    """Raise a ``ConfigError`` where another hub has this runtime file."""
    with contextlib.suppress(FileNotFoundError, RuntimeFileError):
        running = read(path)
        if running is not None:
            raise ConfigError([Problem(f"{path} belongs to a running hub (pid {running.pid})", "--pid")])


def find(loaded: Loaded) -> list[tuple[Path, Runtime]]:
    """The hubs that run with this configuration, and their files: one at most where there is a journal."""
    path = journal_file(loaded)
    paths = [path] if path is not None else sorted(_own_folder().glob(f"{_key(loaded)}-*.json"))
    found = []
    for each in paths:
        with contextlib.suppress(FileNotFoundError):
            runtime = read(each)
            if runtime is not None:
                found.append((each, runtime))
    return found


def read(path: Path) -> Runtime | None:
    """What a file says of its hub; None where that hub is gone. Raises ``FileNotFoundError``, ``RuntimeFileError``."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST)
            is_left = _lock(file.fileno())
            if is_left and not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return read(path)  # a new one has taken its place meanwhile
        return None if is_left else msgspec.json.decode(data, type=Runtime)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise RuntimeFileError(f"{path}: {error.strerror}; run this as the user of the hub, or as root") from error
    except OSError as error:
        raise RuntimeFileError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise RuntimeFileError(f"{path}: this is not the runtime file of a hub: {error}") from error


def journal_file(loaded: Loaded) -> Path | None:
    """Where the runtime file of a hub with a journal is."""
    journal = loaded.config.journal
    return journal.path.absolute() / NAME if journal.enabled else None


def _key(loaded: Loaded) -> str:
    """What identifies a hub without a journal: the file of the configuration, or the directory, and its listeners."""
    place = Path.cwd() if loaded.path is None else loaded.path.resolve()
    listeners = [f"{name}={address}" for name, address in loaded.config.listen.addresses().items()]
    return hashlib.sha256("\n".join([str(place), *listeners]).encode()).hexdigest()[:16]


def _own_folder() -> Path:
    """A directory that only this user can write to."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "polywire" if base else Path(tempfile.gettempdir()) / f"polywire-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    # In a directory that everyone can write to, another user may have created it first.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(13, "belongs to another user, or others may write to it", str(folder))
    return folder


def _forget_if_left(path: Path) -> None:
    """Delete a file whose hub is gone."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if _lock(file.fileno()):
            path.unlink(missing_ok=True)


def _lock(number: int) -> bool:
    """Whether no process holds a lock on the file."""
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
