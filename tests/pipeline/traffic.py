"""Journals with rows in them, for tests: written with the hub's own writer."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from polywire.journal.format import KIND_VALUES, SCHEMA, node_values, protocol_values
from polywire.journal.kinds import KINDS
from polywire.journal.log import SEGMENT_OCTETS, Log
from polywire.registry import names

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

Row = Mapping[str, Any]
"""The columns of a row that matter to a test; the others get something plain."""


def journal_rows(rows: Iterable[Row], *, node: str = "n1", first_offset: int = 0) -> Any:
    """Rows as a record batch to append."""
    full = []
    for number, row in enumerate(rows):
        plain: dict[str, Any] = {
            "offset": first_offset + number,
            "ts": START + timedelta(milliseconds=first_offset + number),
            "kind": "publish",
            "protocol": "mqtt",
            "connection": 1,
            "channel": "a/b",
            "body": b"",
            "flags": 0,
        }
        plain |= row
        full.append(plain | {"size": plain.get("size", len(plain["body"])), "node": node})
    columns = []
    for field in SCHEMA:
        values = [row.get(field.name) for row in full]
        if field.name == "node":
            columns.append(_coded([0] * len(full), node_values(node)))
        elif field.name == "kind":
            columns.append(_coded([KINDS.index(value) for value in values], KIND_VALUES))
        elif field.name == "protocol":
            codes = [None if value is None else names().index(value) for value in values]
            columns.append(_coded(codes, protocol_values()))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _coded(codes: list[int | None] | list[int], values: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), values)


def write_journal(
    folder: Path, rows: Iterable[Row], *, node: str = "n1", batch: int = 100, segment_octets: int = SEGMENT_OCTETS
) -> None:
    """Append rows to a journal, so many to a batch."""
    waiting = list(rows)
    with Log(folder, node=node, fsync="os", segment_octets=segment_octets) as log:
        for start in range(0, len(waiting), batch):
            part = journal_rows(waiting[start : start + batch], node=node, first_offset=log.next_offset)
            log.append(part, state=False)


def messages(count: int, **more: Any) -> list[Row]:
    """Publications with their numbers in their bodies."""
    return [{"body": str(number).encode(), **more} for number in range(count)]
