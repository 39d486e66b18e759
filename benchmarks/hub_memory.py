"""What the hub's process holds in memory: with idle connections, and with a subscriber that never reads."""

import contextlib
import re
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import polywire
from benchmarks.goals import Line
from benchmarks.hub_peers import connect, peer, read_exactly
from polywire.protocols.fmqp import Publication, Subscription, encode

MB = 1_000_000
SPARE_FILES = 200
SECONDS = 60
BODY = b"x" * 1000


def memory(pid: int, key: str = "VmRSS") -> float:
    """The megabytes a process holds, or with ``VmHWM`` the most it ever held."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / MB


def idle(count: int) -> Iterator[Line]:
    """The goal about connections that do nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + SPARE_FILES > hard:
        raise RuntimeError(f"{count:,} connections need a limit of {count + SPARE_FILES:,} open files, not {hard:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the hub's process inherits it
    with contextlib.ExitStack() as stack:
        ports, pid = stack.enter_context(polywire())
        _wait_for_clients(ports["http"], 0)
        before = memory(pid)
        for _ in range(count):
            stack.enter_context(connect(ports["fmqp"]))
        _wait_for_clients(ports["http"], count)
        after = memory(pid)
        shown = f"{before:.0f} MB, then {after:.0f} MB"
        yield Line(f"{count:,} idle connections, more memory", shown, after - before, most=120, unit="MB")


def _wait_for_clients(port: int, count: int) -> None:
    """Wait until the hub counts so many clients of FMQP."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        if f'polywire_connections{{protocol="fmqp"}} {count}.0' in text:
            return
        time.sleep(0.05)
    raise RuntimeError(f"the hub did not take {count:,} connections")


def not_reading(protocol: str, octets: int) -> Iterator[Line]:
    """The goal about a subscriber that never reads what is published to it."""
    clients = peer(protocol)
    block = clients.frame("flood", BODY) * 1000
    with polywire() as (ports, pid), clients.subscribe(ports[protocol], ["flood"]):
        with clients.publisher(ports[protocol]) as publisher:
            for _ in range(max(1, octets // len(block))):
                publisher.sendall(block)
            publisher.shutdown(socket.SHUT_WR)
            assert publisher.recv(1) == b""  # the hub hangs up once it has read everything
        _answered(ports["fmqp"])
        most = memory(pid, "VmHWM")
        shown = f"{octets / MB:,.0f} MB published with {clients.name}"
        yield Line("a subscriber that never reads, memory in all", shown, most, most=150, unit="MB")


def _answered(port: int) -> None:
    """The hub is still there for others."""
    echo = encode(Publication("alive", b"!"))
    with connect(port) as connection:
        connection.sendall(encode(Subscription("alive")) + echo)
        assert read_exactly(connection, len(echo)) == echo
