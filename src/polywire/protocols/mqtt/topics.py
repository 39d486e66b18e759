"""MQTT's strings, topic names and topic filters: what is valid, what matches, and how the hub writes them.

Levels are separated by slashes and may be empty. ``+`` is one level, ``#`` at the end is any number of
them. Nothing is normalized: two names are the same when their characters are (MQTT-164).
"""

from typing import Final

from librt.strings import read_i64_le
from mypy_extensions import i64

MAX_STRING: Final = 0xFFFF  # MQTT-002: bytes of a string, and of a binary field

ONE_LEVEL: Final = "+"
ALL_LEVELS: Final = "#"
RESERVED: Final = "$"

# Eight bytes at once: the top bit of each, the lowest of each, and each one of the two wildcards.
TOPS: Final = -0x7F7F_7F7F_7F7F_7F80
LOWS: Final = 0x0101_0101_0101_0101
PLUSES: Final = 0x2B2B_2B2B_2B2B_2B2B
HASHES: Final = 0x2323_2323_2323_2323


def text_problem(raw: bytes) -> tuple[str, str] | None:
    """Why bytes are not a string of MQTT's, as (rule, reason), or None where they are."""
    if b"\0" in raw:
        return ("MQTT-004", f"it contains U+0000 at its byte {raw.index(0)}")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return ("MQTT-003", f"it is not UTF-8 at its byte {error.start}")
    return None


def name_problem(raw: bytes) -> tuple[str, str] | None:
    """Why bytes are not a topic name, as (rule, reason), or None where they are."""
    if not raw:
        return ("MQTT-161", "it is empty, and must have at least one character")
    if len(raw) > MAX_STRING:
        return ("MQTT-163", f"it has {len(raw)} bytes, more than {MAX_STRING}")
    if b"+" in raw or b"#" in raw:
        return ("MQTT-099", "it contains a wildcard, which only topic filters may")
    return text_problem(raw)


def filter_problem(raw: bytes) -> tuple[str, str] | None:
    """Why bytes are not a topic filter, as (rule, reason), or None where they are."""
    if not raw:
        return ("MQTT-161", "it is empty, and must have at least one character")
    if len(raw) > MAX_STRING:
        return ("MQTT-163", f"it has {len(raw)} bytes, more than {MAX_STRING}")
    if b"#" in raw and (raw.index(b"#") != len(raw) - 1 or (len(raw) > 1 and raw[-2] != 47)):
        return ("MQTT-156", "it has a '#' that is not the whole last level")
    if b"+" in raw:
        for level in raw.split(b"/"):
            if b"+" in level and level != b"+":
                return ("MQTT-157", "it has a '+' that is not a whole level")
    return text_problem(raw)


def plain_name(data: bytes, start: i64, end: i64) -> bool:
    """Whether ``data[start:end]`` is a topic name in ASCII, seen without making anything of it.

    False does not mean invalid: ``name_problem`` decides about anything that is not plain ASCII.
    """
    if start == end:
        return False
    at: i64 = start
    while at + 8 <= end:
        word: i64 = read_i64_le(data, at)
        if word & TOPS != 0:
            return False
        # With all top bits clear, nothing here overflows, and a top bit comes up where a byte of the word is zero.
        plus: i64 = word ^ PLUSES
        hash_: i64 = word ^ HASHES
        if (((word - LOWS) & ~word) | ((plus - LOWS) & ~plus) | ((hash_ - LOWS) & ~hash_)) & TOPS != 0:
            return False
        at += 8
    while at < end:
        byte: i64 = data[at]
        if byte in (0, 0x23, 0x2B) or byte >= 0x80:
            return False
        at += 1
    return True


def matches(topic_filter: str, name: str) -> bool:
    """Whether a valid topic filter matches a valid topic name."""
    if topic_filter == name:
        return True
    if name[0] == RESERVED and topic_filter[0] != RESERVED:  # MQTT-159
        return False
    wanted = topic_filter.split("/")
    levels = name.split("/")
    for index, level in enumerate(wanted):
        if level == ALL_LEVELS:
            return True
        if index == len(levels) or level not in {ONE_LEVEL, levels[index]}:
            return False
    return len(wanted) == len(levels)


def name_for(channel: str, pattern: str) -> str:
    """The topic name under which a message of the hub's ``channel`` reaches a subscription to ``pattern``.

    It is the channel itself, but where the channel is a pattern (FMQP publishes to those): MQTT-100 wants a name that
    the filter matches, so its wildcards become the filter's levels, and ``*`` where the filter has a wildcard too.
    """
    if "\0" not in channel:
        return channel
    levels = channel.split("/")
    wanted = pattern.split("/")
    for index, level in enumerate(levels):
        if level.startswith("\0"):
            literal = index < len(wanted) and not wanted[index].startswith("\0")
            levels[index] = wanted[index] if literal else "*"
    return "/".join(levels)
