"""Rows of protocols that other packages brought: their names are in the files, whoever reads them."""

from pathlib import Path
from typing import Any

import pytest

import polywire.journal
from polywire.journal import format as format_module
from polywire.journal.columns import Columns
from polywire.journal.committer import BatchMaker
from polywire.journal.compaction import compact, compactable
from polywire.journal.format import find_head, make_head
from polywire.journal.kinds import NO_PROTOCOL, PUBLISH
from polywire.journal.log import Log
from polywire.registry import built_in_names, by_name, names

OTHERS = (*built_in_names(), "line", "telex")
TIME = 1_700_000_000_000_000_000


def write(log: Log, *protocols: int) -> None:
    """One row for each of these numbers of protocols."""
    columns = Columns(log.next_offset)
    for protocol in protocols:
        columns.append(PUBLISH, protocol, 0, 1, TIME, "", "a", b"x")
    columns.close()
    log.append(BatchMaker(log.node, log.protocols).make(columns), state=False)


def read(folder: Path, **wanted: Any) -> list[str | None]:
    found = polywire.journal.open(folder).scan(["protocol"], **wanted)
    return [row["protocol"] for batch in found for row in batch.to_pylist()]


def test_names_are_read_where_their_package_is_not_installed(tmp_path: Path) -> None:
    fmqp = by_name("fmqp").code
    with Log(tmp_path, node="here", protocols=OTHERS) as log:
        write(log, 7, 7)  # all the same
        write(log, 7, fmqp, 8, NO_PROTOCOL)
    assert not set(names()) & {"line", "telex"}
    assert read(tmp_path) == ["line", "line", "line", "fmqp", "telex", None]
    assert read(tmp_path, protocols="fmqp") == ["fmqp"]


def test_a_hub_with_other_protocols_goes_on_in_a_segment_of_its_own(tmp_path: Path) -> None:
    umq = by_name("umq").code
    for protocols, number in ((None, umq), (OTHERS, 8), (OTHERS[:-1], 7), (None, umq)):
        with Log(tmp_path, node="here", protocols=protocols) as log:
            write(log, number)
    with Log(tmp_path, node="here") as log:
        write(log, umq)  # these are the same as before
    assert len(polywire.journal.open(tmp_path).segments()) == 4
    assert read(tmp_path) == ["umq", "telex", "line", "umq", "umq"]
    for segment in compactable(tmp_path):
        compact(segment)
    assert read(tmp_path) == ["umq", "telex", "line", "umq", "umq"]


def test_a_damaged_head_is_made_again_where_its_protocols_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_head("hub", OTHERS)
    octets = bytearray(head.octets)
    octets[len(octets) // 2] ^= 1
    monkeypatch.setattr(format_module, "names", lambda: OTHERS)
    assert find_head(memoryview(octets)).octets == head.octets
    own = bytearray(make_head("hub", built_in_names()).octets)
    own[len(own) // 2] ^= 1
    assert find_head(memoryview(own)).octets == make_head("hub", built_in_names()).octets


def test_a_batch_with_other_protocols_than_its_segment_is_refused(tmp_path: Path) -> None:
    columns = Columns(0)
    columns.append(PUBLISH, 7, 0, 1, TIME, "", "a", b"x")
    columns.close()
    with Log(tmp_path, node="here") as log, pytest.raises(ValueError, match="dictionaries are not those"):
        log.append(BatchMaker("here", OTHERS).make(columns), state=False)
