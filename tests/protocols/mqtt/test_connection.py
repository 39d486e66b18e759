"""Both ends of a connection: which packet may come and go when, and what waits to be asked for."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Connection,
    Disconnect,
    LocalProtocolError,
    Order,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    RemoteProtocolError,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from polywire.protocols.mqtt.connection import KINDS
from polywire.protocols.mqtt.frames import CLIENT_SENDS, NAMES, OUT_OF_ORDER, SERVER_SENDS, TABLES, State, out_of_order
from polywire.wire.frame import Frame, Role, Run
from tests.protocols.mqtt.strategies import from_client

CONNECT = encode(Connect("me"))
CONNACK = encode(Connack(session_present=False, return_code=0))
PING = encode(Pingreq())

SERVER, CLIENT = Role.SERVER, Role.CLIENT
NO_ROUTES: dict[bytes, object] = {}


def events(connection: Connection) -> list[Frame | Run]:
    return list(iter(connection.next_event, None))


def received(role: Role, *chunks: bytes) -> tuple[list[object], RemoteProtocolError]:
    """What comes before a violation, and the violation."""
    connection = Connection(role)
    for chunk in chunks:
        connection.receive(chunk)
    found: list[object] = []
    with pytest.raises(RemoteProtocolError) as caught:
        found.extend(iter(connection.next_event, None))
    with pytest.raises(RemoteProtocolError) as again:
        connection.next_event()
    assert again.value.rule == caught.value.rule
    return found, caught.value


def connected(role: Role) -> Connection:
    """A connection whose first packets have gone both ways."""
    connection = Connection(role)
    if role is SERVER:
        connection.receive(CONNECT)
        connection.send(Connack(session_present=False, return_code=0))
    else:
        connection.send(Connect("me"))
        connection.receive(CONNACK)
    assert len(events(connection)) == 1
    return connection


@pytest.mark.rule("MQTT-027")
@pytest.mark.parametrize("first", ["C0 00", "30 03 00 01 61", "E0 00", "82 06 00 01 00 01 61 00"])
def test_a_client_that_does_not_begin_with_connect_is_refused_at_its_first_byte(first: str) -> None:
    found, error = received(SERVER, bytes.fromhex(first)[:1])
    assert (found, error.rule, error.position, error.reply) == ([], "MQTT-027", 0, None)


@pytest.mark.rule("MQTT-028")
def test_a_second_connect_is_refused() -> None:
    found, error = received(SERVER, CONNECT + PING + CONNECT)
    assert (error.rule, error.position, error.reply) == ("MQTT-028", len(CONNECT) + 2, None)
    assert found == [Connect("me"), Pingreq()]


@pytest.mark.rule("MQTT-074")
def test_a_client_need_not_wait_for_connack() -> None:
    frames = [Connect("me"), Subscribe(1, (("a", 0),)), Publish("a", b"x"), Disconnect()]
    client, server = Connection(CLIENT), Connection(SERVER)
    for frame in frames:
        server.receive(client.send(frame))
    assert events(server) == frames


@pytest.mark.rule("MQTT-136")
@pytest.mark.parametrize("later", [PING, CONNECT, encode(Disconnect()), encode(Publish("a", b""))])
def test_nothing_comes_after_disconnect(later: bytes) -> None:
    found, error = received(SERVER, CONNECT, encode(Disconnect()), later)
    assert (found, error.rule) == ([Connect("me"), Disconnect()], "MQTT-136")


@pytest.mark.rule("MQTT-077")
@pytest.mark.parametrize("first", [encode(Pingresp()), encode(Publish("a", b"")), encode(Suback(1, (0,)))])
def test_a_server_that_does_not_begin_with_connack_is_refused(first: bytes) -> None:
    assert received(CLIENT, first)[1].rule == "MQTT-077"


@pytest.mark.rule("MQTT-187")
def test_a_second_connack_is_refused() -> None:
    found, error = received(CLIENT, CONNACK * 2)
    assert (error.rule, error.position, found) == ("MQTT-187", 4, [Connack(session_present=False, return_code=0)])


@pytest.mark.rule("MQTT-084")
@pytest.mark.parametrize("code", range(1, 6))
def test_nothing_comes_after_a_connack_that_refuses(code: int) -> None:
    found, error = received(CLIENT, encode(Connack(session_present=False, return_code=code)) + encode(Pingresp()))
    assert (error.rule, found) == ("MQTT-084", [Connack(session_present=False, return_code=code)])


@pytest.mark.rule("MQTT-010", "MQTT-011")
def test_each_end_refuses_what_only_the_same_end_sends() -> None:
    servers: list[Frame] = [Connack(session_present=False, return_code=0), Suback(1, (0,)), Unsuback(1), Pingresp()]
    clients: list[Frame] = [Connect("me"), Subscribe(1, (("a", 0),)), Unsubscribe(1, ("a",)), Pingreq(), Disconnect()]
    assert {received(SERVER, CONNECT, encode(frame))[1].rule for frame in servers} == {"MQTT-010"}
    assert {received(CLIENT, CONNACK, encode(frame))[1].rule for frame in clients} == {"MQTT-011"}


SENT: list[tuple[Role, list[Frame], Frame, str]] = [
    (CLIENT, [], Pingreq(), "MQTT-027"),
    (CLIENT, [Connect("me")], Connect("me"), "MQTT-028"),
    (CLIENT, [Connect("me"), Disconnect()], Pingreq(), "MQTT-136"),
    (CLIENT, [Connect("me")], Pingresp(), "MQTT-010"),
    (SERVER, [], Pingresp(), "MQTT-077"),
    (
        SERVER,
        [Connack(session_present=False, return_code=0)],
        Connack(session_present=False, return_code=2),
        "MQTT-187",
    ),
    (SERVER, [Connack(session_present=False, return_code=5)], Publish("a", b""), "MQTT-084"),
    (SERVER, [Connack(session_present=False, return_code=0)], Pingreq(), "MQTT-011"),
    (SERVER, [], Will("a", b""), "MQTT-008"),
]


@pytest.mark.rule("MQTT-010", "MQTT-011", "MQTT-027", "MQTT-028", "MQTT-077", "MQTT-084", "MQTT-136", "MQTT-187")
@pytest.mark.parametrize(("role", "before", "frame", "rule"), SENT)
def test_neither_end_sends_out_of_order(role: Role, before: list[Frame], frame: Frame, rule: str) -> None:
    connection, order = Connection(role), Order("client" if role is CLIENT else "server")
    for earlier in before:
        assert connection.send(earlier) == encode(earlier)
        order.sends(earlier)
    state = order.state
    for sends in (connection.send, connection.send, order.sends):
        with pytest.raises(LocalProtocolError) as caught:
            sends(frame)
        assert caught.value.rule == rule
    assert order.state is state


def test_what_can_not_be_written_changes_nothing() -> None:
    client = Connection(CLIENT)
    with pytest.raises(LocalProtocolError):
        client.send(Connect("", clean_session=False))
    assert client.send(Connect("me")) == CONNECT


def test_two_ends_understand_each_other() -> None:
    client, server = Connection(CLIENT), Connection(SERVER)
    asked: list[Frame] = [Connect("me"), Publish("a", b"", 1, packet_id=1), Pingreq(), Disconnect()]
    answered: list[Frame] = [Connack(session_present=False, return_code=0), Puback(1), Pingresp()]
    for frame in asked:
        server.receive(client.send(frame))
    assert events(server) == asked
    for frame in answered:
        client.receive(server.send(frame))
    assert events(client) == answered


def test_packets_wait_until_they_are_asked_for() -> None:
    server = Connection(SERVER)
    server.receive(CONNECT + PING)
    assert server.next_event() == Connect("me")
    server.receive(encode(Publish("a", b"1")) + b"\xf0")
    server.receive(PING)
    assert [server.next_event(), server.next_event()] == [Pingreq(), Publish("a", b"1")]
    with pytest.raises(RemoteProtocolError) as caught:
        server.next_event()
    assert caught.value.rule == "MQTT-009"


def test_runs_wait_with_the_packets_around_them() -> None:
    server = connected(SERVER)
    server.receive_runs(PING + encode(Publish("a", b"1")) * 2, {b"a": 1}, NO_ROUTES.get)
    server.receive_runs(encode(Publish("a", b"2")) + b"\xf0", {b"a": 2}, NO_ROUTES.get)
    assert server.next_event() == Pingreq()
    runs = [server.next_event(), server.next_event()]
    assert [(run.route, run.count) for run in runs if isinstance(run, Run)] == [(1, 2), (2, 1)]
    with pytest.raises(RemoteProtocolError):
        server.next_event()


def test_a_chunk_is_not_kept_once_its_packets_were_asked_for() -> None:
    server = connected(SERVER)
    chunk = encode(Publish("a", b"1")) * 100
    before = sys.getrefcount(chunk)
    server.receive_runs(chunk, {b"a": 1}, NO_ROUTES.get)
    assert len(events(server)) == 1
    assert sys.getrefcount(chunk) == before


@given(st.lists(from_client, max_size=10), st.data())
def test_every_packet_comes_once_and_in_order_however_it_is_cut_and_pulled(
    frames: list[Frame], data: st.DataObject
) -> None:
    server, stream = connected(SERVER), b"".join(map(encode, frames))
    found: list[object] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        server.receive(stream[:size])
        stream = stream[size:]
        found += [server.next_event() for _ in range(data.draw(st.integers(0, 3)))]
    found += events(server)
    assert [event for event in found if event is not None] == frames
    assert server.pending() == 0


@pytest.mark.rule("MQTT-135")
def test_a_client_closes_with_disconnect_and_a_server_without_a_word() -> None:
    assert connected(CLIENT).close() == encode(Disconnect())
    assert connected(SERVER).close() == b""
    assert Connection(CLIENT).close() == b""


@pytest.mark.rule("MQTT-165")
def test_a_violation_is_answered_only_where_there_is_an_answer() -> None:
    for data, answer in [
        (b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x02me", encode(Connack(session_present=False, return_code=1))),
        (b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x3c\x00\x00", encode(Connack(session_present=False, return_code=2))),
        (PING, b""),
        (CONNECT * 2, b""),
    ]:
        server = Connection(SERVER)
        server.receive(data)
        with pytest.raises(RemoteProtocolError) as caught:
            events(server)
        assert server.close(caught.value) == answer
    client = connected(CLIENT)
    client.receive(CONNACK)
    with pytest.raises(RemoteProtocolError) as caught:
        client.next_event()
    assert client.close(caught.value) == b""


def test_nothing_comes_from_a_closed_connection() -> None:
    server = connected(SERVER)
    server.receive(PING)
    server.close()
    server.receive(PING + b"\xf0")
    server.receive_runs(PING, {}, NO_ROUTES.get)
    assert server.next_event() is None


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
    assert [kind.__name__.upper() for kind in KINDS] == list(NAMES[1:15])
    assert list(KINDS.values()) == list(range(1, 15))
