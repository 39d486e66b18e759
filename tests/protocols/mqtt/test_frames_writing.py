"""What may not be sent is refused, by the rule it would break."""

from typing import Any

import pytest
from hypothesis import given
from librt.strings import BytesWriter

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    LocalProtocolError,
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
from polywire.protocols.mqtt.frames import PUBACK, PUBCOMP, PUBREC, publication, write_acknowledgement
from polywire.wire.frame import Discarded, Frame
from tests.protocols.mqtt.strategies import publishes
from tests.protocols.mqtt.wire import decoded


def refused(frame: Frame) -> str:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.reason
    return caught.value.rule


@pytest.mark.rule("MQTT-017", "MQTT-023", "MQTT-024")
@pytest.mark.parametrize("number", [0, -1, 65536, 1 << 70])
def test_a_packet_id_out_of_range_is_not_written(number: int) -> None:
    assert refused(Publish("a", b"", 1, packet_id=number)) == "MQTT-017"
    assert refused(Subscribe(number, (("a", 0),))) == "MQTT-017"
    assert refused(Unsubscribe(number, ("a",))) == "MQTT-017"
    assert [refused(kind(number)) for kind in (Puback, Pubrec, Pubrel, Pubcomp)] == ["MQTT-023"] * 4
    assert [refused(Suback(number, (0,))), refused(Unsuback(number))] == ["MQTT-024"] * 2


@pytest.mark.rule("MQTT-017", "MQTT-022", "MQTT-087", "MQTT-089")
@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"qos": 0, "packet_id": 1}, "MQTT-022"),
        ({"qos": 0, "dup": True}, "MQTT-087"),
        ({"qos": 1}, "MQTT-017"),
        ({"qos": 2, "dup": True}, "MQTT-017"),
        ({"qos": 3, "packet_id": 1}, "MQTT-089"),
        ({"qos": -1, "packet_id": 1}, "MQTT-089"),
    ],
)
def test_a_publish_whose_fields_contradict_each_other_is_not_written(fields: dict[str, Any], rule: str) -> None:
    assert refused(Publish("a", b"", **fields)) == rule


BAD_TEXTS = [("a\0", "MQTT-004"), ("\ud800", "MQTT-003"), ("a\udfff", "MQTT-003")]


@pytest.mark.rule("MQTT-003", "MQTT-004", "MQTT-059", "MQTT-066", "MQTT-068", "MQTT-108", "MQTT-123", "MQTT-162")
@pytest.mark.parametrize(("text", "rule"), BAD_TEXTS)
def test_what_is_no_string_is_not_written(text: str, rule: str) -> None:
    assert refused(Publish(text, b"")) == rule
    assert refused(Connect(text)) == rule
    assert refused(Connect("me", will=Will(text, b""))) == rule
    assert refused(Connect("me", user_name=text)) == rule
    assert refused(Subscribe(1, ((text, 0),))) == rule
    assert refused(Unsubscribe(1, (text,))) == rule


@pytest.mark.rule("MQTT-002", "MQTT-067", "MQTT-069", "MQTT-163")
def test_what_does_not_fit_its_length_field_is_not_written() -> None:
    long = "x" * 65536
    assert refused(Publish(long, b"")) == "MQTT-163"
    assert refused(Subscribe(1, ((long, 0),))) == "MQTT-163"
    assert refused(Unsubscribe(1, (long,))) == "MQTT-163"
    assert refused(Connect(long)) == "MQTT-002"
    assert refused(Connect("me", user_name=long)) == "MQTT-002"
    assert refused(Connect("me", will=Will(long, b""))) == "MQTT-163"
    assert refused(Connect("me", will=Will("w", long.encode()))) == "MQTT-067"
    assert refused(Connect("me", user_name="u", password=long.encode())) == "MQTT-069"


@pytest.mark.rule("MQTT-099", "MQTT-155", "MQTT-161")
def test_invalid_topic_names_are_not_written() -> None:
    for topic, rule in (("", "MQTT-161"), ("a/+", "MQTT-099"), ("a/#", "MQTT-099"), ("\u00e9#", "MQTT-099")):
        assert refused(Publish(topic, b"")) == rule
        assert refused(Connect("me", will=Will(topic, b""))) == rule


