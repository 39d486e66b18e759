"""Topics over sABC: publishing, subscribing, what a subscriber gets, and what is refused."""

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Message as HubMessage
from polywire.hub.peer import Limits
from tests.protocols.sabc.clients import Speaker, error, is_ok, value
from tests.sessions import Site


@pytest.mark.rule("SABC-47", "SABC-54", "SABC-119")
def test_a_publication_is_acknowledged_as_the_specification_shows() -> None:
    client = Speaker(Site())
    client.raw("MESSAGE\nsession-id::@@\nmsg-id::123123\ndestination::a\n\nHello\n\n^@")
    assert client.heard() == "MESSAGE\nsession-id::@@\nref-msg-id::123123\n\nOK\n\n^@"


@pytest.mark.rule("SABC-51")
def test_a_send_only_message_is_not_acknowledged() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    other.ask("msg-id::s", "op::subscribe", "destination::a")
    assert client.ask("msg-id::1", "destination::a", "send-only::yes", body="x") == []
    assert [message.body for message in other.messages()] == [b"x"]


@pytest.mark.rule("SABC-45", "SABC-114", "SABC-115", "SABC-118")
def test_subscribers_get_the_message_with_its_destination_and_their_subscription() -> None:
    site = Site()
    one, other = Speaker(site), Speaker(site)
    assert is_ok(one.ask("msg-id::s-1", "op::subscribe", "destination::home/*/temperature"), "s-1")
    assert is_ok(other.ask("msg-id::s-2", "op::subscribe", "destination::home/**"), "s-2")
    one.ask("msg-id::1", "destination::home/kitchen/temperature", "unit::°C", "content-type::text/plain", body="21.5")
    assert other.heard() == (
        "MESSAGE\nsession-id::@@\nsend-only::yes\nsubscription::s-2\nmsg-id::1\ndestination::home/kitchen/temperature\n"
        "content-type::text/plain\nunit::°C\n\n21.5\n\n^@"
    )
    one.ask("msg-id::2", "destination::home/kitchen/temperature")
    [message] = other.messages()
    assert (message.msg_id, message.body, message.send_only) == ("2", b"", True)


def test_a_publisher_gets_its_own_message() -> None:
    client = Speaker(Site())
    client.ask("msg-id::s", "op::subscribe", "destination::a")
    frames = client.ask("msg-id::1", "destination::a", body="x")
    assert len(frames) == 2


def test_each_subscription_that_matches_gets_the_message() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    client.ask("msg-id::s-1", "op::subscribe", "destination::a/*")
    client.ask("msg-id::s-2", "op::subscribe", "destination::a/b")
    other.ask("msg-id::1", "destination::a/b", body="x")
    found = client.messages()
    assert {value(message, "subscription") for message in found} == {"s-1", "s-2"}
    assert len({message.msg_id for message in found}) == 2


def test_subscribing_again_replaces_the_subscription() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    client.ask("msg-id::s-1", "op::subscribe", "destination::a")
    client.ask("msg-id::s-2", "op::subscribe", "destination::a")
    other.ask("msg-id::1", "destination::a", body="x")
    assert [value(message, "subscription") for message in client.messages()] == ["s-2"]
    assert site.hub.demand.count("a") == 1


@pytest.mark.rule("SABC-100", "SABC-117")
def test_unsubscribe_goes_by_destination_and_needs_a_subscription() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    client.ask("msg-id::s", "op::subscribe", "destination::a")
    assert is_ok(client.ask("msg-id::u", "op::unsubscribe", "destination::a"), "u")
    other.ask("msg-id::1", "destination::a", body="x")
    assert client.got() == []
    assert error(client.ask("msg-id::v", "op::unsubscribe", "destination::a")) == ("404", "v")


def test_a_late_subscriber_gets_the_retained_message_behind_its_ok() -> None:
    site = Site()
    client = Speaker(site)
    site.hub.publish(HubMessage("a/b", b"kept", retain=True), client.wire.client)
    answer, message = client.ask("msg-id::s", "op::subscribe", "destination::a/*")
    assert is_ok([answer], "s")
    assert getattr(message, "body") == b"kept"  # noqa: B009 - frames of any kind


@pytest.mark.rule("SABC-99")
def test_what_the_rules_forbid_is_answered_with_403() -> None:
    rules = AccessRules([AccessRule(["publish", "subscribe"], ["open/**"])])
    client = Speaker(Site(rules=rules))
    assert error(client.ask("msg-id::1", "destination::secret", body="x")) == ("403", "1")
    assert error(client.ask("msg-id::2", "destination::secret", "send-only::yes", body="x")) == ("403", "2")
    assert error(client.ask("msg-id::3", "op::subscribe", "destination::**")) == ("403", "3")
    assert error(client.ask("msg-id::4", "op::call", "service::s", "method::m")) == ("403", "4")
    assert error(client.ask("msg-id::5", "op::serve", "service::s")) == ("403", "5")
    assert is_ok(client.ask("msg-id::6", "op::subscribe", "destination::open/*"), "6")
    assert client.wire.client.counters.dropped == {"forbidden": 5}


def test_the_hubs_own_channels_are_forbidden() -> None:
    client = Speaker(Site())
    assert error(client.ask("msg-id::1", "destination::$/signals/stop")) == ("403", "1")


@pytest.mark.rule("SABC-112", "SABC-113")
def test_what_can_not_be_understood_is_answered_with_400() -> None:
    client = Speaker(Site())
    assert error(client.ask("msg-id::1", "op::dance")) == ("400", "1")
    assert error(client.ask("msg-id::2")) == ("400", "2")
    assert error(client.ask("msg-id::3", "destination::" + "a/" * 300)) == ("400", "3")
    assert client.wire.client.counters.faults == {"SABC-112": 1, "SABC-113": 1}


