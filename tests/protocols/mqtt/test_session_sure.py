"""What a kept session is sent, and what it is told, when the journal remembers it: not before that is safe."""

from collections.abc import Callable

import pytest

from polywire.hub.recorder import Recorder
from polywire.journal.committer import BatchMaker
from polywire.journal.kinds import QOS_SHIFT, UNHEARD_FLAG
from polywire.journal.state import BATCH_OCTETS
from polywire.protocols.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.hub.links import contents
from tests.protocols.mqtt.broker import Broker, MqttClient


class Disk:
    """Makes things safe, or fails to, when a test says so."""

    def __init__(self, broker: Broker) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.recorder = Recorder(0, broker.hub.clock, lambda: None)
        broker.hub.recorder = self.recorder
        broker.hub.when_safe = lambda safe, failed: self.waiting.append((safe, failed))

    def write(self) -> None:
        """Everything is safe."""
        while self.waiting:
            self.waiting.pop(0)[0]()

    def fail(self) -> None:
        """Nothing is."""
        while self.waiting:
            self.waiting.pop(0)[1]()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def disk(broker: Broker) -> Disk:
    return Disk(broker)


def connected(broker: Broker, disk: Disk, *filters: tuple[str, int]) -> MqttClient:
    client = broker.client("me", clean=False)
    client.subscribe(*filters)
    disk.write()
    client.got()
    return client


def test_a_message_with_qos_2_is_sent_when_its_packet_id_is_safe(broker: Broker, disk: Disk) -> None:
    client = connected(broker, disk, ("t", 2))
    broker.publish("t", b"x")
    assert client.got() == []
    disk.write()
    assert client.got() == [Publish("t", b"x", 2, packet_id=1)]
    assert client.ask(Pubrec(1)) == []
    disk.write()
    assert client.got() == [Pubrel(1)]


def test_a_message_with_qos_1_does_not_wait_but_stays_behind_those_that_do(broker: Broker, disk: Disk) -> None:
    client = connected(broker, disk, ("one", 1), ("two", 2))
    broker.publish("one", b"1")
    assert client.got() == [Publish("one", b"1", 1, packet_id=1)]
    broker.publish("two", b"2")
    broker.publish("one", b"3")
    assert client.got() == []
    disk.write()
    assert client.got() == [Publish("two", b"2", 2, packet_id=2), Publish("one", b"3", 1, packet_id=3)]
    broker.publish("one", b"4")
    assert client.got() == [Publish("one", b"4", 1, packet_id=4)]


def test_a_disk_that_fails_keeps_no_message_from_its_subscriber(broker: Broker, disk: Disk) -> None:
    client = connected(broker, disk, ("t", 2))
    broker.publish("t", b"x")
    disk.fail()
    assert client.got() == [Publish("t", b"x", 2, packet_id=1)]


def test_what_waits_for_the_disk_is_sent_once_by_the_connection_that_is_there(broker: Broker, disk: Disk) -> None:
    first = connected(broker, disk, ("t", 2))
    broker.publish("t", b"x")
    first.wire.lose()
    second, rest = broker.resumed("me")
    assert rest == []
    broker.publish("t", b"y")
    assert second.got() == []
    disk.write()
    assert second.got() == [
        Publish("t", b"x", 2, dup=True, packet_id=1),
        Publish("t", b"y", 2, packet_id=2),
    ]


def test_a_queue_s_message_with_qos_2_is_sent_when_its_packet_id_is_safe(broker: Broker, disk: Disk) -> None:
    client = connected(broker, disk, ("queue/q", 2))
    broker.publish("queue/q", b"x")
    assert client.got() == []
    disk.write()
    assert client.got() == [Publish("queue/q", b"x", 2, packet_id=1)]
    client.send(Pubrec(1))
    disk.write()
    assert client.ask(Pubcomp(1)) == [Pubrel(1)]
    assert contents(broker.hub.queue("q")) == []


def test_a_publication_that_could_not_be_made_safe_yet_is_known_when_it_is_sent_again(
    broker: Broker, disk: Disk
) -> None:
    client = connected(broker, disk, ("t", 1))
    client.send(Publish("queue/q", b"x", 2, packet_id=5))
    disk.fail()
    assert client.closed()
    client.wire.lose()
    client, _ = broker.resumed("me")
    client.send(Publish("queue/q", b"x", 2, dup=True, packet_id=5))
    disk.write()
    assert client.got() == [Pubrec(5)]
    assert [message.body for message in contents(broker.hub.queue("q"))] == [b"x"]


def test_a_qos_2_publication_and_its_packet_id_are_safe_together(broker: Broker, disk: Disk) -> None:
    client = connected(broker, disk, ("t", 1))
    disk.recorder.take()
    disk.recorder.columns.hold(bytes(BATCH_OCTETS))
    client.send(Publish("t", bytes(BATCH_OCTETS + 1), 2, packet_id=5), Publish("t", b"next", 2, packet_id=6))
    first, _ = disk.recorder.take()
    # What the first message brought is in one batch: the id, the message, and that it is due.
    assert int(first.rows) == 3


def test_acknowledgements_of_what_was_sent_before_a_reconnection_are_taken_at_once(broker: Broker, disk: Disk) -> None:
    first = connected(broker, disk, ("t", 1))
    broker.publish("t", b"x")
    first.wire.lose()
    second, _ = broker.resumed("me")
    second.send(Puback(1))
    disk.write()
    assert second.got() == []


def test_publications_with_qos_1_that_came_together_are_acknowledged_when_all_are_safe(
    broker: Broker, disk: Disk
) -> None:
    watcher = connected(broker, disk, ("heard/#", 0))
    topics = ["unheard", "heard/a", "queue/q", "heard/b", "unheard"]
    frames = [Publish(topic, topic.encode(), 1, packet_id=7 + at) for at, topic in enumerate(topics)]
    publisher = broker.client("publisher")
    disk.recorder.take()
    publisher.send(*frames)
    assert publisher.got() == []
    disk.write()
    assert publisher.got() == [Puback(7 + at) for at in range(5)]
    assert watcher.got() == [Publish("heard/a", b"heard/a"), Publish("heard/b", b"heard/b")]
    assert [message.body for message in contents(broker.hub.queue("q"))] == [b"queue/q"]
    rows = [row for columns in disk.recorder.take() for row in BatchMaker("here").make(columns).to_pylist()]
    assert [(row["kind"], row["channel"], row["body"]) for row in rows] == [
        ("enqueue" if topic == "queue/q" else "publish", topic, topic.encode()) for topic in topics
    ]
    heard = [row["flags"] & UNHEARD_FLAG == 0 for row in rows]
    assert heard == [False, True, True, True, False]
    assert {(row["flags"] >> QOS_SHIFT) & 3 for row in rows} == {1}


def test_publications_with_qos_1_are_not_taken_while_the_journal_can_t_be_written(broker: Broker, disk: Disk) -> None:
    publisher = broker.client("publisher")
    disk.recorder.failed = True
    publisher.send(Publish("t", b"x", 1, packet_id=1))
    assert publisher.got() == []
    assert publisher.closed()
