"""Packet ids, and who owes whom which acknowledgement."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from polywire.protocols.mqtt import (
    LocalProtocolError,
    PacketIds,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Receipt,
    Receiver,
    RemoteProtocolError,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    suback,
    unsuback,
)
from polywire.protocols.mqtt.connection import RECEIVER, SENDER, Acknowledgement, footprint
from polywire.protocols.mqtt.frames import NAMES, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK
from polywire.wire.frame import Frame


def published(sender: Sender, qos: int, topic: str = "a") -> int:
    number = sender.publish(topic, b"x", qos).packet_id
    assert number is not None
    return number


@pytest.mark.rule("MQTT-017", "MQTT-018", "MQTT-019")
def test_an_id_is_never_given_twice_while_it_is_in_use() -> None:
    ids = PacketIds()
    assert [ids.take() for _ in range(65535)] == list(range(1, 65536))
    with pytest.raises(LocalProtocolError) as caught:
        ids.take()
    assert caught.value.rule == "MQTT-182"
    ids.free(300)
    ids.free(7)
    assert sorted([ids.take(), ids.take()]) == [7, 300]
    assert len(ids) == 65535
    assert 7 in ids


@pytest.mark.rule("MQTT-018", "MQTT-019")
def test_ids_go_round_so_that_a_freed_one_comes_last() -> None:
    ids = PacketIds()
    first = ids.take()
    ids.free(first)
    ids.free(first)
    assert ids.take() == first + 1
    assert [ids.take() for _ in range(65534)][-1] == first


@pytest.mark.rule("MQTT-182")
@pytest.mark.parametrize("most", [0, -1, 65536])
def test_the_limit_of_ids_is_one_that_can_be(most: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 65535"):
        PacketIds(most=most)


@pytest.mark.rule("MQTT-018", "MQTT-020", "MQTT-021", "MQTT-019")
def test_publications_subscriptions_and_unsubscriptions_share_the_ids_of_their_side() -> None:
    sender = Sender()
    numbers = [
        published(sender, 1),
        published(sender, 2),
        sender.subscribe((("a", 0),)).packet_id,
        sender.unsubscribe(("a",)).packet_id,
    ]
    assert len(set(numbers)) == 4
    assert sender.in_flight() == 4
    answers: list[Acknowledgement] = [
        *(Puback(numbers[0]), Pubrec(numbers[1]), Pubcomp(numbers[1])),
        *(Suback(numbers[2], (0,)), Unsuback(numbers[3])),
    ]
    for frame in answers:
        sender.acknowledged(frame)
    assert sender.in_flight() == 0
    assert sender.resume() == []


@pytest.mark.rule("MQTT-025")
def test_both_directions_may_use_the_same_id_at_once() -> None:
    sender, receiver = Sender(), Receiver()
    number = published(sender, 2)
    assert receiver.published(Publish("b", b"", 2, packet_id=number)) == Receipt(new=True, reply=Pubrec(number))
    assert sender.acknowledged(Pubrec(number)) == Pubrel(number)
    assert receiver.released(Pubrel(number)) == Pubcomp(number)
    assert sender.in_flight() == 1


@pytest.mark.rule("MQTT-141", "MQTT-102", "MQTT-022", "MQTT-087")
def test_qos_0_is_sent_once_and_forgotten() -> None:
    sender = Sender()
    assert sender.publish("a", b"x", 0, retain=True) == Publish("a", b"x", 0, retain=True, dup=False, packet_id=None)
    assert (sender.in_flight(), sender.resume()) == (0, [])
    assert Receiver().published(Publish("a", b"x")) == Receipt(new=True, reply=None)


@pytest.mark.rule("MQTT-142", "MQTT-023", "MQTT-086")
def test_qos_1_is_kept_until_its_puback() -> None:
    sender = Sender()
    first, second = sender.publish("a", b"1", 1), sender.publish("a", b"2", 1, retain=True)
    assert (first.dup, second.dup, first.qos, second.retain) == (False, False, 1, True)
    assert first.packet_id != second.packet_id
    assert sender.acknowledged(Puback(first.packet_id or 0)) is None
    assert sender.resume() == [Publish("a", b"2", 1, retain=True, dup=True, packet_id=second.packet_id)]
    assert sender.in_flight() == 1


@pytest.mark.rule("MQTT-143", "MQTT-102", "MQTT-023", "MQTT-148")
@pytest.mark.parametrize("dup", [False, True])
def test_qos_1_is_acknowledged_and_new_each_time_it_comes(dup: bool) -> None:
    receiver = Receiver()
    for _ in range(2):
        assert receiver.published(Publish("a", b"", 1, retain=False, dup=dup, packet_id=5)) == Receipt(
            new=True, reply=Puback(5)
        )
    assert len(receiver.held()) == 0


@pytest.mark.rule("MQTT-144", "MQTT-023", "MQTT-019")
def test_qos_2_goes_from_publish_to_pubrel_to_pubcomp() -> None:
    sender = Sender()
    frame = sender.publish("a", b"x", 2)
    number = frame.packet_id or 0
    assert frame == Publish("a", b"x", 2, retain=False, dup=False, packet_id=number)
    assert sender.resume() == [Publish("a", b"x", 2, retain=False, dup=True, packet_id=number)]
    assert sender.acknowledged(Pubrec(number)) == Pubrel(number)
    assert sender.resume() == [Pubrel(number)]
    assert sender.acknowledged(Pubrec(number)) == Pubrel(number)
    assert sender.in_flight() == 1
    assert sender.acknowledged(Pubcomp(number)) is None
    assert (sender.in_flight(), sender.resume()) == (0, [])


@pytest.mark.rule("MQTT-145", "MQTT-102", "MQTT-023", "MQTT-148")
def test_qos_2_is_handed_on_once_until_it_is_released() -> None:
    receiver = Receiver()
    frame = Publish("a", b"x", 2, packet_id=5)
    again = Publish("a", b"x", 2, retain=False, dup=True, packet_id=5)
    assert receiver.published(frame) == Receipt(new=True, reply=Pubrec(5))
    assert receiver.published(again) == Receipt(new=False, reply=Pubrec(5))
    assert receiver.published(frame) == Receipt(new=False, reply=Pubrec(5))
    assert len(receiver.held()) == 1
    assert receiver.released(Pubrel(5)) == Pubcomp(5)
    assert len(receiver.held()) == 0
    assert receiver.published(again) == Receipt(new=True, reply=Pubrec(5))


@pytest.mark.rule("MQTT-020", "MQTT-086", "MQTT-088", "MQTT-146", "MQTT-149", "MQTT-152")
def test_what_is_unacknowledged_is_sent_again_in_order_with_its_ids() -> None:
    sender = Sender()
    frames = [sender.publish("a", bytes((at,)), 1 + at % 2) for at in range(8)]
    for at in (5, 1, 3):  # PUBRECs, in this order
        assert sender.acknowledged(Pubrec(frames[at].packet_id or 0)) == Pubrel(frames[at].packet_id or 0)
    sender.acknowledged(Puback(frames[2].packet_id or 0))
    expected: list[Frame] = [Pubrel(frames[at].packet_id or 0) for at in (5, 1, 3)]
    expected += [
        Publish("a", bytes((at,)), 1 + at % 2, retain=False, dup=True, packet_id=frames[at].packet_id)
        for at in (0, 4, 6, 7)
    ]
    assert sender.resume() == expected
    assert sender.resume() == expected
    assert not any(frame.dup for frame in frames)


@pytest.mark.rule("MQTT-021", "MQTT-146")
def test_an_id_that_is_sent_again_stays_in_use() -> None:
    sender = Sender(max_in_flight=3)
    waiting = {published(sender, 1), published(sender, 2)}
    sender.resume()
    assert published(sender, 1) not in waiting


@pytest.mark.rule("MQTT-088")
def test_dup_of_what_comes_in_does_not_matter_to_what_goes_out() -> None:
    sender = Sender()
    incoming = Publish("a", b"x", 1, retain=False, dup=True, packet_id=9)
    assert sender.publish(incoming.topic, incoming.payload, incoming.qos).dup is False


@pytest.mark.rule("MQTT-146")
def test_subscriptions_are_not_sent_again_and_their_ids_are_free() -> None:
    sender = Sender(max_in_flight=3)
    sender.subscribe((("a", 0),))
    sender.unsubscribe(("a",))
    number = published(sender, 1)
    assert sender.resume() == [Publish("a", b"x", 1, retain=False, dup=True, packet_id=number)]
    assert sender.in_flight() == 1


@pytest.mark.rule("MQTT-150", "MQTT-151")
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=20))
def test_replies_come_in_the_order_of_the_publications(incoming: list[tuple[int, int]]) -> None:
    receiver = Receiver()
    replies = [
        receiver.published(Publish("a", b"", qos, packet_id=number if qos else None)).reply for qos, number in incoming
    ]
    assert replies == [None if qos == 0 else Puback(number) if qos == 1 else Pubrec(number) for qos, number in incoming]


@pytest.mark.rule("MQTT-152")
@given(st.permutations(range(6)))
def test_pubrels_come_in_the_order_of_the_pubrecs(order: list[int]) -> None:
    sender = Sender()
    numbers = [published(sender, 2) for _ in range(6)]
    expected = [Pubrel(numbers[at]) for at in order]
    assert [sender.acknowledged(Pubrec(numbers[at])) for at in order] == expected
    assert sender.resume() == expected


@pytest.mark.rule("MQTT-185")
def test_an_acknowledgement_nobody_waits_for_is_ignored_but_lets_the_other_side_finish() -> None:
    sender, receiver = Sender(), Receiver()
    strays: list[Acknowledgement] = [Puback(9), Pubcomp(9), Suback(9, (0,)), Unsuback(9)]
    assert [sender.acknowledged(frame) for frame in strays] == [None] * 4
    assert sender.acknowledged(Pubrec(9)) == Pubrel(9)
    assert receiver.released(Pubrel(9)) == Pubcomp(9)
    assert (sender.in_flight(), len(receiver.held())) == (0, 0)


@pytest.mark.rule("MQTT-186", "MQTT-023", "MQTT-024")
@pytest.mark.parametrize("waiting", [PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK])
@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK])
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection_and_changes_nothing(waiting: int, kind: int) -> None:
    sender = Sender()
    if waiting == SUBACK:
        number = sender.subscribe((("a", 0),)).packet_id
    elif waiting == UNSUBACK:
        number = sender.unsubscribe(("a",)).packet_id
    else:
        number = published(sender, 1 if waiting == PUBACK else 2)
        if waiting == PUBCOMP:
            sender.acknowledged(Pubrec(number))
    frames: dict[int, Acknowledgement] = {
        PUBACK: Puback(number),
        PUBREC: Pubrec(number),
        PUBCOMP: Pubcomp(number),
        SUBACK: Suback(number, (0,)),
        UNSUBACK: Unsuback(number),
    }
    frame = frames[kind]
    if (waiting, kind) in SENDER:
        sender.acknowledged(frame)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        sender.acknowledged(frame, position=77)
    assert (caught.value.rule, caught.value.position, caught.value.reply) == ("MQTT-186", 77, None)
    assert NAMES[waiting] in caught.value.reason
    assert NAMES[kind] in caught.value.reason
    assert sender.in_flight() == 1


@pytest.mark.rule("MQTT-186", "MQTT-117")
@pytest.mark.parametrize("codes", [(0,), (0, 1, 2)])
def test_a_suback_must_have_a_return_code_for_each_filter(codes: tuple[int, ...]) -> None:
    sender = Sender()
    frame = sender.subscribe((("a", 1), ("b", 1)))
    with pytest.raises(RemoteProtocolError) as caught:
        sender.acknowledged(Suback(frame.packet_id, codes))
    assert caught.value.rule == "MQTT-186"
    assert sender.in_flight() == 1
    sender.acknowledged(Suback(frame.packet_id, (1, 128)))
    assert sender.in_flight() == 0


@pytest.mark.rule("MQTT-024", "MQTT-114", "MQTT-117", "MQTT-119")
def test_a_suback_answers_each_filter_in_order_under_the_same_id() -> None:
    frame = Subscribe(10, (("a", 1), ("b", 2), ("c", 0), ("d", 2)))
    assert suback(frame, (1, 0, 0, 128)) == Suback(10, (1, 0, 0, 128))


@pytest.mark.rule("MQTT-117", "MQTT-120")
@pytest.mark.parametrize("codes", [(), (1,), (1, 1, 1), (2, 1), (1, -1), (1, 3), (1, 127)])
def test_a_suback_that_does_not_fit_its_subscribe_is_not_made(codes: tuple[int, ...]) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        suback(Subscribe(10, (("a", 1), ("b", 2))), codes)
    assert caught.value.rule == "MQTT-117"


@pytest.mark.rule("MQTT-024", "MQTT-129")
def test_an_unsuback_has_the_id_of_its_unsubscribe() -> None:
    assert unsuback(Unsubscribe(10, ("a",))) == Unsuback(10)


@pytest.mark.rule("MQTT-182")
def test_one_packet_in_flight_too_many_is_not_sent_and_changes_nothing() -> None:
    sender = Sender(max_in_flight=2)
    first = published(sender, 1)
    published(sender, 2)
    for attempt in (
        lambda: sender.publish("a", b"", 1),
        lambda: sender.subscribe((("a", 0),)),
        lambda: sender.unsubscribe(("a",)),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            attempt()
        assert caught.value.rule == "MQTT-182"
        assert "2" in caught.value.reason
    assert (sender.in_flight(), len(sender.resume())) == (2, 2)
    assert sender.publish("a", b"", 0).packet_id is None
    sender.acknowledged(Puback(first))
    assert published(sender, 1) != first


@pytest.mark.rule("MQTT-089")
@pytest.mark.parametrize("qos", [3, -1])
def test_there_is_no_other_qos_to_send_with(qos: int) -> None:
    sender = Sender()
    with pytest.raises(LocalProtocolError):
        sender.publish("a", b"", qos)
    assert sender.in_flight() == 0


@pytest.mark.rule("MQTT-183")
def test_one_message_held_too_many_ends_the_connection() -> None:
    receiver = Receiver(max_held=2)
    for number in (1, 2):
        receiver.published(Publish("a", b"", 2, packet_id=number))
    assert receiver.published(Publish("a", b"", 2, packet_id=2)).new is False
    with pytest.raises(RemoteProtocolError) as caught:
        receiver.published(Publish("a", b"", 2, packet_id=3), position=5)
    assert (caught.value.rule, caught.value.position, len(receiver.held())) == ("MQTT-183", 5, 2)
    receiver.released(Pubrel(1))
    assert receiver.published(Publish("a", b"", 2, packet_id=3)).new is True


def test_the_tables_cover_every_case() -> None:
    assert {waiting for waiting, _ in SENDER} == {PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK}
    assert set(RECEIVER) == {(held, kind) for held in (False, True) for kind in (PUBLISH, PUBREL)}


@pytest.mark.rule("MQTT-018", "MQTT-020", "MQTT-146")
def test_a_session_goes_on_in_a_later_life_where_the_earlier_one_ended() -> None:
    earlier = Sender()
    numbers = [published(earlier, qos) for qos in (2, 1, 2)]
    earlier.acknowledged(Pubrec(numbers[2]))
    later = Sender(max_in_flight=4, unfinished=earlier.resume())
    assert later.resume() == earlier.resume()
    assert published(later, 1) not in numbers
    assert later.acknowledged(Pubrec(numbers[0])) == Pubrel(numbers[0])
    assert later.acknowledged(Pubcomp(numbers[2])) is None
    assert later.acknowledged(Puback(numbers[1])) is None
    assert later.in_flight() == 2


@pytest.mark.rule("MQTT-145")
def test_a_message_held_in_an_earlier_life_is_not_handed_on_again() -> None:
    earlier = Receiver()
    earlier.published(Publish("a", b"", 2, packet_id=5))
    later = Receiver(held=earlier.held())
    assert later.held() == {5}
    assert later.published(Publish("a", b"", 2, retain=False, dup=True, packet_id=5)) == Receipt(
        new=False, reply=Pubrec(5)
    )


@pytest.mark.rule("MQTT-018", "MQTT-141")
@pytest.mark.parametrize(
    ("unfinished", "rule"),
    [
        ([Pubrel(1), Publish("a", b"", 1, retain=True, dup=True, packet_id=1)], "MQTT-018"),
        ([Pubrel(0)], "MQTT-018"),
        ([Pubrel(65536)], "MQTT-018"),
        ([Publish("a", b"")], "MQTT-141"),
    ],
)
def test_an_earlier_life_that_can_not_have_been_is_refused(unfinished: list[Publish | Pubrel], rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Sender(unfinished=unfinished)
    assert caught.value.rule == rule


@pytest.mark.rule("MQTT-099", "MQTT-110", "MQTT-111", "MQTT-124", "MQTT-157", "MQTT-015")
def test_what_can_not_be_written_takes_no_id() -> None:
    sender = Sender()
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: sender.publish("a/+", b"", 1), "MQTT-099"),
        (lambda: sender.publish("a", bytes(268_435_451), 2), "MQTT-015"),
        (lambda: sender.subscribe(()), "MQTT-110"),
        (lambda: sender.subscribe((("a", 3),)), "MQTT-111"),
        (lambda: sender.unsubscribe(()), "MQTT-124"),
        (lambda: sender.unsubscribe(("a+",)), "MQTT-157"),
    ]
    for attempt, broken in attempts:
        with pytest.raises(LocalProtocolError) as caught:
            attempt()
        assert (caught.value.rule, sender.in_flight()) == (broken, 0)
    assert published(sender, 1) == 1


class Delivery(RuleBasedStateMachine):
    """Both sides over connections that break: QoS 1 arrives at least once, QoS 2 exactly once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sender, self.receiver = Sender(max_in_flight=8), Receiver()
        self.to_receiver: list[Frame] = []
        self.to_sender: list[Acknowledgement] = []
        self.messages = 0
        self.delivered: dict[int, list[int]] = {1: [], 2: []}
        self.published: dict[int, list[int]] = {1: [], 2: []}

    @precondition(lambda self: self.sender.in_flight() < 8)
    @rule(qos=st.integers(1, 2))
    def publish(self, qos: int) -> None:
        self.messages += 1
        self.published[qos].append(self.messages)
        self.to_receiver.append(self.sender.publish("a", self.messages.to_bytes(4, "big"), qos))

    @precondition(lambda self: self.to_receiver)
    @rule()
    def receive(self) -> None:
        frame = self.to_receiver.pop(0)
        if isinstance(frame, Publish):
            receipt = self.receiver.published(frame)
            if receipt.new:
                self.delivered[frame.qos].append(int.from_bytes(frame.payload, "big"))
            assert receipt.reply is not None
            self.to_sender.append(receipt.reply)
        elif isinstance(frame, Pubrel):
            self.to_sender.append(self.receiver.released(frame))

    @precondition(lambda self: self.to_sender)
    @rule()
    def acknowledge(self) -> None:
        reply = self.sender.acknowledged(self.to_sender.pop(0))
        if reply is not None:
            self.to_receiver.append(reply)

    @rule()
    def reconnect(self) -> None:
        self.to_sender.clear()
        self.to_receiver[:] = self.sender.resume()

    @invariant()
    def qos_2_is_delivered_once_and_in_order(self) -> None:
        delivered = self.delivered[2]
        assert delivered == self.published[2][: len(delivered)]

    @invariant()
    def qos_1_is_first_delivered_in_order(self) -> None:
        first = list(dict.fromkeys(self.delivered[1]))
        assert first == self.published[1][: len(first)]

    def teardown(self) -> None:
        self.reconnect()
        while self.to_receiver or self.to_sender:
            if self.to_receiver:
                self.receive()
            else:
                self.acknowledge()
        assert self.delivered[2] == self.published[2]
        assert set(self.delivered[1]) == set(self.published[1])
        assert (self.sender.in_flight(), len(self.receiver.held())) == (0, 0)


