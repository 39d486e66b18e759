"""MQTT's raw-socket clients with QoS 1: subscribers acknowledge, the publisher waits for no acknowledgement.

Packets are short enough for a remaining length of one byte, and all topics of a subscriber are equally long, so that
packet ids are found by counting.
"""

import socket
from collections.abc import Sequence

from benchmarks.hub_peers import BODY, Peer
from benchmarks.hub_peers.mqtt import publisher, subscribe_with
from polywire.protocols.mqtt import Publish, encode

TOPIC_OCTETS = 26


def subscribe(port: int, topics: Sequence[str]) -> socket.socket:
    assert {len(topic) for topic in topics} == {TOPIC_OCTETS}
    return subscribe_with(port, topics, 1)


def frame(topic: str, body: bytes) -> bytes:
    return encode(Publish(topic, body, 1, retain=False, dup=False, packet_id=1))


def numbered(octets: bytes, number: int) -> bytes:
    at = 4 + TOPIC_OCTETS
    return octets[:at] + number.to_bytes(2, "big") + octets[at + 2 :]


assert len(BODY) + TOPIC_OCTETS + 4 < 128
PEER = Peer(
    "mqtt_qos1",
    subscribe,
    publisher,
    frame,
    lambda topic, body: len(frame(topic, body)),
    number_at=4 + TOPIC_OCTETS,
    numbered=numbered,
)
