"""A standalone Spark cluster on this machine, from the same package as everything else: a master and some workers."""

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from polywire.pipeline.spark import find_java
from tests.spark_home import OPTIONS

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PATIENCE = 90.0
HOST = "127.0.0.1"


@contextmanager
def cluster(workers: int, folder: Path) -> Iterator[str]:
    """The address of a master with so many workers of one core each."""
    with ExitStack() as stack:
        arguments = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(_started(arguments, r"Starting Spark master at (spark://\S+)"))
        for number in range(workers):
            arguments = ["org.apache.spark.deploy.worker.Worker", "--host", HOST, "--webui-port", "0", "--cores", "1"]
            arguments += ["--memory", "1g", "--work-dir", str(folder / f"worker-{number}"), master]
            stack.enter_context(_started(arguments, r"(Successfully registered with master)"))
        yield master


@contextmanager
def _started(arguments: list[str], sign: str) -> Iterator[str]:
    """A process of Spark, once it has written the sign; what the sign found."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
    }
    environment["SPARK_DAEMON_MEMORY"] = "256m"
    environment["SPARK_DAEMON_JAVA_OPTS"] = OPTIONS
    process = subprocess.Popen(  # noqa: S603 - our own package
        [SPARK_CLASS, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    found: queue.Queue[str] = queue.Queue()

    def watch() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            match = re.search(sign, line)
            if match is not None:
                found.put(match[1])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found.get(timeout=PATIENCE)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join()
        if process.stderr is not None:
            process.stderr.close()
