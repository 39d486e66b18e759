"""``polywire journal replay``: what goes to the client, and what is said about it."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from polywire.cli import main, replaying
from polywire.cli.replaying import BusTarget
from polywire.errors import PolywireError
from polywire.journal.kinds import RETAIN_FLAG
from polywire.journal.log import Log
from polywire.journal.replay import Renaming, replay
from tests.journal.rows import rows

FEATURES = {"headers": ("umq",), "content_type": ("umq",), "retain": ("umq", "mqtt")}
Sent = tuple[str, bytes, dict[str, Any]]


class Queue:
    def __init__(self, name: str, sent: list[Sent]) -> None:
        self._name = name
        self._sent = sent

    def put(self, body: bytes, **options: Any) -> Awaitable[None]:
        self._sent.append((f"into {self._name}", body, options))
        return asyncio.sleep(0)


class Bus:
    """As much of a bus as a replay needs; it refuses channels named ``refused``."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.sent: list[Sent] = []

    def publish(self, channel: str, body: bytes, **options: Any) -> Awaitable[None]:
        if channel == "refused":
            raise PolywireError("not allowed")
        self.sent.append((channel, body, options))
        return asyncio.sleep(0)

    def queue(self, name: str) -> Queue:
        return Queue(name, self.sent)


def publish(bus: Bus, channel: str, **options: Any) -> int:
    target = BusTarget(bus, FEATURES)
    given: dict[str, Any] = {"headers": None, "content_type": None, "retain": False, **options}

    async def run() -> None:
        await target.publish(channel, b"body", **given)

    asyncio.run(run())
    return target.left


def test_topics_are_published_and_queues_are_put_into() -> None:
    bus = Bus("umq")
    options = {"headers": {"a": 1}, "content_type": "text/plain"}
    assert publish(bus, "a/b", retain=True, **options) == 0
    assert publish(bus, "queue/jobs/new", **options) == 0
    assert bus.sent == [("a/b", b"body", {**options, "retain": True}), ("into jobs/new", b"body", options)]


def test_what_a_protocol_can_not_carry_is_left_behind_and_counted() -> None:
    bus = Bus("fmqp")
    assert publish(bus, "a", headers={"a": 1}, content_type="text/plain", retain=True) == 3
    assert bus.sent == [("a", b"body", {"headers": None, "content_type": None, "retain": False})]
    assert publish(Bus("mqtt"), "a", headers={}, retain=True) == 0


@pytest.fixture
def buses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Bus, dict[str, Any]]]:
    """Every replay goes to a bus of its own here, with its URL and options."""
    made: list[tuple[str, Bus, dict[str, Any]]] = []

    async def replay_to(url: str, batches: Iterator[Any], **options: Any) -> tuple[Any, int]:
        bus = Bus(url.partition("://")[0])
        made.append((url, bus, options))
        target = BusTarget(bus, FEATURES)
        done = await replay(
            batches,
            target,
            speed=options["speed"],
            rename=Renaming(options["rules"]),
            keep_going=options["keep_going"],
            told=options["told"],
        )
        return done, target.left

    monkeypatch.setattr(replaying, "replay_to", replay_to)
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
    journal: Path, buses: list[tuple[str, Bus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max", "--to", "9", "--url", "umq://127.0.0.1:9")
    assert result.exit_code == 0, result.output
    ((url, bus, options),) = buses
    assert (url, options["speed"], options["rules"]) == ("umq://127.0.0.1:9", None, [])
    assert [channel for channel, _, _ in bus.sent] == ["a/0/b", "a/1/b", "a/2/b", "a/0/b", "a/x", "into jobs"]
    assert bus.sent[4][2] == {"headers": {"unit": "C"}, "content_type": None, "retain": True}
    assert result.stdout.startswith("published 6 messages (36 octets) in ")
    assert result.stderr.splitlines() == [
        "1 belong to the hub itself ($…) and were left out",
        "1 went without their attachments",
    ]


def test_what_the_protocol_left_behind_is_told(journal: Path, buses: list[tuple[str, Bus, dict[str, Any]]]) -> None:
    result = run(journal, "--speed", "max", "--channel", "a/x", "--url", "fmqp://127.0.0.1:9")
    assert result.exit_code == 0
    assert len(buses[0][1].sent) == 1
    assert "2 headers, content types or retain flags were left behind" in result.stderr


def test_a_replay_goes_under_other_names_and_at_another_speed(
    journal: Path, buses: list[tuple[str, Bus, dict[str, Any]]]
) -> None:
    words = ["--from", "1", "--to", "3", "--speed", "1000", "--rename", "a/1=b", "--rename", "=c"]
    assert run(journal, *words).exit_code == 0
    assert [channel for channel, _, _ in buses[0][1].sent] == ["b/b", "c/a/2/b"]
    assert buses[0][2]["speed"] == 1000.0


def test_a_message_that_is_not_taken_ends_it_and_tells_how_to_go_on(
    journal: Path, buses: list[tuple[str, Bus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max")
    assert result.exit_code == 1
    assert "the message of offset 9, to refused, was not taken: not allowed" in result.stderr
    assert "--from 9 goes on with this one" in result.stderr
    assert len(buses) == 1


def test_told_to_keep_going_it_names_what_was_not_taken(
    journal: Path, buses: list[tuple[str, Bus, dict[str, Any]]]
) -> None:
    result = run(journal, "--speed", "max", "--keep-going")
    assert result.exit_code == 1
    assert result.stdout.startswith("published 6 messages")
    assert "1 were not taken" in result.stderr
    assert "offset 9" in result.stderr
    assert len(buses) == 1
