"""``polywire serve`` as an operator sees it: the ready line, signals, TLS, limits, pages."""

import asyncio
import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import polywire
from polywire.journal import open as open_journal
from polywire.protocols.fmqp import Publication, Subscription
from polywire.protocols.fmqp.frames import LAST_WILL
from polywire.protocols.mqtt import Connack, Connect, Pingreq, Pingresp, encode
from polywire.security.users import make_user, put_user
from polywire.server.address import parse_address
from polywire.server.listeners import not_listening
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.server.certificates import Authority
from tests.wires import Fmqp, Plain, connected

ONLY_FMQP = [f"listen.{key}=off" for key in LISTEN if key not in {"fmqp", "http"}]


@pytest.fixture
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def test_the_ready_line_names_every_listener_with_its_real_port(hub: HubProcess) -> None:
    assert list(hub.addresses) == list(LISTEN)
    assert hub.addresses["fmqp"] == f"tcp://127.0.0.1:{hub.port('fmqp')}"
    assert hub.addresses["umq"] == f"ws://127.0.0.1:{hub.port('umq')}/umq"
    assert hub.port("umq") == hub.port("mqtt_ws") == hub.port("sabc_ws") != 0


def test_a_listener_that_is_off_is_not_started() -> None:
    with running_hub(*ONLY_FMQP) as hub:
        assert list(hub.addresses) == ["http", "fmqp"]


def test_a_port_in_use_is_told_and_nothing_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(RuntimeError, match=rf"can't listen on tcp://127.0.0.1:{port}"),
            running_hub(f"listen.fmqp=tcp://127.0.0.1:{port}"),
        ):
            pass


HINTS = [
    (
        "tcp://127.0.0.1:{port}",
        ("Address already in use; another program listens there; stop it, or choose another port (0 picks a free one)"),
    ),
    (
        "tcp://192.0.2.1:0",
        "Cannot assign requested address; 192.0.2.1 is not an address of this machine; use one that is, or 0.0.0.0",
    ),
    (
        "tcp://no-such-host.invalid:0",
        "the host name no-such-host.invalid can't be resolved; check its spelling, or use an IP address",
    ),
    ("unix:{folder}", "Address already in use; another program listens there, or a file is in the way"),
]
"""Addresses that can't be listened on, and why."""


@pytest.mark.parametrize(
    ("listener", "address", "told"),
    [
        (listener, *hint)
        for hint in HINTS
        for listener in (("fmqp",) if hint[0].startswith("unix") else ("fmqp", "umq"))
    ],
)
def test_each_reason_not_to_listen_has_its_own_hint(listener: str, address: str, told: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = address.format(port=taken.getsockname()[1], folder=tmp_path)
        if listener == "umq":
            where = f"{where.replace('tcp', 'ws')}/umq"
        with (
            pytest.raises(RuntimeError) as caught,
            running_hub(f"listen.{listener}={where}", arguments=("--insecure",)),
        ):
            pass
    assert f"listen.{listener}: can't listen on {where}: {told}\n" in str(caught.value)


@pytest.mark.parametrize(
    ("address", "error", "hint"),
    [
        ("tcp://127.0.0.1:80", PermissionError(13, "x"), "ports below 1024 need root or CAP_NET_BIND_SERVICE"),
        ("tcp://127.0.0.1:8080", PermissionError(13, "x"), "Permission denied"),
        ("tcp://[::1]:0", OSError(97, "x"), "this machine has no IPv6; use an IPv4 address"),
        ("tcp://127.0.0.1:0", OSError(24, "x"), "raise the limit on open files (ulimit -n)"),
        ("tcp://x:0", OSError("could not bind on any address out of []"), "x is not an address of this machine"),
        ("unix:/nowhere/x", FileNotFoundError(2, "x"), "create the directory /nowhere first"),
        ("unix:/run/x", PermissionError(13, "x"), "the hub may not create files in /run"),
    ],
)
def test_errors_that_a_test_can_not_cause_have_hints_too(address: str, error: OSError, hint: str) -> None:
    assert hint in str(not_listening("fmqp", parse_address(address), error))


def test_a_start_with_defaults_warns_of_nothing_and_a_wish_beyond_the_limit_is_named() -> None:
    with running_hub(descriptors=500) as hub:
        assert hub.stop() == 0
        assert not [line for line in hub.errors if "WARNING" in line or "descriptors" in line or "open files" in line]
    with running_hub("limits.connections=1000", descriptors=500) as hub:
        line = hub.wait_for_log("limits.connections is 1000, but the limit on open files allows")
        assert "WARNING" in line


def test_the_soft_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from polywire.server.server import raise_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400)); raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - ours
    assert done.stdout == "(400, 400)\n"


