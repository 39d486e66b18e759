"""A MicroMsg2 client of raw bytes for tests against a running hub: what is sent is written out, not encoded."""

import contextlib
import socket
from collections.abc import Iterator

from polywire.protocols.micromsg.frames import CLIENT, Command, Decoder, Error, Extension, Handshake, Message
from polywire.wire.frame import Frame
from tests.wires import Plain, connected

PING = b"\x01\x04ping"
PONG = Command("pong")


def hello(required: bytes = b"", optional: bytes = b"", identity: bytes = b"c") -> bytes:
    """A handshake message."""
    lists = b"".join(len(text).to_bytes(2, "big") + text for text in (required, optional))
    return b"\x01\x00\x00" + bytes([len(identity)]) + identity + lists


def message(sequence: int, destination: bytes, payload: bytes, properties: bytes = b"") -> bytes:
    """A SEND with a payload of less than 256 bytes."""
    head = b"\x00" + sequence.to_bytes(2, "big") + bytes([len(destination)]) + destination
    return head + len(properties).to_bytes(2, "big") + properties + bytes([len(payload)]) + payload


def command(text: bytes) -> bytes:
    """A COMMAND."""
    return b"\x01" + bytes([len(text)]) + text


def extension(number: int, payload: bytes) -> bytes:
    """An EXTENSION frame with a payload of less than 256 bytes."""
    return bytes([2, number, len(payload)]) + payload


class Client(Plain):
    """One connection to a hub."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._decoder = Decoder(CLIENT)
        self._frames: list[Frame] = []

    def hear(self) -> Frame:
        """The next frame, or the reply to an offer."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise AssertionError("hung up")
            self._frames = self._decoder.feed(data)
        return self._frames.pop(0)

    def shake(self, offer: bytes, final: bytes | None = None) -> Handshake:
        """A whole handshake, with the offer again as its final message by default. Returns the reply."""
        self.send(offer)
        reply = self.hear()
        assert isinstance(reply, Handshake), reply
        self.send(offer if final is None else final)
        self.settled()
        return reply

    def settled(self) -> None:
        """Wait until the hub has handled everything so far; nothing else must come before its answer."""
        self.send(PING)
        assert self.hear() == PONG

    def subscribe(self, destination: bytes, rest: bytes = b"") -> None:
        """Subscribe to a destination, which is URL encoded already."""
        self.send(command(b"subscribe;destination=" + destination + rest))
        self.settled()

    def refused(self) -> Error:
        """The ERROR that comes next, behind which the hub hangs up."""
        data = self.rest()
        decoder = self._decoder if data[:1] == b"\x01" else Decoder(CLIENT, established=True)
        *others, error = [*self._frames, *decoder.feed(data)]
        assert isinstance(error, Error)
        assert all(isinstance(other, Handshake | Extension | Message) for other in others), others
        return error


@contextlib.contextmanager
def client(address: str) -> Iterator[Client]:
    """A connection that has said nothing yet."""
    with connected(address) as connection:
        yield Client(connection)
