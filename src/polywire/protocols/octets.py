"""Octets compared in place: what the scanners for runs of frames ask of every frame."""

from librt.strings import read_i64_le
from mypy_extensions import i64


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
