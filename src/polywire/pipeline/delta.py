"""Tables as Delta Lake keeps them: Parquet files, and a log of transactions that says which of them count.

``deltalake`` reads and writes the log. What is added here: files that Spark's tasks wrote (``files.py``) and the driver
commits, everything on the disk before it counts, and transactions that take files away, which ``deltalake`` would let
two processes do twice. Nothing here needs Spark.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow import fs

from polywire.pipeline.errors import LakeError
from polywire.pipeline.files import LARGE, ROW_GROUP, DataFile, FilePlace, OpenFile, Storage, folders_of, sync_path

LOG: Final = "_delta_log"

PARTS: Final = "_parts"
"""The directory of the parts of aggregates in a lake."""

MERGED: Final = "parts"
"""In the log of a finished table: the version of its parts that it is made of."""

KEPT: Final = "kept"
"""In the log of a table: the last day whose rows were deleted because of their age, as its number."""

NOTED: Final = "polywire"
"""The name of our own words in a transaction's information."""

OFFSETS: Final = ".offsets"
"""Beside the number of a query's last batch, which the log keeps under the query's name: what identifies that batch."""

HISTORY_HOURS: Final = 24
"""How long versions can be read that are not the latest, where nothing else is asked for."""

CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": f"interval {HISTORY_HOURS} hours",
}
WIDENED: Final = "polywire.widened"
"""A property of tables whose files do not all have the same columns."""

TRIES: Final = 100
"""How often a transaction is tried again because another process has committed one."""

CHECKPOINT_AFTER: Final = 50
"""Transactions after which what the log amounts to is written in one file."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch. ``offsets`` are the places in the journal between which it is; None where nobody knows."""

    query: str
    number: int
    offsets: Mapping[str, Any] | None = None

    @property
    def identity(self) -> int:
        """The offsets as one number, 0 for none."""
        if self.offsets is None:
            return 0
        text = json.dumps(self.offsets, sort_keys=True)
        return uuid.uuid5(uuid.NAMESPACE_OID, text).int >> 65 or 1

    def transactions(self) -> list[Transaction]:
        """What the log keeps of it."""
        return [Transaction(self.query, self.number), Transaction(self.query + OFFSETS, self.identity)]


def added(file: DataFile, *, changes: bool = True) -> AddAction:
    """A file as an action of a transaction."""
    return AddAction(file.path, file.size, file.partition, _now(), changes, file.stats)


def removed(file: DataFile, *, changes: bool = True) -> RemoveAction:
    """The same, to take it away."""
    return RemoveAction(file.path, changes, _now(), file.size, dict(file.partition))


def _now() -> int:
    return time.time_ns() // 1_000_000


class FilesChangedError(Exception):
    """Files that were to be taken away are gone already."""


