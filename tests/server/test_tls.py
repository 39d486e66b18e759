"""TLS handshakes: however their bytes are cut and joined, how many there may be, and how long they may take."""

import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.server.subscribers import line_to, subscribe
from tests.server.test_endings import encrypting
from tests.wires import Plain, connected

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
    """A TLS client whose bytes go out when told, in pieces of a size."""

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
        """So many bytes of what the hub says."""
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


@pytest.mark.parametrize("listener", ["sabc", "umq"])
def test_a_tls_handshake_counts_as_a_connection_until_it_has_ended(tmp_path: Path, listener: str) -> None:
    config, trust = encrypting(tmp_path)
    with running_hub("limits.connections=2", config=config) as hub, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(hub.addresses[listener])) for _ in range(2)]
        with pytest.raises(OSError), line_to(hub, listener, trust):  # noqa: PT011 - refused in one way or another
            pass
        assert hub.metric("polywire_connections_refused_total") == 1
        silent.pop().close()
        # The hub learns a little later that somebody has left; one who is in counts once.
        for _ in range(100):
            with contextlib.suppress(OSError), line_to(hub, listener, trust) as line:
                subscribe(line, listener, "a")
                break
        else:
            raise AssertionError("nobody is let in any more")


def test_everybody_who_may_come_in_does_whatever_is_between(tmp_path: Path) -> None:
    config, trust = encrypting(tmp_path)
    with running_hub("limits.connections=2", config=config) as hub, contextlib.ExitStack() as stack:
        for listener in ("umq", "sabc"):
            subscribe(stack.enter_context(line_to(hub, listener, trust)), listener, "a")
        assert hub.metric("polywire_connections_refused_total") == 0


def test_a_reload_changes_the_time_for_the_next_handshakes(tmp_path: Path) -> None:
    config, trust = encrypting(tmp_path)
    text = config.read_text(encoding="utf-8")
    config.write_text(f"{text}[limits]\nhandshake_time = 600\n", encoding="utf-8")
    with running_hub(config=config) as hub, contextlib.ExitStack() as stack:
        config.write_text(f"{text}[limits]\nhandshake_time = 0.5\n", encoding="utf-8")
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")
        lines = [Plain(stack.enter_context(connected(hub.addresses[each]))) for each in ("fmqp", "umq")]
        lines.append(Plain(stack.enter_context(connected(hub.addresses["umq"], trust=trust))))
        assert [line.rest() for line in lines] == [b"", b"", b""]


def test_what_is_no_tls_is_sent_away_without_a_word_in_the_log(tmp_path: Path) -> None:
    config, trust = encrypting(tmp_path)
    with running_hub(config=config) as hub:
        with connected(hub.addresses["sabc"]) as plain:
            plain.sendall(b"CONNECT\r\nclient-id::me\r\n\r\n\0")
            Plain(plain).rest()
        with line_to(hub, "sabc", trust) as line:
            subscribe(line, "sabc", "a")
        with connected(hub.addresses["umq"]):  # still in its handshake when the hub goes down
            assert hub.stop() == 0
    assert not [line for line in hub.errors if "Traceback" in line or "ERROR" in line]