@pytest.mark.parametrize("protocol", ["umq", "mqtt", "sabc", "micromsg"])
def test_with_the_smallest_message_size_everybody_can_still_log_in(protocol: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    password = "p" * 400  # more than a message may have
    put_user(users, make_user("a-user-with-a-name", password))
    with running_hub("limits.message_size=256", f"auth.users={users}") as hub:

        async def log_in() -> None:
            url = f"{protocol}://127.0.0.1:{hub.port(protocol)}"
            async with polywire.connect(url, user="a-user-with-a-name", password=password, connect_time=20) as bus:
                await bus.publish("a", b"x" * 100)

        asyncio.run(log_in())


def test_health_and_readiness_are_pages(hub: HubProcess) -> None:
    assert hub.get("/healthz") == (200, "ok\n")
    assert hub.get("/readyz") == (200, "ready\n")
    assert hub.get("/nothing") == (
        404,
        "no such page; available: /healthz, /readyz, /metrics, /v1/cluster, /v1/nodes/{node}/drain\n",
    )


def test_metrics_count_what_happened(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("a"), Publication("a", b"x"), Publication("$/other", b"x"))
        assert client.hear() == Publication("a", b"x")
        client.settled()
        assert hub.metric('polywire_connections{protocol="fmqp"}') == 1
        assert hub.metric('polywire_messages_total{direction="in",protocol="fmqp"}') == 2
        assert hub.metric('polywire_dropped_total{protocol="fmqp",reason="service-channel"}') == 1


def test_sigterm_ends_with_zero_and_sends_the_wills(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as one, connected(hub.addresses["fmqp"]) as other:
        listener, client = Fmqp(one), Fmqp(other)
        listener.say(Subscription("will"))
        listener.settled()
        client.say(Publication("will", b"farewell", LAST_WILL))
        client.settled()
        hub.process.send_signal(signal.SIGTERM)
        assert listener.hear() == Publication("will", b"farewell")
        assert listener.rest() == b""
    assert hub.process.wait(20) == 0


def test_what_ends_with_the_connections_is_journaled_before_the_hub_ends(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = Fmqp(stack.enter_context(connected(hub.addresses["fmqp"])))
            for number in range(2000):
                client.say(Subscription(f"many/{number}"))
            client.settled()
        assert hub.stop() == 0
    assert not [line for line in hub.errors if " ERROR " in line]
    assert sum(batch.num_rows for batch in open_journal(tmp_path).scan(kinds=["disconnect"])) == 4


@pytest.mark.rule("FMQP-26")
def test_a_stop_signal_ends_in_its_seven_steps(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as one, connected(hub.addresses["fmqp"]) as other:
        listener, client = Fmqp(one), Fmqp(other)
        listener.say(Subscription("*"))
        listener.settled()
        client.say(Publication("a", b"before"), Publication("b", b"will", LAST_WILL))
        client.say(Publication("$/signals/stop", b"now"), Publication("a", b"after"))
        assert listener.hear() == Publication("a", b"before")
        assert listener.hear() == Publication("b", b"will")
        assert listener.rest() == b""
    assert hub.process.wait(20) == 0
    with pytest.raises(ConnectionError), connected(hub.addresses["fmqp"]):
        pass


@pytest.mark.rule("FMQP-25")
def test_a_terminate_signal_ends_at_once(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("b"), Publication("b", b"will", LAST_WILL), Publication("$/signals/terminate", b"now"))
        assert client.rest() == b""
    assert hub.process.wait(20) == 0


def test_a_second_sigterm_does_not_wait(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("a"))
        client.settled()
        # A peer that reads nothing keeps a drain from being done.
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.say(*[Publication("a", bytes(1 << 20))] * 20)
        started = time.monotonic()
        hub.process.send_signal(signal.SIGTERM)
        hub.wait_for_log("draining")
        assert hub.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started < 9


@pytest.mark.rule("FMQP-01")
def test_fmqp_is_spoken_over_a_unix_socket_too(tmp_path: Path) -> None:
    path = tmp_path / "fmqp.sock"
    with running_hub(*ONLY_FMQP, f"listen.fmqp=unix:{path}") as hub:
        with connected(hub.addresses["fmqp"]) as wire:
            Fmqp(wire).settled()
        assert hub.stop() == 0
    assert not path.exists()


def config_file(folder: Path, text: str) -> Path:
    path = folder / "polywire.toml"
    listen = "".join(f'{key} = "off"\n' for key in LISTEN if key not in {"fmqp", "http"})
    path.write_text(f'[listen]\n{listen}http = "http://127.0.0.1:0"\n{text}', encoding="utf-8")
    return path


@pytest.mark.rule("FMQP-01", "FMQP-03")
def test_tls_shows_our_certificate_and_takes_the_clients_as_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, anna, otto = (authority.issue(name) for name in ("hub", "anna", "otto"))
    config = config_file(
        tmp_path,
        f"""fmqp = "tls://127.0.0.1:0"
[tls]
certificate = "{server}"
client_ca = "{authority.root}"
[auth]
certificate = true
[[access]]
user = "anna"
actions = ["publish", "subscribe"]
channels = ["**"]
""",
    )
    with running_hub(config=config) as hub:
        for certificate, allowed in ((anna, True), (otto, False)):
            trust = ssl.create_default_context(cafile=str(authority.root))
            trust.load_cert_chain(certificate)
            with connected(hub.addresses["fmqp"], trust=trust) as wire:
                client = Fmqp(wire)
                client.say(Subscription("a"), Publication("a", b"x"), Subscription("anna"))
                if allowed:
                    assert client.hear() == Publication("a", b"x")
        stranger = ssl.create_default_context(cafile=str(authority.root))
        with connected(hub.addresses["fmqp"], trust=stranger) as wire:
            assert Plain(wire).rest() == b""


def test_sighup_takes_over_rules_and_certificates_without_dropping_anybody(tmp_path: Path) -> None:
    config = config_file(tmp_path, 'fmqp = "tcp://127.0.0.1:0"\n')
    with running_hub(config=config) as hub, connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("a"), Subscription("b"))
        client.settled()
        rule = '[[access]]\nactions = ["publish", "subscribe"]\nchannels = ["b", "settled/**"]\n'
        config_file(tmp_path, f'fmqp = "tcp://127.0.0.1:0"\n{rule}')
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")
        client.say(Publication("a", b"forbidden"), Publication("b", b"allowed"))
        assert client.hear() == Publication("b", b"allowed")


def test_a_bad_file_at_reload_changes_nothing_and_says_why(tmp_path: Path) -> None:
    config = config_file(tmp_path, 'fmqp = "tcp://127.0.0.1:0"\n')
    with running_hub(config=config) as hub, connected(hub.addresses["fmqp"]) as wire:
        config_file(tmp_path, 'fmqp = "tcp://127.0.0.1:0"\n[limits]\nmesage_size = 1\n')
        hub.process.send_signal(signal.SIGHUP)
        line = hub.wait_for_log("reload failed, nothing has changed")
        assert "message_size" in line
        Fmqp(wire).settled()


def test_more_connections_than_allowed_are_turned_away() -> None:
    with running_hub(*ONLY_FMQP, "limits.connections=2") as hub:
        with connected(hub.addresses["fmqp"]) as one, connected(hub.addresses["fmqp"]) as two:
            for wire in (one, two):
                Fmqp(wire).settled()
            with connected(hub.addresses["fmqp"]) as third:
                assert Plain(third).rest() == b""
            Fmqp(one).settled()
        assert hub.metric("polywire_connections_refused_total") == 1


def test_a_silent_connection_is_closed_where_that_is_configured() -> None:
    with running_hub(*ONLY_FMQP, "limits.idle_time=1") as hub, connected(hub.addresses["fmqp"]) as wire:
        assert Plain(wire).rest() == b""
        assert hub.metric('polywire_faults_total{protocol="fmqp",reason="idle-time"}') == 1


def test_the_hub_does_not_listen_to_the_world_without_auth() -> None:
    command = [sys.executable, "-m", "polywire", "serve", "--set", "listen.fmqp=tcp://0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - our own
    assert done.returncode == 1
    assert "--insecure" in done.stderr
    assert done.stdout == ""


def test_a_websocket_path_nobody_speaks_at_is_not_found(hub: HubProcess) -> None:
    with connected(hub.addresses["umq"]) as wire:
        plain = Plain(wire)
        plain.send(
            b"GET /other HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        answer = plain.rest()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"no WebSocket endpoint at /other; available: /umq, /mqtt, /sabc" in answer


@pytest.mark.rule("UMQ-74")
@pytest.mark.parametrize("offered", [None, ["umq"], ["other", "umq"], ["other"]])
def test_the_subprotocol_is_accepted_and_not_demanded(hub: HubProcess, offered: list[Subprotocol] | None) -> None:
    with connect(hub.addresses["umq"], subprotocols=offered, open_timeout=20) as web:
        assert web.subprotocol == ("umq" if offered is not None and "umq" in offered else None)
        web.send("H1:")
        assert web.recv(timeout=20) == "W1:"


@pytest.mark.rule("MQTT-140", "MQTT-167", "MQTT-170")
def test_mqtt_over_a_websocket_is_binary_and_chooses_its_subprotocol(hub: HubProcess) -> None:
    subprotocols = [Subprotocol("other"), Subprotocol("mqtt")]
    with connect(hub.addresses["mqtt_ws"], subprotocols=subprotocols, open_timeout=20) as web:
        assert web.subprotocol == "mqtt"
        octets = encode(Connect("me")) + encode(Pingreq())
        web.send(octets[:5])
        web.send(octets[5:])
        expected = encode(Connack(session_present=False, return_code=0)) + encode(Pingresp())
        answers = b""
        while len(answers) < len(expected):
            answers += web.recv(timeout=20, decode=False)
        assert answers == expected
        web.send("a text")
        with pytest.raises(ConnectionClosed) as caught:
            web.recv(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1003
    assert hub.metric('polywire_faults_total{protocol="mqtt",reason="websocket-kind"}') == 1


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("x" * 300_000, 1009, "websocket-size"),
        ([b"\xff\xfe"], 1007, "websocket-text"),
    ],
)
def test_a_websocket_message_that_can_not_be_taken_is_answered_with_its_code(
    message: str | list[bytes], code: int, reason: str
) -> None:
    with running_hub("limits.message_size=65536") as hub, connect(hub.addresses["sabc_ws"], open_timeout=20) as web:
        web.send(message, text=True)
        with pytest.raises(ConnectionClosed) as caught:
            web.recv(timeout=20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code
        assert hub.metric(f'polywire_faults_total{{protocol="sabc",reason="{reason}"}}') == 1
