import itertools

import pytest

from polywire.protocols.umq import (
    Fatal,
    LocalProtocolError,
    MethodError,
    Publications,
    RemoteProtocolError,
    Subscriptions,
    TopicClose,
    TopicUpdate,
    Unsubscribe,
)
from polywire.protocols.umq.topics import TRANSITIONS, Action, TopicEvent, TopicState


@pytest.mark.rule("UMQ-60", "UMQ-102", "UMQ-131")
def test_unsubscribing_from_a_live_topic_is_answered_with_close() -> None:
    topics = Publications()
    topics.open(7)
    assert topics.unsubscribed(Unsubscribe(7)) == TopicClose(7)
    assert 7 not in topics


@pytest.mark.rule("UMQ-61", "UMQ-103")
def test_unsubscribing_from_a_closed_topic_is_ignored() -> None:
    topics = Publications()
    topics.open(7)
    topics.close(7)
    assert topics.unsubscribed(Unsubscribe(7)) is None
    assert topics.unsubscribed(Unsubscribe(8)) is None
    assert topics.ignored == 2


@pytest.mark.rule("UMQ-56", "UMQ-131")
def test_a_publisher_closes_a_topic_once_and_sends_no_update_after_it() -> None:
    topics = Publications()
    topics.open(7)
    topics.update(TopicUpdate(7, "x"))
    assert topics.close(7) == TopicClose(7)
    assert topics.close(7) is None
    with pytest.raises(LocalProtocolError) as caught:
        topics.update(TopicUpdate(7, "y"))
    assert caught.value.rule == "UMQ-56"


@pytest.mark.rule("UMQ-96", "UMQ-53", "UMQ-98")
def test_a_topic_id_in_use_is_refused() -> None:
    topics = Publications()
    topics.open(7)
    with pytest.raises(MethodError) as caught:
        topics.open(7)
    assert caught.value.payload == "11 Bad request: topic id 7 is in use"
    topics.close(7)
    topics.open(7)
    assert len(topics) == 1


@pytest.mark.rule("UMQ-136")
def test_a_topic_over_the_limit_is_refused() -> None:
    topics = Publications(limit=1)
    topics.open(1)
    with pytest.raises(MethodError) as caught:
        topics.open(2)
    assert caught.value.payload == "9 Limit exceeded: 1 topics are open"


@pytest.mark.rule("UMQ-53")
def test_a_subscriber_chooses_ids_it_does_not_use() -> None:
    topics = Subscriptions()
    assert topics.open(2) == 2
    assert [topics.open(), topics.open()] == [1, 3]
    with pytest.raises(LocalProtocolError) as caught:
        topics.open(2)
    assert caught.value.rule == "UMQ-53"
    with pytest.raises(LocalProtocolError) as caught:
        topics.open(2**64)
    assert caught.value.rule == "UMQ-84"
    assert len(topics) == 3


@pytest.mark.rule("UMQ-52", "UMQ-56")
def test_updates_are_delivered_until_the_topic_is_closed() -> None:
    topics = Subscriptions()
    topics.open(7)
    assert [topics.updated(TopicUpdate(7, "x")) for _ in range(3)] == [Action.DELIVER] * 3
    assert topics.closed(TopicClose(7)) is Action.END
    assert topics.state(7) is TopicState.UNKNOWN
    assert topics.dropped == 0


@pytest.mark.rule("UMQ-101")
def test_an_update_on_an_unknown_topic_is_answered_with_unsubscribe_once() -> None:
    topics = Subscriptions()
    actions = [topics.updated(TopicUpdate(9, "x")) for _ in range(4)]
    assert actions == [Action.SEND_UNSUBSCRIBE, Action.DROP, Action.DROP, Action.DROP]
    assert topics.dropped == 4
    assert len(topics) == 0
    assert topics.closed(TopicClose(9)) is Action.DROP
    assert topics.updated(TopicUpdate(9, "x")) is Action.SEND_UNSUBSCRIBE


@pytest.mark.rule("UMQ-103")
def test_closing_an_unknown_topic_is_ignored() -> None:
    topics = Subscriptions()
    assert topics.closed(TopicClose(9)) is Action.IGNORE
    assert topics.ignored == 1
    assert topics.state(9) is TopicState.UNKNOWN


@pytest.mark.rule("UMQ-104", "UMQ-60")
def test_updates_between_unsubscribe_and_close_are_dropped() -> None:
    topics = Subscriptions()
    topics.open(7)
    assert topics.leave(7) == Unsubscribe(7)
    assert topics.leave(7) is None
    assert topics.updated(TopicUpdate(7, "late")) is Action.DROP
    assert topics.closed(TopicClose(7)) is Action.END
    assert topics.leave(7) is None


@pytest.mark.rule("UMQ-53")
def test_an_id_is_not_used_again_before_its_close() -> None:
    topics = Subscriptions()
    topics.open(7)
    topics.leave(7)
    with pytest.raises(LocalProtocolError):
        topics.open(7)
    topics.updated(TopicUpdate(8, "x"))
    with pytest.raises(LocalProtocolError):
        topics.open(8)
    topics.closed(TopicClose(7))
    assert topics.open(7) == 7


@pytest.mark.rule("UMQ-101")
def test_a_failed_subscription_is_forgotten() -> None:
    topics = Subscriptions()
    topics.open(7)
    topics.forget(7)
    topics.forget(8)
    assert topics.updated(TopicUpdate(7, "x")) is Action.SEND_UNSUBSCRIBE


@pytest.mark.rule("UMQ-136")
def test_subscriptions_are_limited() -> None:
    topics = Subscriptions(limit=1)
    topics.open()
    with pytest.raises(LocalProtocolError) as caught:
        topics.open()
    assert caught.value.rule == "UMQ-136"


@pytest.mark.rule("UMQ-136")
def test_unknown_topics_take_bounded_memory() -> None:
    topics = Subscriptions(max_refused=2)
    topics.updated(TopicUpdate(1, "x"))
    topics.updated(TopicUpdate(2, "x"))
    with pytest.raises(RemoteProtocolError) as caught:
        topics.updated(TopicUpdate(3, "x"))
    assert caught.value.rule == "UMQ-136"
    assert isinstance(caught.value.reply, Fatal)
    assert caught.value.reply.code == 9
    assert topics.updated(TopicUpdate(1, "x")) is Action.DROP
    topics.closed(TopicClose(1))
    assert topics.updated(TopicUpdate(3, "x")) is Action.SEND_UNSUBSCRIBE


def test_the_table_knows_every_case_but_subscribing_twice() -> None:
    missing = set(itertools.product(TopicState, TopicEvent)) - set(TRANSITIONS)
    assert missing == {(state, TopicEvent.SUBSCRIBE) for state in set(TopicState) - {TopicState.UNKNOWN}}
