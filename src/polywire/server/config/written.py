"""What was written, in the file and with ``--set``: one tree of plain values, and where each of them stands."""

import tomllib
from collections.abc import Callable
from typing import Any, Final

from polywire.server.config.errors import DEFAULT, ConfigError, Origin, Problem
from polywire.server.config.kinds import as_written
from polywire.server.config.lines import KeyPath

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
    """The tree that ``section.key=value`` stands for. The value is TOML; what isn't is taken as a string."""
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
