"""The tables of a call's states, and calls in flight at both ends, in all four shapes."""

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqttrpc.connection import (
    TABLES,
    ClientCalls,
    CorrelationIds,
    Event,
    Outcome,
    ServerCalls,
    State,
    Step,
    request_event,
    response_event,
)
from polywire.protocols.mqttrpc.errors import BAD_REQUEST, NO_METHOD, OVERLOADED, TIMEOUT, LocalProtocolError
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response, TimeoutUnit, failed
from polywire.protocols.mqttrpc.service import Shape
from polywire.wire.frame import Role

REQUESTS = {Event.REQUEST, Event.LAST_REQUEST}


@pytest.mark.rule("MQTTRPC-01")
@pytest.mark.parametrize("table", TABLES.values(), ids=["client", "server"])
def test_nothing_happens_in_a_closed_call_and_every_state_leads_there(table: dict[tuple[State, Event], State]) -> None:
    assert not [state for state, _ in table if state is State.CLOSED]
    reaching = {State.CLOSED}
    for _ in State:
        reaching |= {state for (state, _), following in table.items() if following in reaching}
    assert reaching >= {state for state, _ in table}


@pytest.mark.rule("MQTTRPC-01")
@pytest.mark.parametrize("table", TABLES.values(), ids=["client", "server"])
def test_a_call_begins_with_a_request_and_has_none_after_the_last(table: dict[tuple[State, Event], State]) -> None:
    assert {event for state, event in table if state is State.IDLE} == REQUESTS
    assert not {event for state, event in table if state is State.REQUESTED} & REQUESTS


@pytest.mark.rule("MQTTRPC-54")
@pytest.mark.parametrize("state", [State.OPEN, State.REQUESTED])
def test_an_error_ends_a_call_in_either_state(state: State) -> None:
    assert TABLES[Role.CLIENT][state, Event.ERROR] is State.CLOSED
    after = TABLES[Role.SERVER][state, Event.ERROR]
    assert after in {State.ANSWERED, State.CLOSED}
    assert not {event for known, event in TABLES[Role.SERVER] if known is after} - REQUESTS


@pytest.mark.rule("MQTTRPC-08", "MQTTRPC-10", "MQTTRPC-52")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_eos_counts_where_requests_are_streamed(shape: Shape, eos: bool) -> None:
    last = request_event(shape, eos=eos) is Event.LAST_REQUEST
    assert last == (eos if shape.streams_requests else True)


@pytest.mark.rule("MQTTRPC-23", "MQTTRPC-24", "MQTTRPC-52")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_eos_counts_where_responses_are_streamed(shape: Shape, eos: bool) -> None:
    last = response_event(shape, eos=eos, failed=False) is Event.LAST_RESPONSE
    assert last == (eos if shape.streams_responses else True)


@pytest.mark.rule("MQTTRPC-54")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_an_error_is_an_error_with_and_without_eos(shape: Shape, eos: bool) -> None:
    assert response_event(shape, eos=eos, failed=True) is Event.ERROR


@pytest.mark.rule("MQTTRPC-51")
def test_there_are_four_shapes() -> None:
    streams = [(shape.streams_requests, shape.streams_responses) for shape in Shape]
    assert sorted(streams) == sorted(product([False, True], repeat=2))


METHODS = {
    "SayHello": Shape.UNARY,
    "GreetAll": Shape.CLIENT_STREAMING,
    "GreetOften": Shape.SERVER_STREAMING,
    "Chat": Shape.BIDIRECTIONAL,
}
NOW = 100.0


def client(method: str, *, eos: bool = False, timeout: int = 0) -> ClientCalls:
    calls = ClientCalls()
    calls.start(Request(7, method, b"x", eos, timeout), METHODS[method], NOW)
    return calls


def server(method: str, *, eos: bool = False, timeout: int = 0) -> ServerCalls:
    calls = ServerCalls()
    assert calls.receive(Request(7, method, b"x", eos, timeout), METHODS, NOW).started
    return calls


def seen(step: Step) -> tuple[Outcome, bool, bool]:
    return (step.outcome, step.item, step.last)


# correlation ids


