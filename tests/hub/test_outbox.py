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


def test_a_message_in_many_parts_is_taken_whole_or_not_at_all() -> None:
    loop = Loop()
    link = slow(loop)
    written = link.outbox.size()
    assert not link.outbox.offer_all([b"head", memoryview(b"body"), b"end"])
    assert link.outbox.size() == written
    fast = FakeLink(loop, cap=10)
    assert fast.outbox.offer_all([b"head", memoryview(b"body"), b"end"])
    assert fast.outbox.reply_all([b"re", memoryview(b"ply")])
    loop.turn()
    assert b"".join(fast.writes) == b"headbodyendreply"
    fast.outbox.close()
    assert not fast.outbox.offer_all([b"late"])


def test_a_message_in_two_parts_is_taken_whole_or_not_at_all() -> None:
    loop = Loop()
    link = FakeLink(loop, cap=10)
    assert link.outbox.offer_pair(b"head", b"body")
    loop.turn()
    assert link.writes == [b"headbody"]
    late = slow(loop)
    size = late.outbox.size()
    assert not late.outbox.offer_pair(b"head", b"body" * 100)
    assert late.outbox.size() == size
    late.outbox.close()
    assert not late.outbox.offer_pair(b"head", b"body")


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


def test_a_publisher_goes_on_though_the_transport_stalls_again() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    link = stalled(loop)
    loop.flusher.source = publisher
    assert link.outbox.offer(b"+")
    link.outbox.drain()
    assert (publisher.paused, link.outbox.size()) == (0, 0)
    link.outbox.drain()
    assert publisher.paused == 0


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


def test_block_takes_the_rest_of_what_a_publisher_has_sent_already() -> None:
    loop = Loop()
    publisher = FakeLink(loop)
    link = stalled(loop, policy=BLOCK)
    loop.flusher.source = publisher
    for _ in range(10):
        assert link.outbox.offer(b"x" * 10)
    assert publisher.paused == 1
    assert link.outbox.dropped == 0


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


def test_octets_that_wait_for_acknowledgements_let_the_publisher_wait_then_keep_more_out() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(50)  # the first passes whatever its size
    link.outbox.release(50)
    assert link.outbox.hold(8)
    assert link.outbox.roomy()
    assert link.outbox.hold(8)
    assert (publisher.paused, link.outbox.roomy(), link.outbox.held()) == (1, False, 16)
    loop.clock.advance(PATIENCE)
    assert publisher.paused == 0
    assert not link.outbox.hold(1)
    link.outbox.release(8)
    assert link.outbox.hold(1)


def test_a_flush_does_not_wake_who_waits_for_acknowledgements() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(8)
    assert link.outbox.hold(8)
    link.outbox.put(b"x")
    loop.turn()
    assert publisher.paused == 1
    link.outbox.release(8)
    assert publisher.paused == 0


def test_progress_earns_another_while_of_patience() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    for _ in range(3):
        assert link.outbox.hold(5)
    link.outbox.release(1)
    loop.clock.advance(PATIENCE)
    assert link.outbox.hold(1)
    loop.clock.advance(PATIENCE)
    assert not link.outbox.hold(1)


def test_holding_is_bounded_by_twice_the_cap_and_the_policy_may_disconnect() -> None:
    for policy, overflows in ((0, 0), (BLOCK, 0), (DISCONNECT, 1)):
        loop = Loop()
        link = FakeLink(loop, cap=10, policy=policy)
        assert [link.outbox.hold(5) for _ in range(6)] == [True] * 4 + [False] * 2
        assert link.overflows == overflows


def test_what_waits_since_an_earlier_connection_comes_on_top_of_the_cap() -> None:
    link = FakeLink(Loop(), cap=10)
    link.outbox.keep(100)
    assert link.outbox.hold(5)
    assert not link.paused
    link.outbox.close()
    assert link.outbox.held() == 0


def test_whoever_waits_for_acknowledgements_goes_on_when_the_connection_ends() -> None:
    loop = Loop()
    link, publisher = FakeLink(loop, cap=10), FakeLink(loop)
    loop.flusher.source = publisher
    assert link.outbox.hold(10)
    assert link.outbox.hold(1)
    link.outbox.close()
    assert publisher.paused == 0
