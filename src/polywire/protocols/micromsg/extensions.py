"""The lists of extensions in handshake messages, ``name:property=value,property=value;name``, and the known names.

Lists are read generously where MicroMsg2's own examples differ from its grammar, and written in one form only.
"""

from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.grammar import Pairs, is_field, printable, read_pairs, require_name, write_pairs
from polywire.protocols.micromsg.url_encoding import shown
from polywire.wire.frame import Frame

ACK = "ack"
BATCH_ACK = "batch-ack"
JSON = "json"
DOTNET = "dotnet"
PUB_SUB = "pub-sub"
X_AUTH = "x-auth"
KNOWN = (ACK, BATCH_ACK, JSON, DOTNET, PUB_SUB, X_AUTH)
"""MICROMSG-114."""
X_NACK = "x-nack"
"""MICROMSG-196: the hub's own extension with which a consumer rejects a queue's message."""
VENDOR_PREFIX = "x-"
"""MICROMSG-10."""

MAX_COUNT = "max-count"
DEFAULT_COUNT = 10
"""MICROMSG-65."""
LARGEST_COUNT = 65534
"""One less than there are sequence numbers, so that each number names one pending message; more is read as this."""

NAME_RULE: Final = "MICROMSG-17"
PROPERTY_RULE: Final = "MICROMSG-18"
LIST_RULE: Final = "MICROMSG-164"
COUNT_RULE: Final = "MICROMSG-113"


@final
@mypyc_attr(acyclic=True)
class NamedExtension(Frame):
    """One extension of a list: its name and its properties."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name", "properties")

    def __init__(self, name: str, properties: Pairs = ()) -> None:
        self.name: Final = name
        self.properties: Final = properties

    def value(self, name: str) -> str | None:
        """The value of a property, None where there is none."""
        for key, value in self.properties:
            if key == name:
                return value
        return None

    @property
    def max_count(self) -> int:
        """How many messages may be unacknowledged, as ``batch-ack`` says or leaves out."""
        value = self.value(MAX_COUNT)
        count = DEFAULT_COUNT if value is None else read_count(value)
        return DEFAULT_COUNT if count is None else count


def batch_ack(count: int = DEFAULT_COUNT) -> NamedExtension:
    """``batch-ack`` with a count, in the form it is written."""
    if not 1 <= count <= LARGEST_COUNT:
        raise LocalProtocolError(f"max-count is {count}, allowed are 1 to {LARGEST_COUNT}", rule=COUNT_RULE)
    return NamedExtension(BATCH_ACK, ((MAX_COUNT, str(count)),))


def read_count(value: str) -> int | None:
    """The number in a ``max-count``, or None where it is none or 0. Larger ones are read as ``LARGEST_COUNT``."""
    if not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    if not digits:
        return None
    return LARGEST_COUNT if len(digits) > 5 or int(digits) > LARGEST_COUNT else int(digits)


def read(octets: bytes) -> tuple[NamedExtension, ...]:
    """The extensions of a list. Raises ``MalformedError``."""
    text = printable(octets, NAME_RULE)
    found: list[NamedExtension] = []
    seen: set[str] = set()
    at = 0
    while at < len(text):
        end = text.find(";", at)
        if end < 0:
            end = len(text)
        piece = text[at:end]
        colon = piece.find(":")
        name = piece if colon < 0 else piece[:colon]
        if not name:
            raise MalformedError("an extension has no name", rule=LIST_RULE, at=at)
        require_name(name, "the extension", NAME_RULE, at)
        if name in seen:
            raise MalformedError(f"the extension {shown(name)} appears twice", rule=LIST_RULE, at=at)
        seen.add(name)
        properties: Pairs = ()
        if 0 <= colon < len(piece) - 1:
            start = at + colon + 1
            pieces = piece[colon + 1 :]
            properties = read_pairs(pieces, start, "the property", rule=PROPERTY_RULE, twice=LIST_RULE, generous=True)
        if name == BATCH_ACK:
            properties = _counted(properties, at)
        found.append(NamedExtension(name, properties))
        at = end + 1
    return tuple(found)


def _counted(properties: Pairs, at: int) -> Pairs:
    """The properties of ``batch-ack`` as we write them: ``max-count`` and nothing else, or nothing without a count."""
    count = 0
    for name, value in properties:
        if name not in {MAX_COUNT, "count"}:  # MICROMSG-111
            continue
        number = read_count(value)
        if number is None:
            raise MalformedError(f"max-count is {shown(value)}, not a number from 1 on", rule=COUNT_RULE, at=at)
        if count:
            raise MalformedError("max-count appears twice, once as count", rule=LIST_RULE, at=at)
        count = number
    return ((MAX_COUNT, str(count)),) if count else ()


def write(extensions: tuple[NamedExtension, ...]) -> bytes:
    """The text of a list. Raises ``LocalProtocolError`` for what may not be sent."""
    seen: set[str] = set()
    written: list[str] = []
    for extension in extensions:
        name = extension.name
        if not is_field(name):
            raise LocalProtocolError(f"the extension {shown(name)} is not a name", rule=NAME_RULE)
        if name in seen:
            raise LocalProtocolError(f"the extension {name} appears twice", rule=LIST_RULE)
        seen.add(name)
        properties = extension.properties
        if name == BATCH_ACK:
            try:
                properties = _counted(properties, 0) or ((MAX_COUNT, str(DEFAULT_COUNT)),)  # MICROMSG-112
            except MalformedError as error:
                raise LocalProtocolError(error.reason, rule=error.rule) from error
        if properties:
            name += ":" + write_pairs(properties, "the property", PROPERTY_RULE, LIST_RULE)
        written.append(name)
    return ";".join(written).encode("ascii")
