"""FMQP's packets: the octets of every kind, and what becomes of bad ones."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp.errors import LocalProtocolError
from polywire.protocols.fmqp.frames import (
    CACHE,
    DEBUG,
    FEEDBACK,
    LAST_WILL,
    MAX_LENGTH,
    SUBSCRIPTION,
    UNSUBSCRIBE,
    Decoder,
    Publication,
    Subscription,
    Unsubscription,
    decode_count,
    encode,
    encode_count,
)
from polywire.wire.frame import RAW_KEPT, Discarded, Frame
from tests.protocols.fmqp import strategies


def packet(flags: int, topic: bytes, body: bytes = b"") -> bytes:
    return bytes([flags, len(topic)]) + len(body).to_bytes(4, "big") + topic + body


def only(data: bytes) -> Frame:
    (frame,) = Decoder().feed(data)
    return frame


@pytest.mark.rule("FMQP-36", "FMQP-37", "FMQP-38")
def test_a_publication_is_flags_lengths_topic_and_body() -> None:
    wire = b"\x00\x04\x00\x00\x01\x02home" + b"x" * 0x102
    assert encode(Publication("home", b"x" * 0x102)) == wire
    assert only(wire) == Publication("home", b"x" * 0x102)


@pytest.mark.rule("FMQP-39", "FMQP-40", "FMQP-41", "FMQP-42", "FMQP-43", "FMQP-44", "FMQP-45")
@pytest.mark.parametrize(
    ("first", "frame"),
    [
        (0x80, Subscription("t")),
        (0xC0, Unsubscription("t")),
        (0xA0, Subscription("t", FEEDBACK)),
        (0xE0, Unsubscription("t", FEEDBACK)),
        (0x90, Subscription("t", DEBUG)),
        (0x08, Publication("t", b"", LAST_WILL)),
        (0x04, Publication("t", b"", CACHE)),
        (0x0C, Publication("t", b"", CACHE | LAST_WILL)),
        (0x20, Publication("t", b"", FEEDBACK)),
    ],
)
def test_each_flag_is_its_bit_counted_from_the_most_significant(first: int, frame: Frame) -> None:
    assert encode(frame) == packet(first, b"t")
    assert only(packet(first, b"t")) == frame


@pytest.mark.rule("FMQP-30", "FMQP-41")
def test_the_feedback_flag_shows_on_every_kind_of_packet() -> None:
    frames = Decoder().feed(packet(0x20, b"t") + packet(0xA0, b"t") + packet(0xE0, b"t") + packet(0x00, b"t"))
    flags = [frame.feedback for frame in frames if isinstance(frame, Publication | Subscription | Unsubscription)]
    assert flags == [True, True, True, False]


@pytest.mark.rule("FMQP-42", "FMQP-43", "FMQP-44")
def test_flags_read_as_what_they_ask_for() -> None:
    publication = only(packet(LAST_WILL, b"t", b"x"))
    assert isinstance(publication, Publication)
    assert (publication.last_will, publication.cache) == (True, False)
    subscription = only(packet(SUBSCRIPTION | DEBUG, b"t"))
    assert isinstance(subscription, Subscription)
    assert (subscription.debug, subscription.feedback) == (True, False)


@pytest.mark.rule("FMQP-46")
def test_bits_six_and_seven_are_ignored_and_written_zero() -> None:
    assert only(packet(0x03, b"t", b"x")) == Publication("t", b"x")
    assert encode(Publication("t", b"x", 0xFF))[0] == 0xFC


@pytest.mark.rule("FMQP-74")
def test_flags_that_make_no_sense_do_not_make_a_packet_invalid() -> None:
    assert only(packet(DEBUG | UNSUBSCRIBE, b"t", b"x")) == Publication("t", b"x", DEBUG | UNSUBSCRIBE)
    assert only(packet(SUBSCRIPTION | CACHE | LAST_WILL, b"t")) == Subscription("t", CACHE | LAST_WILL)


@pytest.mark.rule("FMQP-08")
def test_a_body_may_be_empty() -> None:
    assert only(packet(0, b"t")) == Publication("t", b"")


@pytest.mark.rule("FMQP-73")
def test_the_body_of_a_subscription_is_dropped() -> None:
    frames = Decoder().feed(packet(SUBSCRIPTION, b"t", b"ignored") + packet(0, b"u", b"x"))
    assert frames == [Subscription("t"), Publication("u", b"x")]


@pytest.mark.rule("FMQP-14")
def test_outer_slashes_are_stripped_when_read_and_when_written() -> None:
    assert only(packet(0, b"//home/room/", b"x")) == Publication("home/room", b"x")
    assert encode(Publication("/home/room//", b"x")) == packet(0, b"home/room", b"x")


@pytest.mark.rule("FMQP-35", "FMQP-48")
@pytest.mark.parametrize(
    ("topic", "rule", "words"),
    [
        (b"", "FMQP-15", "empty"),
        (b"///", "FMQP-15", "slashes only"),
        (b"a\0b", "FMQP-12", "NUL"),
        (b"\xff\xfe", "FMQP-10", "UTF-8"),
        (b"\xed\xa0\x80", "FMQP-10", "UTF-8"),
        (b"a/\xc3", "FMQP-10", "UTF-8"),
    ],
)
@pytest.mark.parametrize("flags", [0, SUBSCRIPTION, SUBSCRIPTION | UNSUBSCRIBE])
def test_a_packet_with_a_bad_topic_is_discarded_and_the_next_is_read(
    topic: bytes, rule: str, words: str, flags: int
) -> None:
    good = packet(0, b"t", b"x")
    bad = packet(flags, topic, b"body")
    first, second, third = Decoder().feed(good + bad + good)
    assert first == third == Publication("t", b"x")
    assert isinstance(second, Discarded)
    assert (second.rule, second.position, second.raw, second.size) == (rule, len(good), bad, len(bad))
    assert words in second.reason
    assert second.reply is None


@pytest.mark.rule("FMQP-10", "FMQP-12")
def test_a_topic_of_any_other_characters_is_read() -> None:
    assert only(packet(0, "büro/室温/🌡".encode(), b"x")) == Publication("büro/室温/🌡", b"x")


@pytest.mark.rule("FMQP-11")
def test_a_topic_of_255_octets_passes_and_a_longer_one_can_not_be_sent() -> None:
    longest = "ü" * 127 + "x"
    assert only(encode(Publication(longest, b"x"))) == Publication(longest, b"x")
    with pytest.raises(LocalProtocolError, match="256 octets") as caught:
        encode(Publication("ü" * 128, b"x"))
    assert caught.value.rule == "FMQP-11"


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        (Publication("", b"x"), "FMQP-15"),
        (Subscription("//"), "FMQP-15"),
        (Unsubscription("a\0"), "FMQP-12"),
        (Publication("\ud800", b""), "FMQP-10"),
        (Discarded("", "", 0, b"", 0), "FMQP-36"),
    ],
)
@pytest.mark.rule("FMQP-10", "FMQP-12", "FMQP-15")
def test_what_fmqp_does_not_allow_is_not_sent(frame: Frame, rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.rule == rule


@pytest.mark.rule("FMQP-52")
@pytest.mark.parametrize("chunk", [1, 5, 7, 64, 100_000])
def test_an_oversize_body_is_skipped_as_it_streams_in(chunk: int) -> None:
    decoder = Decoder(max_body=100)
    wire = packet(0, b"t", b"a" * 100) + packet(0, b"big", b"b" * 5000) + packet(0, b"t", b"c")
    frames = []
    for start in range(0, len(wire), chunk):
        frames += decoder.feed(wire[start : start + chunk])
        assert decoder.pending() <= 107
    discarded = Discarded(
        "FMQP-52",
        "the body has 5000 octets, more than the 100 allowed",
        107,
        packet(0, b"big", b"b" * 5000)[:9],
        5009,
    )
    assert frames == [Publication("t", b"a" * 100), discarded, Publication("t", b"c")]


@pytest.mark.rule("FMQP-52")
def test_a_length_field_takes_no_memory_before_its_octets_arrive() -> None:
    for limit in (100, MAX_LENGTH):
        decoder = Decoder(max_body=limit)
        tracemalloc.start()
        decoder.feed(b"\x00\x01\xff\xff\xff\xfft" + b"x" * 50)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000
        assert decoder.pending() <= 57


def test_a_discarded_packet_keeps_only_its_first_octets() -> None:
    discarded = only(packet(0, b"/", b"x" * 5000))
    assert isinstance(discarded, Discarded)
    assert (len(discarded.raw), discarded.size) == (RAW_KEPT, 5007)


@pytest.mark.rule("FMQP-29")
@pytest.mark.parametrize("count", [0, 1, 255, 1 << 40, (1 << 64) - 1])
def test_a_count_is_eight_octets_big_endian(count: int) -> None:
    assert encode_count(count) == count.to_bytes(8, "big")
    assert decode_count(encode_count(count)) == count


@pytest.mark.rule("FMQP-29")
def test_what_is_no_count_is_refused() -> None:
    assert decode_count(b"1234567") is None
    for number in (-1, 1 << 64):
        with pytest.raises(LocalProtocolError):
            encode_count(number)


@pytest.mark.rule("FMQP-36")
@given(strategies.frames)
def test_every_frame_survives_the_wire(frame: Frame) -> None:
    assert Decoder().feed(encode(frame)) == [frame]


@pytest.mark.rule("FMQP-36")
@given(st.lists(strategies.frames, max_size=4))
def test_a_stream_cut_at_every_octet_gives_the_same_frames(frames: list[Frame]) -> None:
    wire = b"".join(map(encode, frames))
    decoder = Decoder()
    assert [frame for octet in wire for frame in decoder.feed(bytes([octet]))] == frames
    assert decoder.pending() == 0
