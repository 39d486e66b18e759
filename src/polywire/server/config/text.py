"""The text of a configuration: what was written, in the file and with ``--set``, on which line, and what is wrong.

The parser of the standard library does not report lines. But every statement of a TOML text (a header, or a key with
its value) is a TOML text of its own, and no statement's first lines are one. So the same parser, fed line after line
until it is satisfied, finds where each begins and what it sets.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from polywire.errors import PolywireError
from polywire.server.config.kinds import as_written


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. ``line`` and ``column`` count from 1; 0 means unknown."""

    kind: Literal["default", "file", "set"] = "default"
    file: Path | None = None
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.kind == "set":
            return "--set"
        if self.file is None:
            return "default"
        place = str(self.file)
        if self.line:
            place += f":{self.line}"
        if self.column:
            place += f":{self.column}"
        return place

    @property
    def folder(self) -> Path:
        """What relative paths written there are relative to."""
        return Path() if self.file is None else self.file.parent


DEFAULT = Origin()


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its key (dotted, or empty), its position, and how to fix it."""

    reason: str
    key: str = ""
    origin: Origin = DEFAULT

    def __str__(self) -> str:
        place = [] if self.origin == DEFAULT else [str(self.origin)]
        return ": ".join([*place, *([self.key] if self.key else []), self.reason])


class ConfigError(PolywireError):
    """The configuration can't be used. ``problems`` has everything that was found wrong with it, at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


KeyPath = tuple[str | int, ...]
"""The way down to a value: keys of tables, and positions in arrays of tables."""

LONGEST_STATEMENT = 1000
"""A statement of more lines is not looked into, nor what follows it: growing it line by line would take too long."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of everything that is set in ``text``, which is valid TOML."""
    lines = text.replace("\r\n", "\n").split("\n")
    found: dict[KeyPath, int] = {}
    tables: dict[KeyPath, int] = {}  # how many tables each array of tables has so far
    section: KeyPath = ()
    start = 0
    while start < len(lines):
        end, statement = _statement(lines, start)
        if statement is None:
            return found
        if lines[start].lstrip().startswith("["):
            section = _section(statement, tables, array=lines[start].lstrip().startswith("[["))
            for depth in range(1, len(section) + 1):
                found.setdefault(section[:depth], start + 1)
        else:
            _note(statement, section, start + 1, found)
        start = end
    return found


def _statement(lines: list[str], start: int) -> tuple[int, dict[str, Any] | None]:
    """The line behind the statement that begins at ``start``, and what it says."""
    for end in range(start + 1, min(len(lines), start + LONGEST_STATEMENT) + 1):
        try:
            return end, tomllib.loads("\n".join(lines[start:end]))
        except ValueError:
            continue
    return len(lines), None


def _section(header: dict[str, Any], tables: dict[KeyPath, int], *, array: bool) -> KeyPath:
    """The table a header opens; below an array of tables that is its last one."""
    path: KeyPath = ()
    level: Any = header
    while level:
        key, level = next(iter(level.items()))
        path += (key,)
        if isinstance(level, list):
            level = level[0]
        if array and not level:
            tables[path] = tables.get(path, 0) + 1
        if path in tables:
            path += (tables[path] - 1,)
    return path


def _note(value: Any, path: KeyPath, line: int, found: dict[KeyPath, int]) -> None:
    """Write down the line of ``value`` and of everything in it."""
    found.setdefault(path, line)
    if isinstance(value, dict):
        for key, inner in value.items():
            _note(inner, (*path, key), line, found)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _note(inner, (*path, index), line, found)


_SET: Final = Origin("set")
_EXAMPLE: Final = "limits.message_size=1048576"


class Written:
    """A tree of tables, lists and values that grows; what is put later wins."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.origins: dict[KeyPath, Origin] = {}

    def origin_of(self, path: KeyPath) -> Origin:
        """Where this, or the nearest thing around it, was written."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, DEFAULT)

    def put(self, tree: dict[str, Any], origin: Callable[[KeyPath], Origin]) -> None:
        """Add a tree: tables are merged, other values replaced."""
        self._merge(self.tree, tree, (), origin)

    def put_setting(self, text: str) -> None:
        """Add one ``section.key=value``. A ``ConfigError`` says what is wrong with the text."""
        self.put(parse_setting(text), lambda _: _SET)

    def _merge(
        self, old: dict[str, Any], new: dict[str, Any], path: KeyPath, origin: Callable[[KeyPath], Origin]
    ) -> None:
        for key, value in new.items():
            below = (*path, key)
            if isinstance(value, dict) and isinstance(old.setdefault(key, {}), dict):
                self.origins.setdefault(below, origin(below))
                self._merge(old[key], value, below, origin)
                continue
            old[key] = value
            for stale in [found for found in self.origins if found[: len(below)] == below]:
                del self.origins[stale]
            self._note(value, below, origin)

    def _note(self, value: object, path: KeyPath, origin: Callable[[KeyPath], Origin]) -> None:
        self.origins[path] = origin(path)
        if isinstance(value, dict):
            for key, inner in value.items():
                self._note(inner, (*path, key), origin)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._note(inner, (*path, index), origin)


def parse_setting(text: str) -> dict[str, Any]:
    """The tree for ``section.key=value``. The value is TOML, or else a string."""
    if not text.isprintable() and not _is_text(text):
        raise ConfigError([Problem(f"{as_written(text)} is not UTF-8", origin=_SET)])
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError([Problem(f"{as_written(text)} has no =; write it like {_EXAMPLE}", origin=_SET)])
    try:
        tree = tomllib.loads(f"{name.strip()} = 0")
        level: Any = tree
        while isinstance(level[_only(level)], dict):
            level = level[_only(level)]
        level[_only(level)] = _value(value)
    except (ValueError, RecursionError):
        raise ConfigError(
            [Problem(f"{as_written(name)} is not a key; write it like {_EXAMPLE}", origin=_SET)]
        ) from None
    return tree


def _value(text: str) -> object:
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # A line end in the text could have begun another statement.
    return tree["value"] if len(tree) == 1 else text


def _only(level: dict[str, Any]) -> str:
    (key,) = level
    return key


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
