"""The two ends of an FMQP connection: what each may send, and what becomes of what it may not."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp.connection import Connection
from polywire.protocols.fmqp.errors import LocalProtocolError
from polywire.protocols.fmqp.frames import FEEDBACK, Publication, Subscription, Unsubscription, encode
from polywire.wire.frame import Discarded, Frame, Role, Run
from tests.protocols.fmqp import strategies

OTHER = {Role.CLIENT: Role.SERVER, Role.SERVER: Role.CLIENT}


def events(connection: Connection) -> list[Frame | Run]:
    return list(iter(connection.next_event, None))


@pytest.mark.rule("FMQP-02")
def test_a_client_publishes_and_subscribes_and_the_broker_publishes() -> None:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    sent = [Subscription("a"), Publication("a", b"1"), Subscription("a", FEEDBACK), Unsubscription("a")]
    server.receive(b"".join(map(client.send, sent)))
    assert events(server) == sent
    answered = [Publication("a", b"1"), Publication("a", b"", FEEDBACK)]
    client.receive(b"".join(map(server.send, answered)))
    assert events(client) == answered


@pytest.mark.parametrize(
    ("sender", "frame", "rule"),
    [
        pytest.param(
            Role.CLIENT, Publication("a", b"1", FEEDBACK), "FMQP-31", marks=pytest.mark.rule("FMQP-31", "FMQP-35")
        ),
        pytest.param(Role.SERVER, Subscription("a"), "FMQP-02", marks=pytest.mark.rule("FMQP-02", "FMQP-35")),
        pytest.param(Role.SERVER, Unsubscription("a"), "FMQP-02", marks=pytest.mark.rule("FMQP-02", "FMQP-35")),
    ],
)
def test_what_an_end_may_not_send_is_neither_sent_nor_accepted(sender: Role, frame: Frame, rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Connection(sender).send(frame)
    assert caught.value.rule == rule
    receiver = Connection(OTHER[sender])
    receiver.receive(encode(frame) + encode(Publication("b", b"2")))
    discarded, following = events(receiver)
    assert isinstance(discarded, Discarded)
    assert (discarded.rule, discarded.raw, discarded.size) == (rule, encode(frame), len(encode(frame)))
    assert following == Publication("b", b"2")


def test_events_wait_until_they_are_asked_for_and_stay_in_order() -> None:
    server = Connection(Role.SERVER)
    server.receive(encode(Publication("a", b"1")) + encode(Publication("a", b"2")))
    assert server.next_event() == Publication("a", b"1")
    server.receive(encode(Publication("a", b"3")) + encode(Publication("a", b"4"))[:5])
    assert events(server) == [Publication("a", b"2"), Publication("a", b"3")]
    assert server.pending() == 5


def test_a_chunk_is_not_kept_once_its_events_were_asked_for() -> None:
    server = Connection(Role.SERVER)
    chunk = encode(Publication("a", b"1")) * 100
    before = sys.getrefcount(chunk)
    server.receive(chunk, {b"a": 1}, lambda topic: topic)
    assert len(events(server)) == 1
    assert sys.getrefcount(chunk) == before


@given(st.lists(strategies.frames, max_size=6), st.integers(1, 40))
def test_runs_are_the_events_of_plain_publications(frames: list[Frame], size: int) -> None:
    wire = b"".join(map(encode, frames))
    one_by_one, in_runs = Connection(Role.SERVER), Connection(Role.SERVER)
    found: list[Frame | Run] = []
    for start in range(0, len(wire), size):
        one_by_one.receive(wire[start : start + size])
        in_runs.receive(wire[start : start + size], {}, lambda topic: topic)
        for event in events(in_runs):
            if isinstance(event, Run):
                run = Connection(Role.SERVER)
                run.receive(event.octets())
                found += events(run)
            else:
                found.append(event)
    assert found == events(one_by_one)
