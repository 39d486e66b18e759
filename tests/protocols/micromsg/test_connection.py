"""The course of a connection, for both sides: the handshake, frames, errors and the end."""

import pytest

from polywire.protocols.micromsg.connection import TRANSITIONS, Connection, Ended, Event, State, Terms
from polywire.protocols.micromsg.errors import LocalProtocolError, ends_connection
from polywire.protocols.micromsg.frames import Command, Decoder, Error, Extension, Handshake, Message, encode
from polywire.protocols.micromsg.text import read_extensions
from polywire.wire.frame import Frame, Role
from tests.protocols.micromsg.pairs import PLAIN, events, pair, violation

ROLES = pytest.mark.parametrize("role", list(Role))
EXAMPLE = "OneTrueError.Contracts.Reports,OneTrueError.Client"
FRAMES: list[Frame] = [Message(1, "q", b""), Command("ping"), Extension(1, b"")]


def using(*names: str) -> Terms:
    """Terms that require these extensions."""
    extensions = read_extensions(";".join(names).encode())
    return Terms("x", tuple(each.name for each in extensions), extensions)


def at(role: Role, state: State) -> Connection:
    """A connection that has come so far."""
    near, far = Connection(Role.CLIENT, PLAIN), Connection(Role.SERVER, PLAIN)
    for speaker, hearer in ((near, far), (far, near), (near, far)):
        connection = near if role is Role.CLIENT else far
        if connection.state is state:
            return connection
        events(hearer, speaker.handshake())
    if state is State.CLOSED:
        connection.lost()
    assert connection.state is state
    return connection


class TestHandshake:
    @pytest.mark.rule("MICROMSG-101", "MICROMSG-30", "MICROMSG-02", "MICROMSG-11")
    def test_offer_reply_and_final_message_establish_a_connection(self) -> None:
        client, server = Connection(Role.CLIENT, PLAIN), Connection(Role.SERVER, PLAIN)
        assert (client.state, server.state) == (State.CONNECTED, State.CONNECTED)
        assert [type(event) for event in events(server, client.handshake())] == [Handshake]
        assert (client.state, server.state) == (State.OFFERED, State.OFFERED)
        assert [type(event) for event in events(client, server.handshake())] == [Handshake]
        assert (client.state, server.state) == (State.REPLIED, State.REPLIED)
        assert [type(event) for event in events(server, client.handshake())] == [Handshake]
        assert (client.state, server.state) == (State.ESTABLISHED, State.ESTABLISHED)
        assert client.is_established()
        for frame in FRAMES[:2]:
            assert events(server, client.send(frame)) == [frame]
            assert events(client, server.send(frame)) == [frame]

    @pytest.mark.rule("MICROMSG-11", "MICROMSG-101", "MICROMSG-02")
    @pytest.mark.parametrize(
        ("role", "state"),
        [
            (Role.SERVER, State.CONNECTED),
            (Role.CLIENT, State.OFFERED),
            (Role.SERVER, State.REPLIED),
            (Role.CLIENT, State.ESTABLISHED),
            (Role.SERVER, State.ESTABLISHED),
        ],
    )
    def test_nobody_speaks_out_of_turn(self, role: Role, state: State) -> None:
        connection = at(role, state)
        for say in (connection.handshake, lambda: connection.send(Handshake("x"))):
            with pytest.raises(LocalProtocolError) as caught:
                say()
            assert caught.value.rule == "MICROMSG-101"
        assert connection.state is state

    @pytest.mark.rule("MICROMSG-101", "MICROMSG-02")
    def test_a_server_that_begins_is_a_bad_handshake(self) -> None:
        client = Connection(Role.CLIENT, PLAIN)
        assert violation(client, encode(Handshake("s"))).name == "bad-handshake"

    @pytest.mark.rule("MICROMSG-101", "MICROMSG-32")
    @ROLES
    @pytest.mark.parametrize("state", [State.CONNECTED, State.OFFERED, State.REPLIED, State.CLOSED])
    @pytest.mark.parametrize("frame", FRAMES, ids=repr)
    def test_no_frame_is_sent_before_the_final_message_or_after_the_end(
        self, role: Role, state: State, frame: Frame
    ) -> None:
        connection = at(role, state)
        with pytest.raises(LocalProtocolError) as caught:
            connection.send(frame)
        assert caught.value.rule == "MICROMSG-101"
        with pytest.raises(LocalProtocolError):
            connection.send_message("q", b"")
        with pytest.raises(LocalProtocolError):
            connection.prepared(encode(Message(1, "q", b"")), "")

    @pytest.mark.rule("MICROMSG-101")
    @pytest.mark.parametrize("frame", FRAMES, ids=repr)
    def test_a_frame_between_reply_and_final_message_is_a_bad_handshake(self, frame: Frame) -> None:
        client = Connection(Role.CLIENT, PLAIN)
        client.handshake()
        assert violation(client, encode(Handshake("s")) + encode(frame)).name == "bad-handshake"

    @pytest.mark.rule("MICROMSG-32")
    def test_what_is_not_pulled_waits(self) -> None:
        client, server = Connection(Role.CLIENT, PLAIN), Connection(Role.SERVER, PLAIN)
        server.receive(client.handshake())
        server.next_event()
        events(client, server.handshake())
        server.receive(client.handshake() + client.send(Command("ping")))
        assert isinstance(server.next_event(), Handshake)
        server.receive(client.send(Command("pong")) + b"\xff")
        server.receive(b"\xff")
        *frames, ended = events(server)
        assert frames == [Command("ping"), Command("pong")]
        assert isinstance(ended, Ended)
        assert (ended.error.name, ended.rule) == ("bad-frame", "MICROMSG-95")


