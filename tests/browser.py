"""Real browsers for tests: Chromium, driven by its DevTools protocol over two pipes, and Firefox, by WebDriver BiDi.

``with chromium() as browser: browser.page(url)`` opens a page, ``page.run("await …")`` evaluates JavaScript in it; the
same with ``firefox()``. Tests that need Chromium are marked with ``needs_browser``. Those are skipped where it is not
installed (``make setup`` does that).
"""

import contextlib
import fcntl
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import pytest
from websockets.exceptions import ConnectionClosed

from tests.web import open_web

SECONDS = 60.0
"""How long the browser may take for anything; it starts slowly on a loaded machine."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--password-store=basic",
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # any name that ends so is this machine, for tests of host names
    "--remote-debugging-pipe",
)


def program() -> str | None:
    """Where the browser is installed, None if it is not."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def firefox_program() -> str | None:
    """Where Firefox is installed, None if it is not."""
    return shutil.which("firefox-esr") or shutil.which("firefox")


needs_browser = pytest.mark.skipif(program() is None, reason="Chromium is not installed: run 'make setup' as root")


class BrowserError(Exception):
    """The browser refused a command, or JavaScript in a page threw."""


class Browser:
    """A running browser. It reads commands from its file descriptor 3, and answers on 4."""

    def __init__(self, folder: str, *, trust_all: bool = False) -> None:
        path = program()
        assert path is not None, "no browser is installed"
        near_commands, self._commands = os.pipe()
        self._answers, near_answers = os.pipe()
        # The shell below moves them to 3 and 4, so they must not be in the way themselves.
        commands, answers = (fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in (near_commands, near_answers))
        os.close(near_commands)
        os.close(near_answers)
        more = ("--ignore-certificate-errors",) if trust_all else ()
        command = [path, *OPTIONS, *more, f"--user-data-dir={folder}", "about:blank"]
        start = f'exec 3<&{commands} 4>&{answers} {commands}<&- {answers}>&-; exec "$@"'
        self._process = subprocess.Popen(  # noqa: S603 - a browser, and our own words
            ["/bin/bash", "-c", start, "browser", *command],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrowserError, OSError, TimeoutError):
            self.command("Browser.close")
        os.close(self._commands)
        os.close(self._answers)
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def page(self, url: str) -> "Page":
        """Open a page, and wait until it is loaded."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.go(url)
        return page

    def command(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result. Events are passed over."""
        number = next(self._numbers)
        request: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        end = time.monotonic() + SECONDS
        while True:
            answer = json.loads(self._message(end))
            if answer.get("id") == number:
                break
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self, end: float) -> bytes:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise BrowserError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return message


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def go(self, url: str) -> None:
        """Load another page here."""
        self._browser.command("Page.enable", self._session)
        error = self._browser.command("Page.navigate", self._session, url=url).get("errorText")
        if error:
            raise BrowserError(f"{url}: {error}")
        # Evaluated in the new document, which is there once ``navigate`` has answered.
        self.run("if (document.readyState !== 'complete') await new Promise(done => addEventListener('load', done));")

    def resize(self, width: int, height: int) -> None:
        """Show pages as a phone of this size does."""
        self._browser.command(
            "Emulation.setDeviceMetricsOverride",
            self._session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=True,
        )

    def run(self, script: str) -> Any:
        """What the body of an ``async`` function returns, evaluated in the page."""
        result = self._browser.command(
            "Runtime.evaluate",
            self._session,
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in result:
            thrown = result["exceptionDetails"].get("exception", {})
            raise BrowserError(thrown.get("description") or str(thrown.get("value")))
        return result["result"].get("value")


FIREFOX_SETTINGS = {
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.safebrowsing.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.getAddons.cache.enabled": False,
    "media.gmp-manager.updateEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.dns.localDomains": "other.test,console.test",
    "network.proxy.type": 0,
    "services.settings.server": "http://127.0.0.1:9/",
    "toolkit.telemetry.unified": False,
}
"""Above all: no connections to anywhere but the pages of tests."""


class Firefox:
    """A running Firefox."""

    def __init__(self, folder: str) -> None:
        path = firefox_program()
        assert path is not None, "Firefox is not installed"
        settings = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in FIREFOX_SETTINGS.items()
        ]
        (Path(folder) / "user.js").write_text("".join(settings), encoding="utf-8")
        options = ("--headless", "--no-remote", "--profile", folder, "--remote-debugging-port=0", "about:blank")
        self._process = subprocess.Popen(  # noqa: S603 - a browser, and our own words
            [path, *options],
            env={**os.environ, "HOME": folder, "MOZ_CRASHREPORTER_DISABLE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        killer = threading.Timer(SECONDS, self._process.kill)
        killer.start()
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "WebDriver BiDi listening on " in line:
                break
        else:
            raise BrowserError(f"Firefox did not start: {''.join(said)}")
        killer.cancel()
        # Nobody needs what else it prints, and it must not wait for a reader.
        self._rest = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._rest.start()
        self._web = open_web(line.split()[-1] + "/session")
        self._numbers = itertools.count(1)
        self.command("session.new", capabilities={})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrowserError, OSError, TimeoutError, ConnectionClosed):
            self.command("browser.close")
        self._web.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._rest.join(SECONDS)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def page(self, url: str) -> "FirefoxPage":
        """Open a page, and wait until it is loaded."""
        page = FirefoxPage(self, self.command("browsingContext.create", type="tab")["context"])
        page.go(url)
        return page

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of WebDriver BiDi, and its result. Events are passed over."""
        number = next(self._numbers)
        self._web.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._web.recv())).get("id") != number:
            pass
        if answer["type"] == "error":
            raise BrowserError(f"{method}: {answer['message']}")
        result: dict[str, Any] = answer["result"]
        return result


class FirefoxPage:
    """One tab of Firefox."""

    def __init__(self, browser: Firefox, context: str) -> None:
        self._browser = browser
        self._context = context

    def go(self, url: str) -> None:
        """Load another page here."""
        self._browser.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def run(self, script: str) -> Any:
        """What the body of an ``async`` function returns, evaluated in the page."""
        answer = self._browser.command(
            "script.evaluate",
            expression=f"(async () => {{ {script} }})().then(value => JSON.stringify(value))",
            target={"context": self._context},
            awaitPromise=True,
        )
        if answer["type"] == "exception":
            raise BrowserError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"].get("value", "null"))


@contextlib.contextmanager
def firefox() -> Iterator[Firefox]:
    """Firefox, with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Firefox(folder) as found:
        yield found


@contextlib.contextmanager
def chromium(*, trust_all: bool = False) -> Iterator[Browser]:
    """A browser with a profile of its own. ``trust_all``: whatever certificates servers have."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Browser(folder, trust_all=trust_all) as found,
    ):
        yield found


class _Site(http.server.BaseHTTPRequestHandler):
    files: ClassVar[Mapping[str, Path]]

    def do_GET(self) -> None:
        """A file, or an empty page at every other path."""
        file = self.files.get(self.path)
        body = b"<!doctype html><p>page" if file is None else file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if file is None else "text/javascript")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def blank_site(files: Mapping[str, Path] = MappingProxyType({})) -> Iterator[int]:
    """A site of empty pages, for scripts that shall run at an origin of their own. Gives its port on 127.0.0.1.

    ``files`` are the scripts it has, by their paths.
    """
    handler = type("Site", (_Site,), {"files": files})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(SECONDS)
