"""``polywire journal replay``: a client of the hub behind the replay of the journal."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import typer

from polywire.cli.journal_options import Selection
from polywire.cli.progress import progress
from polywire.cli.scanning import open_place, scan
from polywire.client.bus import Bus, connect
from polywire.client.features import FEATURES
from polywire.errors import PolywireError
from polywire.journal.replay import COLUMNS, KINDS, Header, Renaming, Replayed, ReplayError, replay

QUEUE: Final = "queue/"


class ReplayStopped(PolywireError):  # noqa: N818 - what happened
    """A replay ended before its end."""


class BusTarget:
    """A ``polywire.connect`` connection that messages are published on.

    What its protocol can't carry is left behind, and counted: ``left`` are headers, content types and retain flags.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._headers = bus.protocol in FEATURES["headers"]
        self._content_type = bus.protocol in FEATURES["content_type"]
        self._retain = bus.protocol in FEATURES["retain"]
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
        if channel.startswith(QUEUE):
            return self._bus.queue(channel[len(QUEUE) :]).put(body, headers=headers, content_type=content_type)
        return self._bus.publish(channel, body, headers=headers, content_type=content_type, retain=retain)


async def replay_to(
    url: str,
    batches: Iterator[Any],
    *,
    speed: float | None,
    rules: list[tuple[str, str]],
    keep_going: bool,
    token: str | None,
    told: Callable[[Replayed], None],
) -> tuple[Replayed, int]:
    """Connect and replay. Returns how that went, and what the protocol left behind."""
    async with connect(url, token=token) as bus:
        target = BusTarget(bus)
        done = await replay(batches, target, speed=speed, rename=Renaming(rules), keep_going=keep_going, told=told)
        return done, target.left


def run_replay(url: str, batches: Iterator[Any], **options: Any) -> tuple[Replayed, int]:
    """The same from a program that is not asynchronous."""
    return asyncio.run(replay_to(url, batches, **options))


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
    found = open_place(place, token if place.startswith("http") else None)
    until = found.end_offset if selection.until is None else selection.until
    wanted = Selection(selection.since, until, selection.channels, KINDS)
    begin = found.first_offset
    started = time.monotonic()
    last = Replayed()

    with progress("replaying", found.end_offset - begin) as advance:

        def told(done: Replayed) -> None:
            nonlocal last
            last = done
            advance(done.offset - begin, f"{done.published} messages")

        batches = iter(scan(found, wanted, columns=list(COLUMNS)))
        try:
            done, left = run_replay(
                url, batches, speed=speed, rules=rules, keep_going=keep_going, token=token, told=told
            )
        except ReplayError as error:
            words = f"{last.published} messages were published; --from {error.offset} goes on with this one"
            if last.offset > error.offset:
                words += f" (those up to offset {last.offset} were under way already)"
            raise ReplayStopped(f"{error}\n{words}") from error
    seconds = time.monotonic() - started
    typer.echo(
        f"published {done.published} messages ({done.octets} octets) in {seconds:.1f} s, "
        f"{done.published / max(seconds, 1e-9):.0f} a second"
    )
    remarks = (
        (done.failed, "were not taken"),
        (done.skipped, "belong to the hub itself ($…) and were left out"),
        (done.stripped, "went without their attachments"),
        (left, "headers, content types or retain flags were left behind: this protocol has none"),
    )
    for count, words in remarks:
        if count:
            typer.echo(f"{count} {words}", err=True)
    for failure in done.errors:
        typer.echo(f"  {failure}", err=True)
    if done.failed:
        raise typer.Exit(1)
