"""Rows of the journal as columns: what the tables' kernels are made of.

A kernel is a function from columns of Arrow to columns of Arrow, without Spark. It is called with some ten thousand
rows at a time, for which ``Rows`` computes what several tables need only once: kinds as numbers, days and minutes,
headers. Rows are chosen with masks of numpy, and grouped by one number for each combination of keys.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polywire.journal.format import KIND_VALUES, PLAIN_SCHEMA, Array, values
from polywire.journal.kinds import KINDS

MESSAGE_KINDS: Final = ("publish", "enqueue", "request", "reply", "error")
"""Rows that are a message: to a topic, into a queue, or a part of a call."""

TICK: Final = "tick"
"""Never stored: with it the source says that a node has come to this time though it wrote nothing."""

NO_PROTOCOL: Final = "none"
"""In the place of a protocol where the hub itself spoke: directories are named after protocols, and need a name."""

MICROSECONDS: Final = 1_000_000
MINUTE: Final = 60 * MICROSECONDS
DAY: Final = 86_400 * MICROSECONDS

TIME: Final = pa.timestamp("us", tz="UTC")

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class Coded(NamedTuple):
    """A column as numbers, each the place of a value in ``values``; -1 where there is none."""

    codes: Numbers
    values: Array

    def taken(self, codes: Numbers) -> Array:
        """The values of these numbers."""
        places: Any = pa.array(codes, mask=codes < 0)
        return self.values.take(places)


def coded(column: Array) -> Coded:
    """A column as numbers."""
    encoded: Any = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return Coded(encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(), encoded.dictionary)


class Groups:
    """The different combinations of some columns, and sums over the rows of each."""

    def __init__(self, *columns: Coded) -> None:
        self._columns = columns
        # Some hundred thousand rows at most: four columns of different values still fit into 63 bits.
        key = np.zeros(len(columns[0].codes), np.int64)
        for column in columns:
            key = key * (len(column.values) + 1) + (column.codes + 1)
        self._key = key

    def aggregated(self, **amounts: tuple[npt.NDArray[Any], str]) -> list[Array]:
        """The columns of each combination, the number of its rows, and what each amount comes to."""
        table = pa.table({"key": self._key} | {name: values for name, (values, _) in amounts.items()})
        wanted: list[Any] = [("key", "count"), *((name, how) for name, (_, how) in amounts.items())]
        found = batched(table.group_by("key", use_threads=False).aggregate(wanted))
        key = found.column("key").to_numpy()
        columns: list[Array] = []
        for column in reversed(self._columns):
            key, codes = np.divmod(key, len(column.values) + 1)
            columns.append(column.taken(codes - 1))
        names = ["key_count", *(f"{name}_{how}" for name, (_, how) in amounts.items())]
        return [*reversed(columns), *(found.column(name) for name in names)]


def merged(rows: pa.Table, keys: Sequence[str], how: Mapping[str, str]) -> pa.Table:
    """One row for all with the same keys; ``how`` the other columns are put together (Arrow's words)."""
    found = rows.group_by(list(keys), use_threads=False).aggregate(list(how.items()))  # type: ignore[arg-type] # any word
    found = found.rename_columns([*keys, *how] if found.schema.names[0] == keys[0] else [*how, *keys])
    return found.select([*keys, *how])


_KIND_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Rows:
    """Rows of the journal, with the columns that were read. What is computed of them is kept.

    Some of the rows, ``chosen``, share all that with the others: a column is taken apart only where it is asked for.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch: Final = batch
        self.count = batch.num_rows
        self._all = self
        self._which: Mask | None = None
        self._columns: dict[str, Array] = {}
        self._coded: dict[str, Coded] = {}

    def chosen(self, which: Mask) -> "Rows":
        """Some of the rows. ``batch`` still has all of them."""
        if which.all():
            return self
        rows = Rows(self.batch)
        rows._all = self._all
        rows._which = which
        if self._which is not None:
            rows._which = self._which.copy()
            rows._which[self._which] = which
        rows.count = int(which.sum())
        return rows

    def __getitem__(self, name: str) -> Array:
        """A column."""
        found = self._columns.get(name)
        if found is None:
            found = self.batch.column(name)
            if self._which is not None:
                found = found.filter(pa.array(self._which))
            self._columns[name] = found
        return found

    def coded(self, name: str) -> Coded:
        """A column as numbers."""
        found = self._coded.get(name)
        if found is None:
            if self._which is None:
                found = coded(self[name])
            else:
                whole = self._all.coded(name)
                found = Coded(whole.codes[self._which], whole.values)
            self._coded[name] = found
        return found

    @cached_property
    def kinds(self) -> Numbers:
        """The kinds as the journal numbers them; -1 for one that is not known."""
        if self._which is not None:
            return self._all.kinds[self._which]
        found = pc.index_in(self["kind"].cast(pa.utf8()), value_set=KIND_VALUES)
        return found.fill_null(-1).to_numpy().astype(np.int64)

    def are(self, kinds: Iterable[str]) -> Mask:
        """Which rows are of these kinds."""
        known = np.zeros(len(KINDS) + 1, dtype=bool)  # the last place is -1's
        known[[_KIND_CODES[kind] for kind in kinds]] = True
        return known[self.kinds]

    @cached_property
    def messages(self) -> Mask:
        """Which rows are messages."""
        return self.are(MESSAGE_KINDS)

    @cached_property
    def at(self) -> Numbers:
        """The times in microseconds since 1970."""
        if self._which is not None:
            return self._all.at[self._which]
        found: Numbers = self["ts"].cast(pa.int64()).to_numpy()
        return found

    @cached_property
    def flags(self) -> Numbers:
        """The flags."""
        return self["flags"].to_numpy().astype(np.int64)

    def has(self, flag: int) -> Mask:
        """Which rows have a bit of the flags set."""
        found: Mask = (self.flags & flag) != 0
        return found

    @cached_property
    def days(self) -> Array:
        """The days."""
        return days_of(self.at)

    @cached_property
    def minutes(self) -> Coded:
        """The minutes, as times."""
        if self._which is not None:
            whole = self._all.minutes
            return Coded(whole.codes[self._which], whole.values)
        found = coded(pa.array(self.at - self.at % MINUTE))
        return Coded(found.codes, found.values.cast(TIME))

    @cached_property
    def protocols(self) -> Array:
        """The protocols, ``none`` where the hub itself spoke."""
        return self["protocol"].cast(pa.utf8()).fill_null(NO_PROTOCOL)

    @cached_property
    def headers(self) -> "Headers":
        """The headers."""
        if self._which is not None:
            return self._all.headers.chosen(self._which)
        return Headers.of(self["headers"])

    @cached_property
    def starts(self) -> Mask:
        """Which rows mark a start of the hub: clients that were connected before are not any more."""
        found = self.are(("session",))
        if not found.any():
            return found
        said = pc.and_(self["client"].is_null(), pc.match_substring(self["headers"], pattern='"start"'))
        marked: Mask = found & said.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        return marked

    @cached_property
    def named_calls(self) -> Mask:
        """Which rows have a correlation and a channel ``<service>/<method>``, as all parts of calls do."""
        there = pc.and_(self["correlation"].is_valid(), pc.match_substring(self["channel"], pattern="/"))
        return there.fill_null(fill_value=False).to_numpy(zero_copy_only=False)

    def latest(self) -> dict[str, int]:
        """Of each node the latest time."""
        nodes = self.coded("node")
        latest = np.full(len(nodes.values), np.iinfo(np.int64).min)
        np.maximum.at(latest, nodes.codes, self.at)
        return dict(zip(values(nodes.values), latest.tolist(), strict=True))


def days_of(at: Numbers) -> Array:
    """The days of these times."""
    return pa.array((at // DAY).astype(np.int32)).cast(pa.date32())


def times(at: Numbers, missing: Mask | None = None) -> Array:
    """Microseconds since 1970 as times."""
    return pa.array(at, mask=missing).cast(TIME)


def masked(column: Array, which: Mask) -> Array:
    """The values of these rows, and null in the others."""
    found: Array = pc.if_else(pa.array(which), column, pa.scalar(None, column.type))
    return found


def fitted(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch with the columns of a schema; those that are not given are null."""
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        given = columns.get(field.name)
        column: Any = pa.nulls(rows, field.type) if given is None else given
        if isinstance(column, np.ndarray):
            column = pa.array(column)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batched(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one batch."""
    whole = table.combine_chunks()
    arrays: list[Any] = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in whole.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=whole.schema)


def joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of all of them."""
    return pa.concat_tables(tables) if tables else schema.empty_table()


class _Number(str):
    """A number as it is written in JSON."""

    __slots__ = ()


def _refuse(text: str) -> None:
    raise ValueError(text)


_DECODER: Final = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_refuse)


def parsed(text: str) -> dict[str, str | None] | None:
    """Headers: the members of one JSON object by the letter of RFC 8259, values as text; None for anything else."""
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    members = {
        name: value if isinstance(value, str) or value is None else _written(value) for name, value in found.items()
    }
    if "\\u" in text.lower():  # half a pair of surrogates is JSON, but no text
        members = {_text(name): None if value is None else _text(value) for name, value in members.items()}
    return members


def _written(value: Any) -> str:
    """A value inside headers as JSON, with each number as it was."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        members = (f"{json.dumps(name, ensure_ascii=False)}:{_written(inner)}" for name, inner in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _text(value: str) -> str:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_MAP: Final = pa.map_(pa.utf8(), pa.utf8())


class Headers:
    """Headers of many rows, each text of them read once."""

    def __init__(self, codes: Numbers, found: Sequence[dict[str, str | None] | None]) -> None:
        self._codes = codes
        self._found = found

    @classmethod
    def of(cls, column: Array) -> "Headers":
        """Those in a column of JSON texts."""
        if column.null_count == len(column):
            return cls(np.full(len(column), -1), [])
        texts = coded(column)
        return cls(texts.codes, [parsed(text) for text in values(texts.values)])

    def chosen(self, which: Mask) -> "Headers":
        """Those of some of the rows."""
        return Headers(self._codes[which], self._found)

    @property
    def bad(self) -> Mask:
        """Where there are headers that are not one JSON object."""
        wrong = np.array([*(found is None for found in self._found), False])  # the last place is -1's
        return wrong[self._codes]

    def word(self, name: str) -> Array:
        """The value of one header."""
        return self._spread(pa.array([None if found is None else found.get(name) for found in self._found], pa.utf8()))

    def maps(self) -> Array:
        """All headers."""
        return self._spread(pa.array([None if found is None else list(found.items()) for found in self._found], _MAP))

    def _spread(self, found: Array) -> Array:
        if not len(found):
            none: Array = pa.nulls(len(self._codes), found.type)
            return none
        return Coded(self._codes, found).taken(self._codes)


def text_and_bytes(bodies: Array) -> tuple[Array, Array]:
    """Bodies as text where they are UTF-8, and the others as bytes. Both share the memory of the bodies."""
    bodies = bodies.cast(pa.binary())
    text = valid_utf8(bodies)
    there = np.ones(len(bodies), dtype=bool)
    if bodies.null_count:
        there = bodies.is_valid().to_numpy(zero_copy_only=False)
    return _masked_bytes(bodies, text & there, pa.utf8()), _masked_bytes(bodies, ~text & there, pa.binary())


def _masked_bytes(bodies: Array, which: Mask, kind: pa.DataType) -> Array:
    """The same bytes as another type, null where not ``which``."""
    _, places, data = bodies.buffers()
    if places is None:  # no rows
        return pa.array([], kind)
    places = places.slice(4 * bodies.offset, 4 * (len(bodies) + 1))
    valid = pa.py_buffer(np.packbits(which, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(bodies), [valid, places, data])


_SIZE: Final = np.zeros(256, np.int64)
"""Of a character's first byte: how many it has; 0 where no character begins like that."""
_SIZE[0xC2:0xE0], _SIZE[0xE0:0xF0], _SIZE[0xF0:0xF5] = 2, 3, 4
_LEAST: Final = np.full(256, 0x80, np.uint8)
"""Of a character's first byte: the least its second one may be."""
_LEAST[0xE0], _LEAST[0xF0] = 0xA0, 0x90
_MOST: Final = np.full(256, 0xBF, np.uint8)
_MOST[0xED], _MOST[0xF4] = 0x9F, 0x8F
_HIGH: Final = 0x80
_FOLLOWS: Final = 0xC0
"""The bits that are 10 in every byte of a character but its first."""

CHARACTERS: Final = 64
"""Characters beyond ASCII that are looked at side by side; of what has more, each body is decoded by itself."""


def valid_utf8(bodies: Array) -> Mask:
    """Which bodies are UTF-8: all are walked side by side, from one character beyond ASCII to the next."""
    count = len(bodies)
    valid = np.ones(count, dtype=bool)
    ends, data = _pieces(bodies)
    high = np.flatnonzero(data >= _HIGH)
    if not len(high):
        return valid
    stop = np.searchsorted(high, ends)
    row = np.flatnonzero(stop[:-1] < stop[1:])
    at, stop, end = stop[row], stop[row + 1], ends[row + 1]
    for _ in range(CHARACTERS):
        if not len(row):
            return valid
        size, good = _characters(data, high[at], end)
        valid[row[~good]] = False
        at += size
        more = good & (at < stop)
        row, at, stop, end = row[more], at[more], stop[more], end[more]
    for one in row.tolist():
        valid[one] = _decodes(data[ends[one] : ends[one + 1]].tobytes())
    return valid


def _pieces(texts: Array) -> tuple[Numbers, Bytes]:
    """Where each text ends, the first one being 0, and the bytes of all of them."""
    count = len(texts)
    _, places, buffer = (memoryview(each or b"") for each in texts.buffers())
    if not count or not len(buffer):
        return np.zeros(count + 1, np.int64), np.zeros(0, np.uint8)
    ends = np.frombuffer(places, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    return ends - ends[0], np.frombuffer(buffer, np.uint8)[ends[0] : ends[-1]]


def _characters(data: Bytes, place: Numbers, end: Numbers) -> tuple[Numbers, Mask]:
    """The sizes of the characters that begin at these places, and whether they are right."""
    first = data[place]
    size = _SIZE[first]
    good = (size > 0) & (place + size <= end)
    last = len(data) - 1
    second = data[np.minimum(place + 1, last)]
    good &= (second >= _LEAST[first]) & (second <= _MOST[first])
    for behind in (2, 3):
        follows = (data[np.minimum(place + behind, last)] & _FOLLOWS) == _HIGH
        good &= follows | (size <= behind)
    return size, good


def _decodes(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


_WORD: Final = 8
_LONG: Final = 512
"""Bytes of the longest text that is hashed side by side with others."""
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


def hashes(texts: Array) -> Numbers:
    """A number for each text: with 64 bits no two of some millions have the same one."""
    ends, data = _pieces(texts.cast(pa.utf8()))
    data = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    # A word of eight bytes from each place on.
    words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    size = np.diff(ends)
    found = size.astype(np.uint64) * _FACTOR
    row = np.flatnonzero((size > 0) & (size <= _LONG))
    at, left = ends[row], size[row]
    while len(row):
        spare = np.maximum(_WORD - left, 0).astype(np.uint64) * np.uint64(8)
        mixed = (found[row] ^ (words[at] << spare)) * _FACTOR
        found[row] = mixed ^ (mixed >> _HALF)
        more = left > _WORD
        row, at, left = row[more], at[more] + _WORD, left[more] - _WORD
    for long in np.flatnonzero(size > _LONG).tolist():
        text = data[ends[long] : ends[long + 1]].tobytes()
        found[long] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    numbers: Numbers = found.view(np.int64)
    return numbers


Part: TypeAlias = Callable[[Rows], pa.RecordBatch]
Merge: TypeAlias = Callable[[pa.Table], pa.Table]

ALL_COLUMNS: Final = tuple(PLAIN_SCHEMA.names)
LIGHT_COLUMNS: Final = tuple(name for name in ALL_COLUMNS if name not in {"body", "attachments"})
"""All columns except the large ones."""
