"""The ``json`` extension: whether a payload is valid JSON (RFC 8259).

The payload is walked, not built: a hostile one costs neither memory nor stack. Nesting is bounded, so that whoever
builds it later is safe too.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.protocols.micromsg.errors import BAD_FRAME
from polywire.protocols.micromsg.frames import Error
from polywire.protocols.micromsg.url_encoding import hexadecimal

MAX_DEPTH: Final = 512

QUOTE: Final = 34
COMMA: Final = 44
COLON: Final = 58
BACKSLASH: Final = 92
OPEN_LIST: Final = 91
CLOSE_LIST: Final = 93
OPEN_OBJECT: Final = 123
CLOSE_OBJECT: Final = 125

# What may come next.
VALUE: Final = 0
VALUE_OR_END: Final = 1
NAME: Final = 2
NAME_OR_END: Final = 3
END_OR_COMMA: Final = 4


def check(payload: bytes, *, max_depth: int = MAX_DEPTH) -> Error | None:
    """The ERROR to answer a payload with that is not JSON or nested deeper than allowed, or None."""
    reason = problem(payload, max_depth)
    return None if reason is None else Error(BAD_FRAME, (("reason", reason),))


def problem(payload: bytes, max_depth: int = MAX_DEPTH) -> str | None:
    """Why a payload is not JSON, or None where it is."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            return f"the payload is not JSON: not UTF-8 at octet {error.start}"
    wrong: i64 = _walk(payload, max_depth)
    if wrong < 0:
        return None
    end: i64 = len(payload)
    if wrong > end:
        return f"the payload is nested deeper than {max_depth} levels at octet {wrong - end - 1}"
    if wrong == end:
        return f"the payload is not JSON: it ends unfinished at octet {end}"
    return f"the payload is not JSON at octet {wrong}"


def _walk(data: bytes, max_depth: i64) -> i64:
    """The place where the data stops being JSON, -1 where it is JSON to its end.

    Where it is nested too deep, that place plus the number of octets plus one.
    """
    end: i64 = len(data)
    open_kinds = BytesWriter()
    depth: i64 = 0
    state: i64 = VALUE
    pos: i64 = _behind_space(data, 0)
    while pos < end:
        octet: i64 = data[pos]
        if state == END_OR_COMMA:
            if depth == 0:
                return pos
            in_list = open_kinds[depth - 1] == OPEN_LIST
            if octet == COMMA:
                state = VALUE if in_list else NAME
            elif octet == (CLOSE_LIST if in_list else CLOSE_OBJECT):
                depth -= 1
                open_kinds.truncate(depth)
            else:
                return pos
            pos += 1
        elif state == NAME or state == NAME_OR_END:  # noqa: PLR1714, SIM109 - native comparisons
            if octet == CLOSE_OBJECT and state == NAME_OR_END:
                depth -= 1
                open_kinds.truncate(depth)
                state = END_OR_COMMA
                pos += 1
            else:
                if octet != QUOTE:
                    return pos
                pos = _string(data, pos)
                if pos < 0:
                    return -pos - 1
                pos = _behind_space(data, pos)
                if pos == end or data[pos] != COLON:
                    return pos
                state = VALUE
                pos += 1
        elif octet == CLOSE_LIST and state == VALUE_OR_END:
            depth -= 1
            open_kinds.truncate(depth)
            state = END_OR_COMMA
            pos += 1
        elif octet == OPEN_LIST or octet == OPEN_OBJECT:  # noqa: PLR1714, SIM109 - native comparisons
            if depth == max_depth:
                return end + 1 + pos
            open_kinds.append(octet)
            depth += 1
            state = VALUE_OR_END if octet == OPEN_LIST else NAME_OR_END
            pos += 1
        else:
            pos = _string(data, pos) if octet == QUOTE else _scalar(data, pos)
            if pos < 0:
                return -pos - 1
            state = END_OR_COMMA
        pos = _behind_space(data, pos)
    return -1 if state == END_OR_COMMA and depth == 0 else end


def _behind_space(data: bytes, pos: i64) -> i64:
    end: i64 = len(data)
    while pos < end:
        octet: i64 = data[pos]
        if octet != 32 and octet != 10 and octet != 13 and octet != 9:  # noqa: PLR1714 - native comparisons
            break
        pos += 1
    return pos


def _string(data: bytes, pos: i64) -> i64:
    """The place behind the string that begins at ``pos``; where it is wrong, minus that place minus one."""
    end: i64 = len(data)
    pos += 1
    while pos < end:
        octet: i64 = data[pos]
        if octet == QUOTE:
            return pos + 1
        if octet < 32:
            return -pos - 1
        if octet == BACKSLASH:
            pos += 1
            if pos == end:
                break
            escaped: i64 = data[pos]
            if escaped == 117:  # u
                digits: i64 = 0
                while digits < 4:
                    pos += 1
                    if hexadecimal(data, pos) < 0:
                        return -pos - 1
                    digits += 1
            elif escaped not in {34, 47, 92, 98, 102, 110, 114, 116}:  # " / \ b f n r t
                return -pos - 1
        pos += 1
    return -end - 1


def _scalar(data: bytes, pos: i64) -> i64:
    """As ``_string``, for a number or one of the three words."""
    octet: i64 = data[pos]
    if octet == 116:
        return pos + 4 if data[pos : pos + 4] == b"true" else -pos - 1
    if octet == 102:
        return pos + 5 if data[pos : pos + 5] == b"false" else -pos - 1
    if octet == 110:
        return pos + 4 if data[pos : pos + 4] == b"null" else -pos - 1
    end: i64 = len(data)
    if octet == 45:
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
    """The place behind one or more digits; where there is none, minus that place minus one."""
    end: i64 = len(data)
    start = pos
    while pos < end and 48 <= i64(data[pos]) <= 57:
        pos += 1
    return pos if pos > start else -pos - 1