def test_more_subscriptions_than_allowed_are_answered_with_429() -> None:
    client = Speaker(Site(), limits=Limits(subscriptions=3))
    client.ask("msg-id::1", "op::subscribe", "destination::a")
    client.ask("msg-id::2", "op::subscribe", "destination::queue/a")
    client.ask("msg-id::3", "op::serve", "service::a")
    assert error(client.ask("msg-id::4", "op::subscribe", "destination::b")) == ("429", "4")
    assert error(client.ask("msg-id::5", "op::subscribe", "destination::queue/b")) == ("429", "5")
    assert error(client.ask("msg-id::6", "op::serve", "service::b")) == ("429", "6")
    assert is_ok(client.ask("msg-id::7", "op::subscribe", "destination::a"), "7")
    assert is_ok(client.ask("msg-id::8", "op::subscribe", "destination::queue/a"), "8")
    assert is_ok(client.ask("msg-id::9", "op::serve", "service::a"), "9")


@pytest.mark.rule("SABC-55", "SABC-107", "SABC-116")
def test_a_message_in_several_frames_is_published_as_one() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    other.ask("msg-id::s", "op::subscribe", "destination::*")
    client.raw(
        "MESSAGE\nsession-id::@@\nmsg-id::1\nmsg-more::yes\ndestination::a\n\none "
        "MESSAGE\nsession-id::@@\nmsg-id::2\nmsg-more::yes\ndestination::b\n\nthree "
        "MESSAGE\nsession-id::@@\nmsg-id::1\n\ntwo\n\n^@"
        "MESSAGE\nsession-id::@@\nmsg-id::2\n\nfour\n\n^@"
    )
    assert [message.body for message in other.messages()] == [b"one two", b"three four"]
    assert [message.ref_msg_id for message in client.messages()] == ["1", "2"]


@pytest.mark.rule("SABC-103", "SABC-105")
def test_a_truncated_message_is_delivered_and_acknowledged_as_such() -> None:
    site = Site()
    limits = Limits(message_size=300)
    client, other = Speaker(site, limits=limits), Speaker(site)
    other.ask("msg-id::s", "op::subscribe", "destination::a")
    client.ask("msg-id::1", "destination::a", body="x" * 400)
    assert client.taken.decode().replace(client.session, "@@") == (
        "MESSAGE\r\nsession-id::@@\r\nref-msg-id::1\r\ntruncated::yes\r\n\r\nOK\r\n\r\n\0"
    )
    [message] = other.messages()
    assert value(message, "truncated") == "yes"
    head = f"MESSAGE\r\nsession-id::{client.session}\r\nmsg-id::1\r\ndestination::a\r\n\r\n"
    assert message.body == b"x" * (300 - len(head))
    assert is_ok(client.ask("msg-id::2", "destination::a", body="y"), "2")


@pytest.mark.rule("SABC-131")
def test_all_unfinished_messages_together_are_bounded() -> None:
    site = Site()
    client, other = Speaker(site, limits=Limits(message_size=1000)), Speaker(site)
    other.ask("msg-id::s", "op::subscribe", "destination::*")
    more = "MESSAGE\nsession-id::@@\nmsg-id::{}\nmsg-more::yes\ndestination::a\n\n" + "x" * 500
    for number in range(3):
        client.raw(more.format(number))
    client.raw(more.format(3) + "MESSAGE\nsession-id::@@\nmsg-id::3\n\nend\n\n^@")
    assert error(client.got()) == ("429", "3")
    client.raw(more.format(0) + more.format(1))
    client.raw("MESSAGE\nsession-id::@@\nmsg-id::0\n\nend\n\n^@")
    client.raw("MESSAGE\nsession-id::@@\nmsg-id::1\n\nend\n\n^@")
    assert other.messages()
    assert len(client.sabc._connection._assembly) <= 1


@pytest.mark.rule("SABC-108")
def test_the_65th_unfinished_message_is_answered_with_429() -> None:
    client = Speaker(Site())
    for number in range(65):
        client.raw(f"MESSAGE\nsession-id::@@\nmsg-id::{number}\nmsg-more::yes\ndestination::a\n\nx")
    client.raw("MESSAGE\nsession-id::@@\nmsg-id::end\ndestination::a\n\n^@")
    refused, accepted = client.got()
    assert error([refused]) == ("429", "64")
    assert is_ok([accepted], "end")


def test_a_reader_that_is_too_slow_loses_messages_of_topics_and_they_are_counted() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site, cap=1000)
    other.ask("msg-id::s", "op::subscribe", "destination::a")
    other.wire.outbox.stall()
    for number in range(30):
        client.ask(f"msg-id::{number}", "destination::a", body="x" * 100)
        site.clock.advance(1)
    dropped = other.wire.outbox.dropped
    assert dropped > 10
    assert other.wire.client.counters.dropped == {"slow-reader": dropped}
    other.wire.outbox.drain()
    assert len(other.messages()) == 30 - dropped


def test_a_large_message_is_shared_by_its_subscribers() -> None:
    site = Site()
    client, others = Speaker(site), [Speaker(site), Speaker(site)]
    for other in others:
        other.ask("msg-id::s", "op::subscribe", "destination::a")
    client.ask("msg-id::1", "destination::a", body="x" * 20000)
    for other in others:
        [message] = other.messages()
        assert message.body == b"x" * 20000
