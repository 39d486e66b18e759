"""The life of a session from either end, on the class that hub and programs run."""

from itertools import product

import pytest

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Connection,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    LocalProtocolError,
    Message,
    RemoteProtocolError,
    Session,
    State,
    Whole,
    encode,
    new_session_id,
)
from polywire.protocols.sabc.connection import NAMES, RECEIVE, SEND
from polywire.protocols.sabc.errors import MEANINGS
from polywire.wire.frame import Discarded, Frame, Role
from tests.protocols.sabc.wire import SESSION, code_of, message, wire

BEFORE_THE_END = [State.NEW, State.CONNECTING, State.OPEN, State.LEAVING]
FRAMES: dict[str, Frame] = {
    "CONNECT": Connect("me"),
    "CONNECTED": Connected(SESSION),
    "DISCONNECT": Disconnect(SESSION),
    "DISCONNECTING": Disconnecting(SESSION),
    "MESSAGE": Message(SESSION, "1"),
    "ERROR": Error("400", b"", SESSION),
}


def at(role: Role, state: State) -> Connection:
    """A connection in this state, and how it got there."""
    connection = Connection(role, session_id=SESSION if role is Role.SERVER else None)
    if state is State.CLOSED:
        connection.close()
    if state in {State.NEW, State.CLOSED}:
        return connection
    steps = [Connect("me"), Connected(SESSION), Disconnect(SESSION)]
    for step in steps[: [State.CONNECTING, State.OPEN, State.LEAVING].index(state) + 1]:
        if (role is Role.CLIENT) == (not isinstance(step, Connected)):
            connection.send(step)
        else:
            assert received(connection, step) == step
    assert connection.state is state
    return connection


def received(connection: Connection, frame: Frame) -> Frame | None:
    """The event that a frame from the other side is."""
    connection.receive(encode(frame))
    return connection.next_event()


def sent(connection: Connection, frame: Frame) -> None:
    """A frame may be sent, and is written as it is."""
    assert connection.send(frame) == [encode(frame)]


@pytest.mark.rule("SABC-01", "SABC-02", "SABC-19", "SABC-20", "SABC-44")
def test_a_session_from_connect_to_disconnecting() -> None:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER, session_id=SESSION)

    def pass_on(sender: Connection, frame: Frame, receiver: Connection) -> None:
        [octets] = sender.send(frame)
        receiver.receive(octets)
        arrived = receiver.next_event()
        if isinstance(frame, Message):
            assert arrived == Whole(SESSION, frame.msg_id, frame.body, (), frame.ref_msg_id)
        else:
            assert arrived == frame

    pass_on(client, Connect("me"), server)
    assert (client.state, server.state) == (State.CONNECTING, State.CONNECTING)
    pass_on(server, Connected(SESSION), client)
    assert (client.state, server.state) == (State.OPEN, State.OPEN)
    assert client.session_id == SESSION
    pass_on(client, Message(SESSION, "1", b"hello"), server)
    pass_on(server, Message(SESSION, None, b"OK", ref_msg_id="1"), client)
    pass_on(server, Message(SESSION, "1", b"push"), client)
    pass_on(client, Error("400", b"", SESSION), server)
    pass_on(server, Error("400", b"", SESSION), client)
    pass_on(client, Disconnect(SESSION), server)
    pass_on(server, Message(SESSION, None, b"late answer", ref_msg_id="1"), client)
    pass_on(server, Disconnecting(SESSION), client)
    assert (client.state, server.state) == (State.CLOSED, State.CLOSED)


def test_the_tables_have_every_command_in_every_state_but_the_last() -> None:
    assert set(RECEIVE) == set(product(Role, BEFORE_THE_END, NAMES.values()))
    assert set(SEND) <= set(RECEIVE)


@pytest.mark.rule("SABC-17", "SABC-92")
@pytest.mark.parametrize("state", BEFORE_THE_END)
def test_connected_from_a_client_is_malformed(state: State) -> None:
    server = at(Role.SERVER, state)
    refused = received(server, Connected(SESSION))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-92"
    assert code_of(refused) == "400"
    assert server.state is state


