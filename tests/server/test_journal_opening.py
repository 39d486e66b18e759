"""What an operator is told when a hub opens its journal: what was cut off, what is damaged, why it can't be."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polywire.journal import Log
from polywire.journal import open as open_journal
from polywire.journal.format import values
from tests.faults.small_disk import SmallDisk, small_disk
from tests.hub_process import LISTEN, PROGRAM, HubProcess, running_hub
from tests.interop.speakers import speak

pytestmark = pytest.mark.timeout(120)

ONLY_MQTT = [f"listen.{key}=off" for key in LISTEN if key not in {"mqtt", "http"}]
OPENED = "restored:"


def publish(hub: HubProcess, *bodies: bytes) -> None:
    with speak("mqtt", hub.addresses) as speaker:
        for body in bodies:
            speaker.publish("queue/q", body)


def killed(folder: Path) -> Path:
    """A hub has lived here, and was killed; its newest segment."""
    with running_hub(*ONLY_MQTT, journal=folder) as hub:
        publish(hub, b"1", b"2", b"3")
        hub.stop(signal.SIGKILL)
    return max(folder.glob("*.arrow"))


def refused(folder: Path, *sets: str) -> tuple[int, str, str]:
    """How a hub that can't start ends: its exit code, what it printed, and what it said."""
    command = [sys.executable, "-m", "polywire", "serve"]
    for each in (*(f"listen.{key}={address}" for key, address in LISTEN.items()), f"journal.path={folder}", *sets):
        command += ["--set", each]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own
    return ended.returncode, ended.stdout, ended.stderr


def test_a_journal_that_is_in_order_is_opened_without_a_warning(tmp_path: Path) -> None:
    killed(tmp_path)
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        line = hub.wait_for_log(OPENED)
        assert "0 retained messages, 3 queued messages, 0 MQTT sessions" in line
        assert not [each for each in hub.errors if "WARNING" in each or "ERROR" in each]


def test_a_torn_tail_is_told_with_the_place_where_it_is_kept(tmp_path: Path) -> None:
    newest = killed(tmp_path)
    size = newest.stat().st_size
    with newest.open("ab") as file:
        file.write(os.urandom(77))
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        line = hub.wait_for_log("ended while writing rows")
        assert " WARNING " in line
        kept = tmp_path / f"{newest.stem}.torn-{size}"
        assert f"77 bytes cut off at {size}" in line
        assert f"kept in {kept}" in line
        assert kept.stat().st_size == 77
        assert "3 queued messages" in hub.wait_for_log(OPENED)
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        hub.wait_for_log(OPENED)
        assert not [each for each in hub.errors if "cut off" in each]


def test_the_loss_of_what_was_safe_is_an_error(tmp_path: Path) -> None:
    newest = killed(tmp_path)
    os.truncate(newest, newest.stat().st_size - 10)
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        line = hub.wait_for_log("the journal has lost rows")
        assert " ERROR " in line
        assert f"were safe in {newest.name} and are lost" in line
        assert "polywire journal verify" in line
        publish(hub, b"4")
        hub.stop()
    batches = open_journal(tmp_path).scan(["offset"], on_corrupt="gap")
    offsets = [offset for batch in batches for offset in values(batch.column(0))]
    assert offsets == sorted(set(offsets))


def emptied(newest: Path) -> None:
    os.truncate(newest, 0)


