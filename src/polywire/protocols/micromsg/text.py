"""The texts inside MicroMsg2's frames: URL encoding, commands, lists of extensions, properties and JSON payloads.

Reading raises ``MalformedError``, which names the rule and the position; writing raises ``LocalProtocolError``.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import ClassVar, Final, final
from urllib.parse import quote

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.wire.frame import Frame

ESCAPE_RULE: Final = "MICROMSG-162"
COMMAND_NAME_RULE: Final = "MICROMSG-58"
COMMAND_KEY_RULE: Final = "MICROMSG-59"
COMMAND_RULE: Final = "MICROMSG-163"
EXTENSION_RULE: Final = "MICROMSG-17"
EXTENSION_KEY_RULE: Final = "MICROMSG-18"
LIST_RULE: Final = "MICROMSG-164"
COUNT_RULE: Final = "MICROMSG-113"
PROPERTIES_RULE: Final = "MICROMSG-161"

QUOTE: Final = 34
PERCENT: Final = 37
COMMA: Final = 44
COLON: Final = 58
SEMICOLON: Final = 59
OPEN_LIST: Final = 91
BACKSLASH: Final = 92
CLOSE_LIST: Final = 93
OPEN_OBJECT: Final = 123
CLOSE_OBJECT: Final = 125


# URL encoding: percent escapes of UTF-8. A "+" is a plus sign: the examples of MicroMsg2 write a space as "%20".


def url_encoded(text: str) -> str:
    """The text with everything but letters, digits and ``-._~`` escaped."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{shown(text)} can't be written as UTF-8", rule=ESCAPE_RULE) from error


def url_decoded(text: str, at: int = 0) -> str:
    """The text without its escapes. ``at`` is its position, for the ``MalformedError`` it raises."""
    if "%" not in text:
        return text
    data = text.encode("utf-8", "surrogatepass")
    end: i64 = len(data)
    out = BytesWriter()
    pos: i64 = 0
    while pos < end:
        byte: i64 = data[pos]
        if byte == PERCENT:
            high: i64 = _hexadecimal(data, pos + 1)
            low: i64 = _hexadecimal(data, pos + 2)
            if high < 0 or low < 0:
                raise MalformedError("a % is not followed by two hexadecimal digits", rule=ESCAPE_RULE, at=at + pos)
            byte = high * 16 + low
            pos += 2
        out.append(byte)
        pos += 1
    try:
        return out.getvalue().decode()
    except UnicodeDecodeError:
        raise MalformedError("the escapes are not UTF-8", rule=ESCAPE_RULE, at=at) from None


def _hexadecimal(data: bytes, at: i64) -> i64:
    """The value of the hexadecimal digit at a position, -1 if there is none."""
    if at >= i64(len(data)):
        return -1
    byte: i64 = data[at]
    if 48 <= byte <= 57:
        return byte - 48
    letter: i64 = byte | 32
    if 97 <= letter <= 102:
        return letter - 87
    return -1


def shown(text: str) -> str:
    """A text from the peer as it may appear in a message: quoted, and cut if it is long."""
    return ascii(text) if len(text) <= 40 else f"{text[:40]!a}… ({len(text)} characters)"


# COMMAND and ERROR frames: "name;key=value,key=value".

Pairs = tuple[tuple[str, str], ...]


def is_field(text: str) -> bool:
    """MICROMSG-90: whether a text is one or more lower-case letters, digits and hyphens."""
    for character in text:
        if not ("a" <= character <= "z" or "0" <= character <= "9" or character == "-"):
            return False
    return bool(text)


def read_command(payload: bytes) -> tuple[str, Pairs]:
    """Name, in lower case, and arguments of a COMMAND or ERROR payload. Raises ``MalformedError``."""
    text = _printable(payload, COMMAND_RULE)
    semicolon = text.find(";")
    if semicolon < 0:
        semicolon = len(text)
    name = text[:semicolon]
    _require_name(name, "the name", COMMAND_NAME_RULE, 0, generous=True)
    name = name.lower()  # MICROMSG-190
    rest = text[semicolon + 1 :]
    if not rest:
        return (name, ())
    return (name, _read_pairs(rest, semicolon + 1, "the key", rule=COMMAND_KEY_RULE, twice=COMMAND_RULE))


