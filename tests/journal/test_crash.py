"""A writer that is killed loses nothing that it said is safe, and nobody ever sees anything else."""

import subprocess
import sys
import threading
from pathlib import Path

import polywire.journal
from polywire.journal import Log
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
