"""Handshake messages on the wire: their layout, their place, and what may stand there instead."""

import pytest
from hypothesis import given

from polywire.protocols.micromsg.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.micromsg.frames import CLIENT, SERVER, Command, Decoder, Error, Handshake, Message, encode
from polywire.protocols.micromsg.text import NamedExtension, batch_ack
from polywire.wire.frame import Frame
from tests.protocols.micromsg import strategies

JSON = NamedExtension("json")
DOTNET = NamedExtension("dotnet")
OFFER_OCTETS = b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\0"
OFFER = Handshake("hulk", (JSON, DOTNET))
REPLY_OCTETS = b"\x01\0\0\x05srver\0\0\0\x09batch-ack"
REPLY = Handshake("srver", (), (batch_ack(10),))
BARE = Handshake("srver", (), (NamedExtension("batch-ack"),))
FINAL_OCTETS = b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\x09batch-ack"


def failure(decoder: Decoder, octets: bytes) -> tuple[str, int, str]:
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(octets)
    assert isinstance(caught.value.reply, Error)
    encode(caught.value.reply)
    return (caught.value.rule, caught.value.position, caught.value.reply.name)


@pytest.mark.rule("MICROMSG-23", "MICROMSG-24", "MICROMSG-25", "MICROMSG-27", "MICROMSG-28", "MICROMSG-97")
def test_the_clients_example_is_read_and_written_octet_for_octet() -> None:
    assert Decoder(SERVER).feed(OFFER_OCTETS) == [OFFER]
    assert encode(OFFER) == OFFER_OCTETS


@pytest.mark.rule("MICROMSG-29", "MICROMSG-27", "MICROMSG-65", "MICROMSG-112")
def test_the_servers_example_is_read_and_written_with_its_count() -> None:
    assert Decoder(CLIENT).feed(REPLY_OCTETS) == [BARE]
    assert encode(REPLY) == b"\x01\0\0\x05srver\0\0\0\x16batch-ack:max-count=10"
    assert encode(BARE) == encode(REPLY)


@pytest.mark.rule("MICROMSG-34", "MICROMSG-30", "MICROMSG-32", "MICROMSG-101")
def test_the_complete_example_is_read_with_frames_right_behind_it() -> None:
    final = Handshake("hulk", (JSON, DOTNET), (NamedExtension("batch-ack"),))
    message = Message(1, "commands", b"{}")
    stream = OFFER_OCTETS + FINAL_OCTETS + encode(message) + b"\x01\x04ping"
    assert Decoder(SERVER).feed(stream) == [OFFER, final, message, Command("ping")]
    assert Decoder(CLIENT).feed(REPLY_OCTETS + encode(message)) == [BARE, message]


@pytest.mark.rule("MICROMSG-32", "MICROMSG-156")
@pytest.mark.parametrize("role", [SERVER, CLIENT])
def test_octets_behind_the_handshake_are_not_lost_wherever_it_is_cut(role: str) -> None:
    message = Message(1, "commands", b"{}", "a:N1;")
    handshakes: list[Frame] = [OFFER, OFFER] if role == SERVER else [OFFER]
    stream = b"".join(map(encode, [*handshakes, message]))
    for cut in range(len(stream)):
        decoder = Decoder(role)
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == [*handshakes, message]
    decoder = Decoder(role)
    one_by_one = [frame for octet in stream for frame in decoder.feed(bytes([octet]))]
    assert one_by_one == [*handshakes, message]


@pytest.mark.rule("MICROMSG-25")
def test_the_reserved_flags_are_ignored() -> None:
    (read,) = Decoder(SERVER).feed(b"\x01\0\xff\x01a\0\0\0\0")
    assert read == Handshake("a", flags=255)
    assert Decoder(SERVER).feed(encode(read)) == [read]
    assert encode(Handshake("a"))[2] == 0


@pytest.mark.rule("MICROMSG-01", "MICROMSG-23")
def test_another_minor_version_is_read() -> None:
    assert Decoder(SERVER).feed(b"\x01\x07\0\0\0\0\0\0") == [Handshake("", minor=7)]


@pytest.mark.rule("MICROMSG-26")
def test_an_identity_is_ascii_of_at_most_255_octets() -> None:
    longest = Handshake("i" * 255)
    assert Decoder(SERVER).feed(encode(longest)) == [longest]
    assert failure(Decoder(SERVER), b"\x01\0\0\x02a\xff\0\0\0\0") == ("MICROMSG-26", 5, "bad-handshake")
    for identity in ("i" * 256, "é"):
        with pytest.raises(LocalProtocolError) as caught:
            encode(Handshake(identity))
        assert caught.value.rule == "MICROMSG-26"


@pytest.mark.rule("MICROMSG-23")
@pytest.mark.parametrize(
    "message",
    [
        Handshake("a", major=2),
        Handshake("a", minor=256),
        Handshake("a", flags=-1),
        Handshake("a", (NamedExtension("x-long", (("k", "v" * 65536),)),)),
    ],
)
def test_a_field_that_does_not_fit_is_not_sent(message: Handshake) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(message)
    assert caught.value.rule == "MICROMSG-23"


@pytest.mark.rule("MICROMSG-23")
def test_a_list_may_have_65535_octets() -> None:
    message = Handshake("a", (NamedExtension("x-" + "b" * 65533),))
    assert Decoder(SERVER, max_handshake=1 << 17).feed(encode(message)) == [message]


