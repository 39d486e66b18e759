"""The bodies that ``pub`` and ``call`` send: from arguments, files or standard input, whole or a line each.

Standard input is read by a thread, because a file, a pipe and a terminal can't all be awaited. Little is read ahead,
so that a fast writer waits for a slow server.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from polywire.cli.printing import say
from polywire.cli.running import Code, CommandError

CHUNK: Final = 64 * 1024
STANDARD_INPUT: Final = "-"

Bodies = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BODY]...",
        help="What to send, a message each; - is standard input. Without any, standard input.",
        show_default=False,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="Send what is in a file; - is standard input. May be repeated."),
]
Lines = Annotated[
    bool,
    typer.Option(
        "--lines",
        "-l",
        help="Send each line of the files, or of standard input, by itself; at a terminal, as you type.",
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header beside the body. May be repeated."),
]
ContentType = Annotated[
    str | None, typer.Option("--content-type", "-t", metavar="TYPE", help="What the body is, such as application/json.")
]


async def read_bodies(texts: Sequence[str], files: Sequence[Path], *, lines: bool) -> AsyncIterator[bytes]:
    """The bodies, one after the other: the arguments, then the files; standard input where there is neither."""
    if not texts and not files:
        if sys.stdin.isatty() and not lines:
            words = "there is no body: give one, a --file, something on standard input, or --lines to type them"
            raise CommandError(words, Code.USAGE)
        texts = [STANDARD_INPUT]
    places: list[str | Path] = [*texts, *files]
    for place in places:
        if str(place) == STANDARD_INPUT:
            if sys.stdin.isatty():
                say("type a message and press Enter to send it; Ctrl-D ends" if lines else "type; Ctrl-D sends it")
            source = _standard_input()
        elif isinstance(place, str):
            yield os.fsencode(place)
            continue
        else:
            source = _file(place)
        if lines:
            async for line in split(source):
                yield line
        else:
            yield b"".join([chunk async for chunk in source])


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """``name=value`` as a header each."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise CommandError(f"--header {each}: a header is written NAME=VALUE", Code.USAGE)
        found[name] = value
    return found


async def split(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines in chunks that are cut anywhere, without their ends; the last one needs none."""
    rest: list[bytes] = []
    async for chunk in source:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for each in others:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [each]
    if any(rest):
        yield b"".join(rest)


async def _file(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


async def _standard_input() -> AsyncIterator[bytes]:
    """Chunks as they come."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    wanted = threading.Semaphore(2)
    number = sys.stdin.fileno()

    def read() -> None:
        # Not sys.stdin.buffer: its lock would be held when the command ends while this waits.
        found: bytes | OSError = b"-"
        while found and isinstance(found, bytes):
            wanted.acquire()
            try:
                found = os.read(number, CHUNK)
            except OSError as error:
                found = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, found)
            except RuntimeError:  # the loop has ended, and nobody wants it
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
        wanted.release()
