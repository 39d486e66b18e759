"""Starts Spark as Polywire needs it: the right Java, the settings that matter, quiet logs, the format registered."""

import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from polywire.pipeline.errors import PackageMissingError, SparkStartError
from polywire.pipeline.java import find_java
from polywire.pipeline.memory import driver_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2.properties")
NOISE: Final = (
    "WARNING: Using incubator modules",
    "WARNING: package sun.",
    "Using Spark's default log4j",
    "Setting default log level",
    "To adjust logging level",
    "Starting Streaming TransformWithState",
    "Streaming TransformWithState",
    "\n",
)
STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Without this a source that takes filters can't be read at all.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Workers that need not import anything start in milliseconds.
    "spark.python.daemon.module": "polywire.pipeline.daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Each step is many small jobs. To plan them anew while they run takes longer than it saves.
    "spark.sql.adaptive.enabled": "false",
    # All tables together are more pieces of code than the usual 100: each step would compile them all anew.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # A micro-batch is held for a second or two while its tables are written.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Half the work of the usual third level, for files of much the same size.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Folders a job leaves are told apart by its own manifest, not by Spark's marker files.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
"""What is set where the user sets nothing."""


def spark_session(
    *,
    app: str = "polywire",
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A Spark session that knows the format ``polywire``; the one that runs already, if there is one.

    ``master`` is where to run: ``local[*]`` unless told otherwise, or ``spark://host:7077``. ``memory`` is what the
    driver gets (``4g``). ``conf`` are settings of Spark; they win over ours. Under ``spark-submit`` what was submitted
    wins.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second, and is an extra
    except ImportError as error:
        raise PackageMissingError("pyspark") from error
    running = SparkSession.getActiveSession()
    if running is None:
        _start(app, master, memory, conf or {})
        running = SparkSession.builder.getOrCreate()
    else:
        for key, value in (conf or {}).items():
            running.conf.set(key, value)
        # Settings a running session has from elsewhere stay, but for the one the source can't do without.
        running.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    register(running)
    return running


def register(spark: "SparkSession") -> None:
    """Make the format ``polywire`` known to a session that was started elsewhere."""
    from polywire.pipeline.format import PolywireFormat  # noqa: PLC0415 - needs pyspark

    spark.dataSource.register(PolywireFormat)


def local_cores(master: str) -> int | None:
    """How many cores a local master uses; None for a cluster."""
    if not master.startswith("local"):
        return None
    number = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(number) if number.isdigit() else (os.cpu_count() or 1) if number == "*" else 1


def _start(app: str, master: str | None, memory: str | None, conf: Mapping[str, str]) -> None:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = SparkConf(loadDefaults=submitted)
    wanted = _settings(master or (settings.get("spark.master") if submitted else None) or "local[*]", conf)
    wanted["spark.app.name"] = app
    for key, value in wanted.items():
        if key in conf or not settings.contains(key):
            settings.set(key, value)
    if submitted:
        SparkContext.getOrCreate(settings)
        return
    os.environ["JAVA_HOME"] = str(find_java())
    if "spark.driver.memory" not in conf:
        settings.set("spark.driver.memory", driver_memory(memory))
    _launch(settings)


def _settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {"spark.master": master, **SETTINGS}
    # Workers take python3 from PATH otherwise, which may be another one.
    settings["spark.pyspark.python"] = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings["spark.driver.extraJavaOptions"] = f"-Xss8m -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    cores = local_cores(master)
    if cores is not None:
        settings["spark.sql.shuffle.partitions"] = str(cores)
        settings["spark.default.parallelism"] = str(cores)
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {**settings, **conf}


def _launch(settings: Any) -> None:
    """Start the JVM with its complaints in our hands, and a context in it."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above

    if SparkContext._gateway is not None:  # noqa: SLF001 - a second session in this process uses the JVM of the first
        SparkContext.getOrCreate(settings)
        return
    reading, writing = os.pipe()
    words: deque[str] = deque(maxlen=8)
    relay = threading.Thread(target=_relay, args=(os.fdopen(reading, errors="replace"), words), daemon=True)
    relay.start()
    try:
        gateway = launch_gateway(settings, {"stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(timeout=5)
        raise SparkStartError(" / ".join(words)) from error
    os.close(writing)
    SparkContext(conf=settings, gateway=gateway)


def _relay(lines: IO[str], words: "deque[str]") -> None:
    """Pass on what the JVM complains about, but for what it says at every start."""
    with lines:
        for line in lines:
            if not line.startswith(NOISE):
                words.append(line.strip())
                sys.stderr.write(line)
