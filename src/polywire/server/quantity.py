"""Sizes and durations the way people write them: ``"16 MiB"``, ``"30 s"``."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

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
    """The octets that ``"16 MiB"`` stands for. A ``ValueError`` says what is wrong with it."""
    amount, unit = _split(text, SIZE_UNITS)
    octets = amount * SIZE_UNITS[unit]
    if octets.denominator != 1:
        raise ValueError("this is not a whole number of octets")
    return int(octets)


def parse_seconds(text: str) -> float:
    """The seconds that ``"30 s"`` stands for. A ``ValueError`` says what is wrong with it."""
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
