"""What a hostile network does to a hub: ``ATTACKS``, each a function that goes on until it is told to stop.

No attacker keeps more than some hundred connections open, so that its own process does not run out of anything. A
refusal, in whatever way, is what they expect. ``python -m tests.faults.attackers NAME ADDRESSES SECONDS`` runs one in a
process of its own, so that it does not slow down those who measure.
"""

import contextlib
import itertools
import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from faults.load import arrow_stream
from polywire.protocols import fmqp, mqtt
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, LAST_WILL
from tests.faults.friends import FRIENDS, HungUpError, Line, friend, line, masked, reach, upgrade
from tests.hub_process import LISTEN, HubProcess, NoProcess

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


LIGHT_ATTACKS = tuple(ATTACKS)
"""Those so far take little of their own process; they can run in threads, beside others."""


def flood(hub: HubProcess, stop: threading.Event, key: str, frames: Iterable[bytes], login: bytes = b"") -> None:
    """Send frames over one connection after the other, as long as there are any; read nothing that matters."""
    left = iter(frames)
    while not stop.is_set():
        with refused(), reached(hub, key) as connection:
            connection.sendall(login)
            while not stop.is_set():
                load = b"".join(itertools.islice(left, 50))
                if not load:
                    stop.wait(PAUSE)
                    return
                connection.sendall(load)
                drain(connection)
        stop.wait(PAUSE)


def drain(connection: socket.socket) -> None:
    """Take what there is to read, without waiting for it."""
    connection.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(65536):
            pass
    connection.settimeout(WAIT)


def posted(hub: HubProcess, head: str, pieces: Iterable[bytes], stop: threading.Event) -> None:
    """Make a POST request to ``/publish`` with a body in pieces, and take the answer."""
    names = "polywire-query: attack\r\npolywire-batch: 1\r\npolywire-part: 0\r\n"
    with refused(), reached(hub, "http") as connection:
        connection.sendall(f"POST /publish HTTP/1.1\r\nHost: localhost\r\n{names}{head}\r\n\r\n".encode())
        for piece in pieces:
            if stop.is_set():
                return
            connection.sendall(piece)
        connection.recv(1000)


def logged_in(client_id: str = "") -> bytes:
    return mqtt.encode(mqtt.Connect(client_id, clean_session=True, keep_alive=0))


@attack
def crossing_filters(hub: HubProcess, stop: threading.Event) -> None:
    """3,000 filters of 199 levels that all match one topic, by ways that hardly meet, and messages to that topic."""
    chance = random.Random(2)  # noqa: S311 - for a test
    filters = ["/".join(chance.choice("a+") for _ in range(199)) for _ in range(3000)]
    frames = [mqtt.encode(mqtt.Subscribe(number % 60_000 + 1, ((each, 0),))) for number, each in enumerate(filters)]
    flood(hub, stop, "mqtt", frames, logged_in())
    message = mqtt.encode(mqtt.Publish("/".join("a" * 199), b"x"))
    flood(hub, stop, "mqtt", itertools.repeat(message), logged_in())


@attack
def retained_names(hub: HubProcess, stop: threading.Event) -> None:
    """10,000 retained messages of a byte, with names of 60 kB."""
    names = (f"{number}/" + "x" * 60_000 for number in range(10_000))
    flood(hub, stop, "mqtt", (mqtt.encode(mqtt.Publish(each, b"x", retain=True)) for each in names), logged_in())
    stop.wait()


@attack
def many_queues(hub: HubProcess, stop: threading.Event) -> None:
    """20,000 of them, each with a message."""
    names = (f"queue/{number}/" + "q" * 1000 for number in range(20_000))
    flood(hub, stop, "mqtt", (mqtt.encode(mqtt.Publish(each, b"x" * 1000)) for each in names), logged_in())
    stop.wait()


@attack
def wills_at_once(hub: HubProcess, stop: threading.Event) -> None:
    """20 clients with a thousand last wills each hang up together, while somebody hears them."""
    wills = b"".join(fmqp.encode(fmqp.Publication(f"wills/{number}", b"gone", LAST_WILL)) for number in range(1000))
    with reached(hub, "fmqp") as listener:
        listener.sendall(fmqp.encode(fmqp.Subscription("wills/*")))
        while not stop.wait(PAUSE):
            with refused(), contextlib.ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(reached(hub, "fmqp")).sendall(wills)
            with refused():
                drain(listener)


