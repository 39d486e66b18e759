"""A writer that is killed loses nothing that it said is safe, and nobody ever sees anything else."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import polywire.journal
from polywire.journal import Log
from polywire.journal.committer import BatchMaker
from polywire.journal.format import values
from polywire.journal.housekeeping import Housekeeping, KeepLimits
from polywire.journal.snapshots import newest, state_of
from polywire.journal.verify import verify
from tests.journal.recording import MQTT, Recording
from tests.journal.rows import NODE, rows

WRITER = """
import sys
from pathlib import Path
from polywire.journal import Log
from tests.journal.rows import NODE, rows

with Log(Path(sys.argv[1]), node=NODE, segment_octets=100_000) as log:
    print("ready", log.next_offset, flush=True)
    while True:
        first = log.next_offset
        log.append(rows(first, 1 + first % 7, body=b"%d" % first * (first % 5000)), state=False)
        print(log.next_offset, flush=True)
"""


def test_what_a_killed_writer_called_safe_is_there(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    safe = 0
    for attempt in range(12):
        with subprocess.Popen(  # noqa: S603 - our own text
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert int(writer.stdout.readline().removeprefix("ready ")) >= safe
            for _ in range(1 + attempt * 7):
                safe = int(writer.stdout.readline())
            writer.kill()
            told = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        safe = max([safe, *map(int, told)])
        before = [n for batch in polywire.journal.open(tmp_path).scan(["offset"]) for n in batch.column(0).to_pylist()]
        assert before[:safe] == list(range(safe))
        assert before == list(range(len(before)))
    with Log(tmp_path, node=NODE) as log:
        assert log.next_offset >= safe
        log.append(rows(log.next_offset, 1), state=False)
    journal = polywire.journal.open(tmp_path)
    assert len(journal.segments()) > 1
    table = [row for batch in journal.scan(["offset", "size"]) for row in batch.to_pylist()]
    assert [row["offset"] for row in table] == list(range(journal.end_offset))


def test_a_reader_beside_a_writer_sees_a_growing_prefix_and_nothing_unsafe(tmp_path: Path) -> None:
    safe = [0]
    done = threading.Event()

    def keep_writing() -> None:
        with Log(tmp_path, node=NODE, fsync="os", segment_octets=60_000) as log:
            started.set()
            while log.next_offset < 4000 and not done.is_set():
                log.append(rows(log.next_offset, 10), state=False)
                safe[0] = log.next_offset

    started = threading.Event()
    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        assert started.wait(10)
        journal = polywire.journal.open(tmp_path)
        seen = 0
        while seen < 4000:
            least = safe[0]
            journal.refresh()
            end = journal.end_offset
            # One batch may have become safe that the writer was not yet able to tell of.
            assert least <= end <= safe[0] + 10
            found = [n for batch in journal.scan(["offset"], from_offset=seen) for n in batch.column(0).to_pylist()]
            assert found == list(range(seen, end))
            seen = end
    finally:
        done.set()
        writer.join()
    assert len(journal.segments()) > 3


KEEPER = """
import os, signal, sys
from pathlib import Path

from polywire.process import leave_out_pandas

leave_out_pandas()  # as in the processes that a hub starts
folder, what, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
from polywire.journal import compaction, housekeeping, snapshots
from polywire.journal.housekeeping import KeepLimits

steps = 0

def step():
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)

def killed_before(owner, name):
    real = getattr(owner, name)
    def wrapped(*arguments, **named):
        step()
        return real(*arguments, **named)
    setattr(owner, name, wrapped)

for name in ("fsync", "fdatasync", "open"):
    killed_before(os, name)
for name in ("rename", "replace", "unlink"):
    killed_before(Path, name)
snapshots.SLICE_OCTETS = 1000
snapshots.SYNC_OCTETS = 8000
compaction.GROUP_ROWS = 15
if what == "snapshot":
    snapshots.save(folder, snapshots.state_of(folder, to_offset=int(sys.argv[4])))
elif what == "compaction":
    compaction.compact(compaction.compactable(folder)[0])
else:
    done = housekeeping.Housekeeping(folder, KeepLimits(octets=1), compact=False).round()
    assert done.deleted and not done.failures, done
print(steps)
"""
MOST_STEPS = 200


class Kept:
    """A journal with snapshots and with rows after them, and what its state is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rec = Recording()
        self._maker = BatchMaker("here")
        self._rec.recorder.session(MQTT, "dev", "ann", kept=True, clean=True)
        house = Housekeeping(folder, KeepLimits(), compact=False)
        with Log(folder, node="here") as log:
            for number in range(4):
                self._work(log, number)
                log.roll()
                if number in {1, 2}:
                    house.need_snapshot(log.next_offset)
                    assert house.round().saved
            self._work(log, 4)
            log.roll()
            self.end = log.next_offset
        self.rows = self._state(folder)
        self.all = self._offsets(folder)

    def _work(self, log: Log, number: int) -> None:
        for each in range(10):
            message = self._rec.publish(f"kept/{each}", b"%d %d" % (number, each) * 20, retain=True)
            self._rec.store("dev", "t", message, 1)
            self._rec.enqueue("jobs", b"%d %d" % (number, each))
        for columns in self._rec.recorder.take():
            log.append(self._maker.make(columns), state=True)

    def check(self, folder: Path) -> None:
        """Whatever is left, a start finds the same state, and a reader no row fewer than those it may delete."""
        with Log(folder, node="here") as log:
            assert log.recovery.clean
            assert log.next_offset == self.end
        assert self._state(folder) == self.rows
        found = self._offsets(folder)
        assert found == self.all[len(self.all) - len(found) :]
        assert [finding for each in verify(folder) for finding in each.findings if not each.sound] == []

    @staticmethod
    def _state(folder: Path) -> list[dict[str, Any]]:
        state = state_of(folder)
        assert state.lost == ()
        return list(state.rows.to_pylist())

    @staticmethod
    def _offsets(folder: Path) -> list[int]:
        batches = polywire.journal.open(folder).scan(["offset"])
        return [offset for batch in batches for offset in values(batch.column(0))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["snapshot", "compaction", "retention"])
def test_a_kill_at_any_step_of_housekeeping_loses_nothing(tmp_path: Path, what: str) -> None:
    kept = Kept(tmp_path / "journal")
    spare = tmp_path / "spare"
    root = Path(__file__).parents[2]
    for last in range(1, MOST_STEPS):
        shutil.copytree(kept.folder, spare)
        command = [sys.executable, "-c", KEEPER, str(spare), what, str(last), str(kept.end)]
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
        kept.check(spare)
        Housekeeping(spare, KeepLimits(), compact=False).round()  # which clears up
        left = [path.name for path in spare.iterdir() if path.name.endswith((".part", "-unfinished"))]
        assert left == []
        kept.check(spare)
        if ended.returncode == 0:
            break
        shutil.rmtree(spare)
    assert json.loads(ended.stdout) == last - 1 > 4
    if what == "snapshot":
        assert newest(spare).offset == kept.end
    elif what == "compaction":
        assert len(list(spare.glob("*.parquet"))) == 1
    else:
        assert polywire.journal.open(spare).first_offset > 0