@pytest.mark.rule("MQTT-142", "MQTT-143", "MQTT-144", "MQTT-145", "MQTT-146", "MQTT-149")
def test_messages_survive_any_order_of_losses() -> None:
    run_state_machine_as_test(Delivery, settings=settings(max_examples=60, stateful_step_count=40))


def test_what_is_kept_to_be_sent_again_is_counted_in_octets() -> None:
    sender = Sender(max_in_flight=3)
    one, two, three = (sender.publish("topic", b"x" * 10, qos) for qos in (1, 2, 1))
    assert sender.full()
    assert sender.octets == 3 * footprint(one)
    assert one.packet_id
    assert two.packet_id
    assert three.packet_id
    sender.acknowledged(Puback(one.packet_id))
    assert not sender.full()
    sender.acknowledged(Pubrec(two.packet_id))
    assert sender.octets == footprint(three)
    assert Sender(unfinished=sender.resume()).octets == sender.octets
    assert sender.received(two.packet_id)
    assert not sender.received(three.packet_id)
    sender.abandon(three.packet_id)
    sender.abandon(three.packet_id)
    assert (sender.octets, sender.in_flight()) == (0, 1)
    assert sender.resume() == [Pubrel(two.packet_id)]


def test_what_is_recalled_is_not_sent_again_and_its_id_is_free_when_the_other_side_has_let_it_go() -> None:
    sender = Sender()
    one, two = published(sender, 1), published(sender, 2)
    sender.recall(one)
    sender.recall(two)
    assert (sender.octets, sender.in_flight()) == (0, 1)
    assert sender.resume() == [Pubrel(two)]
    assert sender.acknowledged(Pubcomp(two)) is None
    assert sender.in_flight() == 0
