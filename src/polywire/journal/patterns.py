"""Which channels a pattern means: ``*`` is one level, a last ``**`` any number of levels, none included.

A journal has millions of rows and few channels, so each different channel of a batch is looked at once.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc


class ChannelPatterns:
    """One or several patterns, as a test of a column of channels."""

    def __init__(self, patterns: str | Iterable[str]) -> None:
        wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        names = [pattern for pattern in wanted if not _is_wild(pattern)]
        wild = [_expression(pattern) for pattern in wanted if _is_wild(pattern)]
        self._names: Final[Any] = pa.array(names, pa.utf8())
        self._wild: Final = re.compile("|".join(wild), re.DOTALL) if wild else None

    def match(self, channels: Any) -> Any:
        """True for each row whose channel is meant, as an array."""
        if self._wild is None:
            return pc.is_in(channels, value_set=self._names)
        encoded = channels.dictionary_encode()
        names = set(self._names.to_pylist())
        meant = [name in names or self._wild.fullmatch(name) is not None for name in encoded.dictionary.to_pylist()]
        return pc.fill_null(pc.take(pa.array(meant, pa.bool_()), encoded.indices), fill_value=False)


def _is_wild(pattern: str) -> bool:
    levels = pattern.split("/")
    return "*" in levels or levels[-1] == "**"


def _expression(pattern: str) -> str:
    levels = pattern.split("/")
    rest = levels[-1] == "**"
    if rest:
        levels.pop()
    written = "/".join("[^/]*" if level == "*" else re.escape(level) for level in levels)
    if not rest:
        return written
    return written + "(?:/.*)?" if levels else ".*"
