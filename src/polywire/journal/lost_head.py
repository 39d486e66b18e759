"""A damaged head of a segment, made again, so that the batches behind it can be decoded.

The only things in a head that are not the same in every segment are the node's name, how many kinds of rows there
were, and which protocols the hub had. So heads are made for the names that may have stood there, with polywire's own
protocols and with those installed here, and one is taken if the damaged head proves it: its CRC is the one that was
written, or it differs in nothing but one digit of that. What is damaged in more than one place at once may stay lost.
"""

import dataclasses
import functools
import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polywire.journal.framing import CRC_DIGITS, BadMessage, digits_at, parse_message
from polywire.journal.head import Head, make_head, read_head
from polywire.journal.kinds import EARLIER_KINDS, KINDS
from polywire.registry import built_in_names, names

LONGEST_NAME: Final = 64
"""In octets; hosts have no longer names."""

FIRST_PROTOCOLS: Final = 7
"""How many names of protocols the first segments had."""

_LENGTH: Final = struct.Struct("<I")
_NOT_COMPRESSED: Final = 1 << 31


def find_head(data: memoryview) -> Head:
    """The head at the beginning of ``data``, if need be made again, and its ``damage`` told.

    ``BadMessage`` where neither can be.
    """
    try:
        return read_head(data)
    except BadMessage as error:
        kinds = (len(KINDS), *EARLIER_KINDS)
        for name, protocols, count in itertools.product(_names(data), _protocols(), kinds):
            made = make_head(name, protocols, count)
            if _proves(data, made):
                return dataclasses.replace(made, damage=error.reason)
        raise


def write_head(segment: Path, head: Head) -> None:
    """Put a head that was made again where it belongs."""
    with segment.open("r+b") as file:
        file.write(head.octets)
        file.flush()
        os.fsync(file.fileno())


def _proves(damaged: memoryview, made: Head) -> bool:
    octets = made.octets
    if len(damaged) < len(octets):
        return False
    at = digits_at(memoryview(octets), parse_message(memoryview(octets), 0, len(octets)).length)
    behind = at + CRC_DIGITS
    wrong = sum(one != other for one, other in zip(damaged[at:behind], octets[at:behind], strict=True))
    if wrong == 1:
        return damaged[:at] == octets[:at] and damaged[behind : len(octets)] == octets[behind:]
    return not wrong


def _names(data: memoryview) -> Iterator[str]:
    """Names that may have stood there: as it is, with one bit changed, with its length changed."""
    at = _name_position()
    if len(data) < at:
        return
    length = _LENGTH.unpack_from(data, at - _LENGTH.size)[0] & ~_NOT_COMPRESSED
    if length <= LONGEST_NAME:
        found = bytes(data[at : at + length])
        yield from _text(found)
        for bit in range(8 * len(found)):
            changed = bytearray(found)
            changed[bit // 8] ^= 1 << bit % 8
            yield from _text(changed)
    for other in range(1, LONGEST_NAME + 1):
        if other != length:
            yield from _text(bytes(data[at : at + other]))


def _protocols() -> set[tuple[str, ...]]:
    """The lists of protocols that hubs may have had: those here, and polywire's own, of which there were fewer once."""
    own = built_in_names()
    return {names(), *(own[:count] for count in range(FIRST_PROTOCOLS, len(own) + 1))}


def _text(octets: bytes | bytearray) -> Iterator[str]:
    try:
        yield octets.decode()
    except UnicodeDecodeError:
        return


@functools.cache
def _name_position() -> int:
    """Where in a head the name stands: where two of them differ last."""
    one, other = (make_head(name, ()).octets for name in "ab")
    return max(at for at in range(len(one)) if one[at] != other[at])
