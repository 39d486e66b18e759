"""The options that several commands share: the configuration, the connection to a server, what to read of a journal.

A command decorated with ``connecting`` has the options of a connection, and gets them as one ``Connection``, whose
``open`` returns the bus. Clients and configuration are imported where they are used, so that help and completion stay
quick.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from polywire.errors import PolywireError

if TYPE_CHECKING:
    from polywire.client.bus import Bus
    from polywire.client.transport import Opening

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration. Without it, polywire.toml in the working directory if it is there.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Set any key; overrides the file. The value is TOML, or else a string. May be repeated.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow listening beyond loopback without [auth]."),
]


def examples(*commands: str) -> str:
    """The end of a help text: commands to copy."""
    # Click keeps the lines of a paragraph that begins so.
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def fail(command: str, message: str, *, code: int = 1) -> NoReturn:
    """Say what is wrong and end."""
    typer.echo(f"polywire {command}: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def config_errors_reported() -> Iterator[None]:
    """Print the mistakes in a configuration, one per line, and exit with 1."""
    from polywire.server.config import ConfigError  # noqa: PLC0415 - slow to import, and not every command needs it

    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"polywire: {problem}", err=True)
        raise typer.Exit(1) from None


DEFAULT_URL: Final = "umq://127.0.0.1:7101"
"""A hub on this machine, over the protocol that carries most of what the commands can say."""

DEMAND_URL: Final = "fmqp://127.0.0.1:7103"
"""The same for demand, which only FMQP supports."""

CONNECT_TIME: Final = 10.0

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help="URL of the server, such as mqtt://host or fmqps://host:7103. Default: POLYWIRE_URL, or a local hub.",
    ),
]
User = Annotated[
    str | None,
    typer.Option("--user", help="User name; the password is taken from POLYWIRE_PASSWORD or the URL.", metavar="NAME"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with a token. Default: the token in POLYWIRE_TOKEN."),
]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="CA certificates to trust for TLS, instead of the system's."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--cert", metavar="FILE", help="Client certificate for TLS; its key may be in the same file."),
]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The key of --cert.")]
ConnectTime = Annotated[
    float,
    typer.Option("--connect-time", metavar="SECONDS", min=0.001, help="How long to wait for the connection."),
]
Qos = Annotated[int, typer.Option("--qos", min=0, max=2, help="MQTT only: quality of service.")]
ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id", metavar="NAME", help="MQTT and sABC only: client id; the server then keeps the session."
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to connect, and how."""

    url: str | None = None
    user: str | None = None
    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    connect_time: float = CONNECT_TIME
    qos: int = 1
    client_id: str | None = None
    default: str = DEFAULT_URL

    def at(self, url: str) -> "Connection":
        """The same connection with another URL."""
        return replace(self, url=url)

    def open(self) -> "Opening[Bus]":
        """A bus, to be entered. Its client is loaded, so that entering takes no longer than connecting does."""
        from polywire.client.adapter import adapter_of  # noqa: PLC0415 - see above
        from polywire.client.address import parse  # noqa: PLC0415 - see above
        from polywire.client.bus import connect  # noqa: PLC0415 - see above
        from polywire.client.tls import client_context  # noqa: PLC0415 - see above

        url = self.url or os.environ.get("POLYWIRE_URL") or self.default
        adapter_of(parse(url, user=self.user, environment={}))
        tls = None
        if self.ca is not None or self.cert is not None:
            tls = client_context(ca=self.ca, certificate=self.cert, key=self.key)
        return connect(
            url,
            user=self.user,
            token=None if self.token_file is None else self.token_file.read_text(encoding="utf-8").strip(),
            tls=tls,
            connect_time=self.connect_time,
            client_id=self.client_id,
            qos=self.qos,
        )


OPTIONS: Final[Mapping[str, Any]] = {
    "url": Url,
    "user": User,
    "token_file": TokenFile,
    "ca": Ca,
    "cert": Certificate,
    "key": Key,
    "connect_time": ConnectTime,
    "qos": Qos,
    "client_id": ClientId,
}
"""The fields of ``Connection`` that are options."""


def connecting(default: str = DEFAULT_URL) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all of ``OPTIONS``; its own parameter ``connection`` gets what they say."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            named = {name: given.pop(name) for name in OPTIONS}
            command(connection=Connection(**named, default=default), **given)

        own = inspect.signature(command)
        parameters = [each for name, each in own.parameters.items() if name != "connection"]
        for field in fields(Connection):
            if field.name in OPTIONS:
                assert field.default is not MISSING  # noqa: S101 - all options have one
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default,
                        annotation=OPTIONS[field.name],
                    )
                )
        with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined] # inspect's
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorated


class What(StrEnum):
    """What ``polywire bench`` can measure. It is here so that its help loads no client."""

    pubsub = "pubsub"
    publish = "publish"
    call = "call"


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
def journal_errors_reported() -> Iterator[None]:
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
