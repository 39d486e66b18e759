"""``polywire pipeline``: turn the journal into tables, once or continuously, and query them.

Spark and rich are imported by the commands themselves, so that the others start quickly.
"""

import csv
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polywire.cli.options import ConfigFile, config_errors_reported, examples, fail
from polywire.errors import PolywireError

if TYPE_CHECKING:
    from polywire.pipeline.status import Notes, Status
    from polywire.pipeline.table import Table


WIDEST = 80
"""Characters of a value in a table for people."""


EXTRA = {"deltalake", "duckdb", "pandas", "pyspark"}
"""Packages of the extra ``pipeline``."""

STACKS = ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of Spark's that print stacks for what is reported as an error of a command."""

FOREIGN = {"_duckdb", "deltalake", "duckdb", "py4j", "pyarrow", "pyspark"}
"""Packages whose errors are about what they were asked to do, not about mistakes of ours."""


class Engine(StrEnum):
    """What answers a question."""

    duckdb = "duckdb"
    spark = "spark"


class Format(StrEnum):
    """How the rows of an answer are written."""

    table = "table"
    json = "json"
    csv = "csv"


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

JournalPlace = Annotated[
    str | None,
    typer.Option(
        "--journal",
        "-j",
        metavar="PLACE",
        help="The journal: a folder, a URI, a glob over several, or http://hub:7100. Without it, that of the "
        "configuration.",
    ),
]
LakePlace = Annotated[str, typer.Option("--lake", "-l", metavar="PLACE", help="Where the tables are.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="POLYWIRE_TOKEN", help="Token for a hub that requires one.")
]
Tables = Annotated[
    str | None, typer.Option("--tables", "-t", metavar="NAME,…", help="Only these tables and those they depend on.")
]
Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]…", help="Python files with tables of your own (@table).")
]
Master = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs: local[*] (the default) or spark://host:7077.")
]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory for Spark's driver, such as 4g.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the lake's storage, such as aws_region=eu-west-1; else the environment's. May be repeated.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="PLACE",
        help="Where Spark keeps how far it is. Default: _pipeline in the lake.",
    ),
]
Version = Annotated[
    int | None, typer.Option("--version", min=0, metavar="N", help="The table as of this version (see history).")
]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="The tables as of this time, such as 2026-01-31T12:00:00Z.")
]
LAKE = "lake"


@app.callback(
    epilog=examples(
        "polywire pipeline run --once",
        "polywire pipeline query 'SELECT channel, count(*) FROM messages GROUP BY channel'",
        "polywire pipeline report",
    )
)
def group() -> None:
    """Turn the journal into tables, exactly once, and query them."""


@app.command(
    epilog=examples(
        "polywire pipeline run",
        "polywire pipeline run --once --tables messages,calls",
        "polywire pipeline run my_tables.py --trigger 5s",
        "polywire pipeline run --journal 's3://logs/*/journal' --lake /data/lake --master spark://host:7077",
    )
)
def run(
    files: Files = None,
    journal: JournalPlace = None,
    lake: LakePlace = LAKE,
    tables: Tables = None,
    trigger: Annotated[str, typer.Option("--trigger", help="How often to write what is new: 1s, 500ms, 1min.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Catch up with what is there now, and stop.")] = False,
    token: Token = None,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the source. May be repeated."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            min=0,
            help="How often to start a query again that fails for a passing reason, such as a hub that is away, before "
            "it has got anything done.",
        ),
    ] = 8,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="DAYS",
            help="Delete rows of days older than this: 90d, or by table: 90d,faults=365d. Other tables keep all.",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    checkpoint: Checkpoint = None,
    config: ConfigFile = None,
) -> None:
    """Write the tables and keep them up to date; with --once, stop when all existing rows are written.

    It continues where it stopped, however it ended: each row of the journal counts once.
    """
    with errors_reported():
        from polywire.pipeline.runner import (  # noqa: PLC0415 - see above
            Job,
            Runner,
            check_journal,
            closure,
            days_kept,
            is_brief,
            trigger_interval,
        )

        trigger_interval(trigger)
        known = all_tables(files)
        job = Job(
            journal=journal_place(journal, config),
            lake=place(lake),
            tables=known,
            wanted=names_of(tables),
            trigger=trigger,
            once=once,
            token=token,
            options=pairs("--option", options),
            retries=retries,
            keep=days_kept(keep, known),
            storage=pairs("--storage-option", storage_options),
            checkpoint=checkpoint and place(checkpoint),
        )
        # What is wrong is reported before Spark starts.
        pairs("--conf", conf)
        closure(job.wanted, job.tables)
        check_journal(job)
        runner = Runner(start_spark(master, memory, conf, brief=is_brief(job)), job)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: runner.stop())
        queries = runner.start()
        typer.echo(f"{', '.join(queries)}: from {job.journal} to {job.lake}", err=True)
        with rows_read(once=once) as watch:
            runner.follow(watch)
        print_statuses(noted(lake, storage_options, checkpoint), token, err=True)


