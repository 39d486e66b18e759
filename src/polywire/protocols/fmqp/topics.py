"""FMQP's topics: what is valid, and which are equivalent.

Topics are compared level by level. ``*`` stands for any one level, on either side (FMQP-20). Slashes at the ends do
not count (FMQP-14), those inside do.
"""

from typing import Final

from mypy_extensions import i64

MAX_OCTETS = 255
"""FMQP-11: a topic has at most 255 octets; its length field is one octet."""

SLASH: Final = 0x2F
DOLLAR: Final = 0x24
STAR: Final = 0x2A
FIRST_BEYOND_ASCII: Final = 0x80
WILDCARD = "*"
SERVICE_LEVEL = "$"


def read(raw: bytes) -> str | None:
    """The stripped topic in these octets, or None where they are not a topic; ``problem`` then says why."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError:
        return None
    if topic.startswith("/") or topic.endswith("/"):
        topic = topic.strip("/")
    return None if not topic or "\0" in topic else topic


def problem(raw: bytes) -> tuple[str, str]:
    """What is wrong with octets that ``read`` refuses, as (rule, reason)."""
    if not raw.strip(b"/"):
        return ("FMQP-15", "the topic consists of slashes only" if raw else "the topic is empty")
    if b"\0" in raw:
        return ("FMQP-12", "the topic contains NUL")
    return ("FMQP-10", "the topic is not UTF-8")


def plain(raw: bytes) -> bool:
    """Whether a publication to this topic may be forwarded as it stands: valid, stripped, no wildcard, no service."""
    length: i64 = len(raw)
    if length > 0 and raw[0] != SLASH and raw[0] != DOLLAR and raw[length - 1] != SLASH:
        i: i64 = 0
        while i < length and 0 < raw[i] < FIRST_BEYOND_ASCII and raw[i] != STAR:
            i += 1
        if i == length:
            return True  # as nearly all are: what follows takes ten times as long
    topic = read(raw)
    if topic is None or len(topic.encode()) != len(raw) or is_service(topic):
        return False
    return WILDCARD not in topic or WILDCARD not in topic.split("/")


def is_service(topic: str) -> bool:
    """FMQP-23: whether a stripped topic begins with the level ``$``."""
    return topic == SERVICE_LEVEL or topic.startswith("$/")


def equivalent(one: str, other: str) -> bool:
    """FMQP-19: whether two topics have the same number of levels, and equivalent ones in the same places."""
    if one == other:
        return True
    ones = one.strip("/").split("/")
    others = other.strip("/").split("/")
    if len(ones) != len(others):
        return False
    for mine, theirs in zip(ones, others, strict=True):
        if mine != theirs and mine != WILDCARD and theirs != WILDCARD:  # noqa: PLR1714 - one comparison is enough mostly
            return False
    return True
