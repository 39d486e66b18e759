"""Plain sockets for tests against a real hub: send these bytes, expect those."""

import contextlib
import itertools
import socket
import ssl
from collections.abc import Iterator

from polywire.protocols.fmqp import Decoder, Publication, Subscription, encode
from polywire.wire.frame import Frame

SECONDS = 20.0
_MARKERS = itertools.count()


class Plain:
    """A socket with a time limit on everything."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(SECONDS)

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def expect(self, count: int) -> bytes:
        """Exactly so many bytes."""
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise AssertionError(f"hung up after {data!r}")
            data += more
        return data

    def rest(self) -> bytes:
        """Everything until the other side hangs up."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(65536):
                data += more
        return data


class Fmqp(Plain):
    """A socket that speaks FMQP."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    def say(self, *frames: Frame) -> None:
        """Send frames."""
        self.send(b"".join(map(encode, frames)))

    def hear(self) -> Frame:
        """The next frame."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise AssertionError("hung up")
            self._frames = self._decoder.feed(data)
        return self._frames.pop(0)

    def settled(self) -> None:
        """Wait until the hub has handled everything sent so far."""
        marker = f"settled/{next(_MARKERS)}"
        self.say(Subscription(marker), Publication(marker, b"!"))
        assert self.hear() == Publication(marker, b"!")


@contextlib.contextmanager
def connected(address: str, *, trust: ssl.SSLContext | None = None) -> Iterator[socket.socket]:
    """A connection to an address as the ``ready`` line writes it."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SECONDS)
        connection.connect(rest)
    else:
        host, _, port = rest.removeprefix("//").partition("/")[0].rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=SECONDS)
        if trust is not None:
            connection = trust.wrap_socket(connection, server_hostname="localhost")
    with connection:
        yield connection
