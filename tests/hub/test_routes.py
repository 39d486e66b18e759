"""Routes: interned, cached, and touched only where a subscription changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.access import Grants
from polywire.hub.channels import from_stars, matches
from polywire.hub.hub import Forwardable, is_service_topic
from polywire.hub.routes import CHANGES_KEPT, REPLACED, SHAPE_AFTER, Route, RouteTable, RouteView, Subscription
from tests.hub.links import FakeLink, Loop, Recorder
from tests.hub.test_channels import names, patterns

LINK = FakeLink(Loop())


def recorder(pattern: str, group: int, *, rank: int = 0, protocol: int = -1) -> Recorder:
    return Recorder(from_stars(pattern), LINK, group, rank=rank, protocol=protocol)


def table_of(*subscriptions: Recorder) -> RouteTable:
    table = RouteTable()
    for subscription in subscriptions:
        assert table.add(subscription)
    return table


def view_of(table: RouteTable) -> RouteView:
    return table.view()


def test_channels_with_the_same_subscribers_share_a_route() -> None:
    table = table_of(recorder("a/*", 1), recorder("b/*", 1), recorder("a/x", 2))
    assert table.route("a/y") is table.route("b/z")
    assert table.route("a/x") is not table.route("a/y")
    assert table.route("nobody") is table.route("else")


def test_a_group_gets_a_message_once_by_its_highest_rank() -> None:
    low, high = recorder("a/*", 1, rank=0), recorder("a/b", 1, rank=2)
    assert table_of(low, high).route("a/b").subscriptions == [high]
    assert table_of(high, low).route("a/b").subscriptions == [high]
    assert table_of(high, low).route("a/c").subscriptions == [low]


def test_a_route_tells_who_takes_a_protocols_octets_as_they_are() -> None:
    own, other = recorder("a", 1, protocol=3), recorder("a", 2, protocol=4)
    route = table_of(own, other).route("a")
    assert route.raw(3) == [own.outbox]
    assert route.cooked(3) == [other]
    assert route.cooked(7) == [own, other]


def test_a_leading_dollar_is_not_matched_by_a_wildcard_in_front() -> None:
    literal, wild = recorder("$/x", 1), recorder("**", 2)
    table = table_of(literal, wild)
    assert table.route("$/x").subscriptions == [literal]
    wild_too = Recorder(from_stars("*/x"), LINK, 3)
    assert not table.discard(wild_too)
    assert table.discard(wild)


def test_a_change_touches_only_the_channels_it_concerns() -> None:
    table = table_of(recorder("a/*", 1))
    routes = {name: table.route(name) for name in ("a/x", "a/y", "b")}
    version = table.version
    table.add(recorder("a/x", 2))
    assert table.forgotten_since(version) == ["a/x"]
    assert table.route("a/y") is routes["a/y"]
    assert len(table.route("a/x")) == 2


def test_a_view_drops_what_changed_and_keeps_the_rest() -> None:
    table = table_of(recorder("a", 1))
    view = view_of(table)
    for topic in (b"a", b"b", b"c", b"d"):
        view.resolve(topic)
    table.add(recorder("b", 2))
    assert sorted(view.current()) == [b"a", b"c", b"d"]


def test_a_view_that_slept_too_long_starts_anew() -> None:
    table = RouteTable()
    view = view_of(table)
    view.resolve(b"a")
    subscription = recorder("b", 1)
    for _ in range(2 * CHANGES_KEPT):
        table.route("b")
        table.add(subscription)
        table.route("b")
        table.discard(subscription)
    assert view.current() == {}


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    table = RouteTable(cached=2)
    table.add(recorder("a", 1))
    view = view_of(table)
    view.resolve(b"a")
    table.route("b")
    for number in range(REPLACED):
        assert len(table.route(f"c{number}")) == 0
    assert b"a" not in view.current()
    table.add(recorder("a", 2))
    assert len(table.route("a")) == 2


def test_what_the_full_cache_does_not_keep_is_found_all_the_same() -> None:
    one, other = recorder("a/*", 1), recorder("**", 2)
    table = table_of(one, other)
    full = RouteTable(cached=0)
    for subscription in (one, other):
        full.add(subscription)
    for name in ("a/b", "a/b/c", "a", "$SYS/x"):
        assert set(full.route(name).subscriptions) == set(table.route(name).subscriptions)
        assert full.route(name) is full.route(name), "runs of such channels are forwarded as one, too"
    full.discard(other)
    assert full.route("a/b").subscriptions == [one]
    assert full.route("a").subscriptions == []
    full.discard(one)
    assert one.alone is None


def test_a_route_nobody_uses_is_forgotten() -> None:
    subscription = recorder("a", 1)
    table = table_of(subscription)
    table.route("a")
    table.discard(subscription)
    table.route("a")
    assert len(table._interned) == 1


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), patterns, st.integers(1, 4), st.integers(0, 2)),
        st.tuples(st.just("discard"), st.integers(0, 30), st.none(), st.none()),
        st.tuples(st.just("look"), names, st.none(), st.none()),
    ),
    max_size=30,
)


@given(actions)
def test_table_and_view_agree_with_the_definition_whatever_happens(steps: list[tuple[str, object, int, int]]) -> None:
    table = RouteTable(cached=3)
    view = view_of(table)
    live: list[Recorder] = []
    for what, argument, group, rank in steps:
        if what == "add":
            live.append(Recorder(str(argument), LINK, group, rank=rank))
            table.add(live[-1])
        elif what == "discard" and live:
            table.discard(live.pop(int(str(argument)) % len(live)))
        elif what == "look":
            name = str(argument)
            wanted: dict[int, int] = {}
            for each in live:
                if matches(each.pattern, name):
                    wanted[each.group] = max(each.rank, wanted.get(each.group, 0))
            found = view.current().get(name.encode()) or view.resolve(name.encode())
            assert isinstance(found, Route)
            assert sorted(found.key) == sorted(wanted.items())
            assert table.route(name).key == found.key


numbered = st.lists(st.sampled_from(["a", "b", "7", "80", "é", ""]), min_size=1, max_size=4).map("/".join).filter(bool)
rules = st.lists(st.tuples(st.booleans(), patterns), max_size=4)


@given(st.lists(patterns, max_size=6), rules, st.lists(numbered, min_size=60, max_size=120))
def test_topics_of_a_known_shape_have_the_route_they_would_have_without_it(
    subscribed: list[str], ruled: list[tuple[bool, str]], topics: list[str]
) -> None:
    table = RouteTable(cached=1)
    for group, pattern in enumerate(subscribed):
        table.add(Recorder(pattern, LINK, group))
    grants = Grants(tuple((deny, "publish", pattern) for deny, pattern in ruled), everything=not ruled)
    view = table.view(Forwardable(grants))
    for topic in topics:
        found = view.current().get(topic.encode()) or view.resolve(topic.encode())
        if is_service_topic(topic) or not grants.may_publish(topic):
            assert found is None
        else:
            assert isinstance(found, Route)
            assert sorted(found.key) == [
                (group, 0) for group, pattern in enumerate(subscribed) if matches(pattern, topic)
            ]


def test_a_shape_is_used_and_ends_with_the_next_subscription() -> None:
    alone = recorder("plant/*/state", 1)
    table = RouteTable(cached=1)
    table.add(alone)
    view = view_of(table)
    for number in range(SHAPE_AFTER + 1):
        view.resolve(f"plant/{number}/state".encode())
    assert [shape.fits(b"plant/77/state") for shape in view._shapes] == [True]
    assert not view._shapes[0].fits(b"plant/77/states")
    assert not view._shapes[0].fits(b"plant/7/7/state")
    table.add(recorder("plant/77/*", 2))
    found = view.resolve(b"plant/77/state")
    assert isinstance(found, Route)
    assert len(found) == 2


def test_a_protocols_octets_as_they_are_go_nowhere_where_nobody_is_connected() -> None:
    class Away(Subscription):
        pass

    away = Away("a", LINK.outbox, 1, protocol=3, away=True)
    table = RouteTable()
    table.add(away)
    route = table.route("a")
    assert (route.raw(3), route.cooked(3), route.cooked(4)) == ([], [], [away])


@pytest.mark.parametrize("channel", ["x" * 300, "/".join("abcdefghijklmnopqrst")])
def test_channels_with_long_names_take_no_place_in_the_cache(channel: str) -> None:
    table = RouteTable()
    link = FakeLink(Loop())
    table.add(Recorder(channel, link, 1))
    assert len(table.route(channel).subscriptions) == 1
    assert not table.kept
    assert len(table._routes) == 0
    table.add(Recorder("a/b", link, 1))
    table.route("a/b")
    assert table.kept
