"""The kinds of values a key can have: how each is read, what is allowed, and how it is shown.

A kind is in the annotation of a struct's field (``schema.py``) with the field's description, so that the reader, the
error messages, ``polywire config show`` and the tables of ``docs/configuration.md`` all say the same. Sizes and
durations are written the way people do: ``"16 MiB"``, ``"30 s"``.
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from polywire.hub.channels import name_problem
from polywire.server.address import EXAMPLE, SCHEMES, Address, parse_address, parse_origin

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
}
TIME_UNITS: Final[Mapping[str, Fraction]] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_QUANTITY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """The number of bytes in a text such as ``"16 MiB"``. A ``ValueError`` says what is wrong with it."""
    amount, unit = _split(text, SIZE_UNITS)
    octets = amount * SIZE_UNITS[unit]
    if octets.denominator != 1:
        raise ValueError("this is not a whole number of bytes")
    return int(octets)


def parse_seconds(text: str) -> float:
    """The number of seconds in a text such as ``"30 s"``. A ``ValueError`` says what is wrong with it."""
    amount, unit = _split(text, TIME_UNITS)
    return float(amount * TIME_UNITS[unit])


def show_size(octets: int) -> str:
    """The size in the largest binary unit that it is a whole number of."""
    for name in ("GiB", "MiB", "KiB"):
        if octets and octets % SIZE_UNITS[name] == 0:
            return f"{octets // SIZE_UNITS[name]} {name}"
    return f"{octets} B"


def show_seconds(seconds: float) -> str:
    """The duration in seconds."""
    return f"{int(seconds) if float(seconds).is_integer() else seconds} s"


def _split(text: str, units: Mapping[str, object]) -> tuple[Fraction, str]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError("this is not a number and a unit")
    # Nobody means millibits by "mb": the case of a unit carries nothing here.
    by_lower = {name.lower(): name for name in units}
    unit = by_lower.get(found[2].lower())
    if unit is None:
        raise ValueError(f"{found[2]} is not a unit; units are {', '.join(units)}")
    return Fraction(found[1]), unit


_LARGEST_SHOWN = 1 << 128
_LONGEST_SHOWN = 60
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_TOKEN = re.compile(r"(?<=://)[^/@:]+@")


class Kind(Protocol):
    """What the reader, the documentation and ``show`` need to know of a key."""

    @property
    def about(self) -> str:
        """What the key means."""

    @property
    def allowed(self) -> str:
        """What may be written, to follow "allowed is"."""

    def read(self, value: object, folder: Path) -> object:
        """The value of the field; a ``ValueError`` says why not. ``folder`` is what relative paths are relative to."""

    def show(self, value: Any) -> object:
        """The field's value the way it could have been written, as text, number, boolean, list or table."""


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    about: str
    allowed: ClassVar[str] = "true or false"

    def read(self, value: object, _folder: Path) -> bool:
        """Booleans only."""
        return bool(_typed(value, bool))

    def show(self, value: bool) -> bool:  # noqa: FBT001 - it is the value, not an option
        """As it is."""
        return value


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number."""

    about: str
    _: KW_ONLY
    least: int = 1
    most: int

    @property
    def allowed(self) -> str:
        """The bounds."""
        return f"a whole number from {self.least} to {self.most}"

    def read(self, value: object, _folder: Path) -> int:
        """Within its bounds."""
        return int(_typed(value, Annotated[int, msgspec.Meta(ge=self.least, le=self.most)]))

    def show(self, value: int) -> int:
        """As it is."""
        return value


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes. ``never``: what 0 means, if it is allowed."""

    about: str
    _: KW_ONLY
    least: int = 1
    most: int
    never: str = ""

    @property
    def allowed(self) -> str:
        """The bounds, and both ways to write it."""
        zero = f", or 0 for {self.never}" if self.never else ""
        return f'bytes, from {show_size(self.least)} to {show_size(self.most)}{zero}, such as 65536 or "64 KiB"'

    def read(self, value: object, _folder: Path) -> int:
        """A number, or text with a unit."""
        octets = parse_size(value) if isinstance(value, str) else value
        if self.never and octets == 0 and not isinstance(octets, bool):
            return 0
        return int(_typed(octets, Annotated[int, msgspec.Meta(ge=self.least, le=self.most)]))

    def show(self, value: int) -> str:
        """In the largest unit that fits."""
        return show_size(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration. ``never``: what 0 means, if it is allowed."""

    about: str
    _: KW_ONLY
    least: float = 0.001
    most: float = 86400.0
    never: str = ""

    @property
    def allowed(self) -> str:
        """The bounds, and both ways to write it."""
        zero = f", or 0 for {self.never}" if self.never else ""
        return f'seconds, from {show_seconds(self.least)} to {show_seconds(self.most)}{zero}, such as 30 or "30 s"'

    def read(self, value: object, _folder: Path) -> float:
        """A number, or text with a unit."""
        seconds = float(_typed(parse_seconds(value) if isinstance(value, str) else value, float))
        if self.never and seconds == 0:
            return 0.0
        if not math.isfinite(seconds) or not self.least <= seconds <= self.most:
            raise ValueError
        return seconds

    def show(self, value: float) -> str:
        """In seconds."""
        return show_seconds(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text but an empty one."""

    about: str
    allowed: str = "text"

    def read(self, value: object, _folder: Path) -> str:
        """One line that is not empty."""
        text = str(_typed(value, Annotated[str, msgspec.Meta(min_length=1)]))
        if not text.isprintable():
            raise ValueError("the text must be one line without control characters")
        return text

    def show(self, value: str | None) -> str | None:
        """As it is."""
        return value


@dataclass(frozen=True, slots=True)
class Servers:
    """URLs of one server or several, each with a host. They may hold passwords, which are not shown."""

    about: str
    schemes: tuple[str, ...]
    example: str

    @property
    def allowed(self) -> str:
        """The form, by an example."""
        return f'a URL or several, such as "{self.example}"'

    def read(self, value: object, _folder: Path) -> tuple[str, ...]:
        """URLs that can be split."""
        urls = _texts(value)
        for url in urls:
            try:
                parts = urlsplit(url)
                usable = parts.scheme in self.schemes and parts.hostname and parts.port != 0
            except ValueError:
                usable = False
            if not usable:
                words = _words(tuple(f"{scheme}://" for scheme in self.schemes))
                raise ValueError(f"{self._hidden(url)!r} is not a URL with a host: write {words} before host and port")
        return urls

    def show(self, value: tuple[str, ...]) -> list[str]:
        """Without passwords."""
        return [self._hidden(url) for url in value]

    @staticmethod
    def _hidden(url: str) -> str:
        return _PASSWORD.sub(r"\1:***@", _TOKEN.sub("***@", url))


@dataclass(frozen=True, slots=True)
class File:
    """A path, relative to the directory of the file it is written in. ``exists``: whether it must be there at start."""

    about: str
    allowed: str = "the path of a file"
    _: KW_ONLY
    exists: bool = True

    def read(self, value: object, folder: Path) -> Path:
        """A path that can be shown in a message."""
        text = str(_typed(value, Annotated[str, msgspec.Meta(min_length=1)]))
        if not text.isprintable():
            raise ValueError("the path must not contain control characters")
        return folder / text

    def show(self, value: Path | None) -> str | None:
        """As text."""
        return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Listener:
    """An address with one of these schemes, or ``"off"``."""

    about: str
    schemes: Collection[str]

    @property
    def allowed(self) -> str:
        """The schemes."""
        names = [f"{name}:…" if name == "unix" else f"{name}://…" for name in SCHEMES if name in self.schemes]
        return _words((*names, "off"))

    def read(self, value: object, folder: Path) -> Address | None:
        """The address, None for ``"off"``."""
        text = str(_typed(value, str))
        if text == "off":
            return None
        address = parse_address(text, self.schemes)
        # Once more, because the path of a socket may have become too long.
        return parse_address(str(address.below(folder)), self.schemes)

    def show(self, value: Address | None) -> str:
        """As it is written."""
        return "off" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words. ``not_here`` is a word that others of its kind may have, and why this key may not."""

    about: str
    words: tuple[str, ...]
    not_here: tuple[str, str] | None = None

    @property
    def allowed(self) -> str:
        """The words."""
        return _words(self.words)

    def read(self, value: object, _folder: Path) -> str:
        """One of the words, letter by letter."""
        # 1.3 without quotes, as in --set tls.minimum_version=1.3, is a number to TOML.
        word = str(value) if isinstance(value, float) else value
        if self.not_here is not None and word == self.not_here[0]:
            raise ValueError(self.not_here[1])
        if not isinstance(word, str) or word not in self.words:
            raise ValueError
        return word

    def show(self, value: str | None) -> str | None:
        """As it is."""
        return value


@dataclass(frozen=True, slots=True)
class Choices:
    """Several of a few words."""

    about: str
    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The words."""
        return f"{_words(self.words)}, or a list of them"

    def read(self, value: object, _folder: Path) -> tuple[str, ...]:
        """One of the words, or a list of them."""
        found = _texts(value)
        if not set(found) <= set(self.words):
            raise ValueError
        return found

    def show(self, value: tuple[str, ...]) -> list[str]:
        """As a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of web pages."""

    about: str
    allowed: ClassVar[str] = f'an origin, such as "{EXAMPLE}", or a list of them'

    def read(self, value: object, _folder: Path) -> tuple[str, ...]:
        """One origin, or a list of them, the way browsers write them."""
        return () if value == [] else tuple(parse_origin(each) for each in _texts(value))

    def show(self, value: tuple[str, ...]) -> list[str]:
        """As a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of channels."""

    about: str
    allowed: ClassVar[str] = 'a pattern of channels, such as "sensors/{user}/**", or a list of them'

    def read(self, value: object, _folder: Path) -> tuple[str, ...]:
        """One pattern, or a list of them."""
        found = _texts(value)
        for pattern in found:
            problem = _pattern_problem(pattern)
            if problem is None and re.search(r"[{}]", pattern.replace("{user}", "")):
                problem = "the only name in braces is {user}"
            if problem is not None:
                raise ValueError(problem if pattern == value else f"{as_written(pattern)}: {problem}")
        return found

    def show(self, value: tuple[str, ...]) -> list[str]:
        """As a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class QueueNames:
    """Names of queues, or patterns of them."""

    about: str
    allowed: ClassVar[str] = 'a name or pattern of queues, such as "jobs" or "orders/**", or a list of them'

    def read(self, value: object, _folder: Path) -> tuple[str, ...]:
        """One pattern, or a list of them."""
        found = _texts(value)
        for pattern in found:
            problem = _pattern_problem(pattern)
            if problem is not None:
                raise ValueError(problem if pattern == value else f"{as_written(pattern)}: {problem}")
        return found

    def show(self, value: tuple[str, ...]) -> list[str]:
        """As a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class Groups:
    """Names of groups, each with the names of its users."""

    about: str
    allowed: ClassVar[str] = 'names of groups, each with a list of users, such as operators = ["ann", "bob"]'

    def read(self, value: object, _folder: Path) -> dict[str, tuple[str, ...]]:
        """A table of lists."""
        table = _typed(value, dict[str, list[str]])
        if not all(name and all(users) for name, users in table.items()):
            raise ValueError("a name is empty")
        return {name: tuple(users) for name, users in table.items()}

    def show(self, value: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
        """As a table of lists."""
        return {name: list(users) for name, users in value.items()}


def _pattern_problem(pattern: str) -> str | None:
    """Why this can't be a pattern; None where it can."""
    problem = name_problem(pattern)
    if problem is None and "**" in pattern.removesuffix("/**").removesuffix("**"):
        problem = "** is only allowed at the end"
    return problem


def as_written(value: object) -> str:
    """A value of any type as an error message shows it: on one line, not too long, nothing a terminal would obey."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…", ensure_ascii=True)
    if isinstance(value, list):
        return "an empty list" if not value else f"a list that begins with {as_written(value[0])}"
    if isinstance(value, int) and abs(value) >= _LARGEST_SHOWN:
        return "a huge number"
    return str(value)


def _typed(value: object, wanted: Any) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, RecursionError):
        # The words of the kind itself say better what is allowed.
        raise ValueError from None


def _texts(value: object) -> tuple[str, ...]:
    found = tuple(_typed([value] if isinstance(value, str) else value, list[str]))
    if not found or not all(found):
        raise ValueError
    return found


def _words(words: tuple[str, ...]) -> str:
    quoted = [f'"{word}"' for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
