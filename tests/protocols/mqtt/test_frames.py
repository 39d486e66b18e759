"""The fixed header: types, flags, lengths, limits, and what a violation leaves behind."""

import tracemalloc
from typing import get_args

import pytest

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Decoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RemoteProtocolError,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from polywire.protocols.mqtt.frames import MAX_PACKET, MAX_PACKET_BEFORE_CONNECT, Reader
from tests.protocols.mqtt.wire import connect, connected, decoded, octets, packet, violation

PLACES = [
    (0, "00"),
    (127, "7F"),
    (128, "80 01"),
    (16383, "FF 7F"),
    (16384, "80 80 01"),
    (2097151, "FF FF 7F"),
    (2097152, "80 80 80 01"),
    (268435455, "FF FF FF 7F"),
]


@pytest.mark.rule("MQTT-007", "MQTT-008")
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("10 0E 00 04 'MQTT' 04 02 00 3C 00 02 'me'", "Connect"),
        ("20 02 00 00", "Connack"),
        ("30 05 00 03 'a/b'", "Publish"),
        ("40 02 00 01", "Puback"),
        ("50 02 00 01", "Pubrec"),
        ("62 02 00 01", "Pubrel"),
        ("70 02 00 01", "Pubcomp"),
        ("82 06 00 01 00 01 'a' 00", "Subscribe"),
        ("90 03 00 01 00", "Suback"),
        ("A2 05 00 01 00 01 'a'", "Unsubscribe"),
        ("B0 02 00 01", "Unsuback"),
        ("C0 00", "Pingreq"),
        ("D0 00", "Pingresp"),
        ("E0 00", "Disconnect"),
    ],
)
def test_each_type_is_read_and_written_with_its_number(data: str, kind: str) -> None:
    (frame,) = decoded(octets(data))
    assert type(frame).__name__ == kind
    assert encode(frame) == octets(data)


@pytest.mark.rule("MQTT-009")
@pytest.mark.parametrize("first", [*range(16), *range(0xF0, 0x100)])
@pytest.mark.parametrize("role", get_args(Reader))
def test_types_0_and_15_are_refused_at_their_first_octet(first: int, role: Reader) -> None:
    error = violation(bytes((first,)), role)
    assert (error.rule, error.position, error.reply) == ("MQTT-009", 0, None)


@pytest.mark.rule("MQTT-010")
@pytest.mark.parametrize(
    "frame",
    [Connack(session_present=False, return_code=0), Suback(1, (0,)), Unsuback(1), Pingresp()],
    ids=lambda frame: type(frame).__name__,
)
def test_a_server_refuses_what_only_servers_send(frame: Connack) -> None:
    assert violation(encode(frame), decoder=connected("server")).rule == "MQTT-010"
    assert violation(encode(frame), "server").rule == "MQTT-010"
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-011")
@pytest.mark.parametrize(
    "data", ["10 0E", "82 06 00 01 00 01 61 00", "A2 05 00 01 00 01 61", "C0 00", "E0 00"], ids=lambda data: data[:2]
)
def test_a_client_refuses_what_only_clients_send(data: str) -> None:
    assert violation(bytes.fromhex(data), decoder=connected("client")).rule == "MQTT-011"
    assert violation(bytes.fromhex(data), "client").rule == "MQTT-011"


def test_there_is_no_other_role() -> None:
    with pytest.raises(ValueError, match="role is 'broker'"):
        Decoder(role="broker")  # type: ignore[arg-type] # that is the point


FLAGS = {1: 0, 2: 0, 4: 0, 5: 0, 6: 2, 7: 0, 8: 2, 9: 0, 10: 2, 11: 0, 12: 0, 13: 0, 14: 0}
OWN_RULES = {6: "MQTT-106", 8: "MQTT-107", 10: "MQTT-122", 14: "MQTT-134"}


