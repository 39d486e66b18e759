import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from polywire.pipeline.query import Questions
from tests.pipeline.cluster import cluster
from tests.pipeline.storage import BUCKET, object_storage
from tests.pipeline.traffic import messages, write_journal
from tests.spark_home import OPTIONS

pytestmark = pytest.mark.timeout(400)

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SCRIPT = Path(__file__).parents[2] / "examples" / "spark_submit.py"
SMALL = [
    "spark.executor.memory=512m",
    f"spark.executor.extraJavaOptions={OPTIONS}",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.host=127.0.0.1",
]


def rows_of(lake: str, table: str, options: dict[str, str]) -> int:
    questions = Questions(lake, options)
    try:
        return int(questions.ask(f"FROM {table} SELECT count(*)").rows[0][0])
    finally:
        questions.close()


def run(command: Sequence[str | Path]) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_the_same_job_runs_on_a_cluster_with_two_workers(tmp_path: Path) -> None:
    """By ``--master`` and by ``spark-submit``, the second run going on where the first one stopped.

    The lake is on S3: driver and executors share no directory that they write to.
    """
    journal, lake = tmp_path / "journal", f"s3://{BUCKET}/lake"
    arguments = ["run", "--once", "--journal", str(journal), "--lake", lake, "--tables", "messages,traffic"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoints")]
    settings = [text for setting in SMALL for text in ("--conf", setting)]
    with object_storage() as options, cluster(2, tmp_path) as master:
        arguments += [text for option in options.items() for text in ("--storage-option", "=".join(option))]
        write_journal(journal, messages(60_000), batch=5_000)
        direct = [sys.executable, "-m", "polywire", "pipeline", *arguments, "--master", master, "--memory", "1g"]
        run([*direct, *settings])
        assert rows_of(lake, "messages", options) == 60_000
        assert len({path.parent for path in tmp_path.glob("worker-*/app-*/*/stderr")}) == 2
        write_journal(journal, messages(40_000), batch=5_000)
        submitted: list[str | Path] = [
            SUBMIT,
            "--master",
            master,
            "--driver-memory",
            "1g",
            *settings,
            SCRIPT,
            *arguments,
        ]
        run(submitted)
        assert rows_of(lake, "messages", options) == 100_000
        questions = Questions(lake, options)
        assert questions.ask("SELECT sum(messages) FROM traffic").rows == [(100_000,)]
        questions.close()
    assert not list(tmp_path.rglob("*.parquet"))
