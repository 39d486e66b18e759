"""FMQP's topics: what is valid, and which are equivalent.

Topics are compared level by level. ``*`` stands for any one level, on either side (FMQP-20). Slashes at the ends do
not count (FMQP-14), those inside do.
"""

MAX_OCTETS = 255
"""FMQP-11: a topic has at most 255 octets; its length field is one octet."""

WILDCARD = "*"
SERVICE_LEVEL = "$"


def problem(raw: bytes) -> tuple[str, str] | None:
    """Why the octets of a topic are invalid, as (rule, reason), or None where they are fine."""
    stripped = raw.strip(b"/")
    if not stripped:
        return ("FMQP-15", "the topic is empty" if not raw else "the topic consists of slashes only")
    if b"\0" in stripped:
        return ("FMQP-12", "the topic contains NUL")
    try:
        stripped.decode()
    except UnicodeDecodeError as error:
        return ("FMQP-10", f"the topic is not UTF-8 at its octet {error.start}")
    return None


def plain(raw: bytes) -> bool:
    """Whether a publication to this topic may be forwarded as it stands: valid, stripped, no wildcard, no service."""
    if raw[:1] == b"/" or raw[-1:] == b"/" or problem(raw) is not None:
        return False
    return not (b"*" in raw and WILDCARD in raw.decode().split("/")) and not is_service(raw.decode())


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