@app.command(
    epilog=examples(
        "polywire pipeline backfill --from 2026-01-01 --to 2026-01-31",
        "polywire pipeline backfill --from 2026-01-31 --tables traffic",
    )
)
def backfill(
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="The first day (UTC).")],
    last: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="The last day. Default: the first day.")
    ] = None,
    files: Files = None,
    journal: JournalPlace = None,
    lake: LakePlace = LAKE,
    tables: Tables = None,
    token: Token = None,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    storage_options: StorageOptions = None,
    checkpoint: Checkpoint = None,
    config: ConfigFile = None,
) -> None:
    """Make whole days of the tables again from the journal, and put them in the place of what is there."""
    with errors_reported():
        from polywire.pipeline.runner import Job  # noqa: PLC0415 - see above
        from polywire.pipeline.runner import backfill as fill  # noqa: PLC0415 - see above

        begin, end = day("--from", first), day("--to", last or first)
        job = Job(
            journal=journal_place(journal, config),
            lake=place(lake),
            tables=all_tables(files),
            wanted=names_of(tables),
            token=token,
            storage=pairs("--storage-option", storage_options),
            checkpoint=checkpoint and place(checkpoint),
        )
        spark = start_spark(master, memory, conf)
        with waiting("writing"):
            for name in fill(spark, job, begin, end):
                typer.echo(f"{name}: {begin} to {end} rebuilt")


@app.command(epilog=examples("polywire pipeline status", "polywire pipeline status --json"))
def status(
    lake: LakePlace = LAKE,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    storage_options: StorageOptions = None,
    checkpoint: Checkpoint = None,
) -> None:
    """How far each query is: rows and seconds behind the journal, throughput, its last step."""
    with errors_reported():
        print_statuses(noted(lake, storage_options, checkpoint), token, as_json=as_json)


@app.command(
    epilog=examples(
        "polywire pipeline query 'SELECT protocol, sum(messages) FROM traffic GROUP BY protocol'",
        "polywire pipeline query --format json \"SELECT * FROM calls WHERE outcome <> 'ok'\"",
        "polywire pipeline query --at 2026-01-31T12:00:00Z 'SELECT count(*) FROM messages'",
        "polywire pipeline query 'SHOW TABLES'",
    )
)
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The SQL query; each table is available under its name.")],
    lake: LakePlace = LAKE,
    engine: Annotated[
        Engine, typer.Option("--engine", help="What answers: DuckDB, at once, or Spark, in its own dialect of SQL.")
    ] = Engine.duckdb,
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="Python files with tables of your own, for Spark.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many rows.")] = 1000,
    form: Annotated[Format, typer.Option("--format", "-o", help="A table, JSON lines or CSV.")] = Format.table,
    version: Version = None,
    at: At = None,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    storage_options: StorageOptions = None,
) -> None:
    """Ask the tables with SQL. Times are UTC."""
    with errors_reported():
        from polywire.pipeline.query import Past, Questions, ask_spark  # noqa: PLC0415 - see above

        options = pairs("--storage-option", storage_options)
        past = Past(version, moment("--at", at))
        if engine is Engine.duckdb:
            with closing(Questions(place(lake), options, past)) as questions:
                answer = questions.ask(sql, limit + 1)
        else:
            from polywire.pipeline.lake import Lake  # noqa: PLC0415 - see above

            known = Lake(place(lake), all_tables(files), options=options)
            spark = start_spark(master, memory, conf, brief=True)
            with waiting("asking"):
                answer = ask_spark(spark, known, sql, limit + 1, past)
        write_rows(answer.columns, answer.rows[:limit], form)
        for note in answer.notes:
            typer.echo(note, err=True)
        if len(answer.rows) > limit:
            typer.echo(f"only the first {limit} rows; --limit shows more", err=True)


@app.command(
    epilog=examples("polywire pipeline history messages", "polywire pipeline history traffic --limit 5 -o json")
)
def history(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    lake: LakePlace = LAKE,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many versions.")] = 20,
    form: Annotated[Format, typer.Option("--format", "-o", help="A table, JSON lines or CSV.")] = Format.table,
    storage_options: StorageOptions = None,
) -> None:
    """The versions of a table, the last one first: when they were made (UTC), and by what."""
    with errors_reported():
        from polywire.pipeline.query import history as versions  # noqa: PLC0415 - see above

        found = versions(place(lake), table, limit, pairs("--storage-option", storage_options))
        write_rows(["version", "time", "what"], [(one.version, one.at, one.what) for one in found], form)


