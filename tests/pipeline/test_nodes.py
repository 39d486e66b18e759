"""Journals of several nodes are read as one: each row counts once, by its node and offset."""

import signal
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from polywire.pipeline.errors import OptionError
from polywire.pipeline.journals import Journals
from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.status import examined
from polywire.pipeline.tables import TABLES
from tests.hub_process import running_hub
from tests.interop.speakers import PROTOCOLS, speak
from tests.pipeline.tables.made_traffic import made
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import ordered
from tests.pipeline.traffic import messages, write_journal

pytestmark = pytest.mark.timeout(400)

NODES = ("n1", "n2", "n3")


def run(spark: SparkSession, journal: str, lake: Path) -> None:
    runner = Runner(spark, Job(journal, str(lake), TABLES, once=True))
    runner.start()
    runner.follow()


def found(lake: Path, name: str) -> list[dict[str, Any]]:
    return ordered(DeltaTable(str(lake / name)).to_pyarrow_table().to_pylist())


def test_the_tables_of_three_nodes_are_those_of_all_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(31, nodes=NODES, steps=240)
    for nodes in (NODES[:2], NODES[2:]):  # the third one comes later
        for node in nodes:
            write_journal(tmp_path / node / "journal", [row for row in rows if row["node"] == node], node=node)
        run(spark, f"{tmp_path}/*/journal", tmp_path / "lake")
    wanted = tables(rows, datetime.now(UTC))
    for name in TABLES:
        assert found(tmp_path / "lake", name) == ordered(wanted[name]), name
    assert [finding.text for finding in examined(str(tmp_path / "lake")) if not finding.good] == []


def test_hubs_are_read_over_http_as_one(spark: SparkSession, tmp_path: Path) -> None:
    with ExitStack() as stack:
        hubs = [stack.enter_context(running_hub(f"journal.node={node}", journal=tmp_path / node)) for node in NODES[:2]]
        for number, hub in enumerate(hubs):
            for name in PROTOCOLS:
                with speak(name, hub.addresses) as speaker:
                    speaker.publish(f"in/{name}", str(number).encode())
        run(spark, ",".join(hub.addresses["http"] for hub in hubs), tmp_path / "lake")
        for hub in hubs:
            hub.stop(signal.SIGTERM)
    published = [row for row in found(tmp_path / "lake", "messages") if str(row["channel"]).startswith("in/")]
    assert sorted((row["node"], row["channel"], row["text"]) for row in published) == sorted(
        (node, f"in/{name}", str(number)) for number, node in enumerate(NODES[:2]) for name in PROTOCOLS
    )


def test_a_journal_and_its_copy_are_told_apart_from_two_nodes(tmp_path: Path) -> None:
    for folder in ("journal", "copy"):
        write_journal(tmp_path / folder, messages(3), node="n1")
    write_journal(tmp_path / "empty", [], node="n2")
    both = Journals((str(tmp_path / "journal"), str(tmp_path / "copy"), str(tmp_path / "empty")), None)
    with pytest.raises(OptionError, match=r"/journal and .*/copy are both of the node 'n1': name a journal once"):
        both.current()
