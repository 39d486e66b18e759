"""What fails is told in one line, and nothing is lost; what may pass is told from what will not."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from faults.pipeline import processes
from polywire.cli import main
from polywire.journal.storage import JournalAwayError
from polywire.pipeline.errors import DataLossError
from polywire.pipeline.runner import QueryFailedError, failure_of
from tests.faults.small_disk import small_disk
from tests.pipeline.storage import BUCKET, object_storage
from tests.pipeline.traffic import messages, write_journal

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    "words",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "Traceback (most recent call last):\n  File x\nConnectionRefusedError: [Errno 111] Connection refused",
        f"Traceback (most recent call last):\n  File x\n{JournalAwayError.__name__}: http://hub: no answer",
        "Caused by: java.net.ConnectException: Connection refused",
    ],
)
def test_what_may_pass_is_told_from_what_will_not(words: str) -> None:
    assert failure_of(words).passing


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), DataLossError("journal", 3, 7), "[UNRESOLVED_COLUMN] no column 'chanel'"]
)
def test_what_will_be_the_same_next_time_does_not_pass(error: object) -> None:
    assert not failure_of(error).passing


def test_an_error_says_how_often_it_was_tried() -> None:
    assert str(QueryFailedError("rows", "no answer")) == "the query 'rows' failed: no answer"
    error = QueryFailedError("rows", "no answer", 8)
    assert str(error) == "the query 'rows' failed (also after 8 restarts): no answer"
    assert (error.query, error.reason, error.tries) == ("rows", "no answer", 8)


@dataclass(frozen=True)
class Place:
    """A journal and its lake, and the command at work on them."""

    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def segments(self) -> list[Path]:
        return sorted(self.journal.glob("[0-9]*.arrow"))

    def invoke(self, *words: str) -> Result:
        return CliRunner().invoke(main.app, ["pipeline", *words])

    def run(self, *words: str) -> Result:
        places = ("--journal", str(self.journal), "--lake", str(self.lake), "--retries", "0")
        return self.invoke("run", "--once", *places, *words)

    def count(self, name: str = "messages") -> int:
        answer = self.invoke("query", "-o", "json", f"SELECT count(*) AS n FROM {name}", "-l", str(self.lake))  # noqa: S608 - our own
        return int(json.loads(answer.stdout)["n"])


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session that commands use, as one runs; they take signals that belong to pytest."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield spark
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A journal of which a lake has the first rows."""
    found = Place(tmp_path)
    write_journal(found.journal, messages(100), batch=20, segment_octets=1)
    assert found.run("--tables", "messages").exit_code == 0
    write_journal(found.journal, messages(100), batch=20, segment_octets=1)
    return found


def told(result: Result) -> str:
    """The one line a command that failed says why in."""
    assert result.exit_code == 1, result.output
    said = result.stderr.splitlines()
    assert not [line for line in said if line.startswith(("Traceback", "\tat ", "  File "))]
    (line,) = [line for line in said if line.startswith("polywire pipeline: ")]
    assert line == said[-1]
    return line


def delete(path: Path) -> None:
    path.unlink()
    path.with_suffix(".index").unlink(missing_ok=True)


def test_rows_that_retention_deleted_unread_are_told_and_the_rest_is_read_when_that_is_wanted(place: Place) -> None:
    for path in place.segments()[:7]:
        delete(path)
    line = told(place.run("--tables", "messages"))
    assert "this query has not read offsets 100 to 139, and they are gone" in line
    assert line.removeprefix("polywire pipeline: ") in place.invoke("status", "-l", str(place.lake)).output.replace(
        "rows: ", "the query 'rows' failed: "
    )
    assert place.run("--tables", "messages", "--option", "failOnDataLoss=false").exit_code == 0
    assert place.count() == 160


def test_a_damaged_segment_is_told_or_becomes_a_fault(place: Place) -> None:
    path = place.segments()[7]
    content = bytearray(path.read_bytes())
    content[-200] ^= 0xFF
    path.write_bytes(content)
    path.with_suffix(".index").unlink(missing_ok=True)
    line = told(place.run("--tables", "messages", "--option", "onCorrupt=raise"))
    assert path.name in line
    assert place.count() == 100
    assert place.run("--tables", "messages").exit_code == 0
    assert place.count() == 180


def test_a_lost_checkpoint_is_told_and_nothing_is_written(place: Place) -> None:
    shutil.rmtree(place.lake / "_pipeline" / "checkpoints")
    line = told(place.run("--tables", "messages"))
    assert "the checkpoint was lost or is an old one. Nothing was written." in line
    assert place.count() == 100


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        place = Place(disk.path)
        write_journal(place.journal, messages(100))
        assert place.run("--tables", "messages").exit_code == 0
        write_journal(place.journal, messages(100))
        disk.fill()
        assert "No space left on device" in told(place.run("--tables", "messages"))
        disk.free()
        assert place.run("--tables", "messages").exit_code == 0
        assert place.count() == 200


