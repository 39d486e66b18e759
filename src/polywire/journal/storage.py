"""Where the files of a journal are: a folder, or anything that ``pyarrow.fs`` reaches by a URI.

Readers need little: a list of files, and octets of one of them from here to there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from polywire.journal.errors import JournalError
from polywire.journal.lock import writer_alive


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
        from polywire.journal.http import hub_storage  # noqa: PLC0415 - only readers from afar need it

        return hub_storage(place, token=token)
    if isinstance(place, str) and "://" in place:
        try:
            found, root = fs.FileSystem.from_uri(place)
        except (ValueError, OSError) as error:
            raise JournalError(f"{place}: {error}") from error
        return FileStorage(found, root.rstrip("/"))
    return FileStorage(fs.LocalFileSystem(), str(Path(place).absolute()))