def write_command(name: str, arguments: Pairs) -> bytes:
    """The payload of a COMMAND or ERROR frame. Raises ``LocalProtocolError``."""
    if not is_field(name):
        raise LocalProtocolError(f"{shown(name)} is not a name", rule=COMMAND_NAME_RULE)
    if not arguments:
        return name.encode("ascii")
    return f"{name};{_write_pairs(arguments, 'the key', COMMAND_KEY_RULE, COMMAND_RULE)}".encode("ascii")


def _require_name(text: str, what: str, rule: str, at: int, *, generous: bool) -> None:
    """Raise ``MalformedError`` unless the text is a FIELD.

    ``generous``: upper-case letters are allowed too, since the document's own examples have them (MICROMSG-189).
    """
    if not (is_field(text) or (generous and text.isascii() and is_field(text.lower()))):
        letters = "letters" if generous else "lower-case letters"
        problem = f"only {letters}, digits and hyphens are allowed" if text else "it is empty"
        raise MalformedError(f"{what} {shown(text)} is not a name: {problem}", rule=rule, at=at)


def _printable(data: bytes, rule: str) -> str:
    """The bytes as text, which must be printable ASCII."""
    end: i64 = len(data)
    pos: i64 = 0
    while pos < end:
        byte: i64 = data[pos]
        if byte < 32 or byte > 126:
            raise MalformedError(f"byte {byte} is not printable ASCII; escape it", rule=rule, at=pos)
        pos += 1
    return data.decode("ascii")


def _read_pairs(text: str, start: int, what: str, *, rule: str, twice: str, generous: bool = False) -> Pairs:
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
        _require_name(key, what, rule, at, generous=generous)
        if split < 0:
            raise MalformedError(f"{what} {shown(key)} has no value", rule=twice, at=at)
        if key in seen:
            raise MalformedError(f"{what} {shown(key)} appears twice", rule=twice, at=at)
        seen.add(key)
        pairs.append((key, url_decoded(piece[split + 1 :], at + split + 1)))
        at += len(piece) + 1
    return tuple(pairs)


def _write_pairs(pairs: Pairs, what: str, rule: str, twice: str) -> str:
    seen: set[str] = set()
    written: list[str] = []
    for key, value in pairs:
        if not is_field(key):
            raise LocalProtocolError(f"{what} {shown(key)} is not a name", rule=rule)
        if key in seen:
            raise LocalProtocolError(f"{what} {shown(key)} appears twice", rule=twice)
        seen.add(key)
        written.append(f"{key}={url_encoded(value)}")
    return ",".join(written)


# Lists of extensions in handshake messages: "name:property=value,property=value;name". They are read generously where
# MicroMsg2's own examples differ from its grammar, and written in one form only.

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


