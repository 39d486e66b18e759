"""Octets compared in place, and names that come again and again: what decoders ask of every frame."""

from typing import Final, final

from librt.strings import read_i64_le
from mypy_extensions import i64

NAMES_KEPT: Final = 4096
LONGEST_KEPT: Final = 256


def same_octets(data: bytes, one: i64, other: i64, length: i64) -> bool:
    """Whether the ``length`` octets at two places of ``data`` are the same, eight at a time."""
    i: i64 = 0
    while i + 8 <= length:
        if read_i64_le(data, one + i) != read_i64_le(data, other + i):
            return False
        i += 8
    while i < length:
        if data[one + i] != data[other + i]:
            return False
        i += 1
    return True


@final
class Names:
    """Texts by their octets, some thousands of them.

    Channels come in with every message, and few differ. One that is known costs neither a decoding nor the memory of
    another text, and the hub's tables find it without computing its hash anew.
    """

    def __init__(self) -> None:
        self._texts: Final[dict[bytes, str]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def known(self, octets: bytes) -> str | None:
        """The text of these octets, if it is kept."""
        return self._texts.get(octets)

    def text(self, octets: bytes) -> str:
        """The text of these octets, which are UTF-8; it is kept for the next time."""
        found = self._texts.get(octets)
        if found is None:
            found = octets.decode()
            if len(octets) <= LONGEST_KEPT:
                if len(self._texts) >= NAMES_KEPT:
                    self._texts.clear()
                self._texts[octets] = found
        return found
