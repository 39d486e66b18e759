"""``polywire journal replay``: publish journaled messages again, in order and with their original timing.

``replay`` knows neither sockets nor clients: batches of rows come in, and a ``Target`` takes the messages. The command
uses a bus as the target.
"""

import asyncio
import json
import re
import shlex
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import typer

from polywire.cli.journal_contents import open_place, scan
from polywire.cli.lifecycle import watched
from polywire.cli.options import Selection
from polywire.cli.output import progress
from polywire.client.adapter import can
from polywire.client.bus import Bus, connect
from polywire.errors import PolywireError
from polywire.journal.format import values
from polywire.journal.kinds import RETAIN_FLAG

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
    batches: Iterator[pa.RecordBatch],
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


QUEUE: Final = "queue/"


class ReplayStopped(PolywireError):  # noqa: N818 - what happened
    """A replay ended before its end."""


class ReplayInterrupted(ReplayStopped):
    """Ctrl-C or SIGTERM ended a replay."""


class BusTarget:
    """A ``polywire.connect`` connection that messages are published on.

    What its protocol can't carry is left behind, and counted: ``left`` are headers, content types and retain flags.
    """

    def __init__(self, bus: Bus, place: "Place | None" = None) -> None:
        self._bus = bus
        self._place = place or Place()
        self._headers = can(bus.protocol, "headers")
        self._content_type = can(bus.protocol, "content_type")
        self._retain = can(bus.protocol, "retain")
        self.left = 0

    def publish(
        self, channel: str, body: bytes, *, headers: Mapping[str, Header] | None, content_type: str | None, retain: bool
    ) -> Awaitable[object]:
        """Publish, or put into a queue."""
        if headers and not self._headers:
            headers, self.left = None, self.left + 1
        if content_type is not None and not self._content_type:
            content_type, self.left = None, self.left + 1
        if retain and not self._retain:
            retain, self.left = False, self.left + 1
        offset = self._place.take()
        if channel.startswith(QUEUE):
            queue = self._bus.queue(channel[len(QUEUE) :])
            return self._place.sent(offset, queue.put(body, headers=headers, content_type=content_type))
        return self._place.sent(
            offset, self._bus.publish(channel, body, headers=headers, content_type=content_type, retain=retain)
        )


