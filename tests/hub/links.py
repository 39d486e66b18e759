"""Stand-ins for the transport and the sessions around the hub."""

from polywire.hub.message import Message
from polywire.hub.outbox import DROP, Flusher, Outbox
from polywire.hub.routes import Subscription


class Loop:
    """Collects what is to run at the end of the turn."""

    def __init__(self) -> None:
        self.soon: list[object] = []
        self.flusher = Flusher(self.soon.append)

    def turn(self) -> None:
        soon, self.soon[:] = self.soon[:], []
        for call in soon:
            call()  # type: ignore[operator]


class FakeLink:
    """A transport that remembers what was written, and can be told to stall."""

    def __init__(self, loop: Loop, *, cap: int = 100, policy: int = DROP) -> None:
        self.outbox = Outbox(self, loop.flusher, cap=cap, policy=policy)
        self.writes: list[bytes] = []
        self.paused = 0
        self.overflows = 0
        self.stall_next = False

    def send(self, chunks: list[bytes | memoryview]) -> None:
        self.writes.append(b"".join(chunks))
        if self.stall_next:
            self.outbox.stall()

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused -= 1

    def overflow(self) -> None:
        self.overflows += 1


class Recorder(Subscription):
    """A subscription that remembers what it was given."""

    def __init__(self, pattern: str, link: FakeLink, group: int, *, protocol: int = -1, rank: int = 0) -> None:
        super().__init__(pattern, link.outbox, group, protocol=protocol, rank=rank)
        self.got: list[Message] = []

    def deliver(self, message: Message) -> None:
        self.got.append(message)
