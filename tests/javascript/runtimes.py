"""Where the JavaScript client runs in tests: Node, with a WebSocket of ours and with Node's, and pages of browsers."""

import contextlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.browser import Browser, Firefox, blank_site, chromium, firefox, firefox_program, program

FOLDER = Path(__file__).parent
CLIENT = FOLDER.parents[1] / "clients" / "javascript"
SCENARIOS = FOLDER / "scenarios.js"
SECONDS = 40.0
"""How long one scenario may take, on a loaded machine."""

IN_PAGE = """
    const [client, scenarios] = await Promise.all(["/polywire.js", "/scenarios.js"].map(path => import(path)));
    console.error = () => {};
    return await scenarios[%s](client, ...%s);
"""


class Runtime(Protocol):
    """Runs a scenario of ``scenarios.js``, and gives what it returns. What it leaves is there for the next one."""

    def run(self, name: str, *args: object) -> Any: ...


class Node:
    """A Node process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, name: str, *args: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": name, "args": args}) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        assert ready, f"{name} takes longer than {SECONDS} s"
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer.get("value")


@dataclass
class Page:
    """A page of a site that has the client."""

    browser: Browser | Firefox
    url: str

    def __post_init__(self) -> None:
        self._page = self.browser.page(self.url)

    def run(self, name: str, *args: object) -> Any:
        return self._page.run(IN_PAGE % (json.dumps(name), json.dumps(args)))


@contextlib.contextmanager
def node(*options: str, **environment: str) -> Iterator[Node]:
    """Node, with options of its own."""
    command = ["node", *options, str(FOLDER / "runner.js"), str(CLIENT / "node.js"), str(SCENARIOS)]
    environment = {**os.environ, "NODE_NO_WARNINGS": "1", **environment}
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        try:
            yield Node(process)
        finally:
            process.kill()


@contextlib.contextmanager
def site() -> Iterator[int]:
    """A site with the client. Gives its port."""
    with blank_site({"/polywire.js": CLIENT / "polywire.js", "/scenarios.js": SCENARIOS}) as port:
        yield port


NAMES = ("node", "node-websocket", "chromium", "firefox")
_BROWSERS: dict[str, Callable[[], object]] = {"chromium": program, "firefox": firefox_program}
IS_CI = "POLYWIRE_CI" in os.environ
"""Whether what is missing is an error, and no reason to skip a test."""

needs_node = pytest.mark.skipif(
    shutil.which("node") is None and not IS_CI, reason="Node is not installed: tests need version 20 or newer"
)


@contextlib.contextmanager
def runtime(name: str, url: str) -> Iterator[Runtime]:
    """A runtime by its name. ``url`` is where the pages of browsers are from."""
    if name in _BROWSERS and not _BROWSERS[name]():
        pytest.skip(f"{name} is not installed: run 'make setup' as root")
    if name == "chromium":
        with chromium() as browser:
            yield Page(browser, url)
    elif name == "firefox":
        with firefox() as other:
            yield Page(other, url)
    else:
        with node(*(["--experimental-websocket"] if name == "node-websocket" else [])) as process:
            yield process