@pytest.mark.rule("MQTT-012", "MQTT-013", "MQTT-106", "MQTT-107", "MQTT-122", "MQTT-134")
@pytest.mark.parametrize("kind", FLAGS)
def test_flags_other_than_the_tables_are_refused(kind: int) -> None:
    for flags in range(16):
        first = bytes((kind << 4 | flags,))
        if flags == FLAGS[kind]:
            assert decoded(first) == []
        else:
            error = violation(first)
            assert (error.rule, error.position) == (OWN_RULES.get(kind, "MQTT-013"), 0)
            assert f"{flags:04b}" in error.reason


@pytest.mark.rule("MQTT-134")
def test_a_disconnect_with_flags_is_no_disconnect() -> None:
    error = violation(b"\xe1\x00", decoder=connected("server"))
    assert (error.rule, error.frames) == ("MQTT-134", [])


@pytest.mark.rule("MQTT-089")
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_qos_3_is_refused(first: int) -> None:
    error = violation(bytes((first,)))
    assert (error.rule, error.position, error.reply) == ("MQTT-089", 0, None)


@pytest.mark.rule("MQTT-087")
@pytest.mark.parametrize("first", [0x38, 0x39])
def test_dup_with_qos_0_is_refused(first: int) -> None:
    assert violation(bytes((first,))).rule == "MQTT-087"


@pytest.mark.rule("MQTT-014")
@pytest.mark.parametrize(("length", "text"), PLACES)
def test_remaining_lengths_are_read_as_the_table_has_them(length: int, text: str) -> None:
    written = bytes.fromhex(text)
    decoder = Decoder(role="both", max_packet=length + len(written))
    error = violation(b"\x30" + written, decoder=decoder)
    assert (error.rule, error.position) == ("MQTT-179", 1)
    assert f"{1 + len(written) + length} bytes" in error.reason
    if length:
        assert Decoder(role="both", max_packet=1 + length + len(written)).feed(b"\x30" + written) == []


@pytest.mark.rule("MQTT-014")
@pytest.mark.parametrize(("length", "text"), PLACES[1:7])
def test_remaining_lengths_are_written_as_the_table_has_them(length: int, text: str) -> None:
    frame = Publish("a", bytes(length - 3))
    data = encode(frame)
    assert data[1 : 1 + len(bytes.fromhex(text))] == bytes.fromhex(text)
    assert len(data) == 1 + len(bytes.fromhex(text)) + length
    assert decoded(data) == [frame]


@pytest.mark.rule("MQTT-015")
@pytest.mark.parametrize("role", get_args(Reader))
def test_a_fifth_octet_of_length_is_refused_when_it_is_announced(role: Reader) -> None:
    first = b"\x20" if role == "client" else b"\x10"
    decoder = Decoder(role=role)
    assert decoder.feed(first + b"\xff\xff\xff") == []
    error = violation(b"\xff", decoder=decoder)
    assert (error.rule, error.position, error.reply) == ("MQTT-015", 4, None)
    assert decoder.pending() == 0


@pytest.mark.rule("MQTT-177")
@pytest.mark.parametrize("length", ["00", "80 00", "80 80 00", "80 80 80 00"])
def test_a_length_with_more_octets_than_it_needs_is_read(length: str) -> None:
    assert decoded(b"\xc0" + bytes.fromhex(length) + b"\xc0\x00") == [Pingreq()] * 2
    assert encode(Pingreq()) == b"\xc0\x00"


@pytest.mark.rule("MQTT-105")
@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70, 0xB0])
@pytest.mark.parametrize("length", [0, 1, 3, 127])
def test_an_acknowledgement_has_two_octets(first: int, length: int) -> None:
    error = violation(bytes((first, length)))
    assert (error.rule, error.position) == ("MQTT-105", 1)


@pytest.mark.rule("MQTT-132", "MQTT-026")
@pytest.mark.parametrize("first", [0xC0, 0xD0, 0xE0])
@pytest.mark.parametrize("length", [1, 2, 127])
def test_pings_and_disconnect_have_nothing(first: int, length: int) -> None:
    error = violation(bytes((first, length)))
    assert (error.rule, error.position) == ("MQTT-132", 1)


