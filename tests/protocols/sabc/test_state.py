from itertools import product

import pytest

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    LocalProtocolError,
    Message,
    Session,
    Side,
    State,
    encode,
    new_session_id,
)
from polywire.protocols.sabc.errors import MEANINGS
from polywire.protocols.sabc.state import NAMES, RECEIVE, SEND
from polywire.wire.frame import Discarded, Frame
from tests.protocols.sabc.wire import SESSION, code_of

FRAMES: dict[str, Frame] = {
    "CONNECT": Connect("me"),
    "CONNECTED": Connected(SESSION),
    "DISCONNECT": Disconnect(SESSION),
    "DISCONNECTING": Disconnecting(SESSION),
    "MESSAGE": Message(SESSION, "1"),
    "ERROR": Error("400", b"", SESSION),
}


def at(side: Side, state: State) -> Session:
    """A session in this state."""
    session = Session(side, SESSION)
    session.state = state
    return session


@pytest.mark.rule("SABC-01", "SABC-02", "SABC-19", "SABC-20", "SABC-44")
def test_a_session_from_connect_to_disconnecting() -> None:
    client, server = Session(Side.CLIENT), Session(Side.SERVER, SESSION)
    to_server, to_client = Decoder(session_id=SESSION), Decoder()

    def pass_on(sender: Session, frame: Frame, wire: Decoder, receiver: Session) -> None:
        [arrived] = wire.feed(encode(sender.send(frame)))
        assert receiver.receive(arrived) == frame

    pass_on(client, Connect("me"), to_server, server)
    assert (client.state, server.state) == (State.CONNECTING, State.CONNECTING)
    pass_on(server, Connected(SESSION), to_client, client)
    assert (client.state, server.state) == (State.OPEN, State.OPEN)
    assert client.session_id == SESSION
    pass_on(client, Message(SESSION, "1", b"hello"), to_server, server)
    pass_on(server, Message(SESSION, None, b"OK", ref_msg_id="1"), to_client, client)
    pass_on(server, Message(SESSION, "1", b"push"), to_client, client)
    pass_on(client, Error("400", b"", SESSION), to_server, server)
    pass_on(server, Error("400", b"", SESSION), to_client, client)
    pass_on(client, Disconnect(SESSION), to_server, server)
    pass_on(server, Message(SESSION, None, b"late answer", ref_msg_id="1"), to_client, client)
    pass_on(server, Disconnecting(SESSION), to_client, client)
    assert (client.state, server.state) == (State.CLOSED, State.CLOSED)


def test_the_tables_speak_of_every_command_in_every_state_but_the_last() -> None:
    states = [state for state in State if state is not State.CLOSED]
    assert set(RECEIVE) == set(product(Side, states, NAMES.values()))
    assert set(SEND) <= set(RECEIVE)


@pytest.mark.rule("SABC-17", "SABC-92")
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING, State.OPEN, State.LEAVING])
def test_connected_from_a_client_is_malformed(state: State) -> None:
    session = at(Side.SERVER, state)
    refused = session.receive(Connected(SESSION))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-92"
    assert code_of(refused) == "400"
    assert session.state is state


@pytest.mark.rule("SABC-16", "SABC-18", "SABC-92")
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING, State.OPEN, State.LEAVING])
@pytest.mark.parametrize("frame", [Connect("x"), Disconnect(SESSION)])
def test_connect_and_disconnect_from_a_server_are_malformed(state: State, frame: Frame) -> None:
    session = at(Side.CLIENT, state)
    assert code_of(session.receive(frame)) == "400"
    assert session.state is state


@pytest.mark.rule("SABC-16", "SABC-17", "SABC-18")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("side", "frame", "rule"),
    [
        (Side.SERVER, Connect("x"), "SABC-16"),
        (Side.CLIENT, Connected(SESSION), "SABC-17"),
        (Side.SERVER, Disconnect(SESSION), "SABC-18"),
    ],
)
def test_a_side_can_not_send_what_only_the_other_may(state: State, side: Side, frame: Frame, rule: str) -> None:
    session = at(side, state)
    with pytest.raises(LocalProtocolError, match=rule):
        session.send(frame)
    assert session.state is state


@pytest.mark.rule("SABC-19", "SABC-20", "SABC-21")
@pytest.mark.parametrize("side", Side)
def test_both_sides_may_send_messages_errors_and_disconnecting(side: Side) -> None:
    session = at(side, State.OPEN)
    for name in ("MESSAGE", "ERROR", "DISCONNECTING"):
        assert session.send(FRAMES[name]) is FRAMES[name]
    other = at(side, State.OPEN)
    for name in ("MESSAGE", "ERROR", "DISCONNECTING"):
        assert other.receive(FRAMES[name]) is FRAMES[name]


@pytest.mark.rule("SABC-91")
@pytest.mark.parametrize("state", [State.CONNECTING, State.OPEN, State.LEAVING])
def test_a_second_connect_is_a_conflict(state: State) -> None:
    session = at(Side.SERVER, state)
    refused = session.receive(Connect("me"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-91"
    assert code_of(refused) == "409"
    assert session.state is state


@pytest.mark.rule("SABC-90", "SABC-01")
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING])
@pytest.mark.parametrize("name", ["MESSAGE", "DISCONNECT"])
def test_before_the_session_nothing_is_accepted(state: State, name: str) -> None:
    session = at(Side.SERVER, state)
    refused = session.receive(FRAMES[name])
    assert code_of(refused) == "401"
    assert isinstance(refused, Discarded)
    assert isinstance(refused.reply, Error)
    assert refused.reply.session_id is None
    assert session.state is state


