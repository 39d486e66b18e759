"""Steps of a query without Spark: splits that tasks read one after the other, and what is left when one is killed."""

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from polywire.journal.reader import Journal
from polywire.pipeline import steps
from polywire.pipeline.delta import Batch, LakeTable
from polywire.pipeline.errors import LakeError
from polywire.pipeline.files import OpenFile
from polywire.pipeline.journals import COLUMNS, TICK, Journals, SourceOptions
from polywire.pipeline.lake import Lake
from polywire.pipeline.source import plan, ranges, tick_between
from polywire.pipeline.steps import StateFiles, Steps, chunked
from polywire.pipeline.tables import TABLES
from tests.pipeline.tables.made_traffic import made
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import ordered
from tests.pipeline.traffic import journal_rows, write_journal

Place = dict[str, int]


class KilledError(Exception):
    """In the place of a signal."""


@dataclass
class Splits:
    """What Spark hands to a step, run here."""

    splits: Sequence[Any]
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = iter

    def mapInArrow(self, task: Any, schema: Any) -> "Splits":  # noqa: ARG002, N802 - Spark's names
        return replace(self, task=task)

    def toArrow(self) -> pa.Table:  # noqa: N802 - as above
        batches = [
            batch
            for split in self.splits
            for batch in self.task(iter([pa.RecordBatch.from_pylist([{"split": pickle.dumps(split)}])]))
        ]
        return pa.Table.from_batches(batches)


@dataclass
class Run:
    """A query over a journal, step by step; every step may be repeated."""

    folder: Path
    names: Sequence[str] = tuple(TABLES)
    rows_each: int = 40
    places: list[Place] = field(default_factory=list)

    @property
    def options(self) -> SourceOptions:
        return SourceOptions.read({"journal": str(self.folder / "*"), "columns": ",".join(COLUMNS)})

    @property
    def journals(self) -> dict[str, Journal]:
        return Journals(self.options.journals, None).current()

    def steps(self) -> Steps:
        lake = Lake(self.folder.parent / "lake", durable=False)
        state = StateFiles(lake.storage.below("_pipeline/state/rows"))
        return Steps(lake, [TABLES[name] for name in self.names], "rows", self.options, state, self.offsets)

    def offsets(self, number: int) -> Mapping[str, Any]:
        return {"begin": self.places[number - 1] if number else None, "end": self.places[number]}

    def read_to(self, **ends: int) -> None:
        self.places.append(dict(sorted(ends.items())))

    def splits(self, number: int) -> Splits:
        journals, end = self.journals, self.places[number]
        begin = self.places[number - 1] if number else dict.fromkeys(end, 0)
        found = list(ranges(journals, begin, end, fail_on_data_loss=True))
        parts = [part for one in found for part in _cut(plan([one], 1), self.rows_each)]
        return Splits([*parts, *tick_between(begin, end, journals)])

    def step(self, number: int) -> None:
        self.steps()(self.splits(number), number)  # type: ignore[arg-type] # it acts like one

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        lake = Lake(self.folder.parent / "lake", durable=False)
        found = {}
        for name in self.names:
            lake.refresh(name)
            table = self.folder.parent / "lake" / name
            found[name] = DeltaTable(table).to_pyarrow_table().to_pylist() if table.exists() else []
        return found


def _cut(parts: Sequence[Any], rows: int) -> Iterator[Any]:
    """Splits of so many rows, whatever the batches of the segments are."""
    for part in parts:
        for begin in range(part.split.from_offset, part.split.to_offset, rows):
            end = min(begin + rows, part.split.to_offset)
            yield replace(part, split=replace(part.split, from_offset=begin, to_offset=end))


def journals_of(folder: Path, rows: Sequence[Mapping[str, Any]], batch: int = 64) -> None:
    """A journal for each node."""
    for node in sorted({row["node"] for row in rows}):
        write_journal(folder / node, [row for row in rows if row["node"] == node], node=node, batch=batch)


