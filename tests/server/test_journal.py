"""A hub and its journal: who waits for the disk, in which order they are told, and what happens when it fails."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.peer import Refused
from polywire.hub.work import QUIET, TURN, Turns, Work
from polywire.journal import open as open_journal
from polywire.journal.format import values
from polywire.server import journal as module
from polywire.server.journal import Journaling
from tests.hub.links import contents
from tests.journal.failing_log import FailingLog
from tests.sessions import Site

SECONDS = 20.0


class Connection:
    """Somebody who is read, or not."""

    def __init__(self) -> None:
        self._reading = True

    def reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True


class House:
    """A hub with a journal, in a running loop."""

    def __init__(self, path: Path, *, fsync: str = "group", strict: bool = False) -> None:
        self.site = Site()
        self.hub = self.site.hub
        self.log = FailingLog(path, fsync=fsync)
        loop = asyncio.get_running_loop()
        self.turns = Work(loop.call_soon, eager=False)
        self.journaling = Journaling(self.hub, self.turns, self.log, loop, fsync=fsync, strict=strict)
        self.client: Client = self.site.connect("fmqp", lambda *_: None).client
        self.told: list[str] = []
        self.taken = 0
        self._change = asyncio.Event()

    def publish(self, body: bytes, *, acknowledged: bool = True) -> Refused | None:
        """A message into a queue."""
        return self.hub.publish(Message("queue/q", body), self.client, acknowledged=acknowledged)

    def wait_for(self, name: str) -> None:
        """Want to know when everything so far is safe."""
        self.hub.safe(self._teller(f"{name} safe"), self._teller(f"{name} failed"))

    def take_turns(self) -> None:
        """Be busy: take every turn there is."""

        def step() -> int:
            self.taken += 1
            return TURN

        self.turns.start("host", Turns(step))

    async def heard(self, words: str) -> None:
        """Until this was told."""
        async with asyncio.timeout(SECONDS):
            while words not in self.told:
                self._change.clear()
                await self._change.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until something is so, which other threads may bring about."""
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        """Until everything so far is written."""
        self.wait_for("settled")
        await self.heard("settled safe")
        self.told.remove("settled safe")

    def bodies(self) -> list[bytes]:
        """The messages in the journal."""
        batches = open_journal(self.log.path).scan(columns=["body"], kinds=["enqueue"])
        return [body for batch in batches for body in values(batch.column("body"))]

    def _teller(self, words: str) -> Callable[[], None]:
        def tell() -> None:
            self.told.append(words)
            self._change.set()

        return tell


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


