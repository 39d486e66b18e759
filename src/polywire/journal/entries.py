"""Entries of an index for batches that were found in a segment itself."""

import mmap

import pyarrow.compute as pc

from polywire.journal.framing import IpcMessage
from polywire.journal.head import Head
from polywire.journal.index import STATE_FLAG, Entry
from polywire.journal.runs import decode
from polywire.journal.survey import Survey


def entries_of(found: Survey, known: list[Entry], head: Head, octets: bytes | mmap.mmap) -> list[Entry]:
    """An entry for each batch: the one that an index had, or one made from the batch."""
    by_position = {entry.position: entry for entry in known}
    entries = []
    for batch in found.batches:
        entry = by_position.get(batch.position)
        if entry is None or entry.crc != batch.crc:
            entry = make_entry(batch, head, octets[batch.position : batch.end])
        entries.append(entry)
    return entries


def make_entry(batch: IpcMessage, head: Head, octets: bytes) -> Entry:
    """The entry of a batch that only its octets are known of; whether it holds state is not, so it may."""
    rows = decode(head, octets, ["ts"])
    times = pc.min_max(rows.column(0).cast("int64")).as_py()
    flags = STATE_FLAG
    return Entry(
        batch.first_offset, batch.rows, flags, batch.position, batch.length, times["min"], times["max"], batch.crc
    )
