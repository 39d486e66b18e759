"""An MQTT client that does everything by the book, and whose session both sides keep: for tests that end hubs.

What it remembers survives its connections: packet ids it has got and not been told to let go, publications the hub has
not acknowledged. Each ``Link`` is one connection of it.
"""

from collections.abc import Callable
from typing import TypeVar

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    encode,
)
from polywire.wire.frame import Frame
from tests.interop.speaker import RefusedError, StreamWire

F = TypeVar("F")


class KeptSession:
    """The client's side of a session. ``got`` has the bodies it was given, each once as QoS 2 promises."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[bytes] = []
        self.known: set[int] = set()  # packet ids of QoS 2 that were got and not let go
        self.released: set[int] = set()  # our own, for which the hub has sent PUBREC
        self.unfinished: dict[int, Publish] = {}
        self._last = 0

    def number(self) -> int:
        """A packet id for a publication of ours."""
        self._last = self._last % 60_000 + 1
        return self._last


class Link:
    """One connection. It answers what comes while it waits for something. ``RefusedError``: the hub wants no more."""

    def __init__(self, address: str, session: KeptSession) -> None:
        self._session = session
        self._wire = StreamWire(address)
        self._decoder = Decoder(role="client")
        self._frames: list[Frame] = []
        try:
            self.say(Connect(session.name, clean_session=False, keep_alive=0))
            self.present = self._accepted().session_present
            if not self.present:
                session.known.clear()
            self._resume()
        except BaseException:
            self._wire.close()
            raise

    def _accepted(self) -> Connack:
        answer = self.until(lambda frame: frame if isinstance(frame, Connack) else None)
        if answer.return_code:
            raise RefusedError(str(answer.return_code))
        return answer

    def close(self) -> None:
        """Hang up without a word."""
        self._wire.close()

    def leave(self) -> None:
        """Take leave as MQTT has it."""
        self.say(Disconnect())
        self.close()

    def say(self, *frames: Frame) -> None:
        """Send packets."""
        self._wire.send(b"".join(map(encode, frames)))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe, and wait for the answer."""
        self.say(Subscribe(60_001, ((topic_filter, qos),)))
        answer = self.until(lambda frame: frame if isinstance(frame, Suback) else None)
        assert answer.return_codes == (qos,)

    def publish(self, topic: str, body: bytes, qos: int) -> None:
        """Publish, and wait until the hub has it for sure."""
        number = self._session.number()
        frame = Publish(topic, body, qos, retain=False, dup=False, packet_id=number)
        self._session.unfinished[number] = frame
        self.say(frame)
        while number in self._session.unfinished:
            self.take()

    def wait_for(self, count: int) -> None:
        """Go on until so many messages were got."""
        while len(self._session.got) < count:
            self.take()

    def take(self) -> None:
        """Take what comes next, and answer it."""
        self.until(lambda frame: frame)

    def until(self, wanted: Callable[[Frame], F | None]) -> F:
        """Take what comes until it is what is wanted."""
        while True:
            while not self._frames:
                self._frames = self._decoder.feed(self._wire.receive())
            frame = self._frames.pop(0)
            self._answer(frame)
            found = wanted(frame)
            if found is not None:
                return found

    def _answer(self, frame: Frame) -> None:
        session = self._session
        if isinstance(frame, Publish):
            number = frame.packet_id or 0
            if frame.qos == 1:
                session.got.append(frame.payload)
                self.say(Puback(number))
            elif frame.qos == 2:
                if number not in session.known:
                    session.known.add(number)
                    session.got.append(frame.payload)
                self.say(Pubrec(number))
        elif isinstance(frame, Pubrel):
            session.known.discard(frame.packet_id)
            self.say(Pubcomp(frame.packet_id))
        elif isinstance(frame, Pubrec):
            session.released.add(frame.packet_id)
            self.say(Pubrel(frame.packet_id))
        elif isinstance(frame, (Puback, Pubcomp)):
            session.unfinished.pop(frame.packet_id, None)
            session.released.discard(frame.packet_id)

    def _resume(self) -> None:
        """Send again what the hub has not acknowledged, and wait until it has."""
        for number, frame in list(self._session.unfinished.items()):
            if number in self._session.released:
                self.say(Pubrel(number))
            else:
                self.say(Publish(frame.topic, frame.payload, frame.qos, frame.retain, dup=True, packet_id=number))
        while self._session.unfinished:
            self.take()
