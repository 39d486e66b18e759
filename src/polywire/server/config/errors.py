"""What can be wrong with a configuration: problems, each with its place, and the error that carries them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polywire.errors import PolywireError


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. ``line`` and ``column`` count from 1, 0 stands for unknown."""

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
    """One thing that is wrong: with which key (dotted, or empty), where it stands, and what to do about it."""

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
