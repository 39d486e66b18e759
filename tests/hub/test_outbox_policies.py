"""Outboxes with policies of their own for replies and for queues' messages."""

import pytest

from polywire.hub.outbox import BLOCK, DISCONNECT, DROP, NOTICE, PATIENCE, SLICE, Outbox
from tests.hub.links import FakeLink, Loop


def stalled(loop: Loop, *, policy: int = DROP, replies: int = BLOCK, queues: int = BLOCK) -> FakeLink:
    """A link whose transport takes nothing, with a full outbox behind it."""
    link = FakeLink(loop, cap=10)
    link.outbox = Outbox(link, loop.flusher, cap=10, policy=policy, replies=replies, queues=queues)
    link.stall_next = True
    link.outbox.push(b"first")
    loop.turn()
    link.outbox.push(b"0123456789")
    return link


def test_a_reply_is_kept_whatever_its_size_unless_the_policy_drops_it() -> None:
    link = stalled(Loop())
    assert link.outbox.reply(b"head", b"body" * 100)
    assert (link.outbox.size(), link.paused) == (414, 1)


@pytest.mark.parametrize("policy", [DROP, BLOCK])
def test_replies_are_dropped_once_patience_has_ended_whatever_holds_for_topics(policy: int) -> None:
    loop = Loop()
    link, provider = stalled(loop, policy=policy, replies=DROP), FakeLink(loop)
    loop.flusher.source = provider
    assert link.outbox.reply(b"+")
    assert provider.paused == 1
    loop.clock.advance(PATIENCE)
    assert provider.paused == 0
    assert not link.outbox.reply(b"head", b"body")
    assert not link.outbox.reply_all([b"head", memoryview(b"body")])
    assert (link.outbox.size(), link.overflows) == (11, 0)
    link.stall_next = False
    link.outbox.drain()
    assert link.outbox.reply(b"head", b"body")


def test_what_is_no_reply_is_kept_though_replies_are_dropped() -> None:
    loop = Loop()
    link = stalled(loop, replies=DROP)
    link.outbox.reply(b"+")
    loop.clock.advance(PATIENCE)
    link.outbox.put(b"ack")
    assert (link.outbox.size(), link.paused) == (14, 1)


def test_a_peer_that_leaves_replies_lying_is_disconnected_after_a_while() -> None:
    loop = Loop()
    link = stalled(loop, replies=DISCONNECT)
    assert link.outbox.reply(b"reply")
    loop.clock.advance(NOTICE / 2)
    assert (link.overflows, link.paused) == (0, 1)
    loop.clock.advance(NOTICE / 2)
    assert link.overflows == 1
    assert not link.outbox.offer(b"late")
    link.outbox.put(b"late")
    link.outbox.close()
    assert (link.overflows, link.paused) == (1, 0)


def test_a_peer_that_takes_its_replies_in_time_stays() -> None:
    loop = Loop()
    link = stalled(loop, replies=DISCONNECT)
    link.outbox.put(b"reply")
    link.outbox.drain()
    loop.clock.advance(NOTICE)
    assert link.overflows == 0


def test_many_replies_in_one_turn_disconnect_nobody() -> None:
    loop = Loop()
    link = FakeLink(loop)
    link.outbox = Outbox(link, loop.flusher, cap=10, replies=DISCONNECT, queues=DISCONNECT)
    for _ in range(10):
        link.outbox.put(b"0123456789")
    assert not link.outbox.takes_queued()
    loop.turn()
    loop.clock.advance(NOTICE)
    assert (link.overflows, link.outbox.takes_queued()) == (0, True)


def test_a_reader_that_takes_a_little_is_given_as_long_again() -> None:
    loop = Loop()
    link = stalled(loop, replies=DISCONNECT)
    link.outbox.put(bytes(4 * SLICE))
    for _ in range(5):
        loop.clock.advance(NOTICE * 0.75)
        link.outbox.drain()
    loop.clock.advance(NOTICE)
    assert (link.overflows, link.outbox.size()) == (0, 0)
    assert b"".join(link.writes[1:]) == b"0123456789" + bytes(4 * SLICE)


def test_a_reader_that_takes_a_little_and_then_nothing_is_disconnected() -> None:
    loop = Loop()
    link = stalled(loop, queues=DISCONNECT)
    link.outbox.push(bytes(4 * SLICE))
    assert not link.outbox.takes_queued()
    loop.clock.advance(NOTICE * 0.75)
    link.outbox.drain()
    loop.clock.advance(NOTICE * 0.75)
    assert link.overflows == 0
    loop.clock.advance(NOTICE * 0.75)
    assert link.overflows == 1


def test_the_transport_is_given_slices_until_it_stalls_and_everything_at_the_end() -> None:
    loop = Loop()
    link = FakeLink(loop)
    body = bytes(range(256)) * (SLICE // 256)
    for piece in (b"a", body * 3, b"b" * 10_000, b"c" * 10_000, body):
        link.outbox.push(piece)
    link.stall_next = True
    loop.turn()
    assert link.writes == [b"a"]
    link.outbox.drain()
    assert link.writes[1:] == [body]
    link.stall_next = False
    link.outbox.drain()
    assert link.writes[2:] == [body, body, b"b" * 10_000 + b"c" * 10_000, body]
    link.stall_next = True
    link.outbox.push(body * 3)
    loop.turn()
    link.outbox.finish()
    assert link.writes[6:] == [body, body * 2]
    assert (link.outbox.size(), link.outbox.written) == (0, 1 + 20_000 + 7 * SLICE)


@pytest.mark.parametrize(("queues", "overflows"), [(BLOCK, 0), (DISCONNECT, 1)])
def test_a_reader_that_keeps_a_queue_waiting_is_disconnected_where_that_is_the_policy(
    queues: int, overflows: int
) -> None:
    loop = Loop()
    link = stalled(loop, queues=queues)
    assert not link.outbox.takes_queued()
    loop.clock.advance(NOTICE)
    assert link.overflows == overflows
    assert link.paused == 0


def test_a_reader_nobody_asks_for_room_is_left_alone() -> None:
    loop = Loop()
    link = stalled(loop, replies=DISCONNECT, queues=DISCONNECT)
    link.outbox.push(b"more")
    loop.clock.advance(NOTICE)
    assert link.overflows == 0


def test_a_connection_that_has_ended_takes_nothing_from_queues() -> None:
    link = FakeLink(Loop())
    assert link.outbox.takes_queued()
    link.outbox.close()
    assert not link.outbox.takes_queued()