@final
@mypyc_attr(acyclic=True)
class NamedExtension(Frame):
    """One extension of a list: its name and its properties."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name", "properties")

    def __init__(self, name: str, properties: Pairs = ()) -> None:
        self.name: Final = name
        self.properties: Final = properties

    def value(self, name: str) -> str | None:
        """The value of a property, None if it has no such property."""
        for key, value in self.properties:
            if key == name:
                return value
        return None

    @property
    def max_count(self) -> int:
        """How many messages may be unacknowledged, as ``batch-ack`` says or leaves out."""
        value = self.value(MAX_COUNT)
        count = DEFAULT_COUNT if value is None else _read_count(value)
        return DEFAULT_COUNT if count is None else count


def batch_ack(count: int = DEFAULT_COUNT) -> NamedExtension:
    """``batch-ack`` with a count, in the form it is written."""
    if not 1 <= count <= LARGEST_COUNT:
        raise LocalProtocolError(f"max-count is {count}, allowed are 1 to {LARGEST_COUNT}", rule=COUNT_RULE)
    return NamedExtension(BATCH_ACK, ((MAX_COUNT, str(count)),))


def read_extensions(data: bytes) -> tuple[NamedExtension, ...]:
    """The extensions of a list. Raises ``MalformedError``."""
    text = _printable(data, EXTENSION_RULE)
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
        _require_name(name, "the extension", EXTENSION_RULE, at, generous=True)
        if name in seen:
            raise MalformedError(f"the extension {shown(name)} appears twice", rule=LIST_RULE, at=at)
        seen.add(name)
        properties: Pairs = ()
        if 0 <= colon < len(piece) - 1:
            properties = _read_pairs(
                piece[colon + 1 :],
                at + colon + 1,
                "the property",
                rule=EXTENSION_KEY_RULE,
                twice=LIST_RULE,
                generous=True,
            )
        if name == BATCH_ACK:
            properties = _counted(properties, at)
        found.append(NamedExtension(name, properties))
        at = end + 1
    return tuple(found)


def write_extensions(extensions: tuple[NamedExtension, ...]) -> bytes:
    """The text of a list. Raises ``LocalProtocolError`` for what may not be sent."""
    seen: set[str] = set()
    written: list[str] = []
    for extension in extensions:
        name = extension.name
        if not is_field(name):
            raise LocalProtocolError(f"the extension {shown(name)} is not a name", rule=EXTENSION_RULE)
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
            name += ":" + _write_pairs(properties, "the property", EXTENSION_KEY_RULE, LIST_RULE)
        written.append(name)
    return ";".join(written).encode("ascii")


def _counted(properties: Pairs, at: int) -> Pairs:
    """The properties of ``batch-ack`` as we write them: ``max-count`` alone, or nothing without a count."""
    count = 0
    for name, value in properties:
        if name not in {MAX_COUNT, "count"}:  # MICROMSG-111
            continue
        number = _read_count(value)
        if number is None:
            raise MalformedError(f"max-count is {shown(value)}, not a positive number", rule=COUNT_RULE, at=at)
        if count:
            raise MalformedError("max-count appears twice, once as count", rule=LIST_RULE, at=at)
        count = number
    return ((MAX_COUNT, str(count)),) if count else ()


def _read_count(value: str) -> int | None:
    """The number in a ``max-count``, or None if it is not a positive one. It is at most ``LARGEST_COUNT``."""
    if not _are_digits(value):
        return None
    digits = value.lstrip("0")
    if not digits:
        return None
    return LARGEST_COUNT if len(digits) > 5 or int(digits) > LARGEST_COUNT else int(digits)


# Properties: "key:value;key:value;", and the typed values that they and filters are made of. A message keeps its
# properties as the text they came in, since most messages are passed on unread. The decoder has checked that text with
# ``properties_problem``, so that ``read_properties`` can't fail on it.

Value = int | float | str | datetime
"""What a property or a filter compares: a number, a text, or a date with its time zone."""

MAX_PROPERTIES: Final = 65535
"""MICROMSG-52: the length field has two bytes."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1

FINE: Final = -1
HIGH_ESCAPES: Final = -2


def properties_problem(data: bytes, start: i64, end: i64) -> MalformedError | None:
    """Why the properties at ``data[start:end]`` are invalid, or None if they are valid."""
    wrong: i64 = _scan(data, start, end)
    if wrong >= 0:
        return _explained(data, wrong, start, end)
    if wrong == HIGH_ESCAPES:
        try:
            read_properties(data[start:end].decode("ascii"))
        except MalformedError as error:
            return error
    return None


