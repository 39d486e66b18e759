"""Which packet may come when."""

import pytest

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    LocalProtocolError,
    Order,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Will,
    encode,
)
from polywire.protocols.mqtt.frames import CLIENT_SENDS, OUT_OF_ORDER, SERVER_SENDS, TABLES, Side, State, out_of_order
from polywire.wire.frame import Frame
from tests.protocols.mqtt.wire import connected, decoded, violation

CONNECT = encode(Connect("me"))
CONNACK = encode(Connack(False, 0))
PING = encode(Pingreq())


@pytest.mark.rule("MQTT-027")
@pytest.mark.parametrize("first", ["C0 00", "30 03 00 01 61", "E0 00", "82 06 00 01 00 01 61 00"])
def test_a_client_that_does_not_begin_with_connect_is_refused_at_its_first_octet(first: str) -> None:
    error = violation(bytes.fromhex(first)[:1], "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-027", 0, None)


@pytest.mark.rule("MQTT-028")
def test_a_second_connect_is_refused() -> None:
    error = violation(CONNECT + PING + CONNECT, "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-028", len(CONNECT) + 2, None)
    assert error.frames == [Connect("me"), Pingreq()]


@pytest.mark.rule("MQTT-074")
def test_a_client_need_not_wait_for_connack() -> None:
    frames = [Connect("me"), Subscribe(1, (("a", 0),)), Publish("a", b"x"), Disconnect()]
    assert decoded(b"".join(map(encode, frames)), "server") == frames


@pytest.mark.rule("MQTT-136")
@pytest.mark.parametrize("later", [PING, CONNECT, encode(Disconnect()), encode(Publish("a", b""))])
def test_nothing_comes_after_disconnect(later: bytes) -> None:
    decoder = connected("server")
    assert decoder.feed(encode(Disconnect())) == [Disconnect()]
    assert violation(later, decoder=decoder).rule == "MQTT-136"


@pytest.mark.rule("MQTT-077")
@pytest.mark.parametrize("first", [encode(Pingresp()), encode(Publish("a", b"")), encode(Suback(1, (0,)))])
def test_a_server_that_does_not_begin_with_connack_is_refused(first: bytes) -> None:
    assert violation(first, "client").rule == "MQTT-077"


@pytest.mark.rule("MQTT-187")
def test_a_second_connack_is_refused() -> None:
    error = violation(CONNACK * 2, "client")
    assert (error.rule, error.position, error.frames) == ("MQTT-187", 4, [Connack(False, 0)])


@pytest.mark.rule("MQTT-084")
@pytest.mark.parametrize("code", range(1, 6))
def test_nothing_comes_after_a_connack_that_refuses(code: int) -> None:
    error = violation(encode(Connack(False, code)) + encode(Pingresp()), "client")
    assert (error.rule, error.frames) == ("MQTT-084", [Connack(False, code)])


SENT: list[tuple[Side, list[Frame], Frame, str]] = [
    ("client", [], Pingreq(), "MQTT-027"),
    ("client", [Connect("me")], Connect("me"), "MQTT-028"),
    ("client", [Connect("me"), Disconnect()], Pingreq(), "MQTT-136"),
    ("client", [Connect("me")], Pingresp(), "MQTT-010"),
    ("server", [], Pingresp(), "MQTT-077"),
    ("server", [Connack(False, 0)], Connack(False, 2), "MQTT-187"),
    ("server", [Connack(False, 5)], Publish("a", b""), "MQTT-084"),
    ("server", [Connack(False, 0)], Pingreq(), "MQTT-011"),
    ("server", [], Will("a", b""), "MQTT-008"),
]


@pytest.mark.rule("MQTT-010", "MQTT-011", "MQTT-027", "MQTT-028", "MQTT-077", "MQTT-084", "MQTT-136", "MQTT-187")
@pytest.mark.parametrize(("sender", "before", "frame", "rule"), SENT)
def test_a_side_that_asks_first_does_not_send_out_of_order(
    sender: Side, before: list[Frame], frame: Frame, rule: str
) -> None:
    order = Order(sender)
    for earlier in before:
        order.sends(earlier)
    state = order.state
    with pytest.raises(LocalProtocolError) as caught:
        order.sends(frame)
    assert caught.value.rule == rule
    assert order.state is state


def test_a_whole_conversation_is_in_order() -> None:
    client, server = Order("client"), Order("server")
    for asked in (Connect("me"), Publish("a", b"", 1, packet_id=1), Pingreq(), Disconnect()):
        client.sends(asked)
    for answered in (Connack(False, 0), Puback(1), Pingresp()):
        server.sends(answered)
    assert (client.state, server.state) == (State.DISCONNECTED, State.CONNECTED)


def test_the_tables_hold_what_the_document_says_and_no_more() -> None:
    assert {kind for state, kind in CLIENT_SENDS if state is State.CONNECTED} == {3, 4, 5, 6, 7, 8, 10, 12, 14}
    assert {kind for state, kind in SERVER_SENDS if state is State.CONNECTED} == {3, 4, 5, 6, 7, 9, 11, 13}
    for sender, table in TABLES.items():
        assert len({kind for state, kind in table if state is State.NEW}) == (1 if sender == "client" else 2)
        for state in set(table.values()):
            for kind in range(1, 15):
                if (state, kind) not in table:
                    assert out_of_order(sender, state, kind)[0].startswith("MQTT-")
                    assert (sender, state) in OUT_OF_ORDER
