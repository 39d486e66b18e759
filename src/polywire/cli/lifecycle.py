"""How a command that talks to a server runs and ends: its event loop, signals, closed pipes, limits, and exit codes.

The exit codes are a promise to scripts; docs/cli.md has the table.
"""

import asyncio
import importlib
import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Sequence
from enum import IntEnum
from typing import Any, TypeVar, cast

import typer

from polywire.cli.output import shown
from polywire.errors import PolywireError

Result = TypeVar("Result")


class Code(IntEnum):
    """With what a command leaves."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_CONNECTION = 3
    TIMEOUT = 4
    REFUSED = 5
    CALL_FAILED = 6
    INTERRUPTED = 130


class CommandError(PolywireError):
    """An error that ends a command, with a message for the user. ``code`` is the exit code."""

    def __init__(self, words: str, code: Code = Code.FAILED) -> None:
        super().__init__(words)
        self.code = code


def run(command: str, work: Coroutine[Any, Any, None], *, endless: bool = False, fast: bool = False) -> None:
    """Run to the end, or print an error in one line and exit with its code.

    SIGTERM ends it as Ctrl-C does. ``endless``: that is the normal end, so the code is 0. ``fast``: with
    uvloop, where it is installed. A closed output pipe is not an error either.
    """
    ended = Code.DONE if endless else Code.INTERRUPTED
    try:
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            runner.run(watched(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = ended
    except BrokenPipeError:
        code = Code.DONE
    except Exception as error:
        found = code_of(error)
        if found is None:
            raise
        code = found
        # It may contain text from a server, which must not control the terminal.
        typer.echo(f"polywire {command}: {shown(_words(error))}", err=True)
    else:
        code = Code.DONE
    _flush()
    raise typer.Exit(code)


def code_of(error: Exception) -> Code | None:
    """The code for an error; None for one that is a fault of ours."""
    from polywire.client import errors  # noqa: PLC0415 - not for help and completion

    for kind, code in (
        (errors.AddressError, Code.USAGE),
        (errors.Unsupported, Code.USAGE),
        (errors.ConnectFailed, Code.NO_CONNECTION),
        (errors.Refused, Code.REFUSED),
        (errors.Timeout, Code.TIMEOUT),
        (errors.CallFailed, Code.CALL_FAILED),
    ):
        if isinstance(error, kind):
            return code
    if isinstance(error, CommandError):
        return error.code
    cause = error.__cause__
    if isinstance(error, errors.Closed) and isinstance(cause, Exception):
        return code_of(cause) or Code.FAILED
    return Code.FAILED if isinstance(error, PolywireError | OSError | UnicodeDecodeError) else None


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


async def cancelled(*tasks: "asyncio.Task[None]") -> None:
    """End tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def watched(work: Coroutine[Any, Any, Result]) -> Result:
    """The work, until it is done, SIGTERM arrives, or the output pipe is closed."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    gone = False

    def hung_up() -> None:
        nonlocal gone
        gone = True
        task.cancel()
        loop.remove_reader(pipe)

    pipe = _pipe()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if pipe >= 0:
        # The writing end of a pipe is never readable; it only reports that the reading end was closed.
        loop.add_reader(pipe, hung_up)
    try:
        return await task
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        if pipe >= 0:
            loop.remove_reader(pipe)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    return cast("Callable[[], asyncio.AbstractEventLoop]", uvloop.new_event_loop)


def _pipe() -> int:
    """Standard output, where it is a pipe; -1 otherwise."""
    try:
        number = sys.stdout.fileno()
        return number if stat.S_ISFIFO(os.fstat(number).st_mode) else -1
    except (OSError, ValueError):
        return -1


def _flush() -> None:
    """Flush now: Python would complain at exit if the pipe is closed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Ending:
    """When it is enough. ``failed`` ends it with an error."""

    def __init__(self, count: int | None = None, seconds: float | None = None, patience: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._patience = patience
        self._end = None if seconds is None else self._loop.time() + seconds
        self._last = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.came = 0

    def message(self) -> bool:
        """One more has come; whether it is still wanted."""
        if self._done.done():
            return False
        self.came += 1
        self._last = self._loop.time()
        if self.came == self._count:
            self._done.set_result(None)
        return True

    def enough(self) -> None:
        """It has ended as it should."""
        if not self._done.done():
            self._done.set_result(None)

    def check(self) -> None:
        """Raise the error with which it ended."""
        if self._done.done():
            self._done.result()

    def failed(self, error: Exception) -> None:
        """End it with an error."""
        if not self._done.done():
            self._done.set_exception(error)

    @property
    def broken(self) -> bool:
        """Whether it ended with an error."""
        return self._done.done() and self._done.exception() is not None

    async def wait(self, tasks: "Sequence[asyncio.Task[None]]") -> None:
        """Wait until it is enough, or one of the tasks has ended."""
        from polywire.client.errors import Timeout  # noqa: PLC0415 - not for help and completion

        self._last = self._loop.time()
        while True:
            now = self._loop.time()
            ends = [] if self._end is None else [self._end]
            if self._patience is not None:
                ends.append(self._last + self._patience)
            left = min(ends) - now if ends else None
            if left is not None and left <= 0:
                if self._end is not None and now >= self._end:
                    return
                raise Timeout("waiting for a message", self._patience or 0.0)
            done, _ = await asyncio.wait([*tasks, self._done], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if done:
                return
