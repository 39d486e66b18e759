"""MQTT sessions follow their clients from node to node."""

from pathlib import Path

from polywire.hub.access import Identity
from polywire.hub.message import Message
from polywire.hub.peer import Limits
from polywire.hub.work import DONE, WAIT, Turns
from polywire.protocols.mqtt.kept import ANOTHER, FREE, TAKEN, WAITING, MqttSessions, SessionState, sessions_of
from polywire.registry import by_name
from tests.fabric.nodes import Engine, Site
from tests.fabric.test_resend import numbers, publish


def book(site: Site) -> MqttSessions:
    return sessions_of(site.hub, by_name("mqtt").code)


def nodes(folder: Path, *names: str) -> tuple[Engine, list[Site]]:
    engine = Engine()
    found = [Site(engine, name, folder=folder / name).start() for name in names]
    engine.pass_time(1)
    return engine, found


class Device:
    """A client of MQTT that connects to one node after the other."""

    def __init__(self, client_id: str = "device", user: str = "") -> None:
        self.client_id, self.user = client_id, user
        self.outcome = WAITING
        self.state: SessionState | None = None
        self.book: MqttSessions | None = None
        self.ended = 0

    def connect(self, site: Site, *, clean: bool = False, wait: bool = True) -> "Device":
        """Connect as a session does: ask, wait, and claim the session."""
        owner = object()
        self.outcome = WAITING

        def enter() -> int:
            if book(site).must_wait(self.client_id, owner):
                return WAIT
            self.outcome = book(site).asked(self.client_id, self.user, owner, clean=clean)
            if self.outcome == WAITING:
                return WAIT
            if self.outcome == FREE:
                self.book = book(site)
                self.state = self.book.claim(
                    self.client_id, self.user, Limits(), self._end, clean=clean, identity=Identity(self.user)
                )
            return DONE

        book(site).take_over(self.client_id)
        site.hub.work.start(owner, Turns(enter))
        if wait:
            site.engine.turn()
        return self

    def _end(self) -> None:
        self.ended += 1
        self.leave()

    def subscribe(self, topic: str = "t", qos: int = 2) -> None:
        """Note a subscription, which is stored when the client leaves."""
        assert self.state is not None
        self.state.filters[topic] = qos
        if self.state.ledger is not None:
            self.state.ledger.subscribed(topic, qos)

    def leave(self) -> None:
        """The connection has ended."""
        state = self.state
        assert state is not None
        sessions = self.book
        assert sessions is not None
        sessions.part(state, Limits())
        for topic, qos in state.filters.items():
            sessions.put_away(state, topic, qos)
        sessions.parted(state)
        self.state = None


def waiting(device: Device) -> list[bytes]:
    assert device.state is not None
    return [frame.payload for frame in device.state.waiting]


def test_a_stored_session_follows_its_client_with_what_waits(tmp_path: Path) -> None:
    engine, (a, b, c) = nodes(tmp_path, "a", "b", "c")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    publish(c, 0, 5)
    publish(a, 5, 8)
    device.connect(b)
    assert device.state is not None
    assert device.state.present
    assert waiting(device) == numbers(0, 8)
    assert device.state.filters == {"t": 2}
    assert "device" not in book(a).stored
    device.leave()
    engine.turn()
    publish(c, 8, 10)
    device.connect(c)
    assert waiting(device) == numbers(0, 10)


def test_what_is_published_while_a_session_moves_is_there_once(tmp_path: Path) -> None:
    engine, (a, b, c) = nodes(tmp_path, "a", "b", "c")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    publisher = c.client()
    number = 0
    device.connect(b, wait=False)
    for _ in range(100):  # a message at each step that any node makes
        c.hub.publish(Message("t", b"%d" % number, time=c.hub.clock(), origin=1, qos=1), publisher)
        number += 1
        if not engine.step() and device.outcome != WAITING:
            break
    engine.turn()
    assert device.outcome == FREE
    device.leave()
    engine.turn()
    publish(c, number, number + 3)
    device.connect(a)
    assert waiting(device) == numbers(0, number + 3)


def test_a_connection_on_another_node_ends(tmp_path: Path) -> None:
    _, (a, b) = nodes(tmp_path, "a", "b")
    old, new = Device(), Device()
    old.connect(a).subscribe()
    new.connect(b)
    assert (old.ended, old.state) == (1, None)
    assert new.state is not None
    assert new.state.present
    clean = Device()
    clean.connect(a, clean=True)
    assert new.ended == 1
    assert clean.state is not None
    assert not clean.state.present
    assert "device" not in book(b).stored


