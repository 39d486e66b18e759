"""``polywire journal``: look into a journal, check it, compact it, and publish what is in it again.

What needs Arrow is imported by the commands themselves, so that the others start quickly.
"""

from pathlib import Path
from typing import Annotated

import typer

from polywire.cli.options import (
    Channels,
    Columns,
    Corrupt,
    Form,
    Format,
    Kinds,
    OnCorrupt,
    Place,
    Protocols,
    Since,
    Token,
    Until,
    examples,
    fail,
    journal_errors_reported,
    journal_place,
    select,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(
    epilog=examples(
        "polywire journal ls",
        "polywire journal tail --follow --channel 'sensors/**'",
        "polywire journal verify /var/lib/polywire/journal",
    )
)
def group() -> None:
    """Look into a journal, check it, compact it, or publish what is in it again.

    Times are UTC, here and in what is printed.
    """


@app.command(
    "ls",
    epilog=examples(
        "polywire journal ls",
        "polywire journal ls /var/lib/polywire/journal",
        "polywire journal ls http://127.0.0.1:7100 --json | jq .rows",
    ),
)
def list_segments(journal: Place = None, *, as_json: AsJson = False, token: Token = None) -> None:
    """List the segments: which rows they hold, of what time, in how many bytes."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import print_segments  # noqa: PLC0415 - see above

        print_segments(journal_place(journal), token, as_json=as_json)


@app.command(
    epilog=examples(
        "polywire journal cat --from -1h",
        "polywire journal cat --kind publish --channel 'sensors/*/temp' --limit 100",
        "polywire journal cat --from 2026-11-15 --to 2026-11-16 -o json | jq -r .channel | sort | uniq -c",
        "polywire journal cat --columns offset,ts,channel,size -o arrow > traffic.arrows",
    )
)
def cat(
    journal: Place = None,
    since: Since = None,
    until: Until = None,
    channel: Channels = None,
    kind: Kinds = None,
    protocol: Protocols = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Print at most this many rows.")] = None,
    form: Format = Form.human,
    columns: Columns = None,
    on_corrupt: Corrupt = OnCorrupt.fail,
    *,
    token: Token = None,
) -> None:
    """Print rows, the oldest first."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import RowPrinter  # noqa: PLC0415 - see above

        printer = RowPrinter(select(since, until, channel, kind, protocol), form, columns, on_corrupt)
        printer.print_rows(journal_place(journal), token, limit)


@app.command(
    epilog=examples(
        "polywire journal tail",
        "polywire journal tail -f",
        "polywire journal tail -n 100 --kind error --kind discard",
        "polywire journal tail -f --channel 'orders/**' -o json http://127.0.0.1:7100",
    )
)
def tail(
    journal: Place = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of rows.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more rows, until Ctrl-C.")] = False,
    channel: Channels = None,
    kind: Kinds = None,
    protocol: Protocols = None,
    form: Format = Form.human,
    columns: Columns = None,
    on_corrupt: Corrupt = OnCorrupt.fail,
    *,
    token: Token = None,
) -> None:
    """Print the last rows that match, and with --follow those that come."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import RowPrinter  # noqa: PLC0415 - see above

        printer = RowPrinter(select(None, None, channel, kind, protocol), form, columns, on_corrupt)
        printer.print_last(journal_place(journal), token, lines, follow=follow)


@app.command(
    epilog=examples(
        "polywire journal stats",
        "polywire journal stats --from -1d --top 20",
        "polywire journal stats --json | jq .kinds",
    )
)
def stats(
    journal: Place = None,
    since: Since = None,
    until: Until = None,
    channel: Channels = None,
    kind: Kinds = None,
    protocol: Protocols = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Number of busiest channels to show.")] = 10,
    *,
    as_json: AsJson = False,
    token: Token = None,
) -> None:
    """Count what is in the journal: rows by kind and protocol, and the busiest channels."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import print_statistics  # noqa: PLC0415 - see above

        selection = select(since, until, channel, kind, protocol)
        print_statistics(journal_place(journal), token, selection, top, as_json=as_json)


@app.command(
    epilog=examples(
        "polywire journal verify",
        "polywire journal verify /backup/journal && echo good",
        "polywire journal verify --json",
    )
)
def verify(journal: Place = None, *, as_json: AsJson = False, token: Token = None) -> None:
    """Read everything and check every CRC. Exits with 1 if rows are damaged or missing; nothing is changed."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import print_verification  # noqa: PLC0415 - see above

        if not print_verification(journal_place(journal), token, as_json=as_json):
            raise typer.Exit(1)


@app.command(
    epilog=examples(
        "polywire journal compact",
        "polywire journal compact /var/lib/polywire/journal",
    )
)
def compact(
    journal: Annotated[
        Path | None,
        typer.Argument(metavar="[JOURNAL]", help="The journal's directory. Default: journal.path.", show_default=False),
    ] = None,
) -> None:
    """Rewrite closed segments as Parquet now. A hub with journal.compact does that itself; both may run at once."""
    with journal_errors_reported():
        from polywire.cli.journal_contents import compact_folder  # noqa: PLC0415 - see above

        if not compact_folder(Path(journal_place(None if journal is None else str(journal)))):
            raise typer.Exit(1)


@app.command(
    epilog=examples(
        "polywire journal replay --from -1h --channel 'sensors/**' --url umq://127.0.0.1:7101",
        "polywire journal replay --speed max --rename sensors=replayed/sensors",
        "polywire journal replay --from 120000 --to 130000 --speed 10 /backup/journal --url mqtt://test:1883",
    )
)
def replay(
    journal: Place = None,
    since: Since = None,
    until: Until = None,
    channel: Channels = None,
    speed: Annotated[
        str,
        typer.Option("--speed", metavar="N|max", help="Factor by which to speed up; max: as fast as possible."),
    ] = "1",
    url: Annotated[
        str, typer.Option("--url", envvar="POLYWIRE_URL", help="Where to publish, such as umq://127.0.0.1:7101.")
    ] = "umq://127.0.0.1:7101",
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename", metavar="OLD=NEW", help="Publish OLD and everything below it as NEW. May be repeated."
        ),
    ] = None,
    *,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a message that is not accepted.")
    ] = False,
    token: Token = None,
) -> None:
    """Publish journaled messages again, in order and with their original timing, and wait for acknowledgements.

    Topics and queues are replayed, up to the current end of the journal; calls and the hub's own channels are not.
    Ctrl-C stops it and prints the command to continue with.
    """
    with journal_errors_reported():
        from polywire.cli.journal_replay import ReplayInterrupted, print_replay  # noqa: PLC0415 - see above

        selection = select(since, until, channel)
        try:
            print_replay(
                journal_place(journal),
                selection,
                url=url,
                speed=_speed(speed),
                rules=_rules(rename),
                keep_going=keep_going,
                token=token,
            )
        except ReplayInterrupted as interrupted:
            fail("journal", str(interrupted), code=130)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        fail("journal", f"--speed: {text!r} is neither a number above 0 nor max", code=2)
    return speed


def _rules(texts: list[str] | None) -> list[tuple[str, str]]:
    rules = []
    for text in texts or ():
        old, mark, new = text.partition("=")
        if not mark or not new:
            fail("journal", f"--rename: {text!r} is not OLD=NEW", code=2)
        rules.append((old, new))
    return rules
