"""Ways to a certain worker of a hub. Workers share their ports, so a client can't choose one; tests have to."""

import contextlib
import functools
import itertools
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from polywire.protocols.fmqp import Publication, Subscription, encode
from tests.faults.proxy import Proxy, dial_loopback
from tests.hub_process import HubProcess
from tests.wires import connected

SECONDS = 30.0
ACCEPT_SECONDS = 0.5
"""How long a connection waits for somebody to accept it: the worker that it was dealt to may stand still."""

_NUMBERS = itertools.count()


class NobodyError(OSError):
    """No worker has accepted a connection in time."""


def dial_worker(port: int, pid: int) -> socket.socket:
    """A connection to a port that this process has accepted: others are closed until there is one."""
    port = int(port)  # some ports know more than their number
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        connection = dial_loopback(port)
        try:
            if _is_with(connection, port, pid):
                return connection
        except OSError:
            connection.close()
            raise
        connection.close()
    raise NobodyError(f"process {pid} accepts no connections to port {port}")


def _is_with(connection: socket.socket, port: int, pid: int) -> bool:
    """Whether a process has the other end of a connection, once any process has."""
    host = "0100007F"
    ends = f"{host}:{port:04X} {host}:{connection.getsockname()[1]:04X} "
    end = time.monotonic() + ACCEPT_SECONDS
    while time.monotonic() < end:
        found = [line for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines() if ends in line]
        if not found:
            return False  # who was to accept it has ended
        inode = found[0].split()[9]
        if inode != "0":
            return _has(pid, f"socket:[{inode}]")
        time.sleep(0.0005)  # it is not accepted yet
    return False


def _has(pid: int, what: str) -> bool:
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(each.readlink()) == what:
                return True
    return False


def _runs(pid: int) -> bool:
    """Whether a process has not ended. One that was killed has no file open, even before its parent knows."""
    try:
        return bool(pid) and any(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def wait_until_told(subscriber: str, publisher: str) -> None:
    """Wait until the node of a publisher knows what the clients of another one have subscribed to by now.

    Both are addresses for FMQP. Nodes tell each other in order, so it is enough to subscribe to something more, and to
    publish that until it arrives.
    """
    channel = f"told/{next(_NUMBERS)}"
    with connected(subscriber) as one, connected(publisher) as other:
        one.sendall(encode(Subscription(channel)))
        end = time.monotonic() + SECONDS
        while not select.select([one], [], [], 0.01)[0]:
            if time.monotonic() > end:
                raise NobodyError(f"{publisher} does not learn of a subscriber at {subscriber}")
            other.sendall(encode(Publication(channel, b"!")))


class Doors:
    """Addresses of the listeners of each node by itself, as the ``ready`` line has them, and a proxy behind each.

    A worker that was started again is found again.
    """

    def __init__(self, hub: HubProcess) -> None:
        self.addresses: dict[str, dict[str, str]] = {}
        self.proxies: dict[str, list[Proxy]] = {}
        self._pids: dict[str, int] = {}
        for node in hub.workers():
            self.add(node, hub, functools.partial(self._dial, hub, node))

    def _dial(self, hub: HubProcess, node: str, port: int) -> socket.socket:
        """A connection to a worker. ``NobodyError`` at once while it is being started again."""
        pid = self._pids.get(node, 0)
        if not _runs(pid):
            found = next(each for each in hub.cluster()["nodes"] if each["node"] == node)
            if found["state"] != "running":
                raise NobodyError(f"{node} is {found['state']}")
            pid = self._pids[node] = found["pid"]
        return dial_worker(port, pid)

    def add(self, node: str, hub: HubProcess, dial: Callable[[int], socket.socket] = dial_loopback) -> None:
        """A node whose listeners are those of this hub."""
        made: dict[int, Proxy] = {}
        for key in hub.addresses:
            port = hub.port(key)
            if key != "http" and port not in made:
                made[port] = Proxy(port, dial=dial)
        self.proxies[node] = list(made.values())
        self.addresses[node] = {
            key: address.replace(f":{hub.port(key)}", f":{made[hub.port(key)].port}") if key != "http" else address
            for key, address in hub.addresses.items()
        }

    def cut(self, node: str) -> None:
        """Hang up on everybody who is connected to a node through its door."""
        for each in self.proxies[node]:
            each.cut()

    def close(self) -> None:
        """Close all doors."""
        for proxies in self.proxies.values():
            for each in proxies:
                each.close()


@contextlib.contextmanager
def doors(hub: HubProcess) -> Iterator[Doors]:
    """A door to each worker of a hub."""
    found = Doors(hub)
    try:
        yield found
    finally:
        found.close()