@pytest.mark.rule("MQTT-078")
@pytest.mark.parametrize("length", [0, 1, 3])
def test_connack_has_two_octets(length: int) -> None:
    error = violation(bytes((0x20, length)), "client")
    assert (error.rule, error.position) == ("MQTT-078", 1)


@pytest.mark.rule("MQTT-016", "MQTT-022")
def test_some_packets_have_an_id_and_the_others_have_none() -> None:
    have: list[object] = [Publish("a", b"", 1, packet_id=258), Publish("a", b"", 2, packet_id=258)]
    have += [kind(258) for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)]
    have += [Subscribe(258, (("a", 0),)), Suback(258, (0,)), Unsubscribe(258, ("a",))]
    for frame in have:
        data = encode(frame)  # type: ignore[arg-type] # a list of frames of many types
        assert b"\x01\x02" in data
        assert decoded(data) == [frame]
    for text in ("30 03 00 01 'a'", "C0 00", "D0 00", "E0 00", "20 02 00 00"):
        assert getattr(decoded(octets(text))[0], "packet_id", None) is None


@pytest.mark.rule("MQTT-165")
def test_what_was_whole_before_a_violation_counts_and_nothing_behind_it() -> None:
    good = encode(Publish("a", b"1")) + encode(Pingreq())
    decoder = connected("server")
    before = len(encode(Connect("me")))
    error = violation(good + b"\xff" + good, decoder=decoder)
    assert error.frames == [Publish("a", b"1"), Pingreq()]
    assert error.position == before + len(good)
    for _ in range(2):
        again = violation(good, decoder=decoder)
        assert (again.rule, again.reason, again.position) == (error.rule, error.reason, error.position)
        assert again.frames == []
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed_runs(good, {}, lambda _: None)
    assert (caught.value.rule, caught.value.frames) == ("MQTT-009", [])
    assert decoder.pending() == 0


@pytest.mark.rule("MQTT-165", "MQTT-085")
def test_an_error_says_what_was_wrong_where_and_by_which_rule() -> None:
    error = violation(octets("30 03 00 01 '+'"))
    assert str(error) == (
        "PUBLISH: its topic name is invalid: it contains a wildcard, which only topic filters may at 4 (MQTT-099)"
    )
    assert error.reply is None


@pytest.mark.rule("MQTT-168")
def test_packets_cut_anywhere_come_out_whole() -> None:
    frames = [Publish("a/b", b"x" * 300), Pingreq(), Subscribe(1, (("a/#", 2),)), Publish("c", b"", 2, packet_id=9)]
    data = b"".join(map(encode, frames))
    for size in (1, 2, 3, 5, 64, 1000):
        decoder = connected("server")
        got = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
        assert got == frames
        assert decoder.pending() == 0


@pytest.mark.rule("MQTT-179", "MQTT-184")
def test_a_packet_over_the_limit_is_refused_by_its_length() -> None:
    data = encode(Publish("a", b"x" * 95))
    assert len(data) == 100
    assert Decoder(role="both", max_packet=100).feed(data) == [Publish("a", b"x" * 95)]
    decoder = Decoder(role="both", max_packet=99)
    error = violation(data[:2], decoder=decoder)
    assert (error.rule, error.position, error.reply) == ("MQTT-179", 1, None)
    assert error.reason == "PUBLISH: the packet has 100 bytes, more than the 99 allowed"
    assert decoder.pending() == 0


@pytest.mark.rule("MQTT-179")
def test_by_default_a_payload_of_16_mib_fits_under_any_topic() -> None:
    largest = encode(Publish("t" * 65535, bytes(16 << 20), 1, packet_id=1))
    assert len(largest) == MAX_PACKET
    assert len(connected().feed(largest)) == 1
    larger = encode(Publish("t" * 65535, bytes((16 << 20) + 1), 1, packet_id=1))
    assert violation(larger[:5], decoder=connected()).rule == "MQTT-179"


