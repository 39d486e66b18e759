"""Clients that number what they send, and remember what was acknowledged, received and confirmed.

Each worker is a thread that goes through the hub's lives, and across all of them sends a number once, so that whatever
arrives twice was doubled by the hub. Their records are what ``checks.py`` holds against the hub.
"""

import contextlib
import http.client
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from polywire.errors import LocalProtocolError
from polywire.journal.format import POSTED_SCHEMA
from polywire.protocols.mqtt import Connack, Connect, Decoder, Puback, Publish, Will, encode
from polywire.wire.frame import Frame
from tests.faults.kept_session import KeptSession, Link
from tests.interop.speaker import CannotSayError, HungUpError, RefusedError, Speaker, StreamWire
from tests.interop.speakers import speak

ENDED = (HungUpError, ConnectionError, ConnectionClosed, InvalidHandshake, InvalidMessage, EOFError)
"""What a client sees when the hub is killed, or its connection is cut."""

CONFIRMATIONS = "confirmations"
HTTP_SECONDS = 20.0
RETRY_SECONDS = 0.05
JOIN_SECONDS = 40.0
CALLS = 20
"""Calls on one connection."""


class UnavailableError(Exception):
    """HTTP 503."""


@dataclass
class Life:
    """One life of the hub as its clients see it. The two flags say what they have to put up with.

    ``elsewhere`` are the addresses of another node of a cluster, for the other end of a call.
    """

    addresses: Mapping[str, str]
    pace: float = 0.0
    cuts: bool = False
    refusals: bool = False
    dying: threading.Event = field(default_factory=threading.Event)
    elsewhere: Mapping[str, str] | None = None


