"""Reading the configuration: the file, what ``--set`` changes in it, and where each value comes from.

Every value is checked, and every problem collected before giving up.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from polywire.registry import unusable
from polywire.server.config.checks import find_problems
from polywire.server.config.kinds import Listener, as_written
from polywire.server.config.schema import LEAST_LOGIN, Config, Key, Section, Table, nearest, root
from polywire.server.config.text import DEFAULT, ConfigError, KeyPath, Origin, Problem, Written, key_lines


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
        reason = f"no such {what}; did you mean {nearest(names, table)}?"
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
        reason = f"is more than limits.message_size ({limits.message_size}), the limit for all messages"
        raise ConfigError([Problem(reason, "limits.message_size_before_auth", origin)])
    limits = msgspec.structs.replace(limits, message_size_before_auth=most)
    return msgspec.structs.replace(config, limits=limits)


DEFAULT_FILE: Final = Path("polywire.toml")
LARGEST_FILE: Final = 4 * 1024 * 1024
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value. ``shown`` is the way a person could have written it, ``value`` has plain numbers instead."""

    key: str
    value: object
    shown: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """The effective configuration, and what it was made of. ``path`` is the file, None where there is none."""

    config: Config
    path: Path | None = None
    sets: tuple[str, ...] = ()
    written: dict[KeyPath, Origin] = field(default_factory=dict)

    def origin(self, *path: str | int) -> Origin:
        """Where the value of this key comes from: ``origin("limits", "message_size")``."""
        return self.written.get(path, DEFAULT)

    def problems(self, *, insecure: bool = False) -> list[Problem]:
        """What is wrong with the configuration as a whole; the values by themselves have been checked."""
        return find_problems(self.config, self.origin, insecure=insecure)

    def check(self, *, insecure: bool = False) -> None:
        """Raise a ``ConfigError`` where there are problems."""
        problems = self.problems(insecure=insecure)
        if problems:
            raise ConfigError(problems)

    def again(self) -> "Loaded":
        """The same file and ``--set``, read again."""
        return load(self.path, self.sets)

    def settings(self) -> Iterator[Setting]:
        """Every effective value, in the order of the documentation."""
        yield from self._settings(self.config, root(), ())

    def _settings(self, struct: Any, table: Table, path: KeyPath) -> Iterator[Setting]:
        for name, key in table.keys.items():
            below = (*path, name)
            value = getattr(struct, name)
            shown = key.kind.show(value)
            plain = value if isinstance(value, int | float) else shown
            yield Setting(dotted(below), plain, shown, self.origin(*below))
        for name, inner in table.tables.items():
            value = getattr(struct, name)
            if inner.many:
                for index, item in enumerate(value):
                    yield from self._settings(item, inner, (*path, name, index))
            elif value is not None:
                yield from self._settings(value, inner, (*path, name))


def load(path: Path | None = None, sets: Sequence[str] = (), *, sections: Collection[str] | None = None) -> Loaded:
    """The configuration in the file ``path``, changed by ``sets`` (each ``section.key=value``).

    Without a path ``polywire.toml`` in the working directory is read if it is there. A ``ConfigError`` has all that
    was found wrong with single values; ``Loaded.problems`` looks at them together. With ``sections`` only these are
    checked.
    """
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    written = Written()
    if path is not None:
        file = path
        tree, lines = _read(file)
        written.put(tree, lambda key: Origin("file", file, lines.get(key, 0)))
    problems: list[Problem] = []
    for text in sets:
        try:
            written.put_setting(text)
        except ConfigError as error:
            problems.extend(error.problems)
    if sections is not None:
        written.tree = {name: value for name, value in written.tree.items() if name in sections}
    try:
        config = read_config(written)
    except ConfigError as error:
        problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, path, tuple(sets), written.origins)


def _read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The file's content, and the lines of its keys."""
    text = _text(path)
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ConfigError([Problem("lists or tables are nested too deeply", origin=Origin("file", path))]) from None
    except ValueError as error:
        place = _PLACE.search(str(error))
        reason = str(error)[: place.start()] if place else str(error)
        if place is None or place[1] is None:
            line, column = text.count("\n") + 1, 0
        else:
            line, column = int(place[1]), int(place[2])
        reason = f"this is not TOML: {reason[:1].lower()}{reason[1:]}"
        raise ConfigError([Problem(reason, origin=Origin("file", path, line, column))]) from None
    return tree, key_lines(text)


def _text(path: Path) -> str:
    origin = Origin("file", path)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError([Problem("there is no such file", origin=origin)]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError([Problem(f"the file can't be read: {reason}", origin=origin)]) from None
    if len(data) > LARGEST_FILE:
        raise ConfigError([Problem(f"a configuration has at most {LARGEST_FILE} bytes", origin=origin)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        place = Origin("file", path, line, column)
        raise ConfigError([Problem("this is not TOML: it is not UTF-8", origin=place)]) from None