TABLE = '''
from polywire.pipeline.table import table

@table
def own(rows):
    """A table with a mistake."""
    return rows.{what}
'''


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ('select("chanel")', "column, variable, or function parameter with name `chanel` cannot be resolved"),
        ('filter("channel = = 1")', "Syntax error at or near '='"),
        ('selectExpr("assert_true(size > 1000)")', "is not true!"),
    ],
)
def test_a_mistake_in_a_table_of_ones_own_is_told(place: Place, what: str, words: str) -> None:
    (place.folder / "own.py").write_text(TABLE.format(what=what))
    line = told(place.run(str(place.folder / "own.py"), "--tables", "own"))
    assert "the query 'rows-2' failed: " in line
    assert words in line


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize(
    ("sql", "words"),
    [("SELECT chanel FROM messages", "chanel"), ("SELEC 1", "SELEC"), ("SELECT 1 FROM mesages", "mesages")],
)
def test_wrong_sql_is_told(place: Place, engine: str, sql: str, words: str) -> None:
    line = told(place.invoke("query", sql, "--engine", engine, "-l", str(place.lake)))
    assert words in line
    assert "(tables: messages)" in line


def test_spark_answers_as_duckdb_does(place: Place) -> None:
    answers = [
        place.invoke(
            "query",
            "SELECT count(*) AS n, max(text) AS t FROM messages",
            "--engine",
            engine,
            "-o",
            "json",
            "-l",
            str(place.lake),
        )
        for engine in ("duckdb", "spark")
    ]
    assert [json.loads(answer.stdout) for answer in answers] == [{"n": 100, "t": "99"}] * 2


def test_a_lake_on_s3_has_a_status_and_what_is_wrong_there_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write_journal(place.journal, messages(20))
    with object_storage() as options:
        told_options = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
        lake = ["--lake", f"s3a://{BUCKET}/lake", *told_options]
        nothing = place.invoke("status", *lake)
        assert (nothing.exit_code, "no query ever ran here" in nothing.stderr) == (0, True)
        run = place.invoke(
            "run",
            "--once",
            "--journal",
            str(place.journal),
            "--tables",
            "messages",
            *lake,
            "--checkpoint",
            str(tmp_path / "checkpoints"),
        )
        assert run.exit_code == 0, run.output
        shown = place.invoke("status", *lake, "--checkpoint", str(tmp_path / "checkpoints"))
        assert (shown.exit_code, "messages" in shown.stdout) == (0, True)
        assert "lakes-that-are-not-there" in told(
            place.invoke("query", "SELECT 1", "--lake", "s3a://lakes-that-are-not-there/lake", *told_options)
        )


START = """
import sys
from pathlib import Path
from polywire.pipeline import spark
spark.INSTALLED = ()
spark.bundled_runtime = lambda: None
from polywire.cli.main import app
app(prog_name="polywire")
"""


@pytest.mark.parametrize("version", ["11.0.2", None])
def test_an_old_or_missing_java_is_told(place: Place, version: str | None) -> None:
    home = place.folder / "java"
    if version is not None:
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(mode=0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"')
    command = [sys.executable, "-c", START, "pipeline", "run", "--once", "--journal", str(place.journal)]
    done = subprocess.run(  # noqa: S603 - our own
        command,
        env={"PATH": str(home / "bin"), "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        cwd=place.folder,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("polywire pipeline: Spark needs Java 17 or newer (")
    assert ("Java 11" if version else "no working bin/java") in line
    assert "polywire[pipeline,java]" in line


def test_a_java_process_that_is_killed_is_told_and_the_next_run_goes_on(place: Place) -> None:
    places = ["--journal", str(place.journal), "--lake", str(place.lake), "--tables", "messages"]
    command = [sys.executable, "-m", "polywire", "pipeline", "run", *places, "--trigger", "100ms"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("rows: from ")
            (java,) = [one.pid for one in processes(process.pid) if "SparkSubmit" in one.command]
            os.kill(java, signal.SIGKILL)
            said = process.stderr.read().splitlines()
            assert process.wait(60) == 1
        finally:
            for one in processes(process.pid):
                os.kill(one.pid, signal.SIGKILL)
    assert [line.partition(" (")[0] for line in said] == [
        "polywire pipeline: Spark's Java process has ended unexpectedly"
    ]
    assert "has ended unexpectedly" in place.invoke("status", "-l", str(place.lake)).output
    assert place.run("--tables", "messages").exit_code == 0
    assert place.count() == 200
