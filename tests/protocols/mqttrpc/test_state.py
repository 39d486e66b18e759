"""The tables of a call's states."""

from itertools import product

import pytest

from polywire.protocols.mqttrpc.state import CLIENT, SERVER, Event, Shape, State, request_event, response_event

REQUESTS = {Event.REQUEST, Event.LAST_REQUEST}


@pytest.mark.rule("MQTTRPC-01")
@pytest.mark.parametrize("table", [CLIENT, SERVER], ids=["client", "server"])
def test_nothing_happens_in_a_closed_call_and_every_state_leads_there(table: dict[tuple[State, Event], State]) -> None:
    assert not [state for state, _ in table if state is State.CLOSED]
    reaching = {State.CLOSED}
    for _ in State:
        reaching |= {state for (state, _), following in table.items() if following in reaching}
    assert reaching >= {state for state, _ in table}


@pytest.mark.rule("MQTTRPC-01")
@pytest.mark.parametrize("table", [CLIENT, SERVER], ids=["client", "server"])
def test_a_call_begins_with_a_request_and_has_none_after_the_last(table: dict[tuple[State, Event], State]) -> None:
    assert {event for state, event in table if state is State.IDLE} == REQUESTS
    assert not {event for state, event in table if state is State.REQUESTED} & REQUESTS


@pytest.mark.rule("MQTTRPC-54")
@pytest.mark.parametrize("state", [State.OPEN, State.REQUESTED])
def test_an_error_ends_a_call_in_either_state(state: State) -> None:
    assert CLIENT[state, Event.ERROR] is State.CLOSED
    after = SERVER[state, Event.ERROR]
    assert after in {State.ANSWERED, State.CLOSED}
    assert not {event for known, event in SERVER if known is after} - REQUESTS


@pytest.mark.rule("MQTTRPC-08", "MQTTRPC-10", "MQTTRPC-52")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_eos_counts_where_requests_are_streamed(shape: Shape, eos: bool) -> None:
    last = request_event(shape, eos) is Event.LAST_REQUEST
    assert last == (eos if shape.streams_requests else True)


@pytest.mark.rule("MQTTRPC-23", "MQTTRPC-24", "MQTTRPC-52")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_eos_counts_where_responses_are_streamed(shape: Shape, eos: bool) -> None:
    last = response_event(shape, eos, failed=False) is Event.LAST_RESPONSE
    assert last == (eos if shape.streams_responses else True)


@pytest.mark.rule("MQTTRPC-54")
@pytest.mark.parametrize(("shape", "eos"), list(product(Shape, [False, True])))
def test_an_error_is_an_error_with_and_without_eos(shape: Shape, eos: bool) -> None:
    assert response_event(shape, eos, failed=True) is Event.ERROR


@pytest.mark.rule("MQTTRPC-51")
def test_there_are_four_shapes() -> None:
    streams = [(shape.streams_requests, shape.streams_responses) for shape in Shape]
    assert sorted(streams) == sorted(product([False, True], repeat=2))