class TestErrors:
    @pytest.mark.rule("MICROMSG-13", "MICROMSG-14", "MICROMSG-15", "MICROMSG-100")
    @ROLES
    @pytest.mark.parametrize("state", [State.CONNECTED, State.OFFERED, State.REPLIED])
    @pytest.mark.parametrize("name", ["bad-version", "unsupported-extension", "bad-handshake", "forbidden"])
    def test_an_error_in_the_handshake_ends_the_connection(self, role: Role, state: State, name: str) -> None:
        connection = at(role, state)
        assert connection.send(Error(name)) == encode(Error(name))
        assert connection.state is State.CLOSED
        connection = at(role, state)
        if role is Role.SERVER and state is State.CONNECTED:  # there it is a major version
            assert violation(connection, encode(Error(name))).name == "bad-version"
        else:
            assert events(connection, encode(Error(name))) == [Error(name)]
            assert connection.state is State.CLOSED

    @pytest.mark.rule("MICROMSG-100", "MICROMSG-169")
    @ROLES
    def test_later_errors_end_it_or_not_by_their_name(self, role: Role) -> None:
        for error in (Error("bad-frame"), Error("forbidden"), Error("bad-filter")):
            for connection, act in (
                (at(role, State.ESTABLISHED), lambda one, error=error: one.send(error)),
                (at(role, State.ESTABLISHED), lambda one, error=error: events(one, encode(error))),
            ):
                act(connection)
                assert (connection.state is State.CLOSED) == ends_connection(error.name)
        connection = at(role, State.ESTABLISHED)
        assert events(connection, b"\x04\x08new-name\x01\x04ping") == [Error("new-name")]
        assert connection.state is State.CLOSED

    @ROLES
    def test_nothing_follows_the_end(self, role: Role) -> None:
        assert {event for state, event in TRANSITIONS if state is State.CLOSED} == {Event.LOST}
        connection = at(role, State.CLOSED)
        assert events(connection, encode(Command("ping"))) == []
        assert connection.close(Error("shutting-down")) == b""
        with pytest.raises(LocalProtocolError):
            connection.send(Error("shutting-down"))
        connection.lost()

    @ROLES
    @pytest.mark.parametrize("state", list(State))
    def test_a_connection_may_be_lost_at_any_time(self, role: Role, state: State) -> None:
        connection = at(role, state)
        connection.lost()
        assert connection.state is State.CLOSED

    @pytest.mark.rule("MICROMSG-100", "MICROMSG-11")
    def test_closing_says_why_except_to_a_client_that_has_not_begun(self) -> None:
        error = Error("shutting-down", (("reason", "maintenance"),))
        assert Connection(Role.SERVER, PLAIN).close(error) == b""
        begun = Connection(Role.SERVER, PLAIN)
        begun.receive(b"\x01")
        for connection in (begun, at(Role.SERVER, State.OFFERED), *pair()):
            assert connection.close(error) == encode(error)
            assert connection.state is State.CLOSED
        near, _ = pair()
        assert near.close() == b""
        near, _ = pair()
        assert near.close(Error("forbidden")) == encode(Error("forbidden"))
        assert near.state is State.CLOSED


