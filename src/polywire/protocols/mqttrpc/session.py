"""RPC over MQTT on the hub's side: the bridge between service topics and the hub's services.

RPC over MQTT has no connection of its own. It lives on the topics ``/<name>``, which MQTT clients publish and subscribe
to as to any other. The bridge, one for each hub, listens to what is published there: it makes calls of Requests to
services that are offered over other protocols, and Requests of calls from other protocols to services on MQTT.
"""

from typing import Final, final

from polywire.hub.access import CALL
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.peer import Limits
from polywire.hub.services import Provider
from polywire.protocols.mqttrpc.errors import RemoteProtocolError
from polywire.protocols.mqttrpc.failures import hub_response
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response
from polywire.protocols.mqttrpc.incoming import TopicRequests
from polywire.protocols.mqttrpc.outgoing import TopicProvider
from polywire.protocols.mqttrpc.publisher import TopicPublisher
from polywire.protocols.mqttrpc.service import service_of


@final
class RpcBridge:
    """The hub's part in RPC over MQTT. Making one connects it to the hub."""

    def __init__(self, hub: Hub, limits: Limits) -> None:
        self._hub: Final = hub
        self._publisher: Final = TopicPublisher(hub)
        self._outgoing: Final = TopicProvider(hub, self._publisher)
        self._incoming: Final = TopicRequests(hub, self._publisher, limits)
        self._decoder = Decoder(max_message=limits.message_size)
        hub.services.elsewhere = self.elsewhere
        hub.on_service_topic = self.heard

    def elsewhere(self, service: str) -> Provider | None:
        """Who answers calls to a service that nobody offers over UMQ or sABC: the subscribers of its topic, if any."""
        return self._outgoing if self._outgoing.reaches(service) else None

    def heard(self, message: Message, client: Client) -> None:
        """Something was published on a service topic."""
        if client is self._publisher.client:
            return  # our own
        topic = message.channel
        service = topic[1:]
        offered = self._incoming.offers(service)
        called = self._outgoing.knows(service)
        # People name ordinary topics like this, too: what concerns no service of the hub's is not even decoded.
        if not (offered or called) or not message.body or service_of(topic) is None:
            return
        try:
            frame = self._decoder.feed(message.body)[0]
        except RemoteProtocolError as error:
            self._publisher.client.counters.fault(error.rule)
            if error.oversize:
                self._hub.oversized(client, error.oversize, self._incoming.limits.message_size)
            reply = error.reply
            if offered and isinstance(reply, Response) and self._hub.forbids(client, CALL, service) is None:
                data = reply.error_data
                self._publisher.publish(topic, reply if data is None else hub_response(reply.correlation_id, data))
            return
        if isinstance(frame, Request):
            if offered:
                self._incoming.request(service, topic, frame, client)
        elif isinstance(frame, Response) and called:
            self._outgoing.response(service, frame, client)

    def drain(self) -> None:
        """The hub is going down: new Requests get 503, calls under way are finished."""
        self._incoming.drain()

    def reload(self, limits: Limits) -> None:
        """New limits hold for what comes from now on."""
        self._incoming.limits = limits
        self._decoder = Decoder(max_message=limits.message_size)

    def under_way(self) -> int:
        """How many calls the bridge has not seen the end of, both ways."""
        return len(self._incoming) + len(self._outgoing)