class LakeTable:
    """One Delta table, and all that is done to it. May be used by several threads.

    With ``durable`` what is committed on this machine is on the disk, not just safe from the end of the process.
    """

    def __init__(self, storage: Storage, name: str, *, durable: bool = True) -> None:
        self.storage = storage
        self.name = name
        self._durable = durable
        self._opened: DeltaTable | None = None
        self._lock = threading.RLock()

    def opened(self) -> DeltaTable | None:
        """The table as it is now; None where it was never written."""
        with self._lock:
            try:
                if self._opened is None:
                    self._opened = self.at_version()
                else:
                    self._opened.update_incremental()
            except TableNotFoundError:
                self._opened = None
            return self._opened

    def at_version(self, version: int | None = None, at: datetime | None = None) -> DeltaTable:
        """The table as it was, in an object of its own."""
        local = self.storage.local
        if local is not None and not (local / LOG).is_dir():
            raise TableNotFoundError(str(local))  # asking Delta would make the directory
        try:
            found = DeltaTable(self.storage.uri, version=version, storage_options=self.storage.for_delta())
            if at is not None:
                found.load_as_version(at)
        except TableNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            raise LakeError(self.name, _reason(error)) from None
        return found

    def schema(self) -> str | None:
        """The columns as JSON, the way both Delta and Spark write them."""
        opened = self.opened()
        return None if opened is None else opened.schema().to_json()

    def files(self, opened: DeltaTable | None = None) -> list[DataFile]:
        """The files that count, in order."""
        with self._lock:
            opened = opened or self.opened()
            return [] if opened is None else files_of(opened)

    def version(self) -> int:
        """The number of the last transaction; -1 where there is none."""
        opened = self.opened()
        return -1 if opened is None else opened.version()

    def committed(self, query: str) -> tuple[int, int]:
        """The last batch of a query that is wholly there, and its identity; -1 for none."""
        opened = self.opened()
        return (-1, 0) if opened is None else _last_batch(opened, query)

    def holds(self, batch: Batch) -> bool:
        """Whether a batch is there already. A lost checkpoint gives old numbers to other rows, which is an error."""
        opened = self.opened()
        return opened is not None and self._held(opened, batch)

    def _held(self, opened: DeltaTable, batch: Batch) -> bool:
        done, identity = _last_batch(opened, batch.query)
        if batch.number > done:
            return False
        if batch.number < done or (identity and batch.identity and identity != batch.identity):
            raise LakeError(
                self.name,
                f"query {batch.query!r} is at batch {batch.number}, but "
                + (f"batch {done}" if batch.number < done else "another batch of this number")
                + " is in the lake: the checkpoint was lost or is an old one. Nothing was written. Restore the "
                "checkpoint, or use a new lake",
            )
        return True

    def append(self, files: Sequence[DataFile], schema: str, partition_by: Sequence[str], batch: Batch) -> bool:
        """Add a batch, unless it is there. Returns whether it was added."""
        noted = {"query": batch.query, "batch": batch.number, **(batch.offsets or {})}
        self._sync_folders(files)
        for again in range(TRIES):
            with self._lock:  # no other thread may move on in between
                # What was seen last will do at first: where another process has moved on, the transaction fails.
                known = self._opened if self._opened is not None and not again else self.opened()
                if known is not None and self._held(known, batch):
                    return False
                if known is not None:
                    self._widen(schema, known)
                if self._tried([added(file) for file in files], schema, partition_by, noted, batch.transactions()):
                    return True
        raise LakeError(self.name, "other processes kept committing to it; try again")

    def replace(
        self,
        chosen: Callable[[DataFile], bool] | Iterable[DataFile],
        files: Sequence[DataFile],
        schema: str,
        partition_by: Sequence[str] = (),
        *,
        noted: Mapping[str, Any],
        transactions: Sequence[Transaction] = (),
        changes: bool = True,
    ) -> int:
        """Put files in the place of others, in one transaction. Returns how many it took away.

        A function chooses among the files there are at that moment. Of a list all must still be there, else
        ``FilesChangedError`` is raised. ``changes``: whether the table has other rows than before.
        """
        self._sync_folders(files)
        opened = self.opened()
        if opened is not None:
            self._widen(schema, opened)
        for _ in range(TRIES):
            with self._lock:  # as above
                there = self.files()
                if callable(chosen):
                    gone = [file for file in there if chosen(file)]
                else:
                    gone = list(chosen)
                    if not {file.path for file in gone} <= {file.path for file in there}:
                        raise FilesChangedError
                actions: list[AddAction | RemoveAction] = [removed(file, changes=changes) for file in gone]
                actions += [added(file, changes=changes) for file in files]
                nothing = not actions and not transactions
                if nothing or self._tried(actions, schema, partition_by, noted, list(transactions)):
                    return len(gone)
        raise LakeError(self.name, "other processes kept committing to it; try again")

    def _tried(
        self,
        actions: Sequence[AddAction | RemoveAction],
        schema: str,
        partition_by: Sequence[str],
        noted: Mapping[str, Any],
        transactions: list[Transaction],
    ) -> bool:
        """Commit on top of the version that was looked at; False where another process was faster."""
        properties = CommitProperties({NOTED: dict(noted)}, max_commit_retries=0, app_transactions=transactions)
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        with self._lock:
            if self._opened is None:
                return self._created(actions, schema, partition_by, properties)
            before = self._opened.version()
            try:
                self._opened.create_write_transaction(
                    list(actions),
                    "append",
                    self._opened.schema(),
                    list(self._opened.metadata().partition_columns),
                    commit_properties=properties,
                    post_commithook_properties=hooks,
                )
            except CommitFailedError:
                return False
            self._sync_log(before + 1)
            return True

    def _created(
        self,
        actions: Sequence[AddAction | RemoveAction],
        schema: str,
        partition_by: Sequence[str],
        properties: CommitProperties,
    ) -> bool:
        try:
            create_table_with_add_actions(
                self.storage.uri,
                deltalake.Schema.from_json(schema),
                [action for action in actions if isinstance(action, AddAction)],
                partition_by=list(partition_by),
                name=self.name,
                configuration=CONFIGURATION,
                storage_options=self.storage.for_delta(),
                commit_properties=properties,
            )
        except CommitFailedError:
            return False
        except DeltaError as error:
            if "already exists" in str(error):
                return False
            raise LakeError(self.name, _reason(error)) from None
        self._sync_log(0)
        return True

    def _widen(self, schema: str, opened: DeltaTable) -> None:
        """Give the table the columns that are new in some rows, before these come."""
        known = opened.schema().to_json()
        if known == schema:
            return
        new, fewer = compared(self.name, known, schema)
        if not new and not fewer:
            return
        with self._lock:
            opened.update_incremental()
            before = opened.version()
            if new:
                fields = [deltalake.Field.from_json(json.dumps(one)) for one in new]
                opened.alter.add_columns(fields)
            if opened.metadata().configuration.get(WIDENED) is None:
                opened.alter.set_table_properties({WIDENED: "true"}, raise_if_not_exists=False)
            opened.update_incremental()
            for version in range(before + 1, opened.version() + 1):
                self._sync_log(version)

    def _sync_folders(self, files: Sequence[DataFile]) -> None:
        if self._durable and files:
            self.storage.sync(*folders_of(files))

    def _sync_log(self, version: int) -> None:
        if self._durable and self.storage.local is not None:
            self.storage.sync(f"{LOG}/{version:020d}.json", LOG, *([] if version else [".", ".."]))

    def checkpoint(self, after: int = CHECKPOINT_AFTER) -> bool:
        """Write what the log amounts to in one file, if so many transactions came since; forget old transactions."""
        with self._lock:
            opened = self.opened()
            if opened is None or opened.version() - self._last_checkpoint() < after:
                return False
            opened.create_checkpoint()
            if self._durable and self.storage.local is not None:
                log = self.storage.local / LOG
                for path in (*log.glob(f"{opened.version():020d}.checkpoint*"), log / "_last_checkpoint", log):
                    sync_path(path)
            opened.cleanup_metadata()
            return True

    def _last_checkpoint(self) -> int:
        files, root = self.storage.open()
        try:
            with files.open_input_stream(f"{root}/{LOG}/_last_checkpoint") as stream:
                return int(json.loads(stream.read())["version"])
        except (OSError, ValueError, KeyError):
            return -1

    def vacuum(self, hours: int = HISTORY_HOURS) -> int:
        """Delete files that count no more for so many hours, and those that killed tasks left. Returns how many."""
        opened = self.opened()
        if opened is None:
            return 0
        kept = {"retention_hours": hours, "enforce_retention_duration": False, "full": True}
        if not opened.vacuum(dry_run=True, **kept):  # type: ignore[arg-type] # of several types
            return 0
        with self._lock:
            return len(opened.vacuum(dry_run=False, **kept))  # type: ignore[arg-type] # as above

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The transactions, the last one first."""
        opened = self.opened()
        return [] if opened is None else opened.history(limit)

    def compact(self, least: int = 8) -> "Compaction":
        """Make large files of small ones, partition by partition, where there are at least ``least`` of them."""
        total = Compaction(0, 0)
        opened = self.opened()
        if opened is None:
            return total
        by_place: dict[str, list[DataFile]] = {}
        for file in files_of(opened):
            by_place.setdefault(json.dumps(file.partition, sort_keys=True), []).append(file)
        for files in by_place.values():
            for chosen in lots(files, least):
                made = self._joined(chosen)
                try:
                    self.replace(chosen, made, opened.schema().to_json(), noted={"compacted": True}, changes=False)
                except FilesChangedError:
                    continue  # another process did something about them; what was made here is vacuumed
                total += Compaction(len(chosen), len(made))
        return total

    def _joined(self, chosen: Sequence[DataFile]) -> list[DataFile]:
        """All rows of the files in new ones, group by group; never more than some of them in memory."""
        files, root = self.storage.open()
        schemas = [pq.read_schema(f"{root}/{file.path}", filesystem=files) for file in chosen]
        schema = pa.unify_schemas(schemas).remove_metadata()
        coded = _coded(files, f"{root}/{chosen[-1].path}")
        varied = [name for name in schema.names if name not in coded]
        place = FilePlace(self.storage, "compact", varied=tuple(varied), durable=self._durable)
        writer = OpenFile(place, chosen[0].path.rpartition("/")[0], chosen[0].partition)
        made = []
        for file in chosen:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=files) as parquet:
                for batch in parquet.iter_batches(ROW_GROUP):
                    writer.write(_fitted(batch, schema))
                    if writer.size >= LARGE:
                        made.append(writer.close())
                        writer = OpenFile(place, chosen[0].path.rpartition("/")[0], chosen[0].partition)
        if writer.rows:
            made.append(writer.close())
        return made


def _last_batch(opened: DeltaTable, query: str) -> tuple[int, int]:
    number = opened.transaction_version(query)
    return -1 if number is None else number, opened.transaction_version(query + OFFSETS) or 0


def _reason(error: Exception) -> str:
    """What is the matter, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def files_of(opened: DeltaTable) -> list[DataFile]:
    """The files of this version of a table, in order."""
    added = pa.table(opened.get_add_actions(flatten=True))
    names = [name for name in added.schema.names if name.startswith("partition.")]
    columns = [added.column(name).cast(pa.utf8()).to_pylist() for name in names]
    partitions: list[dict[str, str | None]] = [
        {name.removeprefix("partition."): value for name, value in zip(names, values, strict=True)}
        for values in zip(*columns, strict=True)
    ] or [{}] * added.num_rows
    told = (added.column(name).to_pylist() for name in ("path", "size_bytes", "num_records"))
    found = [
        DataFile(unquote(path), size, rows or 0, partition)
        for path, size, rows, partition in zip(*told, partitions, strict=True)
    ]
    return sorted(found, key=lambda file: file.path)


