"""Calls between MQTT clients: what they publish on service topics (RPC over MQTT), as rows of calls.

The hub passes such messages on like any others, so the journal has them as rows of kind ``publish`` on topics of the
form ``/<service>``, with protobuf in their bodies. Here those bodies are decoded, all of a batch side by side: numpy
walks protobuf's wire format field by field.

Ordinary topics have such names, too. What is not, to the byte, a message of RPC over MQTT with a correlation id is no
part of a call, and neither is a Request that does not name a method.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import Array
from polywire.journal.kinds import LAST_FLAG

RPC: Final = "rpc"
"""Not a kind of the journal's own rows: who asks for it gets parts of calls that were published on service topics."""

OWN: Final = "mqttrpc"
"""The protocol under which the hub publishes there itself, for calls that come from another protocol or go to one."""

HUB_ERROR: Final = "polywire.hub"
"""What the body of a Response names where the error is the hub's own, not that of a service."""

NEEDED: Final = ("kind", "protocol", "channel", "correlation", "headers", "body", "size", "flags")
"""Columns that decoding reads or sets."""

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[np.uint64]
Octets: TypeAlias = npt.NDArray[np.uint8]

TOPICS: Final = ("/*",)
"""Patterns of the channels where calls can be."""

_TOPIC: Final = r"^/[^/+#\x00]+$"
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
_METHOD: Final = rf"^/?({_NAME}([.]{_NAME})*/)?{_NAME}$"

MAX_FIELDS: Final = 32
"""A message has six fields at most; one with many more that nobody knows is not taken for one."""

# The fields of messages, of the Any that is their body, and of error data.
_NUMBER: Final = 1
_BODY: Final = 2
_EOS_OR_ERROR: Final = 3
_RESPONSE_EOS: Final = 4
_TIMEOUT: Final = 5
_UNIT: Final = 6
_URL: Final = 1
_VALUE: Final = 2
_CODE: Final = 1
_TAG: Final = 2
_MESSAGE: Final = 3

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_TAG_BYTES: Final = 5
_VALUE_BYTES: Final = 10
_MAX_UINT32: Final = 0xFFFF_FFFF
_UNITS: Final = 5
"""How many units a timeout can have."""
_HIGH: Final = 0x80
"""The bit that no byte of ASCII has, and each byte of a varint but its last."""


def on_service_topic(rows: pa.RecordBatch) -> Array:
    """Which rows are publications on a topic that may be a service's."""
    published: Array = pc.equal(rows.column("kind").cast(pa.utf8()), pa.scalar("publish"))
    channel = rows.column("channel")
    # Most channels do not even begin like one; a regular expression is slow.
    if not pc.any(pc.and_(published, pc.starts_with(channel, pattern="/"))).as_py():
        return pa.array(np.zeros(rows.num_rows, dtype=bool))
    encoded = channel.dictionary_encode()
    meant: Any = pc.match_substring_regex(encoded.dictionary, pattern=_TOPIC)
    found: Array = pc.and_(published, meant.take(encoded.indices).fill_null(fill_value=False))
    return found