@pytest.mark.rule("SABC-16", "SABC-18", "SABC-92")
@pytest.mark.parametrize("state", BEFORE_THE_END)
@pytest.mark.parametrize("frame", [Connect("x"), Disconnect(SESSION)])
def test_connect_and_disconnect_from_a_server_are_malformed(state: State, frame: Frame) -> None:
    client = at(Role.CLIENT, state)
    assert code_of(received(client, frame)) == "400"
    assert client.state is state


@pytest.mark.rule("SABC-16", "SABC-17", "SABC-18")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("role", "frame", "rule"),
    [
        (Role.SERVER, Connect("x"), "SABC-16"),
        (Role.CLIENT, Connected(SESSION), "SABC-17"),
        (Role.SERVER, Disconnect(SESSION), "SABC-18"),
    ],
)
def test_one_end_can_not_send_what_only_the_other_may(state: State, role: Role, frame: Frame, rule: str) -> None:
    connection = at(role, state)
    with pytest.raises(LocalProtocolError, match=rule):
        connection.send(frame)
    assert connection.state is state


@pytest.mark.rule("SABC-19", "SABC-20", "SABC-21")
@pytest.mark.parametrize("role", Role)
def test_both_ends_may_send_messages_errors_and_disconnecting(role: Role) -> None:
    sending, receiving = at(role, State.OPEN), at(role, State.OPEN)
    for name in ("MESSAGE", "ERROR", "DISCONNECTING"):
        sent(sending, FRAMES[name])
        expected = Whole(SESSION, "1") if name == "MESSAGE" else FRAMES[name]
        assert received(receiving, FRAMES[name]) == expected


@pytest.mark.rule("SABC-91")
@pytest.mark.parametrize("state", [State.CONNECTING, State.OPEN, State.LEAVING])
def test_a_second_connect_is_a_conflict(state: State) -> None:
    server = at(Role.SERVER, state)
    refused = received(server, Connect("me"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-91"
    assert code_of(refused) == "409"
    assert server.state is state


@pytest.mark.rule("SABC-90", "SABC-01")
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING])
@pytest.mark.parametrize("name", ["MESSAGE", "DISCONNECT"])
def test_before_the_session_nothing_is_accepted(state: State, name: str) -> None:
    server = at(Role.SERVER, state)
    refused = received(server, FRAMES[name])
    assert code_of(refused) == "401"
    assert isinstance(refused, Discarded)
    assert isinstance(refused.reply, Error)
    assert refused.reply.session_id is None
    assert server.state is state


@pytest.mark.rule("SABC-90", "SABC-02")
@pytest.mark.parametrize("frame", [Message("x", "1"), Disconnect("x"), Disconnecting("x")])
def test_a_frame_of_another_session_changes_nothing(frame: Frame) -> None:
    server = at(Role.SERVER, State.OPEN)
    assert code_of(received(server, frame)) == "401"
    assert server.state is State.OPEN
    with pytest.raises(LocalProtocolError, match=r"SABC-02|SABC-18"):
        server.send(frame)
    assert server.state is State.OPEN
    assert code_of(Session(Role.SERVER, SESSION).receive(frame)) == "401"


@pytest.mark.rule("SABC-02")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING])
def test_before_the_session_no_message_is_sent(role: Role, state: State) -> None:
    with pytest.raises(LocalProtocolError, match="SABC-02"):
        at(role, state).send(FRAMES["MESSAGE"])


@pytest.mark.rule("SABC-40", "SABC-102", "SABC-127")
def test_after_disconnect_the_server_accepts_no_message() -> None:
    server = at(Role.SERVER, State.LEAVING)
    for frame in (Message(SESSION, "2"), Disconnect(SESSION)):
        refused = received(server, frame)
        assert isinstance(refused, Discarded)
        assert refused.rule == "SABC-102"
        answer = Error("503", refused.reason.encode(), SESSION, "2" if isinstance(frame, Message) else None)
        assert refused.reply == answer
        assert server.reply(refused) == [encode(answer)]
    with pytest.raises(LocalProtocolError):
        at(Role.CLIENT, State.LEAVING).send(Message(SESSION, "2"))


