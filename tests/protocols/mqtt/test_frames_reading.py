"""The fields of each packet, right and wrong."""

import pytest

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
)
from tests.protocols.mqtt.wire import connect, decoded, octets, packet, violation

ME = b"\0\2me"
WILL = b"\0\1w\0\2go"
USER = b"\0\4user"
PASSWORD = b"\0\3\0\xff\x01"
ILL_FORMED = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xe2\x82", b"\xf5\x80\x80\x80"]


@pytest.mark.rule("MQTT-001", "MQTT-052")
@pytest.mark.parametrize(("raw", "number"), [(b"\0\0", 0), (b"\1\2", 258), (b"\xff\xff", 65535)])
def test_numbers_have_their_most_significant_octet_first(raw: bytes, number: int) -> None:
    data = packet(0x10, b"\0\4MQTT\4\2" + raw + ME)
    assert decoded(data) == [Connect("me", clean_session=True, keep_alive=number)]
    assert encode(Connect("me", clean_session=True, keep_alive=number)) == data


@pytest.mark.rule("MQTT-002")
def test_the_documents_example_of_a_string_is_read_and_written() -> None:
    string = bytes.fromhex("00 05 41 F0 AA 9B 94")
    frame = Publish("A\U0002a6d4", b"")
    assert decoded(b"\x30\x07" + string) == [frame]
    assert encode(frame) == b"\x30\x07" + string


@pytest.mark.rule("MQTT-002")
def test_a_string_may_be_empty_or_have_65535_octets() -> None:
    for client_id in ("", "x" * 65535):
        assert decoded(encode(Connect(client_id))) == [Connect(client_id)]


@pytest.mark.rule("MQTT-003", "MQTT-059", "MQTT-066", "MQTT-068", "MQTT-108", "MQTT-123", "MQTT-098")
@pytest.mark.parametrize("raw", ILL_FORMED)
def test_a_string_that_is_not_utf8_is_refused_wherever_it_stands(raw: bytes) -> None:
    string = bytes((0, len(raw))) + raw
    for data, position in [
        (connect(0x02, string), 14),
        (connect(0x06, ME + string + b"\0\0"), 18),
        (connect(0x82, ME + string), 18),
        (packet(0x30, string), 4),
        (packet(0x82, b"\0\1" + string + b"\0"), 6),
        (packet(0xA2, b"\0\1" + string), 6),
    ]:
        error = violation(data)
        assert (error.rule, error.position, error.reply) == ("MQTT-003", position, None)


@pytest.mark.rule("MQTT-004", "MQTT-162", "MQTT-059", "MQTT-066", "MQTT-068", "MQTT-108", "MQTT-123")
def test_a_string_with_nul_is_refused_wherever_it_stands() -> None:
    string = b"\0\3a\0b"
    for data in (
        connect(0x02, string),
        connect(0x06, ME + string + b"\0\0"),
        connect(0x82, ME + string),
        packet(0x30, string),
        packet(0x82, b"\0\1" + string + b"\0"),
        packet(0xA2, b"\0\1" + string),
    ):
        error = violation(data)
        assert (error.rule, error.reply) == ("MQTT-004", None)


@pytest.mark.rule("MQTT-005", "MQTT-164")
@pytest.mark.parametrize("topic", ["\ufeff", "\ufeffa", "a\ufeffb", "a\ufeff"])
def test_a_byte_order_mark_is_kept_wherever_it_stands(topic: str) -> None:
    data = packet(0x30, bytes((0, len(topic.encode()))) + topic.encode())
    assert b"\xef\xbb\xbf" in data
    assert decoded(data) == [Publish(topic, b"")]
    assert encode(Publish(topic, b"")) == data


