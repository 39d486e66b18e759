"""Messages, commands, extension and error frames on an established connection, byte by byte."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.protocols.micromsg.errors import ENDS_CONNECTION, LocalProtocolError, RemoteProtocolError
from polywire.protocols.micromsg.frames import (
    CLIENT,
    SERVER,
    Command,
    Decoder,
    Error,
    Extension,
    Message,
    encode,
    renumbered,
)
from polywire.protocols.micromsg.text import Value, read_properties, write_properties
from polywire.wire.frame import Frame
from tests.protocols.micromsg import strategies

MIB = 1_048_576


def established(**limits: int) -> Decoder:
    return Decoder(established=True, **limits)  # type: ignore[arg-type]


def decode(octets: bytes, **limits: int) -> list[Frame]:
    return established(**limits).feed(octets)


def failure(octets: bytes, **limits: int) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(octets, **limits)
    assert isinstance(caught.value.reply, Error)
    encode(caught.value.reply)
    return caught.value


def reply_name(error: RemoteProtocolError) -> str:
    assert isinstance(error.reply, Error)
    return error.reply.name


MESSAGE = b"\0\x01\x02\x08commands\0\x08room:N1;\x02hi"


@pytest.mark.rule("MICROMSG-35", "MICROMSG-36", "MICROMSG-46", "MICROMSG-91", "MICROMSG-97")
def test_a_message_has_number_destination_properties_and_payload_in_that_order() -> None:
    message = Message(0x0102, "commands", b"hi", "room:N1;")
    assert decode(MESSAGE) == [message]
    assert encode(message) == MESSAGE


@pytest.mark.rule("MICROMSG-03", "MICROMSG-02")
@pytest.mark.parametrize("role", [SERVER, CLIENT])
def test_both_sides_read_messages_of_the_same_layout(role: str) -> None:
    assert Decoder(role, established=True).feed(MESSAGE) == [Message(0x0102, "commands", b"hi", "room:N1;")]


@pytest.mark.rule("MICROMSG-02")
def test_a_connection_has_no_third_role() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Decoder("peer")
    assert caught.value.rule == "MICROMSG-02"


@pytest.mark.rule("MICROMSG-47", "MICROMSG-91")
@pytest.mark.parametrize("sequence", [1, 255, 256, 32767, 32768, 65535])
def test_sequence_numbers_are_unsigned_shorts_in_network_order(sequence: int) -> None:
    octets = encode(Message(sequence, "q", b""))
    assert octets[1:3] == sequence.to_bytes(2, "big")
    assert decode(octets) == [Message(sequence, "q", b"")]


@pytest.mark.rule("MICROMSG-117")
def test_the_sequence_number_0_is_never_used() -> None:
    error = failure(b"\0\0\0\x01q\0\0\0")
    assert (error.rule, error.position, reply_name(error)) == ("MICROMSG-117", 1, "bad-frame")
    for sequence in (0, -1, 65536):
        with pytest.raises(LocalProtocolError) as caught:
            encode(Message(sequence, "q", b""))
        assert caught.value.rule == "MICROMSG-117"


@pytest.mark.rule("MICROMSG-48", "MICROMSG-55")
@pytest.mark.parametrize("destination", ["commands", "topic/domain-events", "", "d" * 255, "zürich/日本"])
def test_a_destination_is_carried_as_it_is(destination: str) -> None:
    assert decode(encode(Message(1, destination, b"x"))) == [Message(1, destination, b"x")]


@pytest.mark.rule("MICROMSG-48")
def test_a_destination_of_more_than_255_octets_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(Message(1, "é" * 128, b""))
    assert caught.value.rule == "MICROMSG-48"
    assert "256" in caught.value.reason


@pytest.mark.rule("MICROMSG-160")
def test_a_destination_that_is_not_utf8_is_a_bad_frame() -> None:
    error = failure(b"\0\0\x01\x03ab\xff\0\0\0")
    assert (error.rule, error.position, reply_name(error)) == ("MICROMSG-160", 6, "bad-frame")
    with pytest.raises(LocalProtocolError) as caught:
        encode(Message(1, "\ud800", b""))
    assert caught.value.rule == "MICROMSG-160"


@pytest.mark.rule("MICROMSG-49")
@pytest.mark.parametrize("payload", [b"", b"\0\xff\x10\x01", bytes(range(256)) * 2, b"<xml/>"])
def test_a_payload_can_be_anything(payload: bytes) -> None:
    assert decode(encode(Message(7, "q", payload))) == [Message(7, "q", payload)]


@pytest.mark.rule("MICROMSG-40", "MICROMSG-97")
def test_the_payload_length_has_four_octets_only_where_it_needs_them() -> None:
    assert encode(Message(1, "q", b"x" * 255)) == b"\0\0\x01\x01q\0\0\xff" + b"x" * 255
    assert encode(Message(1, "q", b"x" * 256)) == b"\x08\0\x01\x01q\0\0\0\0\x01\0" + b"x" * 256
    assert decode(b"\x08\0\x01\x01q\0\0\0\0\0\x02hi") == [Message(1, "q", b"hi")]
    assert encode(Command("c", (("k", "v" * 300),)))[:5] == b"\x09\0\0\x01\x30"
    assert encode(Extension(3, b"x" * 255))[:4] == b"\x02\x03\xffx"
    assert encode(Extension(3, b"x" * 256))[:6] == b"\x0a\x03\0\0\x01\0"
    assert decode(b"\x09\0\0\0\x04ping") == [Command("ping")]
    assert decode(b"\x0a\x03\0\0\0\x02\0\x04") == [Extension(3, b"\0\x04")]
    assert decode(b"\x0c\0\0\0\x0dshutting-down") == [Error("shutting-down")]


@pytest.mark.rule("MICROMSG-50", "MICROMSG-89", "MICROMSG-41", "MICROMSG-121")
def test_a_payload_over_1_mib_is_split() -> None:
    payload = bytes(range(256)) * 4096
    assert encode(Message(1, "q", payload, "a:N1;")) == b"\x08\0\x01\x01q\0\x05a:N1;\0\x10\0\0" + payload
    more = payload + payload + b"!"
    first = b"\x18\0\x01\x01q\0\x05a:N1;\0\x10\0\0" + payload
    second = b"\x18\0\x01\x01q\0\0\0\x10\0\0" + payload
    assert encode(Message(1, "q", more, "a:N1;")) == first + second + b"\0\0\x01\x01q\0\0\x01!"
    assert encode(Message(1, "q", payload + b"!"))[-9:] == b"\0\0\x01\x01q\0\0\x01!"


@pytest.mark.rule("MICROMSG-51", "MICROMSG-122", "MICROMSG-50")
def test_continued_frames_are_one_message() -> None:
    message = Message(9, "q", b"z" * (2 * MIB + 5), "a:N1;")
    assert decode(encode(message)) == [message]


@pytest.mark.rule("MICROMSG-41", "MICROMSG-51", "MICROMSG-122")
def test_a_continued_message_comes_with_its_last_frame() -> None:
    decoder = established()
    assert decoder.feed(b"\x10\0\x01\x01q\0\x05a:N1;\x02ab") == []
    assert decoder.pending() == 2
    assert decoder.feed(b"\x10\0\x01\x01q\0\0\0") == []
    assert decoder.feed(b"\x18\0\x01\x01q\0\0\0\0\0\x01c") == []
    assert decoder.feed(b"\0\0\x01\x01q\0\0\x02de") == [Message(1, "q", b"abcde", "a:N1;")]
    assert decoder.pending() == 0
    assert decoder.feed(MESSAGE) == [Message(0x0102, "commands", b"hi", "room:N1;")]


@pytest.mark.rule("MICROMSG-119", "MICROMSG-120", "MICROMSG-121")
@pytest.mark.parametrize(
    ("frame", "rule", "position"),
    [
        (b"\0\0\x02\x01q\0\0\x02cd", "MICROMSG-119", 1),
        (b"\x10\0\x02\x01q\0\0\x02cd", "MICROMSG-119", 1),
        (b"\0\0\x01\x01r\0\0\x02cd", "MICROMSG-120", 3),
        (b"\0\0\x01\x01q\0\x05a:N1;\x02cd", "MICROMSG-121", 5),
    ],
)
def test_a_frame_that_does_not_belong_to_the_continued_message_is_a_bad_frame(
    frame: bytes, rule: str, position: int
) -> None:
    first = b"\x10\0\x01\x01q\0\x05a:N1;\x02ab"
    decoder = established()
    decoder.feed(first)
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(frame)
    assert (caught.value.rule, caught.value.position) == (rule, len(first) + position)
    assert reply_name(caught.value) == "bad-frame"
    assert decoder.pending() == 0


@pytest.mark.rule("MICROMSG-158", "MICROMSG-133")
def test_other_frames_may_stand_between_continued_ones() -> None:
    others = [Extension(1, b"\0\x01"), Command("ping"), Error("forbidden")]
    decoder = established()
    assert decoder.feed(b"\x10\0\x01\x01q\0\0\x02ab" + b"".join(map(encode, others))) == others
    assert decoder.feed(b"\0\0\x01\x01q\0\0\x02cd") == [Message(1, "q", b"abcd")]


@pytest.mark.rule("MICROMSG-133")
def test_frames_come_in_the_order_they_stand_in() -> None:
    frames: list[Frame] = [
        Message(1, "a", b"1"),
        Command("subscribe", (("destination", "topic/b"),)),
        Message(2, "a", b"2"),
        Extension(1, b"\0\x01"),
        Command("ping"),
        Message(3, "a", b"3"),
    ]
    assert decode(b"".join(map(encode, frames))) == frames


@pytest.mark.rule("MICROMSG-123", "MICROMSG-151")
def test_one_unsplit_frame_is_accepted_up_to_the_limit() -> None:
    size = 2 * MIB
    head = b"\x08\0\x01\x01q\0\0"
    octets = head + size.to_bytes(4, "big") + bytes(size)
    assert decode(octets, max_message=size) == [Message(1, "q", bytes(size))]
    error = failure(head + (size + 1).to_bytes(4, "big"), max_message=size)
    assert (error.rule, error.position) == ("MICROMSG-151", len(head))
    assert error.reply == Error("too-large", (("limit", str(size)), ("reason", error.reason)))
    assert str(size + 1) in error.reason


@pytest.mark.rule("MICROMSG-151")
def test_the_limit_counts_all_frames_of_a_message() -> None:
    part = b"\x10\0\x01\x01q\0\0\x0a" + b"x" * 10
    assert decode(part + b"\0\0\x01\x01q\0\0\x0a" + b"x" * 10, max_message=20) == [Message(1, "q", b"x" * 20)]
    error = failure(part + b"\0\0\x01\x01q\0\0\x0b", max_message=20)
    assert (error.rule, error.position, reply_name(error)) == ("MICROMSG-151", len(part) + 7, "too-large")
    assert "21" in error.reason


@pytest.mark.rule("MICROMSG-152")
@pytest.mark.parametrize(("head", "position"), [(b"\x09", 1), (b"\x0a\x01", 2), (b"\x0c", 1)])
def test_a_control_payload_over_its_limit_is_too_large(head: bytes, position: int) -> None:
    error = failure(head + (1001).to_bytes(4, "big"), max_control=1000)
    assert (error.rule, error.position, reply_name(error)) == ("MICROMSG-152", position, "too-large")
    assert isinstance(error.reply, Error)
    assert error.reply.value("limit") == "1000"
    assert decode(b"\x0a\x01" + (1000).to_bytes(4, "big") + bytes(1000), max_control=1000) == [
        Extension(1, bytes(1000))
    ]


@pytest.mark.rule("MICROMSG-153", "MICROMSG-52")
def test_properties_over_their_limit_are_too_large() -> None:
    error = failure(b"\0\0\x01\x01q\0\x65", max_properties=100)
    assert (error.rule, error.position, reply_name(error)) == ("MICROMSG-153", 5, "too-large")
    longest = "k:T" + "x" * 65531 + ";"
    assert decode(encode(Message(1, "q", b"", longest))) == [Message(1, "q", b"", longest)]
    with pytest.raises(LocalProtocolError) as caught:
        encode(Message(1, "q", b"", "x" + longest))
    assert caught.value.rule == "MICROMSG-52"


@pytest.mark.rule("MICROMSG-155")
def test_a_length_field_of_the_maximum_makes_nothing_grow() -> None:
    huge = 0xFFFF_FFFF
    decoder = established(max_message=huge, max_control=huge)
    tracemalloc.start()
    try:
        decoder.feed(b"\x08\0\x01\x01q\xff\xff")
        decoder.feed(b"a:T" + b"x" * 65532 + b"\xff\xff\xff\xff1234")
        other = established(max_control=huge)
        other.feed(b"\x0a\x01\xff\xff\xff\xff12")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decoder.pending() == 7 + 65535 + 8
    assert other.pending() == 8
    assert peak < MIB


@pytest.mark.rule("MICROMSG-161", "MICROMSG-162")
@pytest.mark.parametrize(
    ("text", "rule", "at"),
    [
        (b"a", "MICROMSG-161", 1),
        (b":N1;", "MICROMSG-161", 0),
        (b"a:N1;;", "MICROMSG-161", 5),
        (b"A:N1;", "MICROMSG-161", 0),
        (b"a b:N1;", "MICROMSG-161", 1),
        (b"a:T\n;", "MICROMSG-161", 3),
        (b"a:T\xc3\xa9;", "MICROMSG-161", 3),
        (b"a:T%4;", "MICROMSG-162", 3),
        (b"a:T%zz;", "MICROMSG-162", 3),
        (b"a:T%", "MICROMSG-162", 3),
        (b"b:N1;a:T%ff;", "MICROMSG-162", 8),
        (b"a:T%80;", "MICROMSG-162", 3),
        (b"a:T%c3;", "MICROMSG-162", 3),
    ],
)
def test_malformed_properties_are_a_bad_frame(text: bytes, rule: str, at: int) -> None:
    error = failure(b"\0\0\x01\x01q\0" + bytes([len(text)]) + text + b"\0")
    assert (error.rule, error.position, reply_name(error)) == (rule, 7 + at, "bad-frame")
    with pytest.raises(LocalProtocolError) as caught:
        encode(Message(1, "q", b"", text.decode("latin-1")))
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-37", "MICROMSG-56", "MICROMSG-57")
def test_a_command_is_flag_1_a_length_and_its_text() -> None:
    command = Command("subscribe", (("destination", "topic/a b"), ("filter", "a=N1;b=Tx")))
    text = b"subscribe;destination=topic%2Fa%20b,filter=a%3DN1%3Bb%3DTx"
    octets = b"\x01" + bytes([len(text)]) + text
    assert encode(command) == octets
    assert decode(octets) == [command]
    assert command.value("filter") == "a=N1;b=Tx"
    assert command.value("other") is None


@pytest.mark.rule("MICROMSG-58", "MICROMSG-59", "MICROMSG-60", "MICROMSG-163", "MICROMSG-162")
@pytest.mark.parametrize(
    ("text", "rule", "at"),
    [
        (b"", "MICROMSG-58", 0),
        (b"a_b", "MICROMSG-58", 0),
        (b";a=b", "MICROMSG-58", 0),
        (b"a;B=c", "MICROMSG-59", 2),
        (b"a;b=c,=d", "MICROMSG-59", 6),
        (b"a;b=c,", "MICROMSG-59", 6),
        (b"a;b", "MICROMSG-163", 2),
        (b"a;b=1,b=2", "MICROMSG-163", 6),
        (b"a;b=\xff", "MICROMSG-163", 4),
        (b"a;b=\x07", "MICROMSG-163", 4),
        (b"a;b=%4", "MICROMSG-162", 4),
        (b"a;b=x%g0", "MICROMSG-162", 5),
        (b"a;b=%c3", "MICROMSG-162", 4),
    ],
)
@pytest.mark.parametrize("kind", [1, 4])
def test_a_malformed_command_or_error_is_a_bad_frame(kind: int, text: bytes, rule: str, at: int) -> None:
    error = failure(bytes([kind, len(text)]) + text)
    assert (error.rule, error.position, reply_name(error)) == (rule, 2 + at, "bad-frame")


@pytest.mark.rule("MICROMSG-38", "MICROMSG-61", "MICROMSG-63", "MICROMSG-67")
def test_the_example_ack_is_2_2_2_0_4() -> None:
    assert encode(Extension(2, b"\0\x04")) == bytes([2, 2, 2, 0, 4])
    assert decode(bytes([2, 2, 2, 0, 4])) == [Extension(2, b"\0\x04")]


@pytest.mark.rule("MICROMSG-62")
@pytest.mark.parametrize("payload", [b"", bytes(range(256)), b"\x02" * 300])
def test_an_extension_frame_carries_any_payload(payload: bytes) -> None:
    assert decode(encode(Extension(255, payload))) == [Extension(255, payload)]


@pytest.mark.rule("MICROMSG-61", "MICROMSG-33")
@pytest.mark.parametrize("number", [0, -1, 256])
def test_extension_numbers_go_from_1_to_255(number: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(Extension(number, b""))
    assert caught.value.rule == "MICROMSG-61"


@pytest.mark.rule("MICROMSG-33", "MICROMSG-167")
@pytest.mark.parametrize("octets", [b"\x02\0\x02\0\x01", b"\x0a\0\0\0\0\x02\0\x01"])
def test_extension_0_is_a_bad_frame(octets: bytes) -> None:
    error = failure(octets)
    assert (reply_name(error), error.rule, error.position) == ("bad-frame", "MICROMSG-167", 1)


@pytest.mark.rule("MICROMSG-39", "MICROMSG-98")
def test_an_error_is_flag_4_a_length_and_its_text() -> None:
    error = Error("unsupported-extension", (("name", "xml"),))
    octets = b"\x04\x1eunsupported-extension;name=xml"
    assert encode(error) == octets
    assert decode(octets) == [error]
    assert error.value("name") == "xml"


@pytest.mark.rule("MICROMSG-99")
@pytest.mark.parametrize("name", sorted(ENDS_CONNECTION))
def test_each_error_name_can_be_sent_and_read(name: str) -> None:
    assert decode(encode(Error(name))) == [Error(name)]


@pytest.mark.rule("MICROMSG-99", "MICROMSG-169")
def test_another_error_name_is_read_but_never_sent() -> None:
    assert decode(b"\x04\x08new-name") == [Error("new-name")]
    with pytest.raises(LocalProtocolError) as caught:
        encode(Error("new-name"))
    assert caught.value.rule == "MICROMSG-99"


@pytest.mark.rule("MICROMSG-94", "MICROMSG-95", "MICROMSG-96")
@pytest.mark.parametrize("flags", range(256))
def test_flags_that_make_no_sense_are_a_bad_frame(flags: int) -> None:
    kinds = [bit for bit in (1, 2, 4) if flags & bit]
    if flags & 0xE0:
        rule = "MICROMSG-95"
    elif len(kinds) > 1:
        rule = "MICROMSG-94"
    elif kinds and flags & 16:
        rule = "MICROMSG-96"
    else:
        assert decode(bytes([flags])) == []
        return
    error = failure(MESSAGE + bytes([flags]))
    assert (error.rule, error.position, reply_name(error)) == (rule, len(MESSAGE), "bad-frame")
    assert error.frames == [Message(0x0102, "commands", b"hi", "room:N1;")]


@pytest.mark.rule("MICROMSG-35")
def test_only_frames_of_micromsg_are_written() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(Frame())
    assert caught.value.rule == "MICROMSG-35"


@pytest.mark.rule("MICROMSG-58", "MICROMSG-59", "MICROMSG-163")
@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (Command("Ping"), "MICROMSG-58"),
        (Command(""), "MICROMSG-58"),
        (Command("a", (("B", "c"),)), "MICROMSG-59"),
        (Command("a", (("b", "c"), ("b", "d"))), "MICROMSG-163"),
        (Command("a", (("b", "\ud800"),)), "MICROMSG-162"),
    ],
)
def test_a_command_that_is_not_allowed_is_not_sent(command: Command, rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(command)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-175")
@given(strategies.messages, strategies.sequences)
def test_a_message_can_be_numbered_again(message: Message, sequence: int) -> None:
    other = Message(sequence, message.destination, message.payload, message.properties)
    assert renumbered(encode(message), sequence) == encode(other)


@pytest.mark.rule("MICROMSG-175")
def test_all_frames_of_a_large_message_are_numbered_again() -> None:
    payload = b"y" * (2 * MIB + 300)
    assert renumbered(encode(Message(1, "q", payload, "a:N1;")), 513) == encode(Message(513, "q", payload, "a:N1;"))
    for sequence in (0, 65536):
        with pytest.raises(LocalProtocolError) as caught:
            renumbered(MESSAGE, sequence)
        assert caught.value.rule == "MICROMSG-117"


@given(strategies.frames)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(encode(frame)) == [frame]


@settings(max_examples=40)
@given(st.lists(strategies.frames, min_size=1, max_size=3))
@pytest.mark.rule("MICROMSG-156")
def test_a_stream_cut_at_any_octet_gives_the_same_frames(frames: list[Frame]) -> None:
    octets = b"".join(map(encode, frames))
    for cut in range(len(octets)):
        decoder = established()
        assert decoder.feed(octets[:cut]) + decoder.feed(octets[cut:]) == frames
        assert decoder.pending() == 0


@pytest.mark.rule("MICROMSG-156")
def test_a_cut_header_gives_no_frame() -> None:
    for cut in range(len(MESSAGE)):
        decoder = established()
        assert decoder.feed(MESSAGE[:cut]) == []
        assert decoder.pending() == cut


@pytest.mark.rule("MICROMSG-157")
def test_after_an_error_the_decoder_repeats_it() -> None:
    decoder = established()
    with pytest.raises(RemoteProtocolError) as first:
        decoder.feed(MESSAGE + b"\x80")
    for data in (b"", MESSAGE):
        with pytest.raises(RemoteProtocolError) as again:
            decoder.feed(data)
        assert again.value is not first.value
        assert again.value.frames == []
        assert (again.value.rule, again.value.position, again.value.reply) == (
            first.value.rule,
            first.value.position,
            first.value.reply,
        )
    assert decoder.pending() == 0


@given(strategies.property_sets)
@pytest.mark.rule("MICROMSG-52")
def test_properties_travel_as_text_and_are_read_when_wanted(found: dict[str, Value]) -> None:
    (message,) = decode(encode(Message(1, "q", b"", write_properties(found))))
    assert isinstance(message, Message)
    assert read_properties(message.properties) == found


def test_frames_are_values() -> None:
    assert Message(1, "q", b"x") == Message(1, "q", b"x")
    assert Message(1, "q", b"x") != Message(2, "q", b"x")
    assert repr(Command("ping")) == "Command(name='ping', arguments=())"
    assert len({Error("forbidden"), Error("forbidden"), Command("forbidden")}) == 2
