"""The demo's hub: a process of its own, with a journal, killed and started again on the same ports."""

import asyncio
import json
import re
import signal
import socket
import sys
from pathlib import Path

from polywire.errors import PolywireError
from polywire.registry import built_in, protocols

START_SECONDS = 60.0
LISTENERS = {"http": "http://127.0.0.1:{}"} | {
    each.name: re.sub(r"\d+(?=/|$)", "{}", each.listeners[0].default) for each in built_in() if each.listeners
}
"""The HTTP listener, and the first one of each protocol."""


class DemoError(PolywireError):
    """A part of the demo did not do its part."""


class DemoHub:
    """One hub on loopback, on ports that were free when it was made."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._ports = {key: _free_port() for key in LISTENERS}
        self._process: asyncio.subprocess.Process | None = None
        self._log = journal.with_suffix(".log")

    def url(self, protocol: str) -> str:
        """Where clients of a protocol connect to."""
        return f"{protocol}://127.0.0.1:{self._ports[protocol]}"

    async def start(self) -> dict[str, str]:
        """Start it and wait until it listens. Returns the addresses of its ``ready`` line."""
        command = [sys.executable, "-m", "polywire", "serve", "--set", f"journal.path={self.journal}"]
        for key in [each.key for protocol in protocols() for each in protocol.listeners if each.key not in LISTENERS]:
            command += ["--set", f"listen.{key}=off"]
        for key, address in LISTENERS.items():
            command += ["--set", f"listen.{key}={address.format(self._ports[key])}"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            await self.stop(signal.SIGKILL)
            raise DemoError(f"the hub did not start; its log is {self._log}")
        addresses: dict[str, str] = json.loads(line.removeprefix(b"ready "))
        return addresses

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: SIGTERM lets it finish its work, SIGKILL does not."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(how)
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
