"""Many small files of a table made into few large ones. Every micro-batch writes files, and readers pay for each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from polywire.pipeline.lake_files import Folder

LARGE: Final = 128 << 20
"""A file of this size is left as it is."""
ROW_GROUP: Final = 128 << 10
"""Rows in a group: what a reader decompresses at once."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """How many files were made into how many."""

    before: int
    after: int

    def __add__(self, other: "Compaction") -> "Compaction":
        return Compaction(self.before + other.before, self.after + other.after)


def compact_rows(folder: Folder, least: int) -> Compaction:
    """One file instead of many small ones, in each folder that has at least ``least`` of them."""
    total = Compaction(0, 0)
    by_place: dict[Path, list[Path]] = {}
    for path in folder.settled(folder.files()):
        by_place.setdefault(path.parent, []).append(path)
    for place, files in by_place.items():
        small = [path for path in files if path.stat().st_size < LARGE]
        if len(small) < max(least, 2):
            continue
        for chosen in _lots(small):
            staged = folder.staging()
            target = staged / place.relative_to(folder.home)
            target.mkdir(parents=True)
            _join(chosen, target / "part.parquet")
            total += Compaction(len(chosen), folder.swap(staged, chosen))
    return total


def _lots(files: list[Path]) -> list[list[Path]]:
    """The files in lots that make a large one each; a last single one is left alone."""
    lots: list[list[Path]] = [[]]
    octets = 0
    for path in files:
        if octets >= LARGE:
            lots.append([])
            octets = 0
        lots[-1].append(path)
        octets += path.stat().st_size
    return [lot for lot in lots if len(lot) > 1]


def _join(files: list[Path], target: Path) -> None:
    """All rows of the files in one, file by file; never more than some of them in memory."""
    schema: Any = pa.unify_schemas([pq.read_schema(path) for path in files]).with_metadata(
        pq.read_schema(files[-1]).metadata
    )
    with pq.ParquetWriter(target, schema, compression="zstd", use_dictionary=_coded(files[0])) as writer:
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(ROW_GROUP):
                    writer.write_batch(_fitted(batch, schema), row_group_size=ROW_GROUP)


def _coded(path: Path) -> list[str]:
    """The columns for which a dictionary was worth it when they were first written."""
    with pq.ParquetFile(path) as file:
        if not file.metadata.num_row_groups:
            return []
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        return [column.path_in_schema for column in columns if column.has_dictionary_page]


def _fitted(batch: Any, schema: Any) -> Any:
    """The batch with the columns of a schema: one that came later is null in older files."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        arrays.append(pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