@attack
def floods_of_input(hub: HubProcess, stop: threading.Event) -> None:
    """500 connections send more at once than can be handled: small messages, each to a topic of its own."""
    load = b"".join(fmqp.encode(fmqp.Publication(f"floods/{number}", b"x")) for number in range(20_000))
    while not stop.wait(PAUSE):
        with contextlib.ExitStack() as stack:
            flooding = [stack.enter_context(reached(hub, "fmqp")) for _ in range(500)]
            sent = dict.fromkeys(flooding, 0)
            for connection in flooding:
                connection.setblocking(False)  # noqa: FBT003 - the standard library's
            while sent and not stop.is_set():
                for connection in list(sent):
                    try:
                        sent[connection] += connection.send(load[sent[connection] :])
                    except BlockingIOError:
                        continue
                    except OSError:
                        del sent[connection]
                        continue
                    if sent[connection] == len(load):
                        del sent[connection]


@attack
def zstd_bombs(hub: HubProcess, stop: threading.Event) -> None:
    """A small body that would take 256 MiB."""
    row = {"channel": "bomb", "body": bytes(64 << 20), "retain": False, "queue": False}
    body = arrow_stream([row] * 4, compression="zstd")
    while not stop.wait(PAUSE):
        posted(hub, f"Content-Length: {len(body)}", [body], stop)


@attack
def tiny_chunks(hub: HubProcess, stop: threading.Event) -> None:
    """Millions of two bytes each."""
    load = b"2\r\nxx\r\n" * 10_000
    while not stop.wait(PAUSE):
        posted(hub, "Transfer-Encoding: chunked", itertools.repeat(load, 500), stop)


@attack
def chunked_gets(hub: HubProcess, stop: threading.Event) -> None:
    """Pages are asked for with a body that does not end."""
    head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    while not stop.wait(PAUSE):
        with refused(), reached(hub, "http") as connection:
            connection.sendall(head)
            while not stop.is_set():
                connection.sendall(b"2\r\nxx\r\n" * 1000)


@attack
def deep_json(hub: HubProcess, stop: threading.Event) -> None:
    """Headers that are nested without end."""
    deep = '{"a":' * 10_000
    body = arrow_stream([{"channel": "deep", "body": b"", "headers": deep, "retain": False, "queue": False}])
    while not stop.wait(PAUSE):
        posted(hub, f"Content-Length: {len(body)}", [body], stop)
        with refused(), contextlib.suppress(AssertionError):
            caller = friend(hub, "umq")
            with caller.line.socket:
                caller.line.send(f'C1:["publish","deep","x",{{"headers":{deep}'.encode())
                caller.line.send(f'C2:["publish","deep",{"[" * 20_000}'.encode())
                caller.word()


@attack
def idle_http(hub: HubProcess, stop: threading.Event) -> None:
    """300 connections that ask for nothing; the oldest are replaced all the time."""
    connections: list[socket.socket] = []
    while not stop.wait(0.002):
        with refused():
            connections.append(reached(hub, "http"))
        if len(connections) > 300:
            connections.pop(0).close()
    for each in connections:
        each.close()


@attack
def client_ids(hub: HubProcess, stop: threading.Event) -> None:
    """10,100 sessions that are to be kept, each with a subscription."""
    subscribe = mqtt.encode(mqtt.Subscribe(1, (("flood/#", 1),)))
    for number in range(10_100):
        if stop.is_set():
            return
        with refused(), reached(hub, "mqtt") as connection:
            connection.sendall(mqtt.encode(mqtt.Connect(f"id-{number}", clean_session=False, keep_alive=0)) + subscribe)
    stop.wait()


