"""Packages that bring a protocol, and can't be used: the hub says so, and goes on with the others."""

import os
from pathlib import Path

import pytest

import polywire
from polywire.registry import Unusable
from tests.hub_process import PROGRAM, running_hub

DESCRIPTOR = """
from polywire.registry import Listener, Protocol

PROTOCOL = Protocol(
    name="line",
    title="Lines",
    code=64,
    package=__name__,
    listeners=(Listener(key="line", about="Lines."),),
    session="session:LineSession",
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where hubs find packages."""
    sources = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sources))
    return tmp_path


def install(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[polywire.protocols]\nline = {name}:PROTOCOL\n", encoding="utf-8")


def test_a_broken_package_is_reported_and_the_others_are_used(installed: Path) -> None:
    install(installed, "broken_line", "raise RuntimeError('out of lines')")
    install(installed, "polywire_line", DESCRIPTOR)
    with running_hub(program=PROGRAM) as hub:  # a listener without a default is off
        line = hub.wait_for_log("broken_line")
        assert "ERROR" in line
        assert "the protocol of broken_line can't be used: broken_line:PROTOCOL can't be loaded: RuntimeError" in line
        assert "line" not in hub.addresses
        assert hub.metric('polywire_connections{protocol="line"}') == 0
        assert "Traceback" not in "".join(hub.errors)


def test_a_listener_of_a_package_that_is_not_used_is_an_error_with_the_reason(installed: Path) -> None:
    install(installed, "first_line", DESCRIPTOR)
    install(installed, "second_line", DESCRIPTOR.replace("code=64", "code=65"))
    with pytest.raises(RuntimeError) as caught, running_hub("listen.line=tcp://127.0.0.1:0", program=PROGRAM):
        pass
    shown = str(caught.value)
    assert "listen.line: no such key" in shown
    assert "the protocol of first_line can't be used: the name 'line' is claimed by first_line and second_line" in shown
    assert "Traceback" not in shown


def test_a_session_that_can_not_be_imported_is_an_error_with_its_listener_and_package(installed: Path) -> None:
    install(installed, "polywire_line", DESCRIPTOR)
    with pytest.raises(RuntimeError) as caught, running_hub("listen.line=tcp://127.0.0.1:0", program=PROGRAM):
        pass
    shown = str(caught.value)
    assert "listen.line: polywire_line: 'session:LineSession' of line can't be loaded: ModuleNotFoundError" in shown
    assert "Traceback" not in shown


def test_a_url_of_a_package_that_is_not_used_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Unusable("broken_line", "it is broken")
    monkeypatch.setattr("polywire.client.address.unusable", lambda: (lost,))
    with pytest.raises(polywire.AddressError, match=r"there is umq, .*; the protocol of broken_line can't be used"):
        polywire.connect("line://127.0.0.1")
