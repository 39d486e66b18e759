"""The packets as values."""

import pickle

import pytest
from hypothesis import given

from polywire.protocols.mqtt import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec
from polywire.protocols.mqtt.frames import NAMES
from polywire.wire.frame import Frame
from tests.protocols.mqtt.strategies import packets


@given(packets)
def test_a_packet_is_a_value(frame: Frame) -> None:
    copy = pickle.loads(pickle.dumps(frame))  # noqa: S301 - made one line above
    assert copy == frame
    assert copy is not frame
    assert hash(copy) == hash(frame)
    assert repr(copy) == repr(frame)


def test_packets_of_different_types_differ_though_their_fields_are_the_same() -> None:
    assert len({Puback(1), Pubrec(1), Pubcomp(1), Puback(2), Pingreq(), Pingresp()}) == 6


def test_a_packet_can_be_taken_apart_by_matching() -> None:
    match Publish("a", b"x", 1, packet_id=7):
        case Publish(topic, payload, qos, retain, dup, packet_id):
            assert (topic, payload, qos, retain, dup, packet_id) == ("a", b"x", 1, False, False, 7)


@pytest.mark.rule("MQTT-008")
def test_every_packet_is_named_by_its_number() -> None:
    assert NAMES[1:15] == (
        *("CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
        *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT"),
    )