@pytest.mark.rule("MQTTRPC-70", "MQTTRPC-11")
def test_an_id_is_neither_0_nor_in_use() -> None:
    bits = iter([0, 5, 6, 2**64 - 1])
    asked: list[int] = []

    def random_bits(count: int) -> int:
        asked.append(count)
        return next(bits)

    ids = CorrelationIds(random_bits)
    assert ids.new(in_use={5}) == 6
    assert ids.new() == 2**64 - 1
    assert asked == [64] * 4


@pytest.mark.rule("MQTTRPC-70")
def test_ids_are_random_by_default() -> None:
    ids = CorrelationIds()
    numbers = {ids.new() for _ in range(1000)}
    assert len(numbers) == 1000
    assert all(0 < number < 2**64 for number in numbers)
    assert max(numbers) > 2**60


@pytest.mark.rule("MQTTRPC-11")
def test_an_id_in_use_is_not_used_for_a_second_call() -> None:
    calls = client("SayHello")
    with pytest.raises(LocalProtocolError) as caught:
        calls.start(Request(7, "SayHello"), Shape.UNARY, NOW)
    assert caught.value.rule == "MQTTRPC-11"
    assert len(calls) == 1


# the client's side


@pytest.mark.rule("MQTTRPC-13", "MQTTRPC-24")
@pytest.mark.parametrize("eos", [False, True])
def test_one_response_answers_a_call_that_streams_none(eos: bool) -> None:
    calls = client("SayHello")
    calls.start(Request(8, "SayHello"), Shape.UNARY, NOW)
    step = calls.receive(Response(7, "", b"hi", eos=eos), NOW + 1)
    assert seen(step) == (Outcome.TAKEN, True, True)
    assert step.call is not None
    assert (step.call.correlation_id, step.call.state, step.call.heard) == (7, State.CLOSED, NOW + 1)
    assert 7 not in calls
    assert 8 in calls


@pytest.mark.rule("MQTTRPC-24", "MQTTRPC-53")
def test_an_empty_response_is_one_where_responses_are_not_streamed() -> None:
    assert seen(client("SayHello").receive(Response(7, eos=True), NOW)) == (Outcome.TAKEN, True, True)


@pytest.mark.rule("MQTTRPC-23", "MQTTRPC-52", "MQTTRPC-53")
@pytest.mark.parametrize("method", ["GreetOften", "Chat"])
def test_a_response_stream_ends_with_eos(method: str) -> None:
    calls = client(method)
    assert seen(calls.receive(Response(7, "", b"1"), NOW)) == (Outcome.TAKEN, True, False)
    assert seen(calls.receive(Response(7, "", b""), NOW)) == (Outcome.TAKEN, True, False)
    assert seen(calls.receive(Response(7, "", b"2", eos=True), NOW)) == (Outcome.TAKEN, True, True)
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-53")
def test_only_a_response_without_a_body_merely_ends_the_stream() -> None:
    calls = client("GreetOften")
    assert seen(calls.receive(Response(7, "", b"1"), NOW)) == (Outcome.TAKEN, True, False)
    assert seen(calls.receive(Response(7, eos=True), NOW)) == (Outcome.TAKEN, False, True)
    for last in (Response(7, "examples.HelloResponse", eos=True), Response(7, "", b"", eos=True)):
        assert seen(client("GreetOften").receive(last, NOW)) == (Outcome.TAKEN, True, True)


@pytest.mark.rule("MQTTRPC-27", "MQTTRPC-54")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("eos", [False, True])
def test_an_error_ends_the_clients_call_at_once(method: str, eos: bool) -> None:
    calls = client(method)
    step = calls.receive(Response(7, "", b"more", ErrorData(0), eos), NOW)
    assert seen(step) == (Outcome.TAKEN, False, True)
    assert len(calls) == 0
    assert calls.receive(Response(7, "", b"late"), NOW).outcome is Outcome.UNKNOWN


@pytest.mark.rule("MQTTRPC-14", "MQTTRPC-71")
def test_unknown_responses_are_discarded_and_counted() -> None:
    calls = client("SayHello")
    for number in (8, 9, 2**64 - 1):
        assert calls.receive(Response(number), NOW) == Step(Outcome.UNKNOWN)
    assert calls.unknown == 3
    assert calls.receive(Response(7), NOW).outcome is Outcome.TAKEN


