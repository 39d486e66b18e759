"""What a hostile network does to a hub, each as a function that goes on until it is told to stop.

They are many and bounded: no attacker keeps more than a few connections open, so that the test's own process does not
run out of anything. A refusal, in whatever way, is what they expect.
"""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

from polywire.protocols import fmqp, mqtt
from tests.faults.friends import FRIENDS, HungUpError, Line, line, masked, reach, upgrade
from tests.hub_process import LISTEN, HubProcess

SOURCE = "127.0.0.2"
"""Where attackers come from, so that what they are punished with does not meet the others."""

HELD = 20
"""Connections one attacker keeps."""

PAUSE = 0.02
WAIT = 0.3
"""Seconds an attacker waits for an answer."""

Attack = Callable[[HubProcess, threading.Event], None]
ATTACKS: list[Attack] = []


def attack(function: Attack) -> Attack:
    """Have it take part."""
    ATTACKS.append(function)
    return function


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Being cut off is the expected end."""
    with contextlib.suppress(OSError, HungUpError):
        yield


def reached(hub: HubProcess, key: str) -> socket.socket:
    connection = reach(hub, key, source=SOURCE)
    connection.settimeout(WAIT)
    return connection


def opened(hub: HubProcess, key: str) -> Line:
    made = line(hub, key, source=SOURCE)
    made.socket.settimeout(WAIT)
    return made


def kept(connections: list[socket.socket], new: socket.socket) -> None:
    """Keep a connection open, and no more than ``HELD`` of them."""
    connections.append(new)
    if len(connections) > HELD:
        connections.pop(0).close()


@attack
def garbage(hub: HubProcess, stop: threading.Event) -> None:
    chance = random.Random(1)  # noqa: S311 - for a test
    while not stop.wait(PAUSE):
        for key in LISTEN:
            with refused(), reached(hub, key) as connection:
                connection.sendall(chance.randbytes(chance.choice((1, 7, 300, 70000))))
                connection.recv(100)


@attack
def half_frames(hub: HubProcess, stop: threading.Event) -> None:
    halves = {
        "fmqp": fmqp.encode(fmqp.Publication("hot", b"never finished"))[:-3],
        "mqtt": mqtt.encode(mqtt.Connect("half"))[:-2],
        "micromsg": b"\x01\x00",
        "sabc": b"CONNECT\r\nclient-id::h",
        "umq": b"GET /umq HTTP/1.1\r\nHost: x\r\n",
        "http": b"GET /metrics HTTP/1.1\r\nHo",
    }
    connections: list[socket.socket] = []
    while not stop.wait(PAUSE):
        for key, half in halves.items():
            with refused():
                connection = reached(hub, key)
                kept(connections, connection)
                connection.sendall(half)
    for each in connections:
        each.close()


@attack
def silence(hub: HubProcess, stop: threading.Event) -> None:
    connections: list[socket.socket] = []
    while not stop.wait(PAUSE):
        for key in LISTEN:
            with refused():
                kept(connections, reached(hub, key))
    for each in connections:
        each.close()


@attack
def floods_of_connections(hub: HubProcess, stop: threading.Event) -> None:
    while not stop.wait(PAUSE):
        for key in LISTEN:
            with refused(), contextlib.ExitStack() as stack:
                for _ in range(5):
                    stack.enter_context(reached(hub, key))


@attack
def readers_that_do_not_read(hub: HubProcess, stop: threading.Event) -> None:
    """They subscribe to what the friends publish and to a hot topic of their own, and read nothing."""
    with contextlib.ExitStack() as stack:
        for key, (make, _) in FRIENDS.items():
            made = line(hub, key)
            stack.callback(made.socket.close)
            lazy = make(made, "", "")
            lazy.subscribe("hot")
        pusher = FRIENDS["fmqp"][0](stack_line(stack, hub), "", "")
        load = pusher.push("hot", b"z" * 5000) * 20
        while not stop.wait(PAUSE):
            pusher.line.send(load)


def stack_line(stack: contextlib.ExitStack, hub: HubProcess) -> Line:
    made = line(hub, "fmqp")
    stack.callback(made.socket.close)
    return made


@attack
def giant_lengths(hub: HubProcess, stop: threading.Event) -> None:
    giants = {
        "fmqp": b"\x80\x03hot" + b"\xff" * 8,
        "mqtt": b"\x10\xff\xff\xff\x7f",
        "micromsg": b"\x01\x00" + b"\xff" * 12,
        "sabc": b"CONNECT\r\nclient-id::" + b"x" * 300_000,
    }
    while not stop.wait(PAUSE):
        for key, octets in giants.items():
            with refused(), reached(hub, key) as connection:
                connection.sendall(octets)
                connection.sendall(bytes(100_000))
                connection.recv(100)


ABUSE = (
    b"\x81\x03abc",  # not masked
    masked(0x83, b"x"),  # no such opcode
    masked(0x8F, b"x"),
    masked(0xC1, b"x"),  # reserved bits
    masked(0xA1, b"x"),
    masked(0x09, b"x"),  # a control frame in parts
    masked(0x89, b"x" * 126),  # too long a control frame
    masked(0x80, b"x"),  # the rest of nothing
    masked(0x01, b"x") + masked(0x81, b"y"),  # a message in a message
    masked(0x81, b"\xff\xfe"),  # no UTF-8
    masked(0x82, b"\xff\xfe"),
    masked(0x81, b""),
    b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4) + bytes(50_000),  # huge
    b"\x82\xff" + b"\xff" * 8 + bytes(4),
    b"\x82\xff" + (10_000_000).to_bytes(8, "big") + bytes(4) + bytes(300_000),  # large, before any login
    masked(0x01, b"x") + masked(0x00, b"y") * 20_000,  # parts without an end
    masked(0x02, bytes(60_000)) + masked(0x00, bytes(60_000)) * 5,
    masked(0x88, b"x"),  # closing badly
    masked(0x88, b"\x03\xed"),
    masked(0x88, b"\x03\xe8\xff"),
    masked(0x88, b"") * 3,
    masked(0x8A, b"pong"),
)


@attack
def websocket_abuse(hub: HubProcess, stop: threading.Event) -> None:
    while not stop.wait(PAUSE):
        for key in ("umq", "mqtt_ws", "sabc_ws"):
            for octets in ABUSE:
                if stop.is_set():
                    return
                with refused():
                    abuser = opened(hub, key)
                    with abuser.socket:
                        abuser.socket.sendall(octets)
                        abuser.socket.recv(100)


@attack
def pings_without_reading(hub: HubProcess, stop: threading.Event) -> None:
    pings = masked(0x89, b"p" * 125) * 500
    while not stop.wait(PAUSE):
        with refused():
            pinger = opened(hub, "umq")
            with pinger.socket:
                pinger.send(b"H1:")
                while not stop.wait(PAUSE):
                    pinger.socket.sendall(pings)


@attack
def http_abuse(hub: HubProcess, stop: threading.Event) -> None:
    requests = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n" + bytes(200_000),
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000,  # answers nobody reads
        upgrade("/healthz"),
    )
    connections: list[socket.socket] = []
    while not stop.wait(PAUSE):
        for request in requests:
            for key in ("http", "umq"):
                with refused():
                    connection = reached(hub, key)
                    kept(connections, connection)
                    connection.sendall(request)
    for each in connections:
        each.close()


@attack
def wrong_passwords(hub: HubProcess, stop: threading.Event) -> None:
    while not stop.wait(PAUSE):
        for key, (make, _) in FRIENDS.items():
            if key != "fmqp":
                with refused(), contextlib.suppress(AssertionError):
                    guesser = opened(hub, key)
                    with guesser.socket:
                        make(guesser, "anna", "wrong")