def days_of(files: Iterable[DataFile]) -> set[str]:
    """The days of these files."""
    return {day for file in files if (day := file.partition.get("day")) is not None}


def between(first: date, last: date) -> Callable[[DataFile], bool]:
    """Whether a file is of one of these days."""
    begin, end = first.isoformat(), last.isoformat()
    return lambda file: (day := file.partition.get("day")) is not None and begin <= day <= end


def compared(table: str, known: str, schema: str) -> tuple[list[dict[str, Any]], bool]:
    """The columns that are new in ``schema``, and whether some are missing. Another type is an error."""
    columns = {field["name"]: field for field in json.loads(known)["fields"]}
    new = []
    names = set()
    for column in json.loads(schema)["fields"]:
        names.add(column["name"])
        before = columns.get(column["name"])
        if before is None:
            new.append({**column, "nullable": True})
        elif _kind(before["type"]) != _kind(column["type"]):
            raise LakeError(
                table,
                f"column {column['name']!r} is {_kind(column['type'])} now, but {_kind(before['type'])} in the lake: "
                "cast it to that, give the column another name, or use a new lake",
            )
    return new, not columns.keys() <= names


def _kind(found: Any) -> str:
    """A type as SQL writes it."""
    if isinstance(found, str):
        return {"long": "bigint", "integer": "int"}.get(found, found)
    if found["type"] == "array":
        return f"array<{_kind(found['elementType'])}>"
    if found["type"] == "map":
        return f"map<{_kind(found['keyType'])},{_kind(found['valueType'])}>"
    inner = ",".join(f"{field['name']}:{_kind(field['type'])}" for field in found["fields"])
    return f"struct<{inner}>"


