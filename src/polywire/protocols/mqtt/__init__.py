"""MQTT 3.1.1, both ends: packets, topics, the connection between them and the acknowledgements of QoS 1 and 2.

``connect`` is for programs; the rest is sans-IO, and both the hub and the client are built on it.
"""

from typing import TYPE_CHECKING

from polywire.process import exports
from polywire.registry import WEBSOCKET, Listener, Protocol

if TYPE_CHECKING:
    from polywire.protocols.mqtt.client import Client, connect
    from polywire.protocols.mqtt.connection import (
        Connection,
        Order,
        PacketIds,
        Receipt,
        Receiver,
        Sender,
        suback,
        unsuback,
    )
    from polywire.protocols.mqtt.errors import LocalProtocolError, RemoteProtocolError
    from polywire.protocols.mqtt.frames import (
        Connack,
        Connect,
        Decoder,
        Disconnect,
        Pingreq,
        Pingresp,
        Puback,
        Pubcomp,
        Publish,
        Pubrec,
        Pubrel,
        Suback,
        Subscribe,
        Unsuback,
        Unsubscribe,
        Will,
        encode,
    )
    from polywire.protocols.mqtt.peer import Consuming, Delivery, Listening
    from polywire.protocols.mqtt.topics import matches
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "client": "Client connect",
            "connection": "Connection Order PacketIds Receipt Receiver Sender suback unsuback",
            "errors": "LocalProtocolError RemoteProtocolError",
            "frames": (
                "Connack Connect Decoder Disconnect Pingreq Pingresp Puback Pubcomp Publish Pubrec Pubrel Suback "
                "Subscribe Unsuback Unsubscribe Will encode"
            ),
            "peer": "Consuming Delivery Listening",
            "topics": "matches",
        },
    )

__all__ = [
    "Client",
    "Connack",
    "Connect",
    "Connection",
    "Consuming",
    "Decoder",
    "Delivery",
    "Disconnect",
    "Listening",
    "LocalProtocolError",
    "Order",
    "PacketIds",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Receipt",
    "Receiver",
    "RemoteProtocolError",
    "Sender",
    "Suback",
    "Subscribe",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "connect",
    "encode",
    "matches",
    "suback",
    "unsuback",
]

PROTOCOL = Protocol(
    name="mqtt",
    title="MQTT 3.1.1",
    code=3,
    package=__name__,
    listeners=(
        Listener(key="mqtt", about="MQTT 3.1.1, RPC over MQTT included.", default="tcp://127.0.0.1:1883"),
        Listener(
            key="mqtt_ws",
            about="MQTT over WebSocket.",
            default="ws://127.0.0.1:7101/mqtt",
            transports=WEBSOCKET,
            subprotocol="mqtt",
            stream=True,
        ),
    ),
    session="session:MqttSession",
    runs="session:MqttRuns",
    schemes={"mqtt": "tcp", "mqtts": "tls", "mqtt+ws": "ws", "mqtt+wss": "wss", "mqtt+unix": "unix"},
    port=1883,
    secure_port=8883,
    can=frozenset(
        {
            "publish",
            "subscribe",
            "queue",
            "patterns with **",
            "a name that begins or ends with /",
            "an empty body",
            "retain",
            "call",
            "serve",
        }
    ),
    bus="bus:connect",
    decoder="frames:Decoder",
    decoder_options=lambda role, _capture: {"role": role, "max_packet_before_connect": 1 << 28},
    hot=(
        "topics",
        "frames",
        "connection",
        "kept",
        "delivery",
        "session",
    ),
)
