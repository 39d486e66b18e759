"""What the commands of ``polywire journal`` share: their options, and how errors end them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

import typer

from polywire.cli.options import config_errors_reported, fail
from polywire.errors import PolywireError

ALLOWED: Final = (
    "an offset (1234), a time in UTC (2026-11-15, 2026-11-15T10:30, 2026-11-15T10:30:00+01:00), "
    "how long ago (-1h, -30min; units are ms, s, min, h, d), or now"
)


def parse_position(text: str, now: datetime) -> int | datetime:
    """The offset or time that ``text`` names. A ``ValueError`` says what is allowed."""
    words = text.strip()
    if words.isascii() and words.isdigit():
        return int(words)
    try:
        if words == "now":
            return now
        if words.startswith("-"):
            from polywire.server.config.kinds import parse_seconds  # noqa: PLC0415 - slow to import

            return now - timedelta(seconds=parse_seconds(words[1:]))
        found = datetime.fromisoformat(words)
    except (ValueError, OverflowError) as error:
        why = f" ({error})" if words.startswith("-") else ""
        raise ValueError(f"{text!r} is not a position in a journal{why}; allowed is {ALLOWED}") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOURNAL]",
        help="The folder of a journal, a URI (file://…, s3://…) or a hub's address (http://127.0.0.1:7100). "
        "Without it, journal.path of polywire.toml or its default.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="POLYWIRE_TOKEN", help="Token for a hub that requires one.", show_envvar=True),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="PLACE", help="Start here: an offset, a time in UTC, or how long ago (-1h, -30min)."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--to", metavar="PLACE", help="End before this: an offset, a time in UTC, or how long ago."),
]
Channels = Annotated[
    list[str] | None,
    typer.Option(
        "--channel", metavar="PATTERN", help="Only these channels; * is one level, ** any number. May be repeated."
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="Only rows of this kind, such as publish. May be repeated."),
]
Protocols = Annotated[
    list[str] | None,
    typer.Option("--protocol", metavar="NAME", help="Only rows of this protocol, such as mqtt. May be repeated."),
]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are wanted. ``since`` and ``until`` are offsets or times."""

    since: int | datetime | None = None
    until: int | datetime | None = None
    channels: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()


def select(
    since: str | None,
    until: str | None,
    channels: list[str] | None,
    kinds: list[str] | None = None,
    protocols: list[str] | None = None,
) -> Selection:
    """The options as a selection; what is wrong with one ends the command."""
    from polywire.journal.kinds import KINDS  # noqa: PLC0415 - only these commands need them
    from polywire.registry import names  # noqa: PLC0415 - as above

    now = datetime.now(UTC)
    places = []
    for option, text in (("--from", since), ("--to", until)):
        try:
            places.append(None if text is None else parse_position(text, now))
        except ValueError as error:
            fail("journal", f"{option}: {error}", code=2)
    for option, given, known in (("--kind", kinds, KINDS), ("--protocol", protocols, names())):
        for word in given or ():
            if word not in known:
                fail("journal", f"{option}: {word!r} is none of {', '.join(known)}", code=2)
    return Selection(places[0], places[1], tuple(channels or ()), tuple(kinds or ()), tuple(protocols or ()))


def journal_place(place: str | None) -> str:
    """The journal a command is about."""
    if place is not None:
        return place
    from polywire.server.config import load  # noqa: PLC0415 - slow to import, and not every command needs it

    with config_errors_reported():
        return str(load().config.journal.path)


@contextmanager
def errors_reported() -> Iterator[None]:
    """End with 1 and one line that says what is wrong. A reader of our output that has seen enough is no error."""
    try:
        yield
    except BrokenPipeError:
        # Python would complain once more when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except FileNotFoundError as error:
        fail("journal", f"{error.filename or error}: no such file or directory")
    except (PolywireError, OSError, ValueError) as error:
        fail("journal", str(error))


class Form(StrEnum):
    """How rows are written."""

    human = "human"
    json = "json"
    arrow = "arrow"


class OnCorrupt(StrEnum):
    """What happens where rows can't be read."""

    fail = "fail"
    gap = "gap"
    skip = "skip"


Format = Annotated[
    Form, typer.Option("--format", "-o", help="Lines for people, JSON lines, or an Arrow IPC stream for programs.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAME,…", help="Only these columns; with --format json or arrow."),
]
Corrupt = Annotated[
    OnCorrupt,
    typer.Option("--on-corrupt", help="Where rows can't be read: fail, show a row of kind gap, or skip them silently."),
]