@pytest.mark.rule("MQTT-006")
@pytest.mark.parametrize("character", ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\uffff", "\U0010ffff"])
def test_control_characters_and_non_characters_are_let_through(character: str) -> None:
    frame = Publish(f"a/{character}", b"")
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-017")
@pytest.mark.parametrize(
    ("data", "position"),
    [
        ("32 05 00 01 'a' 00 00", 5),
        ("34 05 00 01 'a' 00 00", 5),
        ("82 06 00 00 00 01 'a' 00", 2),
        ("A2 05 00 00 00 01 'a'", 2),
    ],
)
def test_a_packet_id_of_zero_is_refused(data: str, position: int) -> None:
    error = violation(octets(data))
    assert (error.rule, error.position) == ("MQTT-017", position)


@pytest.mark.rule("MQTT-023", "MQTT-024")
@pytest.mark.parametrize(
    "data", ["40 02 00 00", "50 02 00 00", "62 02 00 00", "70 02 00 00", "B0 02 00 00", "90 03 00 00 00"]
)
def test_no_packet_can_be_acknowledged_under_the_id_zero(data: str) -> None:
    error = violation(octets(data))
    assert (error.rule, error.position) == ("MQTT-024" if data[0] in "9B" else "MQTT-023", 2)


@pytest.mark.rule("MQTT-022", "MQTT-101")
def test_with_qos_0_what_follows_the_topic_is_payload() -> None:
    assert decoded(octets("30 05 00 01 'a' 00 07")) == [Publish("a", b"\0\7")]
    assert decoded(octets("32 05 00 01 'a' 00 07")) == [Publish("a", b"", 1, packet_id=7)]
    assert decoded(octets("30 03 00 01 'a'")) == [Publish("a", b"")]


@pytest.mark.rule("MQTT-026")
@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (packet(0x10, b"\0\4MQTT\4\2\0\x3c"), "MQTT-178"),
        (packet(0x82, b"\0\1"), "MQTT-110"),
        (packet(0x90, b"\0\1"), "MQTT-026"),
        (packet(0xA2, b"\0\1"), "MQTT-124"),
    ],
)
def test_packets_that_must_have_a_payload_are_refused_without(data: bytes, rule: str) -> None:
    assert violation(data).rule == rule


@pytest.mark.rule("MQTT-029", "MQTT-056", "MQTT-058")
def test_the_fields_of_connect_stand_in_their_order() -> None:
    data = octets("10 23 00 04 'MQTT' 04 CE 01 2C 00 02 'me' 00 04 'will' 00 03 'bye' 00 04 'user' 00 02 FF 00")
    frame = Connect(
        "me",
        clean_session=True,
        keep_alive=300,
        will=Will("will", b"bye", 1, retain=False),
        user_name="user",
        password=b"\xff\0",
    )
    assert decoded(data, "server") == [frame]
    assert encode(frame) == data


