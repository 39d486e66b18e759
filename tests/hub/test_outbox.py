"""Outboxes: one write per turn, a cap, and three policies for a slow reader."""

from polywire.hub.outbox import BLOCK, CHANNELS_COUNTED, DISCONNECT, PATIENCE
from tests.hub.links import FakeLink, Loop


def stalled(loop: Loop, *, policy: int = 0) -> FakeLink:
    """A link whose transport takes nothing, with a full outbox behind it."""
    link = FakeLink(loop, cap=10, policy=policy)
    link.stall_next = True
    link.outbox.offer(b"first")
    loop.turn()
    assert link.outbox.offer(b"0123456789")
    return link


def slow(loop: Loop, *, policy: int = 0) -> FakeLink:
    """A link whose reader has taken nothing for so long that its policy holds."""
    link = stalled(loop, policy=policy)
    assert link.outbox.offer(b"+")
    loop.clock.advance(PATIENCE)
    return link


def test_everything_of_one_turn_is_written_at_once() -> None:
    loop = Loop()
    link = FakeLink(loop)
    link.outbox.offer(b"a")
    link.outbox.put(b"b")
    link.outbox.offer(memoryview(b"c"))
    assert link.writes == []
    loop.turn()
    assert link.writes == [b"abc"]
    assert (link.outbox.size(), link.outbox.written) == (0, 3)


def test_two_outboxes_share_one_turn() -> None:
    loop = Loop()
    one, other = FakeLink(loop), FakeLink(loop)
    one.outbox.offer(b"x")
    other.outbox.offer(b"y")
    assert len(loop.soon) == 1
    loop.turn()
    assert (one.writes, other.writes) == ([b"x"], [b"y"])


def test_a_rich_turn_over_the_cap_loses_nothing_while_the_transport_takes_it() -> None:
    loop = Loop()
    link = FakeLink(loop, cap=10)
    assert all(link.outbox.offer(b"12345") for _ in range(20))
    loop.turn()
    assert b"".join(link.writes) == b"12345" * 20


def test_a_message_larger_than_the_cap_passes_when_nothing_waits() -> None:
    loop = Loop()
    link = FakeLink(loop, cap=10)
    assert link.outbox.offer(b"x" * 50)


def test_drop_keeps_newer_messages_out() -> None:
    loop = Loop()
    link = slow(loop)
    assert not link.outbox.offer(b"lost")
    link.stall_next = False
    link.outbox.drain()
    assert link.writes == [b"first", b"0123456789+"]
    assert link.outbox.offer(b"again")


def test_a_burst_waits_for_its_reader_and_loses_nothing() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    link = stalled(loop)
    loop.flusher.source = publisher
    assert link.outbox.offer(b"+")
    assert publisher.paused == 1
    link.stall_next = False
    link.outbox.drain()
    assert publisher.paused == 0
    assert all(alarm.cancelled for alarm in loop.clock.alarms)


def test_nobody_waits_for_a_reader_that_has_taken_nothing_for_long() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    loop.flusher.source = publisher
    link = slow(loop)
    assert publisher.paused == 0
    assert not link.outbox.offer(b"lost")
    assert publisher.paused == 0


def test_disconnect_ends_the_connection_once() -> None:
    loop = Loop()
    link = slow(loop, policy=DISCONNECT)
    assert not link.outbox.offer(b"lost")
    assert not link.outbox.offer(b"lost")
    assert link.overflows == 1


def test_block_pauses_the_publisher_until_there_is_room() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    link = stalled(loop, policy=BLOCK)
    loop.flusher.source = publisher
    assert link.outbox.offer(b"kept")
    assert link.outbox.offer(b"kept")
    assert publisher.paused == 1
    link.stall_next = False
    link.outbox.drain()
    assert publisher.paused == 0
    assert link.writes[-1] == b"0123456789keptkept"


def test_block_has_a_last_limit() -> None:
    loop = Loop()
    link = stalled(loop, policy=BLOCK)
    assert link.outbox.offer(b"x" * 10)
    assert not link.outbox.offer(b"y")


def test_replies_over_the_cap_pause_the_peer_that_does_not_take_them() -> None:
    loop = Loop()
    link = stalled(loop)
    link.outbox.put(b"reply")
    assert link.paused == 1
    link.outbox.put(b"reply")
    assert link.paused == 1
    link.stall_next = False
    link.outbox.drain()
    assert link.paused == 0
    assert link.writes[-1] == b"0123456789replyreply"


def test_closing_frees_whoever_waits_and_takes_nothing_more() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    link = stalled(loop, policy=BLOCK)
    loop.flusher.source = publisher
    link.outbox.offer(b"kept")
    link.outbox.close()
    assert publisher.paused == 0
    assert not link.outbox.offer(b"late")
    link.outbox.put(b"late")
    loop.turn()
    assert link.writes == [b"first"]


def test_drops_are_counted_by_channel_up_to_a_bound() -> None:
    link = FakeLink(Loop())
    for number in range(CHANNELS_COUNTED + 5):
        link.outbox.count_dropped(f"c{number}", 2)
    assert link.outbox.dropped == 2 * (CHANNELS_COUNTED + 5)
    assert link.outbox.dropped_by_channel["c0"] == 2
    assert link.outbox.dropped_by_channel[""] == 10


def test_what_a_session_keeps_back_counts_and_publishers_wait_for_it_a_moment() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10, policy=BLOCK), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(8)
    assert publisher.paused == 0
    assert link.outbox.hold(8)
    assert link.outbox.hold(4)
    assert publisher.paused == 1
    assert not link.outbox.hold(1)  # twice the cap
    link.outbox.put(b"reply")
    loop.turn()
    assert publisher.paused == 1  # a reply that was written makes no room
    link.outbox.release(12)
    assert publisher.paused == 0
    loop.clock.advance(PATIENCE)
    assert link.outbox.hold(8)
    assert publisher.paused == 1


def test_a_peer_that_lets_messages_be_kept_back_too_long_is_waited_for_no_more_until_it_caught_up() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(10)
    assert link.outbox.hold(1)
    loop.clock.advance(PATIENCE)
    assert publisher.paused == 0
    assert not link.outbox.hold(1)
    link.outbox.release(5)
    assert link.outbox.hold(4)
    assert not link.outbox.hold(1)
    assert publisher.paused == 0
    link.outbox.release(10)
    assert link.outbox.hold(10)
    assert link.outbox.hold(1)
    assert publisher.paused == 1


def test_nobody_waits_for_what_is_kept_back_from_himself() -> None:
    loop = Loop()
    link = FakeLink(loop, cap=10)
    loop.flusher.source = link
    assert link.outbox.hold(100)  # the first is always let in
    assert not link.outbox.hold(1)
    assert link.paused == 0


def test_too_much_kept_back_can_cost_the_connection() -> None:
    loop = Loop()
    link = FakeLink(loop, cap=10, policy=DISCONNECT)
    assert link.outbox.hold(10)
    assert not link.outbox.hold(1)
    assert link.overflows == 1


def test_a_closed_outbox_holds_nothing_and_lets_publishers_go_on() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(10)
    assert link.outbox.hold(1)
    link.outbox.close()
    assert publisher.paused == 0
    assert not link.outbox.hold(1)
    link.outbox.release(11)
    assert link.outbox.size() == 0
