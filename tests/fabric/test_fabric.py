"""Several hubs in one process, linked over memory."""

from random import Random

from polywire.fabric.fabric import Settings
from polywire.hub.hub import SERIES_SHIFT
from polywire.hub.message import Date, FailedAttachment, Message
from tests.fabric.nodes import Engine, Site, site_with
from tests.hub.links import FakeLink, Recorder


def bodies(recorder: Recorder) -> list[bytes]:
    return [message.body for message in recorder.got]


def test_a_message_reaches_subscribers_on_other_nodes_and_each_of_them_once() -> None:
    engine, (a, b, c) = site_with("a", "b", "c")
    here, there, far = a.subscribe("t/*"), b.subscribe("t/x"), c.subscribe("**")
    publisher = a.client()
    assert a.hub.publish(Message("t/x", b"1"), publisher) is None
    engine.turn()
    assert [bodies(each) for each in (here, there, far)] == [[b"1"]] * 3


def test_a_message_arrives_as_it_was_published() -> None:
    engine, (a, b) = site_with("a", "b")
    there = b.subscribe("t")
    sent = Message(
        "t",
        b"\xff",
        "text/x",
        (("text", "a"), ("number", 7), ("part", 1.5), ("when", Date(3.5))),
        (b"file", FailedAttachment("gone")),
        time=12,
        origin=34,
        qos=1,
        binary=True,
    )
    a.hub.publish(sent, a.client())
    engine.turn()
    (got,) = there.got
    for name in ("channel", "body", "content_type", "headers", "attachments", "time", "origin", "qos", "binary"):
        assert getattr(got, name) == getattr(sent, name)


def test_runs_arrive_as_they_came() -> None:
    _, (a, b) = site_with("a", "b")
    verbatim, decoded = b.subscribe_over_fmqp("t/*"), b.subscribe("t/2")
    data = a.publish_over_fmqp(("t/1", b"one"), ("t/2", b"two"), ("t/3", b"x" * 9000))
    assert b"".join(verbatim.writes) == data
    assert bodies(decoded) == [b"two"]


def test_what_no_other_node_wants_puts_no_byte_on_any_link() -> None:
    engine, (a, b) = site_with("a", "b")
    b.subscribe("wanted")
    publisher = a.client("fmqp")
    engine.turn()
    before = engine.octets("a", "b")
    a.publish_over_fmqp(("unwanted", b"x"), client=publisher)
    a.hub.publish(Message("unwanted", b"x"), publisher)
    engine.turn()
    assert engine.octets("a", "b") == before


def test_a_subscription_that_ends_is_not_sent_to_any_more() -> None:
    engine, (a, b) = site_with("a", "b")
    client, publisher = b.client(), a.client()
    first, second = b.subscribe("t", client), b.subscribe("t")
    b.hub.leave(client)
    engine.turn()
    a.hub.publish(Message("t", b"1"), publisher)
    engine.turn()
    assert (bodies(first), bodies(second)) == ([], [b"1"])
    for other in list(b.hub.clients.values()):
        b.hub.leave(other)
    engine.pass_time(1)
    before = engine.octets("a", "b")
    a.hub.publish(Message("t", b"2"), publisher)
    engine.turn()
    assert engine.octets("a", "b") == before
    assert bodies(second) == [b"1"]


def test_a_node_that_joins_later_learns_all_patterns() -> None:
    engine = Engine()
    a = Site(engine, "a").start()
    recorders = [a.subscribe(f"t/{number}") for number in range(1200)]
    b = Site(engine, "b").start()
    engine.pass_time(1)
    publisher = b.client()
    for number in range(1200):
        b.hub.publish(Message(f"t/{number}", str(number).encode()), publisher)
    engine.turn()
    assert [bodies(each) for each in recorders] == [[str(number).encode()] for number in range(1200)]


def test_lost_batches_are_noticed_and_sent_again() -> None:
    engine, (a, b) = site_with("a", "b")
    there = b.subscribe("t")
    publisher = a.client()
    random = Random(7)  # noqa: S311 - so that it can be repeated
    engine.lose = lambda _sender, _receiver, _batch: random.random() < 0.1
    for number in range(100):
        a.hub.publish(Message("t", b"%d" % number), publisher)
        engine.turn()
    engine.pass_time(30)
    assert bodies(there) == [b"%d" % number for number in range(100)]
    assert b.fabric.neighbours["a"].link.gaps > 0


def test_after_a_cut_what_waited_arrives() -> None:
    engine, (a, b) = site_with("a", "b")
    there = b.subscribe("t")
    publisher = a.client()
    engine.cut.add(frozenset("ab"))
    a.hub.publish(Message("t", b"1"), publisher)
    engine.pass_time(5)
    assert bodies(there) == []
    engine.cut.clear()
    engine.pass_time(2)
    assert bodies(there) == [b"1"]