@pytest.mark.rule("SABC-111")
def test_after_disconnect_the_server_answers_and_then_disconnects() -> None:
    server, client = at(Role.SERVER, State.LEAVING), at(Role.CLIENT, State.LEAVING)
    sent(server, Message(SESSION, None, b"OK", ref_msg_id="1"))
    sent(server, Error("404", b"", SESSION, "2"))
    assert server.answers
    assert server.close() == [encode(Disconnecting(SESSION))]
    assert server.state is State.CLOSED
    answer = Message(SESSION, None, b"OK", ref_msg_id="1")
    assert received(client, answer) == Whole(SESSION, None, b"OK", ref_msg_id="1")


@pytest.mark.rule("SABC-42")
@pytest.mark.parametrize("role", Role)
def test_behind_disconnecting_nothing_counts(role: Role) -> None:
    receiving, sending = at(role, State.OPEN), at(role, State.OPEN)
    receiving.receive(encode(Disconnecting(SESSION)) + encode(FRAMES["MESSAGE"]))
    assert receiving.next_event() == Disconnecting(SESSION)
    sending.send(Disconnecting(SESSION))
    for connection in (receiving, sending):
        assert connection.state is State.CLOSED
        for frame in FRAMES.values():
            assert received(connection, frame) is None
        with pytest.raises(LocalProtocolError, match="SABC-42"):
            connection.send(FRAMES["MESSAGE"])
        assert connection.close() == []
        assert connection.pending() == 0
    over = Session(role, SESSION)
    over.expire()
    assert code_of(over.receive(FRAMES["MESSAGE"])) is None


@pytest.mark.rule("SABC-96", "SABC-67")
@pytest.mark.parametrize("code", ["400", "401", "403"])
def test_a_refused_connect_ends_the_session(code: str) -> None:
    server, client = at(Role.SERVER, State.CONNECTING), at(Role.CLIENT, State.CONNECTING)
    refusal = Error(code, b"go away")
    assert server.close(code, "go away") == [encode(refusal)]
    assert server.state is State.CLOSED
    assert received(client, refusal) == refusal
    assert client.state is State.CLOSED
    with pytest.raises(LocalProtocolError, match="SABC-96"):
        Session(Role.SERVER, SESSION).reject(code, "there was no CONNECT")


@pytest.mark.rule("SABC-97", "SABC-110")
def test_an_expired_session_is_disconnected() -> None:
    for state in (State.OPEN, State.LEAVING):
        server = at(Role.SERVER, state)
        assert server.close() == [encode(Disconnecting(SESSION))]
        assert server.state is State.CLOSED
        assert server.close() == []
        assert received(server, FRAMES["MESSAGE"]) is None
    for state in (State.NEW, State.CONNECTING):
        assert at(Role.SERVER, state).close() == []


@pytest.mark.rule("SABC-101")
def test_who_takes_too_long_gets_error_408() -> None:
    waiting, silent = at(Role.SERVER, State.NEW), at(Role.SERVER, State.OPEN)
    assert waiting.time_out() == [encode(Error("408", b"no CONNECT received in time"))]
    error, last = silent.time_out()
    assert Decoder(session_id=SESSION).feed(error)[0] == Error(
        "408", b"no data received within the idle timeout", SESSION
    )
    assert last == encode(Disconnecting(SESSION))
    assert at(Role.CLIENT, State.CONNECTING).time_out() == []


@pytest.mark.rule("SABC-123")
def test_an_error_is_never_answered_with_an_error() -> None:
    for role, state in product(Role, State):
        connection = at(role, state)
        event = received(connection, FRAMES["ERROR"])
        assert not isinstance(event, Discarded) or connection.reply(event) == []


@pytest.mark.rule("SABC-93")
def test_the_error_codes_are_the_documented_ones() -> None:
    assert list(MEANINGS) == ["400", "401", "403", "404", "408", "409", "429", "503"]


@pytest.mark.rule("SABC-35")
def test_session_ids_are_not_to_be_guessed() -> None:
    made = {new_session_id() for _ in range(1000)}
    assert len(made) == 1000
    for session_id in (*made, Connection(Role.SERVER).session_id):
        assert len(session_id) == 22
        assert Decoder().feed(encode(Connected(session_id))) == [Connected(session_id)]


def test_a_frame_of_another_kind_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError):
        at(Role.SERVER, State.OPEN).send(Discarded("SABC-88", "no command", 0, b"", 0))