@pytest.mark.rule("SABC-90", "SABC-02")
@pytest.mark.parametrize("frame", [Message("x", "1"), Disconnect("x"), Disconnecting("x")])
def test_a_frame_of_another_session_changes_nothing(frame: Frame) -> None:
    session = at(Side.SERVER, State.OPEN)
    assert code_of(session.receive(frame)) == "401"
    assert session.state is State.OPEN
    with pytest.raises(LocalProtocolError, match=r"SABC-02|SABC-18"):
        session.send(frame)
    assert session.state is State.OPEN


@pytest.mark.rule("SABC-02")
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("state", [State.NEW, State.CONNECTING])
def test_before_the_session_no_message_is_sent(side: Side, state: State) -> None:
    with pytest.raises(LocalProtocolError, match="SABC-02"):
        at(side, state).send(FRAMES["MESSAGE"])


@pytest.mark.rule("SABC-40", "SABC-102", "SABC-127")
def test_after_disconnect_the_server_accepts_no_message() -> None:
    session = at(Side.SERVER, State.OPEN)
    assert session.receive(Disconnect(SESSION)) == Disconnect(SESSION)
    for frame in (Message(SESSION, "2"), Disconnect(SESSION)):
        refused = session.receive(frame)
        assert isinstance(refused, Discarded)
        assert refused.rule == "SABC-102"
        expected = "2" if isinstance(frame, Message) else None
        assert refused.reply == Error("503", refused.reason.encode(), SESSION, expected)
    with pytest.raises(LocalProtocolError):
        at(Side.CLIENT, State.LEAVING).send(Message(SESSION, "2"))


@pytest.mark.rule("SABC-111")
def test_after_disconnect_the_server_answers_and_then_disconnects() -> None:
    session = at(Side.SERVER, State.LEAVING)
    answers: list[Frame] = [Message(SESSION, None, b"OK", ref_msg_id="1"), Error("404", b"", SESSION, "2")]
    for frame in [*answers, Disconnecting(SESSION)]:
        assert session.send(frame) is frame
    assert session.state is State.CLOSED


@pytest.mark.rule("SABC-42")
@pytest.mark.parametrize("side", Side)
def test_behind_disconnecting_nothing_counts(side: Side) -> None:
    receiving, sending = at(side, State.OPEN), at(side, State.OPEN)
    receiving.receive(Disconnecting(SESSION))
    sending.send(Disconnecting(SESSION))
    for session in (receiving, sending):
        assert session.state is State.CLOSED
        for frame in FRAMES.values():
            refused = session.receive(frame)
            assert isinstance(refused, Discarded)
            assert refused.rule == "SABC-42"
            assert refused.reply is None
        with pytest.raises(LocalProtocolError, match="SABC-42"):
            session.send(FRAMES["MESSAGE"])


@pytest.mark.rule("SABC-96", "SABC-67")
@pytest.mark.parametrize("code", ["400", "401", "403"])
def test_a_refused_connect_ends_the_session(code: str) -> None:
    session = at(Side.SERVER, State.CONNECTING)
    reply = session.reject(code, "go away")
    assert reply == Error(code, b"go away")
    assert session.state is State.CLOSED
    client = at(Side.CLIENT, State.CONNECTING)
    assert client.receive(reply) == reply
    assert client.state is State.CLOSED
    with pytest.raises(LocalProtocolError, match="SABC-96"):
        session.reject(code, "again")


@pytest.mark.rule("SABC-97", "SABC-110")
def test_an_expired_session_is_disconnected() -> None:
    for state in (State.OPEN, State.LEAVING):
        session = at(Side.SERVER, state)
        assert session.expire() == Disconnecting(SESSION)
        assert session.state is State.CLOSED
        assert session.expire() is None
        assert isinstance(session.receive(FRAMES["MESSAGE"]), Discarded)


@pytest.mark.rule("SABC-123")
def test_an_error_is_never_answered_with_an_error() -> None:
    for side, state in product(Side, State):
        frame = at(side, state).receive(FRAMES["ERROR"])
        assert not isinstance(frame, Discarded) or frame.reply is None


@pytest.mark.rule("SABC-01")
def test_a_server_may_name_the_session_when_it_accepts() -> None:
    session = Session(Side.SERVER)
    session.receive(Connect("me"))
    session.send(Connected(SESSION))
    assert session.session_id == SESSION
    assert session.receive(FRAMES["MESSAGE"]) is FRAMES["MESSAGE"]


@pytest.mark.rule("SABC-93")
def test_the_error_codes_are_the_documented_ones() -> None:
    assert list(MEANINGS) == ["400", "401", "403", "404", "408", "409", "429", "503"]


@pytest.mark.rule("SABC-35")
def test_session_ids_are_not_to_be_guessed() -> None:
    made = {new_session_id() for _ in range(1000)}
    assert len(made) == 1000
    for session_id in made:
        assert len(session_id) == 22
        assert Decoder().feed(encode(Connected(session_id))) == [Connected(session_id)]


def test_what_a_decoder_refused_passes_through() -> None:
    refused = Discarded("SABC-88", "no command", 0, b"", 0)
    assert Session(Side.SERVER).receive(refused) is refused


def test_a_frame_of_another_kind_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError):
        at(Side.SERVER, State.OPEN).send(Discarded("SABC-88", "no command", 0, b"", 0))