def test_those_who_come_while_a_group_is_written_are_the_next_group(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.log.go.clear()
        house.log.tried.clear()
        house.publish(b"1")
        house.wait_for("first")
        await house.until(house.log.tried.is_set)
        for number in range(2, 5):
            house.publish(b"%d" % number)
            house.wait_for(str(number))
        assert house.told == []
        before = house.journaling.commits
        house.log.go.set()
        await house.heard("4 safe")
        assert house.told == ["first safe", "2 safe", "3 safe", "4 safe"]
        assert house.journaling.commits == before + 2
        assert house.log.batches[-2:] == [1, 3]
        await house.journaling.close()
        assert house.bodies() == [b"1", b"2", b"3", b"4"]

    run(work())


@pytest.mark.parametrize(("is_busy", "pauses"), [(False, True), (True, False)])
def test_busy_clients_pause_while_a_light_one_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool, pauses: bool
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", SECONDS)

    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.log.go.clear()
        house.log.tried.clear()
        house.take_turns()
        house.hub.flusher.is_busy = is_busy
        house.publish(b"1")
        house.wait_for("client")
        await house.until(house.log.tried.is_set)
        before = house.taken
        for _ in range(10):
            await asyncio.sleep(0)
        assert (house.taken == before) == pauses
        house.log.go.set()
        await house.heard("client safe")
        before = house.taken
        await house.until(lambda: house.taken > before)
        await house.journaling.close()

    run(work())


def test_a_slow_disk_does_not_stop_busy_clients(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.log.go.clear()
        house.log.tried.clear()
        house.take_turns()
        house.publish(b"1")
        house.wait_for("client")
        await house.until(house.log.tried.is_set)
        before = house.taken
        await house.until(lambda: house.taken > before)
        assert house.told == []
        house.log.go.set()
        await house.heard("client safe")
        await house.journaling.close()

    run(work())


def test_with_always_each_message_that_is_acknowledged_is_made_safe_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path, fsync="always")
        await house.settled()
        for number in range(3):
            house.publish(b"%d" % number)
            house.wait_for(str(number))
        await house.heard("2 safe")
        assert house.log.batches[-3:] == [1, 1, 1]
        assert house.told == ["0 safe", "1 safe", "2 safe"]
        await house.journaling.close()

    run(work())


def test_who_waits_for_nothing_new_is_told_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.wait_for("me")
        assert house.told == ["me safe"]
        await house.journaling.close()

    run(work())


@pytest.mark.parametrize("fsync", ["group", "always", "os"])
def test_what_nobody_waits_for_is_written_after_a_moment(tmp_path: Path, fsync: str) -> None:
    async def work() -> None:
        house = House(tmp_path, fsync=fsync)
        await house.settled()
        house.publish(b"x", acknowledged=False)
        await house.until(lambda: house.bodies() == [b"x"])
        await house.journaling.close()

    run(work())


def test_everybody_who_waits_is_refused_when_the_disk_fails_and_nothing_is_skipped(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.log.go.clear()
        house.log.tried.clear()
        house.publish(b"on its way")
        house.wait_for("first")
        await house.until(house.log.tried.is_set)
        house.publish(b"behind it")
        house.wait_for("second")
        house.log.break_down()
        house.log.go.set()
        await house.heard("second failed")
        assert house.told == ["first failed", "second failed"]
        assert house.journaling.failed
        assert house.publish(b"refused") is Refused.UNAVAILABLE
        assert house.publish(b"not recorded", acknowledged=False) is None
        assert house.journaling.recorder.unrecorded == 1
        house.wait_for("third")
        assert house.told[-1] == "third failed"
        house.log.mend()
        await house.until(lambda: not house.journaling.failed)
        assert house.publish(b"with room") is None
        house.wait_for("fourth")
        await house.heard("fourth safe")
        await house.journaling.close()
        assert house.bodies() == [b"on its way", b"behind it", b"with room"]

    run(work())


@pytest.mark.parametrize("strict", [False, True])
def test_a_last_will_is_delivered_while_the_disk_fails_and_recorded_afterwards(tmp_path: Path, strict: bool) -> None:
    async def work() -> None:
        house = House(tmp_path, strict=strict)
        will = Message("queue/q", b"farewell")
        assert house.hub.leave_will(house.client, will, 10) is None
        await house.settled()
        house.log.break_down()
        house.publish(b"x")
        house.wait_for("me")
        await house.heard("me failed")
        house.hub.leave(house.client)
        assert [message.body for message in contents(house.hub.queue("q"))] == [b"x", b"farewell"]
        house.log.mend()
        await house.until(lambda: not house.journaling.failed)
        await house.settled()
        await house.journaling.close()
        assert house.bodies() == [b"x", b"farewell"]

    run(work())


def test_a_strict_hub_takes_nothing_while_the_disk_fails(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path, strict=True)
        await house.settled()
        house.log.break_down()
        house.publish(b"x")
        house.wait_for("me")
        await house.heard("me failed")
        assert house.journaling.failed
        assert house.publish(b"y", acknowledged=False) is Refused.UNAVAILABLE
        house.log.mend()
        await house.until(lambda: not house.journaling.failed)
        await house.journaling.close()

    run(work())


def test_a_refusal_or_an_acknowledgement_that_raises_keeps_nobody_else_from_theirs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("of its own")

    async def work() -> None:
        house = House(tmp_path)
        house.hub.safe(broken, broken)
        house.wait_for("first")
        await house.heard("first safe")
        house.log.break_down()
        house.publish(b"x")
        house.hub.safe(broken, broken)
        house.wait_for("second")
        await house.heard("second failed")
        await house.journaling.close()

    run(work())
    assert [record.message for record in caplog.records if record.exc_info] == [
        "an acknowledgement failed",
        "a refusal failed",
    ]


@pytest.mark.parametrize("everybody", [False, True])
def test_who_sends_much_and_then_everybody_waits_while_too_much_is_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, everybody: bool
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 10_000 if everybody else 40_000)
    monkeypatch.setattr(module, "MAX_PENDING_WAITED", 10_000)

    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        connection = Connection()
        house.journaling.hold_if_full(connection)
        assert connection.reading()
        assert not house.turns.paused
        house.log.go.clear()
        house.log.tried.clear()
        house.publish(b"x")
        house.wait_for("first")
        await house.until(house.log.tried.is_set)
        house.publish(bytes(20_000))
        house.journaling.hold_if_full(connection)
        assert [house.turns.paused, connection.reading()] == [True, not everybody]
        house.log.go.set()
        await house.until(lambda: connection.reading() and not house.turns.paused)
        await house.journaling.close()

    run(work())


@pytest.mark.parametrize("light", [False, True])
def test_who_sends_much_waits_for_the_disk_earlier_while_others_are_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, light: bool
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_HEAVY", 10_000)

    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        connection = Connection()
        house.turns.light.at = house.hub.monotonic() if light else -QUIET
        house.publish(bytes(20_000))
        house.journaling.hold_if_full(connection)
        assert [house.turns.paused, connection.reading()] == [light, True]
        await house.until(lambda: not house.turns.paused)
        await house.journaling.close()

    run(work())


def test_those_who_are_held_are_read_again_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 10_000)
    monkeypatch.setattr(module, "MAX_PENDING_WAITED", 2_000)

    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        connection = Connection()
        house.log.go.clear()
        house.log.tried.clear()
        house.publish(b"x")
        house.wait_for("first")
        await house.until(house.log.tried.is_set)
        house.publish(bytes(20_000))
        house.journaling.hold_if_full(connection)
        house.log.break_down()
        house.log.go.set()
        await house.heard("first failed")
        assert connection.reading()
        house.journaling.hold_if_full(connection)
        assert connection.reading()
        await house.journaling.close()

    run(work())


def test_closing_writes_everything_and_acknowledges_it(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        house.log.go.clear()
        house.publish(b"1")
        house.wait_for("first")
        await house.until(house.log.tried.is_set)
        house.publish(b"2")
        house.wait_for("second")
        closing = asyncio.create_task(house.journaling.close())
        await asyncio.sleep(0)
        house.publish(b"3", acknowledged=False)
        house.log.go.set()
        await closing
        assert house.told == ["first safe", "second safe"]
        assert house.bodies() == [b"1", b"2", b"3"]

    run(work())


@pytest.mark.parametrize("known", [False, True])
def test_closing_does_not_wait_for_a_disk_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, known: bool
) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.settled()
        house.log.break_down()
        house.publish(b"1")
        house.wait_for("me")
        if known:
            await house.heard("me failed")
        await house.journaling.close()
        assert house.told == ["me failed"]
        assert house.bodies() == []

    with caplog.at_level(logging.ERROR):
        run(work())
    assert "could not be written completely" in caplog.text
