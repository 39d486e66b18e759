"""Replay: publish journaled messages again, in order and with their original timing.

The core knows neither sockets nor clients: batches of rows come in, and a ``Target`` takes the messages. ``polywire
journal replay`` uses a client as the target.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from polywire.errors import PolywireError
from polywire.journal.kinds import RETAIN_FLAG

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("offset", "ts", "channel", "content_type", "headers", "attachments", "body", "flags")
KINDS: Final = ("publish", "enqueue")
"""What a replay reads of the journal."""

IN_FLIGHT: Final = 1000
"""Messages that may wait for their acknowledgement at once."""

ERRORS_KEPT: Final = 10

Header = str | int | float | datetime


class Target(Protocol):
    """Where messages go. Each call puts one behind the last; what it returns is awaited to know that it went well."""

    def publish(
        self, channel: str, body: bytes, *, headers: Mapping[str, Header] | None, content_type: str | None, retain: bool
    ) -> Awaitable[object]:
        """Publish, or put into a queue where the channel is ``queue/<name>``."""


class ReplayError(PolywireError):
    """A message was not accepted. ``offset`` is that of its row: a replay from there continues where this one ended."""

    def __init__(self, offset: int, channel: str, cause: Exception) -> None:
        super().__init__(f"the message of offset {offset}, to {channel}, was not accepted: {cause}")
        self.offset = offset
        self.channel = channel


@dataclass(slots=True)
class Replayed:
    """How far a replay is.

    ``published`` were taken, ``failed`` were not (``errors`` are the first of them), ``skipped`` begin with ``$`` and
    belong to the hub they were published on, ``stripped`` went without the attachments they had. ``offset`` and
    ``time`` are the last row's.
    """

    published: int = 0
    octets: int = 0
    failed: int = 0
    skipped: int = 0
    stripped: int = 0
    offset: int = -1
    time: datetime | None = None
    errors: list[ReplayError] = field(default_factory=list)


class Renaming:
    """New names for channels: each rule is a channel's name, or its first levels, and what takes their place.

    An empty name is the prefix of all channels. The first matching rule applies.
    """

    def __init__(self, rules: Iterable[tuple[str, str]] = ()) -> None:
        self._rules = tuple(rules)

    def __call__(self, channel: str) -> str:
        """The new name."""
        for old, new in self._rules:
            if channel == old:
                return new
            if not old:
                return f"{new}/{channel}"
            if channel.startswith(old + "/"):
                return new + channel[len(old) :]
        return channel


async def replay(
    batches: Iterator["pa.RecordBatch"],
    target: Target,
    *,
    speed: float | None = 1.0,
    rename: Callable[[str], str] = Renaming(),  # noqa: B008 - it never changes
    keep_going: bool = False,
    in_flight: int = IN_FLIGHT,
    told: Callable[[Replayed], None] | None = None,
) -> Replayed:
    """Publish the rows of ``batches`` (``COLUMNS``, of ``KINDS``) in order, and wait for their acknowledgements.

    The time between two messages is the original one, divided by ``speed``; None is as fast as the target accepts them.
    A message that is not accepted ends it with a ``ReplayError``, unless ``keep_going``; those in flight by then
    (``in_flight`` at most) are awaited. ``told`` is called repeatedly with the same object.
    """
    done = Replayed()
    waiting: deque[tuple[int, str, int, Awaitable[object]]] = deque()
    pace = None if speed is None else _Pace(speed)

    def failed(offset: int, channel: str, cause: Exception) -> None:
        failure = ReplayError(offset, channel, cause)
        failure.__cause__ = cause
        done.failed += 1
        if len(done.errors) < ERRORS_KEPT:
            done.errors.append(failure)

    async def settle(most: int) -> None:
        """Wait until no more than ``most`` are in flight; all of them, once one failed that must not."""
        while len(waiting) > (0 if done.failed and not keep_going else most):
            offset, channel, size, receipt = waiting.popleft()
            try:
                await receipt
            except (PolywireError, OSError) as error:
                failed(offset, channel, error)
            else:
                done.published += 1
                done.octets += size
        if done.failed and not keep_going:
            _tell(told, done)
            raise min(done.errors, key=lambda failure: failure.offset)

    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for row in batch.to_pylist():
            done.offset, done.time = row["offset"], row["ts"]
            if row["channel"].startswith("$"):
                done.skipped += 1
                continue
            if pace is not None and pace.seconds_until(row["ts"]) > 0:
                await settle(0)
                _tell(told, done)
                await asyncio.sleep(max(0.0, pace.seconds_until(row["ts"])))
            done.stripped += bool(row["attachments"])
            channel = rename(row["channel"])
            try:
                receipt = target.publish(
                    channel,
                    row["body"],
                    headers=read_headers(row["headers"]),
                    content_type=row["content_type"],
                    retain=bool(row["flags"] & RETAIN_FLAG),
                )
            except (PolywireError, OSError) as error:
                failed(row["offset"], channel, error)
            else:
                waiting.append((row["offset"], channel, len(row["body"]), receipt))
            await settle(in_flight - 1)
        _tell(told, done)
    await settle(0)
    _tell(told, done)
    return done


def read_headers(text: str | None) -> dict[str, Header] | None:
    """The headers of a row: a JSON object, in which ``{"date": seconds}`` is a date."""
    if not text:
        return None
    found: dict[str, Any] = json.loads(text)
    return {
        name: datetime.fromtimestamp(value["date"], UTC) if isinstance(value, dict) else value
        for name, value in found.items()
    }


class _Pace:
    """When each message is due."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._clock = asyncio.get_running_loop().time
        self._begin = self._clock()
        self._first: datetime | None = None

    def seconds_until(self, time: datetime) -> float:
        if self._first is None:
            self._first = time
        return self._begin + (time - self._first).total_seconds() / self._speed - self._clock()


def _tell(told: Callable[[Replayed], None] | None, done: Replayed) -> None:
    if told is not None:
        told(done)
