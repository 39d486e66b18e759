"""The course of a connection."""

import pytest

from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import CLIENT, SERVER, Error
from polywire.protocols.micromsg.state import SPEAKER, TRANSITIONS, Event, State, after, error_event


def course(*events: Event) -> State:
    state = State.CONNECTED
    for event in events:
        state = after(state, event)
    return state


@pytest.mark.rule("MICROMSG-101", "MICROMSG-30", "MICROMSG-02")
def test_offer_reply_and_final_message_establish_a_connection() -> None:
    assert course(Event.OFFER, Event.REPLY, Event.FINAL) is State.ESTABLISHED
    assert [SPEAKER[event] for event in (Event.OFFER, Event.REPLY, Event.FINAL)] == [CLIENT, SERVER, CLIENT]
    assert course(Event.OFFER, Event.REPLY, Event.FINAL, Event.FRAME, Event.FRAME) is State.ESTABLISHED


@pytest.mark.rule("MICROMSG-11", "MICROMSG-101")
def test_the_client_begins() -> None:
    begins = {event for state, event in TRANSITIONS if state is State.CONNECTED}
    assert begins == {Event.OFFER, Event.ENDING_ERROR, Event.LOST}
    for early in (Event.REPLY, Event.FINAL, Event.FRAME):
        with pytest.raises(LocalProtocolError) as caught:
            after(State.CONNECTED, early)
        assert caught.value.rule == "MICROMSG-101"
        assert "offer" in caught.value.reason


@pytest.mark.rule("MICROMSG-101", "MICROMSG-32")
@pytest.mark.parametrize("events", [(Event.OFFER,), (Event.OFFER, Event.REPLY)])
def test_no_frame_goes_before_the_final_message(events: tuple[Event, ...]) -> None:
    with pytest.raises(LocalProtocolError):
        after(course(*events), Event.FRAME)


@pytest.mark.rule("MICROMSG-13", "MICROMSG-14", "MICROMSG-15")
@pytest.mark.parametrize("events", [(), (Event.OFFER,), (Event.OFFER, Event.REPLY)])
def test_an_error_in_the_handshake_ends_the_connection(events: tuple[Event, ...]) -> None:
    state = course(*events)
    for name in ("bad-version", "unsupported-extension", "bad-handshake"):
        assert after(state, error_event(Error(name))) is State.CLOSED


@pytest.mark.rule("MICROMSG-100", "MICROMSG-169")
def test_later_errors_end_it_or_not_by_their_name() -> None:
    assert after(State.ESTABLISHED, error_event(Error("bad-frame"))) is State.CLOSED
    assert after(State.ESTABLISHED, error_event(Error("forbidden"))) is State.ESTABLISHED
    assert after(State.ESTABLISHED, error_event(Error("new-name"))) is State.CLOSED


def test_nothing_follows_the_end() -> None:
    assert {event for state, event in TRANSITIONS if state is State.CLOSED} == {Event.LOST}
    assert all((state, Event.LOST) in TRANSITIONS for state in State)
