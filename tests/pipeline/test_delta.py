"""Transactions of one table: each whole or not at all, whoever else writes and whoever is killed. Without Spark."""

import json
import os
import threading
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from polywire.pipeline.delta import Batch, FilesChangedError, LakeTable, between, days_of, lots
from polywire.pipeline.errors import LakeError, OptionError
from polywire.pipeline.files import LARGE, DataFile, FilePlace, FileWriter, Storage, check_visible, reported
from polywire.pipeline.query import Past, Questions, history
from tests.pipeline.storage import BUCKET, object_storage

COLUMNS = {"day": "date", "kind": "string", "ts": "timestamp", "n": "long", "text": "string"}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS.items()],
    }
)
BY = ("day", "kind")
KINDS = ("mqtt", "a/b ä=%'", None)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable(Storage.parse(tmp_path / "lake" / "t"), "t")


def written(table: LakeTable, *numbers: int, day: date = date(2026, 1, 31), prefix: str = "q") -> list[DataFile]:
    """Files with these numbers, as Spark's tasks write them: one of each kind."""
    kinds = [kind for _ in numbers for kind in KINDS]
    values = [number for number in numbers for _ in KINDS]
    columns: list[Any] = [
        pa.array([day] * len(kinds)),
        pa.array(kinds),
        pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)] * len(kinds), pa.timestamp("us", tz="UTC")),
        pa.array(values, pa.int64()),
        pa.array(["x" * 100] * len(kinds)),
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
    write = FileWriter("t", FilePlace(table.storage, prefix), BY)
    return [reported(row) for batch in write(iter([rows])) for row in batch.to_pylist()]


def batch(number: int, *, end: int | None = None) -> Batch:
    return Batch("q", number, {"end": {"journal": number if end is None else end}})


def add(table: LakeTable, number: int, **more: Any) -> bool:
    return table.append(written(table, number, **more), SCHEMA, BY, batch(number))


def numbers(table: LakeTable) -> list[int]:
    """What polars reads: the numbers of one kind, of which each has the same."""
    found = pl.scan_delta(table.storage.uri).filter(pl.col("kind") == "mqtt").select("n").collect()
    return sorted(found["n"].to_list())


def test_a_batch_is_there_once_with_its_statistics(table: LakeTable) -> None:
    assert table.committed("q") == (-1, 0)
    assert not table.storage.local or not table.storage.local.exists()
    assert add(table, 1)
    assert not add(table, 1)
    assert add(table, 2)
    assert table.committed("q")[0] == 2
    assert numbers(table) == [1, 2]
    found = pl.scan_delta(table.storage.uri).select("kind").unique().collect()["kind"].to_list()
    assert set(found) == set(KINDS)
    (file,) = (one for one in written(table, 7) if one.partition["kind"] == "mqtt")
    told = json.loads(file.stats)
    assert (told["numRecords"], told["minValues"]["n"], told["nullCount"]["text"]) == (1, 7, 0)
    assert told["maxValues"]["ts"] == "2026-01-31T12:00:00.000000Z"
    assert "text" not in told["minValues"]  # too long to be worth its place
    assert len(DeltaTable(table.storage.uri).file_uris(file_pruning_predicate="n = 2")) == len(KINDS)


def test_a_batch_of_other_rows_is_not_taken_for_one_that_is_there(table: LakeTable) -> None:
    add(table, 0)
    assert not table.append([], SCHEMA, BY, batch(0))
    assert not table.append([], SCHEMA, BY, Batch("q", 0))  # nobody knows where it is from
    for other in (batch(0, end=9), batch(-1)):
        with pytest.raises(LakeError, match=r"the checkpoint was lost or is an old one. Nothing was written"):
            table.append(written(table, 9), SCHEMA, BY, other)
    assert numbers(table) == [0]
    assert table.append(written(table, 1), SCHEMA, BY, Batch("other", 0, {"end": {"journal": 1}}))


