"""``polywire bench``: how many messages or calls a second a server carries, and how long each takes."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

import polywire
from polywire.cli.lifecycle import Code, CommandError, run
from polywire.cli.options import Connection, What, connecting, examples
from polywire.cli.output import print_json

if TYPE_CHECKING:
    from polywire.cli.bench_load import Bench

SECONDS = 5.0
"""Default duration in seconds."""

bench_epilog = examples(
    "polywire bench",
    "polywire bench publish --url mqtt://127.0.0.1 --qos 0 --messages 1000000",
    "polywire bench pubsub --url fmqp://127.0.0.1 --sub-url umq://127.0.0.1 --subscribers 4",
    "polywire bench pubsub --in-flight 1",
    "polywire bench pubsub --rate 5000 --for 30 --json > result.json",
    "polywire bench call --in-flight 64 --size 256",
)


@connecting()
def bench(
    connection: Connection,
    what: Annotated[
        What,
        typer.Argument(
            help="pubsub: from publishers to subscribers; publish: until acknowledged, without subscribers; call: "
            "calls to a service."
        ),
    ] = What.pubsub,
    messages: Annotated[
        int | None, typer.Option("--messages", "-n", min=1, help="Stop after this many messages or calls.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.01, help=f"Stop after this time. [default: {SECONDS:g}]"),
    ] = None,
    size: Annotated[int, typer.Option("--size", "-s", min=20, help="Body size in bytes.")] = 64,
    publishers: Annotated[int, typer.Option("--publishers", "-p", min=1, help="Connections that publish or call.")] = 1,
    subscribers: Annotated[
        int, typer.Option("--subscribers", "-S", min=1, help="Connections that subscribe to all topics.")
    ] = 1,
    channels: Annotated[int, typer.Option("--channels", "-c", min=1, help="Topics to publish to.")] = 1,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", "-i", min=1, help="Messages or calls in flight at once, in total."),
    ] = 256,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="PER_SECOND", min=0.1, help="Messages or calls per second, in total."),
    ] = None,
    sub_url: Annotated[
        str | None,
        typer.Option("--sub-url", metavar="URL", help="Subscribe or serve at this URL instead of --url."),
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Call this service instead of a built-in echo.")
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to call.")] = "echo",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Count a message as lost after this time."),
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure throughput and latency against any server.

    All connections are this program's, so it is part of what is measured; a faster server may need several of them.
    With --rate the latency counts from when a message was due, not from when it could be sent. Ctrl-C ends it early,
    with the results so far.
    """
    if service is not None and what is not What.call:
        raise typer.BadParameter("--service is only for 'call'", param_hint="--service")

    async def work() -> None:
        from polywire.cli.bench_load import Bench, Load, live_view  # noqa: PLC0415 - not for help and completion

        measured = Bench(
            Load(
                kind=what,
                sending=connection,
                receiving=connection if sub_url is None else connection.at(sub_url),
                messages=messages,
                seconds=SECONDS if messages is None and seconds is None else seconds,
                size=size,
                publishers=publishers,
                subscribers=subscribers,
                channels=channels,
                in_flight=in_flight,
                rate=rate,
                service=service,
                method=method,
                timeout=timeout,
            )
        )
        try:
            async with live_view(measured):
                await measured.run()
        except BaseException:
            if measured.tally.received:
                report(measured)
            raise
        if measured.tally.sent and not measured.tally.received:
            raise CommandError("no message came back", Code.TIMEOUT)
        report(measured)

    def report(measured: "Bench") -> None:
        from polywire.cli.bench_load import result_json, result_lines  # noqa: PLC0415 - as above

        if as_json:
            print_json(result_json(measured, polywire.__version__))
        else:
            for line in result_lines(measured):
                typer.echo(line)
        sys.stdout.flush()

    run("bench", work(), fast=True)
