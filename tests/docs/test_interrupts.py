"""Ctrl-C ends the programs of the tutorials and of ``examples/`` without a traceback."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.walkthrough import steps

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
PROGRAMS = [
    pytest.param(step.text, ("2",), id=step.name)
    for page in PAGES
    for step in steps(page)
    if step.what == "file" and "connect(" in step.text and "spark" not in step.text
] + [
    pytest.param(path.read_text(encoding="utf-8"), ("--url", "URL"), id=f"{path.parent.name}/{path.name}")
    for path in sorted((ROOT / "examples").glob("*/*.py"))
    if path.name != "server.py"  # those wait for others, and tests/examples interrupts them
]


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers, so that no program ends by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(40)
        yield listening


def wait_until_it_is_connected(peer: socket.socket) -> None:
    """Until the program speaks, or could have: interrupted while it connects, asyncio may print a traceback."""
    peer.settimeout(1)
    with contextlib.suppress(TimeoutError):
        peer.recv(1)


@pytest.mark.parametrize(("text", "arguments"), PROGRAMS)
def test_ctrl_c_ends_a_program_quietly(
    text: str, arguments: tuple[str, ...], silent: socket.socket, tmp_path: Path
) -> None:
    port = silent.getsockname()[1]
    (url,) = set(re.findall(r"[a-z]+://127\.0\.0\.1:\d{4}", text)[:1])
    program = tmp_path / "program.py"
    program.write_text(re.sub(r"(?<=127\.0\.0\.1:)\d{4}", str(port), text), encoding="utf-8")
    words = [url.rpartition(":")[0] + f":{port}" if each == "URL" else each for each in arguments]
    command = [sys.executable, str(program), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            peer, _ = silent.accept()
            with peer:
                wait_until_it_is_connected(peer)
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=40)
        finally:
            process.kill()
    assert complaints == ""
    assert process.returncode in {0, 130}
