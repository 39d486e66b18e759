"""The keys there are, as a flat table read from the structs, and the nearest of them to one there is not."""

import difflib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from polywire.server.config.kinds import Kind
from polywire.server.config.schema import Config, Section


@dataclass(frozen=True, slots=True)
class Key:
    """A key with a value: its name, what it may be, and its default unless it is ``required``."""

    name: str
    kind: Kind
    default: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A section: its dotted path, its struct, its keys and the sections below it, by name.

    ``optional``: None stands for the section when it is not written. ``many``: it is an array of tables.
    """

    path: tuple[str, ...]
    struct: type[Section]
    keys: dict[str, Key]
    tables: dict[str, "Table"]
    optional: bool = False
    many: bool = False

    def walk(self) -> Iterator["Table"]:
        """This table and all below it."""
        yield self
        for table in self.tables.values():
            yield from table.walk()


@cache
def root() -> Table:
    """The table of all tables."""
    return _table((), Config, optional=False, many=False)


def nearest(path: tuple[str, ...], table: Table) -> str:
    """The name, dotted, of the key or section that whoever wrote ``path`` (unknown in ``table``) most likely meant."""
    name = path[-1]
    here = [*table.keys, *table.tables]
    everywhere: dict[str, str] = {}  # first of a name wins, so sections in the order of the documentation
    for other in root().walk():
        for key in (*other.tables, *other.keys):
            everywhere.setdefault(key, ".".join((*other.path, key)))
    close = difflib.get_close_matches(name, here, n=1, cutoff=0.7)
    if not close and name in everywhere:
        return everywhere[name]
    if not close:
        far = difflib.get_close_matches(name, everywhere, n=1, cutoff=0.8)
        if far:
            return everywhere[far[0]]
        close = difflib.get_close_matches(name, here, n=1, cutoff=0.0)
    return ".".join((*table.path, close[0]))


def _table(path: tuple[str, ...], struct: type[Section], *, optional: bool, many: bool) -> Table:
    hints = typing.get_type_hints(struct, include_extras=True)
    keys: dict[str, Key] = {}
    tables: dict[str, Table] = {}
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        below = (*path, field.name)
        if typing.get_origin(hint) is tuple:  # an array of tables
            tables[field.name] = _table(below, typing.get_args(hint)[0], optional=False, many=True)
        elif typing.get_origin(hint) is typing.Annotated:
            _, kind = typing.get_args(hint)
            required = field.required
            default = None if required else field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            keys[field.name] = Key(field.name, kind, default, required)
        else:
            inner = [arg for arg in typing.get_args(hint) if arg is not type(None)] or [hint]
            tables[field.name] = _table(below, inner[0], optional=bool(typing.get_args(hint)), many=False)
    return Table(path, struct, keys, tables, optional, many)