class Place:
    """How far a replay has come: which rows were read and not published, or published and not acknowledged.

    ``read`` passes the batches on to the replay, which publishes their rows one by one, in order; ``take`` and ``sent``
    are called for each.
    """

    def __init__(self) -> None:
        self._unsent: deque[int] = deque()
        self._in_flight: OrderedDict[int, None] = OrderedDict()
        self._end: int | None = None
        self.acknowledged = 0

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, with a note of what is in them."""
        for batch in batches:
            offsets, channels = values(batch.column("offset")), values(batch.column("channel"))
            self._unsent.extend(
                offset
                for offset, channel in zip(offsets, channels, strict=True)
                if not channel.startswith("$")  # the replay leaves these out
            )
            self._end = offsets[-1] + 1 if offsets else self._end
            yield batch

    def take(self) -> int | None:
        """The offset of the row that is published next."""
        return self._unsent.popleft() if self._unsent else None

    def sent(self, offset: int | None, receipt: Awaitable[object]) -> Awaitable[object]:
        """A row is on its way. Its receipt, to be awaited."""
        if offset is None:
            return receipt
        self._in_flight[offset] = None
        return _Receipt(self, offset, receipt)

    def settled(self, offset: int, *, taken: bool) -> None:
        """A row was acknowledged, or refused."""
        self._in_flight.pop(offset, None)
        self.acknowledged += taken

    @property
    def in_flight(self) -> int:
        """How many were published and not acknowledged."""
        return len(self._in_flight)

    @property
    def next(self) -> int | None:
        """The first row that is still to be published, or to be acknowledged; None before any was read."""
        return next(iter(self._in_flight), self._unsent[0] if self._unsent else self._end)


class _Receipt:
    """A receipt that reports its offset when it is done."""

    def __init__(self, place: Place, offset: int, receipt: Awaitable[object]) -> None:
        self._place = place
        self._offset = offset
        self._receipt = receipt

    def __await__(self) -> Generator[Any, Any, object]:
        try:
            outcome = yield from self._receipt.__await__()
        except Exception:
            self._place.settled(self._offset, taken=False)
            raise
        self._place.settled(self._offset, taken=True)
        return outcome


async def replay_to(
    url: str,
    batches: Iterator[pa.RecordBatch],
    *,
    place: Place,
    speed: float | None,
    rules: list[tuple[str, str]],
    keep_going: bool,
    token: str | None,
    told: Callable[[Replayed], None],
) -> tuple[Replayed, int]:
    """Connect and replay. Returns how that went, and what the protocol left behind."""
    async with connect(url, token=token) as bus:
        target = BusTarget(bus, place)
        done = await replay(
            place.read(batches), target, speed=speed, rename=Renaming(rules), keep_going=keep_going, told=told
        )
        return done, target.left


def run_replay(url: str, batches: Iterator[pa.RecordBatch], **options: Any) -> tuple[Replayed, int]:
    """The same from a program that is not asynchronous."""
    return asyncio.run(watched(replay_to(url, batches, **options)))


def _interrupted(reached: Place, rest: Callable[[int], str]) -> str:
    """Where a replay was interrupted, and how to continue."""
    if reached.next is None:
        return "interrupted before any message was published"
    words = f"interrupted at offset {reached.next}, after {reached.acknowledged} messages"
    if reached.in_flight:
        words += f" ({reached.in_flight} more were sent but not acknowledged yet, and will be sent again)"
    return f"{words}; go on with:\n  {rest(reached.next)}"


def _written(place: int | datetime) -> str:
    return place.isoformat() if isinstance(place, datetime) else str(place)


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", url)


def print_replay(
    place: str,
    selection: Selection,
    *,
    url: str,
    speed: float | None,
    rules: list[tuple[str, str]],
    keep_going: bool,
    token: str | None,
) -> None:
    """Replay what is selected, with a bar, and say at the end what was done."""
    found = open_place(place, token)
    until = found.end_offset if selection.until is None else selection.until
    wanted = Selection(selection.since, until, selection.channels, KINDS)
    begin = found.first_offset
    started = time.monotonic()
    last = Replayed()
    reached = Place()

    def rest(offset: int) -> str:
        """The command that continues from there."""
        words = ["polywire", "journal", "replay", place, "--from", str(offset), "--to", _written(until)]
        words += [word for channel in selection.channels for word in ("--channel", channel)]
        words += ["--speed", "max" if speed is None else f"{speed:g}", "--url", _without_password(url)]
        words += [word for old, new in rules for word in ("--rename", f"{old}={new}")]
        return shlex.join(words + ["--keep-going"] * keep_going)

    with progress("replaying", found.end_offset - begin) as advance:

        def told(done: Replayed) -> None:
            nonlocal last
            last = done
            advance(done.offset - begin, f"{done.published} messages")

        batches = iter(scan(found, wanted, columns=list(COLUMNS)))
        try:
            done, left = run_replay(
                url,
                batches,
                place=reached,
                speed=speed,
                rules=rules,
                keep_going=keep_going,
                token=token,
                told=told,
            )
        except ReplayError as error:
            words = f"{last.published} messages were published; --from {error.offset} goes on with this one"
            if last.offset > error.offset:
                words += f" (those up to offset {last.offset} were in flight already)"
            raise ReplayStopped(f"{error}\n{words}:\n  {rest(error.offset)}") from error
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise ReplayInterrupted(_interrupted(reached, rest)) from None
    seconds = time.monotonic() - started
    typer.echo(
        f"published {done.published} messages ({done.octets} bytes) in {seconds:.1f} s, "
        f"{done.published / max(seconds, 1e-9):.0f} a second"
    )
    remarks = (
        (done.failed, "were not accepted"),
        (done.skipped, "are the hub's own ($…) and were skipped"),
        (done.stripped, "were sent without their attachments"),
        (left, "headers, content types or retain flags were dropped: this protocol has none"),
    )
    for count, words in remarks:
        if count:
            typer.echo(f"{count} {words}", err=True)
    for failure in done.errors:
        typer.echo(f"  {failure}", err=True)
    if done.failed:
        raise typer.Exit(1)
