"""Stand-ins for the transport and the sessions around the hub."""

from collections.abc import Callable

from polywire.hub.message import Message
from polywire.hub.outbox import DROP, Flusher, Outbox
from polywire.hub.queues import Queue
from polywire.hub.routes import Subscription


def contents(queue: Queue) -> list[Message]:
    """All messages of a queue in order, those handed out included."""
    deliveries = [*queue._handed_out.values(), *queue._unwanted, *queue._waiting, *queue._delayed.values()]
    deliveries += [delivery for _, delivery in queue._returned]
    return [delivery.message for delivery in sorted(deliveries, key=lambda delivery: delivery.number)]


class Clock:
    """Time that passes when told. ``jump`` is how far the time of day was set forward."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jump = 0.0
        self.alarms: list[Alarm] = []

    def later(self, seconds: float, call: Callable[[], None]) -> "Alarm":
        self.alarms.append(Alarm(self.now + seconds, call))
        return self.alarms[-1]

    def nanoseconds(self) -> int:
        return int(self.now * 1e9)

    def wall_nanoseconds(self) -> int:
        return int((self.now + self.jump) * 1e9)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for alarm in self.alarms:
            if alarm.at <= self.now and not alarm.cancelled:
                alarm.cancelled = True
                alarm.call()


class Alarm:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Collects what is to run at the end of the turn."""

    def __init__(self) -> None:
        self.soon: list[object] = []
        self.clock = Clock()
        self.flusher = Flusher(self.soon.append, self.clock.later)

    def turn(self) -> None:
        soon, self.soon[:] = self.soon[:], []
        for call in soon:
            call()  # type: ignore[operator]


class FakeLink:
    """A transport that remembers what was written, and can be told to stall."""

    def __init__(self, loop: Loop, *, cap: int = 100, policy: int = DROP) -> None:
        self.outbox = Outbox(self, loop.flusher, cap=cap, policy=policy)
        self.writes: list[bytes] = []
        self.paused = 0
        self.overflows = 0
        self.stall_next = False

    def send(self, chunks: list[bytes | memoryview]) -> None:
        self.writes.append(b"".join(chunks))
        if self.stall_next:
            self.outbox.stall()

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused -= 1

    def overflow(self) -> None:
        self.overflows += 1


class Recorder(Subscription):
    """A subscription that remembers what it was given."""

    def __init__(self, pattern: str, link: FakeLink, group: int, *, protocol: int = -1, rank: int = 0) -> None:
        super().__init__(pattern, link.outbox, group, protocol=protocol, rank=rank)
        self.got: list[Message] = []

    def deliver(self, message: Message) -> None:
        self.got.append(message)
