"""Every limit on every transport: its own protocol's error, and nobody else notices."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from polywire.protocols import mqtt
from polywire.protocols.micromsg import frames as micromsg
from polywire.protocols.micromsg.text import read_extensions
from tests.faults.friends import FRIENDS, Friend, HungUpError, MicromsgFriend, SabcFriend, friend, line, masked, upgrade
from tests.hub_process import HubProcess, running_hub

SIZE = 100_000
EVERYBODY = pytest.mark.parametrize("key", FRIENDS)
WITH_LOGIN = pytest.mark.parametrize("key", [key for key in FRIENDS if key != "fmqp"])
BY_WEBSOCKET = pytest.mark.parametrize("key", ["umq", "mqtt_ws", "sabc_ws"])


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(
        f"limits.message_size={SIZE}",
        "limits.message_size_before_auth=2000",
        "limits.header_size=1000",
        "limits.subscriptions=3",
        "limits.in_flight=10",
        "limits.unfinished=2",
        "limits.handshake_time=1",
    ) as process:
        yield process


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nobody_else_notices(hub: HubProcess, key: str) -> Iterator[None]:
    """Two who were there before, of the same listener, and talk afterwards."""
    one, other = friend(hub, key), friend(hub, key)
    with contextlib.closing(one.line.socket), contextlib.closing(other.line.socket):
        one.subscribe("bystanders")
        yield
        other.publish("bystanders", b"still here")
        assert one.hear() == b"still here"
    assert "internal-error" not in hub.get("/metrics")[1]
    assert not any("Traceback" in each for each in hub.errors)


def guest(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> Friend:
    made = friend(hub, key)
    stack.callback(made.close)
    return made


NORMAL = 1000


def last_words(client: Friend) -> list[object]:
    """What a client hears until the hub hangs up; the closing frame's code, where it says that something was wrong."""
    said: list[object] = []
    try:
        while True:
            said.append(client.word())
    except HungUpError as error:
        if error.args:
            code = int.from_bytes(error.args[0][:2], "big")
            if code != NORMAL:
                said.append(code)
    except ConnectionError:
        pass
    return said


@EVERYBODY
def test_a_message_over_the_size_gets_the_protocol_s_own_answer(
    hub: HubProcess, key: str, stack: contextlib.ExitStack
) -> None:
    client, reader = guest(hub, key, stack), guest(hub, "fmqp", stack)
    reader.subscribe("large")
    body = b"x" * (SIZE + 1)
    client.line.send(client.push("large", body))
    if key == "fmqp":
        client.publish("large", b"next")  # discarded, and the connection lives on
        assert reader.hear() == b"next"
    elif key.startswith("sabc"):
        got = reader.hear()  # cut at the limit, and the connection lives on
        assert SIZE - 1000 < len(got) < SIZE
        client.publish("large", b"next")
        assert reader.hear() == b"next"
    elif key == "umq":
        fatal, code = last_words(client)
        assert str(fatal).startswith("F0:9 ")
        assert code == 1009
    elif key == "micromsg":
        (error,) = last_words(client)
        assert isinstance(error, micromsg.Error)
        assert error.name == "too-large"
    else:
        assert last_words(client) == []  # MQTT has no words


