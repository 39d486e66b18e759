"""NATS servers with JetStream in processes of their own: one, or a cluster of three."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 60.0
PROGRAM = Path(sys.executable).with_name("nats-server")


@dataclass
class NatsServer:
    """One server. It can be killed, paused and started again with what it had on disk."""

    name: str
    port: int
    monitor: int
    config: Path
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self.monitor}"

    def start(self) -> None:
        log = self.config.with_suffix(".log").open("ab")
        with log:
            self.process = subprocess.Popen([PROGRAM, "-c", self.config], stdout=log, stderr=log)  # noqa: S603

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def has_leader(self) -> bool:
        """Whether JetStream has a leader that may create streams, in a cluster."""
        try:
            with urllib.request.urlopen(f"{self.monitor_url}/jsz", timeout=2) as answer:  # noqa: S310
                return bool(json.load(answer)["meta_cluster"]["leader"])
        except (OSError, ValueError, KeyError):
            return False

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.monitor_url}/healthz", timeout=2) as answer:  # noqa: S310
                return bool(json.load(answer)["status"] == "ok")
        except (OSError, ValueError, urllib.error.URLError):
            return False


@dataclass
class NatsCluster:
    """Servers that know each other."""

    servers: list[NatsServer]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.url for each in self.servers)

    def wait(self) -> None:
        """Wait until every server that runs says that it is well: JetStream has a leader and is up to date."""
        deadline = time.monotonic() + START_SECONDS
        alone = len(self.servers) == 1
        while not all(
            each.is_healthy() and (alone or each.has_leader()) for each in self.servers if each.process is not None
        ):
            assert time.monotonic() < deadline, "the NATS servers did not get ready"
            time.sleep(0.05)


@contextlib.contextmanager
def running_nats(folder: Path, count: int = 1, *, sync_always: bool = False, extra: str = "") -> Iterator[NatsCluster]:
    """``count`` servers on loopback, on free ports. ``extra`` goes into the configuration of each."""
    ports = _free_ports(3 * count)
    servers = []
    for index in range(count):
        port, monitor, route = ports[3 * index : 3 * index + 3]
        config = folder / f"nats-{index}.conf"
        sync = ", sync_interval: always" if sync_always else ""
        lines = [
            f"server_name: nats-{index}",
            f"listen: 127.0.0.1:{port}",
            f"http: 127.0.0.1:{monitor}",
            f'jetstream {{ store_dir: "{folder}/store-{index}"{sync} }}',
            extra,
        ]
        if count > 1:
            routes = ", ".join(f"nats://127.0.0.1:{ports[3 * each + 2]}" for each in range(count))
            lines.append(f"cluster {{ name: tests, listen: 127.0.0.1:{route}, routes: [{routes}] }}")
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        servers.append(NatsServer(f"nats-{index}", port, monitor, config))
    cluster = NatsCluster(servers)
    try:
        for each in servers:
            each.start()
        cluster.wait()
        yield cluster
    finally:
        for each in servers:
            each.kill()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now. All are taken before any is let go, so they differ."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]
