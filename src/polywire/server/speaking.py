"""Which protocol is spoken on which listener, and how its sessions are made. A new protocol is one line here."""

from dataclasses import dataclass

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits, Session
from polywire.protocols.fmqp.session import FmqpSession
from polywire.protocols.micromsg.session import MicromsgSession
from polywire.protocols.mqtt.session import MqttSession
from polywire.protocols.sabc.session import SabcSession
from polywire.protocols.umq.session import UmqSession
from polywire.server.endpoint import Endpoint, MakeSession, Wrap
from polywire.server.websockets import as_one_message


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a listener speaks. ``wrap`` frames a byte stream for a WebSocket, ``subprotocol`` is offered there."""

    protocol: str
    make_session: MakeSession
    wrap: Wrap | None = None
    subprotocol: str = ""


def spoken_by(hub: Hub) -> dict[str, Spoken]:
    """The keys of ``[listen]`` and what they speak."""

    def fmqp(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return FmqpSession(hub, client, peer, limits)

    def micromsg(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return MicromsgSession(hub, client, peer, limits)

    def mqtt(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return MqttSession(hub, client, peer, limits)

    def sabc(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return SabcSession(hub, client, peer, limits)

    def sabc_messages(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return SabcSession(hub, client, peer, limits, messages=True)

    def umq(client: Client, peer: Endpoint, limits: Limits) -> Session:
        return UmqSession(hub, client, peer, limits)

    return {
        "umq": Spoken("umq", umq, subprotocol="umq"),
        "micromsg": Spoken("micromsg", micromsg),
        "fmqp": Spoken("fmqp", fmqp),
        "mqtt": Spoken("mqtt", mqtt),
        "mqtt_ws": Spoken("mqtt", mqtt, as_one_message, "mqtt"),
        "sabc": Spoken("sabc", sabc),
        "sabc_ws": Spoken("sabc", sabc_messages, subprotocol="sabc"),
    }
