"""A MicroMsg2 client for tests of the hub's side: raw bytes in, frames out."""

from polywire.hub.message import Message as Published
from polywire.hub.peer import Limits, Refused
from polywire.protocols.micromsg.frames import CLIENT, Command, Decoder, Extension, Handshake, Message, encode
from polywire.protocols.micromsg.session import MicromsgSession
from polywire.protocols.micromsg.text import read_extensions
from polywire.wire.frame import Frame
from tests.hub.links import FakeLink, Recorder
from tests.sessions import Site, Wire


def handshake(required: str = "", optional: str = "", identity: str = "c") -> bytes:
    return encode(Handshake(identity, read_extensions(required.encode()), read_extensions(optional.encode())))


class Talker:
    """One connection. ``use`` is what the offer and the final message both require; None: no handshake yet."""

    def __init__(
        self, site: Site, use: str | None = "pub-sub", *, limits: Limits | None = None, cap: int = 1 << 22
    ) -> None:
        self.wire: Wire = site.connect("micromsg", MicromsgSession, limits=limits, cap=cap)
        self.decoder = Decoder(CLIENT)
        self.sequence = 0
        self.extensions: list[str] = []
        if use is not None:
            self.extensions = [extension.name for extension in read_extensions(use.encode())]
            self.wire.feed(handshake(use))
            (reply,) = self.frames()
            assert isinstance(reply, Handshake)
            self.wire.feed(handshake(use))

    @property
    def closed(self) -> bool:
        return self.wire.closed

    def frames(self) -> list[Frame]:
        """What the hub has sent since the last call."""
        return self.decoder.feed(self.wire.taken())

    def messages(self) -> list[tuple[str, bytes]]:
        """The same, of which all must be messages: destination and payload."""
        found = self.frames()
        assert all(isinstance(frame, Message) for frame in found), found
        return [(frame.destination, frame.payload) for frame in found if isinstance(frame, Message)]

    def tell(self, *frames: Frame) -> "Talker":
        self.wire.feed(b"".join(encode(frame) for frame in frames))
        return self

    def send(self, destination: str, payload: bytes = b"", properties: str = "") -> "Talker":
        self.sequence += 1
        return self.tell(Message(self.sequence, destination, payload, properties))

    def subscribe(self, destination: str, condition: str = "") -> "Talker":
        arguments = (
            (("destination", destination), ("filter", condition)) if condition else (("destination", destination),)
        )
        return self.tell(Command("subscribe", arguments))

    def unsubscribe(self, destination: str) -> "Talker":
        return self.tell(Command("unsubscribe", (("destination", destination),)))

    def number(self, name: str) -> int:
        return self.extensions.index(name) + 1

    def ack(self, sequence: int, name: str = "batch-ack") -> "Talker":
        return self.tell(Extension(self.number(name), sequence.to_bytes(2, "big")))

    def acked(self, sequence: int, name: str = "batch-ack") -> Extension:
        """The ack the hub is expected to send."""
        return Extension(self.number(name), sequence.to_bytes(2, "big"))


def published(site: Site, message: Published) -> Refused | None:
    """Publish as a client of another protocol does."""
    link = FakeLink(site.loop)
    refused = site.hub.publish(message, site.hub.client(3, link.outbox))
    site.loop.turn()
    return refused


def heard(site: Site, pattern: str) -> Recorder:
    """A subscriber of another protocol."""
    link = FakeLink(site.loop)
    recorder = Recorder(pattern, link, 10_000)
    site.hub.subscribe(site.hub.client(3, link.outbox), pattern, recorder)
    return recorder
