"""The error tree: one root, fields to act on, words that say where and by which rule."""

import importlib

import pytest

from polywire.errors import LocalProtocolError, PolywireError, RemoteProtocolError
from polywire.registry import built_in


def test_a_remote_error_says_what_where_and_by_which_rule() -> None:
    error = RemoteProtocolError("bad flag", rule="X-01", position=7, reply="answer", frames=["whole"])
    assert str(error) == "bad flag at 7 (X-01)"
    assert (error.reason, error.rule, error.position, error.reply, error.frames) == (
        "bad flag",
        "X-01",
        7,
        "answer",
        ["whole"],
    )


def test_a_local_error_says_what_and_by_which_rule() -> None:
    assert str(LocalProtocolError("topic too long", rule="X-02")) == "topic too long (X-02)"


@pytest.mark.parametrize("protocol", [each.name for each in built_in()])
def test_each_protocol_has_its_branch_of_the_tree(protocol: str) -> None:
    module = importlib.import_module(f"polywire.protocols.{protocol}")
    assert issubclass(module.LocalProtocolError, LocalProtocolError)
    assert issubclass(module.RemoteProtocolError, RemoteProtocolError)
    assert issubclass(module.RemoteProtocolError, PolywireError)