def read_properties(text: str) -> dict[str, Value]:
    """The properties by key; if a key appears twice, the last one counts. Raises ``MalformedError``."""
    data = text.encode("utf-8", "surrogatepass")
    end: i64 = len(data)
    wrong: i64 = _scan(data, 0, end)
    if wrong >= 0:
        raise _explained(data, wrong, 0, end)
    found: dict[str, Value] = {}
    pos: i64 = 0
    while pos < end:
        colon = pos
        while data[colon] != COLON:
            colon += 1
        behind = colon + 1
        while behind < end and data[behind] != SEMICOLON:
            behind += 1
        value = text[colon + 1 : behind]
        typed = read_value(value, colon + 1)
        found[text[pos:colon]] = url_decoded(value, colon + 1) if typed is None else typed
        pos = behind + 1
    return found


def _scan(data: bytes, start: i64, end: i64) -> i64:
    """The position of the first wrong byte, FINE, or HIGH_ESCAPES if escapes are still to be decoded."""
    pos = start
    fine: i64 = FINE
    while pos < end:
        key = pos
        while pos < end and _is_key(data[pos]):
            pos += 1
        if pos == key or pos == end or data[pos] != COLON:  # noqa: PLR1714, SIM109 - native comparisons
            return pos
        pos += 1
        while pos < end:
            byte: i64 = data[pos]
            if byte == SEMICOLON:
                break
            if byte == PERCENT:
                if pos + 3 > end or _hexadecimal(data, pos + 1) < 0 or _hexadecimal(data, pos + 2) < 0:
                    return pos
                if _hexadecimal(data, pos + 1) >= 8:
                    fine = HIGH_ESCAPES
                pos += 2
            elif byte < 32 or byte > 126:
                return pos
            pos += 1
        pos += 1
    return fine


def _is_key(byte: i64) -> bool:
    """Whether a byte may be part of a key: those of a FIELD, and ``_`` (MICROMSG-143)."""
    return 97 <= byte <= 122 or 48 <= byte <= 57 or byte == 45 or byte == 95  # noqa: PLR1714 - native


def _explained(data: bytes, at: i64, start: i64, end: i64) -> MalformedError:
    """A description of what ``_scan`` found wrong at a position."""
    rule = PROPERTIES_RULE
    key = data.rfind(b";", start, at) + 1 or start
    if at == end:
        reason = "the last property has no colon"
    elif data.find(b":", key, at) < 0:
        reason = f"byte {data[at]} is in the place of a property's key or its colon"
    elif data[at] == PERCENT:
        reason = "a % in the properties is not followed by two hexadecimal digits"
        rule = ESCAPE_RULE
    else:
        reason = f"byte {data[at]} in the properties is not printable ASCII; escape it"
    return MalformedError(reason, rule=rule, at=at - start)


def write_properties(properties: dict[str, Value]) -> str:
    """The text of properties, every value with its type. Raises ``LocalProtocolError``."""
    written: list[str] = []
    for key, value in properties.items():
        if not is_key(key):
            raise LocalProtocolError(f"{shown(key)} can't be a property's key", rule="MICROMSG-52")
        written.append(f"{key}:{write_value(value)};")
    return "".join(written)


def is_key(text: str) -> bool:
    """Whether a text may be the key of a property."""
    end: i64 = len(text)
    at: i64 = 0
    while at < end:
        if not _is_key(i64(ord(text[at]))):
            return False
        at += 1
    return end > 0


def as_key(name: str) -> str:
    """A header's name as the key of a property: in lower case, with a hyphen for everything that a key can't hold."""
    return name if is_key(name) else "".join([one if is_key(one) else "-" for one in name.lower()])


def read_value(text: str, at: int = 0) -> Value | None:
    """A typed value, or None if the text has no valid type letter. Raises ``MalformedError`` for bad escapes."""
    letter = text[:1]
    if letter == "T":
        return url_decoded(text[1:], at + 1)
    if letter == "N":
        return _read_number(text[1:])
    if letter == "D":
        return _read_date(text[1:])
    return None


