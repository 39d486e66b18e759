from pathlib import Path

import pytest

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Fatal,
    Hello,
    LocalProtocolError,
    Machine,
    RemoteProtocolError,
    Result,
    Role,
    SetAttribute,
    State,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    encode,
)
from polywire.protocols.umq.state import TRANSITIONS, Event, diagram
from polywire.wire.frame import Frame

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "umq.md"

MESSAGES: list[Frame] = [
    Call(1, "x"),
    Callback(1, 2, "x"),
    Result(1, "x"),
    CallException(1, "x"),
    TopicUpdate(1, "x"),
    TopicClose(1),
    Unsubscribe(1),
    SetAttribute("a", "b"),
    UnsetAttribute("a"),
]
ATTACHMENTS: list[Frame] = [Attachment(b"x", 1, 0), AttachmentError("x", 1, 0)]


def server(*, opened: bool = False) -> Machine:
    machine = Machine(Role.SERVER)
    if opened:
        machine.receive(Hello(1))
        machine.send(Welcome(1))
    return machine


def client(*, opened: bool = False) -> Machine:
    machine = Machine(Role.CLIENT)
    if opened:
        machine.send(Hello(1))
        machine.receive(Welcome(1))
    return machine


def refused(machine: Machine, frame: Frame, rule: str, code: int = 3) -> None:
    """The machine refuses what the peer sent, with an F to send, and stays where it was."""
    before = machine.state
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(frame)
    assert caught.value.rule == rule
    assert caught.value.position == 0
    assert isinstance(caught.value.reply, Fatal)
    assert caught.value.reply.code == code
    assert machine.state is before
    machine.send(caught.value.reply)
    assert machine.state is State.CLOSED


def not_sent(machine: Machine, frame: Frame, rule: str) -> None:
    before = machine.state
    with pytest.raises(LocalProtocolError) as caught:
        machine.send(frame)
    assert caught.value.rule == rule
    assert machine.state is before


@pytest.mark.rule("UMQ-17", "UMQ-18", "UMQ-21", "UMQ-22", "UMQ-91", "UMQ-93")
def test_a_handshake_opens_both_sides() -> None:
    here, there = client(), server()
    hello = Hello(1, "token")
    assert encode(hello) == "H1:token"
    here.send(hello)
    assert here.state is State.HELLO_SENT
    assert there.receive(hello)
    assert there.state is State.HELLO_RECEIVED
    welcome = Welcome(there.offered)
    there.send(welcome)
    assert here.receive(welcome)
    assert (here.state, there.state) == (State.OPEN, State.OPEN)
    assert (here.version, there.version) == (1, 1)


@pytest.mark.rule("UMQ-92")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Welcome(1), Fatal(1, "x")])
def test_a_server_accepts_nothing_but_hello_first(frame: Frame) -> None:
    refused(server(), frame, "UMQ-92")


@pytest.mark.rule("UMQ-92", "UMQ-21")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Hello(1)])
def test_a_client_accepts_nothing_but_welcome_or_fatal_first(frame: Frame) -> None:
    machine = client()
    refused(machine, frame, "UMQ-92")
    machine = client()
    machine.send(Hello(1))
    refused(machine, frame, "UMQ-92")


@pytest.mark.rule("UMQ-21", "UMQ-92")
def test_a_welcome_before_hello_is_refused() -> None:
    refused(client(), Welcome(1), "UMQ-92")


@pytest.mark.rule("UMQ-17", "UMQ-92")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Welcome(1)])
def test_a_client_sends_nothing_but_hello_first(frame: Frame) -> None:
    not_sent(client(), frame, "UMQ-92")


@pytest.mark.rule("UMQ-17", "UMQ-92")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Welcome(1), Hello(1)])
def test_a_server_sends_nothing_before_hello_but_fatal(frame: Frame) -> None:
    not_sent(server(), frame, "UMQ-92")


@pytest.mark.rule("UMQ-20", "UMQ-91")
@pytest.mark.parametrize("attachment", ATTACHMENTS)
def test_attachments_of_hello_may_come_before_and_after_its_answer(attachment: Frame) -> None:
    here, there = client(), server()
    hello = Hello(1, "", attachments=2, ordinal=1)
    here.send(hello)
    there.receive(hello)
    here.send(attachment)
    assert there.receive(attachment)
    there.send(Welcome(1))
    here.receive(Welcome(1))
    here.send(attachment)
    assert there.receive(attachment)


@pytest.mark.rule("UMQ-135")
@pytest.mark.parametrize("frame", [*MESSAGES, Welcome(1)])
def test_nothing_else_may_come_between_hello_and_welcome(frame: Frame) -> None:
    there = server()
    there.receive(Hello(1))
    refused(there, frame, "UMQ-135")
    here = client()
    here.send(Hello(1))
    not_sent(here, frame, "UMQ-92")


@pytest.mark.rule("UMQ-135", "UMQ-21")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS])
def test_a_server_answers_hello_before_it_sends_anything(frame: Frame) -> None:
    there = server()
    there.receive(Hello(1))
    not_sent(there, frame, "UMQ-135")


