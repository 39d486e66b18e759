"""What was promised reaches other nodes, whatever becomes of links and nodes."""

from pathlib import Path

import pytest

from polywire.fabric.fabric import Settings
from polywire.hub.access import Identity
from polywire.hub.message import Message
from polywire.hub.peer import Limits
from polywire.protocols.mqtt.kept import sessions_of
from polywire.registry import by_name
from tests.fabric.nodes import Engine, Site
from tests.fabric.test_fabric import bodies
from tests.hub.links import Recorder


def pair(folder: Path, settings: Settings | None = None) -> tuple[Engine, Site, Site]:
    engine = Engine()
    a = Site(engine, "a", folder=folder / "a", settings=settings).start()
    b = Site(engine, "b", folder=folder / "b", settings=settings).start()
    engine.pass_time(1)
    return engine, a, b


def publish(site: Site, first: int, behind: int, *, qos: int = 1, size: int = 0) -> None:
    """Publish the numbers from the first one on, and acknowledge them."""
    client = site.client()
    for number in range(first, behind):
        site.hub.publish(Message("t", b"%d" % number + b"x" * size, time=site.hub.clock(), origin=1, qos=qos), client)
    site.hub.safe(lambda: None, lambda: None)
    site.engine.turn()


def store(site: Site, client_id: str = "device") -> None:
    """A session of a client that is away, and has subscribed to what is published."""
    sessions = sessions_of(site.hub, by_name("mqtt").code)
    state = sessions.claim(client_id, "", Limits(), lambda: None, clean=False, identity=Identity(""))
    state.filters["t"] = 2
    if state.ledger is not None:
        state.ledger.subscribed("t", 2)
    sessions.part(state, Limits())
    sessions.put_away(state, "t", 2)
    sessions.parted(state)
    site.engine.turn()


def stored(site: Site, client_id: str = "device") -> list[bytes]:
    state = sessions_of(site.hub, by_name("mqtt").code).stored[client_id]
    return [frame.payload for frame in state.waiting]


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


def part(a: Site, b: Site) -> None:
    """Let two nodes think that the other one has gone."""
    a.fabric.left(b.node, "cut")
    b.fabric.left(a.node, "cut")


def join(a: Site, b: Site) -> None:
    a.fabric.joined(b.node, b.member.life)
    b.fabric.joined(a.node, a.member.life)
    a.engine.pass_time(3)


def test_what_was_promised_while_nodes_were_apart_arrives_once_and_in_order(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path)
    there = b.subscribe("t")
    publish(a, 0, 5)
    part(a, b)
    publish(a, 5, 10)
    publish(a, 1000, 1010, qos=0)
    join(a, b)
    publish(a, 10, 15)
    engine.pass_time(1)
    assert bodies(there) == numbers(0, 15)


def test_a_node_that_joins_for_the_first_time_gets_nothing_old(tmp_path: Path) -> None:
    engine = Engine()
    a = Site(engine, "a", folder=tmp_path / "a").start()
    publish(a, 0, 5)
    b = Site(engine, "b", folder=tmp_path / "b")
    there = b.subscribe("t")
    b.start()
    engine.pass_time(1)
    publish(a, 5, 10)
    assert bodies(there) == numbers(5, 10)


def test_a_stored_session_on_a_killed_node_gets_each_message_once(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path)
    store(b)
    publish(a, 0, 5)
    assert b.disk is not None
    b.disk.write()
    publish(a, 5, 10)  # these are lost with the node
    assert stored(b) == numbers(0, 10)
    b.kill()
    publish(a, 10, 15)
    engine.clock.advance(1)
    b = Site(engine, "b", life=2, folder=tmp_path / "b")
    assert stored(b) == numbers(0, 5)
    b.start()
    engine.pass_time(2)
    publish(a, 15, 20)
    assert stored(b) == numbers(0, 20)


def test_what_a_killed_node_had_promised_is_sent_when_it_is_back(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path)
    there = b.subscribe("t")
    publish(a, 0, 5)
    engine.cut.add(frozenset("ab"))
    publish(a, 5, 10)
    a.kill()
    engine.cut.clear()
    engine.clock.advance(1)
    a = Site(engine, "a", life=2, folder=tmp_path / "a").start()
    engine.pass_time(2)
    publish(a, 10, 15)
    assert bodies(there) == numbers(0, 15)


