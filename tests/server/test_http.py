"""The HTTP listener: what it refuses, how little one client can take from the others, TLS, and how it ends."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.registry import names
from polywire.server.address import Address, parse_origin, refusal
from polywire.server.gate import Gate
from polywire.server.http import HttpLimits
from polywire.server.metrics import DEEPEST, Metrics
from tests.hub_process import HubProcess, running_hub
from tests.security.hashing import add_user
from tests.server.certificates import Authority
from tests.server.journal_server import Pages, serving
from tests.server.subscribers import line_to, subscribe

pytestmark = pytest.mark.timeout(120)

QUICK = 1.0
"""Seconds in which others are answered, on a busy machine too; what these tests guard against took half a minute."""


def talk(port: int, request: bytes) -> bytes:
    """Everything that is answered to a request until the connection ends, or a second has passed without anything."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        connection.settimeout(5)
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := connection.recv(65536):
                found += part
    return found


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_hub("listen.allowed_origins=https://console.example", journal=tmp_path_factory.mktemp("j")) as process:
        yield process
        assert not any("Traceback" in line for line in process.errors), process.errors


class Bystander:
    """Asks for a page again and again, on connections of its own, and remembers the slowest answer."""

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.slowest = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            started = time.monotonic()
            assert self._hub.get("/healthz") == (200, "ok\n")
            self.slowest = max(self.slowest, time.monotonic() - started)


HEAD = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PART = b"Polywire-Query: q\r\nPolywire-Batch: 0\r\nPolywire-Part: 0\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("request_head", [b"POST /publish" + HEAD + PART, b"GET /healthz" + HEAD, b"POST /no" + HEAD])
def test_a_million_tiny_chunks_are_refused_and_hold_up_nobody(hub: HubProcess, request_head: bytes) -> None:
    with Bystander(hub) as bystander:
        answer = talk(hub.port("http"), request_head + CHUNKED + b"2\r\nab\r\n" * 1_500_000 + b"0\r\n\r\n")
    assert answer.split()[1] in {b"413", b"404"}
    assert bystander.slowest < QUICK


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz" + HEAD + b"X: " + b"[" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /healthz" + HEAD + b"A: b\r\n" * 100 + b"\r\n", b"431"),
        (b"HEAD /healthz" + HEAD + CHUNKED + b"zz\r\nab", b"400"),
        (b"POST /publish" + HEAD + PART + CHUNKED + b"zz\r\nab", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /healthz" + HEAD + b"Content-Length: 5\r\n\r\nhello", b"413"),
    ],
)
def test_what_is_wrong_with_a_request_is_answered_and_counted(
    hub: HubProcess, request_bytes: bytes, status: bytes
) -> None:
    fault = "unexpected-body" if b"hello" in request_bytes else "bad-request"
    name = f'polywire_faults_total{{protocol="http",reason="{fault}"}}'
    before = hub.metric(name) if name in hub.get("/metrics")[1] else 0
    assert talk(hub.port("http"), request_bytes).split()[1] == status
    assert hub.metric(name) > before
    assert not any("Traceback" in line for line in hub.errors)


def test_idle_connections_make_room_and_downloads_go_on(tmp_path: Path) -> None:
    large = bytes(range(256)) * 100_000
    (tmp_path / "00000000000000000001.parquet").write_bytes(large)
    with serving(tmp_path, limits=HttpLimits(connections=8)) as pages, contextlib.ExitStack() as stack:
        reader = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=20)
        stack.callback(reader.close)
        reader.request("GET", "/journal/00000000000000000001.parquet")
        answer = reader.getresponse()
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", pages.port), 20)).sendall(b"GET ")
        assert pages.get("nothing")[0] == 404
        assert answer.read() == large


def test_without_an_idle_connection_a_further_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000001.parquet").write_bytes(bytes(50_000_000))
    with serving(tmp_path, limits=HttpLimits(connections=2)) as pages, contextlib.ExitStack() as stack:
        for _ in range(2):
            reader = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=20)
            stack.callback(reader.close)
            reader.request("GET", "/journal/00000000000000000001.parquet")
            assert reader.getresponse().status == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            pages.get("nothing")


def test_a_reader_that_stops_reading_is_cut_off_and_costs_no_memory(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000001.parquet").write_bytes(bytes(50_000_000))
    with serving(tmp_path, limits=HttpLimits(write_time=0.3)) as pages:
        with socket.create_connection(("127.0.0.1", pages.port), 20) as lazy:
            lazy.sendall(b"GET /journal/00000000000000000001.parquet" + HEAD + b"\r\n")
            pages.wait_for_fault("write-time")
        assert pages.get("nothing")[0] == 404


def test_half_a_request_is_not_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path, limits=HttpLimits(keep_alive=0.3)) as pages:
        assert talk(pages.port, b"GET /hea") == b""