@pytest.mark.parametrize("lose", [emptied, Path.unlink])
def test_a_hub_whose_newest_file_is_gone_starts_says_what_is_lost_and_gives_no_offset_twice(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    newest = killed(tmp_path)
    end = open_journal(tmp_path).end_offset
    lose(newest)
    code, printed, said = refused(tmp_path, "journal.on_loss=refuse")
    assert (code, printed, said.count("\n")) == (1, "", 1)
    assert f"{end} rows, offsets 0 to {end - 1}, were safe in {newest.name} and are lost" in said
    assert "start once with journal.on_loss=continue" in said
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        line = hub.wait_for_log("the journal has lost rows")
        assert " ERROR " in line
        assert f"{end} rows, offsets 0 to {end - 1}, were safe in {newest.name} and are lost" in line
        assert "0 queued messages" in hub.wait_for_log(OPENED)
        assert hub.metric("polywire_journal_lost_rows") == end
        publish(hub, b"4")
        hub.wait_for_log("wrote a snapshot of the hub's state")
        hub.stop(signal.SIGKILL)
    found = open_journal(tmp_path)
    rows = [row for batch in found.scan(["offset", "kind"], on_corrupt="gap") for row in batch.to_pylist()]
    assert rows[0] == {"offset": 0, "kind": "gap"}
    assert [row["offset"] for row in rows[1:]] == list(range(end, found.end_offset))
    with running_hub(*ONLY_MQTT, "journal.on_loss=refuse", journal=tmp_path) as hub:  # once is enough
        assert "1 queued messages" in hub.wait_for_log(OPENED)
        assert hub.metric("polywire_journal_lost_rows") == 0


def test_a_file_that_is_damaged_before_the_newest_is_told_where_the_state_needs_it(tmp_path: Path) -> None:
    newest = killed(tmp_path)
    with Log(tmp_path, node="another") as log:  # so that there is a newer one
        assert log.segment_offset > 0
    os.truncate(newest, 0)
    code, _, said = refused(tmp_path, "journal.on_loss=refuse")
    assert code == 1
    assert f"can't be read: {newest.name} at 0: the file is empty" in said
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        line = hub.wait_for_log("the hub's state may be incomplete")
        assert " ERROR " in line
        assert f"can't be read: {newest.name} at 0: the file is empty" in line


def test_a_hub_with_a_journal_does_not_load_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with running_hub(*ONLY_MQTT, "journal.segment_size=4 KiB", journal=tmp_path, program=PROGRAM) as hub:
        with speak("mqtt", hub.addresses) as speaker:
            for number in range(20):
                speaker.publish("queue/q", os.urandom(1000) + b"%d" % number)
        hub.wait_for_log("wrote a snapshot of the hub's state")
        hub.wait_for_log("compacted ")
        assert "pandas" not in Path(f"/proc/{hub.process.pid}/maps").read_text(encoding="utf-8")
        hub.stop()
    with running_hub(*ONLY_MQTT, journal=tmp_path, program=PROGRAM) as hub:
        assert "20 queued messages" in hub.wait_for_log(OPENED)
        publish(hub, b"one more")
        status, _ = hub.get("/journal/")
        assert status == 200
        assert "pyarrow" in Path(f"/proc/{hub.process.pid}/maps").read_text(encoding="utf-8")
        assert "pandas" not in Path(f"/proc/{hub.process.pid}/maps").read_text(encoding="utf-8")


def test_a_journal_another_hub_writes_is_refused_in_one_line(tmp_path: Path) -> None:
    with running_hub(*ONLY_MQTT, journal=tmp_path) as hub:
        code, printed, said = refused(tmp_path)
        assert (code, printed, said.count("\n")) == (1, "", 1)
        assert f"{tmp_path}: the journal is being written by process {hub.process.pid}" in said
        assert "stop that hub, or use another directory" in said
        publish(hub, b"still at work")


@pytest.mark.parametrize("name", ["file", "file/journal"])
def test_a_folder_that_can_t_be_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    code, printed, said = refused(tmp_path / name)
    assert (code, printed, said.count("\n")) == (1, "", 1)
    assert f"journal.path: can't open the journal: {tmp_path / name}: " in said
    assert "use a directory that the hub can write to" in said


def test_a_disk_that_is_full_or_read_only_at_the_start_is_refused_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        _no_room(disk)
        _read_only(disk)


def _no_room(disk: SmallDisk) -> None:
    disk.fill()
    code, printed, said = refused(disk.path / "journal")
    assert (code, printed, said.count("\n")) == (1, "", 1)
    assert "No space left on device" in said
    disk.free()


def _read_only(disk: SmallDisk) -> None:
    remount = ["mount", "-o", "remount,ro", str(disk.path)]
    subprocess.run(remount, check=True)  # noqa: S603 - fixed words
    code, printed, said = refused(disk.path / "journal")
    assert (code, printed, said.count("\n")) == (1, "", 1)
    assert "Read-only file system" in said
