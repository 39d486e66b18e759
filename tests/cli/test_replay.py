"""Replay, without a hub: what goes to the target, in which order, and when."""

import asyncio
import json
from collections.abc import Awaitable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from polywire.cli.journal_replay import COLUMNS, Header, Renaming, Replayed, ReplayError, read_headers, replay
from polywire.errors import PolywireError
from polywire.journal.format import PLAIN_SCHEMA
from polywire.journal.kinds import RETAIN_FLAG

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = pa.schema([PLAIN_SCHEMA.field(name) for name in COLUMNS])


class RefusedError(PolywireError):
    pass


class Recorder:
    """A target that writes down what it got, and refuses channels named ``refused`` (late) and ``raises`` (at once)."""

    def __init__(self, *, hold: bool = False) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.options: list[tuple[Mapping[str, Header] | None, str | None, bool]] = []
        self.receipts: list[asyncio.Future[None]] = []
        self.hold = hold

    def publish(
        self, channel: str, body: bytes, *, headers: Mapping[str, Header] | None, content_type: str | None, retain: bool
    ) -> Awaitable[object]:
        if channel == "raises":
            raise RefusedError("not here")
        self.got.append((channel, body))
        self.options.append((headers, content_type, retain))
        receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.receipts.append(receipt)
        if channel == "refused":
            receipt.set_exception(RefusedError("no"))
        elif not self.hold:
            receipt.set_result(None)
        return receipt


def row(offset: int, channel: str, body: bytes = b"", *, after: float = 0.0, **more: Any) -> dict[str, Any]:
    empty = {"content_type": None, "headers": None, "attachments": None, "flags": 0}
    ts = START + timedelta(seconds=after)
    return {"offset": offset, "ts": ts, "channel": channel, "body": body, **empty, **more}


def batches(*rows: dict[str, Any], each: int = 2) -> Iterator[Any]:
    for start in range(0, len(rows), each):
        yield pa.RecordBatch.from_pylist(list(rows[start : start + each]), schema=SCHEMA)


def run(target: Recorder, *rows: dict[str, Any], **options: Any) -> Replayed:
    options.setdefault("speed", None)
    return asyncio.run(replay(batches(*rows), target, **options))


def test_messages_are_published_again_in_their_order() -> None:
    target = Recorder()
    rows = [row(n, f"a/{n % 3}", str(n).encode()) for n in range(7)]
    done = run(target, *rows)
    assert target.got == [(f"a/{n % 3}", str(n).encode()) for n in range(7)]
    assert (done.published, done.octets, done.offset, done.time) == (7, 7, 6, START)


def test_headers_content_type_and_retain_go_along() -> None:
    target = Recorder()
    headers = json.dumps({"unit": "C", "at": {"date": 1.5}, "n": 3})
    run(target, row(0, "a", headers=headers, content_type="text/plain", flags=RETAIN_FLAG | 2), row(1, "a", flags=2))
    date = datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)
    assert target.options == [({"unit": "C", "at": date, "n": 3}, "text/plain", True), (None, None, False)]


def test_no_headers_are_none() -> None:
    assert read_headers(None) is None
    assert read_headers("") is None


def test_what_belongs_to_the_hub_itself_is_left_out() -> None:
    target = Recorder()
    done = run(target, row(0, "$/signals/stop"), row(1, "a"), row(2, "$SYS/x"))
    assert target.got == [("a", b"")]
    assert (done.published, done.skipped, done.offset) == (1, 2, 2)


def test_messages_that_lose_their_attachments_are_counted() -> None:
    done = run(Recorder(), row(0, "a", attachments=[b"x"]), row(1, "a", attachments=[]), row(2, "a"))
    assert (done.published, done.stripped) == (3, 1)


