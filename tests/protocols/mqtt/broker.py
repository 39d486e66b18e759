"""A hub without sockets for MQTT's session tests: clients that send frames and see frames."""

from polywire.hub.access import AccessRules
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Refused
from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Publish,
    Subscribe,
    Will,
    encode,
)
from polywire.protocols.mqtt.kept import MqttSessions
from polywire.protocols.mqtt.session import MqttSession
from polywire.wire.frame import Frame
from tests.hub.links import Recorder
from tests.sessions import Site, Wire


class MqttClient:
    """The test's side of one connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._decoder = Decoder(role="client")

    def send(self, *frames: Frame) -> "MqttClient":
        """Send packets in one chunk."""
        self.wire.feed(b"".join([encode(frame) for frame in frames]))
        return self

    def got(self) -> list[Frame]:
        """The packets that came since the last call."""
        return self._decoder.feed(self.wire.taken())

    def ask(self, *frames: Frame) -> list[Frame]:
        """Send packets and see what comes."""
        return self.send(*frames).got()

    def subscribe(self, *filters: tuple[str, int]) -> list[Frame]:
        """What comes after a SUBSCRIBE and its SUBACK."""
        return self.ask(Subscribe(1, filters))[1:]

    def closed(self) -> bool:
        """Whether the hub has hung up."""
        return self.wire.closed

    def bodies(self) -> list[bytes]:
        """The payloads that came."""
        return [frame.payload for frame in self.got() if isinstance(frame, Publish)]


class Broker:
    """A hub, and ways to connect to it."""

    def __init__(
        self, *, passwords: dict[str, str] | None = None, rules: AccessRules | None = None, limits: Limits | None = None
    ) -> None:
        self.site = Site(passwords=passwords, rules=rules)
        self.hub = self.site.hub
        self.limits = limits or Limits()

    def wire(self, *, limits: Limits | None = None, cap: int = 1 << 22) -> MqttClient:
        """A connection that has said nothing yet."""
        return MqttClient(self.site.connect("mqtt", MqttSession, limits=limits or self.limits, cap=cap))

    def client(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        present: bool = False,
        cap: int = 1 << 22,
        user: str | None = None,
    ) -> MqttClient:
        """A connected client, CONNACK taken."""
        client = self.wire(cap=cap)
        password = None if user is None else b"secret"
        client.send(Connect(client_id, clean, keep_alive, will, user, password))
        first = client._decoder.feed(client.wire.taken()[:4])
        assert first == [Connack(present, 0)]
        return client

    def resumed(self, client_id: str) -> tuple[MqttClient, list[Frame]]:
        """A client that comes back, and what it is sent behind CONNACK."""
        client = self.wire()
        first, *rest = client.ask(Connect(client_id, clean_session=False))
        assert first == Connack(session_present=True, return_code=0)
        return client, rest

    def recorder(self, pattern: str) -> Recorder:
        """Somebody of another protocol who listens."""
        wire = self.wire().wire
        recorder = Recorder(pattern, wire, wire.client.number)
        self.hub.table.add(recorder)
        return recorder

    def publish(self, channel: str, body: bytes, *, retain: bool = False) -> Refused | None:
        """A message from another protocol."""
        other = self.hub.client(0, self.wire().wire.outbox)
        return self.hub.publish(Message(channel, body, retain=retain), other)

    @property
    def sessions(self) -> MqttSessions:
        found = self.hub.shared["mqtt"]
        assert isinstance(found, MqttSessions)
        return found

    @property
    def dropped(self) -> dict[str, int]:
        return self.hub.counters[3].dropped

    @property
    def faults(self) -> dict[str, int]:
        return self.hub.counters[3].faults
