"""What both ends of a connection may send and receive, and when: every rule about state, on ``Connection``."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Attributes,
    Call,
    Callback,
    Callbacks,
    CallException,
    Connection,
    Fatal,
    FatalCode,
    Hello,
    LocalProtocolError,
    Machine,
    MethodError,
    OutgoingCalls,
    RemoteProtocolError,
    Result,
    Role,
    SetAttribute,
    State,
    Subscriptions,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    encode,
)
from polywire.protocols.umq.connection import (
    TOPIC_TRANSITIONS,
    TRANSITIONS,
    Action,
    Event,
    IdSequence,
    TopicEvent,
    TopicState,
    check_id,
    diagram,
)
from polywire.protocols.umq.frames import MAX_NUMBER
from polywire.wire.frame import Frame
from tests.protocols.umq.connections import End, answered, client, events, passed, server

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
ATTACHMENTS: list[Frame] = [Attachment(b"x"), AttachmentError("x")]
ENDS: list[Callable[..., End]] = [client, server]


def refused(end: End, frame: Frame, rule: str, code: int = 3) -> None:
    """The connection refuses what the peer sent, with an F to send, and stays in its state until that is sent."""
    before = end.state
    with pytest.raises(RemoteProtocolError) as caught:
        events(end, frame)
    assert caught.value.rule == rule
    assert caught.value.position == 0
    assert isinstance(caught.value.reply, Fatal)
    assert caught.value.reply.code == code
    assert end.state is before
    end.send(caught.value.reply)
    assert end.state is State.CLOSED


def not_sent(end: Connection[str, str] | Machine, frame: Frame, rule: str) -> None:
    before = end.state
    with pytest.raises(LocalProtocolError) as caught:
        end.send(frame)
    assert caught.value.rule == rule
    assert end.state is before


# The handshake.


@pytest.mark.rule("UMQ-17", "UMQ-18", "UMQ-21", "UMQ-22", "UMQ-91", "UMQ-93")
def test_a_handshake_opens_both_sides() -> None:
    here, there = client(), server()
    message = here.send(Hello(1, "token"))
    assert message == "H1:token"
    assert here.state is State.HELLO_SENT
    there.receive(message)
    assert there.next_event() == Hello(1, "token")
    assert there.state is State.HELLO_RECEIVED
    assert passed(there, here, Welcome(there.machine.offered)) == [Welcome(1)]
    assert (here.state, there.state) == (State.OPEN, State.OPEN)
    assert (here.machine.version, there.machine.version) == (1, 1)


@pytest.mark.rule("UMQ-92")
@pytest.mark.parametrize("frame", [*MESSAGES, Welcome(1), Fatal(1, "x")])
def test_a_server_accepts_nothing_but_hello_first(frame: Frame) -> None:
    refused(server(), frame, "UMQ-92")


@pytest.mark.rule("UMQ-92", "UMQ-21")
@pytest.mark.parametrize("frame", [*MESSAGES, Hello(1)])
def test_a_client_accepts_nothing_but_welcome_or_fatal_first(frame: Frame) -> None:
    refused(client(), frame, "UMQ-92")
    here = client()
    here.send(Hello(1))
    refused(here, frame, "UMQ-92")


@pytest.mark.rule("UMQ-92", "UMQ-89")
@pytest.mark.parametrize("frame", ATTACHMENTS)
@pytest.mark.parametrize("end", ENDS)
def test_an_attachment_is_no_first_message(end: Callable[..., End], frame: Frame) -> None:
    refused(end(), frame, "UMQ-89")


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
    passed(here, there, Hello(1, "", attachments=2))
    assert len(passed(here, there, attachment)) == 1
    passed(there, here, Welcome(1))
    assert len(passed(here, there, attachment)) == 1


@pytest.mark.rule("UMQ-135")
@pytest.mark.parametrize("frame", [*MESSAGES, Welcome(1)])
def test_nothing_else_may_come_between_hello_and_welcome(frame: Frame) -> None:
    there = server()
    events(there, Hello(1))
    refused(there, frame, "UMQ-135")
    here = client()
    here.send(Hello(1))
    not_sent(here, frame, "UMQ-92")


@pytest.mark.rule("UMQ-135", "UMQ-21")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS])
def test_a_server_answers_hello_before_it_sends_anything(frame: Frame) -> None:
    there = server()
    events(there, Hello(1))
    not_sent(there, frame, "UMQ-135")


@pytest.mark.rule("UMQ-81")
def test_a_second_hello_is_refused() -> None:
    waiting = server()
    events(waiting, Hello(1))
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
@pytest.mark.parametrize(("offered", "chosen"), [(1, 1), (2, 2), (3, 3), (4, 3), (2**64 - 1, 3)])
def test_the_server_answers_the_lower_version(offered: int, chosen: int) -> None:
    there = Machine(Role.SERVER, newest=3)
    there.receive(Hello(offered))
    assert there.offered == chosen
    not_sent(there, Welcome(chosen + 1), "UMQ-93")
    there.send(Welcome(chosen))
    assert there.version == chosen


@pytest.mark.rule("UMQ-22")
def test_the_server_can_lower_the_version() -> None:
    here, there = Machine(Role.CLIENT, newest=3), Machine(Role.SERVER, newest=3)
    here.send(Hello(3))
    there.receive(Hello(3))
    there.send(Welcome(2))
    here.receive(Welcome(2))
    assert (here.version, there.version) == (2, 2)


@pytest.mark.rule("UMQ-93")
@pytest.mark.parametrize("offered", [2, 2**64 - 1])
def test_a_server_answers_its_own_version_to_a_newer_one(offered: int) -> None:
    there = server()
    events(there, Hello(offered))
    not_sent(there, Welcome(2), "UMQ-93")
    assert there.send(Welcome(there.machine.offered)) == "W1:"


@pytest.mark.rule("UMQ-93")
def test_a_server_refuses_a_version_it_cannot_go_down_to() -> None:
    refused(server(), Hello(0), "UMQ-93", code=5)
    with pytest.raises(RemoteProtocolError):
        Machine(Role.SERVER, oldest=2, newest=3).receive(Hello(1))


@pytest.mark.rule("UMQ-94")
@pytest.mark.parametrize("version", [0, 2, 2**64 - 1])
def test_a_client_refuses_a_version_it_cannot_speak(version: int) -> None:
    here = client()
    here.send(Hello(1))
    refused(here, Welcome(version), "UMQ-94", code=5)


@pytest.mark.rule("UMQ-94")
@pytest.mark.parametrize("version", [0, 1, 4, 5, 2**64 - 1])
def test_a_client_refuses_a_version_it_did_not_offer(version: int) -> None:
    here = Machine(Role.CLIENT, oldest=2, newest=4)
    here.send(Hello(3))
    with pytest.raises(RemoteProtocolError) as caught:
        here.receive(Welcome(version))
    assert caught.value.rule == "UMQ-94"


@pytest.mark.rule("UMQ-91")
@pytest.mark.parametrize("version", [0, 2])
def test_a_client_offers_only_what_it_speaks(version: int) -> None:
    not_sent(client(), Hello(version), "UMQ-91")


# The open connection, and its end.


@pytest.mark.rule("UMQ-95")
@pytest.mark.parametrize("frame", MESSAGES)
@pytest.mark.parametrize("end", ENDS)
def test_open_peers_are_equal(end: Callable[..., End], frame: Frame) -> None:
    receiver = end(opened=True)
    receiver.callbacks.register("function", 2)
    events(receiver, frame)
    assert receiver.state is State.OPEN
    sender = end(opened=True)
    sender.calls.start("waiter", 1)
    sender.publications.open(1)
    events(sender, Call(1, "x"))
    assert sender.send(frame) == encode(frame)
    assert sender.state is State.OPEN


@pytest.mark.rule("UMQ-95")
@pytest.mark.parametrize("attachment", ATTACHMENTS)
def test_either_side_may_attach(attachment: Frame) -> None:
    for here, there in (client(opened=True), server(opened=True)), (server(opened=True), client(opened=True)):
        here.calls.start("waiter", 1)
        assert passed(here, there, Call(1, "x", attachments=1)) == [Call(1, "x", 1, 1)]
        assert len(passed(here, there, attachment)) == 1


@pytest.mark.rule("UMQ-29")
def test_fatal_can_answer_hello() -> None:
    here, there = client(), server()
    passed(here, there, Hello(1))
    assert passed(there, here, Fatal(1, "Rejected")) == [Fatal(1, "Rejected")]
    assert (here.state, there.state) == (State.CLOSED, State.CLOSED)


@pytest.mark.rule("UMQ-30")
@pytest.mark.parametrize("opened", [True, False])
def test_fatal_can_come_from_either_side_at_any_time(opened: bool) -> None:
    for role, other in ((client, server), (server, client)):
        sender, receiver = role(opened=opened), other(opened=True)
        assert passed(sender, receiver, Fatal(10, "Shutting down")) == [Fatal(10, "Shutting down")]
        assert (sender.state, receiver.state) == (State.CLOSED, State.CLOSED)


@pytest.mark.rule("UMQ-30")
def test_fatal_can_come_while_hello_is_being_answered() -> None:
    there = server()
    assert events(there, Hello(1), Fatal(1, "changed my mind"))[1:] == [Fatal(1, "changed my mind")]
    assert there.state is State.CLOSED


@pytest.mark.rule("UMQ-30")
def test_a_server_may_refuse_everybody_before_hello() -> None:
    here = client()
    assert events(here, Fatal(10, "Shutting down"))
    assert here.state is State.CLOSED


@pytest.mark.rule("UMQ-25")
@pytest.mark.parametrize("frame", [*MESSAGES, *ATTACHMENTS, Hello(1), Welcome(1), Fatal(3, "x")])
def test_nothing_follows_fatal(frame: Frame) -> None:
    sender, receiver = client(opened=True), server(opened=True)
    passed(sender, receiver, Fatal(3, "x"))
    for end in (sender, receiver):
        not_sent(end, frame, "UMQ-25")
        assert events(end, frame) == []
        assert end.state is State.CLOSED


@pytest.mark.rule("UMQ-25")
def test_what_was_received_and_not_pulled_before_the_end_is_dropped() -> None:
    there = server(opened=True)
    there.receive("C1:x")
    there.receive("C2:x")
    assert there.next_event() == Call(1, "x")
    assert there.close(FatalCode.SHUTTING_DOWN) == "F0:10 Shutting down"
    assert there.next_event() is None


@pytest.mark.rule("UMQ-25", "UMQ-96")
def test_a_connection_is_closed_once() -> None:
    there = server(opened=True)
    assert there.close(FatalCode.REJECTED, "the login has expired") == "F0:1 Rejected: the login has expired"
    assert there.close(FatalCode.SHUTTING_DOWN) is None
    assert there.time_out() is None


def test_nothing_is_sent_or_received_on_a_lost_connection() -> None:
    there = server(opened=True)
    there.receive("C1:x")
    there.lost()
    assert there.next_event() is None
    assert there.close(FatalCode.SHUTTING_DOWN) is None
    not_sent(there, Call(1, "x"), "UMQ-25")


def test_every_state_is_reached_and_every_event_used() -> None:
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert set(TRANSITIONS.values()) == set(State) - {State.START, State.AWAIT_HELLO}


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```\n" in PAGE.read_text(encoding="utf-8")


# Requests.


@pytest.mark.rule("UMQ-36", "UMQ-41", "UMQ-44", "UMQ-48")
@pytest.mark.parametrize("request_", [Call(7, "x"), Callback(7, 1, "x")])
@pytest.mark.parametrize("answer", [Result(7, "y"), CallException(7, "y")])
def test_a_request_gets_one_answer(request_: Frame, answer: Frame) -> None:
    there = server(opened=True)
    there.callbacks.register("function", 1)
    assert events(there, request_) == [request_]
    assert 7 in there.requests
    assert there.send(answer) == encode(answer)
    assert 7 not in there.requests
    not_sent(there, answer, "UMQ-41")


@pytest.mark.rule("UMQ-37", "UMQ-48", "UMQ-99")
@pytest.mark.parametrize("first", [Call(7, "x"), Callback(7, 1, "x")])
@pytest.mark.parametrize("second", [Call(7, "y"), Callback(7, 2, "y")])
def test_an_id_in_flight_is_not_used_again(first: Frame, second: Frame) -> None:
    there = server(opened=True)
    there.callbacks.register("function", 1)
    events(there, first)
    refused(there, second, "UMQ-99")
    assert len(there.requests) == 1


@pytest.mark.rule("UMQ-99", "UMQ-37")
def test_an_answered_id_may_be_used_again() -> None:
    there = server(opened=True)
    events(there, Call(7, "x"))
    there.send(Result(7, "y"))
    assert events(there, Call(7, "z")) == [Call(7, "z")]


@pytest.mark.rule("UMQ-38")
def test_many_requests_are_in_flight_and_answered_in_any_order() -> None:
    here, there = client(opened=True), server(opened=True)
    ids = [here.calls.start(f"waiter {number}") for number in range(10)]
    for call_id in ids:
        assert passed(here, there, Call(call_id, "x"))
    assert len(there.requests) == len(here.calls) == 10
    for call_id in [*ids[5:], *reversed(ids[:5])]:
        answer = Result(call_id, "y")
        assert passed(there, here, answer) == [answer]
        assert here.calls.answered(answer) == f"waiter {ids.index(call_id)}"
    assert len(there.requests) == len(here.calls) == 0


@pytest.mark.rule("UMQ-136", "UMQ-98")
def test_a_request_over_the_limit_is_answered_and_not_remembered() -> None:
    there = server(opened=True, in_flight=2)
    events(there, Call(1, "x"), Call(2, "x"))
    assert answered(there, Call(3, "x")) == "E3:9 Limit exceeded: 2 requests are in flight"
    assert len(there.requests) == 2
    there.send(Result(1, "y"))
    assert answered(there, Call(3, "x")) is None
    assert 3 in there.requests


@pytest.mark.rule("UMQ-100")
@pytest.mark.parametrize("answer", [Result(5, "x"), CallException(5, "x")])
def test_an_answer_nobody_waits_for_is_ignored_and_counted(answer: Result | CallException) -> None:
    calls: OutgoingCalls[str] = client(opened=True).calls
    assert calls.answered(answer) is None
    assert calls.ignored == 1
    calls.start("waiter", 5)
    assert calls.answered(answer) == "waiter"
    assert calls.answered(answer) is None
    assert calls.ignored == 2


@pytest.mark.rule("UMQ-100")
def test_a_request_that_was_given_up_is_answered_to_nobody() -> None:
    calls: OutgoingCalls[str] = client(opened=True).calls
    given_up = calls.start("impatient")
    calls.abandon(given_up)
    assert given_up not in calls
    assert calls.start("next") != given_up
    assert calls.answered(Result(given_up, "late")) is None
    assert calls.ignored == 1


@pytest.mark.rule("UMQ-37", "UMQ-99")
def test_this_side_does_not_use_an_id_in_flight_again() -> None:
    here = client(opened=True)
    assert here.calls.start("one", 2) == 2
    with pytest.raises(LocalProtocolError) as caught:
        here.calls.start("two", 2)
    assert caught.value.rule == "UMQ-99"
    assert [here.calls.start(name) for name in "abc"] == [1, 3, 4]
    not_sent(here, Call(5, "x"), "UMQ-37")


@pytest.mark.rule("UMQ-84")
def test_this_side_uses_no_id_over_64_bits() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    with pytest.raises(LocalProtocolError) as caught:
        calls.start("one", 2**64)
    assert caught.value.rule == "UMQ-84"
    assert len(calls) == 0


@pytest.mark.rule("UMQ-136")
def test_this_side_has_a_limit_of_requests_too() -> None:
    here = client(opened=True, in_flight=1)
    here.calls.start("one")
    with pytest.raises(LocalProtocolError) as caught:
        here.calls.start("two")
    assert caught.value.rule == "UMQ-136"


def test_all_who_wait_are_known_at_the_end() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    calls.start("one")
    calls.start("two")
    assert calls.drain() == ["one", "two"]
    assert calls.drain() == []


# Callbacks.


@pytest.mark.rule("UMQ-49", "UMQ-105")
def test_a_callback_is_found_until_it_is_unregistered() -> None:
    here = client(opened=True)
    callback_id = here.callbacks.register("function")
    for call_id in range(3):
        called = Callback(call_id, callback_id, "x")
        assert events(here, called) == [called]
        assert here.callbacks.find(called) == "function"
    here.callbacks.unregister(callback_id)
    assert answered(here, Callback(9, callback_id, "x")) == "E9:2 Callback not found"


@pytest.mark.rule("UMQ-49")
def test_a_callback_may_choose_its_number() -> None:
    callbacks: Callbacks[str] = client(opened=True).callbacks
    assert callbacks.register("zero", 0) == 0
    assert callbacks.register("one", 1) == 1
    assert callbacks.register("any") == 2
    assert callbacks.find(Callback(9, 0, "x")) == "zero"
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("again", 1)
    assert caught.value.rule == "UMQ-49"
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("large", 2**64)
    assert caught.value.rule == "UMQ-84"


@pytest.mark.rule("UMQ-106", "UMQ-98")
def test_an_unknown_callback_is_answered() -> None:
    here = client(opened=True)
    assert answered(here, Callback(219, 4454, "x")) == "E63:2 Callback not found"
    assert len(here.requests) == 0
    assert answered(here, Callback(219, 4454, "x")) == "E63:2 Callback not found"


@pytest.mark.rule("UMQ-136")
def test_callbacks_are_limited() -> None:
    callbacks = client(callbacks=1).callbacks
    callbacks.register("one")
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("two")
    assert caught.value.rule == "UMQ-136"
    assert len(callbacks) == 1


def test_unregistering_twice_is_no_mistake() -> None:
    callbacks: Callbacks[str] = Callbacks()
    callbacks.unregister(callbacks.register("one"))
    callbacks.unregister(1)
    assert len(callbacks) == 0


# Topics, at their publisher.


@pytest.mark.rule("UMQ-60", "UMQ-102", "UMQ-131")
def test_unsubscribing_from_a_live_topic_is_answered_with_close() -> None:
    there = server(opened=True)
    there.publications.open(7)
    assert answered(there, Unsubscribe(7)) == "D7:"
    assert 7 not in there.publications


@pytest.mark.rule("UMQ-61", "UMQ-103")
def test_unsubscribing_from_a_closed_topic_is_ignored() -> None:
    there = server(opened=True)
    there.publications.open(7)
    there.send(TopicClose(7))
    assert events(there, Unsubscribe(7), Unsubscribe(8)) == []
    assert there.reply is None
    assert there.publications.ignored == 2


@pytest.mark.rule("UMQ-56", "UMQ-131")
def test_a_publisher_closes_a_topic_once_and_sends_no_update_after_it() -> None:
    there = server(opened=True)
    there.publications.open(7)
    assert there.send(TopicUpdate(7, "x")) == "T7:x"
    assert there.send(TopicClose(7)) == "D7:"
    not_sent(there, TopicClose(7), "UMQ-56")
    not_sent(there, TopicUpdate(7, "y"), "UMQ-56")


@pytest.mark.rule("UMQ-56")
def test_no_update_follows_the_close_that_answers_an_unsubscribe() -> None:
    there = server(opened=True)
    there.publications.open(7)
    answered(there, Unsubscribe(7))
    not_sent(there, TopicUpdate(7, "y"), "UMQ-56")
    not_sent(there, TopicClose(7), "UMQ-56")


@pytest.mark.rule("UMQ-96", "UMQ-53", "UMQ-98")
def test_a_topic_id_in_use_is_refused() -> None:
    there = server(opened=True)
    there.publications.open(7)
    with pytest.raises(MethodError) as caught:
        there.publications.open(7)
    assert caught.value.payload == "11 Bad request: topic id 7 is in use"
    there.send(TopicClose(7))
    there.publications.open(7)
    assert len(there.publications) == 1


@pytest.mark.rule("UMQ-136")
def test_a_topic_over_the_limit_is_refused() -> None:
    topics = server(topics=1).publications
    topics.open(1)
    with pytest.raises(MethodError) as caught:
        topics.open(2)
    assert caught.value.payload == "9 Limit exceeded: 1 topics are open"


# Topics, at their subscriber.


@pytest.mark.rule("UMQ-53")
def test_a_subscriber_chooses_ids_it_does_not_use() -> None:
    topics = client(opened=True).subscriptions
    assert topics.open(2) == 2
    assert [topics.open(), topics.open()] == [1, 3]
    with pytest.raises(LocalProtocolError) as caught:
        topics.open(2)
    assert caught.value.rule == "UMQ-53"
    with pytest.raises(LocalProtocolError) as caught:
        topics.open(2**64)
    assert caught.value.rule == "UMQ-84"
    assert len(topics) == 3


@pytest.mark.rule("UMQ-52", "UMQ-56")
def test_updates_are_delivered_until_the_topic_is_closed() -> None:
    here = client(opened=True)
    here.subscriptions.open(7)
    update = TopicUpdate(7, "x")
    assert events(here, update, update, update) == [update] * 3
    assert events(here, TopicClose(7)) == [TopicClose(7)]
    assert here.subscriptions.state(7) is TopicState.UNKNOWN
    assert here.subscriptions.dropped == 0


@pytest.mark.rule("UMQ-101")
def test_an_update_on_an_unknown_topic_is_answered_with_unsubscribe_once() -> None:
    here = client(opened=True)
    update = TopicUpdate(9, "x")
    assert [answered(here, update) for _ in range(4)] == ["U9:", None, None, None]
    assert events(here, update) == []
    assert here.subscriptions.dropped == 5
    assert len(here.subscriptions) == 0
    assert events(here, TopicClose(9)) == []
    assert answered(here, update) == "U9:"


@pytest.mark.rule("UMQ-103")
def test_closing_an_unknown_topic_is_ignored() -> None:
    here = client(opened=True)
    assert events(here, TopicClose(9)) == []
    assert here.subscriptions.ignored == 1
    assert here.subscriptions.state(9) is TopicState.UNKNOWN


@pytest.mark.rule("UMQ-104", "UMQ-60")
def test_updates_between_unsubscribe_and_close_are_dropped() -> None:
    here = client(opened=True)
    here.subscriptions.open(7)
    assert here.send(Unsubscribe(7)) == "U7:"
    assert events(here, TopicUpdate(7, "late")) == []
    assert here.reply is None
    assert events(here, TopicClose(7)) == [TopicClose(7)]
    assert here.subscriptions.leave(7) is None


@pytest.mark.rule("UMQ-53")
def test_an_id_is_not_used_again_before_its_close() -> None:
    here = client(opened=True)
    here.subscriptions.open(7)
    here.send(Unsubscribe(7))
    with pytest.raises(LocalProtocolError):
        here.subscriptions.open(7)
    events(here, TopicUpdate(8, "x"))
    with pytest.raises(LocalProtocolError):
        here.subscriptions.open(8)
    events(here, TopicClose(7))
    assert here.subscriptions.open(7) == 7


@pytest.mark.rule("UMQ-101")
def test_a_failed_subscription_is_forgotten() -> None:
    here = client(opened=True)
    here.subscriptions.open(7)
    here.subscriptions.forget(7)
    here.subscriptions.forget(8)
    assert answered(here, TopicUpdate(7, "x")) == "U7:"


@pytest.mark.rule("UMQ-136")
def test_subscriptions_are_limited() -> None:
    topics = client(topics=1).subscriptions
    topics.open()
    with pytest.raises(LocalProtocolError) as caught:
        topics.open()
    assert caught.value.rule == "UMQ-136"


@pytest.mark.rule("UMQ-136")
def test_unknown_topics_take_bounded_memory() -> None:
    here = client(opened=True)
    for topic_id in range(1024):
        assert events(here, TopicUpdate(topic_id, "x"))
    assert events(here, TopicUpdate(1, "x"), TopicClose(1)) == []
    assert answered(here, TopicUpdate(1024, "x")) is not None
    refused(here, TopicUpdate(1025, "x"), "UMQ-136", code=9)


@pytest.mark.rule("UMQ-136")
def test_the_limit_of_unknown_topics_can_be_set() -> None:
    topics = Subscriptions(max_refused=2)
    topics.updated(TopicUpdate(1, "x"))
    topics.updated(TopicUpdate(2, "x"))
    with pytest.raises(RemoteProtocolError) as caught:
        topics.updated(TopicUpdate(3, "x"))
    assert caught.value.rule == "UMQ-136"
    assert topics.updated(TopicUpdate(1, "x")) is Action.DROP


def test_the_table_knows_every_case_but_subscribing_twice() -> None:
    missing = set(itertools.product(TopicState, TopicEvent)) - set(TOPIC_TRANSITIONS)
    assert missing == {(state, TopicEvent.SUBSCRIBE) for state in set(TopicState) - {TopicState.UNKNOWN}}


# Attributes.


@pytest.mark.rule("UMQ-108", "UMQ-69")
def test_the_newest_value_is_kept_until_it_is_unset() -> None:
    there = server(opened=True)
    events(there, SetAttribute("key", "old"), SetAttribute("key", "new"), SetAttribute("other", ""))
    attributes = there.attributes
    assert {name: attributes[name].value for name in attributes} == {"key": "new", "other": ""}
    assert events(there, UnsetAttribute("key")) == [UnsetAttribute("key")]
    assert list(attributes) == ["other"]
    assert "key" not in attributes
    assert attributes.view.get("key") is None


@pytest.mark.rule("UMQ-69")
def test_unsetting_what_is_not_set_changes_nothing() -> None:
    there = server(opened=True)
    events(there, SetAttribute("key", "value"), UnsetAttribute("other"))
    assert list(there.attributes) == ["key"]


@pytest.mark.rule("UMQ-67")
def test_attachments_are_part_of_the_value() -> None:
    there = server(opened=True)
    assert len(events(there, SetAttribute("key", "value", 2))) == 1
    attribute = there.attributes["key"]
    assert list(attribute.attachments) == [None, None]
    complete = [attribute.complete]
    for body in (b"one", b"two"):
        assert events(there, Attachment(body)) == []
        complete.append(attribute.complete)
    assert list(attribute.attachments) == [b"one", b"two"]
    assert complete == [False, False, True]
    events(there, Call(1, "x", 1))
    assert events(there, Attachment(b"three")) == [Attachment(b"three", 2, 0)]


@pytest.mark.rule("UMQ-67", "UMQ-88")
def test_a_failed_attachment_leaves_its_error_in_the_value() -> None:
    there = server(opened=True)
    events(there, SetAttribute("key", "value", 2), AttachmentError("gone"), Attachment(b"two"))
    assert there.attributes["key"].attachments == (AttachmentError("gone", 1, 0), b"two")
    assert not there.attributes["key"].complete


@pytest.mark.rule("UMQ-108", "UMQ-67")
def test_attachments_of_a_replaced_value_go_nowhere() -> None:
    there = server(opened=True)
    events(there, SetAttribute("key", "old", 1), SetAttribute("key", "new", 1))
    events(there, Attachment(b"late"), Attachment(b"x"))
    assert there.attributes["key"].attachments == (b"x",)
    events(there, SetAttribute("gone", "", 1), UnsetAttribute("gone"), Attachment(b"late"))
    assert list(there.attributes) == ["key"]


@pytest.mark.rule("UMQ-136")
def test_attributes_are_limited_in_number() -> None:
    there = server(opened=True)
    events(there, *[SetAttribute(str(number), "1") for number in range(256)], SetAttribute("0", "2"))
    refused(there, SetAttribute("one more", "1"), "UMQ-136", code=9)
    assert len(there.attributes) == 256


@pytest.mark.rule("UMQ-136")
def test_attributes_are_limited_in_size() -> None:
    there = server(opened=True)
    events(there, SetAttribute("a", "x" * (1024 * 1024 - 3), 2))
    refused(there, Attachment(b"xx"), "UMQ-136", code=9)
    attributes = Attributes(max_size=10)
    attributes.set(SetAttribute("a", "x" * 9))
    attributes.set(SetAttribute("a", "y" * 9))
    with pytest.raises(RemoteProtocolError) as caught:
        attributes.set(SetAttribute("a", "x" * 10))
    assert caught.value.rule == "UMQ-136"
    assert attributes["a"].value == "y" * 9


@pytest.mark.rule("UMQ-136")
def test_the_size_is_given_back() -> None:
    there = server(opened=True)
    events(there, SetAttribute("a", "x", 3), Attachment(b"12345"), AttachmentError("gone"))
    assert there.attributes.size == 1 + 1 + 5 + 4 + 1
    events(there, UnsetAttribute("a"))
    assert there.attributes.size == 0


# Ids.


def test_ids_count_upwards_and_skip_those_in_use() -> None:
    ids = IdSequence()
    assert [ids.choose({2, 3}) for _ in range(3)] == [1, 4, 5]


def test_the_largest_id_is_followed_by_the_smallest() -> None:
    ids = IdSequence()
    ids._next = MAX_NUMBER
    assert [ids.choose({1}) for _ in range(2)] == [MAX_NUMBER, 2]


@pytest.mark.rule("UMQ-84")
def test_an_id_has_64_bits() -> None:
    check_id(0)
    check_id(MAX_NUMBER)
    for number in (-1, MAX_NUMBER + 1):
        with pytest.raises(LocalProtocolError):
            check_id(number)
