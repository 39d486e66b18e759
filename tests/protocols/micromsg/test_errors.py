"""The names of errors and what comes after them."""

import pytest

from polywire import errors
from polywire.protocols.micromsg.errors import (
    ENDS_CONNECTION,
    LocalProtocolError,
    MalformedError,
    RemoteProtocolError,
    ends_connection,
)


@pytest.mark.rule("MICROMSG-99")
def test_there_are_twelve_error_names() -> None:
    assert sorted(ENDS_CONNECTION) == [
        "bad-ack",
        "bad-filter",
        "bad-frame",
        "bad-handshake",
        "bad-version",
        "forbidden",
        "no-such-destination",
        "shutting-down",
        "too-large",
        "unknown-command",
        "unsupported-extension",
        "window-exceeded",
    ]


@pytest.mark.rule("MICROMSG-100")
def test_the_connection_lives_on_after_four_of_them() -> None:
    passing = {name for name in ENDS_CONNECTION if not ends_connection(name)}
    assert passing == {"unknown-command", "forbidden", "bad-filter", "no-such-destination"}


@pytest.mark.rule("MICROMSG-169")
def test_an_error_nobody_knows_ends_the_connection() -> None:
    assert ends_connection("new-name")


def test_all_errors_are_in_polywires_tree() -> None:
    assert issubclass(LocalProtocolError, errors.LocalProtocolError)
    assert issubclass(RemoteProtocolError, errors.RemoteProtocolError)
    assert issubclass(MalformedError, errors.PolywireError)