def test_a_slow_link_gets_what_was_promised_from_the_journal(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path, Settings(window=2000, buffer=4000))
    there = b.subscribe("t")
    source = b.fabric.neighbours["a"]
    source.pause_reading()
    for start in range(0, 200, 10):
        publish(a, start, start + 10, size=100)
        engine.clock.advance(0.05)
    assert a.fabric.neighbours["b"].remote.outbox.size() < 20_000
    source.resume_reading()
    engine.pass_time(5)
    publish(a, 200, 210, size=100)
    engine.pass_time(2)
    assert [body.strip(b"x") for body in bodies(there)] == numbers(0, 210)


def test_what_is_published_while_a_node_catches_up_arrives_in_order(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path, Settings(window=1000, buffer=4000))
    there = b.subscribe("t")
    part(a, b)
    publish(a, 0, 300, size=100)
    a.fabric.joined("b", 1)
    b.fabric.joined("a", 1)
    for start in range(300, 600, 10):
        publish(a, start, start + 10, size=100)
        engine.clock.advance(0.1)
    engine.pass_time(10)
    assert [body.strip(b"x") for body in bodies(there)] == numbers(0, 600)


def test_retained_messages_reach_subscribers_once_as_well(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path)
    there: Recorder = b.subscribe("r")
    client = a.client()
    for number in range(3):
        a.hub.publish(Message("r", b"%d" % number, retain=True, time=a.hub.clock(), origin=1), client)
        engine.turn()
    part(a, b)
    engine.clock.advance(1)
    a.hub.publish(Message("r", b"3", retain=True, time=a.hub.clock(), origin=1), client)
    a.hub.safe(lambda: None, lambda: None)
    engine.turn()
    join(a, b)
    engine.clock.advance(1)
    a.hub.publish(Message("r", b"4", retain=True, time=a.hub.clock(), origin=1), client)
    engine.turn()
    assert bodies(there) == numbers(0, 5)


def test_a_message_that_crosses_has_one_row(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path)
    b.subscribe("t")
    publish(a, 0, 3)
    engine.pass_time(1)

    assert [len(each.disk.rows("publish")) for each in (a, b) if each.disk is not None] == [3, 0]


@pytest.mark.parametrize(("channel", "between"), [("t", "r"), ("r", "t"), ("t", "t"), ("r", "r/2")])
def test_what_is_recorded_long_before_it_is_delivered_arrives(tmp_path: Path, channel: str, between: str) -> None:
    engine, a, b = pair(tmp_path)
    there = b.subscribe(f"{channel}/**")
    client = a.client()
    assert a.disk is not None
    part = [
        Message(channel, b"%d" % number, retain=channel == "r", time=a.hub.clock(), origin=1) for number in range(2)
    ]
    for message in part:
        a.hub.record(message, client, a.disk.recorder)
    a.hub.publish(Message(between, b"2", retain=between != "t", time=a.hub.clock(), origin=1), client)
    engine.turn()
    for message in part:
        a.hub.deliver(message, client)
    engine.turn()
    assert [body for body in bodies(there) if body != b"2"] == numbers(0, 2)


def test_a_retained_message_reaches_subscribers_while_its_node_catches_up(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path, Settings(window=1000, buffer=4000))
    there = b.subscribe("r")
    old = b.subscribe("t")
    part(a, b)
    publish(a, 0, 300, size=100)
    a.fabric.joined("b", 1)
    b.fabric.joined("a", 1)
    client = a.client()
    for number in range(50):
        a.hub.publish(Message("r", b"%d" % number, retain=True, time=a.hub.clock(), origin=1), client)
        a.hub.safe(lambda: None, lambda: None)
        engine.clock.advance(0.1)
        engine.turn()
    engine.pass_time(10)
    assert len(old.got) == 300
    assert bodies(there) == numbers(0, 50)


def test_a_slow_link_loses_no_retained_message_for_subscribers(tmp_path: Path) -> None:
    engine, a, b = pair(tmp_path, Settings(window=2000, buffer=4000))
    there = b.subscribe("r")
    source = b.fabric.neighbours["a"]
    source.pause_reading()
    client = a.client()
    for number in range(100):
        body = b"%d" % number + b"x" * 100
        a.hub.publish(Message("r", body, retain=True, time=a.hub.clock(), origin=1), client)
        a.hub.safe(lambda: None, lambda: None)
        engine.clock.advance(0.05)
        engine.turn()
    source.resume_reading()
    engine.pass_time(5)
    assert [body.strip(b"x") for body in bodies(there)] == numbers(0, 100)