@app.command(epilog=examples("polywire pipeline doctor", "polywire pipeline doctor --lake /data/lake"))
def doctor(
    lake: LakePlace = LAKE,
    token: Token = None,
    storage_options: StorageOptions = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Compare journal and lake, and name what is missing; exits with 1 if something is."""
    with errors_reported():
        from polywire.pipeline.status import examined  # noqa: PLC0415 - see above

        findings = examined(
            place(lake), token, pairs("--storage-option", storage_options), checkpoint and place(checkpoint)
        )
        for finding in findings:
            typer.echo(f"{'✓' if finding.good else '✗'} {finding.text}")
        if not all(finding.good for finding in findings):
            raise typer.Exit(1)


@app.command(epilog=examples("polywire pipeline report", "polywire pipeline report --out /var/www/hub.html"))
def report(
    lake: LakePlace = LAKE,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    storage_options: StorageOptions = None,
) -> None:
    """Write one page with charts of the tables: traffic, latency, demand, faults, sessions, and your own tables."""
    with errors_reported():
        from polywire.pipeline.report import write_report  # noqa: PLC0415 - see above

        write_report(place(lake), out, pairs("--storage-option", storage_options))
        typer.echo(f"wrote {out}")


@contextmanager
def errors_reported() -> Iterator[None]:
    """Print errors in one line, and exit with 1."""
    try:
        yield
    except (PolywireError, OSError) as error:  # OSError: a storage that can't be reached, a disk that is full
        fail("pipeline", one_line(error))
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        fail("pipeline", f"{error.name} is not installed: pip install 'polywire[pipeline]' installs it")
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in FOREIGN:
            raise
        fail("pipeline", one_line(error))


def one_line(error: Exception) -> str:
    """What an error says, without stacks of Python and Java."""
    if type(error).__module__.startswith("py4j.") and "Network" in type(error).__name__:
        from polywire.pipeline.errors import SparkLostError  # noqa: PLC0415 - see above

        error = SparkLostError()
    if isinstance(error, PolywireError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        from polywire.pipeline.runner import reason_of  # noqa: PLC0415 - see above

        return reason_of(error)
    return " ".join(str(error).split()) or type(error).__name__


def start_spark(master: str | None, memory: str | None, conf: list[str] | None, *, brief: bool = False) -> Any:
    """Spark, with a sign of life while it starts."""
    from polywire.pipeline.spark import spark_session  # noqa: PLC0415 - see above

    for name in STACKS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.basicConfig(format="%(message)s")
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)  # it logs as nobody, too
    settings = pairs("--conf", conf)
    with waiting("starting Spark"):
        session = spark_session(master=master, memory=memory, conf=settings, brief=brief)
    from pyspark import accumulators  # noqa: PLC0415 - see above

    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # as the loggers
    return session


def all_tables(files: list[Path] | None) -> "dict[str, Table]":
    """Our tables and those of the user's files."""
    from polywire.pipeline.table import load_tables  # noqa: PLC0415 - see above
    from polywire.pipeline.tables import TABLES  # noqa: PLC0415 - see above

    found = dict(TABLES)
    for path in files or ():
        found |= load_tables(path, found)
    return found


def journal_place(given: str | None, config: Path | None) -> str:
    """The journal: as given, else that of the configuration."""
    if given is not None:
        return ",".join(place(part.strip()) for part in given.split(","))
    from polywire.server.config import load  # noqa: PLC0415 - see above

    with config_errors_reported():
        return str(load(config, ()).config.journal.path.absolute())


def place(given: str) -> str:
    """A directory or URI that means the same wherever it is read."""
    return given if ":/" in given else str(Path(given).absolute())


def names_of(tables: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in (tables or "").split(",") if name.strip())


def pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """Settings written KEY=VALUE."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[key.strip()] = value
    return found


def moment(option: str, text: str | None) -> datetime | None:
    """A time as ISO 8601 writes it; without a zone it is UTC."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time; write 2026-01-31T12:00:00Z", param_hint=option) from None
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=UTC)


