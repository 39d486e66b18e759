from pathlib import Path

import pytest

from polywire.pipeline import memory
from polywire.pipeline.errors import MemoryMissingError, OptionError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with 16 GiB, 12 of them free, without limits."""
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    return tmp_path


def test_spark_gets_a_quarter_of_the_machine(machine: Path) -> None:
    assert machine.is_dir()
    assert memory.driver_memory(None) == "4096m"


def test_spark_gets_what_it_is_given(machine: Path) -> None:
    assert machine.is_dir()
    assert memory.driver_memory("6g") == "6144m"
    assert memory.driver_memory("900 MB") == "900m"


def test_a_container_counts_as_the_machine(machine: Path) -> None:
    (machine / "memory.max").write_text(f"{8 << 30}\n")
    (machine / "memory.current").write_text(f"{1 << 30}\n")
    assert memory.driver_memory(None) == "2048m"


def test_with_little_free_it_gets_less(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   2097152 kB\n")
    assert memory.driver_memory(None) == "1024m"


def test_too_little_memory_is_told_before_anything_starts(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:   204800 kB\n")
    with pytest.raises(MemoryMissingError, match="512 MiB, but 200 MiB are available"):
        memory.driver_memory(None)
    with pytest.raises(MemoryMissingError, match="4096 MiB, but 200 MiB are available"):
        memory.driver_memory("4g")


@pytest.mark.parametrize("text", ["much", "4", "100m", "-1g"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="memory"):
        memory.parse_memory(text)
