"""From what was written to a ``Config``: every value checked, and every problem collected before giving up."""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from polywire.registry import unusable
from polywire.server.config.errors import ConfigError, Origin, Problem
from polywire.server.config.keys import Key, Table, nearest, root
from polywire.server.config.kinds import Listener, as_written
from polywire.server.config.lines import KeyPath
from polywire.server.config.schema import LEAST_LOGIN, Config, Section
from polywire.server.config.written import Written


def read_config(written: Written) -> Config:
    """The configuration that was written, or a ``ConfigError`` with all that is wrong with it."""
    reader = _Reader(written.origin_of)
    config = reader.section(written.tree, root(), ())
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: (problem.origin.kind, problem.origin.line)))
    return _fit(cast("Config", config), written)


def dotted(path: KeyPath) -> str:
    """The path as a person writes it: ``limits.message_size``, ``access[0].user``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.isascii() and part.replace("-", "").replace("_", "").isalnum()
            text += ("." if text else "") + (part if bare else as_written(part))
    return text


class _Reader:
    """Reads one tree, and keeps the problems it meets."""

    def __init__(self, origin_of: Callable[[KeyPath], Origin]) -> None:
        self._origin_of = origin_of
        self.problems: list[Problem] = []

    def section(self, value: object, table: Table, path: KeyPath) -> Section | None:
        """The struct of a section, or None where something is wrong with it."""
        if not isinstance(value, dict):
            header = f"[{'.'.join(table.path)}]"
            header = f"[{header}]" if table.many else header
            example = next(iter(table.keys))
            found = as_written(value)
            self._problem(path, f"found {found}, but this is a section: write {header} and {example} = …")
            return None
        before = len(self.problems)
        fields: dict[str, Any] = {}
        for name, inner in value.items():
            below = (*path, name)
            if name in table.keys:
                fields[name] = self._value(inner, table.keys[name], below)
            elif name not in table.tables:
                self._unknown(inner, table, below)
            elif table.tables[name].many:
                fields[name] = self._many(inner, table.tables[name], below)
            else:
                fields[name] = self.section(inner, table.tables[name], below)
        for name, key in table.keys.items():
            if key.required and name not in value:
                self._problem(path, f"{name} is missing; allowed is {key.kind.allowed}")
        return table.struct(**fields) if len(self.problems) == before else None

    def _many(self, value: object, table: Table, path: KeyPath) -> tuple[Section | None, ...]:
        if not isinstance(value, list):
            self._problem(path, f"found {as_written(value)}, but this is a list of tables: write [[{dotted(path)}]]")
            return ()
        return tuple(self.section(item, table, (*path, index)) for index, item in enumerate(value))

    def _value(self, value: object, key: Key, path: KeyPath) -> object:
        folder = self._origin_of(path).folder
        try:
            return key.kind.read(value, folder)
        except ValueError as error:
            found = f"found {as_written(value)}"
            if not str(error):
                self._problem(path, f"{found}, allowed is {key.kind.allowed}")
            elif isinstance(key.kind, Listener):
                self._problem(path, f"{found}: {error}")
            else:
                self._problem(path, f"{found}: {error}; allowed is {key.kind.allowed}")
            return None

    def _unknown(self, value: object, table: Table, path: KeyPath) -> None:
        what = "section" if isinstance(value, dict) or not table.keys else "key"
        names = tuple(str(part) for part in path)
        reason = f"there is no such {what}; did you mean {nearest(names, table)}?"
        if table.path == ("listen",):
            reason = " ".join([reason, *(f"({each})" for each in unusable())])
        self._problem(path, reason)

    def _problem(self, path: KeyPath, reason: str) -> None:
        self.problems.append(Problem(reason, dotted(path), self._origin_of(path)))


def _fit(config: Config, written: Written) -> Config:
    """The configuration with the defaults that depend on another key."""
    limits = config.limits
    least = {"unfinished_size": 4 * limits.message_size, "unfinished_size_per_client": 5 * limits.message_size // 2}
    for name, size in least.items():
        if ("limits", name) not in written.origins and getattr(limits, name) < size:
            limits = msgspec.structs.replace(limits, **{name: size})
    config = msgspec.structs.replace(config, limits=limits)
    most = max(limits.message_size, LEAST_LOGIN)
    if limits.message_size_before_auth <= most:
        return config
    origin = written.origins.get(("limits", "message_size_before_auth"))
    if origin is not None:
        reason = f"is more than limits.message_size ({limits.message_size}), which no message may pass"
        raise ConfigError([Problem(reason, "limits.message_size_before_auth", origin)])
    limits = msgspec.structs.replace(limits, message_size_before_auth=most)
    return msgspec.structs.replace(config, limits=limits)
