"""``polywire journal replay``: what goes to the client, and what is said about it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import polywire
from polywire.cli import journal_replay, main
from polywire.cli.journal_replay import BusTarget, Place, Renaming, replay
from polywire.client.bus import Bus
from polywire.errors import PolywireError
from polywire.journal.kinds import RETAIN_FLAG
from polywire.journal.log import Log
from tests.hub_process import running_hub
from tests.journal.rows import rows

Sent = tuple[str, bytes, dict[str, Any]]


class FakeQueue:
    def __init__(self, name: str, sent: list[Sent]) -> None:
        self._name = name
        self._sent = sent

    def put(self, body: bytes, **options: Any) -> Awaitable[None]:
        self._sent.append((f"into {self._name}", body, options))
        return asyncio.sleep(0)


class FakeBus:
    """As much of a bus as a replay needs; it refuses channels named ``refused``."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.sent: list[Sent] = []

    def publish(self, channel: str, body: bytes, **options: Any) -> Awaitable[None]:
        if channel == "refused":
            raise PolywireError("not allowed")
        self.sent.append((channel, body, options))
        return asyncio.sleep(0)

    def queue(self, name: str) -> FakeQueue:
        return FakeQueue(name, self.sent)


def publish(bus: FakeBus, channel: str, **options: Any) -> int:
    target = BusTarget(cast("Bus", bus))
    given: dict[str, Any] = {"headers": None, "content_type": None, "retain": False, **options}

    async def run() -> None:
        await target.publish(channel, b"body", **given)

    asyncio.run(run())
    return target.left


def test_topics_are_published_and_queues_are_put_into() -> None:
    bus = FakeBus("umq")
    options = {"headers": {"a": 1}, "content_type": "text/plain"}
    assert publish(bus, "a/b", retain=True, **options) == 0
    assert publish(bus, "queue/jobs/new", **options) == 0
    assert bus.sent == [("a/b", b"body", {**options, "retain": True}), ("into jobs/new", b"body", options)]


def test_what_a_protocol_can_not_carry_is_left_behind_and_counted() -> None:
    bus = FakeBus("fmqp")
    assert publish(bus, "a", headers={"a": 1}, content_type="text/plain", retain=True) == 2
    assert bus.sent == [("a", b"body", {"headers": None, "content_type": None, "retain": True})]
    assert publish(FakeBus("micromsg"), "a", headers={}, retain=True) == 1


@pytest.fixture
def buses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, FakeBus, dict[str, Any]]]:
    """Every replay goes to a bus of its own here, with its URL and options."""
    made: list[tuple[str, FakeBus, dict[str, Any]]] = []

    async def replay_to(url: str, batches: Iterator[Any], **options: Any) -> tuple[Any, int]:
        bus = FakeBus(url.partition("://")[0])
        made.append((url, bus, options))
        target = BusTarget(cast("Bus", bus), options["place"])
        done = await replay(
            options["place"].read(batches),
            target,
            speed=options["speed"],
            rename=Renaming(options["rules"]),
            keep_going=options["keep_going"],
            told=options["told"],
        )
        return done, target.left

    monkeypatch.setattr(journal_replay, "replay_to", replay_to)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    with Log(tmp_path / "journal", node="here") as log:
        log.append(rows(0, 4), state=False)
        log.append(
            rows(
                4,
                6,
                kind=["publish", "enqueue", "request", "ack", "publish", "publish"],
                channel=["a/x", "queue/jobs", "s/m", "queue/jobs", "$/broker", "refused"],
                headers=['{"unit":"C"}', None, None, None, None, None],
                attachments=[[b"x"], None, None, None, None, None],
                flags=[RETAIN_FLAG, 0, 0, 0, 0, 0],
            ),
            state=False,
        )
        yield log.path


def run(journal: Path, *words: str) -> Result:
    return CliRunner().invoke(main.app, ["journal", "replay", str(journal), *words])


