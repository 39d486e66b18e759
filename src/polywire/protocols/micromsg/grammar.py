"""The text grammar of COMMAND and ERROR frames, ``name;key=value,key=value``, and the FIELD all names are made of."""

from typing import Final

from mypy_extensions import i64

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.url_encoding import decoded, encoded, shown

NAME_RULE: Final = "MICROMSG-58"
KEY_RULE: Final = "MICROMSG-59"
GRAMMAR_RULE: Final = "MICROMSG-163"

Pairs = tuple[tuple[str, str], ...]


def is_field(text: str) -> bool:
    """MICROMSG-90: whether a text is one or more lower-case letters, digits and hyphens."""
    for character in text:
        if not ("a" <= character <= "z" or "0" <= character <= "9" or character == "-"):
            return False
    return bool(text)


def require_field(text: str, what: str, rule: str, at: int) -> None:
    """Raise ``MalformedError`` unless the text is a FIELD."""
    if not is_field(text):
        allowed = "only lower-case letters, digits and hyphens are allowed" if text else "it is empty"
        raise MalformedError(f"{what} {shown(text)} is not a name: {allowed}", rule=rule, at=at)


def require_name(text: str, what: str, rule: str, at: int) -> None:
    """The same, but upper-case letters are allowed too: the document's own examples have them (MICROMSG-189)."""
    if not (text.isascii() and is_field(text.lower())):
        allowed = "only letters, digits and hyphens are allowed" if text else "it is empty"
        raise MalformedError(f"{what} {shown(text)} is not a name: {allowed}", rule=rule, at=at)


def printable(octets: bytes, rule: str) -> str:
    """The octets as text, which must be printable ASCII."""
    end: i64 = len(octets)
    pos: i64 = 0
    while pos < end:
        octet: i64 = octets[pos]
        if octet < 32 or octet > 126:
            raise MalformedError(f"octet {octet} is not printable ASCII; escape it", rule=rule, at=pos)
        pos += 1
    return octets.decode("ascii")


def read_pairs(text: str, start: int, what: str, *, rule: str, twice: str, generous: bool = False) -> Pairs:
    """The pairs of ``key=value,key=value``, which begins at ``start``.

    ``generous``: ``key:value`` is a pair too, and keys may contain upper-case letters.
    """
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    at = start
    for piece in text.split(","):
        split = piece.find("=")
        if generous:
            other = piece.find(":")
            if other >= 0 and (split < 0 or other < split):
                split = other
        key = piece if split < 0 else piece[:split]
        if generous:
            require_name(key, what, rule, at)
        else:
            require_field(key, what, rule, at)
        if split < 0:
            raise MalformedError(f"{what} {shown(key)} has no value", rule=twice, at=at)
        if key in seen:
            raise MalformedError(f"{what} {shown(key)} stands twice", rule=twice, at=at)
        seen.add(key)
        pairs.append((key, decoded(piece[split + 1 :], at + split + 1)))
        at += len(piece) + 1
    return tuple(pairs)


def write_pairs(pairs: Pairs, what: str, rule: str, twice: str) -> str:
    """The text of pairs. Raises ``LocalProtocolError`` for a key that may not be sent."""
    seen: set[str] = set()
    written: list[str] = []
    for key, value in pairs:
        if not is_field(key):
            raise LocalProtocolError(f"{what} {shown(key)} is not a name", rule=rule)
        if key in seen:
            raise LocalProtocolError(f"{what} {shown(key)} stands twice", rule=twice)
        seen.add(key)
        written.append(f"{key}={encoded(value)}")
    return ",".join(written)


def read(payload: bytes) -> tuple[str, Pairs]:
    """Name, in lower case, and arguments of a COMMAND or ERROR payload. Raises ``MalformedError``."""
    text = printable(payload, GRAMMAR_RULE)
    semicolon = text.find(";")
    if semicolon < 0:
        semicolon = len(text)
    name = text[:semicolon]
    require_name(name, "the name", NAME_RULE, 0)
    name = name.lower()  # MICROMSG-190
    rest = text[semicolon + 1 :]
    if not rest:
        return (name, ())
    return (name, read_pairs(rest, semicolon + 1, "the key", rule=KEY_RULE, twice=GRAMMAR_RULE))


def write(name: str, arguments: Pairs) -> bytes:
    """The payload of a COMMAND or ERROR frame. Raises ``LocalProtocolError``."""
    if not is_field(name):
        raise LocalProtocolError(f"{shown(name)} is not a name", rule=NAME_RULE)
    if not arguments:
        return name.encode("ascii")
    return f"{name};{write_pairs(arguments, 'the key', KEY_RULE, GRAMMAR_RULE)}".encode("ascii")