@pytest.mark.rule("MQTT-156", "MQTT-157", "MQTT-161")
def test_invalid_filters_are_not_written() -> None:
    for text, rule in (("", "MQTT-161"), ("a#", "MQTT-156"), ("a+", "MQTT-157")):
        assert refused(Subscribe(1, (("fine", 0), (text, 0)))) == rule
        assert refused(Unsubscribe(1, ("fine", text))) == rule


@pytest.mark.rule("MQTT-015")
def test_a_packet_longer_than_its_length_field_can_say_is_not_written() -> None:
    most = bytes(268_435_455 - 3)
    data = encode(Publish("a", most))
    assert data[:5] == bytes.fromhex("30 FF FF FF 7F")
    del data
    assert refused(Publish("a", most + b"x")) == "MQTT-015"


@pytest.mark.rule("MQTT-063", "MQTT-051", "MQTT-052", "MQTT-043")
@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        (Connect("", clean_session=False), "MQTT-063"),
        (Connect("me", password=b"x"), "MQTT-051"),
        (Connect("me", keep_alive=-1), "MQTT-052"),
        (Connect("me", keep_alive=65536), "MQTT-052"),
        (Connect("me", will=Will("w", b"", 3)), "MQTT-043"),
        (Connect("me", will=Will("w", b"", -1)), "MQTT-043"),
    ],
)
def test_a_connect_that_would_be_refused_is_not_written(frame: Connect, rule: str) -> None:
    assert refused(frame) == rule


@pytest.mark.rule("MQTT-082", "MQTT-083")
def test_a_connack_that_contradicts_itself_is_not_written() -> None:
    assert [refused(Connack(session_present=True, return_code=code)) for code in range(1, 6)] == ["MQTT-082"] * 5
    assert [refused(Connack(session_present=False, return_code=code)) for code in (-1, 6, 255, 256)] == ["MQTT-083"] * 4


@pytest.mark.rule("MQTT-110", "MQTT-111", "MQTT-124", "MQTT-120", "MQTT-026")
def test_subscriptions_that_would_be_refused_are_not_written() -> None:
    assert refused(Subscribe(1, ())) == "MQTT-110"
    assert [refused(Subscribe(1, (("a", qos),))) for qos in (-1, 3, 128, 256)] == ["MQTT-111"] * 4
    assert refused(Unsubscribe(1, ())) == "MQTT-124"
    assert refused(Suback(1, ())) == "MQTT-026"
    assert [refused(Suback(1, (0, code))) for code in (-1, 3, 127, 129, 256)] == ["MQTT-120"] * 5


@pytest.mark.rule("MQTT-012")
def test_flags_are_written_as_the_table_has_them() -> None:
    assert [encode(frame)[0] & 15 for frame in (Pubrel(1), Subscribe(1, (("a", 0),)), Unsubscribe(1, ("a",)))] == [
        2
    ] * 3
    others: list[Frame] = [
        Connect("me"),
        Connack(session_present=False, return_code=0),
        Puback(1),
        Pubrec(1),
        Pubcomp(1),
        Suback(1, (0,)),
        Unsuback(1),
    ]
    assert [encode(frame)[0] & 15 for frame in others] == [0] * len(others)


def test_what_is_no_packet_is_not_written() -> None:
    assert refused(Will("a", b"")) == "MQTT-008"
    assert refused(Discarded("MQTT-001", "", 0, b"", 0)) == "MQTT-008"


@pytest.mark.parametrize("size", [1023, 1024, 1025, 100_000])
def test_payloads_of_any_size_are_written_once(size: int) -> None:
    frame = Publish("a", bytes(size), 1, packet_id=7)
    assert decoded(encode(frame)) == [frame]


@given(publishes())
def test_a_publication_from_its_parts_is_the_same_bytes(frame: Publish) -> None:
    first = Publish(frame.topic, frame.payload, frame.qos, frame.retain, dup=False, packet_id=frame.packet_id)
    octets = publication(frame.topic, frame.qos, frame.retain, frame.packet_id or 0, frame.payload)
    assert octets == encode(first)


@pytest.mark.parametrize("frame", [Puback(1), Pubrec(0x8001), Pubcomp(0xFFFF)])
def test_acknowledgements_written_one_behind_the_other_are_the_same_bytes(frame: Puback | Pubrec | Pubcomp) -> None:
    out = BytesWriter()
    kind = {Puback: PUBACK, Pubrec: PUBREC, Pubcomp: PUBCOMP}[type(frame)]
    for _ in range(2):
        write_acknowledgement(out, kind, frame.packet_id)
    assert out.getvalue() == encode(frame) * 2