@pytest.mark.rule("UMQ-81")
def test_a_second_hello_is_refused() -> None:
    waiting = server()
    waiting.receive(Hello(1))
    refused(waiting, Hello(1), "UMQ-81")
    refused(server(opened=True), Hello(1), "UMQ-81")
    refused(client(opened=True), Hello(1), "UMQ-81")
    not_sent(client(opened=True), Hello(1), "UMQ-81")


@pytest.mark.rule("UMQ-21")
def test_a_welcome_that_answers_nothing_is_refused() -> None:
    refused(client(opened=True), Welcome(1), "UMQ-21")
    refused(server(opened=True), Welcome(1), "UMQ-21")
    not_sent(server(opened=True), Welcome(1), "UMQ-81")


@pytest.mark.rule("UMQ-93", "UMQ-22")
@pytest.mark.parametrize(("offered", "answered"), [(1, 1), (2, 2), (3, 3), (4, 3), (2**64 - 1, 3)])
def test_the_server_answers_the_lower_version(offered: int, answered: int) -> None:
    there = Machine(Role.SERVER, newest=3)
    there.receive(Hello(offered))
    assert there.offered == answered
    not_sent(there, Welcome(answered + 1), "UMQ-93")
    there.send(Welcome(answered))
    assert there.version == answered


@pytest.mark.rule("UMQ-22")
def test_the_server_can_lower_the_version() -> None:
    here, there = Machine(Role.CLIENT, newest=3), Machine(Role.SERVER, newest=3)
    here.send(Hello(3))
    there.receive(Hello(3))
    there.send(Welcome(2))
    here.receive(Welcome(2))
    assert (here.version, there.version) == (2, 2)


@pytest.mark.rule("UMQ-93")
def test_a_server_refuses_a_version_it_cannot_go_down_to() -> None:
    refused(server(), Hello(0), "UMQ-93", code=5)
    refused(Machine(Role.SERVER, oldest=2, newest=3), Hello(1), "UMQ-93", code=5)


@pytest.mark.rule("UMQ-94")
@pytest.mark.parametrize("version", [0, 1, 4, 5, 2**64 - 1])
def test_a_client_refuses_a_version_it_cannot_speak_or_did_not_offer(version: int) -> None:
    here = Machine(Role.CLIENT, oldest=2, newest=4)
    here.send(Hello(3))
    refused(here, Welcome(version), "UMQ-94", code=5)


@pytest.mark.rule("UMQ-91")
@pytest.mark.parametrize("version", [0, 2])
def test_a_client_offers_only_what_it_speaks(version: int) -> None:
    not_sent(client(), Hello(version), "UMQ-91")


@pytest.mark.rule("UMQ-95")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS])
def test_open_peers_are_equal(frame: Frame) -> None:
    for machine in (client(opened=True), server(opened=True)):
        assert machine.receive(frame)
        machine.send(frame)
        assert machine.state is State.OPEN


@pytest.mark.rule("UMQ-29")
def test_fatal_can_answer_hello() -> None:
    here, there = client(), server()
    here.send(Hello(1))
    there.receive(Hello(1))
    there.send(Fatal(1, "Rejected"))
    assert here.receive(Fatal(1, "Rejected"))
    assert (here.state, there.state) == (State.CLOSED, State.CLOSED)


@pytest.mark.rule("UMQ-30")
@pytest.mark.parametrize("opened", [True, False])
def test_fatal_can_come_from_either_side_at_any_time(opened: bool) -> None:
    for role, other in ((client, server), (server, client)):
        sender, receiver = role(opened=opened), other(opened=True)
        sender.send(Fatal(10, "Shutting down"))
        assert receiver.receive(Fatal(10, "Shutting down"))
        assert (sender.state, receiver.state) == (State.CLOSED, State.CLOSED)


@pytest.mark.rule("UMQ-30")
def test_fatal_can_come_while_hello_is_being_answered() -> None:
    there = server()
    there.receive(Hello(1))
    assert there.receive(Fatal(1, "changed my mind"))
    assert there.state is State.CLOSED


@pytest.mark.rule("UMQ-30")
def test_a_server_that_wants_nobody_may_say_so_before_hello() -> None:
    here = client()
    assert here.receive(Fatal(10, "Shutting down"))
    assert here.state is State.CLOSED


@pytest.mark.rule("UMQ-25")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Hello(1), Welcome(1), Fatal(3, "x")])
def test_nothing_follows_fatal(frame: Frame) -> None:
    sender, receiver = client(opened=True), server(opened=True)
    sender.send(Fatal(3, "x"))
    receiver.receive(Fatal(3, "x"))
    for machine in (sender, receiver):
        not_sent(machine, frame, "UMQ-25")
        assert not machine.receive(frame)
        assert machine.state is State.CLOSED


def test_every_state_is_reached_and_every_event_used() -> None:
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert set(TRANSITIONS.values()) == set(State) - {State.START, State.AWAIT_HELLO}


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```\n" in PAGE.read_text(encoding="utf-8")
