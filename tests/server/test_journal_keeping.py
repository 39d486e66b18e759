"""A hub keeps its journal small, and forgets nothing that still means something."""

import asyncio
import os
import signal
import time
from pathlib import Path

import polywire
from polywire import journal
from polywire.journal.housekeeping import segment_seconds
from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import speak
from tests.wires import Fmqp, connected

SMALL = ("journal.segment_size=16 KiB", "journal.keep_size=64 KiB")


def test_files_hold_a_tenth_of_the_time_that_rows_are_kept() -> None:
    assert segment_seconds(0) == 0  # kept for ever: only the size counts
    assert segment_seconds(30 * 86400) == 3 * 86400
    assert segment_seconds(1) == 60


def url(hub: HubProcess) -> str:
    return f"mqtt://127.0.0.1:{hub.port('mqtt')}"


async def fill(hub: HubProcess, folder: Path) -> None:
    """Publish until the first segment is gone; before that, what is to be remembered."""
    end = time.monotonic() + 40

    def trimmed() -> bool:
        assert time.monotonic() < end, sorted(path.name for path in folder.iterdir())
        return any(folder.glob("*.parquet")) and journal.open(folder).first_offset > 0

    async with polywire.connect(url(hub)) as bus:
        await bus.publish("kept", b"for ever", retain=True)
        await bus.queue("jobs").put(b"to be done")
        while not trimmed():
            await asyncio.gather(*[bus.publish("filling", os.urandom(1024)) for _ in range(20)])


async def remembered(hub: HubProcess) -> list[bytes]:
    async with polywire.connect(url(hub)) as bus:
        async with bus.subscribe("kept") as messages:
            kept = await anext(messages)
        async with bus.queue("jobs") as jobs:
            return [kept.body, (await anext(jobs)).body]


def test_what_is_retained_or_queued_outlives_the_segment_it_was_in(tmp_path: Path) -> None:
    with running_hub(*SMALL, journal=tmp_path) as hub:
        asyncio.run(fill(hub, tmp_path))
        hub.stop(signal.SIGKILL)
    found = journal.open(tmp_path)
    assert found.first_offset > 0
    offsets = [offset for batch in found.scan(["offset"]) for offset in batch.column(0).to_pylist()]
    assert offsets == list(range(found.first_offset, found.end_offset))
    with running_hub(*SMALL, journal=tmp_path) as hub:
        assert asyncio.run(asyncio.wait_for(remembered(hub), 20)) == [b"for ever", b"to be done"]


def test_a_client_that_announces_more_than_a_row_can_tell_does_not_stop_the_journal(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub:
        for announced in (1 << 31, 3 << 30, (1 << 32) - 1):
            with connected(hub.addresses["fmqp"]) as line:
                Fmqp(line).send(b"\x00\x03" + announced.to_bytes(4, "big") + b"hotx")
        with speak("mqtt", hub.addresses) as speaker:
            speaker.publish("after", b"acknowledged")
        assert hub.metric("polywire_journal_failed") == 0
        assert hub.stop() == 0
    rows = [row for batch in journal.open(tmp_path).scan(["kind", "size"]) for row in batch.to_pylist()]
    assert (1 << 31) - 1 in [row["size"] for row in rows if row["kind"] == "discard"]
