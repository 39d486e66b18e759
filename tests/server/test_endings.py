"""How connections end from the hub's side, on every protocol: going down, too slow, silent, login expired."""

import asyncio
import contextlib
import gc
import signal
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import jwt
import pytest
import uvloop

from polywire.protocols import fmqp, micromsg, mqtt
from polywire.protocols.fmqp.frames import LAST_WILL
from polywire.protocols.micromsg import Error, Message
from polywire.server.config import load
from polywire.server.endpoint import Endpoint
from polywire.server.server import Server
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.protocols.sabc.wire import wire
from tests.server.certificates import Authority
from tests.server.subscribers import Heard, line_to, subscribe
from tests.wires import Fmqp, Plain, connected

SPOKEN = [key for key in LISTEN if key != "http"]
CLOSED = "closed 1000"


def encrypting(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A configuration whose listeners are all encrypted, and what trusts them."""
    authority = Authority(folder)
    encrypted = {key: each.replace("tcp:", "tls:").replace("ws:", "wss:") for key, each in LISTEN.items()}
    listen = "".join(f'{key} = "{address}"\n' for key, address in encrypted.items())
    config = folder / "polywire.toml"
    config.write_text(f'[listen]\n{listen}[tls]\ncertificate = "{authority.issue("hub")}"\n', encoding="utf-8")
    return config, ssl.create_default_context(cafile=str(authority.root))


def disconnecting(session: str) -> bytes:
    return wire(f"DISCONNECTING\nsession-id::{session}\n\n^@")


def last_words(listener: str, session: str = "", micromsg_error: Error | None = None, fatal: str = "") -> Heard:
    """What a client hears at the very end."""
    words: dict[str, Heard] = {
        "fmqp": [b""],
        "micromsg": [micromsg.encode(micromsg_error or Error("shutting-down"))],
        "mqtt": [b""],
        "mqtt_ws": [CLOSED],
        "sabc": [disconnecting(session)],
        "sabc_ws": [disconnecting(session).decode(), CLOSED],
        "umq": [fatal, CLOSED],
    }
    return words[listener]


def farewell(listener: str, session: str) -> Heard:
    """The message ``farewell`` on the topic ``will``, as each protocol has it."""
    pushed = wire(
        f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::1\nmsg-id::1\ndestination::will\n\n"
        "farewell\n\n^@"
    )
    messages: dict[str, Heard] = {
        "fmqp": [fmqp.encode(fmqp.Publication("will", b"farewell"))],
        "micromsg": [micromsg.encode(Message(1, "topic/will", b"farewell"))],
        "mqtt": [mqtt.encode(mqtt.Publish("will", b"farewell"))],
        "mqtt_ws": [mqtt.encode(mqtt.Publish("will", b"farewell"))],
        "sabc": [pushed],
        "sabc_ws": [pushed.decode()],
        "umq": ["T1:farewell"],
    }
    return messages[listener]


def joined(first: Heard, second: Heard) -> Heard:
    """Both, where bytes have no seam between them."""
    if isinstance(first[-1], bytes) and isinstance(second[0], bytes):
        return [*first[:-1], first[-1] + second[0], *second[1:]]
    return [*first, *second]


@pytest.mark.rule("FMQP-26", "MICROMSG-186", "MQTT-140", "SABC-72", "UMQ-97", "UMQ-145")
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_everybody_gets_the_last_wills_then_the_last_words_and_is_closed(tmp_path: Path, encrypted: bool) -> None:
    config, trust = encrypting(tmp_path) if encrypted else (None, None)
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub(config=config))
        lines = {listener: stack.enter_context(line_to(hub, listener, trust)) for listener in SPOKEN}
        sessions = {listener: subscribe(line, listener, "will") for listener, line in lines.items()}
        mourned = Fmqp(stack.enter_context(connected(hub.addresses["fmqp"], trust=trust)))
        mourned.say(fmqp.Publication("will", b"farewell", LAST_WILL))
        mourned.settled()
        hub.process.send_signal(signal.SIGTERM)
        for listener, line in lines.items():
            session = sessions[listener]
            words = last_words(listener, session, fatal="F0:10 Shutting down")
            assert line.ended() == joined(farewell(listener, session), words), listener
        assert hub.process.wait(20) == 0


@pytest.mark.rule("UMQ-145")
def test_what_is_under_way_is_finished_and_what_is_new_refused() -> None:
    with running_hub() as hub, line_to(hub, "umq") as provider, line_to(hub, "sabc") as caller:
        subscribe(provider, "umq", "a")
        session = subscribe(caller, "sabc", "a")
        provider.send('C2:["serve","lamp",5]')
        provider.expect("R2:null")
        caller.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::2\nop::call\nservice::lamp\nmethod::on\n\n\n\n^@"))
        provider.expect('B1:5:["on",""]')
        hub.process.send_signal(signal.SIGTERM)
        hub.wait_for_log("draining")
        caller.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::3\ndestination::a\n\nnew\n\n^@"))
        refused = caller.until(b"\0")
        assert refused.startswith(b"ERROR\r\n")
        assert b"error-code::503\r\n" in refused
        provider.send('C3:["whoami"]')
        provider.expect("E3:10 Shutting down")
        provider.send("R1:done")
        assert provider.ended() == ["F0:10 Shutting down", CLOSED]
        answer = wire(f"MESSAGE\nsession-id::{session}\nref-msg-id::2\n\ndone\n\n^@")
        assert caller.ended() == [answer + disconnecting(session)]
        assert hub.process.wait(20) == 0


def test_nothing_more_is_taken_from_queues_while_the_hub_goes_down() -> None:
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub("limits.in_flight=1"))
        sabc, by_mqtt = (stack.enter_context(line_to(hub, listener)) for listener in ("sabc", "mqtt"))
        session = subscribe(sabc, "sabc", "a")
        subscribe(by_mqtt, "mqtt", "a")
        sabc.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::2\nop::subscribe\ndestination::queue/one\n\n\n\n^@"))
        assert b"ref-msg-id::2" in sabc.until(b"\0")
        by_mqtt.send(mqtt.encode(mqtt.Subscribe(2, (("queue/other", 1),))))
        by_mqtt.expect(mqtt.encode(mqtt.Suback(2, (1,))))
        publisher = Fmqp(stack.enter_context(connected(hub.addresses["fmqp"])))
        for queue in ("queue/one", "queue/other"):
            publisher.say(fmqp.Publication(queue, b"first"), fmqp.Publication(queue, b"second"))
        assert b"\r\n\r\nfirst" in sabc.until(b"\0")
        by_mqtt.expect(mqtt.encode(mqtt.Publish("queue/other", b"first", qos=1, packet_id=1)))
        hub.process.send_signal(signal.SIGTERM)
        hub.wait_for_log("draining")
        sabc.send(wire(f"MESSAGE\nsession-id::{session}\nref-msg-id::1\n\n\n\n^@"))
        by_mqtt.send(mqtt.encode(mqtt.Puback(1)))
        assert sabc.ended() == [disconnecting(session)]
        assert by_mqtt.ended() == [b""]
        assert hub.process.wait(20) == 0


def test_the_end_waits_no_longer_than_the_drain_time() -> None:
    with running_hub("limits.drain_time=0.5") as hub, line_to(hub, "umq") as provider, line_to(hub, "umq") as caller:
        for line in (provider, caller):
            subscribe(line, "umq", "a")
        provider.send('C2:["serve","lamp",5]')
        provider.expect("R2:null")
        caller.send('C2:["call","lamp","on",""]')
        provider.expect('B1:5:["on",""]')
        hub.process.send_signal(signal.SIGTERM)
        for line in (provider, caller):
            assert line.ended()[-2:] == ["F0:10 Shutting down", CLOSED]
        assert hub.process.wait(20) == 0


@pytest.mark.rule("MICROMSG-176", "MQTT-076", "MQTT-188", "SABC-101", "UMQ-137")
def test_a_silent_handshake_is_ended_in_the_words_of_each_protocol() -> None:
    too_slow = wire("ERROR\nerror-code::408\n\nno CONNECT received in time\n\n^@")
    expected: dict[str, Heard] = {
        "micromsg": [b""],
        "mqtt": [b""],
        "mqtt_ws": [CLOSED],
        "sabc": [too_slow],
        "sabc_ws": [too_slow.decode(), CLOSED],
        "umq": ["F0:9 Limit exceeded: the handshake took too long", CLOSED],
    }
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub("limits.handshake_time=1.5"))
        lines = {listener: stack.enter_context(line_to(hub, listener)) for listener in expected}
        half, bystander = (stack.enter_context(line_to(hub, listener)) for listener in ("micromsg", "fmqp"))
        half.send(micromsg.encode(micromsg.Handshake("me", (), ())))
        for listener, line in lines.items():
            assert line.ended() == expected[listener], listener
        error = Error("bad-handshake", (("reason", "the handshake took too long"),))
        (octets,) = half.ended()
        assert isinstance(octets, bytes)
        assert octets.endswith(micromsg.encode(error))
        subscribe(bystander, "fmqp", "a")
        for protocol, count in (("micromsg", 2), ("mqtt", 2), ("sabc", 2), ("umq", 1)):
            assert hub.metric(f'polywire_faults_total{{protocol="{protocol}",reason="handshake-time"}}') == count


@pytest.mark.rule("MICROMSG-176", "MQTT-188", "SABC-101", "UMQ-137")
def test_a_connection_silent_for_too_long_is_ended_in_the_words_of_each_protocol() -> None:
    words = "no data received within the idle timeout"
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub("limits.idle_time=3"))
        lines = {listener: stack.enter_context(line_to(hub, listener)) for listener in SPOKEN}
        sessions = {listener: subscribe(line, listener, "a") for listener, line in lines.items()}
        for listener, line in lines.items():
            session = sessions[listener]
            error = Error("shutting-down", (("reason", words),))
            expected = last_words(listener, session, error, f"F0:9 Limit exceeded: {words}")
            if session:
                told = wire(f"ERROR\nsession-id::{session}\nerror-code::408\n\n{words}\n\n^@")
                expected = joined([told] if listener == "sabc" else [told.decode()], expected)
            assert line.ended() == expected, listener
        assert hub.metric('polywire_faults_total{protocol="sabc",reason="idle-time"}') == 2


@pytest.mark.rule("SABC-37", "SABC-97", "SABC-110", "SABC-137")
@pytest.mark.parametrize(("token_time", "session_time"), [(4, 0), (3600, 2), (4, 3600)])
def test_a_connection_ends_when_its_login_does(tmp_path: Path, token_time: int, session_time: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32, encoding="utf-8")
    config = tmp_path / "polywire.toml"
    listen = "".join(f'{key} = "{address}"\n' for key, address in LISTEN.items())
    config.write_text(
        f"[listen]\n{listen}[auth]\nsession_time = {session_time}\n"
        f'[auth.jwt]\nkey = "{secret}"\nalgorithms = ["HS256"]\n'
        '[[access]]\nactions = ["publish", "subscribe"]\nchannels = ["**"]\n',
        encoding="utf-8",
    )
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub(config=config))
        listeners = [each for each in SPOKEN if each != "fmqp"]
        lines = {listener: stack.enter_context(line_to(hub, listener)) for listener in listeners}
        token = jwt.encode({"sub": "anna", "exp": int(time.time()) + token_time}, "s" * 32, "HS256")
        sessions = {listener: subscribe(line, listener, "a", token) for listener, line in lines.items()}
        for listener, line in lines.items():
            error = Error("shutting-down", (("reason", "the login has expired"),))
            expected = last_words(listener, sessions[listener], error, "F0:1 Rejected: the login has expired")
            assert line.ended() == expected, listener
        hub.login = jwt.encode({"sub": "anna", "exp": int(time.time()) + 60}, "s" * 32, "HS256")
        assert hub.metric('polywire_faults_total{protocol="sabc",reason="login-expired"}') == 2


@pytest.mark.rule("SABC-137")
@pytest.mark.parametrize("certified", [True, False], ids=["certificate", "anonymous"])
def test_the_session_time_holds_for_certificates_and_anonymous_clients(tmp_path: Path, certified: bool) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("hub")
    encrypted = {key: each.replace("tcp:", "tls:").replace("ws:", "wss:") for key, each in LISTEN.items()}
    listen = "".join(f'{key} = "{address}"\n' for key, address in encrypted.items())
    config = tmp_path / "polywire.toml"
    config.write_text(
        f'[listen]\n{listen}[tls]\ncertificate = "{own}"\nclient_ca = "{authority.root}"\n'
        "[auth]\ncertificate = true\nanonymous = true\nsession_time = 3\n",
        encoding="utf-8",
    )
    trust = ssl.create_default_context(cafile=str(authority.root))
    if certified:
        trust.load_cert_chain(authority.issue("anna"))
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(running_hub(config=config))
        lines = {listener: stack.enter_context(line_to(hub, listener, trust)) for listener in SPOKEN}
        sessions = {listener: subscribe(line, listener, "a") for listener, line in lines.items()}
        for listener, line in lines.items():
            error = Error("shutting-down", (("reason", "the login has expired"),))
            expected = last_words(listener, sessions[listener], error, "F0:1 Rejected: the login has expired")
            assert line.ended() == expected, listener


def test_a_silent_tls_or_websocket_handshake_is_ended_as_well(tmp_path: Path) -> None:
    config, _ = encrypting(tmp_path)
    with contextlib.ExitStack() as stack:
        encrypted = stack.enter_context(running_hub("limits.handshake_time=1", config=config))
        plain = stack.enter_context(running_hub("limits.handshake_time=1"))
        addresses = [encrypted.addresses["sabc"], encrypted.addresses["umq"], plain.addresses["umq"]]
        lines = [Plain(stack.enter_context(connected(address))) for address in addresses]
        assert [line.rest() for line in lines] == [b"", b"", b""]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("listener", SPOKEN)
def test_all_of_a_connection_is_freed_when_it_ends(listener: str, encrypted: bool, tmp_path: Path) -> None:
    config, trust = encrypting(tmp_path) if encrypted else (None, None)
    sets = () if encrypted else tuple(f"listen.{key}={address}" for key, address in LISTEN.items())

    def come_and_go(addresses: dict[str, str]) -> None:
        with line_to(cast("HubProcess", SimpleNamespace(addresses=addresses)), listener, trust) as line:
            subscribe(line, listener, "news")

    async def serve() -> list[object]:
        server = Server(load(config, [*sets, "journal.enabled=false"]))
        await server.start()
        try:
            await asyncio.to_thread(come_and_go, server.ready())
            while server.gate.connections:  # noqa: ASYNC110 - nothing tells when the last one has gone
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            return [each for each in gc.get_objects() if isinstance(each, Endpoint)]
        finally:
            await server.close()

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(asyncio.wait_for(serve(), 20)) == []
    finally:
        gc.enable()