@pytest.mark.rule("MICROMSG-13", "MICROMSG-108")
@pytest.mark.parametrize("major", [0, 2, 3, 9, 255])
@pytest.mark.parametrize("role", [SERVER, CLIENT])
def test_another_major_version_is_refused_at_its_octet(role: str, major: int) -> None:
    decoder = Decoder(role)
    assert failure(decoder, bytes([major])) == ("MICROMSG-108", 0, "bad-version")
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(b"")
    assert isinstance(caught.value.reply, Error)
    assert caught.value.reply.value("version") == "1.0"


@pytest.mark.rule("MICROMSG-105")
@pytest.mark.parametrize("first", [0, 2, 3, 5, 8, 16, 20, 255])
def test_a_frame_before_the_final_message_is_a_bad_handshake(first: int) -> None:
    decoder = Decoder(SERVER)
    decoder.feed(OFFER_OCTETS)
    assert failure(decoder, bytes([first])) == ("MICROMSG-105", len(OFFER_OCTETS), "bad-handshake")


@pytest.mark.rule("MICROMSG-105")
def test_a_command_before_the_final_message_is_read_as_a_handshake_message() -> None:
    decoder = Decoder(SERVER)
    decoder.feed(OFFER_OCTETS)
    # 1 is COMMAND and the major version, 4 the minor one, "p" the flags, "i" an identity of 105 bytes.
    start = len(OFFER_OCTETS)
    ping = b"\x01\x04ping"
    assert decoder.feed(ping) == []
    assert failure(decoder, b"\0" * 100 + b"\x80\0\0" + b"\0" * 4) == ("MICROMSG-26", start + 106, "bad-handshake")


@pytest.mark.rule("MICROMSG-159", "MICROMSG-15", "MICROMSG-39")
@pytest.mark.parametrize("octets", [b"\x04\x0bbad-version", b"\x0c\0\0\0\x0bbad-version"])
def test_an_error_may_stand_in_the_place_of_the_reply_and_the_final_message(octets: bytes) -> None:
    assert Decoder(CLIENT).feed(octets) == [Error("bad-version")]
    server = Decoder(SERVER)
    server.feed(OFFER_OCTETS)
    assert server.feed(octets) == [Error("bad-version")]


@pytest.mark.rule("MICROMSG-159", "MICROMSG-108")
@pytest.mark.parametrize("first", [4, 12])
def test_in_the_place_of_the_offer_4_and_12_are_major_versions(first: int) -> None:
    assert failure(Decoder(SERVER), bytes([first])) == ("MICROMSG-108", 0, "bad-version")


@pytest.mark.rule("MICROMSG-17", "MICROMSG-18", "MICROMSG-19", "MICROMSG-113", "MICROMSG-162", "MICROMSG-164")
@pytest.mark.parametrize(
    ("text", "rule", "at"),
    [
        (b"js_on", "MICROMSG-17", 0),
        (b"json;x y", "MICROMSG-17", 5),
        (b"\xff", "MICROMSG-17", 0),
        (b";json", "MICROMSG-164", 0),
        (b"json;;ack", "MICROMSG-164", 5),
        (b"json;json", "MICROMSG-164", 5),
        (b"x-a:B_=c", "MICROMSG-18", 4),
        (b"x-a:b=c,", "MICROMSG-18", 8),
        (b"x-a:b", "MICROMSG-164", 4),
        (b"x-a:b=1,b=2", "MICROMSG-164", 8),
        (b"x-a:b=%2", "MICROMSG-162", 6),
        (b"batch-ack:max-count=0", "MICROMSG-113", 0),
        (b"json;batch-ack:max-count=ten", "MICROMSG-113", 5),
        (b"batch-ack:max-count=", "MICROMSG-113", 0),
        (b"batch-ack:max-count=-1", "MICROMSG-113", 0),
        (b"batch-ack:count=1,max-count=2", "MICROMSG-164", 0),
    ],
)
def test_a_malformed_list_is_a_bad_handshake(text: bytes, rule: str, at: int) -> None:
    size = len(text).to_bytes(2, "big")
    assert failure(Decoder(SERVER), b"\x01\0\0\x01a" + size + text + b"\0\0") == (rule, 7 + at, "bad-handshake")
    assert failure(Decoder(CLIENT), b"\x01\0\0\x01a\0\0" + size + text) == (rule, 9 + at, "bad-handshake")


@pytest.mark.rule("MICROMSG-154", "MICROMSG-155")
def test_a_handshake_message_over_its_limit_is_too_large_before_it_is_held() -> None:
    fits = encode(Handshake("a", (NamedExtension("x-" + "b" * 80),)))
    assert Decoder(SERVER, max_handshake=len(fits)).feed(fits) == [Handshake("a", (NamedExtension("x-" + "b" * 80),))]
    for octets, position in [
        (b"\x01\0\0\xff", 3),
        (b"\x01\0\0\x01a\x10\0", 5),
        (b"\x01\0\0\x01a\0\x01b\xff\xff", 8),
    ]:
        decoder = Decoder(SERVER, max_handshake=100)
        assert failure(decoder, octets) == ("MICROMSG-154", position, "too-large")
        assert decoder.pending() == 0


@given(strategies.handshakes)
def test_a_handshake_message_survives_the_wire(message: Handshake) -> None:
    assert Decoder(SERVER).feed(encode(message)) == [message]
