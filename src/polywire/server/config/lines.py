"""On which line of a TOML text each key stands. The parser of the standard library does not tell.

Every statement of a TOML text (a header, or a key with its value) is a TOML text of its own, and no statement's first
lines are one. So the same parser, fed line after line until it is satisfied, finds where each begins and what it sets.
"""

import tomllib
from typing import Any

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
