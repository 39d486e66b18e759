"""``polywire decode``: captured bytes, frame by frame, with a finger on the one that is wrong."""

import binascii
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polywire.cli.options import examples
from polywire.errors import RemoteProtocolError
from polywire.registry import RegistryError, built_in, by_name
from polywire.wire.frame import Discarded, Role

ROW = 16
"""Bytes on a line."""

SHOWN = 8
"""Lines of bytes shown of a frame; more are left out, but for those around a fault."""

FIELD = 120
"""Characters of a field's value that are shown."""

OWN = "|".join(each.name for each in built_in() if each.decoder)


@dataclass(frozen=True, slots=True)
class Explained:
    """Bytes ``start`` to ``end`` and what they are: a frame, or with ``fault_at`` what is wrong and where."""

    start: int
    end: int
    name: str
    fields: tuple[tuple[str, object], ...]
    octets: bytes
    rule: str = ""
    reason: str = ""
    fault_at: int | None = None


def _known(protocol: str) -> str:
    try:
        if by_name(protocol).decoder:
            return protocol
    except RegistryError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.BadParameter(f"captures of {protocol} can't be decoded")


def decode(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The capture; - reads standard input.", show_default=False)
    ],
    protocol: Annotated[
        str,
        typer.Option("--protocol", "-p", metavar=f"<{OWN}>", callback=_known, help="The protocol that was captured."),
    ],
    sender: Annotated[
        Literal["client", "server"], typer.Option("--from", help="Which side sent the captured bytes.")
    ] = "client",
    *,
    as_hex: Annotated[
        bool, typer.Option("--hex", help="The file contains hexadecimal digits; whitespace is ignored.")
    ] = False,
) -> None:
    """Explain captured bytes frame by frame, and point at the byte where they went wrong.

    FILE holds what one side sent on one connection. For UMQ it holds one message a line, binary ones as hex:…; for
    mqttrpc one payload. Exits with 1 where a rule was broken.
    """
    data = _read(file, as_hex=as_hex)
    console = importlib.import_module("rich.console").Console(highlight=False, soft_wrap=True)
    frames = faults = 0
    for found in explain(protocol, data, sender=sender):
        _show(console, found)
        frames += not found.rule
        faults += bool(found.rule)
    console.print(f"{len(data)} bytes, {frames} frames, {faults} faults", style="bold")
    if faults:
        raise typer.Exit(1)


decode_epilog = examples(
    "polywire decode --protocol fmqp capture.bin",
    "polywire decode --protocol mqtt --from server answer.bin",
    "echo '80 01 00 00 00 00 61' | polywire decode --protocol fmqp --hex -",
)


def _read(file: Path, *, as_hex: bool) -> bytes:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return binascii.unhexlify(b"".join(data.split())) if as_hex else data
    except OSError as error:
        typer.echo(f"polywire: can't read {file}: {error.strerror or error}", err=True)
    except binascii.Error as error:
        typer.echo(f"polywire: {file} is not valid hexadecimal: {error}", err=True)
    raise typer.Exit(1)


def _show(console: Any, found: Explained) -> None:
    text = importlib.import_module("rich.text").Text
    title = text.assemble((f"{found.start:>8}  ", "dim"))
    title.append(found.name, style="bold red" if found.rule else "bold yellow" if found.reason else "bold green")
    title.append(f"  {found.end - found.start} bytes", style="dim")
    console.print(title)
    if found.reason:
        where = f" at byte {found.fault_at}" if found.fault_at is not None else ""
        rule = f" ({found.rule})" if found.rule else ""
        console.print(text(f"          {found.reason}{where}{rule}", style="red" if found.rule else "yellow"))
    for name, value in found.fields:
        shown = repr(value)
        line = text("          ")
        line.append(f"{name} ", style="cyan")
        line.append(shown if len(shown) <= FIELD else shown[:FIELD] + "…")
        console.print(line)
    for line in _dump(text, found):
        console.print(line)