def body_of(pages: Pages, size: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", pages.port), 20)
    connection.sendall(b"POST /publish" + HEAD + PART + b"Content-Length: %d\r\n\r\n" % size + sent)
    return connection


@pytest.mark.parametrize("limits", [HttpLimits(body_silence=0.2), HttpLimits(body_time=0.2)])
def test_a_body_that_takes_too_long_is_refused(tmp_path: Path, limits: HttpLimits) -> None:
    with serving(tmp_path, limits=limits) as pages, body_of(pages, 1000, b"x") as slow:
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert pages.faults()["body-time"] == 1


def test_too_many_bodies_at_once_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, limits=HttpLimits(bodies=1)) as pages, body_of(pages, 1000, b"x") as first:
        while pages.bodies() != (1, 1):
            time.sleep(0.001)
        with body_of(pages, 1000, b"x") as second:
            answer = second.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        first.sendall(bytes(999))
        assert first.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert pages.bodies() == (0, 0)


def test_bodies_are_bounded_together(tmp_path: Path) -> None:
    with serving(tmp_path, limits=HttpLimits(body_bytes=1000)) as pages, body_of(pages, 2000, bytes(900)):
        while pages.bodies() != (1, 900):
            time.sleep(0.001)
        with body_of(pages, 200, bytes(200)) as second:
            assert second.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_metrics_have_totals_and_a_few_queues_and_hold_the_loop_for_a_moment_only() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        hub = Hub(loop.call_soon, loop.call_later, time.time_ns, list(names()))
        gate = Gate(hub, loop)
        metrics = Metrics(hub, gate, loop)
        for number in range(10_000):
            for _ in range(2 + (number % 5000 == 0)):
                hub.queue(f"q{number}").put(Message(f"queue/q{number}", b"body"))
        held: list[float] = []
        running = True

        async def watch() -> None:
            while running:
                started = time.perf_counter()
                await asyncio.sleep(0)
                held.append(time.perf_counter() - started)

        watcher = asyncio.create_task(watch())
        pages = [await metrics.page() for _ in range(5)]
        running = False
        await watcher
        lines = pages[0].decode().splitlines()
        assert "polywire_queues 10000.0" in lines
        assert "polywire_queue_messages 20002.0" in lines
        each = [line for line in lines if line.startswith("polywire_deepest_queue_messages{")]
        assert len(each) == DEEPEST
        assert each[0].endswith('{queue="q5000"} 3.0')
        # The best of five pages: a busy machine may take the processor away at any moment.
        assert min(max(held[n::5], default=0) for n in range(5)) < 0.1
        assert sorted(held)[-len(held) // 50 or -1] < 0.02
        gate.close()

    asyncio.run(check())


def test_metrics_are_for_those_who_log_in_where_there_are_logins(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "anna", "right")
    with running_hub(f"auth.users={users}", "auth.anonymous=true") as hub:
        assert hub.get("/metrics")[0] == 401
        assert hub.get("/healthz") == (200, "ok\n")
        assert hub.get("/readyz") == (200, "ready\n")
        hub.login = "anna:wrong"
        assert hub.get("/metrics")[0] == 401
        hub.login = "anna:right"
        assert "polywire_queues 0.0" in hub.get("/metrics")[1]


LOOPBACK = Address("http", "127.0.0.1", 7100)


@pytest.mark.parametrize(
    ("host", "origin", "listener", "well"),
    [
        ("127.0.0.1:7100", None, LOOPBACK, True),
        ("localhost", None, LOOPBACK, True),
        ("[::1]:7100", None, LOOPBACK, True),
        ("evil.example", None, LOOPBACK, False),
        ("", None, LOOPBACK, False),
        ("127.0.0.1.evil.example", None, LOOPBACK, False),
        ("console.example", None, LOOPBACK, True),
        ("hub.lan:7100", None, Address("http", "hub.lan", 7100), True),
        ("hub.lan:7100", None, Address("http", "0.0.0.0", 7100), False),  # noqa: S104 - nothing is bound
        (socket.gethostname(), None, Address("http", "0.0.0.0", 7100), True),  # noqa: S104 - as above
        ("127.0.0.1:7100", "http://127.0.0.1:7100", LOOPBACK, True),
        ("127.0.0.1:7100", "http://127.0.0.1:7101", LOOPBACK, False),
        ("127.0.0.1:7100", "https://console.example", LOOPBACK, True),
        ("127.0.0.1:7100", "http://console.example", LOOPBACK, False),
        ("127.0.0.1:7100", "null", LOOPBACK, False),
        ("127.0.0.1:7100", "http://evil.example", LOOPBACK, False),
        ("console.example", "https://console.example:443", LOOPBACK, True),
    ],
)
def test_hosts_and_origins_are_ours_or_listed(host: str, origin: str | None, listener: Address, well: bool) -> None:
    assert (refusal(host, origin, listener, ("https://console.example",)) is None) is well


def test_origins_are_written_as_browsers_do() -> None:
    assert parse_origin("HTTPS://Console.Example:443/") == "https://console.example"
    assert parse_origin("http://[::1]:7100") == "http://[::1]:7100"
    for wrong in ("console.example", "ws://x", "https://", "https://x/y", "https://u@x", "https://x:y", "null", "*"):
        with pytest.raises(ValueError, match="an origin is"):
            parse_origin(wrong)


def test_a_hub_checks_them(hub: HubProcess) -> None:
    def status(path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", hub.port("http"), timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status

    for path in ("/metrics", "/journal/"):
        assert status(path) == 200
        assert status(path, origin="https://console.example") == 200
        assert status(path, origin="https://evil.example") == 403
        assert status(path, host="evil.example") == 403
    assert status("/healthz", host="evil.example") == 200


def test_tls_is_spoken_and_certificates_are_reloaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("hub")
    sets = ("listen.http=https://localhost:0", f"tls.certificate={certificate}")
    with running_hub(*sets) as hub:
        assert hub.addresses["http"].startswith("https://")
        hub.trust = ssl.create_default_context(cafile=str(authority.root))
        assert hub.get("/healthz") == (200, "ok\n")
        first = shown(hub)
        authority.issue("hub")
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")
        assert shown(hub) != first
        assert hub.get("/healthz") == (200, "ok\n")
        with pytest.raises(OSError, match=r"."):
            talk_plainly(hub)


def shown(hub: HubProcess) -> bytes:
    assert hub.trust is not None
    with (
        socket.create_connection(("127.0.0.1", hub.port("http")), 20) as plain,
        hub.trust.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found


def talk_plainly(hub: HubProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", hub.port("http"), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        connection.getresponse()


def test_a_client_certificate_is_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sets = (
        "listen.http=https://localhost:0",
        f"tls.certificate={authority.issue('hub')}",
        f"tls.client_ca={authority.root}",
        "auth.certificate=true",
    )
    with running_hub(*sets) as hub:
        hub.trust = ssl.create_default_context(cafile=str(authority.root))
        assert hub.get("/metrics")[0] == 401
        hub.trust.load_cert_chain(authority.issue("anna"))
        assert hub.get("/metrics")[0] == 200


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_while_the_hub_drains_its_readiness_says_so(tmp_path: Path, encrypted: bool) -> None:
    """A call that nobody has answered keeps the hub draining; the HTTP listener takes new connections meanwhile."""
    sets: list[str] = []
    authority = Authority(tmp_path)
    if encrypted:
        sets = ["listen.http=https://localhost:0", f"tls.certificate={authority.issue('hub')}"]
    with running_hub(*sets) as hub, line_to(hub, "umq") as provider, line_to(hub, "umq") as caller:
        hub.trust = ssl.create_default_context(cafile=str(authority.root)) if encrypted else None
        for line in (provider, caller):
            subscribe(line, "umq", "a")
        provider.send('C2:["serve","lamp",5]')
        provider.expect("R2:null")
        caller.send('C2:["call","lamp","on",""]')
        provider.expect('B1:5:["on",""]')
        hub.process.send_signal(signal.SIGTERM)
        hub.wait_for_log("draining")
        assert hub.get("/readyz") == (503, "draining\n")
        assert hub.get("/healthz") == (200, "ok\n")
        provider.send("R1:done")
        provider.ended()
        assert hub.process.wait(20) == 0


def test_a_hub_loads_only_the_libraries_it_uses() -> None:
    script = """
        import asyncio, json, sys
        from polywire.server.config import load
        from polywire.server.server import Server

        async def run(http):
            off = [f"listen.{key}=off" for key in ("umq", "micromsg", "mqtt", "mqtt_ws", "sabc", "sabc_ws")]
            server = Server(load(None, [*off, "listen.fmqp=tcp://127.0.0.1:0", f"listen.http={http}",
                                        "journal.enabled=false"]))
            await server.start()
            loaded = sorted({"aiohttp", "jwt", "cryptography", "pyarrow"} & set(sys.modules))
            await server.close()
            return loaded

        print(json.dumps([asyncio.run(run(http)) for http in ("off", "http://127.0.0.1:0")]))
    """
    found = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(found.stdout) == [[], ["aiohttp"]]
