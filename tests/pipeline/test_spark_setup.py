"""What Spark is started with: a Java, and memory."""

import io
import subprocess
from collections import deque
from pathlib import Path

import pytest

from polywire.pipeline import spark as starting
from polywire.pipeline.errors import JavaMissingError, MemoryMissingError, OptionError


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java of this version, whose ``java`` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\nprintf "%s|" "$@"\n')
    script.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(starting, "INSTALLED", (tmp_path / "jvm",))
    monkeypatch.setattr(starting, "bundled_runtime", lambda: None)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25.0.2+9", 25)])
@pytest.mark.parametrize("release", [True, False])
def test_a_version_is_read_however_it_is_told(tmp_path: Path, version: str, major: int, release: bool) -> None:
    assert starting.java_version(make_java(tmp_path / "java", version, release=release)) == major


def test_the_java_that_is_set_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "jvm" / "21", "21")
    chosen = make_java(tmp_path / "mine", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert starting.find_java() == chosen


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = make_java(tmp_path / "jvm" / "21", "21")
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "11.0.2")))
    assert starting.find_java() == newer


def test_without_java_the_error_says_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(JavaMissingError, match="Java 17 or newer") as caught:
        starting.find_java()
    assert caught.value.found == (f"{old} is Java 11",)
    assert "polywire[pipeline,java]" in str(caught.value)


def test_a_java_home_that_holds_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="no working bin/java"):
        starting.find_java()


def test_the_java_of_the_extra_is_used_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_java(tmp_path / "java-runtime", "25.0.2")
    monkeypatch.setattr(starting, "bundled_runtime", lambda: runtime)
    home = starting.find_java()
    assert home == starting.find_java()
    command: list[str | Path] = [home / "bin" / "java", "-Xmx1g", starting.DROPPED, "-D a=b", "Main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - made above
    assert done.stdout == "-Xmx1g|-D a=b|Main|"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with 16 GiB, 12 of them free, without limits."""
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\n")
    monkeypatch.setattr(starting, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(starting, "CGROUP", tmp_path)
    return tmp_path


def test_spark_gets_a_quarter_of_the_machine(machine: Path) -> None:
    assert machine.is_dir()
    assert starting.driver_memory(None) == "4096m"


def test_spark_gets_what_it_is_given(machine: Path) -> None:
    assert machine.is_dir()
    assert starting.driver_memory("6g") == "6144m"
    assert starting.driver_memory("900 MB") == "900m"


def test_a_container_counts_as_the_machine(machine: Path) -> None:
    (machine / "memory.max").write_text(f"{8 << 30}\n")
    (machine / "memory.current").write_text(f"{1 << 30}\n")
    assert starting.driver_memory(None) == "2048m"


def test_with_little_free_it_gets_less(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   2097152 kB\n")
    assert starting.driver_memory(None) == "1024m"


def test_too_little_memory_is_told_before_anything_starts(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   204800 kB\n")
    with pytest.raises(MemoryMissingError, match="512 MiB, but only 200 MiB are available"):
        starting.driver_memory(None)
    with pytest.raises(MemoryMissingError, match="4096 MiB, but only 200 MiB are available"):
        starting.driver_memory("4g")


@pytest.mark.parametrize("text", ["much", "4", "100m", "-1g"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="memory"):
        starting.parse_memory(text)


def test_what_java_says_is_passed_on_without_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        "WARNING: Using incubator modules: jdk.incubator.vector\n"
        "12:00:00 spark ERROR Worker: lost\n"
        "Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in <module>\n'
        "    return next(self.gen)\n"
        "           ^^^^\n"
        "pyspark.errors.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] timed out\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        "Caused by: java.io.IOException: gone\n"
        "my own words\n"
    )
    words: deque[str] = deque(maxlen=3)
    starting._relay(io.StringIO(said), words)
    assert capsys.readouterr().err == "12:00:00 spark ERROR Worker: lost\nmy own words\n"
    assert list(words)[-1] == "my own words"