@pytest.mark.rule("MQTT-180")
def test_before_connect_a_smaller_limit_holds() -> None:
    data = encode(Connect("m" * 50))
    assert Decoder(max_packet_before_connect=len(data)).feed(data) == [Connect("m" * 50)]
    error = violation(data[:2], decoder=Decoder(max_packet_before_connect=len(data) - 1))
    assert (error.rule, error.position, error.reply) == ("MQTT-180", 1, None)
    decoder = Decoder(max_packet_before_connect=len(data), max_packet=1000)
    assert len(decoder.feed(data + encode(Publish("a", bytes(900))))) == 2
    assert violation(data, decoder=Decoder(max_packet=20)).rule == "MQTT-179"


@pytest.mark.rule("MQTT-180")
def test_by_default_the_largest_connect_there_can_be_fits() -> None:
    most = "x" * 65535
    data = encode(
        Connect(
            most, clean_session=True, keep_alive=0, will=Will(most, bytes(65535)), user_name=most, password=bytes(65535)
        )
    )
    assert len(data) == MAX_PACKET_BEFORE_CONNECT - 1  # its length takes three bytes of the four there may be
    assert decoded(data, "server") == [
        Connect(
            most, clean_session=True, keep_alive=0, will=Will(most, bytes(65535)), user_name=most, password=bytes(65535)
        )
    ]


@pytest.mark.rule("MQTT-181")
def test_the_number_of_filters_is_limited() -> None:
    decoder = Decoder(role="both", max_filters=3)
    fits = Subscribe(1, (("a", 0),) * 3)
    assert decoder.feed(encode(fits)) == [fits]
    error = violation(encode(Subscribe(1, (("a", 0),) * 4)), decoder=decoder)
    assert (error.rule, error.position) == ("MQTT-181", len(encode(fits)) + 4 + 3 * 4)
    assert violation(encode(Unsubscribe(1, ("a",) * 4)), decoder=Decoder(role="both", max_filters=3)).rule == "MQTT-181"
    fitting = Unsubscribe(1, ("a",) * 3)
    assert Decoder(role="both", max_filters=3).feed(encode(fitting)) == [fitting]
    codes = Suback(1, (0, 1, 2))
    assert Decoder(role="both", max_filters=3).feed(encode(codes)) == [codes]
    error = violation(encode(Suback(1, (0,) * 4))[:2], decoder=Decoder(role="both", max_filters=3))
    assert (error.rule, error.position) == ("MQTT-181", 1)


@pytest.mark.rule("MQTT-184")
def test_a_length_of_the_maximum_takes_no_memory() -> None:
    decoder = Decoder(role="both", max_packet=1 << 30)
    tracemalloc.start()
    try:
        assert decoder.feed(b"\x30\xff\xff\xff\x7f" + b"\x00\x01a") == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.pending() == 8
    assert peak < 100_000


@pytest.mark.rule("MQTT-184")
def test_a_large_payload_in_small_pieces_is_put_together_once() -> None:
    frame = Publish("bulk", bytes(range(256)) * 4096)
    data = encode(frame)
    decoder = connected("server")
    got = []
    for at in range(0, len(data), 1000):
        got += decoder.feed(data[at : at + 1000])
        assert decoder.pending() <= len(data)
    assert got == [frame]


def test_a_cut_header_gives_no_frame() -> None:
    decoder = connected("server")
    assert decoder.feed(b"\x30") == []
    assert decoder.feed(b"\x80") == []
    assert decoder.pending() == 2
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\x01" + b"\0\1a" + b"x" * 125) == [Publish("a", b"x" * 125)]
    assert decoder.pending() == 0


@pytest.mark.rule("MQTT-031", "MQTT-165")
def test_a_reply_is_repeated_with_its_error() -> None:
    decoder = Decoder()
    error = violation(connect(2, level=5), decoder=decoder)
    assert error.reply == Connack(session_present=False, return_code=1)
    assert violation(b"", decoder=decoder).reply == Connack(session_present=False, return_code=1)


@pytest.mark.rule("MQTT-085")
@pytest.mark.parametrize("data", [packet(0x10, b"\0\4MQTT\4"), b"\x10\xff\xff\xff\xff", b"\x11\x00", connect(1)])
def test_where_no_return_code_fits_there_is_no_connack(data: bytes) -> None:
    assert violation(data, "server").reply is None
