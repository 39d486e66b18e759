"""A lake of the first release becomes one of Delta tables, and its queries go on where they were.

``first_release.tar.xz`` was written by version 0.1, in two runs over the golden journal.
"""

import re
import shutil
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from polywire.pipeline.files import Storage
from polywire.pipeline.lake import Lake, convert
from polywire.pipeline.query import Questions
from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.table import table
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import collected, numbered, ordered, row
from tests.pipeline.tables.test_golden import journal
from tests.pipeline.traffic import write_journal

pytestmark = pytest.mark.timeout(400)

FIRST = Path(__file__).with_name("first_release.tar.xz")


@table
def sizes(rows: DataFrame) -> DataFrame:
    """The size of each row."""
    return rows.select("offset", "size")


@table(merge=lambda parts: parts.groupBy("day", "client").agg(sf.sum("messages").alias("messages")))
def busiest(rows: DataFrame) -> DataFrame:
    """Messages by client and day."""
    published = rows.filter("kind = 'publish' and client is not null")
    return published.groupBy(sf.to_date("ts").alias("day"), "client").agg(sf.count("*").alias("messages"))


OWN = {"busiest": busiest, "sizes": sizes}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    with tarfile.open(FIRST) as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "lake"
    # Spark wrote down where the lake was.
    for place in (lake / "_pipeline").glob("checkpoints/*/state/*/_metadata/v2/*"):
        place.write_text(re.sub(r'file:/[^"]+/lake/', f"{lake.as_uri().replace('///', '/')}/", place.read_text()))
    return lake


def test_an_old_lake_is_converted_and_its_queries_go_on(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    # A driver was killed while it moved a batch in.
    done = next((lake / "messages").rglob("rows-0000000001-*.parquet"))
    shutil.copy(done, done.with_name("rows-0000000002-00000.parquet"))
    more = [row("publish", 90_000, client="late", channel="plant/9/temp", body=b"1")]
    # A row without a channel has one in a journal that is written for tests.
    before = [{"channel": "a/b"} | {key: one[key] for key in one if key != "offset"} for one in journal()]
    rows = numbered([*before, *more])
    write_journal(
        tmp_path / "journal", [{key: one[key] for key in one if key not in {"node", "offset"}} for one in rows]
    )
    known = {**TABLES, **OWN}
    runner = Runner(spark, Job(str(tmp_path / "journal"), str(lake), known, once=True))
    runner.start()
    runner.follow()
    wanted = tables(rows)
    written = Lake(lake, known)
    for name in TABLES:
        assert collected(written.read(name, spark)) == ordered(wanted[name]), name
    questions = Questions(str(lake))
    assert questions.ask("SELECT count(*), sum(size) FROM sizes").rows == [
        (len(rows), sum(one["size"] for one in rows))
    ]
    assert questions.ask("SELECT messages FROM busiest WHERE client = 'late'").rows == [(1,)]
    for name in TABLES:
        assert ordered(questions.all("FROM " + name)) == ordered(wanted[name]), name
    questions.close()
    assert not list(lake.glob("_[cslr]*"))
    assert convert(Storage.parse(lake), known) == []


def test_a_conversion_that_was_cut_short_is_finished(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(Storage.parse(lake), {**TABLES, **OWN})
    assert (lake / "_commits").exists()
    assert sorted(convert(Storage.parse(lake), {**TABLES, **OWN})) == sorted([*TABLES, *OWN])
    known = Lake(lake, {**TABLES, **OWN})
    assert sorted(known.tables()) == sorted([*TABLES, *OWN])
    assert known._written("messages").committed("rows")[0] == 1