@WITH_LOGIN
def test_before_the_login_less_is_taken(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    made = line(hub, key)
    stack.callback(made.socket.close)
    large = "x" * 3000
    first = {
        "umq": f"H1:{large}".encode(),
        "micromsg": micromsg.encode(micromsg.Handshake("c", read_extensions(f"x-auth:token={large}".encode()), ())),
        "mqtt": mqtt.encode(mqtt.Connect("me", user_name=large, password=b"x")),
        "sabc": f"CONNECT\r\nclient-id::{large}\r\n\r\n\0".encode(),
    }[key.removesuffix("_ws")]
    made.send(first)
    answer = b""
    with contextlib.suppress(HungUpError, ConnectionError):
        while True:
            answer += made.receive()
    expected = {"umq": b"F0:9 ", "micromsg": b"too-large", "mqtt": b"", "sabc": b"error-code::4"}
    assert expected[key.removesuffix("_ws")] in answer


@BY_WEBSOCKET
def test_a_giant_before_the_login_is_never_held(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    made = line(hub, key)
    stack.callback(made.socket.close)
    with contextlib.suppress(ConnectionError):  # hung up on before all of it is out
        made.socket.sendall(masked(0x82, bytes(SIZE))[:-1])
    if key == "umq":  # it has words for that
        assert b"F0:9 " in made.receive()
    with pytest.raises((HungUpError, ConnectionError)) as caught:
        made.receive()
    if caught.value.args and isinstance(caught.value, HungUpError):
        assert caught.value.args[0][:2] == (1009).to_bytes(2, "big")


@pytest.mark.rule("MICROMSG-176", "MQTT-188")
@EVERYBODY
def test_a_subscription_too_many_is_refused(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    if isinstance(client, SabcFriend):
        for each in "abc":
            client.subscribe(each)
        client.line.send(client.frame("op::subscribe", "destination::d"))
        assert "error-code::429" in str(client.word())
    elif isinstance(client, MicromsgFriend):
        for each in "abc":
            client.subscribe(each)
        client.line.send(micromsg.encode(micromsg.Command("subscribe", (("destination", "topic/d"),))))
        error = client.word()
        assert isinstance(error, micromsg.Error)
        assert error.name == "forbidden"
        assert ("limit", "3") in error.arguments
    elif key == "umq":
        for number in (1, 2, 3, 4):
            client.line.send(f'C{number}:["subscribe","{number}",{number}]'.encode())
        assert [str(client.word())[:4] for _ in range(4)] == ["R1:n", "R2:n", "R3:n", "E4:9"]
    elif key == "fmqp":
        client.subscribe("a")
        client.subscribe("b")  # its marker is the third
        client.subscribe("c")
        client.publish("c", b"not heard")
        client.publish("a", b"heard")
        assert client.hear() == b"heard"
    else:
        filters = tuple((each, 0) for each in "abcd")
        client.line.send(mqtt.encode(mqtt.Subscribe(9, filters)))
        assert client.word() == mqtt.Suback(9, (0, 0, 0, 0x80))


@EVERYBODY
def test_too_many_in_flight_or_unfinished_is_told(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    if isinstance(client, SabcFriend):
        for number in range(3):
            head = f"MESSAGE\r\nsession-id::{client.session}\r\nmsg-id::{number}\r\nmsg-more::yes\r\n"
            client.line.send(f"{head}destination::a\r\n\r\npart".encode())
        client.line.send(client.frame("destination::b"))
        said = [str(client.word()) for _ in range(2)]
        assert any("error-code::429" in each and "ref-msg-id::2" in each for each in said)
    elif isinstance(client, MicromsgFriend):
        # The acknowledgements can't come: the hub reads all of these at once.
        client.line.send(b"".join(client.push("a", b"x") for _ in range(200)))
        assert any(isinstance(each, micromsg.Error) and each.name == "window-exceeded" for each in last_words(client))
    elif key == "umq":
        client.line.send(b'A3:C1:["publish","a",null]')
        assert str(last_words(client)[-1]).startswith("F0:9 ")
    elif key.startswith("mqtt"):
        for number in range(1, 13):
            client.line.send(mqtt.encode(mqtt.Publish("a", b"x", qos=2, packet_id=number)))
        assert last_words(client) == [mqtt.Pubrec(number) for number in range(1, 11)]
    else:
        client.publish("a", b"FMQP has neither")


@EVERYBODY
def test_a_header_over_the_size_is_refused(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    large = "x" * 2000
    if isinstance(client, SabcFriend):
        client.line.send(client.frame("destination::a", f"note::{large}"))
        assert "error-code::4" in str(client.word())
    elif isinstance(client, MicromsgFriend):
        client.line.send(micromsg.encode(micromsg.Command("subscribe", (("destination", large),))))
        (error,) = last_words(client)
        assert isinstance(error, micromsg.Error)
        assert error.name == "too-large"
    elif key == "umq":
        client.line.send(f'C1:["publish","a","x",{{"headers":{{"note":"{large}"}}}}]'.encode())
        assert str(client.word()).startswith("E1:9")
    else:
        client.publish("a", b"FMQP and MQTT have no headers")


@pytest.mark.rule("MICROMSG-176", "MQTT-188", "MQTT-076", "UMQ-137", "SABC-101")
@WITH_LOGIN
def test_a_silent_handshake_is_ended(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    made = line(hub, key)
    stack.callback(made.socket.close)
    answer = b""
    with contextlib.suppress(HungUpError, ConnectionError):
        while True:
            answer += made.receive()
    assert (b"error-code::408" in answer) == key.startswith("sabc")


@BY_WEBSOCKET
@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (b"\x81\x03abc", 1002),
        (masked(0x83, b"x"), 1002),
        (masked(0xC2, b"x"), 1002),
        (masked(0x92, b"x"), 1002),
        (masked(0x80, b"x"), 1002),
        (masked(0x02, b"0") + masked(0x82, b"x"), 1002),
        (masked(0x89, bytes(126)), 1002),
        (b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), 1009),
        (masked(0x88, b""), NORMAL),
        (masked(0x88, b"\x03\xe9bye"), 1001),
    ],
)
def test_websocket_rules_are_told_by_their_code(
    hub: HubProcess, key: str, octets: bytes, code: int, stack: contextlib.ExitStack
) -> None:
    client = guest(hub, key, stack)
    client.line.socket.sendall(octets)
    said = last_words(client)
    if key == "umq" and code == 1009:  # UMQ has words for it
        assert str(said.pop(0)).startswith("F0:9 ")
    assert said == ([] if code == NORMAL else [code])


@pytest.mark.rule("MQTT-167")
@pytest.mark.parametrize(("key", "code"), [("umq", 1007), ("mqtt_ws", 1003), ("sabc_ws", 1007)])
def test_text_is_utf_8_and_not_for_mqtt(hub: HubProcess, key: str, code: int, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    client.line.socket.sendall(masked(0x81, b"\xff"))
    assert last_words(client) == ([] if code == NORMAL else [code])


@pytest.mark.rule("MQTT-168")
@pytest.mark.parametrize("key", ["mqtt_ws"])
def test_packets_need_not_fit_websocket_messages(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    client.subscribe("a")
    packets = client.push("a", b"one") + client.push("a", b"two") + client.push("a", b"y" * SIZE)
    client.line.socket.sendall(masked(0x02, packets[:4]) + masked(0x00, packets[4:9]) + masked(0x80, packets[9:20]))
    client.line.socket.sendall(masked(0x82, packets[20:]))
    assert [client.hear() for _ in range(3)] == [b"one", b"two", b"y" * SIZE]


@pytest.mark.parametrize("key", ["umq"])
def test_pings_are_answered_and_no_more_than_are_read(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    client = guest(hub, key, stack)
    client.line.socket.sendall(masked(0x89, b"ping"))
    assert client.line.receive() == b"ping"
    for _ in range(500):
        client.line.socket.sendall(masked(0x89, bytes(125)) * 500)
    answers = 0
    client.line.send(b"F0:1 ")  # which ends the connection
    with contextlib.suppress(HungUpError, ConnectionError):
        while client.line.receive():
            answers += 1
    assert answers < 250_000


@pytest.mark.parametrize("key", ["umq"])
@pytest.mark.parametrize(
    ("request_octets", "status"),
    [
        (b"GET /umq HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 "),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        (upgrade("/umq", "Sec-WebSocket-Protocol: umq"), b"HTTP/1.1 101 "),
    ],
)
def test_what_is_no_upgrade_is_told_so(
    hub: HubProcess, key: str, request_octets: bytes, status: bytes, stack: contextlib.ExitStack
) -> None:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port(key)), 20))
    connection.sendall(request_octets)
    assert connection.recv(1000).startswith(status)