@pytest.mark.rule("MQTTRPC-40")
def test_a_client_ignores_echoes_and_the_requests_of_others() -> None:
    calls = client("Chat")
    assert calls.receive(Request(7, "Chat", b"x"), NOW).outcome is Outcome.ECHO
    assert calls.receive(Request(8, "Chat", b"x", eos=True), NOW).outcome is Outcome.ECHO
    assert (len(calls), calls.unknown) == (1, 0)


@pytest.mark.rule("MQTTRPC-08", "MQTTRPC-12", "MQTTRPC-52")
def test_a_client_streams_requests_up_to_eos() -> None:
    calls = client("Chat")
    calls.send(Request(7, "Chat", b"1"))
    calls.send(Request(7, "examples.MyCoolService/Chat", b"2"))
    calls.send(Request(7, eos=True))
    with pytest.raises(LocalProtocolError) as caught:
        calls.send(Request(7, "Chat", b"3"))
    assert caught.value.rule == "MQTTRPC-01"
    assert 7 in calls


@pytest.mark.rule("MQTTRPC-01", "MQTTRPC-10")
@pytest.mark.parametrize("eos", [False, True])
def test_a_client_has_one_request_where_they_are_not_streamed(eos: bool) -> None:
    calls = client("GreetOften", eos=eos)
    with pytest.raises(LocalProtocolError, match="must not have more Requests"):
        calls.send(Request(7, "GreetOften", b"2"))


@pytest.mark.rule("MQTTRPC-01")
def test_a_client_sends_nothing_after_the_last_response() -> None:
    calls = client("Chat")
    calls.receive(Response(7, eos=True), NOW)
    with pytest.raises(LocalProtocolError, match="is over"):
        calls.send(Request(7, "Chat", b"1"))


@pytest.mark.rule("MQTTRPC-09")
@pytest.mark.parametrize("type_url", ["GreetAll", ""])
def test_a_client_does_not_change_the_method_within_a_stream(type_url: str) -> None:
    calls = client("Chat")
    with pytest.raises(LocalProtocolError) as caught:
        calls.send(Request(7, type_url, b"1", eos=True))
    assert caught.value.rule == "MQTTRPC-09"
    calls.send(Request(7, "Chat", b"1", eos=True))


@pytest.mark.rule("MQTTRPC-70")
def test_a_client_starts_no_call_with_the_correlation_id_0() -> None:
    calls = ClientCalls()
    with pytest.raises(LocalProtocolError) as caught:
        calls.start(Request(0, "SayHello"), Shape.UNARY, NOW)
    assert caught.value.rule == "MQTTRPC-70"
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-50")
def test_a_client_starts_no_call_of_no_method() -> None:
    calls = ClientCalls()
    with pytest.raises(LocalProtocolError) as caught:
        calls.start(Request(7), Shape.UNARY, NOW)
    assert caught.value.rule == "MQTTRPC-50"
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-93")
def test_a_client_has_a_bounded_number_of_calls() -> None:
    calls = ClientCalls(max_calls=2)
    calls.start(Request(1, "SayHello"), Shape.UNARY, NOW)
    calls.start(Request(2, "SayHello"), Shape.UNARY, NOW)
    with pytest.raises(LocalProtocolError) as caught:
        calls.start(Request(3, "SayHello"), Shape.UNARY, NOW)
    assert caught.value.rule == "MQTTRPC-93"
    calls.end(1)
    calls.end(1)
    calls.start(Request(3, "SayHello"), Shape.UNARY, NOW)


@pytest.mark.rule("MQTTRPC-16", "MQTTRPC-59")
def test_a_client_learns_which_calls_are_overdue() -> None:
    calls = client("SayHello", timeout=1500)
    calls.start(Request(8, "SayHello"), Shape.UNARY, NOW)
    assert calls.overdue(NOW + 1.4) == []
    assert [call.correlation_id for call in calls.overdue(NOW + 1.5)] == [7]
    assert calls.overdue(NOW + 29.9) == []
    assert [call.correlation_id for call in calls.overdue(NOW + 30)] == [8]
    assert calls.receive(Response(7), NOW + 31).outcome is Outcome.UNKNOWN


# the server's side


