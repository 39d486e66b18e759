"""Rows to publish, and where they wait between the tasks that make them and the driver that publishes them.

Rows have one form, in a staged file and on the wire. Tasks write files; the driver names them in a manifest before it
publishes the first row. A batch that is run again after a crash finds the manifest and publishes the files it names,
not what the tasks made this time: those may be cut differently. So what a (query, batch, part) is never changes once
the hub may have seen it.
"""

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from polywire.journal.format import POSTED_SCHEMA, Array, values
from polywire.pipeline.errors import SinkError

ACCEPTED: Final = {
    "channel": ("string",),
    "body": ("binary", "string"),
    "headers": ("map<string,string>", "string"),
    "content_type": ("string",),
    "retain": ("boolean",),
    "queue": ("boolean",),
}
"""The columns a DataFrame may have, and their types as Spark writes them."""

NEEDED: Final = ("channel", "body")

PART_ROWS: Final = 10_000
PART_OCTETS: Final = 4 << 20
"""A part is one request to the hub and one step of its log; a single larger message is a part of its own."""


def check_columns(types: dict[str, str]) -> None:
    """Whether a DataFrame with these columns and types can be published."""
    for name in NEEDED:
        if name not in types:
            raise SinkError(f"the DataFrame has no column {name!r}; it needs {' and '.join(NEEDED)}")
    for name, found in types.items():
        allowed = ACCEPTED.get(name)
        if allowed is None:
            raise SinkError(f"column {name!r} can't be published: select {', '.join(ACCEPTED)} only")
        if found not in allowed:
            raise SinkError(f"column {name!r} is {found}; it must be {' or '.join(allowed)}")


def normalised(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as Spark gives it, with the columns the hub gets."""
    rows = batch.num_rows
    channel = batch.column("channel").cast(pa.utf8())
    if channel.null_count or pc.any(pc.equal(channel, pa.scalar(""))).as_py():
        raise SinkError("a row has no channel: filter such rows out, or set one")
    columns: list[Array] = [
        channel,
        batch.column("body").cast(pa.binary()).fill_null(b""),
        _headers(batch.column("headers")) if "headers" in batch.schema.names else pa.nulls(rows, pa.utf8()),
        _optional(batch, "content_type", pa.utf8()),
        _optional(batch, "retain", pa.bool_()).fill_null(fill_value=False),
        _optional(batch, "queue", pa.bool_()).fill_null(fill_value=False),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=POSTED_SCHEMA)


def in_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch cut into parts that are small enough for one request each."""
    lengths = pc.binary_length(batch.column("body")).to_pylist()  # type: ignore[call-overload] # of binary columns
    start = octets = 0
    for row, length in enumerate(lengths):
        if row > start and (row - start >= PART_ROWS or octets + length > PART_OCTETS):
            yield batch.slice(start, row - start)
            start, octets = row, 0
        octets += length
    if start < batch.num_rows:
        yield batch.slice(start)


def _optional(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Array:
    return batch.column(name).cast(kind) if name in batch.schema.names else pa.array([None] * batch.num_rows, kind)


def _headers(column: Array) -> Array:
    """A JSON object a row: of a map, or the text itself once it has been read as one."""
    if pa.types.is_map(column.type):
        found = [None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False) for pairs in column.to_pylist()]
        return pa.array(found, pa.utf8())
    for text in values(pc.unique(column.drop_null())):
        try:
            good = isinstance(json.loads(text), dict)
        except ValueError:
            good = False
        if not good:
            raise SinkError(f"headers are not a JSON object: {text[:80]!r}")
    return column.cast(pa.utf8())


STAGED: Final = ".rows"
MANIFEST: Final = ".manifest"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a batch publishes: the names of its files, in order, and whether all of it is published."""

    files: tuple[str, ...]
    done: bool


class Staging:
    """The directory of one query, on a disk or any storage ``pyarrow.fs`` knows. Picklable: opened where it is used."""

    def __init__(self, location: str) -> None:
        self.location = location

    def stage(self, parts: Iterator[pa.RecordBatch]) -> str | None:
        """Write a task's parts to a file of their own; its name, or None where there is no row."""
        first = next(parts, None)
        if first is None:
            return None
        files, root = self._open()
        files.create_dir(root, recursive=True)
        name = f"{uuid.uuid4().hex}{STAGED}"
        with files.open_output_stream(f"{root}/{name}") as out, pa.ipc.new_stream(out, POSTED_SCHEMA) as writer:
            writer.write_batch(first)
            for part in parts:
                writer.write_batch(part)
        _sync(files, f"{root}/{name}")
        return name

    def parts(self, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        """The parts that a manifest lists, in order."""
        files, root = self._open()
        for name in manifest.files:
            with files.open_input_file(f"{root}/{name}") as staged, pa.ipc.open_stream(staged) as reader:
                yield from reader

    def manifest(self, batch: int) -> Manifest | None:
        """What was decided for a batch, if anything was."""
        files, root = self._open()
        path = f"{root}/{batch}{MANIFEST}"
        if files.get_file_info(path).type != fs.FileType.File:
            return None
        with files.open_input_stream(path) as stream:
            found = json.loads(stream.read())
        return Manifest(tuple(found["files"]), bool(found["done"]))

    def decide(self, batch: int, manifest: Manifest) -> None:
        """Write down what a batch is, all or nothing."""
        files, root = self._open()
        path = f"{root}/{batch}{MANIFEST}"
        fresh = f"{path}-{uuid.uuid4().hex}"
        with files.open_output_stream(fresh) as stream:
            stream.write(json.dumps({"files": manifest.files, "done": manifest.done}).encode())
        _sync(files, fresh)
        files.move(fresh, path)
        _sync(files, root)

    def discard(self, names: Iterator[str]) -> None:
        """Remove files that will not be published."""
        files, root = self._open()
        for name in names:
            _remove(files, f"{root}/{name}")

    def clear(self, *, keep_batch: int) -> None:
        """Remove everything but the manifest of a batch that is done."""
        files, root = self._open()
        for info in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            name = PurePosixPath(info.path).name
            ours = name.endswith(STAGED) or MANIFEST in name
            if info.type == fs.FileType.File and ours and name != f"{keep_batch}{MANIFEST}":
                _remove(files, info.path)

    def remove(self) -> None:
        """Remove the directory, when this query is no longer needed."""
        files, root = self._open()
        if files.get_file_info(root).type == fs.FileType.Directory:
            files.delete_dir(root)

    def _open(self) -> tuple[fs.FileSystem, str]:
        return open_location(self.location)


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it."""
    scheme = urlsplit(location).scheme
    if scheme == "file":
        # Hadoop writes file:/path, which pyarrow does not take.
        return fs.LocalFileSystem(), unquote(urlsplit(location).path)
    if len(scheme) > 1:
        files, path = fs.FileSystem.from_uri(location)
        return files, path
    return fs.LocalFileSystem(), os.path.abspath(location)  # noqa: PTH100 - a pyarrow path is a string


def _sync(files: fs.FileSystem, path: str) -> None:
    """Make what was written outlive a power cut, where that is ours to do."""
    if isinstance(files, fs.LocalFileSystem):
        sync_path(path)


def sync_path(path: str | Path) -> None:
    """Make a file or directory of this machine outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(files: fs.FileSystem, path: str) -> None:
    if files.get_file_info(path).type == fs.FileType.File:
        files.delete_file(path)
