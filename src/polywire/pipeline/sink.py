"""Publishes a DataFrame's rows into a hub: tasks stage them, the driver publishes what was staged, over HTTP.

Each row reaches the hub exactly once, even after a crash: the hub remembers the last part it applied for a query, in
the same step of its log as the rows, and ``staging`` sees to it that a part is the same however often it is sent. While
the hub is away, the driver keeps trying.
"""

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from polywire.http import HttpClient, NoAnswer
from polywire.journal.format import POSTED_SCHEMA
from polywire.pipeline.errors import OptionError, SinkError
from polywire.pipeline.options import known, number
from polywire.pipeline.staging import Manifest, Staging, check_columns, in_parts, normalised, open_location

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