def write_value(value: Value) -> str:
    """The text of a typed value. Raises ``LocalProtocolError`` for what MicroMsg2 can't carry."""
    if isinstance(value, str):
        return "T" + url_encoded(value)
    if isinstance(value, bool):
        raise LocalProtocolError(f"{value} is not a number, a date or a text", rule="MICROMSG-77")
    if isinstance(value, int):
        if not LEAST <= value <= MOST:
            raise LocalProtocolError(f"{value} is not a 64-bit integer", rule="MICROMSG-78")
        return f"N{value}"
    if isinstance(value, float):
        if not isfinite(value):
            raise LocalProtocolError(f"{value} is not a number that can be written", rule="MICROMSG-78")
        digits = format(Decimal(repr(value)), "f")
        return f"N{digits}" if "." in digits else f"N{digits}.0"
    if value.tzinfo is None:
        raise LocalProtocolError(f"the date {value} has no time zone", rule="MICROMSG-79")
    microseconds = (value - EPOCH) // MICROSECOND
    sign = "-" if microseconds < 0 else ""
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    return f"D{sign}{seconds}.{f'{fraction:06}'.rstrip('0') or '0'}"


def _read_number(text: str) -> int | float | None:
    """MICROMSG-78: a 64-bit integer, or with a decimal point a float."""
    if len(text) < 19 and _are_digits(text):
        return int(text)
    digits = text.removeprefix("-")
    point = digits.find(".")
    if point >= 0:
        if not (_are_digits(digits[:point]) and _are_digits(digits[point + 1 :])):
            return None
        number = float(text)
        return number if isfinite(number) else None
    if not _are_digits(digits) or len(digits.lstrip("0")) > 19:
        return None
    whole = int(digits.lstrip("0") or "0")
    if len(digits) != len(text):
        whole = -whole
    return whole if LEAST <= whole <= MOST else None


def _read_date(text: str) -> datetime | None:
    """MICROMSG-79: seconds since 1970 UTC, to the microsecond."""
    digits = text.removeprefix("-")
    whole, point, fraction = digits.partition(".")
    whole = whole.lstrip("0") or whole[:1]
    if not _are_digits(whole) or len(whole) > 12 or (point and not _are_digits(fraction)):
        return None
    microseconds = int(whole) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
    try:
        return EPOCH + timedelta(microseconds=-microseconds if len(digits) != len(text) else microseconds)
    except OverflowError:
        return None


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


# The "json" extension: whether a payload is valid JSON (RFC 8259). The payload is walked, not built: a hostile one
# costs neither memory nor stack. Nesting is bounded, so that it is safe to build it later, too.

MAX_DEPTH: Final = 512

# What may come next.
VALUE: Final = 0
VALUE_OR_END: Final = 1
NAME: Final = 2
NAME_OR_END: Final = 3
END_OR_COMMA: Final = 4