@attack
def slow_loris(hub: HubProcess, stop: threading.Event) -> None:
    """A byte now and then, of what never becomes whole."""
    wholes = {
        "http": b"GET /metrics HTTP/1.1\r\nX-Slow: " + b"y" * 1000,
        "umq": upgrade("/umq"),
        "mqtt": mqtt.encode(mqtt.Connect("slow", clean_session=True, keep_alive=0, will=mqtt.Will("t", bytes(60_000)))),
        "micromsg": b"\x01\x00\x00\xff",
        "sabc": b"CONNECT\r\nclient-id::" + b"s" * 1000,
        "fmqp": fmqp.encode(fmqp.Publication("slow", bytes(100_000))),
    }
    connections: list[tuple[socket.socket, Iterator[int]]] = []
    for key, whole in wholes.items():
        for _ in range(30):
            with refused():
                connections.append((reached(hub, key), iter(whole)))
    while not stop.wait(0.05):
        for connection, left in connections:
            with contextlib.suppress(OSError):
                connection.sendall(bytes([next(left, 0)]))
    for connection, _ in connections:
        connection.close()


@attack
def distinct_topics(hub: HubProcess, stop: threading.Event) -> None:
    """200,000 of them."""
    frames = (fmqp.encode(fmqp.Publication(f"flood/{number}", b"x")) for number in range(200_000))
    flood(hub, stop, "fmqp", frames)


@attack
def large_filters(hub: HubProcess, stop: threading.Event) -> None:
    """10,000 of 64 kB."""
    names = (f"{number}/" + "x" * 64_000 for number in range(10_000))
    frames = (mqtt.encode(mqtt.Subscribe(number % 60_000 + 1, ((each, 0),))) for number, each in enumerate(names))
    flood(hub, stop, "mqtt", frames, logged_in())
    stop.wait()


@attack
def big_queues(hub: HubProcess, stop: threading.Event) -> None:
    """1 GB in ten queues."""
    body = bytes(1_000_000)
    frames = (fmqp.encode(fmqp.Publication(f"queue/big-{number % 10}", body)) for number in range(1000))
    flood(hub, stop, "fmqp", frames)


@attack
def demand_watchers(hub: HubProcess, stop: threading.Event) -> None:
    """20 clients watch the demand for a thousand topics each, while others come and go there."""
    topics = [f"demand/{number}" for number in range(1000)]
    watching = b"".join(fmqp.encode(fmqp.Subscription(each, FEEDBACK)) for each in topics)
    wanting = b"".join(fmqp.encode(fmqp.Subscription(each)) for each in topics)
    with contextlib.ExitStack() as stack:
        watchers = []
        for _ in range(20):
            with refused():
                watchers.append(stack.enter_context(reached(hub, "fmqp")))
                watchers[-1].sendall(watching)
        while not stop.wait(PAUSE):
            with refused(), reached(hub, "fmqp") as connection:
                connection.sendall(wanting)
            for each in watchers:
                with refused():
                    drain(each)


@attack
def unfinished_messages(hub: HubProcess, stop: threading.Event) -> None:
    """40 messages of 16 MB, of which the last byte never comes."""
    whole = fmqp.encode(fmqp.Publication("unfinished", bytes(16_000_000)))
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            with refused():
                connection = stack.enter_context(reached(hub, "fmqp"))
                connection.settimeout(5)
                connection.sendall(whole[:-1])
            if stop.is_set():
                return
        stop.wait()


@attack
def huge_wills(hub: HubProcess, stop: threading.Event) -> None:
    """40 clients with 15 MB of last wills each."""
    wills = b"".join(
        fmqp.encode(fmqp.Publication("wills/huge", bytes(1_000_000), LAST_WILL | CACHE)) for _ in range(15)
    )
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            with refused():
                connection = stack.enter_context(reached(hub, "fmqp"))
                connection.settimeout(5)
                connection.sendall(wills)
            if stop.is_set():
                return
        stop.wait()


def main() -> None:
    name, addresses, seconds = sys.argv[1:]
    act = next(each for each in ATTACKS if each.__name__ == name)
    stop = threading.Event()
    threading.Timer(float(seconds), stop.set).start()
    act(HubProcess(NoProcess(), json.loads(addresses)), stop)


if __name__ == "__main__":
    main()