def check(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    wanted, found = tables(rows), run.tables()
    for name in run.names:
        assert ordered(found[name]) == ordered(wanted[name]), name


def ends_of(rows: Sequence[Mapping[str, Any]]) -> Place:
    return {node: sum(row["node"] == node for row in rows) for node in sorted({row["node"] for row in rows})}


@pytest.mark.parametrize(
    ("seed", "cuts", "rows_each"), [(1, (), 1_000), (2, (0.5,), 90), (3, (0.2, 0.6), 200), (4, (0.4, 0.41), 60)]
)
def test_any_cut_gives_the_tables_that_plain_python_gives(
    tmp_path: Path, seed: int, cuts: Sequence[float], rows_each: int
) -> None:
    rows = made(seed, steps=120)
    journals_of(tmp_path / "journals", rows)
    run = Run(tmp_path / "journals", rows_each=rows_each)
    ends = ends_of(rows)
    for share in [*cuts, 1.0]:
        run.read_to(**{node: round(end * share) for node, end in ends.items()})
        run.step(len(run.places) - 1)
    check(run, rows)


def test_calls_alone_need_no_bodies_but_those_of_service_topics(tmp_path: Path) -> None:
    rows = made(8, steps=200)
    assert any(row["kind"] == "publish" and row["channel"].startswith("/") for row in rows)
    journals_of(tmp_path / "journals", rows)
    run = Run(tmp_path / "journals", ("calls", "latency"), rows_each=150)
    run.read_to(**ends_of(rows))
    run.step(0)
    check(run, rows)


def test_many_parts_are_matched_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SLICE", 40)
    rows = made(9, nodes=("n1",), steps=300)
    journals_of(tmp_path / "journals", rows)
    run = Run(tmp_path / "journals", ("calls", "latency"), rows_each=1_000)
    for share in (0.5, 1.0):
        run.read_to(n1=round(len(rows) * share))
        run.step(len(run.places) - 1)
    check(run, rows)


POINTS: dict[str, tuple[type, str]] = {
    "a file": (OpenFile, "close"),
    "the state": (StateFiles, "save"),
    "a transaction": (LakeTable, "append"),
    "what is over": (StateFiles, "forget"),
}


def kill_at(monkeypatch: pytest.MonkeyPatch, point: str, number: int) -> None:
    """Raise instead of doing something that lasts for the n-th time."""
    owner, name = POINTS[point]
    left = itertools.count(number, -1)
    done = getattr(owner, name)

    def counted(*args: Any, **more: Any) -> Any:
        if next(left) == 1:
            raise KilledError
        return done(*args, **more)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize(
    ("point", "number"),
    [("a file", 1), ("a file", 9), ("the state", 1), *(("a transaction", at) for at in (1, 4)), ("what is over", 1)],
)
def test_a_step_that_is_killed_anywhere_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, number: int
) -> None:
    rows = made(5, nodes=("n1",), steps=120)
    journals_of(tmp_path / "journals", rows)
    run = Run(tmp_path / "journals", rows_each=1_000)
    for share in (0.3, 0.7, 1.0):
        run.read_to(n1=round(len(rows) * share))
    run.step(0)
    with monkeypatch.context() as patched:
        kill_at(patched, point, number)
        with pytest.raises(KilledError):
            run.step(1)
    run.step(1)
    run.step(1)  # Spark does not know that it was done
    run.step(2)
    check(run, rows)


def asked(correlation: str, **more: Any) -> dict[str, Any]:
    return {"kind": "request", "channel": "billing/charge", "correlation": correlation, "flags": 16, **more}


def test_a_tick_ends_calls_that_nobody_answers(tmp_path: Path) -> None:
    write_journal(tmp_path / "journals" / "a", [asked("1")])
    run = Run(tmp_path / "journals", ("calls", "latency"))
    run.read_to(a=1)
    run.step(0)
    assert run.tables() == {"calls": [], "latency": []}
    run.places.append({TICK: 1_900_000_000_000_000, "a": 1})
    run.step(1)
    (call,) = run.tables()["calls"]
    assert (call["correlation"], call["outcome"], call["latency_ms"]) == ("1", "timeout", 60_000.0)


def test_lost_state_is_made_again_of_the_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_journal(tmp_path / "journals" / "a", [asked("1"), asked("2"), {**asked("1"), "kind": "reply"}])
    write_journal(tmp_path / "journals" / "a", [{**asked("2"), "kind": "reply"}, {**asked("1"), "kind": "request"}])
    run = Run(tmp_path / "journals", ("calls",))
    for end in (3, 5):
        run.read_to(a=end)
    run.step(0)
    for file in (tmp_path / "lake" / "_pipeline" / "state" / "rows").iterdir():
        file.unlink()
    run.step(1)
    assert "no state of batch 0" in caplog.text
    assert sorted(call["correlation"] for call in run.tables()["calls"]) == ["1", "2"]


def test_state_of_two_batches_is_kept(tmp_path: Path) -> None:
    write_journal(tmp_path / "journals" / "a", [asked(str(number)) for number in range(5)])
    run = Run(tmp_path / "journals", ("calls",))
    for number in range(5):
        run.read_to(a=number + 1)
        run.step(number)
    names = sorted(file.name[:10] for file in (tmp_path / "lake" / "_pipeline" / "state" / "rows").iterdir())
    assert names == ["0000000003", "0000000004"]


def test_a_lost_checkpoint_changes_nothing(tmp_path: Path) -> None:
    rows = made(6, nodes=("n1",), steps=60)
    journals_of(tmp_path / "journals", rows)
    run = Run(tmp_path / "journals")
    run.read_to(n1=20)
    run.step(0)
    before = run.tables()
    run.places = [{"n1": 40}]
    with pytest.raises(LakeError, match="another batch of this number"):
        run.step(0)
    assert run.tables() == before
    assert Batch("rows", 0, run.offsets(0)).identity != 0


def test_small_batches_of_a_journal_are_put_together() -> None:
    batches = [journal_rows([{}] * 10, first_offset=10 * number) for number in range(5)]
    (whole,) = chunked(iter(batches))
    assert whole.num_rows == 50
    assert list(chunked(iter([]))) == []