def test_another_users_session_is_not_handed_over(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    owner = Device(user="owner").connect(a)
    owner.leave()
    engine.turn()
    assert Device(user="thief").connect(b).outcome == ANOTHER
    assert "device" in book(a).stored


def test_of_two_that_connect_at_once_the_later_one_stays(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    first, second = Device(), Device()
    first.connect(a, wait=False)
    engine.clock.now += 0.001
    second.connect(b, wait=False)
    engine.turn()
    assert (first.outcome, second.outcome) == (TAKEN, FREE)


def test_a_session_stays_where_it_was_if_the_node_that_takes_it_is_lost(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    Device().connect(b, wait=False)
    for _ in range(3):
        engine.step()
    b.kill()
    publish(a, 0, 3)
    device.connect(a)
    assert waiting(device) == numbers(0, 3)


def test_a_client_is_let_in_though_a_node_does_not_answer(tmp_path: Path) -> None:
    engine, (a, _) = nodes(tmp_path, "a", "b")
    engine.cut.add(frozenset("ab"))
    device = Device().connect(a)
    assert device.outcome == WAITING
    engine.pass_time(6)
    assert device.outcome == FREE


def test_a_session_that_moved_is_on_disk_where_it_is_now(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    publish(a, 0, 3)
    device.connect(b).leave()
    engine.turn()
    for site in (a, b):
        assert site.disk is not None
        site.disk.write()
        site.kill()
    engine.clock.advance(1)
    again = [Site(engine, site.node, life=2, folder=tmp_path / site.node) for site in (a, b)]
    assert ["device" in book(site).stored for site in again] == [False, True]
    assert [frame.payload for frame in book(again[1]).stored["device"].waiting] == numbers(0, 3)


def test_a_node_that_comes_back_hands_over_what_a_session_had_there(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    publish(a, 0, 3)
    a.kill()
    engine.pass_time(10)
    device.connect(b)
    assert device.state is not None
    assert not device.state.present
    device.subscribe()
    device.leave()
    engine.clock.advance(1)
    a = Site(engine, "a", life=2, folder=tmp_path / "a").start()
    engine.pass_time(2)
    assert "device" not in book(a).stored
    publish(a, 3, 5)
    device.connect(b)
    assert waiting(device) == numbers(0, 5)


def test_a_node_that_leaves_gives_its_sessions_to_the_others(tmp_path: Path) -> None:
    engine, (a, b, c) = nodes(tmp_path, "a", "b", "c")
    for number in range(10):
        device = Device(f"device{number}").connect(a)
        device.subscribe()
        device.leave()
    engine.turn()
    publish(b, 0, 2)
    while a.fabric.hand_over_sessions():
        engine.pass_time(0.1)
    assert not book(a).stored
    assert len(book(b).stored) == len(book(c).stored) == 5
    publish(a, 2, 4)
    assert [frame.payload for frame in book(b).stored["device0"].waiting] == numbers(0, 4)


def test_a_session_that_a_node_has_offered_twice_is_found_later(tmp_path: Path) -> None:
    engine, (a, b, c) = nodes(tmp_path, "a", "b", "c")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    for _ in range(3):  # the others don't hear of it at once
        a.fabric.hand_over_sessions()
    engine.turn()
    publish(c, 0, 2)
    where, other = (b, c) if "device" in book(b).stored else (c, b)
    device.connect(other)
    assert waiting(device) == numbers(0, 2)
    assert "device" not in book(where).stored


def test_a_client_that_connects_while_its_session_moves_gets_it(tmp_path: Path) -> None:
    for steps in range(40):
        folder = tmp_path / f"{steps}"
        engine, (a, b, c) = nodes(folder, "a", "b", "c")
        device = Device().connect(a)
        device.subscribe()
        device.leave()
        engine.turn()
        publish(c, 0, 2)
        a.fabric.hand_over_sessions()  # to b
        for _ in range(steps):
            engine.step()
        device.connect((b, c)[steps % 2])
        engine.pass_time(0.5)
        assert device.state is not None, steps
        assert (device.state.present, waiting(device)) == (True, numbers(0, 2)), steps
        assert ["device" in book(each).stored for each in (a, b, c)] == [False] * 3, steps


def test_a_client_that_moves_on_at_once_keeps_its_session(tmp_path: Path) -> None:
    for steps in range(40):
        folder = tmp_path / f"{steps}"
        engine, (a, b, c) = nodes(folder, "a", "b", "c")
        device = Device().connect(a)
        device.subscribe()
        device.leave()
        engine.turn()
        publish(c, 0, 2)
        first = Device().connect((b, a)[steps % 2], wait=False)
        for _ in range(steps // 2):
            engine.step()
        engine.clock.now += 0.001
        device.connect(c)
        engine.pass_time(0.5)
        assert first.state is None, steps
        assert device.state is not None, steps
        assert (device.state.present, waiting(device)) == (True, numbers(0, 2)), steps
        assert ["device" in book(each).stored for each in (a, b, c)] == [False] * 3, steps


def test_what_comes_late_to_the_node_that_takes_a_session_is_there_once(tmp_path: Path) -> None:
    for steps in range(30):
        engine, (a, b, c) = nodes(tmp_path / f"{steps}", "a", "b", "c")
        b.subscribe("t")
        device = Device().connect(a)
        device.subscribe()
        device.leave()
        engine.turn()
        slow: list[tuple[str, str, bytes]] = []
        publish(c, 0, 2)
        send = c.member.send
        c.member.send = lambda node, batch, slow=slow, send=send: (  # type: ignore[method-assign,misc]
            slow.append(("c", node, bytes(batch))) if node == "b" else send(node, batch)
        )
        publish(c, 2, 4)
        device.connect(b, wait=False)
        for _ in range(steps):
            engine.step()
        c.member.send = send  # type: ignore[method-assign]
        engine.batches.extend(slow)
        engine.turn()
        publish(c, 4, 5)
        assert device.state is not None, steps
        device.leave()
        engine.turn()
        assert [frame.payload for frame in book(b).stored["device"].waiting] == numbers(0, 5), steps


def test_what_a_session_has_brought_along_does_not_come_again_after_a_crash(tmp_path: Path) -> None:
    engine, (a, b) = nodes(tmp_path, "a", "b")
    device = Device().connect(a)
    device.subscribe()
    device.leave()
    engine.turn()
    publish(a, 0, 3)
    device.connect(b).leave()
    engine.turn()
    for site in (a, b):
        assert site.disk is not None
        site.disk.write()
    a.kill()
    engine.clock.advance(1)
    a = Site(engine, "a", life=2, folder=tmp_path / "a").start()
    engine.pass_time(2)
    publish(a, 3, 5)
    assert [frame.payload for frame in book(b).stored["device"].waiting] == numbers(0, 5)
