"""Sequence numbers and acks in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg.connection import Connection, ReceiveWindow, SendWindow, Terms
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import Error, Extension, Message, ack, encode, read_ack
from polywire.protocols.micromsg.text import NamedExtension, batch_ack
from tests.protocols.micromsg.pairs import events, pair, violation


def sent(window: SendWindow, count: int) -> list[int]:
    return [window.take() for _ in range(count)]


def at(sequence: int, size: int) -> SendWindow:
    """A window whose last sent and acknowledged message has this number."""
    window = SendWindow(size)
    for number in range(1, sequence + 1):
        assert window.take() == number
        assert window.acked(number) == 1
    return window


def name(error: object) -> str:
    assert isinstance(error, Error)
    return error.name


@pytest.mark.rule("MICROMSG-04", "MICROMSG-43", "MICROMSG-118", "MICROMSG-117")
def test_without_acks_messages_are_numbered_and_nothing_waits() -> None:
    window = SendWindow()
    assert sent(window, 65535) == list(range(1, 65536))
    assert sent(window, 2) == [1, 2]
    assert window.is_open()
    assert window.pending() == 0
    assert name(window.acked(1)) == "bad-ack"


@pytest.mark.rule("MICROMSG-05", "MICROMSG-44", "MICROMSG-127", "MICROMSG-06")
def test_with_ack_one_message_waits_for_the_one_before() -> None:
    window = SendWindow(1)
    assert window.take() == 1
    assert not window.is_open()
    with pytest.raises(LocalProtocolError) as caught:
        window.take()
    assert caught.value.rule == "MICROMSG-06"
    for wrong in (0, 2, 65535):
        assert name(window.acked(wrong)) == "bad-ack"
    assert window.acked(1) == 1
    assert window.take() == 2


@pytest.mark.rule("MICROMSG-06", "MICROMSG-07", "MICROMSG-45")
def test_with_batch_ack_the_sender_stops_at_the_agreed_number() -> None:
    window = SendWindow(10)
    assert sent(window, 10) == list(range(1, 11))
    assert not window.is_open()
    with pytest.raises(LocalProtocolError):
        window.take()
    assert window.pending() == 10
    assert window.acked(10) == 10
    assert sent(window, 10) == list(range(11, 21))


@pytest.mark.rule("MICROMSG-63", "MICROMSG-68", "MICROMSG-05")
def test_an_ack_stands_for_every_message_up_to_its_number() -> None:
    window = SendWindow(10)
    sent(window, 6)
    assert window.acked(4) == 4
    assert window.pending() == 2
    assert window.acked(6) == 2


@pytest.mark.rule("MICROMSG-64")
def test_an_early_ack_makes_room() -> None:
    window = SendWindow(3)
    sent(window, 2)
    assert window.acked(2) == 2
    assert sent(window, 3) == [3, 4, 5]
    assert not window.is_open()


@pytest.mark.rule("MICROMSG-69", "MICROMSG-118", "MICROMSG-47")
def test_the_documents_example_acknowledges_five_across_the_wrap() -> None:
    window = at(65533, 10)
    assert sent(window, 5) == [65534, 65535, 1, 2, 3]
    assert window.acked(3) == 5
    assert window.pending() == 0


@pytest.mark.rule("MICROMSG-128")
@pytest.mark.parametrize("number", [0, 65533, 4, 5, 65532, 30000])
def test_a_bad_ack_acknowledges_nothing(number: int) -> None:
    window = at(65533, 10)
    sent(window, 5)
    assert name(window.acked(number)) == "bad-ack"
    assert window.pending() == 5
    assert window.acked(65534) == 1
    assert window.acked(3) == 4


@pytest.mark.rule("MICROMSG-67", "MICROMSG-63")
def test_an_ack_carries_its_number_in_two_octets() -> None:
    assert ack(2, 4) == Extension(2, b"\0\x04")
    assert ack(2, 65535) == Extension(2, b"\xff\xff")
    assert read_ack(b"\x01\x02") == 258


@pytest.mark.rule("MICROMSG-168")
@pytest.mark.parametrize("payload", [b"", b"\x01", b"\0\0\x01", b"\0\0\0\x01"])
def test_an_ack_of_another_length_is_a_bad_frame(payload: bytes) -> None:
    assert name(read_ack(payload)) == "bad-frame"


@pytest.mark.rule("MICROMSG-117", "MICROMSG-124", "MICROMSG-118")
def test_a_number_that_is_not_the_next_is_a_bad_frame() -> None:
    window = ReceiveWindow()
    for number in (0, 2, 65535):
        assert name(window.received(number)) == "bad-frame"
    for number in range(1, 65536):
        assert window.received(number) is None
    assert name(window.received(0)) == "bad-frame"
    assert name(window.received(65535)) == "bad-frame"
    assert window.received(1) is None


@pytest.mark.rule("MICROMSG-125", "MICROMSG-126")
def test_a_message_past_the_window_is_refused_on_the_receiving_side_too() -> None:
    window = ReceiveWindow(2)
    assert window.received(1) is None
    assert window.received(2) is None
    assert name(window.received(3)) == "window-exceeded"
    assert window.pending() == 2
    assert window.acknowledge(1) == 1
    assert window.received(3) is None
    assert name(window.received(4)) == "window-exceeded"
    assert window.acknowledge(3) == 2


@pytest.mark.rule("MICROMSG-118", "MICROMSG-68", "MICROMSG-69")
@pytest.mark.parametrize(("number", "count"), [(65534, 1), (65535, 2), (1, 3), (3, 5)])
def test_the_receiver_acknowledges_across_the_wrap_too(number: int, count: int) -> None:
    window = ReceiveWindow(10)
    for earlier in range(1, 65534):
        assert window.received(earlier) is None
        assert window.acknowledge(earlier) == 1
    for later in (65534, 65535, 1, 2, 3):
        assert window.received(later) is None
    assert window.acknowledge(number) == count
    assert window.pending() == 5 - count


@pytest.mark.rule("MICROMSG-128")
@pytest.mark.parametrize("number", [0, 3, 65535, 65536, -1, 1 << 70])
def test_this_side_acknowledges_only_what_came(number: int) -> None:
    window = ReceiveWindow(5)
    window.received(1)
    window.received(2)
    with pytest.raises(LocalProtocolError) as caught:
        window.acknowledge(number)
    assert caught.value.rule == "MICROMSG-128"
    assert window.pending() == 2


@pytest.mark.rule("MICROMSG-113")
@pytest.mark.parametrize("size", [-1, 65535])
def test_a_window_has_at_most_65534_messages(size: int) -> None:
    for make in (SendWindow, ReceiveWindow):
        with pytest.raises(LocalProtocolError) as caught:
            make(size)
        assert caught.value.rule == "MICROMSG-113"


@pytest.mark.rule("MICROMSG-126", "MICROMSG-06", "MICROMSG-68")
@given(st.integers(1, 6), st.lists(st.integers(0, 6), max_size=60))
def test_two_windows_agree_whatever_is_sent_and_acknowledged(size: int, steps: list[int]) -> None:
    sender, receiver = SendWindow(size), ReceiveWindow(size)
    last = 0
    for step in steps:
        if step == 0 and receiver.pending():
            number = (last - receiver.pending()) % 65535 + 1
            assert sender.acked(number) == receiver.acknowledge(number) == 1
        elif sender.is_open():
            last = sender.take()
            assert receiver.received(last) is None
        else:
            assert sender.acked(last) == receiver.acknowledge(last) == size
        assert sender.pending() == receiver.pending() <= size


def test_the_number_that_is_due_is_the_one_taken_next() -> None:
    window = SendWindow()
    for _ in range(65537):
        due = window.due()
        assert window.take() == due
    assert due == 2


def acking(extension: NamedExtension) -> tuple[Connection, Connection]:
    """A client and a server that have agreed on acks."""
    return pair(Terms("c", (extension.name,), (extension,)), Terms("s", max_count=100))


def send(connection: Connection, count: int = 1) -> bytes:
    return b"".join(connection.send_message("q", b"") for _ in range(count))


@pytest.mark.rule("MICROMSG-06", "MICROMSG-45", "MICROMSG-64", "MICROMSG-68", "MICROMSG-126")
@pytest.mark.parametrize("swapped", [False, True], ids=["client", "server"])
def test_whichever_side_sends_stops_at_the_agreed_number_until_an_ack(swapped: bool) -> None:
    near, far = acking(batch_ack(3))
    sender, receiver = (far, near) if swapped else (near, far)
    assert len(events(receiver, send(sender, 3))) == 3
    with pytest.raises(LocalProtocolError) as caught:
        send(sender)
    assert caught.value.rule == "MICROMSG-06"
    assert len(events(sender, receiver.acknowledge(2))) == 1
    assert sender.acknowledged == 2
    assert len(events(receiver, send(sender, 2))) == 2
    events(sender, receiver.acknowledge(5))
    assert (sender.acknowledged, sender.outgoing.pending(), receiver.incoming.pending()) == (3, 0, 0)


@pytest.mark.rule("MICROMSG-05", "MICROMSG-44", "MICROMSG-127")
def test_with_ack_each_message_waits_for_the_one_before() -> None:
    near, far = acking(NamedExtension("ack"))
    for number in (1, 2):
        assert events(far, send(near)) == [Message(number, "q", b"")]
        with pytest.raises(LocalProtocolError):
            send(near)
        events(near, far.acknowledge(number))


@pytest.mark.rule("MICROMSG-125", "MICROMSG-124", "MICROMSG-118", "MICROMSG-128", "MICROMSG-168")
def test_who_breaks_the_rules_of_the_window_is_disconnected() -> None:
    def wrong(*frames: Message | Extension) -> str:
        _, far = acking(batch_ack(2))
        send(far)
        return violation(far, b"".join(map(encode, frames))).name

    first, second, third = (Message(number, "q", b"") for number in (1, 2, 3))
    assert wrong(first, second, third) == "window-exceeded"
    assert wrong(first, third) == "bad-frame"
    assert wrong(first, first) == "bad-frame"
    assert wrong(ack(1, 2)) == "bad-ack"
    assert wrong(ack(1, 1), ack(1, 1)) == "bad-ack"
    assert wrong(Extension(1, b"\x01")) == "bad-frame"


@pytest.mark.rule("MICROMSG-04", "MICROMSG-43")
def test_without_acks_a_connection_sends_at_any_time() -> None:
    near, far = pair()
    assert len(events(far, send(near, 1000))) == 1000


@pytest.mark.rule("MICROMSG-118", "MICROMSG-128")
def test_this_side_keeps_to_the_rules_of_the_window_too() -> None:
    near, _ = acking(batch_ack(2))
    for frame in (Message(2, "q", b""), ack(1, 1), Extension(1, b"")):
        with pytest.raises(LocalProtocolError):
            near.send(frame)
    assert near.send(Message(1, "q", b"")) == encode(Message(1, "q", b""))