@pytest.mark.parametrize(
    ("rules", "channel", "new"),
    [
        ([("a", "b")], "a", "b"),
        ([("a", "b")], "a/x/y", "b/x/y"),
        ([("a", "b")], "ab", "ab"),
        ([("a/x", "b"), ("a", "c")], "a/x/1", "b/1"),
        ([("a/x", "b"), ("a", "c")], "a/y", "c/y"),
        ([("", "again")], "a/x", "again/a/x"),
        ([("queue/jobs", "queue/more")], "queue/jobs", "queue/more"),
        ([], "a", "a"),
    ],
)
def test_channels_get_their_new_names(rules: list[tuple[str, str]], channel: str, new: str) -> None:
    assert Renaming(rules)(channel) == new
    target = Recorder()
    run(target, row(0, channel), rename=Renaming(rules))
    assert target.got == [(new, b"")]


@pytest.mark.parametrize("channel", ["refused", "raises"])
def test_the_first_message_that_is_not_taken_ends_it(channel: str) -> None:
    target = Recorder()
    with pytest.raises(ReplayError, match=f"offset 5, to {channel}, was not accepted") as caught:
        run(target, row(4, "a"), row(5, channel), row(6, "b"), in_flight=1)
    assert (caught.value.offset, caught.value.channel) == (5, channel)
    assert isinstance(caught.value.__cause__, RefusedError)
    assert ("b", b"") not in target.got


def test_what_is_under_way_when_one_is_not_taken_is_waited_for() -> None:
    target = Recorder()
    seen: list[Replayed] = []
    with pytest.raises(ReplayError) as caught:
        run(target, row(4, "a"), row(5, "refused"), row(6, "b"), row(7, "raises"), row(8, "c"), told=seen.append)
    assert caught.value.offset == 5
    assert [channel for channel, _ in target.got] == ["a", "refused", "b"]
    assert (seen[-1].published, seen[-1].failed, seen[-1].offset) == (2, 2, 7)


def test_told_to_keep_going_it_counts_what_was_not_taken() -> None:
    target = Recorder()
    done = run(target, row(4, "a"), row(5, "refused"), row(6, "raises"), row(7, "b"), keep_going=True)
    assert (done.published, done.failed) == (2, 2)
    assert sorted(error.offset for error in done.errors) == [5, 6]


def test_only_so_many_wait_for_their_acknowledgement() -> None:
    async def scenario() -> None:
        target = Recorder(hold=True)
        rows = [row(n, "a") for n in range(10)]
        task = asyncio.create_task(replay(batches(*rows), target, speed=None, in_flight=3))
        for taken in range(10):
            while len(target.receipts) < min(taken + 3, 10):
                assert not task.done()
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(target.receipts) == min(taken + 3, 10)
            target.receipts[taken].set_result(None)
        assert (await task).published == 10

    asyncio.run(scenario())


def test_it_tells_how_far_it_is() -> None:
    seen: list[int] = []

    def told(done: Replayed) -> None:
        seen.append(done.offset)

    run(Recorder(), *[row(n, "a") for n in range(5)], told=told)
    assert seen == [1, 3, 4, 4]


def test_nothing_to_replay_is_no_error() -> None:
    assert run(Recorder()).published == 0


def paced(speed: float | None, *after: float) -> tuple[list[float], Recorder]:
    """What a replay of messages at these seconds sleeps, in a loop whose time only passes while it sleeps."""
    slept: list[float] = []
    target = Recorder()

    class Loop(asyncio.SelectorEventLoop):
        now = 0.0

        def time(self) -> float:
            return self.now

    loop = Loop()

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        loop.now += seconds

    rows = [row(n, "a", after=seconds) for n, seconds in enumerate(after)]
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patch.setattr("polywire.cli.journal_replay.asyncio.sleep", sleep)
        assert runner.run(replay(batches(*rows), target, speed=speed)).published == len(after)
    return slept, target


@pytest.mark.parametrize(
    ("speed", "slept"), [(1.0, [1.0, 2.0, 0.5]), (2.0, [0.5, 1.0, 0.25]), (0.5, [2.0, 4.0, 1.0]), (None, [])]
)
def test_the_spacing_is_as_it_was_divided_by_the_speed(speed: float | None, slept: list[float]) -> None:
    assert paced(speed, 10.0, 11.0, 13.0, 13.0, 13.5)[0] == slept


def test_a_clock_that_went_back_holds_nothing_up() -> None:
    assert paced(1.0, 10.0, 5.0, 11.0)[0] == [1.0]
