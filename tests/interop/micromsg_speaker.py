"""A blocking MicroMsg2 client for tests, on the codec: with acks, topics and .NET types."""

from collections.abc import Callable, Mapping

from polywire.protocols.micromsg import (
    CLIENT,
    Command,
    Decoder,
    Error,
    Extension,
    Handshake,
    Message,
    NamedExtension,
    encode,
)
from polywire.protocols.micromsg.dotnet import TypeReader, TypeWriter
from polywire.protocols.micromsg.text import read_properties, write_properties
from polywire.protocols.micromsg.windows import ack, following, read_ack
from polywire.wire.frame import Frame
from tests.interop.speaker import TYPE_NAME, CannotSayError, HeaderValue, Heard, RefusedError, Speaker, Wire

CONTENT_TYPE = "content-type"
PUB_SUB, BATCH_ACK, DOTNET = 1, 2, 3


class Micromsg(Speaker):
    def __init__(self, wire: Wire, user: str = "", password: str = "") -> None:
        super().__init__(wire)
        self._decoder = Decoder(CLIENT)
        self._reader, self._writer = TypeReader(), TypeWriter(DOTNET)
        self._types: dict[int, str] = {}
        self._sequence = 0
        wanted = tuple(NamedExtension(name) for name in ("pub-sub", "batch-ack", "dotnet"))
        if user:
            wanted = (*wanted, NamedExtension("x-auth", (("user", user), ("password", password))))
        self._send(Handshake("interop", wanted))
        self._expect(lambda frame: frame if isinstance(frame, Handshake) else None)
        self._send(Handshake("interop", wanted))
        self.ping()

    def ping(self) -> None:
        """Wait until the hub has handled everything so far; what it refused meanwhile is raised."""
        self._send(Command("ping"))
        self._expect(lambda frame: frame if isinstance(frame, Command) and frame.name == "pong" else None)

    def subscribe(self, pattern: str) -> None:
        self._send(Command("subscribe", (("destination", _destination(pattern)),)))
        self.ping()

    def publish(
        self,
        channel: str,
        body: bytes,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        content_type: str = "",
        attachments: tuple[bytes, ...] = (),
        retain: bool = False,
    ) -> None:
        if attachments or retain:
            raise CannotSayError("MicroMsg2 has neither attachments nor retained messages")
        carried = dict(headers or {})
        told = self._writer.before(str(carried.pop(TYPE_NAME, "")))
        if told is not None:
            self._send(told)
        if content_type:
            carried[CONTENT_TYPE] = content_type
        self._sequence = following(self._sequence)
        self._send(Message(self._sequence, _destination(channel), body, write_properties(carried)))
        self._expect(self._acks)

    def receive(self, *, acknowledge: bool = True) -> Heard:
        frame = self._until(lambda frame: frame if isinstance(frame, Message) else None)
        if acknowledge:
            self._send(ack(BATCH_ACK, frame.sequence))
        headers = read_properties(frame.properties)
        content_type = str(headers.pop(CONTENT_TYPE, ""))
        type_name = self._types.pop(frame.sequence)
        if type_name:
            headers[TYPE_NAME] = type_name
        return Heard(_channel(frame.destination), frame.payload, headers, content_type)

    def _acks(self, frame: Frame) -> Extension | None:
        if isinstance(frame, Extension) and read_ack(frame.payload) == self._sequence:
            return frame
        return None

    def _expect(self, wanted: Callable[[Frame], Frame | None]) -> None:
        """Wait for a frame; an ERROR before it is raised once it is there, or where it never comes."""
        found = self._until(lambda frame: frame if isinstance(frame, Error) else wanted(frame))
        if isinstance(found, Error):
            arguments = dict(found.arguments)
            if arguments.get("name") != "x-auth":
                self._until(wanted)
            raise RefusedError(found.name, str(arguments))

    def _send(self, frame: Frame) -> None:
        self.wire.send(encode(frame))

    def _heard(self, data: str | bytes) -> list[Frame]:
        assert isinstance(data, bytes)
        found = []
        for frame in self._decoder.feed(data):
            if isinstance(frame, Extension) and frame.number == DOTNET:
                assert self._reader.told(frame.payload) is None
                continue
            if isinstance(frame, Message):
                self._types[frame.sequence] = self._reader.current
            found.append(frame)
        return found


def _destination(channel: str) -> str:
    """MicroMsg2's own way to write it: queues have plain names there."""
    return channel.removeprefix("queue/") if channel.startswith("queue/") else f"topic/{channel}"


def _channel(destination: str) -> str:
    return destination.removeprefix("topic/") if destination.startswith("topic/") else f"queue/{destination}"