@pytest.mark.parametrize("websocket", [False, True])
def test_what_comes_during_a_login_is_there_after_it(websocket: bool) -> None:
    server = Connection(Role.SERVER, messages=websocket, session_id=SESSION, max_message=700, max_head=512)
    early = [encode(Connect("me")), message("msg-id::1", body="early"), message("msg-id::2", body="x" * 700)]
    for octets in early if websocket else [early[0] + early[1], early[2]]:
        server.receive(octets)
    assert server.next_event() == Connect("me")
    assert server.pending() >= len(early[2])
    server.allow(max_message=5000, max_head=512)
    server.send(Connected(SESSION))
    assert server.next_event() == Whole(SESSION, "1", b"early")
    assert server.next_event() == Whole(SESSION, "2", b"x" * 700)
    assert server.next_event() is None
    assert (server.pending(), server.cuts) == (0, 0)


def test_what_a_decoder_refused_is_an_event_with_its_answer() -> None:
    server, client = at(Role.SERVER, State.NEW), at(Role.CLIENT, State.CONNECTING)
    for connection in (server, client):
        connection.receive(wire("JUNK\na::b\n\n\n\n^@"))
        refused = connection.next_event()
        assert isinstance(refused, Discarded)
        assert refused.rule == "SABC-88"
        # A client has nothing to say before its session is open.
        assert connection.reply(refused) == ([] if connection is client else [encode(refused.reply or Error("?"))])


@pytest.mark.rule("SABC-96")
def test_what_ends_the_connection_is_raised_behind_the_events_before_it() -> None:
    server = Connection(Role.SERVER, session_id=SESSION)
    server.receive(encode(Error("400")) + wire("CONNECT\nuser::me\n\n^@"))
    assert server.next_event() == Error("400")
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="SABC-85") as caught:
            server.next_event()
        server.receive(encode(Connect("me")))
    [reply] = server.reply(caught.value)
    assert Decoder().feed(reply) == [caught.value.reply]
    assert server.finish() == []
    assert server.next_event() is None


@pytest.mark.rule("SABC-43")
def test_a_frame_that_the_end_of_the_connection_cuts_is_reported() -> None:
    server = at(Role.SERVER, State.OPEN)
    server.receive(message("msg-id::1", body="whole") + b"MESS")
    assert server.next_event() == Whole(SESSION, "1", b"whole")
    assert [cut.rule for cut in server.finish()] == ["SABC-43"]
    assert (server.state, server.finish()) == (State.CLOSED, [])


@pytest.mark.rule("SABC-131")
def test_a_message_that_is_given_up_is_forgotten() -> None:
    server = Connection(Role.SERVER, session_id=SESSION, max_message=600, max_head=512)
    received(server, Connect("me"))
    server.send(Connected(SESSION))
    for number in "12":
        assert received(server, Message(SESSION, number, b"x" * 450, more=True)) is None
    server.receive(encode(Message(SESSION, "3", b"x" * 450, more=True)))
    server.receive(encode(FRAMES["ERROR"]))
    refused = server.next_event()
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-131"
    held = server.pending()
    assert 2 * 450 <= held < 3 * 450


@pytest.mark.rule("SABC-135", "SABC-136")
def test_a_long_message_is_sent_in_several_frames_and_one_over_the_limit_not_at_all() -> None:
    server = Connection(Role.SERVER, session_id=SESSION, frame_size=200, max_sent=2000)
    received(server, Connect("me"))
    server.send(Connected(SESSION))
    frames = server.send(Message(SESSION, "1", b"x" * 500))
    assert len(frames) > 2
    assert max(map(len, frames)) <= 200
    client = at(Role.CLIENT, State.OPEN)
    for frame in frames:
        client.receive(frame)
    assert client.next_event() == Whole(SESSION, "1", b"x" * 500)
    headers = (("k", "v" * 300),)  # which can't be cut
    assert server.send(Message(SESSION, "2", b"x", headers)) == [encode(Message(SESSION, "2", b"x", headers))]
    with pytest.raises(LocalProtocolError, match="SABC-136"):
        server.send(Message(SESSION, "3", b"x" * 2000))
