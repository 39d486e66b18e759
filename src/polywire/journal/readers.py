"""Named readers: rows of the journal that an outside reader still needs, so that retention keeps them.

A reader is a file ``readers/<name>.json`` in the journal's directory, ``{"offset": n, "updated": "…"}``: it still needs
the rows from ``n`` on. A program that reads under a name moves the offset forward as it goes. A reader that no program
moves any more keeps its rows in the journal until ``forget`` removes it.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from polywire.errors import PolywireError

FOLDER: Final = "readers"
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_SUFFIX: Final = ".json"


class ReaderNameError(PolywireError):
    """A name no reader can have. ``name`` is what was given."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name[:100]!r} is not a valid reader name: a name is 1 to 100 letters, digits, '-', '_' or '.', "
            "and does not begin with '.'"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class NamedReader:
    """A reader, and the first offset it still needs. ``problem``: why its file can't be read; it then needs all."""

    name: str
    offset: int
    updated: datetime | None = None
    problem: str = ""


class NamedReaders:
    """The named readers of the journal in ``folder``. Nothing is kept in memory: other processes move readers too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def __iter__(self) -> Iterator[NamedReader]:
        """All readers, by name."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            stem = name.removesuffix(_SUFFIX)
            if stem != name and _NAME.fullmatch(stem):
                found = self._read(stem)
                if found is not None:
                    yield found

    def get(self, name: str) -> NamedReader | None:
        """The reader of this name, or None where there is none."""
        return self._read(_checked(name))

    def put(self, name: str, offset: int) -> NamedReader:
        """Say that this reader needs what is from ``offset`` on, and no longer what is before."""
        if offset < 0:
            raise ValueError(f"an offset must not be negative, this one is {offset}")
        path = self._path(_checked(name))
        now = datetime.now(UTC)
        text = json.dumps({"offset": offset, "updated": now.isoformat()})
        self._folder.mkdir(exist_ok=True)
        # Renamed into place, so that a reader finds the complete old or new one. A crash of the machine may
        # bring the old one back: it holds more than is needed, never less.
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(path)
        return NamedReader(name, offset, now)

    def forget(self, name: str) -> bool:
        """Let go of a reader and what it needs. Returns whether there was one."""
        try:
            self._path(_checked(name)).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> Path:
        return self._folder / (name + _SUFFIX)

    def _read(self, name: str) -> NamedReader | None:
        try:
            found = json.loads(self._path(name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            return NamedReader(name, 0, problem=f"{self._path(name)} can't be read: {error}")
        offset = found.get("offset") if isinstance(found, dict) else None
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            return NamedReader(name, 0, problem=f'{self._path(name)} has no "offset" that is a number of at least 0')
        return NamedReader(name, offset, _time(found.get("updated")))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ReaderNameError(name)
    return name


def _time(text: object) -> datetime | None:
    """When the reader was moved: worth showing, not worth failing for."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found
