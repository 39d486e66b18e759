"""Names of channels and patterns over them.

A name is levels between slashes, compared level by level: ``/a`` has two levels, the first one empty. A pattern is a
name in which a level may stand for any one level, and the last one for any number of levels, none included.

Every protocol writes its wildcards differently, and what is a wildcard in one is an ordinary level in another. Inside
the hub they are therefore written as levels no name can hold, ``ANY`` and ``REST``: names contain no NUL.
"""

from typing import Final

ANY: Final = "\0"
REST: Final = "\0\0"

MAX_OCTETS: Final = 65535
MAX_LEVELS: Final = 200
"""Bounds the depth of the tries; names a person would write have a handful of levels."""


def name_problem(name: str) -> str | None:
    """Why ``name`` can't be a channel, or None where it can."""
    if not name:
        return "a channel's name must not be empty"
    if "\0" in name:
        return "a channel's name must not contain NUL"
    if name.count("/") >= MAX_LEVELS:
        return f"a channel has at most {MAX_LEVELS} levels, this one has {name.count('/') + 1}"
    if len(name) * 4 > MAX_OCTETS and len(name.encode(errors="replace")) > MAX_OCTETS:
        return f"a channel's name has at most {MAX_OCTETS} bytes"
    return None


def from_stars(pattern: str, *, rest: bool = True) -> str:
    """The pattern written with ``*`` for one level and, unless ``rest`` is false, a last ``**`` for any number."""
    if "*" not in pattern:
        return pattern
    levels = pattern.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if level == "*":
            levels[index] = ANY
        elif rest and level == "**" and index == last:
            levels[index] = REST
    return "/".join(levels)


def from_mqtt(pattern: str) -> str:
    """The pattern of a valid MQTT topic filter: ``+`` for one level, a last ``#`` for any number."""
    if "+" not in pattern and not pattern.endswith("#"):
        return pattern
    levels = pattern.split("/")
    if levels[-1] == "#":
        levels[-1] = REST
    return "/".join([ANY if level == "+" else level for level in levels])


def to_stars(pattern: str) -> str:
    """The pattern as people read it: the way back of ``from_stars``."""
    if "\0" not in pattern:
        return pattern
    return pattern.replace(REST, "**").replace(ANY, "*")


def is_literal(pattern: str) -> bool:
    """Whether the pattern matches one name only: itself."""
    return "\0" not in pattern


def matches(pattern: str, name: str, *, dollar: bool = False) -> bool:
    """Whether the pattern matches the name. A wildcard in front matches a first level with ``$`` only if ``dollar``."""
    if pattern == name:
        return True
    if "\0" not in pattern or (not dollar and name.startswith("$") and pattern.startswith("\0")):
        return False
    wanted = pattern.split("/")
    levels = name.split("/")
    if wanted[-1] == REST:
        wanted.pop()
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    for index, level in enumerate(wanted):
        if level != ANY and level != levels[index]:
            return False
    return True


def meets(one: str, other: str) -> bool:
    """Whether two patterns, or a pattern and a name, have a name in common; a wildcard in front matches any name."""
    if one == other:
        return True
    if "\0" not in one and "\0" not in other:
        return False
    left = one.split("/")
    right = other.split("/")
    open_left = left[-1] == REST
    if open_left:
        left.pop()
    open_right = right[-1] == REST
    if open_right:
        right.pop()
    if len(left) < len(right):
        if not open_left:
            return False
    elif len(right) < len(left) and not open_right:
        return False
    for index in range(min(len(left), len(right))):
        mine = left[index]
        its = right[index]
        if mine != its and ANY not in {mine, its}:
            return False
    return True


def covers(wider: str, narrower: str) -> bool:
    """Whether every name that ``narrower`` matches is matched by ``wider`` too."""
    if wider == narrower:
        return True
    if "\0" not in wider:
        return False
    wide = wider.split("/")
    narrow = narrower.split("/")
    open_end = narrow[-1] == REST
    if open_end:
        narrow.pop()
    if wide[-1] == REST:
        wide.pop()
        if len(narrow) < len(wide):
            return False
    elif open_end or len(narrow) != len(wide):
        return False
    for index, level in enumerate(wide):
        if level != ANY and level != narrow[index]:
            return False
    return True