class Worker:
    """Works through one life of the hub after the other. ``up`` is set once it has done something in this one."""

    name = ""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, life: Life) -> None:
        """A life begins."""
        self.up.clear()
        self._thread = threading.Thread(target=self._live, args=(life,), name=self.name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """The life has ended. Raises what went wrong in it."""
        if self._thread is None:
            return
        self._thread.join(JOIN_SECONDS)
        if self.failure is not None:
            raise AssertionError(f"{self.name}: {self.failure!r}") from self.failure
        assert not self._thread.is_alive(), f"{self.name} still waits for the hub"
        self._thread = None

    def work(self, life: Life) -> None:
        """Connect, and go on until the connection ends."""
        raise NotImplementedError

    def _live(self, life: Life) -> None:
        try:
            while not life.dying.is_set():
                try:
                    self.work(life)
                except (*ENDED, LocalProtocolError, http.client.HTTPException):  # also what was sent after a goodbye
                    if not (life.dying.is_set() or life.cuts or life.refusals):
                        raise
                except (RefusedError, UnavailableError):
                    if not life.refusals:
                        raise
                life.dying.wait(RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - reported by join
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
    """Publishes to a queue of its own, a topic for sessions that are kept, and a retained topic if it can."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.name = f"publisher {protocol}"
        self.protocol = protocol
        self.queued = Numbers(f"queue/{protocol}")
        self.away = Numbers(f"away/{protocol}")
        self.kept = Numbers(f"kept/{protocol}")
        self.retains = True

    def work(self, life: Life) -> None:
        with speak(self.protocol, life.addresses) as speaker:
            # FMQP acknowledges nothing, but what it has sent is safe once something later was acknowledged to anyone.
            if self.protocol == "fmqp":
                with speak("mqtt", life.addresses) as other:
                    self._go_on(life, speaker, other)
            else:
                self._go_on(life, speaker, None)

    def _go_on(self, life: Life, speaker: Speaker, confirming: Speaker | None) -> None:
        while not life.dying.is_set():
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
                if confirming is None or not life.refusals:  # while a disk is full nobody tells FMQP what was dropped
                    numbers.safe.add(number)
            self.up.set()
            life.dying.wait(life.pace)


class SurePublisher(Worker):
    """An MQTT client whose session is kept, with QoS 2: it sends again what was not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "publisher with QoS 2"
        self.queued = Numbers("queue/sure")
        self.away = Numbers("away/sure")
        self._session = KeptSession("sure")

    def work(self, life: Life) -> None:
        link = Link(life.addresses["mqtt"], self._session)
        try:
            for numbers in (self.queued, self.away):
                numbers.safe.update(range(1, numbers.last + 1))  # sent again, and acknowledged now
            while not life.dying.is_set():
                for numbers in (self.queued, self.away):
                    number = numbers.following()
                    link.publish(numbers.channel, numbers.body(number), 2)
                    numbers.safe.add(number)
                self.up.set()
                life.dying.wait(life.pace)
        finally:
            link.close()


class PartPublisher(Worker):
    """Posts parts to ``/publish``, each again until it is answered: every message has to be there once."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "publisher http"
        self.queued = Numbers("queue/http")
        self.away = Numbers("away/http")
        self.kept = Numbers("kept/http")
        self.repeated = 0
        self._batch = 0
        self._part: tuple[bytes, list[tuple[Numbers, int]]] | None = None

    def work(self, life: Life) -> None:
        host, _, port = life.addresses["http"].removeprefix("http://").rpartition(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=HTTP_SECONDS)) as connection:
            self.repeated += self._part is not None
            while not life.dying.is_set():
                if self._part is None:
                    self._part = self._next_part()
                body, numbers = self._part
                names = {"polywire-query": "faults", "polywire-batch": str(self._batch), "polywire-part": "0"}
                connection.request("POST", "/publish", body, names)
                answer = connection.getresponse()
                words = answer.read()
                if answer.status == 503:
                    raise UnavailableError(words)
                assert answer.status == 200, (answer.status, words)
                for each, number in numbers:
                    each.safe.add(number)
                self._batch += 1
                self._part = None
                self.up.set()
                life.dying.wait(life.pace)

    def _next_part(self) -> tuple[bytes, list[tuple[Numbers, int]]]:
        numbers = [(each, each.following()) for each in (*[self.queued] * 5, *[self.away] * 5, self.kept)]
        rows = [
            {"channel": each.channel, "body": each.body(number), "retain": each is self.kept, "queue": False}
            for each, number in numbers
        ]
        return arrow_stream(rows), numbers


def arrow_stream(rows: list[dict[str, Any]], **options: Any) -> bytes:
    """Messages as the body of ``POST /publish``."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, POSTED_SCHEMA, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(
            pa.Table.from_pylist([{"headers": None, "content_type": None} | row for row in rows], POSTED_SCHEMA)
        )
    return bytes(sink.getvalue())


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
        """What it has received, and what of that it has confirmed."""
        return self.got, self.confirmed

    def work(self, life: Life) -> None:
        with speak(self.protocol, life.addresses) as speaker:
            speaker.subscribe(self.channel)
            last = 0
            fresh: list[int] = []
            while True:
                number = number_in(speaker.receive().body)
                assert number not in self.confirmed, f"{number} was delivered again after it was confirmed"
                assert number > last, f"{number} was delivered after {last}"
                last = number
                self.got.add(number)
                fresh.append(number)
                if len(fresh) == self._every:
                    speaker.publish(CONFIRMATIONS, self.protocol.encode())
                    self.confirmed.update(fresh)
                    fresh.clear()
                    self.up.set()


class Returner(Worker):
    """An MQTT client whose session is kept, present in every life: it takes what it is due, and confirms that."""

    def __init__(self, name: str, qos: int, topic_filter: str = "away/#") -> None:
        super().__init__()
        self.name = name
        self.qos = qos
        self.topic_filter = topic_filter
        self.session = KeptSession(name)
        self.confirmed = 0  # of what it has received

    def work(self, life: Life) -> None:
        link = Link(life.addresses["mqtt"], self.session)
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
        assert not again, f"{self.name} received again what it had confirmed: {again}"


class SureConsumer(Returner):
    """One that takes from a queue."""

    def __init__(self, queue: str) -> None:
        super().__init__("consumer with QoS 2", 2, f"queue/{queue}")
        self.channel = self.topic_filter

    def taken(self) -> tuple[set[int], set[int]]:
        """What it has received, and what of that it has confirmed."""
        numbers = list(map(number_in, self.session.got))
        return set(numbers), set(numbers[: self.confirmed])


class Listener(Worker):
    """Hears all that goes to the sessions that are kept: once, and in order, as long as its connection lasts."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.name = f"listener {protocol}"
        self.protocol = protocol
        self.heard = 0

    def work(self, life: Life) -> None:
        last: dict[bytes, int] = {}
        with speak(self.protocol, life.addresses) as speaker:
            speaker.subscribe("away/*")
            self.up.set()
            while True:
                channel, _, number = speaker.receive().body.rpartition(b" ")
                before = last.get(channel, 0)
                assert int(number) > before, f"{self.name} heard {int(number)} of {channel!r} after {before}"
                last[channel] = int(number)
                self.heard += 1


class Mortal(Worker):
    """An MQTT client with a last will, a new one for each connection; it hangs up rudely, or is hung up on."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "client with a last will"
        self.kept = Numbers("kept/will")

    def work(self, life: Life) -> None:
        wire = StreamWire(life.addresses["mqtt"])
        try:
            number = self.kept.following()
            will = Will(self.kept.channel, self.kept.body(number), 1, retain=True)
            wire.send(
                encode(Connect("mortal", clean_session=True, keep_alive=0, will=will))
                + encode(Publish(CONFIRMATIONS, b"", 1, packet_id=1))
            )
            decoder = Decoder(role="client")
            frames: list[Frame] = []
            while not any(isinstance(frame, Puback) for frame in frames):
                frames += decoder.feed(wire.receive())
            assert frames[0] == Connack(session_present=False, return_code=0), frames
            self.kept.safe.add(number)
            self.up.set()
            life.dying.wait(0.15)
        finally:
            wire.close()


class Caller(Worker):
    """Calls services over each of the protocols that can: every reply has to be that of its own request."""

    PAIRS = itertools.cycle((("mqtt", "umq"), ("umq", "sabc"), ("sabc", "mqtt"), ("mqtt", "mqtt")))

    def __init__(self) -> None:
        super().__init__()
        self.name = "caller"
        self.calls = 0

    def work(self, life: Life) -> None:
        caller_kind, provider_kind = next(self.PAIRS)
        self.name = f"caller {caller_kind} of a service over {provider_kind}"
        try:
            there = life.elsewhere or life.addresses
            with speak(caller_kind, life.addresses) as caller, speak(provider_kind, there) as provider:
                self._call(life, caller, provider)
        except RefusedError:
            if not life.cuts:  # only there a provider goes before its caller does
                raise

    def _call(self, life: Life, caller: Speaker, provider: Speaker) -> None:
        service = f"echo-{self.calls}"
        provider.serve(service)
        for _ in range(CALLS):
            if life.dying.is_set():
                return
            self.calls += 1
            body = f"call {self.calls}".encode()
            ticket = caller.begin_call(service, "Echo", body)
            provider.answer(lambda _, sent: b"reply to " + sent)
            reply = caller.end_call(ticket)
            assert reply == b"reply to " + body, f"{self.name}: {reply!r} is the reply to {body!r}"
            self.up.set()
            life.dying.wait(life.pace or 0.005)