@pytest.mark.rule("MQTT-030")
@pytest.mark.parametrize("name", [b"\0\6MQIsdq", b"\0\4mqtt", b"\0\4MQT ", b"\0\0", b"\0\5MQTT\4", b"\0\4HTTP"])
def test_another_protocol_name_ends_the_connection_without_a_reply(name: bytes) -> None:
    error = violation(connect(2, name=name), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-030", 2, None)


@pytest.mark.rule("MQTT-030")
@pytest.mark.parametrize("level", [3, 0x83])
def test_mqtt_3_1_is_answered_with_return_code_1(level: int) -> None:
    error = violation(connect(2, name=b"\0\6MQIsdp", level=level), "server")
    assert (error.rule, error.reply) == ("MQTT-030", Connack(session_present=False, return_code=1))


@pytest.mark.rule("MQTT-201")
def test_a_bridge_shows_what_it_is_in_the_protocol_level() -> None:
    data = connect(2, level=0x84)
    assert decoded(data, "server") == [Connect("me", clean_session=True, keep_alive=60, bridge=True)]
    assert encode(Connect("me", clean_session=True, keep_alive=60, bridge=True)) == data


@pytest.mark.rule("MQTT-031", "MQTT-070")
@pytest.mark.parametrize("level", [0, 3, 5, 6, 0x83, 0x85, 255])
@pytest.mark.parametrize("rest", [ME, b"", b"\xff" * 20])
def test_another_protocol_level_is_answered_with_return_code_1_whatever_follows(level: int, rest: bytes) -> None:
    error = violation(connect(0xFF, rest, level=level), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-031", 8, Connack(session_present=False, return_code=1))


@pytest.mark.rule("MQTT-032")
def test_the_reserved_connect_flag_is_refused() -> None:
    error = violation(connect(0x03), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-032", 9, None)


@pytest.mark.rule("MQTT-038")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_with_the_will_flag_the_will_is_read(qos: int, retain: bool) -> None:
    flags = 0x06 | qos << 3 | 0x20 * retain
    data = connect(flags, ME + WILL)
    frame = Connect("me", clean_session=True, keep_alive=60, will=Will("w", b"go", qos, retain))
    assert decoded(data, "server") == [frame]
    assert encode(frame) == data


@pytest.mark.rule("MQTT-038", "MQTT-070", "MQTT-178")
@pytest.mark.parametrize("payload", [ME, ME + b"\0\1w", ME + b"\0\1w\0", ME + b"\0\1w\0\5go"])
def test_with_the_will_flag_a_will_must_be_there(payload: bytes) -> None:
    error = violation(connect(0x06, payload), "server")
    assert (error.rule, error.reply) == ("MQTT-178", None)


@pytest.mark.rule("MQTT-040", "MQTT-047", "MQTT-049", "MQTT-178")
@pytest.mark.parametrize(("flags", "payload"), [(0x02, ME + WILL), (0x02, ME + USER), (0x82, ME + USER + PASSWORD)])
def test_without_a_flag_its_field_must_not_be_there(flags: int, payload: bytes) -> None:
    error = violation(connect(flags, payload), "server")
    assert (error.rule, error.reply) == ("MQTT-178", None)


@pytest.mark.rule("MQTT-042")
@pytest.mark.parametrize("qos", [1, 2, 3])
def test_will_qos_without_a_will_is_refused(qos: int) -> None:
    error = violation(connect(0x02 | qos << 3), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-042", 9, None)


@pytest.mark.rule("MQTT-043")
def test_will_qos_3_is_refused() -> None:
    error = violation(connect(0x1E, ME + WILL), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-043", 9, None)


@pytest.mark.rule("MQTT-044")
def test_will_retain_without_a_will_is_refused() -> None:
    error = violation(connect(0x22), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-044", 9, None)


@pytest.mark.rule("MQTT-047", "MQTT-048", "MQTT-049", "MQTT-050")
@pytest.mark.parametrize(
    ("flags", "payload", "user", "password"),
    [
        (0x02, ME, None, None),
        (0x82, ME + USER, "user", None),
        (0xC2, ME + USER + PASSWORD, "user", b"\0\xff\x01"),
        (0xC2, ME + b"\0\0\0\0", "", b""),
    ],
)
def test_user_name_and_password_are_read_where_their_flags_say_so(
    flags: int, payload: bytes, user: str | None, password: bytes | None
) -> None:
    frame = Connect("me", clean_session=True, keep_alive=60, will=None, user_name=user, password=password)
    assert decoded(connect(flags, payload), "server") == [frame]
    assert encode(frame) == connect(flags, payload)


@pytest.mark.rule("MQTT-048", "MQTT-050", "MQTT-070", "MQTT-178")
@pytest.mark.parametrize(("flags", "payload"), [(0x82, ME), (0xC2, ME + USER), (0xC2, ME + USER + b"\0\3\1")])
def test_with_a_flag_its_field_must_be_there(flags: int, payload: bytes) -> None:
    error = violation(connect(flags, payload), "server")
    assert (error.rule, error.reply) == ("MQTT-178", None)


@pytest.mark.rule("MQTT-051")
def test_a_password_without_a_user_name_is_refused() -> None:
    error = violation(connect(0x42, ME + PASSWORD), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-051", 9, None)


@pytest.mark.rule("MQTT-055")
def test_the_documents_example_of_a_connect_header_is_read() -> None:
    header = bytes.fromhex("00 04 4D 51 54 54 04 CE 00 0A")
    data = packet(0x10, header + ME + WILL + USER + b"\0\2pw")
    frame = Connect(
        "me",
        clean_session=True,
        keep_alive=10,
        will=Will("w", b"go", 1, retain=False),
        user_name="user",
        password=b"pw",
    )
    assert decoded(data, "server") == [frame]
    assert encode(frame) == data


@pytest.mark.rule("MQTT-052")
def test_keep_alive_of_0_and_of_18_hours_is_read() -> None:
    frames = [decoded(encode(Connect("me", clean_session=True, keep_alive=time)))[0] for time in (0, 65535)]
    assert [frame.keep_alive for frame in frames] == [0, 65535]  # type: ignore[attr-defined] # Connect


@pytest.mark.rule("MQTT-058", "MQTT-070", "MQTT-178")
@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\3me"])
def test_the_client_id_must_be_there(payload: bytes) -> None:
    error = violation(connect(0x02, payload), "server")
    assert (error.rule, error.reply) == ("MQTT-178", None)


@pytest.mark.rule("MQTT-060")
@pytest.mark.parametrize(
    "client_id", ["0", "z" * 23, "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"]
)
@pytest.mark.parametrize("clean", [False, True])
def test_plain_client_ids_up_to_23_octets_are_allowed(client_id: str, clean: bool) -> None:
    assert decoded(encode(Connect(client_id, clean)), "server") == [Connect(client_id, clean)]


@pytest.mark.rule("MQTT-061", "MQTT-059")
@pytest.mark.parametrize("client_id", ["z" * 24, "z" * 1000, "mqttjs_1a/2-b c", "\u65e5\u672c", "+/#"])
def test_longer_and_stranger_client_ids_are_allowed_too(client_id: str) -> None:
    assert decoded(encode(Connect(client_id, clean_session=False)), "server") == [
        Connect(client_id, clean_session=False)
    ]


@pytest.mark.rule("MQTT-063", "MQTT-064")
def test_an_empty_client_id_needs_clean_session() -> None:
    assert decoded(connect(0x02, b"\0\0"), "server") == [Connect("", clean_session=True, keep_alive=60)]
    error = violation(connect(0x00, b"\0\0"), "server")
    assert (error.rule, error.position, error.reply) == ("MQTT-064", 12, Connack(session_present=False, return_code=2))


@pytest.mark.rule("MQTT-070")
def test_a_malformed_connect_gets_no_connack_though_its_client_id_would() -> None:
    error = violation(connect(0x00, b"\0\0\0"), "server")
    assert (error.rule, error.reply) == ("MQTT-178", None)


@pytest.mark.rule("MQTT-066", "MQTT-161", "MQTT-155")
@pytest.mark.parametrize(("topic", "rule"), [(b"", "MQTT-161"), (b"a/+", "MQTT-099"), (b"#", "MQTT-099")])
def test_the_will_topic_is_a_topic_name(topic: bytes, rule: str) -> None:
    error = violation(connect(0x06, ME + bytes((0, len(topic))) + topic + b"\0\0"), "server")
    assert (error.rule, error.position, error.reply) == (rule, 18, None)


@pytest.mark.rule("MQTT-067", "MQTT-069")
@pytest.mark.parametrize("size", [0, 1, 65535])
def test_will_message_and_password_are_any_octets(size: int) -> None:
    raw = (bytes(range(256)) * 256)[:size]
    frame = Connect("me", clean_session=True, keep_alive=0, will=Will("w", raw), user_name="user", password=raw)
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-078", "MQTT-083")
@pytest.mark.parametrize(
    ("data", "frame"),
    [
        ("20 02 00 00", Connack(session_present=False, return_code=0)),
        ("20 02 01 00", Connack(session_present=True, return_code=0)),
    ]
    + [(f"20 02 00 0{code}", Connack(session_present=False, return_code=code)) for code in range(1, 6)],
)
def test_connack_is_read_and_written(data: str, frame: Connack) -> None:
    assert decoded(octets(data), "client") == [frame]
    assert encode(frame) == octets(data)


@pytest.mark.rule("MQTT-078")
@pytest.mark.parametrize("flags", [2, 3, 0x80, 0xFF])
def test_other_acknowledge_flags_are_refused(flags: int) -> None:
    error = violation(bytes((0x20, 2, flags, 0)), "client")
    assert (error.rule, error.position) == ("MQTT-078", 2)


@pytest.mark.rule("MQTT-083")
@pytest.mark.parametrize("code", [6, 7, 128, 255])
def test_reserved_return_codes_are_refused(code: int) -> None:
    error = violation(bytes((0x20, 2, 0, code)), "client")
    assert (error.rule, error.position) == ("MQTT-083", 3)


@pytest.mark.rule("MQTT-082")
@pytest.mark.parametrize("code", range(1, 6))
def test_session_present_with_a_refusal_is_refused(code: int) -> None:
    error = violation(bytes((0x20, 2, 1, code)), "client")
    assert (error.rule, error.position) == ("MQTT-082", 2)


@pytest.mark.rule("MQTT-098", "MQTT-001")
def test_the_documents_example_of_a_publish_header_is_read_and_written() -> None:
    data = packet(0x32, bytes.fromhex("00 03 61 2F 62 00 0A"))
    assert decoded(data) == [Publish("a/b", b"", 1, packet_id=10)]
    assert encode(Publish("a/b", b"", 1, packet_id=10)) == data


@pytest.mark.rule("MQTT-086", "MQTT-098")
@pytest.mark.parametrize(
    ("first", "qos", "retain", "dup"),
    [
        (0x30, 0, False, False),
        (0x31, 0, True, False),
        (0x32, 1, False, False),
        (0x33, 1, True, False),
        (0x3A, 1, False, True),
        (0x3B, 1, True, True),
        (0x34, 2, False, False),
        (0x35, 2, True, False),
        (0x3C, 2, False, True),
        (0x3D, 2, True, True),
    ],
)
def test_the_flags_of_publish_are_read_and_written(first: int, qos: int, retain: bool, dup: bool) -> None:
    frame = Publish("a", b"x", qos, retain, dup, 7 if qos else None)
    data = packet(first, b"\0\1a" + (b"\0\7" if qos else b"") + b"x")
    assert decoded(data) == [frame]
    assert encode(frame) == data


@pytest.mark.rule("MQTT-099", "MQTT-155")
@pytest.mark.parametrize("topic", [b"+", b"#", b"a/+/b", b"a/#", b"a+", "\u00e9+".encode()])
def test_a_publish_to_wildcards_is_refused(topic: bytes) -> None:
    error = violation(packet(0x30, bytes((0, len(topic))) + topic))
    assert (error.rule, error.position) == ("MQTT-099", 4)


@pytest.mark.rule("MQTT-161")
@pytest.mark.parametrize("data", ["30 02 00 00", "82 05 00 01 00 00 00", "A2 04 00 01 00 00"])
def test_an_empty_topic_is_refused(data: str) -> None:
    assert violation(octets(data)).rule == "MQTT-161"


@pytest.mark.rule("MQTT-098", "MQTT-178")
@pytest.mark.parametrize(
    ("data", "position"),
    [
        ("30 00", 2),
        ("30 01 00", 3),
        ("30 02 00 01", 2),
        ("30 04 00 03 'ab'", 2),
        ("32 03 00 01 'a'", 5),
        ("32 04 00 01 'a' 00", 6),
    ],
)
def test_a_publish_that_is_too_short_for_its_fields_is_refused(data: str, position: int) -> None:
    error = violation(octets(data) + b"a" * 100)
    assert (error.rule, error.position) == ("MQTT-178", position)


@pytest.mark.rule("MQTT-163")
def test_a_topic_of_65535_octets_is_read() -> None:
    frame = Publish("t" * 65535, b"x")
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-112", "MQTT-109")
def test_the_documents_example_of_subscribe_is_read_and_written() -> None:
    data = bytes.fromhex("82 0E 00 0A 00 03 61 2F 62 01 00 03 63 2F 64 02")
    frame = Subscribe(10, (("a/b", 1), ("c/d", 2)))
    assert decoded(data, "both") == [frame]
    assert encode(frame) == data


@pytest.mark.rule("MQTT-109", "MQTT-155", "MQTT-108")
def test_filters_with_wildcards_are_read() -> None:
    frame = Subscribe(1, (("#", 0), ("+/a/+", 1), ("$SYS/#", 2), ("/", 0), ("\u00e9/+", 0)))
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-156", "MQTT-157")
@pytest.mark.parametrize(("text", "rule"), [(b"a#", "MQTT-156"), (b"#/a", "MQTT-156"), (b"a+", "MQTT-157")])
def test_invalid_filters_are_refused(text: bytes, rule: str) -> None:
    string = bytes((0, len(text))) + text
    for data in (packet(0x82, b"\0\1" + string + b"\0"), packet(0xA2, b"\0\1" + string)):
        error = violation(data)
        assert (error.rule, error.position, error.reply) == (rule, 6, None)


@pytest.mark.rule("MQTT-110")
def test_a_subscribe_without_filters_is_refused() -> None:
    error = violation(octets("82 02 00 01"))
    assert (error.rule, error.position, error.reply) == ("MQTT-110", 4, None)


@pytest.mark.rule("MQTT-111")
@pytest.mark.parametrize("qos", [3, 4, 0x81, 0xFF])
def test_a_qos_octet_other_than_0_1_2_is_refused(qos: int) -> None:
    error = violation(octets("82 0A 00 01 00 01 'a' 00 00 01 'b'") + bytes((qos,)))
    assert (error.rule, error.position) == ("MQTT-111", 11)


@pytest.mark.rule("MQTT-178")
@pytest.mark.parametrize(
    ("data", "position"),
    [
        ("82 05 00 01 00 01 'a'", 7),
        ("82 06 00 01 00 02 'ab'", 8),
        ("82 07 00 01 00 01 'a' 00 00", 9),
        ("82 01 00", 3),
        ("82 00", 2),
        ("90 00", 2),
        ("90 01 00", 3),
        ("A2 01 00", 3),
        ("A2 06 00 01 00 03 'ab'", 4),
        ("10 00", 2),
        ("10 06 00 04 'MQTT'", 8),
        ("10 07 00 04 'MQTT' 04", 9),
        ("10 09 00 04 'MQTT' 04 02 00", 11),
        ("10 0F 00 04 'MQTT' 04 02 00 3C 00 02 'me' 00", 16),
    ],
)
def test_fields_that_do_not_fill_their_packet_are_refused(data: str, position: int) -> None:
    error = violation(octets(data))
    assert (error.rule, error.reply) == ("MQTT-178", None)
    assert error.position == position


@pytest.mark.rule("MQTT-121", "MQTT-119")
def test_the_documents_example_of_suback_is_read_and_written() -> None:
    data = bytes.fromhex("90 05 00 0A") + bytes.fromhex("00 02 80")
    assert decoded(data, "both") == [Suback(10, (0, 2, 128))]
    assert encode(Suback(10, (0, 2, 128))) == data


@pytest.mark.rule("MQTT-120")
@pytest.mark.parametrize("code", [3, 4, 127, 129, 255])
def test_other_return_codes_of_suback_are_refused(code: int) -> None:
    error = violation(octets("90 04 00 01 01") + bytes((code,)))
    assert (error.rule, error.position) == ("MQTT-120", 5)


@pytest.mark.rule("MQTT-125", "MQTT-123")
def test_the_documents_example_of_unsubscribe_is_read_and_written() -> None:
    data = bytes.fromhex("A2 0C 00 0A") + bytes.fromhex("00 03 61 2F 62 00 03 63 2F 64")
    assert decoded(data) == [Unsubscribe(10, ("a/b", "c/d"))]
    assert encode(Unsubscribe(10, ("a/b", "c/d"))) == data


@pytest.mark.rule("MQTT-124")
def test_an_unsubscribe_without_filters_is_refused() -> None:
    error = violation(octets("A2 02 00 01"))
    assert (error.rule, error.position, error.reply) == ("MQTT-124", 4, None)
