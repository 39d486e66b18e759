"""``polywire pipeline doctor`` on lakes that are damaged in every way there is: it names what is missing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from polywire.cli import main
from polywire.pipeline.delta import LakeTable
from polywire.pipeline.files import DataFile, Storage
from polywire.pipeline.runner import Job, Runner
from polywire.pipeline.tables import TABLES
from tests.pipeline.traffic import messages, write_journal

pytestmark = pytest.mark.timeout(240)

ROWS = 300


@dataclass(frozen=True)
class Place:
    """A journal and a lake made of it in two steps."""

    journal: Path
    lake: Path

    def table(self, name: str) -> LakeTable:
        return LakeTable(Storage.parse(self.lake / name), name)

    def files(self, name: str) -> list[DataFile]:
        return self.table(name).files()

    @property
    def offsets(self) -> Path:
        return self.lake / "_pipeline" / "checkpoints" / "rows" / "offsets"

    def note(self, **changes: object) -> None:
        """Change what is noted of the query."""
        path = self.lake / "_pipeline" / "status" / "rows.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def examine(self) -> tuple[int, list[str]]:
        """The exit code of ``doctor``, and its lines."""
        result = CliRunner().invoke(main.app, ["pipeline", "doctor", "--lake", str(self.lake)])
        return result.exit_code, result.output.splitlines()


@pytest.fixture(scope="module")
def healthy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("healthy")
    place = Place(folder / "journal", folder / "lake")
    for _ in range(2):
        write_journal(place.journal, messages(ROWS // 2), batch=50, segment_octets=2000)
        runner = Runner(spark, Job(str(place.journal), str(place.lake), TABLES, ("messages", "traffic"), once=True))
        runner.start()
        runner.follow()
    return place


@pytest.fixture
def place(healthy: Place, tmp_path: Path) -> Place:
    shutil.copytree(healthy.journal, tmp_path / "journal")
    shutil.copytree(healthy.lake, tmp_path / "lake")
    found = Place(tmp_path / "journal", tmp_path / "lake")
    found.note(journals=[str(found.journal)])
    return found


def test_a_healthy_lake_is_found_to_be_so(place: Place) -> None:
    code, lines = place.examine()
    assert code == 0
    assert all(line.startswith("✓") for line in lines)
    assert "✓ query rows: ended, 0 rows behind the journal" in lines
    assert "✓ query rows: its checkpoint is at batch 1, the lake at batch 1" in lines
    assert f"✓ table messages: has each of the journal's {ROWS} messages once" in lines


def lose_a_file(place: Place) -> None:
    """A file the log names is gone."""
    (place.lake / "messages" / place.files("messages")[0].path).unlink()


def cut_a_file(place: Place) -> None:
    """A file the log names is cut off."""
    path = place.lake / "messages" / place.files("messages")[0].path
    path.write_bytes(path.read_bytes()[:-10])


def lose_the_log(place: Place) -> None:
    """A transaction is gone."""
    (place.lake / "messages" / "_delta_log" / f"{0:020d}.json").unlink()


def take_a_batch_away(place: Place) -> None:
    """A transaction took rows away that the journal still has."""
    last = [file for file in place.files("messages") if "-0000000001-" in file.path]
    table = place.table("messages")
    table.replace(last, [], table.schema() or "", noted={})


def add_a_batch_twice(place: Place) -> None:
    """A transaction added rows that are there already."""
    table = place.table("messages")
    twins = []
    for file in table.files():
        if "-0000000001-" in file.path:
            twins.append(DataFile(f"{file.path}-twin.parquet", file.size, file.rows, file.partition, "{}"))
            shutil.copy(place.lake / "messages" / file.path, place.lake / "messages" / twins[-1].path)
    table.replace([], twins, table.schema() or "", noted={})


def lose_the_checkpoint(place: Place) -> None:
    """Spark's checkpoint is gone."""
    shutil.rmtree(place.lake / "_pipeline" / "checkpoints")


def restore_an_old_checkpoint(place: Place) -> None:
    """Spark's checkpoint is that of an older backup."""
    (place.offsets / "1").unlink()


def take_another_checkpoint(place: Place) -> None:
    """Spark's checkpoint is of the same batch, but of other rows."""
    path = place.offsets / "1"
    path.write_text(path.read_text().replace(str(ROWS), str(ROWS - 1)))