def test_messages_of_topics_and_queues_are_published_again(
    journal: Path, buses: list[tuple[str, FakeBus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max", "--to", "9", "--url", "umq://127.0.0.1:9")
    assert result.exit_code == 0, result.output
    ((url, bus, options),) = buses
    assert (url, options["speed"], options["rules"]) == ("umq://127.0.0.1:9", None, [])
    assert [channel for channel, _, _ in bus.sent] == ["a/0/b", "a/1/b", "a/2/b", "a/0/b", "a/x", "into jobs"]
    assert bus.sent[4][2] == {"headers": {"unit": "C"}, "content_type": None, "retain": True}
    assert result.stdout.startswith("published 6 messages (36 bytes) in ")
    assert result.stderr.splitlines() == [
        "1 are the hub's own ($…) and were skipped",
        "1 were sent without their attachments",
    ]


def test_what_the_protocol_left_behind_is_told(journal: Path, buses: list[tuple[str, FakeBus, dict[str, Any]]]) -> None:
    result = run(journal, "--speed", "max", "--channel", "a/x", "--url", "sabc://127.0.0.1:9")
    assert result.exit_code == 0
    assert len(buses[0][1].sent) == 1
    assert "1 headers, content types or retain flags were dropped" in result.stderr


def test_a_replay_goes_under_other_names_and_at_another_speed(
    journal: Path, buses: list[tuple[str, FakeBus, dict[str, Any]]]
) -> None:
    words = ["--from", "1", "--to", "3", "--speed", "1000", "--rename", "a/1=b", "--rename", "=c"]
    assert run(journal, *words).exit_code == 0
    assert [channel for channel, _, _ in buses[0][1].sent] == ["b/b", "c/a/2/b"]
    assert buses[0][2]["speed"] == 1000.0


def test_a_message_that_is_not_taken_ends_it_and_tells_how_to_go_on(
    journal: Path, buses: list[tuple[str, FakeBus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max")
    assert result.exit_code == 1
    assert "the message of offset 9, to refused, was not accepted: not allowed" in result.stderr
    assert "--from 9 goes on with this one" in result.stderr
    assert len(buses) == 1


def test_told_to_keep_going_it_names_what_was_not_taken(
    journal: Path, buses: list[tuple[str, FakeBus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max", "--keep-going")
    assert result.exit_code == 1
    assert result.stdout.startswith("published 6 messages")
    assert "1 were not accepted" in result.stderr
    assert "offset 9" in result.stderr
    assert len(buses) == 1


@pytest.mark.parametrize("protocol", ["fmqp", "mqtt", "umq"])
def test_a_replay_reaches_the_subscribers_of_a_running_hub(journal: Path, protocol: str) -> None:
    with running_hub() as hub:
        url = f"{protocol}://127.0.0.1:{hub.port(protocol)}"
        words = [
            "-m",
            "polywire",
            "journal",
            "replay",
            str(journal),
            "--to",
            "9",
            "--speed",
            "max",
            "--rename",
            "a=again",
        ]

        async def listen() -> list[tuple[str, bytes]]:
            async with (
                polywire.connect(f"mqtt://127.0.0.1:{hub.port('mqtt')}") as bus,
                bus.subscribe("again/**") as messages,
                bus.queue("jobs") as jobs,
            ):
                process = await asyncio.create_subprocess_exec(sys.executable, *words, "--url", url)
                assert await process.wait() == 0
                found = [await anext(messages) for _ in range(5)]
                found.append(await anext(jobs))
                return [(message.channel, message.body) for message in found]

        assert asyncio.run(asyncio.wait_for(listen(), 40)) == [
            ("again/0/b", b"body 0"),
            ("again/1/b", b"body 1"),
            ("again/2/b", b"body 2"),
            ("again/0/b", b"body 3"),
            ("again/x", b"body 4"),
            ("queue/jobs", b"body 5"),
        ]


def test_nobody_to_replay_to_is_said_so(journal: Path) -> None:
    result = run(journal, "--url", "fmqp://127.0.0.1:1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


class Never:
    """An acknowledgement that does not come; waiting for it is interrupted."""

    def __init__(self, how: signal.Signals) -> None:
        self._signal = how

    def __await__(self) -> Generator[Any, None, None]:
        os.kill(os.getpid(), self._signal)
        return (yield from asyncio.sleep(600).__await__())


class StuckBus(FakeBus):
    """Acknowledges some messages and no more."""

    def __init__(self, acknowledged: int, how: signal.Signals) -> None:
        super().__init__("umq")
        self._left = acknowledged
        self._signal = how

    def publish(self, channel: str, body: bytes, **options: Any) -> Awaitable[None]:
        self.sent.append((channel, body, options))
        self._left -= 1
        return asyncio.sleep(0) if self._left >= 0 else Never(self._signal)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_tells_with_which_command_to_go_on(
    journal: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    bus = StuckBus(2, how)
    monkeypatch.setattr(journal_replay, "connect", lambda *_, **__: contextlib.nullcontext(bus))
    words = ["--speed", "max", "--rename", "a=b c", "--channel", "a/**", "--url", "umq://me:secret@127.0.0.1:9"]
    result = run(journal, "--to", "6", *words)
    assert result.exit_code == 130
    first, second = result.stderr.splitlines()
    assert first.startswith("polywire journal: interrupted at offset 2, after 2 messages (")
    assert second.strip() == (
        f"polywire journal replay {journal} --from 2 --to 6 --channel 'a/**' --speed max --url umq://me@127.0.0.1:9 "
        "--rename 'a=b c'"
    )


def test_where_a_replay_goes_on_after_rows_that_are_left_out_or_refused() -> None:
    place = Place()
    batch = pa.RecordBatch.from_pydict({"offset": [3, 5, 8, 9], "channel": ["a", "$/b", "c", "d"]})
    assert Place().next is None
    assert next(place.read(iter([batch]))) is batch
    assert place.next == 3
    receipts = [place.sent(place.take(), asyncio.sleep(0)) for _ in range(2)]
    assert (place.next, place.in_flight) == (3, 2)

    async def settle() -> None:
        await receipts[0]
        assert place.next == 8
        await receipts[1]

    asyncio.run(settle())
    assert (place.next, place.acknowledged) == (9, 2)
    assert place.take() == 9  # refused at once
    assert place.next == 10