@pytest.mark.rule("MQTTRPC-10", "MQTTRPC-53")
@pytest.mark.parametrize("method", ["SayHello", "GreetOften"])
@pytest.mark.parametrize("eos", [False, True])
def test_one_request_is_all_where_requests_are_not_streamed(method: str, eos: bool) -> None:
    calls = ServerCalls()
    step = calls.receive(Request(7, method, b"", eos), METHODS, NOW)
    assert step.started
    assert seen(step) == (Outcome.TAKEN, True, True)
    assert step.call is not None
    assert (step.call.method, step.call.shape) == (method, METHODS[method])


@pytest.mark.rule("MQTTRPC-08", "MQTTRPC-12", "MQTTRPC-52", "MQTTRPC-53")
@pytest.mark.parametrize("method", ["GreetAll", "Chat"])
def test_a_request_stream_is_joined_by_its_id_and_ends_with_eos(method: str) -> None:
    calls = server(method)
    calls.receive(Request(8, method, b"other"), METHODS, NOW)
    step = calls.receive(Request(7, method, b"2"), METHODS, NOW + 1)
    assert seen(step) == (Outcome.TAKEN, True, False)
    assert step.call is not None
    assert step.call.correlation_id == 7
    assert not step.started
    assert seen(calls.receive(Request(8, method, b"3", eos=True), METHODS, NOW)) == (Outcome.TAKEN, True, True)
    assert seen(calls.receive(Request(7, eos=True), METHODS, NOW)) == (Outcome.TAKEN, False, True)
    assert len(calls) == 2


@pytest.mark.rule("MQTTRPC-53")
def test_a_request_with_a_body_is_an_element_even_if_its_value_is_empty() -> None:
    calls = ServerCalls()
    only = calls.receive(Request(7, "GreetAll", b"", eos=True), METHODS, NOW)
    assert only.started
    assert seen(only) == (Outcome.TAKEN, True, True)
    assert seen(calls.receive(Request(8, "GreetAll", b""), METHODS, NOW)) == (Outcome.TAKEN, True, False)
    assert seen(calls.receive(Request(8, "GreetAll", b"", eos=True), METHODS, NOW)) == (Outcome.TAKEN, True, True)
    assert seen(calls.receive(Request(9, "GreetAll", b""), METHODS, NOW)) == (Outcome.TAKEN, True, False)
    assert seen(calls.receive(Request(9, "", b"", eos=True), METHODS, NOW)) == (Outcome.TAKEN, True, True)


@pytest.mark.rule("MQTTRPC-09")
def test_a_further_request_need_not_repeat_the_method() -> None:
    calls = server("Chat")
    assert seen(calls.receive(Request(7, "", b"1"), METHODS, NOW)) == (Outcome.TAKEN, True, False)


@pytest.mark.rule("MQTTRPC-76")
def test_a_server_takes_the_correlation_id_0() -> None:
    calls = ServerCalls()
    assert calls.receive(Request(0, "SayHello"), METHODS, NOW).started
    calls.answer(Response(0, "", b"hi"))
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-105")
@pytest.mark.parametrize("request_", [Request(7, timeout=5), Request(7, eos=True, timeout=5), Request(7)])
def test_a_first_request_without_a_body_is_refused(request_: Request) -> None:
    calls = ServerCalls()
    assert calls.receive(request_, METHODS, NOW) == Step(Outcome.REFUSED, failure=BAD_REQUEST)
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-09", "MQTTRPC-60")
@pytest.mark.parametrize("request_", [Request(7, "GreetAll", b"1"), Request(7, "/", b"1"), Request(7, timeout=5)])
def test_a_part_of_another_method_is_refused(request_: Request) -> None:
    calls = server("Chat")
    step = calls.receive(request_, METHODS, NOW)
    assert (step.outcome, step.failure) == (Outcome.REFUSED, BAD_REQUEST)
    calls.answer(failed(7, BAD_REQUEST))
    assert calls.receive(Request(7, "Chat", b"2"), METHODS, NOW).outcome is Outcome.LATE


