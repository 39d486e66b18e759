"""A hub that is killed at any moment has lost nothing that it acknowledged, and gives nothing twice that was confirmed.

Clients of all protocols publish, take and confirm while the hub is killed again and again on the same journal.
"""

import collections
import contextlib
import random
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.kept_session import KeptSession, Link
from tests.faults.numbered import (
    Numbers,
    Publisher,
    QueueConsumer,
    Returner,
    SureConsumer,
    SurePublisher,
    Worker,
    number_in,
)
from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import PROTOCOLS, speak

LIVES = 20
SHORTEST, LONGEST = 0.2, 0.8
"""Seconds the hub lives once everybody is at work."""

SETTINGS = ("journal.segment_size=65536", "limits.offline_messages=1000000")
END = b"the end 0"


class Load:
    """Everybody who works on the hub, and what they know together."""

    def __init__(self) -> None:
        self.publishers = [Publisher(protocol) for protocol in PROTOCOLS]
        self.sure = SurePublisher()
        self.consumers: list[QueueConsumer | SureConsumer] = [
            SureConsumer("umq"),
            QueueConsumer("mqtt", "sabc"),
            QueueConsumer("micromsg", "mqtt"),
            QueueConsumer("sabc", "micromsg"),
        ]
        self.returners = [Returner("back with QoS 1", 1), Returner("back with QoS 2", 2)]
        self.away = [KeptSession("away with QoS 1"), KeptSession("away with QoS 2")]
        self.workers: list[Worker] = [*self.publishers, self.sure, *self.consumers, *self.returners]

    def subscribe(self, addresses: Mapping[str, str]) -> None:
        """Those whose sessions are kept subscribe, before anything is published, and leave."""
        wanted = [(self.away[0], "away/#", 1), (self.away[1], "away/#", 2)]
        wanted += [(each.session, each.topic_filter, each.qos) for each in self.workers if isinstance(each, Returner)]
        for session, topic_filter, qos in wanted:
            link = Link(addresses["mqtt"], session)
            link.subscribe(topic_filter, qos)
            link.leave()

    @contextlib.contextmanager
    def working(self, hub: HubProcess) -> Iterator[None]:
        """All are at work; the hub is killed at the end."""
        for worker in self.workers:
            worker.start(hub.addresses)
        try:
            for worker in self.workers:
                assert worker.up.wait(30), f"{worker.name} does not get going"
            yield
        finally:
            for worker in self.workers:
                worker.dying()
            hub.process.send_signal(signal.SIGKILL)
            hub.process.wait(20)
        for worker in self.workers:
            worker.join()

    def check_retained(self, addresses: Mapping[str, str]) -> None:
        """What was retained last is, or something newer."""
        for publisher in self.publishers:
            numbers = publisher.kept
            if numbers.safe:
                with speak("mqtt", addresses) as speaker:
                    speaker.subscribe(numbers.channel)
                    heard = speaker.receive()
                assert heard.retained
                number = number_in(heard.body)
                assert max(numbers.safe) <= number <= numbers.last, f"{numbers.channel} has {number}"

    def check_queues(self, addresses: Mapping[str, str]) -> None:
        """Every queue has what was acknowledged and not taken, in order, once, and nothing that was confirmed."""
        taken = {consumer.channel: consumer for consumer in self.consumers}
        for numbers in [*(publisher.queued for publisher in self.publishers), self.sure.queued]:
            consumer = taken.get(numbers.channel)
            got, confirmed = consumer.taken() if consumer is not None else (set(), set())
            left = drain(addresses, numbers.channel)
            assert left == sorted(set(left)), f"{numbers.channel} is not in order, or has something twice"
            assert not confirmed & set(left), f"{numbers.channel} has what was confirmed"
            lost = numbers.safe - got - set(left)
            assert not lost, f"{numbers.channel} lost {sorted(lost)}"
            assert set(left) <= set(range(1, numbers.last + 1))

    def check_sessions(self, addresses: Mapping[str, str]) -> None:
        """Every session gets what was acknowledged while it was away, or there."""
        sessions = [*self.away, *(returner.session for returner in self.returners)]
        with speak("mqtt", addresses) as speaker:
            speaker.publish("away/end", END)
        for session in sessions:
            link = Link(addresses["mqtt"], session)
            while END not in session.got[-1:]:
                link.take()
            link.leave()
            for publisher in self.publishers:
                check_session(session, publisher.away)
        for exact in (*self.away, self.returners[1].session):
            # What MQTT's own publisher sent has QoS 1, and may come again when it was not acknowledged.
            once = [body for body in exact.got if exact in self.away or not body.startswith(b"away/mqtt ")]
            twice = [body for body, times in collections.Counter(once).items() if times > 1]
            assert not twice, f"{exact.name} got twice: {twice}"
        for worker in self.workers:
            if isinstance(worker, Returner):
                worker.check()


def check_session(session: KeptSession, numbers: Numbers) -> None:
    """What one publisher sent has come whole, and in order but for what came again."""
    prefix = numbers.channel.encode() + b" "
    first = list(dict.fromkeys(number_in(body) for body in session.got if body.startswith(prefix)))
    lost = numbers.safe - set(first)
    assert not lost, f"{session.name} lost {sorted(lost)} of {numbers.channel}"
    assert first == sorted(first), f"{session.name} has {numbers.channel} out of order"
    assert set(first) <= set(range(1, numbers.last + 1))


def drain(addresses: Mapping[str, str], channel: str) -> list[int]:
    """Everything that is in a queue."""
    found = []
    with speak("mqtt", addresses) as speaker:
        speaker.publish(channel, END)
        speaker.subscribe(channel)
        while (body := speaker.receive().body) != END:
            found.append(number_in(body))
    return found


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_the_hub_is_killed_twenty_times(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)  # noqa: S311 - no secret
    load = Load()
    for life in range(LIVES):
        with running_hub(*SETTINGS, journal=tmp_path / "journal") as hub:
            if life == 0:
                load.subscribe(hub.addresses)
            else:
                load.check_retained(hub.addresses)
            with load.working(hub):
                time.sleep(chance.uniform(SHORTEST, LONGEST))  # the moment of the kill is the point
    assert len({path.stem for form in ("arrow", "parquet") for path in (tmp_path / "journal").glob(f"*.{form}")}) > 1
    with running_hub(*SETTINGS, journal=tmp_path / "journal") as hub:
        load.check_retained(hub.addresses)
        load.check_queues(hub.addresses)
        load.check_sessions(hub.addresses)
        assert hub.stop() == 0
