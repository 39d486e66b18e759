"""With what commands leave, and what they say then."""

import asyncio

import pytest
import typer

from polywire.cli.lifecycle import Code, CommandError, code_of, run
from polywire.client.errors import (
    AddressError,
    BufferFull,
    CallFailed,
    Closed,
    ConnectFailed,
    ConnectionLost,
    Refused,
    Timeout,
    Unsupported,
)


def closed(cause: Exception) -> Closed:
    error = Closed("gone for good")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AddressError("x", part="port"), Code.USAGE),
        (Unsupported("call", "fmqp", ["umq"]), Code.USAGE),
        (ConnectFailed("mqtt://x", "nobody"), Code.NO_CONNECTION),
        (Refused("no"), Code.REFUSED),
        (Timeout("it", 1.0), Code.TIMEOUT),
        (CallFailed(500, "a", "b"), Code.CALL_FAILED),
        (CommandError("no body", Code.USAGE), Code.USAGE),
        (BufferFull(1, 1), Code.FAILED),
        (ConnectionLost("x"), Code.FAILED),
        (FileNotFoundError(2, "No such file or directory", "x"), Code.FAILED),
        (closed(Refused("no")), Code.REFUSED),
        (closed(RuntimeError()), Code.FAILED),
        (RuntimeError("a fault of ours"), None),
    ],
)
def test_each_error_has_its_code(error: Exception, code: Code | None) -> None:
    assert code_of(error) is code


async def fail(error: BaseException) -> None:
    raise error


def test_a_servers_words_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        run("call", fail(CallFailed(500, "x", "\x1b[2J\n")))
    assert left.value.exit_code == Code.CALL_FAILED
    assert capsys.readouterr().err == "polywire call: 500 x: \\x1b[2J\\n\n"


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run("pub", fail(ZeroDivisionError()))


@pytest.mark.parametrize(("endless", "code"), [(True, Code.DONE), (False, Code.INTERRUPTED)])
def test_an_interrupted_command_says_nothing(endless: bool, code: Code, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        run("sub", fail(asyncio.CancelledError()), endless=endless)
    assert left.value.exit_code == code
    assert capsys.readouterr().err == ""
