"""Which protocol is spoken on which listener, and how its sessions are made. A new protocol is one line here."""

from dataclasses import dataclass

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits
from polywire.protocols.fmqp.session import FmqpSession
from polywire.server.endpoint import Endpoint, MakeSession, Session, Wrap


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

    return {"fmqp": Spoken("fmqp", fmqp)}
