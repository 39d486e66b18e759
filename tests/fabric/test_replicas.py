"""Retained messages, demand and the number of clients, on several nodes."""

import pytest

from polywire.fabric.fabric import Settings
from polywire.hub.message import Message
from polywire.hub.recorder import Recorder as JournalRecorder
from polywire.journal.kinds import PUBLISH, RETAIN
from tests.fabric.nodes import Engine, Site, site_with
from tests.hub.test_demand import Recorder as DemandRecorder


def retained(site: Site, channel: str) -> bytes | None:
    message = site.hub.retained.get(channel)
    return None if message is None else message.body


def retain(site: Site, channel: str, body: bytes) -> None:
    message = Message(channel, body, retain=True, time=site.hub.clock(), origin=1)
    assert site.hub.publish(message, site.client()) is None
    site.engine.turn()


def test_every_node_keeps_a_retained_message_and_its_subscribers_get_it_once() -> None:
    _, sites = site_with("a", "b", "c")
    a, b, c = sites
    there = b.subscribe("t")
    retain(a, "t", b"1")
    assert [retained(each, "t") for each in sites] == [b"1"] * 3
    assert [message.body for message in there.got] == [b"1"]
    late = c.subscribe("t")
    assert [(message.body, message.retain) for message in late.got] == [(b"1", True)]


def test_a_channel_that_is_cleared_is_cleared_on_all_nodes() -> None:
    _, (a, b) = site_with("a", "b")
    retain(a, "t", b"1")
    retain(b, "t", b"")
    assert (retained(a, "t"), retained(b, "t")) == (None, None)


def test_a_node_that_joins_gets_what_the_others_have_and_gives_what_it_has() -> None:
    engine = Engine()
    a, b = Site(engine, "a"), Site(engine, "b")
    for site, names in ((a, "xy"), (b, "yz")):
        for name in names:
            retain(site, name, site.node.encode())
            engine.clock.advance(1)
    a.start()
    b.start()
    engine.pass_time(1)
    for site in (a, b):
        assert [retained(site, name) for name in "xyz"] == [b"a", b"b", b"b"]


def test_nodes_that_were_apart_agree_on_the_later_change() -> None:
    engine, (a, b) = site_with("a", "b")
    retain(a, "cleared", b"old")
    retain(a, "kept", b"old")
    a.fabric.left("b", "cut")
    b.fabric.left("a", "cut")
    engine.clock.advance(1)
    retain(a, "cleared", b"newer")
    retain(b, "kept", b"newer")
    engine.clock.advance(1)
    retain(b, "cleared", b"")
    retain(a, "kept", b"newest")
    a.fabric.joined("b", 1)
    b.fabric.joined("a", 1)
    engine.pass_time(2)
    for site in (a, b):
        assert (retained(site, "cleared"), retained(site, "kept")) == (None, b"newest")


def test_a_change_after_one_of_a_node_whose_clock_is_ahead_counts() -> None:
    engine, (a, b) = site_with("a", "b")
    engine.clock.jump = 100.0
    retain(a, "t", b"1")
    engine.clock.jump = 0.0
    retain(b, "t", b"2")
    assert (retained(a, "t"), retained(b, "t")) == (b"2", b"2")


def test_a_copy_is_journaled_without_a_row_of_a_message() -> None:
    _, (a, b) = site_with("a", "b")
    recorders = []
    for site in (a, b):
        site.hub.recorder = JournalRecorder(0, site.hub.clock, lambda: None)
        recorders.append(site.hub.recorder)
    retain(a, "t", b"1")
    kinds = [[kind for columns in recorder.take() for kind in columns.kinds.getvalue()] for recorder in recorders]
    assert RETAIN not in kinds[0]
    assert RETAIN in kinds[1]
    assert PUBLISH not in kinds[1]


def test_a_slow_node_gets_the_newest_of_what_it_has_missed() -> None:
    engine, (a, b) = site_with("a", "b", settings=Settings(window=1000, buffer=4000))
    source = b.fabric.neighbours["a"]
    source.pause_reading()
    for number in range(200):
        retain(a, f"t/{number % 50}", b"%d" % number + b"x" * 100)
        engine.clock.advance(0.01)
    source.resume_reading()
    engine.pass_time(20)
    for number in range(150, 200):
        assert retained(b, f"t/{number - 150}") == b"%d" % number + b"x" * 100


def test_watchers_know_the_demand_on_all_nodes() -> None:
    engine, (a, b, c) = site_with("a", "b", "c")
    b.subscribe("t")
    watcher = DemandRecorder("t")
    client = a.client()
    assert a.hub.watch(client, "t", watcher) is None
    engine.turn()
    c.subscribe("t")
    assert watcher.heard[-1] == ("t", 2)
    c.member.vanish("it was killed")
    engine.pass_time(1)
    assert watcher.heard[-1] == ("t", 1)
    for each in list(b.hub.clients.values()):
        b.hub.leave(each)
    engine.turn()
    assert watcher.heard[-1] == ("t", 0)


def test_what_nobody_watches_is_not_told() -> None:
    engine, (a, b) = site_with("a", "b")
    watcher, client = DemandRecorder("t"), a.client()
    a.hub.watch(client, "t", watcher)
    engine.turn()
    b.subscribe("t")
    a.hub.unwatch(client, "t")
    engine.turn()
    assert a.hub.demand.count("t") == 0
    b.subscribe("t")
    assert a.hub.demand.count("t") == 0
    a.hub.watch(client, "t", again := DemandRecorder("t"))
    engine.turn()
    assert again.heard[-1] == ("t", 2)


@pytest.mark.parametrize("reason", ["left", "vanished"])
def test_all_nodes_know_how_many_clients_there_are(reason: str) -> None:
    engine, (a, b) = site_with("a", "b")
    counts: list[int] = []
    a.hub.on_presence.append(counts.append)
    b.client()
    b.client()
    engine.turn()
    assert (a.hub.client_count(), counts[-1]) == (2, 2)
    a.client()
    engine.turn()
    assert (a.hub.client_count(), b.hub.client_count()) == (3, 3)
    if reason == "left":
        b.hub.leave(next(iter(b.hub.clients.values())))
        engine.turn()
        assert a.hub.client_count() == 2
    else:
        b.member.vanish(reason)
        assert (a.hub.client_count(), counts[-1]) == (1, 1)