def parts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What a batch's publications on service topics are in calls: rows of the kinds request, reply and error.

    Their channel is ``<service>/<method>``, that of a reply or error ``<service>/``, their correlation
    ``/<service>:<correlation id>``, their body and size those of the message inside. An error's headers are as those of
    the hub's own errors. Columns that are missing stay so, but for those in ``NEEDED``.
    """
    rows = rows.filter(on_service_topic(rows))
    if rows.num_rows == 0:
        return rows
    found = _read(rows.column("body"))
    own = pc.equal(rows.column("protocol").cast(pa.utf8()), pa.scalar(OWN)).fill_null(fill_value=False)
    mine = own.to_numpy(zero_copy_only=False)
    # The hub's own Requests carry a call that is in the journal as such.
    kept = np.flatnonzero(found.good & (~found.request | (found.named & ~mine)))
    rows = rows.take(kept)
    return _rebuilt(rows, found, kept, mine)


@dataclass(slots=True)
class _Messages:
    """What bodies hold. Positions are those in ``data``; where there is nothing, they begin where they end."""

    data: Octets
    good: Mask
    request: Mask
    named: Mask
    failed: Mask
    last: Mask
    number: Values
    method: Array
    value: tuple[Numbers, Numbers]
    error: tuple[Numbers, Numbers]


def _read(bodies: Array) -> _Messages:
    count = len(bodies)
    bodies = bodies.cast(pa.binary())
    _, ends, octets = (np.frombuffer(memoryview(each or b""), np.uint8) for each in bodies.buffers())
    data = octets if len(octets) else np.zeros(1, np.uint8)
    places = ends.view(np.int32)[bodies.offset : bodies.offset + count + 1].astype(np.int64)
    good = np.ones(count, dtype=bool)
    number = np.zeros(count, np.uint64)
    asks, answers, failed, last = (np.zeros(count, dtype=bool) for _ in range(4))
    body, error = (places[:-1].copy(), places[:-1].copy()), (places[:-1].copy(), places[:-1].copy())
    for row, field, kind, value, at in _fields(data, places[:-1], places[1:], good):
        length = kind == _LENGTH
        third = field == _EOS_OR_ERROR  # a number in a Request, a message in a Response
        fits = (field > _UNIT) | np.where(field == _BODY, length, (kind == _VARINT) | (third & length))
        fits &= (field != _UNIT) | (value < _UNITS)
        good[row[~fits]] = False
        here = fits & (field == _NUMBER)
        number[row[here]] = value[here]
        _note(body, fits & (field == _BODY), row, value, at)
        _note(error, fits & third & length, row, value, at)
        failed[row[fits & third & length]] = True
        answers[row[fits & ((field == _RESPONSE_EOS) | (third & length))]] = True
        asks[row[fits & ((field == _TIMEOUT) | (field == _UNIT) | (third & ~length))]] = True
        here = fits & ((field == _RESPONSE_EOS) | (third & ~length))
        last[row[here]] = value[here] != 0
    url, inside = (body[0].copy(), body[0].copy()), (body[0].copy(), body[0].copy())
    for row, field, kind, value, at in _fields(data, *body, good):
        good[row[(field <= _VALUE) & (kind != _LENGTH)]] = False
        _note(url, (field == _URL) & (kind == _LENGTH), row, value, at)
        _note(inside, (field == _VALUE) & (kind == _LENGTH), row, value, at)
    good &= (number != 0) & ~(asks & answers)
    request = asks | (~answers & (url[1] > url[0]))
    method = _texts(data, *url)
    _check_texts(data, url, good, ~request)
    named = pc.match_substring_regex(method, pattern=_METHOD).to_numpy(zero_copy_only=False)
    return _Messages(data, good, request, named, failed, last, number, method, inside, error)


def _note(pieces: tuple[Numbers, Numbers], which: Mask, row: Numbers, size: Values, at: Numbers) -> None:
    """Where the content of these fields is."""
    pieces[0][row[which]] = at[which]
    pieces[1][row[which]] = at[which] + size[which].astype(np.int64)


def _check_texts(data: Octets, pieces: tuple[Numbers, Numbers], good: Mask, which: Mask) -> None:
    """A text that is not UTF-8 makes its message a bad one. Few have one that is not ASCII."""
    for row in np.flatnonzero(good & which & (pieces[1] > pieces[0])).tolist():
        octets = data[pieces[0][row] : pieces[1][row]].tobytes()
        if not octets.isascii():
            try:
                octets.decode()
            except UnicodeDecodeError:
                good[row] = False


_Round: TypeAlias = tuple[Numbers, Numbers, Numbers, Values, Numbers]


def _fields(data: Octets, starts: Numbers, ends: Numbers, good: Mask) -> Iterator[_Round]:
    """The fields of many messages: first the first one of each, then the second, and so on.

    Of each the message, the field's number, its wire type, its number or length, and where its content begins. What
    can't be read is not ``good`` any more.
    """
    row = np.flatnonzero(good & (starts < ends))
    at, end = starts[row], ends[row]
    for _ in range(MAX_FIELDS):
        if not len(row):
            return
        tag, at = _varints(data, at, end, _TAG_BYTES)
        kind = (tag & np.uint64(7)).astype(np.int64)
        field = (tag >> np.uint64(3)).astype(np.int64)
        right = (at >= 0) & (tag <= _MAX_UINT32) & (field > 0)
        right &= (kind <= _LENGTH) | (kind == _FIXED32)
        value = np.zeros(len(row), np.uint64)
        for wanted, most in ((_VARINT, _VALUE_BYTES), (_LENGTH, _TAG_BYTES)):
            here = np.flatnonzero(right & (kind == wanted))
            value[here], at[here] = _varints(data, at[here], end[here], most)
        right &= at >= 0
        content = at.copy()
        long = kind == _LENGTH
        size = np.where(long, value, np.uint64(0)).astype(np.int64)
        size += np.where(kind == _FIXED64, 8, 0) + np.where(kind == _FIXED32, 4, 0)
        right &= size <= end - at
        good[row[~right]] = False
        row, field, kind, value = row[right], field[right], kind[right], value[right]
        content, at, end = content[right], (at + size)[right], end[right]
        yield row, field, kind, value, content
        more = good[row] & (at < end)
        row, at, end = row[more], at[more], end[more]
    good[row] = False


def _varints(data: Octets, at: Numbers, end: Numbers, most: int) -> tuple[Values, Numbers]:
    """The numbers at these positions, and the positions behind them: -1 for one that is cut or too long."""
    value = np.zeros(len(at), np.uint64)
    behind = np.full(len(at), -1, np.int64)
    open_ = np.flatnonzero(at < end)
    for place in range(most):
        if not len(open_):
            break
        octet = data[at[open_] + place].astype(np.uint64)
        value[open_] |= (octet & np.uint64(0x7F)) << np.uint64(7 * place)
        ended = octet < _HIGH
        behind[open_[ended]] = at[open_[ended]] + place + 1
        open_ = open_[~ended]
        open_ = open_[at[open_] + place + 1 < end[open_]]
    return value, behind


def _cut(data: Octets, starts: Numbers, ends: Numbers) -> tuple[Any, Any]:
    """These pieces, one behind the other, and where each ends."""
    sizes = ends - starts
    stops = np.concatenate([[0], np.cumsum(sizes)])
    where = np.repeat(starts - stops[:-1], sizes) + np.arange(stops[-1])
    return data[where], stops.astype(np.int32)


def _binaries(data: Octets, starts: Numbers, ends: Numbers) -> Array:
    octets, stops = _cut(data, starts, ends)
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(stops), pa.py_buffer(octets)])


def _texts(data: Octets, starts: Numbers, ends: Numbers) -> Array:
    """The pieces as text; what is not ASCII, which no name of a method has, becomes a NUL."""
    octets, stops = _cut(data, starts, ends)
    octets[octets >= _HIGH] = 0
    return pa.Array.from_buffers(pa.utf8(), len(starts), [None, pa.py_buffer(stops), pa.py_buffer(octets)])


def _rebuilt(rows: pa.RecordBatch, found: _Messages, kept: Numbers, mine: Mask) -> pa.RecordBatch:
    request, failed = found.request[kept], found.failed[kept]
    method = found.method.take(kept)
    # A service's answer that the hub publishes for it is no error of the hub's: the call itself is in the journal.
    passed = mine[kept] & ~request & (method.to_numpy(zero_copy_only=False) != HUB_ERROR)
    errors, headers = _errors(rows, found, kept, failed & ~passed)
    rows, kept = rows.take(errors), kept[errors]
    request, failed, passed, method = request[errors], failed[errors], passed[errors], method.take(errors)
    topic = rows.column("channel").cast(pa.utf8())
    kind = np.where(request, "request", np.where(failed & ~passed, "error", "reply"))
    called = pc.if_else(pa.array(request), pc.replace_substring_regex(method, pattern="^.*/", replacement=""), "")
    flags = rows.column("flags").cast(pa.int32())
    last = pa.array(np.where(found.last[kept] | failed | passed, LAST_FLAG, 0).astype(np.int32))
    number = pa.array(found.number[kept], pa.uint64()).cast(pa.utf8())
    begins, stops = found.value[0][kept], found.value[1][kept]
    join: Any = pc.binary_join_element_wise  # the stubs don't know that columns and scalars go together
    new: dict[str, Array] = {
        "kind": pa.array(kind, pa.utf8()),
        "channel": join(pc.utf8_slice_codeunits(topic, start=1), called, "/"),
        "correlation": join(topic, number, ":"),
        "headers": pc.coalesce(pa.array(headers, pa.utf8()), rows.column("headers").cast(pa.utf8())),
        "body": _binaries(found.data, begins, stops),
        "size": pa.array((stops - begins).astype(np.int32)),
        "flags": pc.bit_wise_or(flags, last),
    }
    columns = [new.get(field.name, rows.column(field.name)).cast(field.type) for field in rows.schema]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _errors(rows: pa.RecordBatch, found: _Messages, kept: Numbers, failed: Mask) -> tuple[Numbers, list[str | None]]:
    """Which rows stay, as an error that can't be decoded makes a row none of a call; and the headers of errors."""
    headers: list[str | None] = [None] * rows.num_rows
    stays = np.ones(rows.num_rows, dtype=bool)
    for place in np.flatnonzero(failed).tolist():
        begin, end = int(found.error[0][kept[place]]), int(found.error[1][kept[place]])
        error = _error(found.data, begin, end)
        headers[place] = error
        stays[place] = error is not None
    left = np.flatnonzero(stays)
    return left, [headers[place] for place in left.tolist()]


def _error(data: Octets, begin: int, end: int) -> str | None:
    """The headers of one error, or None if it can't be decoded. Errors are rare."""
    good = np.ones(1, dtype=bool)
    code, texts = 0, {_TAG: "", _MESSAGE: ""}
    for _, field, kind, value, at in _fields(data, np.array([begin]), np.array([end]), good):
        number = int(field[0]) if len(field) else 0
        if number == _CODE and kind[0] == _VARINT:
            code = int(value[0]) & _MAX_UINT32
        elif number in texts and kind[0] == _LENGTH:
            try:
                texts[number] = data[at[0] : at[0] + int(value[0])].tobytes().decode()
            except UnicodeDecodeError:
                return None
    if not good[0]:
        return None
    return json.dumps(
        {"code": code, "tag": texts[_TAG], "text": texts[_MESSAGE]}, separators=(",", ":"), ensure_ascii=False
    )
