"""``polywire journal replay``: a client of the hub behind the replay of the journal."""

import asyncio
import re
import shlex
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import typer

from polywire.cli.journal_options import Selection
from polywire.cli.journal_rows import open_place, scan
from polywire.cli.lifecycle import watched
from polywire.cli.output import progress
from polywire.client.adapter import can
from polywire.client.bus import Bus, connect
from polywire.errors import PolywireError
from polywire.journal.format import values
from polywire.journal.replay import COLUMNS, KINDS, Header, Renaming, Replayed, ReplayError, replay

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