@pytest.mark.rule("MQTTRPC-50", "MQTTRPC-62")
@pytest.mark.parametrize("type_url", ["SayGoodbye", "a.B/SayGoodbye", "", "/", "a.SayHello"])
def test_an_unknown_method_is_refused(type_url: str) -> None:
    calls = ServerCalls()
    assert calls.receive(Request(7, type_url, b"x"), METHODS, NOW) == Step(Outcome.REFUSED, failure=NO_METHOD)
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-50")
@pytest.mark.parametrize("type_url", ["SayHello", "/SayHello", "examples.MyCoolService/SayHello"])
def test_every_form_of_a_method_name_starts_the_call(type_url: str) -> None:
    step = ServerCalls().receive(Request(7, type_url), METHODS, NOW)
    assert step.call is not None
    assert step.call.method == "SayHello"


@pytest.mark.rule("MQTTRPC-73")
@pytest.mark.parametrize("method", METHODS)
def test_a_duplicate_of_a_request_in_work_is_dropped(method: str) -> None:
    calls = server(method, eos=True)
    assert calls.receive(Request(7, method, b"x", eos=True), METHODS, NOW).outcome is Outcome.DUPLICATE
    assert calls.receive(Request(7, method, b"x"), METHODS, NOW).outcome is Outcome.DUPLICATE
    assert calls.dropped == 2
    calls.answer(Response(7, eos=True))
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-94", "MQTTRPC-54")
@pytest.mark.parametrize("answer", [Response(7, eos=True), failed(7, TIMEOUT)])
def test_requests_of_an_answered_stream_are_dropped_up_to_its_end(answer: Response) -> None:
    calls = server("Chat")
    calls.answer(answer)
    assert calls.receive(Request(7, "Chat", b"1"), METHODS, NOW).outcome is Outcome.LATE
    step = calls.receive(Request(7, "Chat", b"2", eos=True), METHODS, NOW)
    assert seen(step) == (Outcome.LATE, False, True)
    assert calls.dropped == 2
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-94")
def test_the_end_of_a_stream_that_is_not_open_is_dropped() -> None:
    calls = ServerCalls()
    assert calls.receive(Request(7, eos=True), METHODS, NOW).outcome is Outcome.LATE
    assert (len(calls), calls.dropped) == (0, 1)


@pytest.mark.rule("MQTTRPC-40")
def test_a_server_ignores_responses() -> None:
    calls = server("SayHello")
    assert calls.receive(Response(7, "", b"own"), METHODS, NOW) == Step(Outcome.ECHO)
    assert len(calls) == 1


@pytest.mark.rule("MQTTRPC-22")
def test_what_was_not_asked_can_not_be_answered() -> None:
    calls = server("SayHello")
    with pytest.raises(LocalProtocolError) as caught:
        calls.answer(Response(8))
    assert caught.value.rule == "MQTTRPC-22"
    calls.answer(Response(7))
    with pytest.raises(LocalProtocolError):
        calls.answer(Response(7))


@pytest.mark.rule("MQTTRPC-01", "MQTTRPC-23")
def test_a_server_streams_responses_up_to_eos() -> None:
    calls = server("Chat")
    calls.answer(Response(7, "", b"1"))
    calls.answer(Response(7, "", b"2"))
    calls.answer(Response(7, eos=True))
    with pytest.raises(LocalProtocolError) as caught:
        calls.answer(Response(7, "", b"3"))
    assert caught.value.rule == "MQTTRPC-01"


@pytest.mark.rule("MQTTRPC-54")
@pytest.mark.parametrize("method", METHODS)
def test_an_error_ends_the_servers_call_at_once(method: str) -> None:
    calls = server(method)
    calls.answer(Response(7, error_data=ErrorData(500)))
    with pytest.raises(LocalProtocolError):
        calls.answer(Response(7, eos=True))


@pytest.mark.rule("MQTTRPC-65", "MQTTRPC-93")
def test_a_server_over_its_limit_refuses_the_next_call() -> None:
    calls = ServerCalls(max_calls=1)
    calls.receive(Request(7, "Chat"), METHODS, NOW)
    assert calls.receive(Request(8, "Chat"), METHODS, NOW) == Step(Outcome.REFUSED, failure=OVERLOADED)
    assert calls.receive(Request(7, "Chat"), METHODS, NOW).outcome is Outcome.TAKEN
    assert len(calls) == 1


