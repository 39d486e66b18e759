"""MQTT 3.1.1, both sides: packets, topics, the order of packets and the flows of QoS 1 and 2.

``connect`` is for programs; the rest is the codec, which it and the hub stand on.
"""

from polywire.protocols.mqtt.client import Client, connect
from polywire.protocols.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.mqtt.flows import PacketIds, Receipt, Receiver, Sender, suback, unsuback
from polywire.protocols.mqtt.frames import Decoder, encode
from polywire.protocols.mqtt.listening import Consuming, Delivery, Listening
from polywire.protocols.mqtt.packets import (
    Connack,
    Connect,
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
)
from polywire.protocols.mqtt.state import Order
from polywire.protocols.mqtt.topics import matches

__all__ = [
    "Client",
    "Connack",
    "Connect",
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
