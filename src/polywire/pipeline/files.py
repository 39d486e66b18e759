"""Where things are, and how the files of tables are written there.

Paths and URIs are taken apart in one place, for Arrow's file systems and for Delta's. A lake, a checkpoint's notes, a
journal and what a sink stages may be on this machine (a path, ``file://``) or on any storage that Arrow reaches
(``s3://``, ``gs://``, ``abfs://``, ``hdfs://``). Credentials come from the environment (``AWS_ACCESS_KEY_ID`` …) or
from options of the same names.

A table's files are Parquet. Spark's tasks write them (``FileWriter``) and report each one to the driver, which commits
them.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from polywire.pipeline.columns import coded
from polywire.pipeline.errors import LakeError, OptionError

PREFIXES: Final = ("aws_", "s3_")
"""Options are called ``aws_region`` by Delta and ``region`` by Arrow; both forms are taken."""

ARROW: Final = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "default_region": "region",
    "endpoint_url": "endpoint_override",
    "endpoint": "endpoint_override",
}
"""Options of an S3 file system, by Delta's names and Arrow's."""

S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True, slots=True)
class Storage:
    """A directory on some storage. ``uri`` is an absolute path on this machine, else a URI; picklable."""

    uri: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, place: "str | Path | Storage", options: Mapping[str, str] | None = None) -> "Storage":
        """A place as users write it. A path is relative to the current directory."""
        if isinstance(place, Storage):
            return place
        text = str(place)
        given = tuple(sorted((name.lower(), value) for name, value in (options or {}).items()))
        parts = urlsplit(text)
        if parts.scheme == "file":
            if parts.netloc not in {"", "localhost"}:
                raise OptionError("lake", f"{text!r} names the host {parts.netloc!r}; write file:///{parts.netloc}…")
            return cls(os.path.abspath(unquote(parts.path)), given)  # noqa: PTH100 - a string, as Arrow takes it
        if len(parts.scheme) > 1 and "://" in text:
            # Hadoop's name for S3. Arrow and Delta know one.
            return cls("s3" + text[3:].rstrip("/") if parts.scheme == "s3a" else text.rstrip("/"), given)
        return cls(os.path.abspath(text), given)  # noqa: PTH100 - as above

    @property
    def local(self) -> Path | None:
        """The directory, where it is on this machine."""
        return Path(self.uri) if self.uri.startswith("/") else None

    def below(self, path: str) -> "Storage":
        """A directory in this one."""
        return Storage(f"{self.uri}/{path}", self.options)

    def open(self) -> tuple[fs.FileSystem, str]:
        """Arrow's file system, and the path on it."""
        if self.local is not None:
            return fs.LocalFileSystem(), self.uri
        return _opened(self.uri, self.options)

    def sync(self, *paths: str) -> None:
        """Make files or directories below this one outlive a power cut, where that is ours to do."""
        if self.local is not None:
            for path in paths:
                sync_path(f"{self.uri}/{path}")

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file: readers find it as a whole or not at all, also after a power cut."""
        files, root = self.open()
        if self.local is None:  # an object there is whole once it is there
            with files.open_output_stream(f"{root}/{name}") as stream:
                stream.write(content)
            return
        os.makedirs(root, exist_ok=True)  # noqa: PTH103 - a string, as Arrow takes it
        fresh = f".{name}.{uuid.uuid4().hex}"
        with files.open_output_stream(f"{root}/{fresh}") as stream:
            stream.write(content)
        self.sync(fresh)
        files.move(f"{root}/{fresh}", f"{root}/{name}")
        self.sync(".")

    def for_delta(self) -> dict[str, str]:
        """The options as Delta's own reader of storages takes them."""
        if self.local is not None:
            return {}
        found = dict(self.options)
        if urlsplit(self.uri).scheme in S3_SCHEMES:
            # Two writers must not both believe that they wrote the next version.
            found.setdefault("aws_conditional_put", "etag")
            endpoint = _option(self.options, "endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
            if endpoint.startswith("http:"):
                found.setdefault("aws_allow_http", "true")
        return found

    def __str__(self) -> str:
        return self.uri


def _option(options: tuple[tuple[str, str], ...], name: str) -> str | None:
    for key, value in options:
        for prefix in ("", *PREFIXES):
            if key == prefix + name:
                return value
    return None


@cache
def _opened(uri: str, options: tuple[tuple[str, str], ...]) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(uri)
    if parts.scheme not in S3_SCHEMES:
        return fs.FileSystem.from_uri(uri)
    settings = {arrow: value for name, arrow in ARROW.items() if (value := _option(options, name)) is not None}
    settings.setdefault("endpoint_override", os.environ.get("AWS_ENDPOINT_URL", ""))
    settings.setdefault("region", os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", ""))
    settings = {name: value for name, value in settings.items() if value}
    endpoint = settings.get("endpoint_override", "")
    if "://" in endpoint:
        settings["scheme"], _, settings["endpoint_override"] = endpoint.partition("://")
    return fs.S3FileSystem(**settings), f"{parts.netloc}{parts.path}"  # type: ignore[arg-type] # they are texts


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it."""
    return Storage.parse(location).open()


def sync_path(path: str | Path) -> None:
    """Make a file or directory of this machine outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SUFFIX: Final = ".parquet"

LARGE: Final = 128 << 20
"""The size files are made for, in bytes; such files are not compacted."""

ROW_GROUP: Final = 128 << 10
"""Rows in a group: what a reader decompresses at once."""

HELD: Final = 64 << 20
"""Bytes that a task holds of one file before it writes a group."""

PACKED: Final = 4
"""How much smaller files are than their rows in memory, about."""

OPEN_FILES: Final = 64
"""How many files a task writes at once."""

LONGEST: Final = 64
"""Characters of the longest text that is worth a place among a file's statistics."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. ``path`` is below its directory; ``partition`` is what its rows have in common, as text."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None]
    stats: str = ""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where files go, and how they are written.

    ``varied`` are columns whose values hardly ever repeat. With ``by_content`` the names of files with the same rows in
    the same order have the same part (``content_of``).
    """

    storage: Storage
    prefix: str
    varied: tuple[str, ...] = ()
    durable: bool = True
    by_content: bool = False


def content_of(file: DataFile) -> str:
    """What identifies a file's content, where it was written that way."""
    return file.path.rpartition("-")[0]


@dataclass
class OpenFile:
    """A Parquet file that is being written."""

    place: FilePlace
    folder: str
    partition: Mapping[str, str | None]
    rows: int = 0
    size: int = 0
    """In bytes, about."""
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    writer: pq.ParquetWriter | None = None
    target: pa.NativeFile | None = None
    path: str = ""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.held.append(batch)
        self.rows += batch.num_rows
        self.held_rows += batch.num_rows
        self.held_bytes += batch.nbytes
        if self.held_rows >= ROW_GROUP or self.held_bytes >= HELD:
            self._write_group()

    def _write_group(self) -> None:
        # Whatever these rows are, later ones of the same column may be null.
        table = pa.Table.from_batches(self.held)
        table = table.cast(pa.schema([column.with_nullable(nullable=True) for column in table.schema]))
        self.held, self.held_rows, self.held_bytes = [], 0, 0
        if self.writer is None:
            coded: Any = [name for name in table.schema.names if name not in self.place.varied]
            self.writer = pq.ParquetWriter(
                self._target(),
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=coded,
                store_schema=False,
            )
        self.writer.write_table(table, row_group_size=ROW_GROUP)
        self.size += table.nbytes // PACKED

    def _target(self) -> pa.NativeFile:
        if self.place.by_content:
            self.target = pa.BufferOutputStream()
        else:
            self.target = self._created(uuid.uuid4().hex)
        return self.target

    def _created(self, name: str) -> pa.NativeFile:
        files, root = self.place.storage.open()
        name = f"{self.place.prefix}-{name}{SUFFIX}"
        self.path = f"{self.folder}/{name}" if self.folder else name
        if self.place.storage.local is not None:
            os.makedirs(f"{root}/{self.folder}", exist_ok=True)  # noqa: PTH103 - a string, as Arrow takes it
        return files.open_output_stream(f"{root}/{self.path}")

    def close(self) -> DataFile:
        """Finish the file, and see to it that it is on the disk; its directory is synced with the transaction."""
        if self.held:
            self._write_group()
        assert self.writer is not None  # noqa: S101 - it has rows
        assert self.target is not None  # noqa: S101 - as above
        self.writer.close()
        if isinstance(self.target, pa.BufferOutputStream):
            content = self.target.getvalue()
            self.target = self._created(f"{hashlib.sha256(content).hexdigest()[:16]}-{uuid.uuid4().hex[:8]}")
            self.target.write(content)
        size = self.target.tell()
        self.target.close()
        if self.place.durable:
            self.place.storage.sync(self.path)
        metadata = self.writer.writer.metadata
        return DataFile(self.path, size, metadata.num_rows, self.partition, statistics(metadata))


def statistics(metadata: Any) -> str:
    """What is known of a file without reading it, as the log has it: rows, nulls, smallest and largest values."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    skipped: set[str] = set()
    for group in range(metadata.num_row_groups):
        of_group = metadata.row_group(group)
        for number in range(of_group.num_columns):
            column = of_group.column(number)
            name, found = column.path_in_schema, column.statistics
            if "." in name or name in skipped:
                continue
            if found is None or not found.has_null_count:
                skipped.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.null_count == column.num_values + found.null_count and not found.has_min_max:
                continue
            if not found.has_min_max or not _worth(found.min) or not _worth(found.max):
                skipped.add(name)
                continue
            least[name] = min(least.get(name, found.min), found.min)
            most[name] = max(most.get(name, found.max), found.max)
    told = {
        "numRecords": metadata.num_rows,
        "minValues": {name: _told(value) for name, value in least.items() if name not in skipped},
        "maxValues": {name: _told(value) for name, value in most.items() if name not in skipped},
        "nullCount": nulls,
    }
    return json.dumps(told, separators=(",", ":"))


def _worth(value: Any) -> bool:
    if isinstance(value, bool | bytes):
        return False
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")  # noqa: PLR0124 - NaN
    return isinstance(value, int | date) or (isinstance(value, str) and len(value) <= LONGEST)


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"

WRITTEN: Final = "name string, path string, size long, rows long, partition string, stats string"
"""What a task reports of each file, for Spark."""

_WRITTEN: Final = pa.schema(
    [pa.field(name, pa.utf8()) for name in ("name", "path")]
    + [pa.field(name, pa.int64()) for name in ("size", "rows")]
    + [pa.field(name, pa.utf8()) for name in ("partition", "stats")]
)


class TableWriter:
    """Writes rows of a table to files, a file at a time for each combination of what they are partitioned by.

    The columns of ``partition_by`` become directories, ``day=…/protocol=…``.
    """

    def __init__(self, place: FilePlace, partition_by: Sequence[str]) -> None:
        self._place = place
        self._partition_by = tuple(partition_by)
        self._opened: dict[tuple[str | None, ...], OpenFile] = {}

    def write(self, batch: pa.RecordBatch) -> Iterator[DataFile]:
        """Add rows. Files that are finished are given back."""
        for values, rows in self._parts(batch):
            file = self._opened.get(values)
            if file is None:
                if len(self._opened) >= OPEN_FILES:
                    yield self._opened.pop(next(iter(self._opened))).close()
                file = self._opened[values] = self._new(values)
            file.write(rows)
            if file.size >= LARGE:
                yield self._opened.pop(values).close()

    def close(self) -> Iterator[DataFile]:
        """Finish the others."""
        for file in self._opened.values():
            yield file.close()
        self._opened.clear()

    def _new(self, values: tuple[str | None, ...]) -> OpenFile:
        partition = dict(zip(self._partition_by, values, strict=True))
        folder = "/".join(f"{name}={_quoted(value)}" for name, value in partition.items())
        return OpenFile(self._place, folder, partition)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """The rows by the values of the columns that become directories."""
        if not batch.num_rows:
            return
        if not self._partition_by:
            yield (), batch
            return
        rest = batch.select([name for name in batch.schema.names if name not in self._partition_by])
        columns = [coded(batch.column(name)) for name in self._partition_by]
        place = np.zeros(batch.num_rows, np.int64)
        for column in columns:
            place = place * (len(column.values) + 1) + column.codes + 1
        values = [[*column.values.cast(pa.utf8()).to_pylist(), None] for column in columns]  # the last place is -1's
        first = np.unique(place, return_index=True)[1]
        for row in np.sort(first).tolist():
            chosen = tuple(texts[column.codes[row]] for texts, column in zip(values, columns, strict=True))
            yield chosen, rest if len(first) == 1 else rest.filter(pa.array(place == place[row]))


def write_rows(place: FilePlace, partition_by: Sequence[str], rows: pa.Table) -> list[DataFile]:
    """Write all these rows, and give the files."""
    writer = TableWriter(place, partition_by)
    files = [file for batch in rows.to_batches() for file in writer.write(batch)]
    return [*files, *writer.close()]


class FileWriter:
    """For ``mapInArrow``: writes the rows of a task to files, and gives a row for each of these.

    ``name`` is whose rows they are.
    """

    def __init__(self, name: str, place: FilePlace, partition_by: Sequence[str]) -> None:
        self._name = name
        self._place = place
        self._partition_by = tuple(partition_by)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        writer = TableWriter(self._place, self._partition_by)
        for batch in batches:
            yield from (self._told(file) for file in writer.write(batch))
        yield from (self._told(file) for file in writer.close())

    def _told(self, file: DataFile) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([report_of(self._name, file)], schema=_WRITTEN)


def report_of(name: str, file: DataFile) -> dict[str, Any]:
    """A file as a task reports it."""
    row = {"name": name, "path": file.path, "size": file.size, "rows": file.rows}
    return row | {"partition": json.dumps(file.partition), "stats": file.stats}


def _quoted(value: str | None) -> str:
    """A value as the name of a directory, as Hive and Spark write it."""
    return NO_VALUE if value is None else quote(value, safe=" -_.~")


def reported(row: Any) -> DataFile:
    """The file of a report."""
    return DataFile(row["path"], row["size"], row["rows"], json.loads(row["partition"]), row["stats"])


def folders_of(files: Sequence[DataFile]) -> list[str]:
    """The directories that have entries for these files, below that of the table, which is the last one."""
    found = {"."}
    for file in files:
        folder = file.path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found, key=len, reverse=True)


def check_visible(name: str, storage: Storage, found: Sequence[DataFile]) -> None:
    """Whether the driver sees what the tasks wrote. A batch must never be committed without its rows."""
    files, root = storage.open()
    for file, info in zip(found, files.get_file_info([f"{root}/{file.path}" for file in found]), strict=True):
        if info.type != fs.FileType.File or info.size != file.size:
            seen = "does not exist" if info.type != fs.FileType.File else f"has {info.size} bytes"
            raise LakeError(
                name,
                f"a task wrote {file.path} with {file.size} bytes, but here it {seen}: the executors and the driver "
                f"do not share {storage.uri}. Nothing was committed. Use a directory that all machines mount, or a "
                "URI such as s3://…",
            )