def test_a_node_that_thought_the_other_one_gone_gets_everything_anew() -> None:
    engine, (a, b) = site_with("a", "b")
    there = b.subscribe("t")
    a.fabric.left("b", "its lease was over")
    a.hub.publish(Message("t", b"lost"), a.client())
    engine.turn()
    a.fabric.joined("b", 1)
    engine.turn()
    a.hub.publish(Message("t", b"2"), a.client())
    engine.turn()
    assert bodies(there) == [b"2"]


def test_a_node_that_is_started_again_is_linked_again() -> None:
    engine, (a, b) = site_with("a", "b")
    b.subscribe("t")
    b.member.vanish("it was killed")
    engine.clock.advance(1)
    again = Site(engine, "b", life=2).start()
    there = again.subscribe("t")
    a.hub.publish(Message("t", b"1"), a.client())
    engine.turn()
    assert bodies(there) == [b"1"]


def test_a_restart_that_nobody_reported_is_noticed() -> None:
    engine, (a, b) = site_with("a", "b")
    b.subscribe("old")
    del engine.members["b"]
    engine.clock.advance(1)
    again = Site(engine, "b", life=1)
    again.member.events = again.fabric
    engine.members["b"] = again.member
    again.fabric.joined("a", 1)
    there = again.subscribe("t")
    engine.pass_time(2)
    a.hub.publish(Message("t", b"1"), a.client())
    engine.turn()
    assert bodies(there) == [b"1"]


def test_a_link_without_credit_is_a_slow_reader() -> None:
    engine, (a, b) = site_with("a", "b", settings=Settings(window=1000, buffer=4000))
    there = b.subscribe("t")
    publisher, source = a.client(), b.fabric.neighbours["a"]
    source.pause_reading()
    a.hub.flusher.source = link = FakeLink(a.loop)
    for _ in range(100):
        a.hub.publish(Message("t", b"x" * 100), publisher)
        engine.turn()
    assert link.paused == 1  # the publisher waits
    engine.clock.advance(0.2)  # but not for ever
    assert link.paused == 0
    for _ in range(100):
        a.hub.publish(Message("t", b"x" * 100), publisher)
        engine.turn()
    dropped = a.fabric.dropped["slow-link"]
    assert 50 < dropped < 200
    source.resume_reading()
    engine.pass_time(3)
    assert len(there.got) == 200 - dropped
    a.hub.publish(Message("t", b"last"), publisher)
    engine.turn()
    assert bodies(there)[-1] == b"last"


def test_a_publisher_waits_for_a_slow_client_of_another_node() -> None:
    engine, (a, b) = site_with("a", "b", settings=Settings(window=1000, buffer=4000))
    reader = b.subscribe_over_fmqp("t")
    reader.outbox._cap = 500
    reader.outbox.stall()
    for _ in range(30):
        a.publish_over_fmqp(("t", b"x" * 100))
    assert b.fabric.neighbours["a"]._paused == 1
    assert a.fabric.neighbours["b"].link.waiting() >= 1000
    reader.outbox.drain()
    engine.pass_time(2)
    assert a.fabric.neighbours["b"].link.waiting() == 0
    assert b"".join(reader.writes).count(b"x" * 100) == 30


def test_nodes_number_their_connections_in_different_series() -> None:
    _, sites = site_with("a", "b", "c")
    series = {site.client().number >> SERIES_SHIFT for site in sites}
    assert len(series) == 3


def test_many_patterns_are_told_as_prefixes_and_few_again_as_they_are() -> None:
    engine, (a, b) = site_with("a", "b", settings=Settings(patterns=20))
    client, publisher = b.client(), a.client()
    recorders = [b.subscribe(f"devices/{number}/t", client) for number in range(10)]
    remote = a.fabric.neighbours["b"].remote
    assert len(remote.patterns) == 10
    recorders += [b.subscribe(f"devices/{number}/t", client) for number in range(10, 40)]
    assert len(remote.patterns) == 1
    late = Site(engine, "c", settings=Settings(patterns=20)).start()
    engine.pass_time(1)
    for number in range(0, 40, 2):
        a.hub.publish(Message(f"devices/{number}/t", b"x"), publisher)
    for number in range(1, 40, 2):
        late.hub.publish(Message(f"devices/{number}/t", b"x"), late.client())
    engine.turn()
    assert sum(len(each.got) for each in recorders) == 40
    for number in range(38):
        b.hub.unsubscribe(client, f"devices/{number}/t")
    engine.turn()
    assert sorted(remote.patterns.keys()) == ["devices/38/t", "devices/39/t"]