def test_what_the_driver_does_not_see_is_never_committed(table: LakeTable) -> None:
    found = written(table, 1)
    assert table.storage.local is not None
    check_visible("t", table.storage, found)
    path = table.storage.local / found[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(LakeError, match=f"here it has {len(content) - 1} bytes: the executors and the driver do not"):
        check_visible("t", table.storage, found)
    path.unlink()
    with pytest.raises(LakeError, match=r"does not exist: .* do not share .*Nothing was committed"):
        check_visible("t", table.storage, found)


def test_of_two_drivers_with_the_same_batch_one_commits_it(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    add(table, 0)
    other = LakeTable(table.storage, "t")
    looked = LakeTable._held

    def slow(self: LakeTable, opened: DeltaTable, which: Batch) -> bool:
        found = looked(self, opened, which)
        if self is table and not found:
            monkeypatch.undo()
            assert add(other, 1)  # just between the look and the commit
        return found

    monkeypatch.setattr(LakeTable, "_held", slow)
    assert not add(table, 1)
    assert numbers(table) == [0, 1]


def test_files_are_taken_away_once_whoever_was_faster(table: LakeTable) -> None:
    for number in range(3):
        add(table, number)
    other = LakeTable(table.storage, "t")
    chosen = table.files()
    assert other.compact(least=2).after == len(KINDS)
    with pytest.raises(FilesChangedError):
        table.replace(chosen, [], SCHEMA, noted={})
    assert numbers(table) == [0, 1, 2]
    # Days are replaced whatever their files are by now.
    fresh = written(table, 10)
    add(table, 3, day=date(2026, 2, 1))
    table.replace(between(date(2026, 1, 31), date(2026, 1, 31)), fresh, SCHEMA, noted={"backfill": ["2026-01-31"]})
    assert numbers(table) == [3, 10]
    assert days_of(table.files()) == {"2026-01-31", "2026-02-01"}


def test_many_writers_lose_and_double_nothing(table: LakeTable) -> None:
    add(table, 0)

    def work(query: str) -> None:
        mine = LakeTable(table.storage, "t")
        for number in range(5):
            mine.append(written(mine, number, prefix=query), SCHEMA, BY, Batch(query, number))
            mine.compact(least=4)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(table) == sorted([0, *list(range(5)) * 4])


def test_readers_keep_their_version_through_compaction_replacement_and_vacuum(table: LakeTable) -> None:
    for number in range(4):
        add(table, number)
    lake = table.storage.uri.rpartition("/")[0]
    stop, later = threading.Event(), date(2026, 2, 1)
    wrong: list[list[int]] = []
    questions = Questions(lake)
    questions.ask("SELECT * FROM t LIMIT 0")
    past = DeltaTable(table.storage.uri)

    def read() -> None:
        while not stop.is_set():
            seen = numbers(table), [row[0] for row in _asked(lake)]
            wrong.extend(found for found in seen if found not in ([0, 1, 2, 3], [0, 1, 2, 3, 5]))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(5):
            table.compact(least=2)
            table.replace(between(later, later), written(table, 5, day=later), SCHEMA, noted={})
            table.vacuum()
            if turn == 2:
                table.checkpoint(after=1)
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert sorted(row[0] for row in questions.ask("SELECT n FROM t WHERE kind = 'mqtt'").rows) == [0, 1, 2, 3]
    assert past.to_pyarrow_table().num_rows == 4 * len(KINDS)
    questions.close()


def _asked(lake: str) -> list[tuple[Any, ...]]:
    questions = Questions(lake)
    try:
        return questions.ask("SELECT n FROM t WHERE kind = 'mqtt' ORDER BY n").rows
    finally:
        questions.close()


def test_what_killed_tasks_left_is_vacuumed_when_it_is_old(table: LakeTable) -> None:
    add(table, 0)
    left = written(table, 1)  # a task that was killed, or one that is not finished yet
    assert table.vacuum(hours=1) == 0
    assert table.storage.local is not None
    for file in left:
        os.utime(table.storage.local / file.path, (time.time() - 7200,) * 2)
    assert table.vacuum(hours=1) == len(left)
    assert numbers(table) == [0]


def test_many_transactions_are_read_at_once_after_a_checkpoint(table: LakeTable) -> None:
    for number in range(6):
        add(table, number)
    assert not table.checkpoint()
    assert table.checkpoint(after=5)
    assert table.storage.local is not None
    assert (table.storage.local / "_delta_log" / "_last_checkpoint").exists()
    fresh = LakeTable(table.storage, "t")
    assert numbers(fresh) == list(range(6))
    assert fresh.committed("q") == (5, batch(5).identity)


def test_the_past_can_be_asked_and_says_what_was_done(table: LakeTable) -> None:
    add(table, 0)
    add(table, 1)
    moment = datetime.now(UTC)
    table.compact(least=2)
    add(table, 2)
    lake = table.storage.uri.rpartition("/")[0]
    counted = "SELECT count(DISTINCT n) FROM t"
    for past, rows in ((Past(), 3), (Past(version=0), 1), (Past(at=moment), 2)):
        questions = Questions(lake, past=past)
        assert questions.ask(counted).rows == [(rows,)]
        questions.close()
    questions = Questions(lake, past=Past(version=99))
    with pytest.raises(LakeError, match=r"no such version|99"):
        questions.ask(counted)
    questions.close()
    told = [(one.version, one.what) for one in history(lake, "t", 9)]
    assert (told[0][1], told[-1]) == ("batch 2 of q", (0, "batch 0 of q"))
    assert "compacted" in [what for _, what in told]


def test_small_files_are_joined_before_larger_ones() -> None:
    def files(*sizes: int) -> list[DataFile]:
        return [DataFile(f"{number:02d}", size, 1, {}) for number, size in enumerate(sizes)]

    def chosen(*sizes: int) -> list[list[int]]:
        return [[file.size for file in lot] for lot in lots(files(*sizes), 4)]

    assert chosen(10, 10, 10) == []
    assert chosen(10, 10, 10, 10) == [[10, 10, 10, 10]]
    assert chosen(1000, 10, 10, 10, 10) == [[10, 10, 10, 10]]
    assert chosen(30, 10, 10, 10, 10) == [[30, 10, 10, 10, 10]]
    assert chosen(*[LARGE] * 5) == []


@pytest.mark.parametrize("place", ["{}/a b", "file://{}/a%20b", "file:{}/a b"])
def test_a_place_is_the_same_however_it_is_written(tmp_path: Path, place: str) -> None:
    assert Storage.parse(place.format(tmp_path)).local == tmp_path / "a b"


def test_places_elsewhere_are_uris() -> None:
    storage = Storage.parse("s3a://bucket/lake/", {"AWS_Endpoint_URL": "http://127.0.0.1:1"})
    assert (storage.uri, storage.local) == ("s3://bucket/lake", None)
    assert storage.below("t").uri == "s3://bucket/lake/t"
    assert storage.for_delta()["aws_conditional_put"] == "etag"
    assert storage.for_delta()["aws_allow_http"] == "true"
    with pytest.raises(OptionError, match="names the host 'x'"):
        Storage.parse("file://x/lake")


def test_a_table_on_s3_is_written_by_several_and_read(tmp_path: Path) -> None:
    with object_storage() as options:
        table = LakeTable(Storage.parse(f"s3://{BUCKET}/lake/t", options), "t")

        def work(query: str) -> None:
            mine = LakeTable(table.storage, "t")
            for number in range(3):
                found = written(mine, number, prefix=query)
                check_visible("t", mine.storage, found)
                assert mine.append(found, SCHEMA, BY, Batch(query, number))

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert table.compact(least=2).after == len(KINDS)
        assert table.checkpoint(after=1)
        questions = Questions(f"s3://{BUCKET}/lake", options)
        assert questions.ask("SELECT kind, count(*), sum(n) FROM t GROUP BY kind ORDER BY kind NULLS LAST").rows == [
            (kind, 9, 9) for kind in sorted(KINDS, key=lambda kind: (kind is None, kind))
        ]
        questions.close()
        assert not list(tmp_path.iterdir())
