"""Publishes a DataFrame's rows into a hub: tasks stage them, the driver publishes what was staged, over HTTP.

Each row reaches the hub exactly once, even after a crash. Tasks write files; the driver names them in a manifest before
it publishes the first row. A batch that is run again after a crash finds the manifest and publishes the files it names,
not what the tasks made this time: those may be cut differently. So what a (query, batch, part) is never changes once
the hub may have seen it; and the hub remembers the last part it applied for a query, in the same step of its log as the
rows. While the hub is away, the driver keeps trying.
"""

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from polywire.http import HttpClient, NoAnswer
from polywire.journal.format import POSTED_SCHEMA, Array, values
from polywire.pipeline.errors import OptionError, SinkError
from polywire.pipeline.files import open_location, sync_path
from polywire.pipeline.journals import known, number

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
PART_BYTES: Final = 4 << 20
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
    start = size = 0
    for row, length in enumerate(lengths):
        if row > start and (row - start >= PART_ROWS or size + length > PART_BYTES):
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += length
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


def _sync(files: fs.FileSystem, path: str) -> None:
    """Make what was written outlive a power cut, where that is ours to do."""
    if isinstance(files, fs.LocalFileSystem):
        sync_path(path)


def _remove(files: fs.FileSystem, path: str) -> None:
    if files.get_file_info(path).type == fs.FileType.File:
        files.delete_file(path)


PATH: Final = "/publish"
CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
PORT: Final = 7100


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which batch of which query a request is."""

    query: str
    batch: int
    number: int


class Publisher:
    """Publishes to one hub. A part is sent until the hub has answered it, for ``patience`` seconds at most."""

    def __init__(self, hub: str, *, token: str | None, timeout: float, patience: float) -> None:
        port = None if hub.startswith("https:") else PORT
        try:
            self._http = HttpClient(hub, token=token, timeout=timeout, port=port)
        except ValueError:
            reason = f"{hub!r} is not the address of a hub; write http://127.0.0.1:{PORT}"
            raise OptionError("hub", reason) from None
        self._patience = patience

    def publish(self, part: Part, rows: pa.RecordBatch) -> bool:
        """Publish a part; False where the hub had it already."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, POSTED_SCHEMA) as writer:
            writer.write_batch(rows)
        headers = {
            "content-type": CONTENT_TYPE,
            "polywire-query": part.query,
            "polywire-batch": str(part.batch),
            "polywire-part": str(part.number),
        }
        body = sink.getvalue().to_pybytes()
        status = None
        try:
            answer = self._http.request("POST", PATH, body=body, headers=headers, patience=self._patience)
            if answer.status == HTTPStatus.OK:
                return bool(json.loads(answer.body).get("applied", True))
            status, reason = answer.status, f"{answer.status} {answer.text(200)}"
        except NoAnswer as error:
            reason = str(error)
        where = f"batch {part.batch}, part {part.number} of {part.query}"
        raise SinkError(f"{self._http.host} did not accept {where}: {reason}", status=status)

    def close(self) -> None:
        """End the connection."""
        self._http.close()


SINK_OPTIONS: Final = ("hub", "token", "query", "staging", "timeout", "patience")
TIMEOUT: Final = 30
PATIENCE: Final = 120
"""Seconds: how long one request may take, and how long a hub may be away."""

STAGING_FOLDER: Final = "polywire-staging"
UNNAMED: Final = "unnamed-"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task reports to the driver: the file it staged, if it had any row."""

    file: str | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to publish: the options of ``df.write`` and ``df.writeStream``."""

    hub: str
    token: str | None
    query: str
    staging: str
    timeout: int
    patience: int

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool) -> "SinkOptions":
        """The options as Spark gives them."""
        given = known(options, SINK_OPTIONS)
        hub = given.get("hub") or given.get("path")
        if not hub:
            raise OptionError("hub", "is missing: the hub's HTTP address, http://127.0.0.1:7100")
        query, staging = given.get("query"), given.get("staging")
        if streaming:
            checkpoint = given.get("checkpointlocation")
            if checkpoint is None and (query is None or staging is None):
                raise OptionError(
                    "checkpointLocation", "is missing: set it as an option, or set both query and staging"
                )
            query = query or _query_id(str(checkpoint))
            staging = staging or f"{str(checkpoint).rstrip('/')}/{STAGING_FOLDER}"
        else:
            query = query or f"{UNNAMED}{uuid.uuid4()}"
            staging = staging or str(Path(tempfile.gettempdir()) / STAGING_FOLDER)
        return cls(
            hub=hub,
            token=given.get("token"),
            query=query,
            staging=f"{staging.rstrip('/')}/{query}",
            timeout=number("timeout", given.get("timeout"), TIMEOUT),
            patience=number("patience", given.get("patience"), PATIENCE),
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_columns({field.name: field.dataType.simpleString() for field in schema})
        self.options = SinkOptions.read(options, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override] # so are Spark's own
        """In a task: stage its rows."""
        return stage(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver: publish what the tasks staged."""
        publish(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        """On the driver: a task failed for good."""
        Staging(self.options.staging).discard(_files(messages))


class BatchWriter(DataSourceArrowWriter):
    """The sink of ``df.write``: one batch, published once when all its tasks are done."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("published messages can't be overwritten: use mode('append')")
        check_columns({field.name: field.dataType.simpleString() for field in schema})
        self.options = SinkOptions.read(options, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override] # so are Spark's own
        """In a task: stage its rows."""
        return stage(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what the tasks staged."""
        publish(self.options, messages, 0)
        self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: a task failed for good."""
        Staging(self.options.staging).discard(_files(messages))
        self._forget()

    def _forget(self) -> None:
        # A name we made up is never used again; one the user gave is, and must find what was done under it.
        if self.options.query.startswith(UNNAMED):
            Staging(self.options.staging).remove()


def stage(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of a task."""
    parts = (part for batch in batches for part in in_parts(normalised(batch)))
    return Staged(Staging(options.staging).stage(parts))


def publish(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: int) -> None:
    """Publish a batch, continuing where it stopped if it was started before."""
    staging = Staging(options.staging)
    manifest = staging.manifest(batch)
    if manifest is None:
        manifest = Manifest(tuple(_files(messages)), done=False)
        if not manifest.files:
            return
        staging.decide(batch, manifest)
    if not manifest.done:
        publisher = Publisher(options.hub, token=options.token, timeout=options.timeout, patience=options.patience)
        try:
            for part, rows in enumerate(staging.parts(manifest)):
                publisher.publish(Part(options.query, batch, part), rows)
        finally:
            publisher.close()
        staging.decide(batch, Manifest((), done=True))
    staging.clear(keep_batch=batch)


def _files(messages: list[WriterCommitMessage | None]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, Staged) and message.file is not None:
            yield message.file


def _query_id(checkpoint: str) -> str:
    """The id that Spark gave the query of a checkpoint: the same after every restart."""
    files, root = open_location(checkpoint)
    try:
        with files.open_input_stream(f"{root}/metadata") as stream:
            return str(json.loads(stream.read())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise OptionError("query", f"is missing, and {checkpoint}/metadata does not contain it: {error}") from error
