"""What a hub owes its clients after any number of faults, decided from the clients' own records and the journal."""

import collections
from collections.abc import Iterable, Mapping
from pathlib import Path

from faults.load import (
    Caller,
    Life,
    Listener,
    Mortal,
    Numbers,
    PartPublisher,
    Publisher,
    QueueConsumer,
    Returner,
    SureConsumer,
    SurePublisher,
    Worker,
    number_in,
)
from polywire import journal
from polywire.journal.verify import verify
from tests.faults.kept_session import KeptSession, Link
from tests.interop.speakers import PROTOCOLS, speak

END = b"the end 0"
UP_SECONDS = 40.0


class Load:
    """Everyone who works on the hub, and what they know together."""

    def __init__(self) -> None:
        self.publishers = [Publisher(protocol) for protocol in PROTOCOLS]
        self.sure = SurePublisher()
        self.parts = PartPublisher()
        self.mortal = Mortal()
        self.consumers: list[QueueConsumer | SureConsumer] = [
            SureConsumer("umq"),
            QueueConsumer("mqtt", "sabc"),
            QueueConsumer("micromsg", "mqtt"),
            QueueConsumer("sabc", "micromsg"),
            QueueConsumer("mqtt", "http"),
        ]
        self.returners = [Returner("back with QoS 1", 1), Returner("back with QoS 2", 2)]
        self.away = [KeptSession("away with QoS 1"), KeptSession("away with QoS 2")]
        self.listeners = [Listener(protocol) for protocol in PROTOCOLS]
        self.caller = Caller()
        self.workers: list[Worker] = [
            *(*self.publishers, self.sure, self.parts, self.mortal),
            *(*self.consumers, *self.returners, *self.listeners, self.caller),
        ]

    def queued(self) -> list[Numbers]:
        """What was put into queues."""
        return [*(each.queued for each in self.publishers), self.sure.queued, self.parts.queued]

    def published(self) -> list[Numbers]:
        """What was published for sessions that are kept."""
        return [*(each.away for each in self.publishers), self.sure.away, self.parts.away]

    def retained(self) -> list[Numbers]:
        """What was retained."""
        return [*(each.kept for each in self.publishers), self.parts.kept, self.mortal.kept]

    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(len(each.safe) for each in (*self.queued(), *self.published(), *self.retained()))

    def subscribe(self, addresses: Mapping[str, str]) -> None:
        """Those whose sessions are kept subscribe, before anything is published, and leave."""
        wanted = [(self.away[0], "away/#", 1), (self.away[1], "away/#", 2)]
        wanted += [(each.session, each.topic_filter, each.qos) for each in self.workers if isinstance(each, Returner)]
        for session, topic_filter, qos in wanted:
            link = Link(addresses["mqtt"], session)
            link.subscribe(topic_filter, qos)
            link.leave()

    def start(self, life: Life, absent: Iterable[Worker] = ()) -> None:
        """All but those who are absent begin to work, and have done something."""
        present = [each for each in self.workers if each not in set(absent)]
        for worker in present:
            worker.start(life)
        for worker in present:
            if isinstance(worker, (Publisher, SurePublisher, PartPublisher, Mortal, Caller)):
                assert worker.up.wait(UP_SECONDS), f"{worker.name} does not get going"

    def join(self) -> None:
        """The life has ended. Raises what went wrong in it."""
        for worker in self.workers:
            worker.join()

    def check_retained(self, addresses: Mapping[str, str]) -> None:
        """What was retained last is still retained, or something newer that was not acknowledged."""
        for numbers in self.retained():
            if numbers.safe:
                with speak("mqtt", addresses) as speaker:
                    speaker.subscribe(numbers.channel)
                    heard = speaker.receive()
                assert heard.retained
                number = number_in(heard.body)
                last = max(numbers.safe)
                assert last <= number <= numbers.last, f"{numbers.channel} has {number}; {last} was acknowledged"

    def check_queues(self, addresses: Mapping[str, str]) -> None:
        """Every queue has what was acknowledged and not taken, in order, once, and nothing that was confirmed."""
        taken = {consumer.channel: consumer for consumer in self.consumers}
        for numbers in self.queued():
            consumer = taken.get(numbers.channel)
            got, confirmed = consumer.taken() if consumer is not None else (set(), set())
            left = drain(addresses, numbers.channel)
            assert left == sorted(set(left)), f"{numbers.channel} is not in order, or has something twice: {left}"
            again = confirmed & set(left)
            assert not again, f"{numbers.channel} has what was confirmed: {sorted(again)}"
            lost = numbers.safe - got - set(left)
            assert not lost, f"{numbers.channel} lost {sorted(lost)}"
            assert set(left) <= set(range(1, numbers.last + 1)), f"{numbers.channel} has what nobody sent: {left}"

    def check_sessions(self, addresses: Mapping[str, str]) -> None:
        """Every session gets what was acknowledged while it was away, or present."""
        sessions = [*self.away, *(returner.session for returner in self.returners)]
        with speak("mqtt", addresses) as speaker:
            speaker.publish("away/end", END)
        for session in sessions:
            link = Link(addresses["mqtt"], session)
            while END not in session.got[-1:]:
                link.take()
            link.leave()
            for numbers in self.published():
                check_session(session, numbers)
        for exact in (*self.away, self.returners[1].session):
            # What MQTT's own publisher sent has QoS 1, and may come again when it was not acknowledged.
            once = [body for body in exact.got if exact in self.away or not body.startswith(b"away/mqtt ")]
            twice = [body for body, times in collections.Counter(once).items() if times > 1]
            assert not twice, f"{exact.name} got twice: {twice}"
        for worker in self.workers:
            if isinstance(worker, Returner):
                worker.check()

    def check_journal(self, folder: Path, *, whole: bool) -> None:
        """The journal is sound, and has every acknowledged message once; ``whole``: nothing of it was deleted."""
        unsound = [str(finding) for each in verify(folder) if not each.sound for finding in each.findings]
        assert not unsound, f"the journal is damaged: {unsound}"
        kinds = ("publish", "enqueue")
        rows: dict[str, list[int]] = {}
        next_offset: int | None = None
        for batch in journal.open(folder).scan(["offset", "kind", "channel", "body"]):
            for row in batch.to_pylist():
                assert next_offset in {None, row["offset"]}, f"offset {row['offset']} follows {next_offset}"
                next_offset = row["offset"] + 1
                if row["kind"] in kinds and row["body"].startswith(f"{row['channel']} ".encode()):
                    rows.setdefault(row["channel"], []).append(number_in(row["body"]))
        for numbers in (*self.queued(), *self.published(), *self.retained()):
            found = rows.get(numbers.channel, [])
            assert found == sorted(set(found)), f"the journal has {numbers.channel} twice, or out of order"
            missing = numbers.safe - set(found)
            assert not (whole and missing), f"the journal lacks {sorted(missing)} of {numbers.channel}"


def check_session(session: KeptSession, numbers: Numbers) -> None:
    """What one publisher sent has come whole, and in order but for what came again."""
    prefix = numbers.channel.encode() + b" "
    first = list(dict.fromkeys(number_in(body) for body in session.got if body.startswith(prefix)))
    lost = numbers.safe - set(first)
    assert not lost, f"{session.name} lost {sorted(lost)} of {numbers.channel}"
    assert first == sorted(first), f"{session.name} has {numbers.channel} out of order"
    assert set(first) <= set(range(1, numbers.last + 1)), f"{session.name} has what nobody sent"


def drain(addresses: Mapping[str, str], channel: str) -> list[int]:
    """Everything that is in a queue."""
    found = []
    with speak("mqtt", addresses) as speaker:
        speaker.publish(channel, END)
        speaker.subscribe(channel)
        while (body := speaker.receive().body) != END:
            found.append(number_in(body))
    return found
