"""Queues over sABC: one receiver each, acknowledged by any answer, redelivered without."""

import pytest

from polywire.hub.peer import Limits
from tests.protocols.sabc.clients import Speaker, error, is_ok, value
from tests.sessions import Site


def bodies(speaker: Speaker) -> list[bytes]:
    return [message.body for message in speaker.messages() if message.ref_msg_id is None]


@pytest.mark.rule("SABC-114", "SABC-115")
def test_a_queues_message_is_acknowledged_by_an_answer() -> None:
    site = Site()
    client, worker = Speaker(site), Speaker(site)
    assert is_ok(worker.ask("msg-id::s", "op::subscribe", "destination::queue/jobs"), "s")
    assert is_ok(client.ask("msg-id::1", "destination::queue/jobs", "k::v", body="job"), "1")
    assert worker.heard() == (
        "MESSAGE\nsession-id::@@\nsubscription::s\nmsg-id::1\ndestination::queue/jobs\nk::v\n\njob\n\n^@"
    )
    assert len(site.hub.queue("jobs")) == 1
    assert worker.sabc.busy()
    assert worker.ask("ref-msg-id::1", body="OK") == []
    assert not worker.sabc.busy()
    assert len(site.hub.queue("jobs")) == 0


@pytest.mark.rule("SABC-115")
def test_an_error_acknowledges_too() -> None:
    site = Site()
    worker = Speaker(site)
    worker.ask("msg-id::s", "op::subscribe", "destination::queue/jobs")
    worker.ask("msg-id::1", "destination::queue/jobs", body="job")
    worker.raw("ERROR\nsession-id::@@\nref-msg-id::1\n\nno\n\n^@")
    assert worker.got() == []
    assert len(site.hub.queue("jobs")) == 0


def test_a_queue_that_there_is_no_room_for_is_refused_and_counted_as_what_it_is() -> None:
    site = Site()
    site.hub.most_queues = 1
    worker = Speaker(site)
    assert is_ok(worker.ask("msg-id::1", "op::subscribe", "destination::queue/jobs"), "1")
    assert error(worker.ask("msg-id::2", "op::subscribe", "destination::queue/more")) == ("429", "2")
    assert error(worker.ask("msg-id::3", "destination::queue/more", body="job")) == ("429", "3")
    assert worker.wire.client.counters.dropped == {"too-many-queues": 2}


def test_what_was_not_acknowledged_goes_to_the_next_worker() -> None:
    site = Site()
    client, one, other = Speaker(site), Speaker(site), Speaker(site)
    client.ask("msg-id::1", "destination::queue/jobs", body="1")
    client.ask("msg-id::2", "destination::queue/jobs", body="2")
    one.ask("msg-id::s", "op::subscribe", "destination::queue/jobs")
    other.ask("msg-id::s", "op::subscribe", "destination::queue/jobs")
    assert other.got() == []
    one.wire.lose()
    assert bodies(other) == [b"1", b"2"]
    other.ask("msg-id::u", "op::unsubscribe", "destination::queue/jobs")
    assert site.hub.queue("jobs").waiting() == 2
    assert error(other.ask("msg-id::v", "op::unsubscribe", "destination::queue/jobs")) == ("404", "v")


def test_a_worker_holds_no_more_than_it_may_over_all_its_queues() -> None:
    site = Site()
    client, worker = Speaker(site), Speaker(site, limits=Limits(in_flight=2))
    worker.ask("msg-id::s", "op::subscribe", "destination::queue/a")
    worker.ask("msg-id::t", "op::subscribe", "destination::queue/b")
    for number in range(3):
        client.ask(f"msg-id::{number}", "destination::queue/a", body=f"a{number}")
    client.ask("msg-id::4", "destination::queue/b", body="b")
    assert [message.body for message in worker.messages()] == [b"a0", b"a1"]
    worker.ask("ref-msg-id::1")
    worker.raw("MESSAGE\nsession-id::@@\nref-msg-id::2\n\n^@")
    worker.raw("MESSAGE\nsession-id::@@\nref-msg-id::3\n\n^@")
    assert site.hub.queue("b").waiting() == 0
    assert site.hub.queue("a").waiting() == 0


def test_a_worker_that_does_not_read_is_given_no_more() -> None:
    site = Site()
    client, worker = Speaker(site), Speaker(site, cap=500)
    worker.ask("msg-id::s", "op::subscribe", "destination::queue/a")
    worker.wire.outbox.stall()
    for number in range(20):
        client.ask(f"msg-id::{number}", "destination::queue/a", body="x" * 100)
    assert site.hub.queue("a").waiting() > 10
    worker.wire.outbox.drain()
    count = 0
    while site.hub.queue("a").waiting():
        count += len(bodies(worker))
    assert count + len(bodies(worker)) == 20


def test_subscribing_again_hands_everything_out_under_the_new_subscription() -> None:
    site = Site()
    worker = Speaker(site)
    worker.ask("msg-id::s", "op::subscribe", "destination::queue/a")
    worker.ask("msg-id::1", "destination::queue/a", body="x")
    worker.ask("msg-id::t", "op::subscribe", "destination::queue/a")
    assert site.hub.queue("a").consumers() == 1
    worker.ask("ref-msg-id::1")
    assert len(site.hub.queue("a")) == 1
    worker.ask("ref-msg-id::2")
    assert len(site.hub.queue("a")) == 0


def test_a_full_queue_is_answered_with_429() -> None:
    site = Site()
    site.hub.queue_messages = 1
    client = Speaker(site)
    assert is_ok(client.ask("msg-id::1", "destination::queue/a", body="x"), "1")
    assert error(client.ask("msg-id::2", "destination::queue/a", body="x")) == ("429", "2")


def test_a_queue_is_named_in_full() -> None:
    client = Speaker(Site())
    assert error(client.ask("msg-id::1", "op::subscribe", "destination::queue/*")) == ("400", "1")


def test_an_answer_that_also_wants_one_gets_it() -> None:
    client = Speaker(Site())
    client.ask("msg-id::s", "op::subscribe", "destination::queue/a")
    client.ask("msg-id::1", "destination::queue/a", body="x")
    assert is_ok(client.ask("msg-id::2", "ref-msg-id::1"), "2")
    assert error(client.ask("msg-id::3", "ref-msg-id::1")) == ("404", "3")
    assert client.ask("ref-msg-id::1") == []
    assert client.wire.client.counters.dropped == {"unknown": 2}


def test_a_message_keeps_its_destination_and_subscription() -> None:
    client = Speaker(Site())
    client.ask("msg-id::s", "op::subscribe", "destination::queue/a")
    frames = client.ask("msg-id::1", "destination::queue/a", body="x")
    [pushed] = [frame for frame in frames if getattr(frame, "msg_id", None)]
    assert value(pushed, "destination") == "queue/a"  # type: ignore[arg-type]
    assert value(pushed, "subscription") == "s"  # type: ignore[arg-type]