def json_problem(payload: bytes, max_depth: int = MAX_DEPTH) -> str | None:
    """Why a payload is not JSON or nested too deep, or None if it is fine."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            return f"the payload is not JSON: not UTF-8 at byte {error.start}"
    wrong: i64 = _walk(payload, max_depth)
    if wrong < 0:
        return None
    end: i64 = len(payload)
    if wrong > end:
        return f"the payload is nested deeper than {max_depth} levels at byte {wrong - end - 1}"
    if wrong == end:
        return f"the payload is not JSON: it ends unfinished at byte {end}"
    return f"the payload is not JSON at byte {wrong}"


def _walk(data: bytes, max_depth: i64) -> i64:
    """The position where the data stops being JSON, -1 if it is JSON to its end.

    If it is nested too deep, that position plus the number of bytes plus one.
    """
    end: i64 = len(data)
    open_kinds = BytesWriter()
    depth: i64 = 0
    state: i64 = VALUE
    pos: i64 = _behind_space(data, 0)
    while pos < end:
        byte: i64 = data[pos]
        if state == END_OR_COMMA:
            if depth == 0:
                return pos
            in_list = open_kinds[depth - 1] == OPEN_LIST
            if byte == COMMA:
                state = VALUE if in_list else NAME
            elif byte == (CLOSE_LIST if in_list else CLOSE_OBJECT):
                depth -= 1
                open_kinds.truncate(depth)
            else:
                return pos
            pos += 1
        elif state == NAME or state == NAME_OR_END:  # noqa: PLR1714, SIM109 - native comparisons
            if byte == CLOSE_OBJECT and state == NAME_OR_END:
                depth -= 1
                open_kinds.truncate(depth)
                state = END_OR_COMMA
                pos += 1
            else:
                if byte != QUOTE:
                    return pos
                pos = _string(data, pos)
                if pos < 0:
                    return -pos - 1
                pos = _behind_space(data, pos)
                if pos == end or data[pos] != COLON:
                    return pos
                state = VALUE
                pos += 1
        elif byte == CLOSE_LIST and state == VALUE_OR_END:
            depth -= 1
            open_kinds.truncate(depth)
            state = END_OR_COMMA
            pos += 1
        elif byte == OPEN_LIST or byte == OPEN_OBJECT:  # noqa: PLR1714, SIM109 - native comparisons
            if depth == max_depth:
                return end + 1 + pos
            open_kinds.append(byte)
            depth += 1
            state = VALUE_OR_END if byte == OPEN_LIST else NAME_OR_END
            pos += 1
        else:
            pos = _string(data, pos) if byte == QUOTE else _scalar(data, pos)
            if pos < 0:
                return -pos - 1
            state = END_OR_COMMA
        pos = _behind_space(data, pos)
    return -1 if state == END_OR_COMMA and depth == 0 else end


def _behind_space(data: bytes, pos: i64) -> i64:
    end: i64 = len(data)
    while pos < end:
        byte: i64 = data[pos]
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:  # noqa: PLR1714 - native comparisons
            break
        pos += 1
    return pos


def _string(data: bytes, pos: i64) -> i64:
    """The position behind the string that begins at ``pos``; if it is wrong, minus that position minus one."""
    end: i64 = len(data)
    pos += 1
    while pos < end:
        byte: i64 = data[pos]
        if byte == QUOTE:
            return pos + 1
        if byte < 32:
            return -pos - 1
        if byte == BACKSLASH:
            pos += 1
            if pos == end:
                break
            escaped: i64 = data[pos]
            if escaped == 117:  # u
                digits: i64 = 0
                while digits < 4:
                    pos += 1
                    if _hexadecimal(data, pos) < 0:
                        return -pos - 1
                    digits += 1
            elif escaped not in {34, 47, 92, 98, 102, 110, 114, 116}:  # " / \ b f n r t
                return -pos - 1
        pos += 1
    return -end - 1


def _scalar(data: bytes, pos: i64) -> i64:
    """As ``_string``, for a number or one of the three words."""
    byte: i64 = data[pos]
    if byte == 116:
        return pos + 4 if data[pos : pos + 4] == b"true" else -pos - 1
    if byte == 102:
        return pos + 5 if data[pos : pos + 5] == b"false" else -pos - 1
    if byte == 110:
        return pos + 4 if data[pos : pos + 4] == b"null" else -pos - 1
    end: i64 = len(data)
    if byte == 45:
        pos += 1
    if pos < end and data[pos] == 48:
        pos += 1
    else:
        pos = _digits(data, pos)
    if 0 <= pos < end and data[pos] == 46:
        pos = _digits(data, pos + 1)
    if 0 <= pos < end and (data[pos] == 101 or data[pos] == 69):
        pos += 1
        if pos < end and (data[pos] == 43 or data[pos] == 45):
            pos += 1
        pos = _digits(data, pos)
    return pos


def _digits(data: bytes, pos: i64) -> i64:
    """The position behind one or more digits; if there are none, minus that position minus one."""
    end: i64 = len(data)
    start = pos
    while pos < end and 48 <= i64(data[pos]) <= 57:
        pos += 1
    return pos if pos > start else -pos - 1
