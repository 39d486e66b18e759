"""Starting and ending the brokers that are measured: our own hub and its peers, on ports of their own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

START_SECONDS = 30


@contextlib.contextmanager
def polywire(
    *sets: str, source: Path | None = None, arguments: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, int], int]]:
    """A hub on free ports, without a journal. Gives the ports by listener, and the process id.

    ``source`` is where another version of polywire is, ``arguments`` are further ones of ``polywire serve``.
    """
    keys = ("http", "umq", "micromsg", "fmqp", "mqtt", "mqtt_ws", "sabc", "sabc_ws")
    schemes = {"http": "http", "umq": "ws", "mqtt_ws": "ws", "sabc_ws": "ws"}
    paths = {"umq": "/umq", "mqtt_ws": "/mqtt", "sabc_ws": "/sabc"}
    listen = [f"listen.{key}={schemes.get(key, 'tcp')}://127.0.0.1:0{paths.get(key, '')}" for key in keys]
    command = [sys.executable, "-m", "polywire", "serve", *arguments]
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


class WorkerPort(int):
    """A port that several workers share, and the process of the one that is to accept the connections."""

    pid: int

    def __new__(cls, port: int, pid: int) -> Self:
        """A port of one worker."""
        made = super().__new__(cls, port)
        made.pid = pid
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return WorkerPort, (int(self), self.pid)


@contextlib.contextmanager
def workers(count: int, *sets: str) -> Iterator[list[dict[str, int]]]:
    """A hub with workers. Gives the ports of each by listener; ``http`` is the same for all."""
    with polywire(*sets, arguments=("--workers", str(count))) as (ports, _):
        found = []
        for node in cluster(ports["http"])["nodes"]:
            mine = {key: WorkerPort(port, node["pid"]) for key, port in ports.items()}
            found.append({**mine, "http": ports["http"]})
        yield found


def cluster(port: int) -> dict[str, Any]:
    """What ``/v1/cluster`` says at an HTTP listener."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/cluster", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@contextlib.contextmanager
def nats_hubs(count: int, servers: Sequence[int], *sets: str) -> Iterator[list[tuple[dict[str, int], int]]]:
    """Hubs that are one on NATS, each with a server of its own. Gives the ports and the process of each."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            server = servers[number % len(servers)]
            settings = [
                "fabric.kind=nats",
                f"fabric.node=hub-{number + 1}",
                f'fabric.url=["nats://127.0.0.1:{server}"]',
                *sets,
            ]
            found.append(stack.enter_context(polywire(*settings)))
        end = time.monotonic() + START_SECONDS
        while any(_links_up(ports["http"]) < count - 1 for ports, _ in found):
            if time.monotonic() > end:
                raise RuntimeError("the hubs have not found each other")
            time.sleep(0.05)
        yield found


def _links_up(port: int) -> int:
    return sum(link["up"] for node in cluster(port)["nodes"] for link in node.get("links", {}).values())


@contextlib.contextmanager
def nats_cluster(count: int, folder: Path | None = None) -> Iterator[list[int]]:
    """Servers with routes between them, with JetStream where there is a folder. Gives their ports."""
    ports = [free_port() for _ in range(count)]
    routes = [free_port() for _ in range(count)]
    with contextlib.ExitStack() as stack:
        for number, port in enumerate(ports):
            words = ["--cluster_name", "bench", "-n", f"nats-{number}"]
            words += ["--cluster", f"nats://127.0.0.1:{routes[number]}"]
            words += ["--routes", ",".join(f"nats://127.0.0.1:{each}" for each in routes)]
            if folder is not None:
                config = folder / f"nats-{number}.conf"
                config.write_text(f'jetstream {{ store_dir: "{folder}/{number}", sync_interval: always }}\n')
                words += ["-c", str(config)]
            stack.enter_context(_nats(port, *words))
        time.sleep(2)  # until they have found each other, and a leader
        yield ports


@contextlib.contextmanager
def nats_server() -> Iterator[tuple[int, int]]:
    """A nats-server on a free port. Gives the port and the process id."""
    with _nats(free_port()) as found:
        yield found


@contextlib.contextmanager
def _nats(port: int, *words: str) -> Iterator[tuple[int, int]]:
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise RuntimeError("nats-server is not installed; run 'make setup'")
    command = [program, "-a", "127.0.0.1", "-p", str(port), *words]
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
