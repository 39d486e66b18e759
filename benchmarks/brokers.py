"""Starting and ending the brokers that are measured: our own hub and its peers, on ports of their own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 30


@contextlib.contextmanager
def polywire(*sets: str, source: Path | None = None) -> Iterator[tuple[dict[str, int], int]]:
    """A hub on free ports, without a journal. Gives the ports by listener, and the process id.

    ``source`` is where another version of polywire is.
    """
    keys = ("http", "umq", "micromsg", "fmqp", "mqtt", "mqtt_ws", "sabc", "sabc_ws")
    schemes = {"http": "http", "umq": "ws", "mqtt_ws": "ws", "sabc_ws": "ws"}
    paths = {"umq": "/umq", "mqtt_ws": "/mqtt", "sabc_ws": "/sabc"}
    listen = [f"listen.{key}={schemes.get(key, 'tcp')}://127.0.0.1:0{paths.get(key, '')}" for key in keys]
    command = [sys.executable, "-m", "polywire", "serve"]
    for each in [*listen, "journal.enabled=false", *sets]:
        command += ["--set", each]
    environment = os.environ if source is None else os.environ | {"PYTHONPATH": str(source)}
    output = subprocess.PIPE
    with subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise RuntimeError("the hub did not start; try 'polywire serve' to see why")
            addresses = json.loads(line.removeprefix("ready "))
            yield {key: int(text.split(":")[2].split("/")[0]) for key, text in addresses.items()}, process.pid
        finally:
            process.kill()


@contextlib.contextmanager
def nats_server() -> Iterator[tuple[int, int]]:
    """A nats-server on a free port. Gives the port and the process id."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise RuntimeError("nats-server is not installed; run 'make setup'")
    port = free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port, process.pid
        finally:
            process.kill()


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    """A Mosquitto on a free port that keeps what it has in a folder. Gives the port."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin") or shutil.which("mosquitto")
    if program is None:
        raise RuntimeError("mosquitto is not installed; run 'make setup' as root")
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "mosquitto.conf"
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "user root",
        "persistence true",
        f"persistence_location {folder}/",
        "max_inflight_messages 0",
        "max_queued_messages 0",
    ]
    config.write_text("\n".join(lines) + "\n")
    command = [program, "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port
        finally:
            process.kill()


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")