class TestTypes:
    @pytest.mark.rule("MICROMSG-73", "MICROMSG-72", "MICROMSG-70")
    def test_the_documents_example_travels_in_an_extension_frame(self) -> None:
        near, far = pair(using("json", "dotnet"), Terms("s"))
        data = near.send_message("q", b"{}", type_name=EXAMPLE)
        frame = bytes([2, 2, 50]) + EXAMPLE.encode()
        assert data == frame + encode(Message(1, "q", b"{}"))
        assert events(far, data) == [Message(1, "q", b"{}")]
        assert far.type_name == EXAMPLE

    @pytest.mark.rule("MICROMSG-70", "MICROMSG-71")
    def test_a_type_sticks_until_another_is_named(self) -> None:
        near, far = pair(using("dotnet"), Terms("s"))
        assert far.type_name == ""
        for number, payload in enumerate((b"A, Lib, Version=1.0.0.0", None, b"B", b""), 1):
            before = b"" if payload is None else near.send(Extension(1, payload))
            events(far, before + near.send(Message(number, "q", b"")))
            assert far.type_name == ["A, Lib, Version=1.0.0.0", "A, Lib, Version=1.0.0.0", "B", ""][number - 1]

    @pytest.mark.rule("MICROMSG-09", "MICROMSG-148")
    def test_a_typed_message_has_a_frame_before_it_and_an_untyped_one_only_after_a_typed_one(self) -> None:
        near, _ = pair(using("dotnet"), Terms("s"))
        decoder = Decoder(established=True)
        for number, (type_name, frames) in enumerate(
            [("", []), ("A", [b"A"]), ("A", [b"A"]), ("", [b""]), ("", [])], 1
        ):
            found = decoder.feed(near.send_message("q", b"", type_name=type_name))
            assert found == [*[Extension(1, payload) for payload in frames], Message(number, "q", b"")]

    @pytest.mark.rule("MICROMSG-172")
    def test_a_type_name_that_is_not_utf8_is_a_bad_frame(self) -> None:
        near, far = pair(using("dotnet"), Terms("s"))
        events(far, near.send(Extension(1, b"A")))
        assert violation(far, encode(Extension(1, b"a\xff"))).name == "bad-frame"
        assert far.type_name == "A"
        with pytest.raises(LocalProtocolError) as caught:
            near.send_message("q", b"", type_name="\ud800")
        assert caught.value.rule == "MICROMSG-172"
        assert near.outgoing.due() == 1

    def test_without_dotnet_there_are_no_types(self) -> None:
        near, _ = pair()
        with pytest.raises(LocalProtocolError) as caught:
            near.send_message("q", b"", type_name="A")
        assert caught.value.rule == "MICROMSG-172"

    @pytest.mark.rule("MICROMSG-71", "MICROMSG-148")
    def test_both_sides_agree_on_the_type_of_every_message(self) -> None:
        near, far = pair(using("dotnet"), Terms("s"))
        for type_name in ["", "A", "A", "", "", "B", "C", ""]:
            events(far, near.send_message("q", b"", type_name=type_name))
            assert far.type_name == type_name

    @pytest.mark.rule("MICROMSG-175", "MICROMSG-148")
    def test_what_was_prepared_counts_once_it_is_sent(self) -> None:
        near, far = pair(using("dotnet"), Terms("s"))
        octets = encode(Message(1, "q", b""))
        refused = near.prepared(octets, "A")
        assert near.prepared(octets, "A") == refused
        for type_name in ("A", "B", "", ""):
            data = near.prepared(octets, type_name)
            near.sent(type_name)
            assert [type(event) for event in events(far, data)] == [Message]
            assert far.type_name == type_name


@pytest.mark.rule("MICROMSG-150", "MICROMSG-171")
@pytest.mark.parametrize("payload", [b"", b"no", b"[" * 600 + b"]" * 600])
def test_with_json_any_other_payload_is_a_bad_frame(payload: bytes) -> None:
    near, far = pair(using("json"), Terms("s"))
    with pytest.raises(LocalProtocolError) as caught:
        near.send(Message(1, "q", payload))
    assert caught.value.rule == "MICROMSG-150"
    assert violation(far, encode(Message(1, "q", payload))).name == "bad-frame"


@pytest.mark.rule("MICROMSG-167", "MICROMSG-08", "MICROMSG-33")
def test_extension_frames_go_both_ways_only_for_what_was_agreed_on() -> None:
    server = Terms("s", supported=("json", "x-colour"))
    near, far = pair(using("json", "x-colour"), server)
    frame = near.vendor_frame("x-colour", b"blue")
    assert frame == Extension(2, b"blue")
    assert events(far, near.send(frame)) == [frame]
    assert far.purpose(frame) == "x-colour"
    for number in (1, 3):
        with pytest.raises(LocalProtocolError) as caught:
            near.send(Extension(number, b""))
        assert caught.value.rule == "MICROMSG-167"
        assert violation(pair(using("json", "x-colour"), server)[1], encode(Extension(number, b""))).name == "bad-frame"
    with pytest.raises(LocalProtocolError):
        near.vendor_frame("json", b"")
