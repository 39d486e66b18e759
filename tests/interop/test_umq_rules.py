"""UMQ on a running hub, by raw messages: failed attachments, `!`, messages that are too big, attributes."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.interop.speaker import RefusedError
from tests.interop.speakers import speak
from tests.security.hashing import add_user
from tests.web import Web, open_web

SIZE = 200_000
FAILED = "-:Upstream download error"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(f"limits.message_size={SIZE}") as process:
        yield process


def welcomed(hub: HubProcess, hello: str = "H1:") -> Web:
    web = open_web(hub.addresses["umq"])
    web.send(hello)
    assert web.recv() == "W1:"
    return web


def say(web: Web, *messages: str | bytes, answers: int = 1) -> list[str | bytes]:
    for each in messages:
        web.send(each)
    return [web.recv() for _ in range(answers)]


@pytest.mark.rule("UMQ-154")
def test_a_failed_attachment_of_a_publication_is_relayed_with_the_rest(hub: HubProcess) -> None:
    with welcomed(hub) as peer:
        say(peer, 'C1:["subscribe","a/b",7]')
        heard = say(peer, 'A3:C2:["publish","a/b","text"]', b"1", FAILED, b"3", answers=5)
        assert heard == ["A3:T7:text", b"1", FAILED, b"3", "R2:null"]
        say(peer, "U7:", 'C3:["subscribe","a/b",8,{"envelope":true}]', answers=2)
        update, *rest = say(peer, 'A2:C4:["publish","a/b",{"n":1}]', FAILED, b"2", answers=4)
        assert str(update).startswith("A2:T8:")
        assert json.loads(str(update)[6:])["body"] == {"n": 1}
        assert rest == [FAILED, b"2", "R4:null"]


@pytest.mark.rule("UMQ-154", "UMQ-155")
def test_failed_attachments_of_calls_and_replies_are_relayed(hub: HubProcess) -> None:
    with welcomed(hub) as caller, welcomed(hub) as service:
        say(service, 'C1:["serve","duck","1"]')
        caller.send('A2:C5:["call","duck","get","duck.png"]')
        caller.send(FAILED)
        caller.send(b"2")
        request = str(service.recv())
        number = request[4 : request.index(":", 4)]
        assert request == f'A2:B{number}:1:["get","duck.png"]'
        assert [service.recv(), service.recv()] == [FAILED, b"2"]
        for message in (f"A2:R{number}:Sending image/png", b"\x89PNG", FAILED):
            service.send(message)
        assert [caller.recv() for _ in range(3)] == ["A2:R5:Sending image/png", b"\x89PNG", FAILED]
        # Where it is the body, too.
        caller.send('A1:C6:["call","duck","get",null]')
        caller.send(FAILED)
        request = str(service.recv())
        number = request[4 : request.index(":", 4)]
        assert (request, service.recv()) == (f'A1:B{number}:1:["get",null]', FAILED)
        service.send(f"A1:R{number}:")
        service.send(FAILED)
        assert [caller.recv(), caller.recv()] == ["A1:R6:", FAILED]


@pytest.mark.rule("UMQ-155")
@pytest.mark.parametrize("kind", ["micromsg", "fmqp", "mqtt", "sabc"])
def test_subscribers_of_other_protocols_miss_only_a_body_that_failed(hub: HubProcess, kind: str) -> None:
    with welcomed(hub) as peer, speak(kind, hub.addresses) as other:
        channel = f"failed/{kind}"
        other.subscribe(channel)
        assert say(peer, f'A1:C1:["publish","{channel}",null]', FAILED) == ["R1:null"]
        assert say(peer, f'A1:C2:["publish","{channel}","whole"]', FAILED) == ["R2:null"]
        assert other.receive().body == b"whole"


@pytest.mark.rule("UMQ-155")
@pytest.mark.parametrize("kind", ["mqtt", "sabc"])
def test_calls_across_protocols_fail_only_for_a_body_that_failed(hub: HubProcess, kind: str) -> None:
    with (
        welcomed(hub) as peer,
        speak(kind, hub.addresses) as other,
        speak(kind, hub.addresses) as service,
    ):
        say(peer, f'C1:["serve","umq-{kind}",1]')
        for reply, failed in (("whole", False), ("", True)):
            ticket = other.begin_call(f"umq-{kind}", "get", b"x")
            request = str(peer.recv())
            peer.send(f"A1:R{request[1 : request.index(':')]}:{reply}")
            peer.send(FAILED)
            if failed:
                with pytest.raises(RefusedError):
                    other.end_call(ticket)
            else:
                assert other.end_call(ticket) == b"whole"
        service.serve(f"other-{kind}")
        assert say(peer, f'A1:C2:["call","other-{kind}","get",null]', FAILED) == [
            "E2:11 Bad request: 400 failed-body: the body failed: Upstream download error"
        ]
        peer.send(f'A1:C3:["call","other-{kind}","get","x"]')
        peer.send(FAILED)
        service.answer(lambda method, body: method.encode() + body)
        assert peer.recv() == "R3:getx"


@pytest.mark.rule("UMQ-154")
def test_failed_attachments_outlive_the_hub(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub, welcomed(hub) as peer:
        for number, channel in enumerate(("queue/q", "kept")):
            options = json.dumps({"retain": channel == "kept"})
            answer = say(peer, f'A2:C{number}:["publish","{channel}","x",{options}]', FAILED, b"2")
            assert answer == [f"R{number}:null"]
        assert hub.stop() == 0
    with running_hub(journal=tmp_path) as hub, welcomed(hub) as peer:
        for topic, channel in enumerate(("queue/q", "kept")):
            heard = say(peer, f'C1:["subscribe","{channel}",{topic}]', answers=4)
            assert heard == ["R1:null", f"A2:T{topic}:x", "-:the attachment failed", b"2"]
    shown = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "polywire", "journal", "cat", str(tmp_path), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    kept = [row["attachments"] for row in map(json.loads, shown.splitlines()) if "attachments" in row]
    assert kept
    assert all(each == [None, "Mg=="] for each in kept)


def update(web: Web) -> tuple[str, object, list[str | bytes]]:
    """The next update: its start, its body (of an envelope that in it), and its attachments."""
    text = str(web.recv())
    announced, _, rest = (":" + text).partition(":T")
    count = int(announced.removeprefix(":A") or 0)
    topic, _, payload = rest.partition(":")
    body: object = json.loads(payload)["body"] if payload.startswith("{") else payload
    return topic, body, [web.recv() for _ in range(count)]


@pytest.mark.rule("UMQ-167", "UMQ-122")
@pytest.mark.parametrize("data", [b"abc", "grün".encode(), b"", b'{"n":1}', b"x" * 1000, b"\xff"])
def test_a_binary_body_stays_binary_and_text_stays_text(hub: HubProcess, data: bytes) -> None:
    with welcomed(hub) as publisher, welcomed(hub) as peer:
        say(peer, 'C1:["subscribe","form",1]', 'C2:["subscribe","form",2,{"envelope":true}]', answers=2)
        for options in ("", ',{"content_type":"application/json"}', ',{"content_type":"text/plain"}'):
            say(publisher, f'A1:C3:["publish","form",null{options}]', data)
            assert [update(peer), update(peer)] == [("1", "", [data]), ("2", None, [data])]
        say(publisher, 'A2:C3:["publish","form",null]', data, b"more")
        assert [update(peer), update(peer)] == [("1", "", [data, b"more"]), ("2", None, [data, b"more"])]
        if data != b"\xff":
            say(publisher, f'C3:["publish","form",{json.dumps(data.decode())}]')
            bare = str(peer.recv())
            assert (bare, update(peer)) == (f"T1:{data.decode()}", ("2", data.decode(), []))


@pytest.mark.rule("UMQ-167")
def test_a_binary_body_of_calls_and_replies_stays_binary(hub: HubProcess) -> None:
    with welcomed(hub) as caller, welcomed(hub) as service:
        say(service, 'C1:["serve","echo",1]')
        caller.send('A1:C5:["call","echo","get",null]')
        caller.send(b"abc")
        request = str(service.recv())
        number = request[4 : request.index(":", 4)]
        assert (request, service.recv()) == (f'A1:B{number}:1:["get",null]', b"abc")
        service.send(f"A1:R{number}:")
        service.send(b"abc")
        assert [caller.recv(), caller.recv()] == ["A1:R5:", b"abc"]
        caller.send('C6:["call","echo","get","abc"]')
        request = str(service.recv())
        number = request[1 : request.index(":")]
        assert request == f'B{number}:1:["get","abc"]'
        service.send(f"R{number}:abc")
        assert caller.recv() == "R6:abc"


@pytest.mark.rule("UMQ-167")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_binary_bodies_outlive_the_hub(tmp_path: Path, how: signal.Signals) -> None:
    channels = ("queue/q", "kept")
    with running_hub(journal=tmp_path) as hub, welcomed(hub) as peer:
        for channel in channels:
            options = json.dumps({"retain": channel == "kept"})
            assert say(peer, f'A1:C1:["publish","{channel}",null,{options}]', b"abc") == ["R1:null"]
            text = channel.replace("kept", "text")
            assert say(peer, f'C1:["publish","{text}","abc",{json.dumps({"retain": text == "text"})}]') == ["R1:null"]
        assert say(peer, 'C1:["subscribe","kept",1]', answers=3) == ["R1:null", "A1:T1:", b"abc"]
        hub.stop(how)
    with running_hub(journal=tmp_path) as hub, welcomed(hub) as peer:
        assert say(peer, 'C1:["subscribe","queue/q",1]', answers=4) == ["R1:null", "A1:T1:", b"abc", "T1:abc"]
        assert say(peer, 'C2:["subscribe","kept",2,{"envelope":true}]') == ["R2:null"]
        assert update(peer) == ("2", None, [b"abc"])
        assert say(peer, 'C3:["subscribe","text",3,{"envelope":true}]') == ["R3:null"]
        assert update(peer) == ("3", "abc", [])


@pytest.mark.rule("UMQ-167")
@pytest.mark.parametrize("kind", ["mqtt", "fmqp", "sabc", "micromsg"])
def test_bodies_of_other_protocols_are_text_if_they_are_utf8(hub: HubProcess, kind: str) -> None:
    with welcomed(hub) as peer, speak(kind, hub.addresses) as other:
        say(peer, f'C1:["subscribe","from/{kind}",1,{{"envelope":true}}]')
        other.publish(f"from/{kind}", b"abc")
        assert update(peer) == ("1", "abc", [])
        other.publish(f"from/{kind}", b"\xff")
        assert update(peer) == ("1", None, [b"\xff"])


@pytest.mark.rule("UMQ-156")
def test_an_exclamation_mark_is_the_exception_of_a_service(hub: HubProcess) -> None:
    with welcomed(hub) as caller, welcomed(hub) as service:
        say(service, 'C1:["serve","nobody",1]')
        caller.send('C5:["call","nobody","get","x"]')
        request = str(service.recv())
        service.send(f"!{request[1 : request.index(':')]}:7 No route to method")
        assert caller.recv() == "E5:404 no-method: No route to method"  # UMQ-162
        service.send("!9:7 nobody waits for this")
        assert say(service, 'C2:["unserve","nobody"]') == ["R2:null"]


@pytest.mark.rule("UMQ-160", "UMQ-133")
@pytest.mark.parametrize("size", [SIZE + 1, SIZE + 100_000, 20 * SIZE])
@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("kind", ["text", "binary"])
def test_a_message_that_is_too_big_gets_code_9_and_then_1009(
    hub: HubProcess, size: int, kind: str, *, fragmented: bool
) -> None:
    with connect(hub.addresses["umq"], open_timeout=20) as web:
        web.send("H1:")
        assert web.recv(20) == "W1:"
        web.send('C1:["whoami"]')
        assert str(web.recv(20)).startswith("R1:")
        half = b"x" * (size // 2)
        whole = [half, b"x" * (size - len(half))]
        with contextlib.suppress(ConnectionClosed):  # between two parts this client sees that it is closed
            web.send(whole if fragmented else b"".join(whole), text=kind == "text")
        assert str(web.recv(20)).startswith("F0:9 Limit exceeded: ")
        with pytest.raises(ConnectionClosed) as caught:
            web.recv(20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


@pytest.mark.rule("UMQ-160")
def test_a_first_message_that_is_too_big_gets_code_9_as_well(hub: HubProcess) -> None:
    with connect(hub.addresses["umq"], open_timeout=20) as web:
        web.send("H1:" + "x" * 1_000_000)
        assert str(web.recv(20)).startswith("F0:9 Limit exceeded: ")
        with pytest.raises(ConnectionClosed) as caught:
            web.recv(20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def connection_of(web: Web) -> int:
    (answer,) = say(web, 'C1:["whoami"]')
    number: int = json.loads(str(answer).partition(":")[2])["connection"]
    return number


@pytest.mark.rule("UMQ-157", "UMQ-158")
def test_attributes_can_be_read(hub: HubProcess) -> None:
    with welcomed(hub) as peer, welcomed(hub) as other:
        number = connection_of(peer)
        for message in ("S:key=value", "S:gone=1", "A2:S:icon=png", b"\x89PNG", FAILED, "X:gone"):
            peer.send(message)
        expected = {"key": "value", "icon": {"value": "png", "attachments": [0, 1]}}
        answer, *attached = say(peer, 'C1:["whoami"]', answers=3)
        assert json.loads(str(answer)[6:])["attributes"] == expected
        assert attached == [b"\x89PNG", FAILED]
        answer, *attached = say(other, f'C1:["attributes",{number}]', answers=3)
        assert (json.loads(str(answer)[6:]), attached) == (expected, [b"\x89PNG", FAILED])
        assert str(say(other, 'C2:["attributes",999999]')[0]).startswith("E2:11 ")


@pytest.mark.rule("UMQ-158")
def test_attributes_of_others_are_subject_to_the_access_rules(tmp_path: Path) -> None:
    users = tmp_path / "users"
    for name in ("anna", "bert", "boss"):
        add_user(users, name, "secret")
    listen = "\n".join(f'{key} = "{address}"' for key, address in LISTEN.items())
    config = tmp_path / "polywire.toml"
    config.write_text(
        f"""
[listen]
{listen}

[auth]
users = "{users}"

[[access]]
actions = ["publish", "subscribe", "call", "serve"]
channels = ["**"]

[[access]]
user = "boss"
actions = ["signal"]
channels = ["$attributes/*"]
""",
        encoding="utf-8",
    )

    hello = 'H1:{{"user":"{}","password":"secret"}}'
    with (
        running_hub(config=config) as hub,
        welcomed(hub, hello.format("anna")) as anna,
        welcomed(hub, hello.format("anna")) as second,
        welcomed(hub, hello.format("bert")) as bert,
        welcomed(hub, hello.format("boss")) as boss,
    ):
        number = connection_of(anna)
        say(anna, "S:key=value", 'C1:["whoami"]')
        for reader in (second, boss):
            assert say(reader, f'C2:["attributes",{number}]') == ['R2:{"key":"value"}']
        refused = [say(bert, f'C2:["attributes",{each}]') for each in (number, 999999)]
        assert refused[0] == refused[1]
        assert str(refused[0][0]).startswith("E2:12 ")