def day(option: str, text: str) -> date:
    """A day as ISO 8601 writes it."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day; write 2026-01-31", param_hint=option) from None


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is in progress, on a terminal."""
    from rich import progress as bars  # noqa: PLC0415 - see above
    from rich.console import Console  # noqa: PLC0415 - see above

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    words = bars.TextColumn("{task.description}")
    with bars.Progress(bars.SpinnerColumn(), words, bars.TimeElapsedColumn(), console=console, transient=True) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def rows_read(*, once: bool) -> Iterator[Callable[[list["Status"]], None]]:
    """Show how far the queries are: a bar for each, up to what the journal has."""
    from rich import progress as bars  # noqa: PLC0415 - see above
    from rich.console import Console  # noqa: PLC0415 - see above

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[rows]}"),
        bars.TextColumn("{task.fields[speed]}"),
        bars.TextColumn("{task.fields[left]}"),
        bars.TimeElapsedColumn(),
        console=console,
        transient=not once,
    ) as shown:
        tasks: dict[str, Any] = {}

        def watch(statuses: list["Status"]) -> None:
            for status in statuses:
                if status.query not in tasks:
                    tasks[status.query] = shown.add_task(status.query, total=None, rows="", speed="", left="")
                done = sum(status.place.values())
                total = done + status.lag if done or status.lag else None
                rows, speed, left = progress_of(status)
                now = done + status.step_done
                shown.update(tasks[status.query], completed=now, total=total, rows=rows, speed=speed, left=left)

        yield watch


def progress_of(status: "Status") -> tuple[str, str, str]:
    """How far a query is, in words: rows done and rows in all, their rate, and the time that is left."""
    done, left = sum(status.place.values()), status.remaining
    if status.reason:
        return status.reason[:WIDEST], status.state, ""
    return (
        f"{done + status.step_done:,} of {done + status.lag:,} rows" if done or status.lag else "starting",
        f"{status.rows_per_second:,.0f} rows/s",
        f"{int(left) // 60}:{int(left) % 60:02} left" if left else "",
    )


def noted(lake: str, storage_options: list[str] | None, checkpoint: str | None) -> "Notes":
    """What is kept about the queries of a lake."""
    from polywire.pipeline.status import Notes  # noqa: PLC0415 - needs Arrow

    return Notes(place(lake), pairs("--storage-option", storage_options), checkpoint and place(checkpoint))


def print_statuses(notes: "Notes", token: str | None, *, as_json: bool = False, err: bool = False) -> None:
    """How far each query is, now."""
    from polywire.pipeline.status import lag_now, read_statuses  # noqa: PLC0415 - needs Arrow

    found = [(status, lag_now(status, token)) for status in read_statuses(notes)]
    if as_json:
        for status, lag in found:
            typer.echo(json.dumps({**asdict(status), "lag": None if lag is None else asdict(lag)}))
        return
    if not found:
        typer.echo(f"{notes}: no query ever ran here; 'polywire pipeline run' starts some", err=True)
        return
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.table import Table as Grid  # noqa: PLC0415 - see above

    table = Grid("query", "state", "tables", "step", "rows/s", "last step", "behind", box=None, pad_edge=False)
    for status, lag in found:
        behind = "?" if lag is None else f"{lag.rows:,} rows, {lag.seconds:.1f} s" if lag.rows else "0 rows"
        speed = f"{status.rows_per_second:,.0f}"
        ago = f"{status.batch_seconds:.1f} s long, {_ago(status.updated)}"
        if status.step_rows:
            ago = f"in progress, {status.step_done:,} of {status.step_rows:,} rows"
        table.add_row(status.query, status.state, ", ".join(status.tables), str(status.batch), speed, ago, behind)
    Console(stderr=err, highlight=False, markup=False, width=None if sys.stdout.isatty() else 160).print(table)
    for status, _ in found:
        if status.reason:
            typer.echo(f"{status.query}: {status.reason}", err=err)


def write_rows(columns: list[str], rows: list[tuple[Any, ...]], form: Format) -> None:
    """The rows of an answer, on standard output."""
    if form is Format.json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(columns, map(_plain, row), strict=True)), ensure_ascii=False))
    elif form is Format.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(value) for value in row] for row in rows)
    else:
        from rich.console import Console  # noqa: PLC0415 - see above
        from rich.table import Table as Grid  # noqa: PLC0415 - see above

        table = Grid(*columns)
        for row in rows:
            table.add_row(*(_short(_text(value)) for value in row))
        Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200).print(table)
        typer.echo(f"{len(rows)} rows" if len(rows) != 1 else "1 row")


def _plain(value: Any) -> Any:
    """A value as JSON has it; bytes that are no text in hexadecimal."""
    if isinstance(value, (bytes, bytearray)):
        return _text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "0x" + bytes(value).hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"


def _ago(updated: str) -> str:
    then = datetime.fromisoformat(updated)
    return f"{max((datetime.now(then.tzinfo) - then).total_seconds(), 0):.0f} s ago"
