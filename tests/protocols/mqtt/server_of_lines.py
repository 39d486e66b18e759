"""An MQTT server of a few lines: it answers what a client can't do without, and says what it is told."""

import contextlib
from collections.abc import AsyncIterator, Callable

from polywire.backoff import Backoff
from polywire.client.address import parse
from polywire.client.link import Link
from polywire.client.transport import listen
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Unsubscribe,
    encode,
    suback,
    unsuback,
)
from polywire.protocols.mqtt.client import Client
from polywire.protocols.mqtt.frames import FAILURE, Pubcomp, Pubrec
from polywire.wire.frame import Frame

QUICK = Backoff(first=0.01, most=0.05)
SLOW = Backoff(first=0.5, most=0.5)
"""Never less than 50 ms: long enough to be seen away."""


class Server:
    """What is in ``silent`` is not answered: names of packets."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.links: list[Link] = []
        self.ends = 0
        self.silent: set[str] = set()
        self.connack = Connack(session_present=False, return_code=0)
        self.refused: set[str] = set()
        self._decoder = Decoder()

    def accept(self, link: Link) -> "Server":
        self.links.append(link)
        self._decoder = Decoder()
        return self

    def received(self, data: bytes, _text: bool, /) -> None:
        for frame in self._decoder.feed(data):
            self.frames.append(frame)
            answer = self._answer(frame)
            if answer is not None and type(frame).__name__ not in self.silent:
                self.say(answer)

    def lost(self, error: Exception | None, /) -> None:  # noqa: ARG002 - how it ended is the client's business
        self.ends += 1

    def say(self, *frames: Frame) -> None:
        for frame in frames:
            self.links[-1].write(encode(frame))

    def heard(self, kind: type[Frame]) -> list[Frame]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def _answer(self, frame: Frame) -> Frame | None:
        if isinstance(frame, Connect):
            return self.connack
        if isinstance(frame, Subscribe):
            codes = tuple(FAILURE if name in self.refused else qos for name, qos in frame.filters)
            return suback(frame, codes)
        if isinstance(frame, Unsubscribe):
            return unsuback(frame)
        if isinstance(frame, Publish) and frame.packet_id is not None:
            return Puback(frame.packet_id) if frame.qos == 1 else Pubrec(frame.packet_id)
        if isinstance(frame, Pubrel):
            return Pubcomp(frame.packet_id)
        return Pingresp() if isinstance(frame, Pingreq) else None


@contextlib.asynccontextmanager
async def served(
    *, url: str = "mqtt://127.0.0.1:0", prepare: Callable[[Server], None] | None = None, **options: object
) -> AsyncIterator[tuple[Server, Client]]:
    """A server, and a client that is connected to it."""
    server = Server()
    if prepare is not None:
        prepare(server)
    listener = await listen(parse(url, any_port=True), server.accept, subprotocol="mqtt", stream=True)
    given = {"backoff": QUICK, **options}
    client = Client(listener.address, **given)  # type: ignore[arg-type] # as they come
    try:
        await client.start()
        yield server, client
    finally:
        await client.close()
        await listener.close()
