import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType

from polywire.pipeline.errors import OptionError, SinkError
from polywire.pipeline.sink import Manifest, SinkOptions, Staged, Staging, publish, stage
from tests.pipeline.ingest import Ingest, ingest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def hub() -> Iterator[Ingest]:
    with ingest() as found:
        yield found


def options(hub: Ingest, folder: Path, **more: Any) -> SinkOptions:
    given = {"hub": hub.url, "query": "q", "staging": str(folder), **more}
    return SinkOptions.read(given, streaming=True)


def rows(*bodies: str) -> Any:
    return pa.RecordBatch.from_pydict({"channel": ["a/b"] * len(bodies), "body": [body.encode() for body in bodies]})


def test_a_data_frame_is_published_with_everything_a_row_can_have(spark: SparkSession, hub: Ingest) -> None:
    frame = spark.createDataFrame(
        [("a/b", b"one", {"x": "1"}, "text/plain", True, False), ("q", b"two", None, None, None, True)],
        "channel string, body binary, headers map<string,string>, content_type string, retain boolean, queue boolean",
    )
    frame.coalesce(1).write.format("polywire").mode("append").option("token", "t").save(hub.url)
    assert hub.rows == [
        {
            "channel": "a/b",
            "body": b"one",
            "headers": '{"x": "1"}',
            "content_type": "text/plain",
            "retain": True,
            "queue": False,
        },
        {"channel": "q", "body": b"two", "headers": None, "content_type": None, "retain": False, "queue": True},
    ]
    assert set(hub.tokens) == {"Bearer t"}


