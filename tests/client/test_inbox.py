import asyncio
from typing import cast

import pytest

from polywire.client import inbox as inbox_module
from polywire.client.errors import ClientError, Closed, Overrun
from polywire.client.inbox import BEYOND, Inbox, Intake
from polywire.client.link import Link
from tests.client.loops import run, until


class Reads:
    """A link that only knows whether it is read."""

    def __init__(self) -> None:
        self._reading = True

    def reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True


def made(limit: int = 4, *, owed: bool = False) -> tuple[Inbox[int], Reads, Intake]:
    reads = Reads()
    intake = Intake(lambda: owed)
    intake.attach(cast("Link", reads))
    return Inbox(intake, limit), reads, intake


def test_messages_come_out_as_they_went_in() -> None:
    async def main() -> None:
        inbox, _, _ = made()
        inbox.put(1)
        inbox.extend([2, 3])
        assert [await anext(inbox) for _ in range(3)] == [1, 2, 3]
        waiting = asyncio.ensure_future(anext(inbox))
        await asyncio.sleep(0)
        inbox.put(4)
        assert await waiting == 4

    run(main)


def test_a_full_inbox_stops_reading_until_half_of_it_is_taken() -> None:
    async def main() -> None:
        inbox, reads, _ = made(4)
        inbox.extend([1, 2, 3])
        assert reads.reading()
        inbox.put(4)
        assert not reads.reading()
        await anext(inbox)
        assert not reads.reading()
        await anext(inbox)
        assert reads.reading()

    run(main)


def test_large_messages_fill_an_inbox_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "OCTETS", 100)

    async def main() -> None:
        inbox, reads, _ = made(1000)
        inbox.put(1, 60)
        assert reads.reading()
        inbox.put(2, 60)
        assert not reads.reading()
        await anext(inbox)
        assert not reads.reading()
        await anext(inbox)
        assert reads.reading()

    run(main)


def test_while_a_reply_is_awaited_reading_goes_on_for_a_while() -> None:
    async def main() -> None:
        inbox, reads, intake = made(2, owed=True)
        inbox.extend(range(2 * BEYOND - 1))
        assert reads.reading()
        inbox.put(0)
        assert not reads.reading()
        intake.attach(None)

    run(main)


def test_an_inbox_that_nobody_reads_ends_when_an_answer_is_awaited_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox_module, "STALL_TIME", 0.05)

    async def main() -> None:
        inbox, reads, _ = made(2, owed=True)
        inbox.extend(range(2 * BEYOND))
        assert not reads.reading()
        await until(reads.reading)
        inbox.put(0)
        assert [await anext(inbox) for _ in range(2 * BEYOND)] == list(range(2 * BEYOND))
        with pytest.raises(Overrun) as caught:
            await anext(inbox)
        assert caught.value.waiting == 2 * BEYOND
        inbox.close()
        assert await _all(inbox) == []

    run(main)


def test_a_reader_that_takes_something_now_and_then_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "STALL_TIME", 0.2)

    async def main() -> None:
        inbox, reads, intake = made(8, owed=True)
        inbox.extend(range(8 * BEYOND))
        for number in range(20):
            assert await anext(inbox) == number
            inbox.put(-1)
            await asyncio.sleep(0.02)  # less than the time it has
        assert inbox.taking
        assert not reads.reading()
        intake.attach(None)

    run(main)


def test_replies_that_are_counted_keep_the_connection_read() -> None:
    async def main() -> None:
        inbox, reads, intake = made(2)
        inbox.extend([1, 2])
        assert not reads.reading()
        intake.owe(1)
        assert reads.reading()
        intake.owe(-1)
        assert not reads.reading()

    run(main)


def test_closing_or_clearing_a_full_inbox_lets_the_connection_be_read() -> None:
    async def main() -> None:
        for end in ("close", "clear"):
            inbox, reads, _ = made(2)
            inbox.extend([1, 2, 3])
            getattr(inbox, end)()
            assert reads.reading()
            assert len(inbox) == 0

    run(main)


def test_a_new_connection_is_not_read_while_an_inbox_is_full() -> None:
    async def main() -> None:
        inbox, _, intake = made(2)
        inbox.extend([1, 2])
        other = Reads()
        intake.attach(None)
        intake.attach(cast("Link", other))
        assert not other.reading()

    run(main)


def test_an_inbox_that_is_closed_ends_its_reader_and_takes_nothing_more() -> None:
    async def main() -> None:
        closed: list[int] = []
        inbox: Inbox[int] = Inbox(Intake(), on_close=lambda: closed.append(1))
        waiting = asyncio.ensure_future(_all(inbox))
        await asyncio.sleep(0)
        inbox.close()
        inbox.close()
        inbox.put(1)
        inbox.extend([2])
        assert await waiting == []
        assert closed == [1]

    run(main)


def test_an_inbox_that_failed_gives_what_it_has_and_then_the_error() -> None:
    async def main() -> None:
        inbox, _, _ = made()
        inbox.put(1)
        inbox.fail(ClientError("gone"))
        assert await anext(inbox) == 1
        for _ in range(2):
            with pytest.raises(ClientError, match="gone"):
                await anext(inbox)
        other, _, _ = made()
        other.fail(Closed("the client was closed"))
        assert await _all(other) == []

    run(main)


def test_two_readers_of_one_inbox_are_told_so() -> None:
    async def main() -> None:
        inbox, _, _ = made()
        first = asyncio.ensure_future(anext(inbox))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="give each its own"):
            await anext(inbox)
        inbox.put(1)
        assert await first == 1

    run(main)


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Inbox(Intake(), 0)


async def _all(inbox: Inbox[int]) -> list[int]:
    return [each async for each in inbox]
