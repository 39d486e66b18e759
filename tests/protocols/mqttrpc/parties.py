"""Those who call and serve around the bridge: clients on MQTT topics, and stand-ins for sessions of UMQ and sABC."""

from collections.abc import Callable

from polywire.hub.access import AccessRules, Identity
from polywire.hub.channels import from_mqtt
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Refused
from polywire.hub.routes import Subscription
from polywire.hub.services import END, Call, Caller, CallError, Provider
from polywire.protocols.mqttrpc.frames import Decoder, ErrorData, Request, Response, encode
from polywire.protocols.mqttrpc.session import RpcBridge
from polywire.wire.frame import Frame
from tests.hub.links import FakeLink
from tests.sessions import PROTOCOLS, Site

Handler = Callable[[Request], list[Frame]]


class BridgedSite(Site):
    """A site with the bridge on it."""

    def __init__(self, *, limits: Limits | None = None, rules: AccessRules | None = None) -> None:
        super().__init__(rules=rules)
        self.bridge = RpcBridge(self.hub, limits or Limits())

    def counters(self, protocol: str) -> dict[str, int]:
        return self.hub.counters[PROTOCOLS.index(protocol)].dropped

    def settled(self) -> bool:
        """Whether no table holds anything of a call any more."""
        outgoing, incoming = self.bridge._outgoing, self.bridge._incoming
        held = len(outgoing._open) + len(outgoing._numbers) + len(outgoing._by_service) + len(outgoing._calls)
        held += len(incoming._open) + len(incoming._by_client) + len(incoming._calls)
        return held == self.bridge.under_way() == self.hub.services.under_way() == 0


class MqttClient:
    """A client on MQTT: what it hears on the topics it subscribed to, and what it publishes.

    ``serving``: Requests it hears are answered at once with what the handler returns.
    """

    def __init__(self, site: BridgedSite, *topics: str, serving: Handler | None = None, user: str = "") -> None:
        self.site = site
        self.link = FakeLink(site.loop)
        self.client = site.hub.client(PROTOCOLS.index("mqtt"), self.link.outbox)
        if user:
            self.client.identity = Identity(user, (), "password")
        self.client.grants = site.rules.grants(self.client.identity, "mqtt")
        site.hub.join(self.client)
        self.serving = serving
        self.heard: list[Frame] = []
        self.payloads: list[tuple[str, bytes]] = []
        for topic in topics:
            site.hub.subscribe(self.client, topic, Hearing(self, from_mqtt(topic)))

    def publish(self, topic: str, what: Frame | bytes, *, retain: bool = False) -> Refused | None:
        payload = what if isinstance(what, bytes) else encode(what)
        return self.site.hub.publish(
            Message(topic, payload, retain=retain, time=self.site.hub.clock(), origin=self.client.number), self.client
        )

    def requests(self) -> list[Request]:
        return [frame for frame in self.heard if isinstance(frame, Request)]

    def responses(self) -> list[Response]:
        return [frame for frame in self.heard if isinstance(frame, Response)]

    def error(self) -> ErrorData:
        """The error data of the one Response it has heard."""
        (response,) = self.responses()
        assert response.error_data is not None
        assert response.eos
        return response.error_data

    def leave(self) -> None:
        self.site.hub.leave(self.client)


class Hearing(Subscription):
    def __init__(self, owner: MqttClient, pattern: str) -> None:
        super().__init__(pattern, owner.link.outbox, owner.client.number)
        self.owner = owner

    def deliver(self, message: Message) -> None:
        self.owner.payloads.append((message.channel, message.body))
        try:
            (frame,) = Decoder().feed(message.body)
        except Exception:  # noqa: BLE001 - a client sees anything
            return
        self.owner.heard.append(frame)
        if isinstance(frame, Request) and self.owner.serving is not None:
            for answer in self.owner.serving(frame):
                self.owner.publish(message.channel, answer)


class SessionCaller(Caller):
    """A session of UMQ or sABC that calls. ``heard`` has replies with whether they were the last, and errors."""

    def __init__(self, site: BridgedSite) -> None:
        self.site = site
        self.heard: list[object] = []

    def call(
        self, service: str, method: str = "Say", body: bytes = b"?", *, streamed: bool = False, seconds: float = 5
    ) -> Call:
        call = Call(self, service, method, streamed=streamed)
        self.site.hub.services.start(call, Message("", body, "text/plain", (("trace", "1"),)), seconds=seconds)
        return call

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        assert call.ended == last
        self.heard.append("end" if message is END else (message.body, last))

    def fail(self, call: Call, error: CallError) -> None:
        assert call.ended
        self.heard.append(error)


class SessionProvider(Provider):
    """A session of UMQ or sABC that serves: ``answer`` gives the reply, or the error, for a method and a body.

    Without it calls stay in ``calls`` until the test does something about them.
    """

    def __init__(
        self, site: BridgedSite, service: str, answer: Callable[[str, bytes], bytes | CallError] | None = None
    ) -> None:
        self.site, self.answer = site, answer
        self.asked: list[tuple[str, bytes]] = []
        self.messages: list[Message] = []
        self.calls: list[Call] = []
        self.cancelled: list[CallError] = []
        site.hub.services.serve(service, self)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        assert last
        self.asked.append((call.method, message.body))
        self.messages.append(message)
        self.calls.append(call)
        if self.answer is not None:
            self.finish(call, self.answer(call.method, message.body))

    def finish(self, call: Call, outcome: bytes | CallError) -> bool:
        if isinstance(outcome, CallError):
            return self.site.hub.services.fail(call, outcome)
        return self.site.hub.services.reply(call, Message("", outcome))

    def cancel(self, call: Call, error: CallError) -> None:
        assert call.ended
        self.cancelled.append(error)
