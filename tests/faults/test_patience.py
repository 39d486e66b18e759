"""How long the hub waits for a peer that is silent, does not read, or asks too often."""

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import argon2
import pytest

from polywire.protocols import mqtt
from tests.faults.friends import FRIENDS, TEXT, HungUpError, UmqFriend, WebSocketLine, friend, line, masked
from tests.hub_process import HubProcess, running_hub
from tests.server.certificates import Authority


@pytest.fixture(scope="module")
def impatient() -> Iterator[HubProcess]:
    with running_hub("limits.idle_time=1") as process:
        yield process


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    users: Path = tmp_path_factory.mktemp("users") / "users"
    users.write_text(f"anna:{argon2.PasswordHasher().hash('right')}:\n", encoding="utf-8")
    users.chmod(0o600)
    with running_hub(f"auth.users={users}", "auth.anonymous=true", "auth.throttle.first_wait=60") as process:
        yield process


@pytest.mark.rule("MICROMSG-176", "MQTT-188", "UMQ-137", "SABC-101")
@pytest.mark.parametrize("key", FRIENDS)
def test_a_silent_connection_is_ended_and_a_lively_one_is_not(impatient: HubProcess, key: str) -> None:
    silent, lively = friend(impatient, key), friend(impatient, key)
    said: list[object] = []
    with contextlib.closing(silent.line.socket), contextlib.closing(lively.line.socket):
        silent.line.socket.settimeout(0.2)
        with contextlib.suppress(HungUpError, ConnectionError):
            while True:
                lively.publish("a", b"x")
                with contextlib.suppress(TimeoutError):
                    said.append(silent.word())
        lively.publish("a", b"x")
    assert ("error-code::408" in "".join(map(str, said))) == key.startswith("sabc")


@pytest.mark.parametrize("key", ["umq", "mqtt"])
def test_who_breaks_a_rule_and_reads_nothing_is_hung_up_on(hub: HubProcess, key: str) -> None:
    """Its last words can't be written: the hub does not wait for that for ever."""
    metric = f'polywire_connections{{protocol="{key}"}}'
    lazy, pusher = friend(hub, key), friend(hub, "fmqp")
    with contextlib.closing(lazy.line.socket), contextlib.closing(pusher.line.socket):
        lazy.subscribe("full")
        before = hub.metric(metric)
        for _ in range(1500):
            pusher.line.send(pusher.push("full", b"x" * 10_000))
        pusher.publish("other", b"x")
        wrong = masked(0x83, b"x") if key == "umq" else mqtt.encode(mqtt.Connect("again"))
        lazy.line.socket.sendall(wrong)
        end = time.monotonic() + 20
        while hub.metric(metric) == before:
            assert time.monotonic() < end


def test_pipelined_requests_do_not_hold_up_the_hub(hub: HubProcess) -> None:
    publisher = friend(hub, "mqtt")
    with contextlib.ExitStack() as stack:
        stack.callback(publisher.close)
        for _ in range(5):
            greedy = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port("http")), 20))
            greedy.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2000)
        publisher.publish("a", b"x")
        # All of them are answered in their turn, the last one far from now.
        greedy.settimeout(20)
        assert greedy.recv(100).startswith(b"HTTP/1.1 200 ")
        assert hub.get("/healthz") == (200, "ok\n")


def test_a_flood_of_http_connections_does_not_keep_an_operator_out(hub: HubProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port("http")), 20)).sendall(b"GET ")
        assert hub.get("/healthz") == (200, "ok\n")


def test_who_claims_no_name_does_not_wait_for_failed_logins_and_few_are_logged(guarded: HubProcess) -> None:
    make = FRIENDS["mqtt"][0]
    for _ in range(8):
        made = line(guarded, "mqtt")
        with made.socket, pytest.raises(AssertionError):
            make(made, "anna", "wrong")
    made = line(guarded, "mqtt")
    with made.socket, pytest.raises(AssertionError):
        make(made, "anna", "right")  # this one waits
    for key in FRIENDS:
        friend(guarded, key).close()
    assert 1 <= sum("login of 'anna'" in each for each in guarded.errors) <= 2


def test_a_silent_tls_handshake_is_ended_and_others_talk(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sets = (f"tls.certificate={authority.issue('hub')}", "limits.handshake_time=1")
    listeners = ("listen.umq=wss://127.0.0.1:0/umq", "listen.mqtt_ws=off", "listen.sabc_ws=off")
    with running_hub(*sets, *listeners) as hub, contextlib.ExitStack() as stack:
        where = ("127.0.0.1", hub.port("umq"))
        silent = stack.enter_context(socket.create_connection(where, 20))
        trust = ssl.create_default_context(cafile=str(authority.root))
        secret = trust.wrap_socket(socket.create_connection(where, 20), server_hostname="localhost")
        stack.enter_context(secret)
        client = UmqFriend(WebSocketLine(secret, "/umq", TEXT))
        client.subscribe("a")
        assert silent.recv(1) == b""
        client.publish("a", b"x")
        assert client.hear() == b"x"
        assert not any("Traceback" in each for each in hub.errors)
