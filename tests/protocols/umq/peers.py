"""A UMQ peer without a socket: says messages to its session, and reads the WebSocket messages that come back."""

from polywire.hub.peer import Limits
from polywire.protocols.umq.session import UmqSession
from tests.sessions import Site, Wire


def read_messages(data: bytes) -> list[str | bytes]:
    """The messages in what a server wrote: each one whole, in one unmasked frame."""
    messages: list[str | bytes] = []
    pos = 0
    while pos < len(data):
        opcode, length = data[pos], data[pos + 1]
        pos += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[pos : pos + size], "big")
            pos += size
        payload = data[pos : pos + length]
        assert len(payload) == length
        assert opcode in {0x81, 0x82}
        messages.append(payload.decode() if opcode == 0x81 else payload)
        pos += length
    return messages


class UmqPeer:
    """One connection to the site's hub. It has said hello unless ``hello`` is None."""

    def __init__(
        self,
        site: Site,
        hello: str | None = "H1:",
        *,
        limits: Limits | None = None,
        cap: int = 1 << 22,
        local: bool = True,
    ) -> None:
        self.wire: Wire = site.connect("umq", UmqSession, limits=limits, cap=cap, local=local)
        if hello is not None:
            assert self.say(hello) == ["W1:"]

    @property
    def session(self) -> UmqSession:
        assert isinstance(self.wire.session, UmqSession)
        return self.wire.session

    @property
    def faults(self) -> dict[str, int]:
        return self.wire.client.counters.faults

    @property
    def drops(self) -> dict[str, int]:
        return self.wire.client.counters.dropped

    def say(self, *messages: str | bytes) -> list[str | bytes]:
        """Send messages, and return what came back."""
        self.wire.feed(*messages)
        return self.hears()

    def hears(self) -> list[str | bytes]:
        """What came since the last look."""
        return read_messages(self.wire.taken())
