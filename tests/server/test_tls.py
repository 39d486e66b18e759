"""TLS below a WebSocket: however the octets of both handshakes are cut and joined, they are answered."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.server.test_endings import encrypting

REQUEST = (
    b"GET /umq HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n"


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubProcess, Path]]:
    folder = tmp_path_factory.mktemp("encrypted")
    config, _ = encrypting(folder)
    with running_hub(config=config) as hub:
        yield hub, folder / "root.pem"


class Cut:
    """A TLS client whose octets go out when told, in pieces of a size."""

    def __init__(self, connection: socket.socket, trust: ssl.SSLContext, piece: int) -> None:
        self._socket = connection
        self._piece = piece
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self) -> None:
        """All of the handshake but sending its last part."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send()
                self.receive()
            else:
                return

    def send(self) -> None:
        """What there is to send."""
        data = self._outgoing.read()
        for at in range(0, len(data), self._piece):
            self._socket.sendall(data[at : at + self._piece])

    def receive(self) -> None:
        """What comes next."""
        data = self._socket.recv(65536)
        assert data, "the hub has hung up"
        self._incoming.write(data)

    def read(self, count: int) -> bytes:
        """So many octets of what the hub says."""
        data = b""
        while len(data) < count:
            try:
                data += self.tls.read(count - len(data))
            except ssl.SSLWantReadError:
                self.receive()
        return data


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_a_request_that_comes_with_the_end_of_the_tls_handshake_is_answered(
    encrypted: tuple[HubProcess, Path], version: ssl.TLSVersion, piece: int
) -> None:
    hub, root = encrypted
    trust = ssl.create_default_context(cafile=str(root))
    trust.minimum_version = trust.maximum_version = version
    with socket.create_connection(("127.0.0.1", hub.port("umq")), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Cut(connection, trust, piece)
        client.shake_hands()
        client.tls.write(REQUEST)
        client.send()
        assert client.read(len(ANSWER)) == ANSWER