def test_a_stream_is_published_once_over_restarts(spark: SparkSession, hub: Ingest, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    schema = StructType([StructField("body", StringType())])

    def run() -> None:
        frame: DataFrame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
        query = (
            frame.select(F.lit("a").alias("channel"), F.col("body").cast("binary").alias("body"))
            .writeStream.format("polywire")
            .option("hub", hub.url)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    for number in range(3):
        lines = "".join(json.dumps({"body": f"{number}-{line}"}) + "\n" for line in range(50))
        (source / f"{number}.json").write_text(lines)
    run()
    (source / "3.json").write_text('{"body": "3-0"}\n')
    # As after a crash between publishing and Spark's own note of it: the last batch is run again.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    run()
    assert sorted(hub.bodies()) == sorted(
        [f"{number}-{line}".encode() for number in range(3) for line in range(50)] + [b"3-0"]
    )
    assert len({query for query, _, _ in hub.parts}) == 1


def test_a_batch_that_is_run_again_publishes_what_was_decided_first(hub: Ingest, tmp_path: Path) -> None:
    chosen = options(hub, tmp_path, patience="1")
    first = [stage(chosen, iter([rows("a", "b")])), stage(chosen, iter([rows("c")]))]
    with pytest.raises(SinkError, match="batch 7, part 1 of q: 403 not now"):
        publish_with_ok_first(hub, chosen, first)
    again = [stage(chosen, iter([rows("a")])), stage(chosen, iter([rows("b", "c")]))]
    publish(chosen, list(again), 7)
    assert hub.bodies() == [b"a", b"b", b"c"]
    publish(chosen, [stage(chosen, iter([rows("a", "b", "c")]))], 7)
    assert hub.bodies() == [b"a", b"b", b"c"]
    assert [path.name for path in (tmp_path / "q").iterdir()] == ["7.manifest"]


def publish_with_ok_first(hub: Ingest, chosen: SinkOptions, messages: list[Staged]) -> None:
    """Publish, with the first part taken and the second one refused."""
    hub.refuse = []
    taken = hub.take

    def take(query: str, batch: int, part: int, body: bytes) -> bool:
        done = taken(query, batch, part, body)
        hub.take = taken  # type: ignore[method-assign]
        hub.refuse = [403]
        return done

    hub.take = take  # type: ignore[method-assign]
    publish(chosen, list(messages), 7)


def test_an_answer_that_was_lost_does_not_double_rows(hub: Ingest, tmp_path: Path) -> None:
    chosen = options(hub, tmp_path)
    hub.hang_up = 1
    publish(chosen, [stage(chosen, iter([rows("a")]))], 0)
    assert hub.bodies() == [b"a"]
    assert hub.repeated == [("q", 0, 0)]


def test_a_hub_that_is_away_for_a_while_is_waited_for(hub: Ingest, tmp_path: Path) -> None:
    hub.refuse = [503, 503, 429]
    chosen = options(hub, tmp_path)
    publish(chosen, [stage(chosen, iter([rows("a")]))], 0)
    assert hub.bodies() == [b"a"]


def test_a_hub_that_stays_away_fails_the_batch_and_keeps_it(tmp_path: Path) -> None:
    with ingest() as gone:
        pass
    chosen = options(gone, tmp_path, patience="1")
    with pytest.raises(SinkError, match="did not accept batch 0, part 0"):
        publish(chosen, [stage(chosen, iter([rows("a")]))], 0)
    manifest = Staging(chosen.staging).manifest(0)
    assert manifest is not None
    assert not manifest.done
    assert [part.num_rows for part in Staging(chosen.staging).parts(manifest)] == [1]


def test_a_large_task_is_published_in_parts(hub: Ingest, tmp_path: Path) -> None:
    chosen = options(hub, tmp_path)
    large = pa.RecordBatch.from_pydict({"channel": ["a"] * 9, "body": [bytes(1 << 20)] * 9})
    publish(chosen, [stage(chosen, iter([large])), Staged(None)], 3)
    assert hub.parts == [("q", 3, 0), ("q", 3, 1), ("q", 3, 2)]
    assert len(hub.rows) == 9


def test_files_of_failed_tasks_go_when_their_batch_is_done(hub: Ingest, tmp_path: Path) -> None:
    chosen = options(hub, tmp_path)
    stage(chosen, iter([rows("from a task that was tried twice")]))
    publish(chosen, [stage(chosen, iter([rows("a")]))], 0)
    publish(chosen, [stage(chosen, iter([rows("b")]))], 1)
    assert [path.name for path in (tmp_path / "q").iterdir()] == ["1.manifest"]
    assert Staging(chosen.staging).manifest(1) == Manifest((), done=True)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("channel string", "no column 'body'"),
        ("channel string, body binary, size int", "column 'size' can't be published"),
        ("channel string, body int", "column 'body' is int; it must be binary or string"),
    ],
)
def test_columns_that_can_not_be_published_are_named(spark: SparkSession, hub: Ingest, schema: str, words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        spark.createDataFrame([], schema).write.format("polywire").mode("append").save(hub.url)


def test_a_row_without_a_channel_is_an_error(hub: Ingest, tmp_path: Path) -> None:
    bad = pa.RecordBatch.from_pydict({"channel": pa.array([None], pa.utf8()), "body": [b""]})
    with pytest.raises(SinkError, match="no channel"):
        stage(options(hub, tmp_path), iter([bad]))


def test_headers_that_are_no_json_object_are_an_error(hub: Ingest, tmp_path: Path) -> None:
    bad = pa.RecordBatch.from_pydict({"channel": ["a"], "body": [b""], "headers": ["[1]"]})
    with pytest.raises(SinkError, match="not a JSON object"):
        stage(options(hub, tmp_path), iter([bad]))


def test_an_unknown_option_names_the_nearest_right_one() -> None:
    with pytest.raises(OptionError, match="did you mean 'staging'"):
        SinkOptions.read({"hub": "http://h", "stagin": "/tmp"}, streaming=False)  # noqa: S108 - not used


def test_a_stream_needs_to_know_its_checkpoint() -> None:
    with pytest.raises(OptionError, match="checkpointLocation"):
        SinkOptions.read({"hub": "http://h"}, streaming=True)


def test_parts_go_one_after_the_other(hub: Ingest, tmp_path: Path) -> None:
    chosen = options(hub, tmp_path)
    publish(chosen, [stage(chosen, iter([rows(str(number))])) for number in range(20)], 0)
    assert [part for _, _, part in hub.parts] == list(range(20))
