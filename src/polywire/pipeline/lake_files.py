"""The files of one table in the lake: which are there, and how they are changed so that a crash does no harm.

New files are written aside and moved in. A batch that was moved in is noted as committed; one that was not is moved
out again before it is written anew. Files that take the place of others (compaction, a finished table made anew) come
in by a *swap*: a note of what comes and what goes is written first, so that a swap that was cut short can be finished,
and a reader who comes in between knows which of the files count.
"""

import fcntl
import glob
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from polywire.pipeline.errors import LakeError

SUFFIX: Final = ".parquet"
COMMITS: Final = "_commits"
STAGING: Final = "_staging"
SWAPS: Final = "_swaps"
LOCKS: Final = "_locks"


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder ``home`` of a table's files in the lake ``root``. ``name`` is unique in the lake."""

    root: Path
    home: Path
    name: str

    def files(self, under: Path | None = None) -> list[Path]:
        """The files that count, in order; of a swap that is under way either the old ones or the new."""
        found = set(self._listed(under or self.home))
        for swap in self._swaps():
            found -= {self.home / gone for gone in swap["remove"]}
            for staged, final in swap["add"].items():
                path = self.home / final
                if (under or self.home) in path.parents:
                    found.add(path if path.exists() else self.root / staged)
        return sorted(found)

    def days(self) -> list[str]:
        """The days there are files of."""
        if not self.home.is_dir():
            return []
        return sorted(path.name.removeprefix("day=") for path in self.home.glob("day=*") if path.is_dir())

    def staging(self) -> Path:
        """A new folder to write into, on the same file system."""
        return self.root / STAGING / f"{self.name}-{uuid.uuid4().hex}"

    def committed(self, query: str) -> int:
        """The last batch of this query that is wholly there; -1 for none."""
        try:
            return int(json.loads(self._commit_file(query).read_text(encoding="utf-8"))["batch"])
        except FileNotFoundError:
            return -1

    def move_in(self, staged: Path, query: str, batch: int, *, durable: bool) -> int:
        """Take in the files of a batch, and note that it is there. Returns how many files."""
        self._check(query)
        prefix = f"{query}-{batch:010d}-"
        begun = self._commit_file(query).with_suffix(".begun")
        if begun.exists():  # somebody was killed here
            for place in _read(begun):
                for left in (self.home / place).glob(f"{glob.escape(prefix)}*"):
                    left.unlink()
        staged_files = self._listed(staged)
        places = sorted({str(path.parent.relative_to(staged)) for path in staged_files})
        _write(begun, places, durable=durable)
        for count, path in enumerate(staged_files):
            if durable:
                _sync(path)
            _move(path, self.home / path.parent.relative_to(staged) / f"{prefix}{count:05d}{SUFFIX}")
        _write(self._commit_file(query), {"batch": batch, "files": len(staged_files)})
        begun.unlink()
        shutil.rmtree(staged, ignore_errors=True)
        return len(staged_files)

    def settled(self, files: list[Path]) -> list[Path]:
        """Those of the files that no batch may still take out again."""
        done: dict[str, int] = {}
        found = []
        for path in files:
            name = path.stem.rsplit("-", 2)
            if len(name) == 3 and name[1].isdigit():
                query, batch = name[0], int(name[1])
                if query not in done:
                    done[query] = self.committed(query)
                if batch > done[query]:
                    continue
            found.append(path)
        return found

    def swap(self, staged: Path, remove: list[Path]) -> int:
        """Put all files of a folder in the place of others, whole or not at all. Returns how many came in."""
        number = uuid.uuid4().hex
        add = {}
        for count, path in enumerate(self._listed(staged)):
            _sync(path)
            final = path.parent.relative_to(staged) / f"swap{number}-{count:05d}{SUFFIX}"
            add[str(path.relative_to(self.root))] = str(final)
        note = self.root / SWAPS / self.name / f"{number}.json"
        _write(note, {"add": add, "remove": [str(path.relative_to(self.home)) for path in remove]})
        self.finish_swaps()
        shutil.rmtree(staged, ignore_errors=True)
        return len(add)

    def finish_swaps(self) -> None:
        """Bring to an end what was begun, by us or by somebody who was killed."""
        for note in self._notes():
            swap = _read(note)
            for staged, final in swap["add"].items():
                source = self.root / staged
                if source.exists():
                    _move(source, self.home / final)
            for gone in swap["remove"]:
                (self.home / gone).unlink(missing_ok=True)
            for place in {Path(gone).parent for gone in swap["remove"]}:
                _drop_empty(self.home / place, self.home)
            note.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For whoever puts files in the place of others: one at a time, over all processes of this machine."""
        folder = self.root / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / self.name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.finish_swaps()
            yield

    def _listed(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.rglob(f"*{SUFFIX}") if not path.name.startswith((".", "_")))

    def _notes(self) -> list[Path]:
        return sorted((self.root / SWAPS / self.name).glob("*.json"))

    def _swaps(self) -> list[Any]:
        found = []
        for note in self._notes():
            try:
                found.append(_read(note))
            except FileNotFoundError:  # finished just now: the listing may be older
                continue
        return found

    def _commit_file(self, query: str) -> Path:
        return self.root / COMMITS / self.name / f"{query}.json"

    def _check(self, query: str) -> None:
        if not query or "/" in query or query.startswith((".", "_")):
            raise LakeError(self.name, f"a query can't be called {query!r}: its name is part of file names")


def _read(note: Path) -> Any:
    return json.loads(note.read_text(encoding="utf-8"))


def _write(path: Path, content: Any, *, durable: bool = True) -> None:
    """The file has either its old content or the new, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        _sync(path.parent)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except FileNotFoundError:  # the folder was empty, and somebody has just removed it
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_empty(folder: Path, home: Path) -> None:
    """Remove a folder nothing is left in, and those above it."""
    while folder != home:
        try:
            folder.rmdir()
        except OSError:
            return  # something is in it, or it is gone
        folder = folder.parent