def _dump(text: Any, found: Explained) -> list[Any]:
    """The bytes, in hexadecimal and as text; the faulty one is highlighted."""
    lines: list[Any] = []
    at_fault = -1 if found.fault_at is None else found.fault_at - found.start
    rows = range(0, len(found.octets), ROW)
    wanted = {row for row in rows if row < SHOWN * ROW or abs(row - at_fault) < 2 * ROW}
    left_out = False
    for row in rows:
        if row not in wanted:
            left_out = True
            continue
        if left_out:
            lines.append(text("          …", style="dim"))
            left_out = False
        line = text.assemble((f"{found.start + row:>8}  ", "dim"))
        octets = found.octets[row : row + ROW]
        for at, octet in enumerate(octets, row):
            line.append(f"{octet:02x}", style="bold white on red" if at == at_fault else "")
            line.append(" ")
        line.append("   " * (ROW - len(octets)) + " ")
        for at, octet in enumerate(octets, row):
            style = "bold white on red" if at == at_fault else "dim"
            line.append(chr(octet) if 32 <= octet < 127 else "·", style=style)
        lines.append(line)
        if row <= at_fault < row + ROW:
            lines.append(text(" " * (10 + 3 * (at_fault - row)) + "^^ here", style="bold red"))
    if left_out:
        lines.append(text(f"          … {len(found.octets)} bytes in total", style="dim"))
    return lines


def explain(protocol: str, data: bytes, *, sender: str = "client") -> Iterator[Explained]:
    """Everything in a capture of what one side sent, the client or the server, in order."""
    spoken = by_name(protocol)
    reader = Role.SERVER if sender == "client" else Role.CLIENT
    decoder = spoken.load(spoken.decoder)(**spoken.decoder_options(reader.value, data))
    if spoken.capture == "stream":
        yield from _stream(decoder, data)
    elif spoken.capture == "lines":
        yield from _lines(decoder, data)
    else:
        yield from _message(decoder.feed, data, 0, data)


def _stream(decoder: Any, data: bytes) -> Iterator[Explained]:
    """Frames that follow each other. They are fed byte by byte, so that a frame ends where the decoder returns it."""
    start = 0
    for at in range(len(data)):
        try:
            frames = decoder.feed(data[at : at + 1])
        except RemoteProtocolError as error:
            for frame in error.frames:
                yield _frame(frame, start, at, data)
            yield _fault(error, start, len(data), data, error.position)
            return
        for frame in frames:
            yield _frame(frame, start, at + 1, data)
        if frames:
            start = at + 1
    if start < len(data):
        yield Explained(start, len(data), "unfinished", (), data[start:], reason="the capture ends inside this frame")


def _lines(decoder: Any, data: bytes) -> Iterator[Explained]:
    """A line is a text message; one that begins with ``hex:`` is a binary one."""
    start = 0
    for line in data.splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        message: str | bytes = text.decode(errors="replace")
        if text.startswith(b"hex:"):
            message = bytes.fromhex(text[4:].decode())
        for found in _message(decoder.feed, message, start, text):
            yield found
            if found.fault_at is not None:
                return
        start += len(line)


def _message(feed: Callable[[Any], list[Any]], message: str | bytes, start: int, octets: bytes) -> Iterator[Explained]:
    try:
        frames = feed(message)
    except RemoteProtocolError as error:
        yield _fault(error, start, start + len(octets), octets, start + error.position, base=start)
        return
    for frame in frames:
        yield _frame(frame, start, start + len(octets), octets, base=start)


def _frame(frame: Any, start: int, end: int, data: bytes, base: int = 0) -> Explained:
    octets = data[start - base : end - base]
    if isinstance(frame, Discarded):
        return Explained(start, end, "discarded", (), octets, frame.rule, frame.reason, fault_at=frame.position)
    fields = tuple((name, getattr(frame, name)) for name in frame.__match_args__)
    return Explained(start, end, type(frame).__name__, fields, octets)


def _fault(error: RemoteProtocolError, start: int, end: int, data: bytes, at: int, base: int = 0) -> Explained:
    return Explained(
        start, end, "violation", (), data[start - base : end - base], error.rule, error.reason, fault_at=at
    )
