"""A blocking MicroMsg2 client for tests: with acks, topics and .NET types."""

from collections.abc import Callable, Mapping

from polywire.protocols.micromsg import Command, Error, Extension, Handshake, Message, NamedExtension, Terms
from polywire.protocols.micromsg.connection import Connection, Ended
from polywire.protocols.micromsg.text import read_properties, write_properties
from polywire.wire.frame import Frame, Role
from tests.interop.speaker import TYPE_NAME, CannotSayError, HeaderValue, Heard, RefusedError, Speaker, Wire

CONTENT_TYPE = "content-type"


class Micromsg(Speaker):
    def __init__(self, wire: Wire, user: str = "", password: str = "") -> None:
        super().__init__(wire)
        wanted = tuple(NamedExtension(name) for name in ("pub-sub", "batch-ack", "dotnet"))
        if user:
            wanted = (*wanted, NamedExtension("x-auth", (("user", user), ("password", password))))
        self._connection = Connection(Role.CLIENT, Terms("interop", required=wanted))
        self._types: dict[int, str] = {}
        self.wire.send(self._connection.handshake())
        self._expect(lambda frame: frame if isinstance(frame, Handshake) else None)
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
        type_name = str(carried.pop(TYPE_NAME, ""))
        if content_type:
            carried[CONTENT_TYPE] = content_type
        connection = self._connection
        self.wire.send(connection.send_message(_destination(channel), body, write_properties(carried), type_name))
        self._expect(self._acks)

    def receive(self, *, acknowledge: bool = True) -> Heard:
        frame = self._until(lambda frame: frame if isinstance(frame, Message) else None)
        if acknowledge:
            self.wire.send(self._connection.acknowledge(frame.sequence))
        headers = read_properties(frame.properties)
        content_type = str(headers.pop(CONTENT_TYPE, ""))
        type_name = self._types.pop(frame.sequence)
        if type_name:
            headers[TYPE_NAME] = type_name
        return Heard(_channel(frame.destination), frame.payload, headers, content_type)

    def _acks(self, frame: Frame) -> Extension | None:
        return frame if isinstance(frame, Extension) and not self._connection.outgoing.pending() else None

    def _expect(self, wanted: Callable[[Frame], Frame | None]) -> None:
        """Wait for a frame; an ERROR before it is raised once it is there, or where it never comes."""
        found = self._until(lambda frame: frame if isinstance(frame, Error) else wanted(frame))
        if isinstance(found, Error):
            arguments = dict(found.arguments)
            if arguments.get("name") != "x-auth":
                self._until(wanted)
            raise RefusedError(found.name, str(arguments))

    def _send(self, frame: Frame) -> None:
        self.wire.send(self._connection.send(frame))

    def _heard(self, data: str | bytes) -> list[Frame]:
        assert isinstance(data, bytes)
        self._connection.receive(data)
        found = []
        while (frame := self._connection.next_event()) is not None:
            assert not isinstance(frame, Ended), frame
            if isinstance(frame, Handshake):
                self.wire.send(self._connection.handshake())
            elif isinstance(frame, Message):
                self._types[frame.sequence] = self._connection.type_name
            found.append(frame)
        return found


def _destination(channel: str) -> str:
    """MicroMsg2's own way to write it: queues have plain names there."""
    return channel.removeprefix("queue/") if channel.startswith("queue/") else f"topic/{channel}"


def _channel(destination: str) -> str:
    return destination.removeprefix("topic/") if destination.startswith("topic/") else f"queue/{destination}"