def restore_an_old_lake(place: Place) -> None:
    """The tables are those of an older backup, the checkpoint is not."""
    for name in ("messages", "_parts/traffic", "traffic"):
        for log in (place.lake / name / "_delta_log").glob("*[1-9].json"):
            log.unlink()


def delete_unread_rows(place: Place) -> None:
    """Retention deleted rows of the journal before they were read."""
    place.note(place={"journal": 60})
    for segment in sorted(place.journal.glob("[0-9]*.arrow"))[:3]:
        segment.unlink()
        segment.with_suffix(".index").unlink(missing_ok=True)


def shorten_the_journal(place: Place) -> None:
    """The journal is an older copy."""
    for segment in sorted(place.journal.glob("[0-9]*.arrow"))[2:]:
        segment.unlink()
        segment.with_suffix(".index").unlink(missing_ok=True)


def damage_the_journal(place: Place) -> None:
    """A batch of the journal has another byte."""
    segment = sorted(place.journal.glob("[0-9]*.arrow"))[1]
    content = bytearray(segment.read_bytes())
    content[len(content) * 3 // 4] ^= 0xFF
    segment.write_bytes(content)
    segment.with_suffix(".index").unlink(missing_ok=True)


def move_the_journal(place: Place) -> None:
    """The journal is somewhere else."""
    place.journal.rename(place.journal.with_name("elsewhere"))


def fail(place: Place) -> None:
    """The query was given up."""
    place.note(state="failed", reason="no space left on device")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_a_file, ["table messages: day=2026-01-31/protocol=mqtt/rows-", " is missing"]),
        (cut_a_file, ["table messages: day=2026-01-31/protocol=mqtt/rows-", "bytes, not what the log says"]),
        (lose_the_log, ["table messages: ", "log"]),
        (take_a_batch_away, ["table messages: lacks 150 rows of node n1, offsets 150 to 299"]),
        (add_a_batch_twice, ["table messages: 150 rows are there twice; offset 150 of node n1 2 times"]),
        (lose_the_checkpoint, ["query rows: its checkpoint is missing", "has batch 1"]),
        (restore_an_old_checkpoint, ["query rows: its checkpoint is at batch 0, but table messages has batch 1"]),
        (take_another_checkpoint, ["query rows: its checkpoint has other rows in batch 1 than table messages"]),
        (restore_an_old_lake, ["table messages: lacks 150 rows of node n1, offsets 150 to 299"]),
        (delete_unread_rows, ["query rows: offsets 60 to ", "of journal were deleted before it read them"]),
        (shorten_the_journal, ["query rows: has read journal up to offset 300, but it ends at "]),
        (damage_the_journal, ["journal: ", "can't be read: 000000000000000000", ".arrow at byte "]),
        (move_the_journal, ["query rows: its journal can't be read from here: ", "journal"]),
        (fail, ["query rows: failed: no space left on device"]),
    ],
)
def test_what_is_missing_is_named(place: Place, damage: Callable[[Place], None], told: list[str]) -> None:
    damage(place)
    code, lines = place.examine()
    assert code == 1
    wrong = [line for line in lines if line.startswith("✗ ")]
    assert any(all(words in line for words in told) for line in wrong), "\n".join(lines)


def test_files_that_no_version_has_are_named(place: Place) -> None:
    (place.lake / "messages" / "day=2026-01-31" / "rows-0000000007-left.parquet").write_bytes(b"half of it")
    code, lines = place.examine()
    assert code == 0
    (line,) = [line for line in lines if "belong to no version" in line]
    assert line.startswith("✓ table messages: 1 files belong to no version")
    assert "(day=2026-01-31/rows-0000000007-left.parquet)" in line


def test_history_that_has_expired_is_told(place: Place) -> None:
    table = place.table("messages")
    table.compact(least=2)
    assert table.vacuum(hours=0) > 0
    code, lines = place.examine()
    assert code == 0
    assert any("; versions before 2 have expired" in line for line in lines)


def test_days_that_were_deleted_for_their_age_are_not_missed(place: Place) -> None:
    table = place.table("messages")
    from deltalake import Transaction  # noqa: PLC0415

    last = datetime(2026, 1, 31, tzinfo=UTC).date().toordinal()
    table.replace(
        lambda _: True, [], table.schema() or "", noted={"kept": "90 days"}, transactions=[Transaction("kept", last)]
    )
    code, lines = place.examine()
    assert code == 0, lines