@dataclass(frozen=True, slots=True)
class Compaction:
    """How many files were made into how many."""

    before: int
    after: int

    def __add__(self, other: "Compaction") -> "Compaction":
        return Compaction(self.before + other.before, self.after + other.after)


def lots(files: Sequence[DataFile], least: int) -> Iterator[list[DataFile]]:
    """Which files to join: the small ones, as long as the next one is not much larger than all before it together.

    So a row is written again about as often as the table's size has digits, not with every new file.
    """
    small = sorted((file for file in files if file.size < LARGE), key=lambda file: file.size)
    lot: list[DataFile] = []
    size = 0
    for file in small:
        if len(lot) >= max(least, 2) and (file.size > size or size + file.size > 2 * LARGE):
            break
        lot.append(file)
        size += file.size
    if len(lot) >= max(least, 2):
        yield sorted(lot, key=lambda file: file.path)  # in the order they were written


def _coded(files: fs.FileSystem, path: str) -> set[str]:
    """The columns for which a dictionary was worth it when they were first written."""
    metadata = pq.read_metadata(path, filesystem=files)
    if not metadata.num_row_groups:
        return set()
    group = metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema.partition(".")[0] for column in columns if column.has_dictionary_page}


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of a schema: one that came later is null in older files."""
    arrays = []
    for wanted in schema:
        index = batch.schema.get_field_index(wanted.name)
        arrays.append(pa.nulls(batch.num_rows, wanted.type) if index < 0 else batch.column(index).cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