@pytest.mark.rule("MQTTRPC-56", "MQTTRPC-16", "MQTTRPC-68")
def test_the_timeout_of_the_first_request_holds_for_the_whole_call() -> None:
    calls = server("Chat", timeout=2000)
    calls.receive(Request(7, "Chat", b"1", timeout=1, timeout_unit=TimeoutUnit.HOUR), METHODS, NOW + 1.9)
    assert calls.overdue(NOW + 1.99) == []
    (call,) = calls.overdue(NOW + 2)
    calls.answer(failed(call.correlation_id, TIMEOUT))
    assert calls.overdue(NOW + 2) == []
    assert len(calls) == 0


@pytest.mark.rule("MQTTRPC-17", "MQTTRPC-59")
def test_without_a_timeout_the_servers_own_counts() -> None:
    calls = server("SayHello")
    assert calls.overdue(NOW + 29.99) == []
    assert len(calls.overdue(NOW + 30)) == 1
    own = ServerCalls(default_timeout=500)
    own.receive(Request(7, "SayHello"), METHODS, NOW)
    assert len(own.overdue(NOW + 0.5)) == 1


@pytest.mark.rule("MQTTRPC-63")
def test_a_stream_that_waits_for_its_next_request_is_idle() -> None:
    calls = server("Chat")
    server_done = server("SayHello")
    assert calls.idle(NOW + 0.9, 1000) == []
    calls.receive(Request(7, "Chat", b"1"), METHODS, NOW + 0.9)
    assert calls.idle(NOW + 1.8, 1000) == []
    assert [call.correlation_id for call in calls.idle(NOW + 1.9, 1000)] == [7]
    assert server_done.idle(NOW + 100, 1000) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["request", "answer", "error", "time"]),
            st.integers(1, 4),
            st.sampled_from([*METHODS, ""]),
            st.booleans(),
        ),
        max_size=40,
    )
)
@pytest.mark.rule("MQTTRPC-93")
def test_a_server_survives_any_order_of_messages(steps: list[tuple[str, int, str, bool]]) -> None:
    calls = ServerCalls(max_calls=3)
    now = NOW
    for what, number, method, eos in steps:
        if what == "request":
            step = calls.receive(Request(number, method, b"x" * len(method), eos), METHODS, now)
            assert (step.failure is not None) == (step.outcome is Outcome.REFUSED)
        elif what == "time":
            now += 10
            for call in calls.overdue(now):
                calls.answer(failed(call.correlation_id, TIMEOUT))
        else:
            answer = failed(number, BAD_REQUEST) if what == "error" else Response(number, eos=eos)
            with suppress(LocalProtocolError):
                calls.answer(answer)
        assert len(calls) <= 3
    calls.overdue(now + 60)
    for number in range(1, 5):
        if number in calls:
            calls.answer(failed(number, TIMEOUT))
    calls.overdue(now + 60)
    assert len(calls) == 0


@given(
    st.sampled_from(list(METHODS)),
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4),
)
@pytest.mark.rule("MQTTRPC-01", "MQTTRPC-12", "MQTTRPC-13")
def test_both_sides_agree_on_a_call_from_start_to_end(method: str, sent: list[bytes], answers: list[bytes]) -> None:
    shape = METHODS[method]
    asking, serving = ClientCalls(), ServerCalls()
    sent = sent if shape.streams_requests else sent[:1]
    answers = answers if shape.streams_responses else answers[:1]
    arrived = []
    for place, value in enumerate(sent):
        request = Request(7, method, value, eos=place == len(sent) - 1)
        if place == 0:
            asking.start(request, shape, NOW)
        else:
            asking.send(request)
        step = serving.receive(request, METHODS, NOW)
        assert asking.receive(request, NOW).outcome is Outcome.ECHO
        assert step.item
        assert step.last == (place == len(sent) - 1)
        arrived.append(value)
    heard = []
    for place, value in enumerate(answers):
        response = Response(7, "", value, eos=place == len(answers) - 1)
        serving.answer(response)
        assert serving.receive(response, METHODS, NOW).outcome is Outcome.ECHO
        step = asking.receive(response, NOW)
        assert step.last == (place == len(answers) - 1)
        heard.append(value)
    assert (arrived, heard) == (sent, answers)
    assert (len(asking), len(serving)) == (0, 0)
