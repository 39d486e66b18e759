"""Which modules run compiled, and how to run them interpreted."""

import os
import subprocess
import sys

import pytest

import polywire
from polywire.process import hot_modules, pure_wanted
from polywire.protocols.fmqp import Publication

SCRIPT = "import polywire; print(sorted(set(polywire.compiled().values())))"
DEEP = """
from polywire.hub.message import Message
from polywire.hub.trie import Trie
from polywire.protocols.fmqp import Publication
trie, nest = Trie(), []
trie.add("/".join(["level"] * 1000), Message("a", b"x"))
for _ in range(1000):
    nest = [nest, Message("a", b"x"), Publication("a", b"x")]
del trie, nest
"""


def test_every_hot_module_is_told_of() -> None:
    assert list(polywire.compiled()) == list(hot_modules())


def test_hot_modules_run_all_compiled_or_all_interpreted() -> None:
    assert len(set(polywire.compiled().values())) == 1


def test_the_environment_can_ask_for_interpreted_modules() -> None:
    environment = {**os.environ, "POLYWIRE_PURE": "1"}
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False]"


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_pure_is_wanted_unless_zero_or_empty(value: str, *, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYWIRE_PURE", value)
    assert pure_wanted() is wanted


def test_compiled_frames_refuse_to_change() -> None:
    frame = Publication("a", b"x")
    if all(polywire.compiled().values()):
        with pytest.raises(AttributeError):
            frame.topic = "b"  # type: ignore[misc]
    assert frame == Publication("a", b"x")


def test_what_is_nested_deeply_ends_without_harm() -> None:
    environment = {**os.environ, "PYTHONMALLOC": "debug"}  # anything written outside an object's own memory is found
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-c", DEEP], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
