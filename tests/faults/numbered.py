"""Numbered messages under a hub that is killed again and again: who sent, got and confirmed which.

Each worker is a thread that lives as long as the hub does, and remembers across the hub's lives. A number is sent once,
so that whatever comes twice was doubled by the hub.
"""

import threading
from collections.abc import Mapping

from websockets.exceptions import ConnectionClosed

from tests.faults.kept_session import KeptSession, Link
from tests.interop.speaker import CannotSayError, HungUpError, Speaker
from tests.interop.speakers import speak

ENDED = (HungUpError, ConnectionError, ConnectionClosed)
"""What a client sees when the hub is killed."""

CONFIRMATIONS = "confirmations"


class Worker:
    """Works through one life of the hub after the other. ``up`` is set when it has got going in this one."""

    name = ""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._dying = threading.Event()

    def start(self, addresses: Mapping[str, str]) -> None:
        """A life begins."""
        self.up.clear()
        self._dying.clear()
        self._thread = threading.Thread(target=self._live, args=(addresses,), name=self.name, daemon=True)
        self._thread.start()

    def dying(self) -> None:
        """From now on a connection may end."""
        self._dying.set()

    def join(self) -> None:
        """The life has ended. Raises what went wrong in it."""
        assert self._thread is not None
        self._thread.join(30)
        if self.failure is not None:
            raise AssertionError(f"{self.name}: {self.failure!r}") from self.failure
        assert not self._thread.is_alive(), f"{self.name} still waits for the hub"

    def work(self, addresses: Mapping[str, str]) -> None:
        """Go on until the connection ends."""
        raise NotImplementedError

    def _live(self, addresses: Mapping[str, str]) -> None:
        try:
            self.work(addresses)
        except ENDED as error:
            if not self._dying.is_set():
                self.failure = error
        except BaseException as error:  # noqa: BLE001 - told by join
            self.failure = error
        finally:
            self.up.set()


class Numbers:
    """The numbers sent to one channel: each is one more than the last. ``safe`` are those that were acknowledged."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.last = 0
        self.safe: set[int] = set()

    def following(self) -> int:
        """The next number, which counts as sent from now on."""
        self.last += 1
        return self.last

    def body(self, number: int) -> bytes:
        """What is sent."""
        return f"{self.channel} {number}".encode()


def number_in(body: bytes) -> int:
    """The number of a message."""
    return int(body.rpartition(b" ")[2])


class Publisher(Worker):
    """Publishes to a queue of its own, a retained topic if its protocol has any, and a topic for those who are away."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.name = f"publisher {protocol}"
        self.protocol = protocol
        self.queued = Numbers(f"queue/{protocol}")
        self.away = Numbers(f"away/{protocol}")
        self.kept = Numbers(f"kept/{protocol}")
        self.retains = True

    def work(self, addresses: Mapping[str, str]) -> None:
        with speak(self.protocol, addresses) as speaker:
            # What FMQP has accepted is safe when something later was acknowledged to whoever it may be.
            if self.protocol == "fmqp":
                with speak("mqtt", addresses) as other:
                    self._go_on(speaker, other)
            else:
                self._go_on(speaker, None)

    def _go_on(self, speaker: Speaker, confirming: Speaker | None) -> None:
        while True:
            for numbers in (self.queued, self.away, self.kept):
                retain = numbers is self.kept
                if retain and not self.retains:
                    continue
                number = numbers.following()
                try:
                    speaker.publish(numbers.channel, numbers.body(number), retain=retain)
                except CannotSayError:
                    self.retains = False
                    numbers.last = 0
                    continue
                if confirming is not None:
                    confirming.publish(CONFIRMATIONS, b"fmqp")
                numbers.safe.add(number)
            self.up.set()


class SurePublisher(Worker):
    """An MQTT client whose session is kept, with QoS 2: it sends again what was not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "publisher with QoS 2"
        self.queued = Numbers("queue/sure")
        self._session = KeptSession("sure")

    def work(self, addresses: Mapping[str, str]) -> None:
        link = Link(addresses["mqtt"], self._session)
        try:
            self.queued.safe.update(range(1, self.queued.last + 1))  # sent again, and acknowledged now
            while True:
                number = self.queued.following()
                link.publish(self.queued.channel, self.queued.body(number), 2)
                self.queued.safe.add(number)
                self.up.set()
        finally:
            link.close()


class QueueConsumer(Worker):
    """Takes from a queue, acknowledges, and confirms that with an acknowledged publication on the same connection."""

    def __init__(self, protocol: str, queue: str, *, every: int = 3) -> None:
        super().__init__()
        self.name = f"consumer {protocol}"
        self.protocol = protocol
        self.channel = f"queue/{queue}"
        self.got: set[int] = set()
        self.confirmed: set[int] = set()
        self._every = every

    def taken(self) -> tuple[set[int], set[int]]:
        """What it has got, and what of that it has confirmed."""
        return self.got, self.confirmed

    def work(self, addresses: Mapping[str, str]) -> None:
        with speak(self.protocol, addresses) as speaker:
            speaker.subscribe(self.channel)
            last = 0
            fresh: list[int] = []
            while True:
                number = number_in(speaker.receive().body)
                assert number not in self.confirmed, f"{number} has come again after it was confirmed"
                assert number > last, f"{number} has come after {last}"
                last = number
                self.got.add(number)
                fresh.append(number)
                if len(fresh) == self._every:
                    speaker.publish(CONFIRMATIONS, self.protocol.encode())
                    self.confirmed.update(fresh)
                    fresh.clear()
                    self.up.set()


class Returner(Worker):
    """An MQTT client whose session is kept, there in every life: what it is due it takes by the book."""

    def __init__(self, name: str, qos: int, topic_filter: str = "away/#") -> None:
        super().__init__()
        self.name = name
        self.qos = qos
        self.topic_filter = topic_filter
        self.session = KeptSession(name)
        self.confirmed = 0  # of what it has got

    def work(self, addresses: Mapping[str, str]) -> None:
        link = Link(addresses["mqtt"], self.session)
        try:
            assert link.present, "the hub has forgotten the session"
            while True:
                link.wait_for(len(self.session.got) + 1)
                got = len(self.session.got)
                link.publish(CONFIRMATIONS, self.name.encode(), 1)
                self.confirmed = got
                self.up.set()
        finally:
            link.close()

    def check(self) -> None:
        """What it had confirmed has not come again."""
        got = self.session.got
        again = set(got[: self.confirmed]) & set(got[self.confirmed :])
        assert not again, f"{self.name} got again what it had confirmed: {again}"


class SureConsumer(Returner):
    """One that takes from a queue."""

    def __init__(self, queue: str) -> None:
        super().__init__("consumer with QoS 2", 2, f"queue/{queue}")
        self.channel = self.topic_filter

    def taken(self) -> tuple[set[int], set[int]]:
        """What it has got, and what of that it has confirmed."""
        numbers = list(map(number_in, self.session.got))
        return set(numbers), set(numbers[: self.confirmed])
