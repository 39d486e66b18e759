"""FMQP's packets and topics: the bytes of every kind, what becomes of bad ones, which topics are equivalent."""

import tracemalloc
from itertools import product

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
    equivalent,
    is_plain,
    is_service,
    read_topic,
    topic_problem,
)
from polywire.wire.frame import RAW_KEPT, Discarded, Frame
from tests.protocols.fmqp import strategies

VALID = [
    "home/living-space/living-room1/temperature",
    "home/living-space/living-room1/temperature/",
    "/home/living-space/living-room1/temperature",
    "/home/living-space/living-room1/temperature/",
    "/home/",
    "/home/",
    "home/",
    "home",
]
INVALID = ["/", "////////////////////", ""]
EQUIVALENT = [
    "home/living-space/living-room1/temperature",
    "home/living-space/living-room1/*",
    "home/living-space/*/temperature",
    "home/*/living-room1/temperature",
    "*/living-space/living-room1/temperature",
    "*/*/*/*",
]


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
    with pytest.raises(LocalProtocolError, match="256 bytes") as caught:
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
        "the body has 5000 bytes, more than the 100 allowed",
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


@pytest.mark.rule("FMQP-16", "FMQP-14")
def test_the_documents_valid_topics_are_read_without_their_outer_slashes() -> None:
    assert [read_topic(topic.encode()) for topic in VALID] == [VALID[0]] * 4 + ["home"] * 4


@pytest.mark.rule("FMQP-17", "FMQP-15")
@pytest.mark.parametrize("topic", INVALID)
def test_the_documents_invalid_topics_are_refused(topic: str) -> None:
    assert read_topic(topic.encode()) is None
    assert topic_problem(topic.encode())[0] == "FMQP-15"


@pytest.mark.rule("FMQP-47", "FMQP-13")
@pytest.mark.parametrize(("raw", "topic"), [("///a//b///", "a//b"), ("a/ /b", "a/ /b"), ("/*/", "*")])
def test_all_outer_slashes_go_and_inner_empty_levels_stay(raw: str, topic: str) -> None:
    assert read_topic(raw.encode()) == topic


@pytest.mark.rule("FMQP-47")
def test_an_empty_inner_level_is_a_level() -> None:
    assert not equivalent("a//b", "a/b")
    assert equivalent("a//b", "a/*/b")


@pytest.mark.rule("FMQP-21", "FMQP-19", "FMQP-20")
@pytest.mark.parametrize("topic", EQUIVALENT)
def test_the_documents_equivalent_topics_are_equivalent(topic: str) -> None:
    assert equivalent(EQUIVALENT[0], topic)
    assert equivalent(topic, EQUIVALENT[-1])


@pytest.mark.rule("FMQP-18")
@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("*", "a/b"), ("*/*/*", "a/b"), ("a/b", "a")])
def test_topics_with_other_numbers_of_levels_are_not_equivalent(one: str, other: str) -> None:
    assert not equivalent(one, other)


@pytest.mark.rule("FMQP-19")
@pytest.mark.parametrize(("one", "other"), [("a/b", "a/c"), ("a/b", "b/a"), ("a*/b", "ab/b"), ("A", "a")])
def test_topics_with_another_level_are_not_equivalent(one: str, other: str) -> None:
    assert not equivalent(one, other)


@pytest.mark.rule("FMQP-49")
@given(strategies.topics, strategies.topics)
def test_equivalence_is_symmetric_and_reflexive(one: str, other: str) -> None:
    assert equivalent(one, other) == equivalent(other, one)
    assert equivalent(one, one)


@pytest.mark.rule("FMQP-19", "FMQP-20")
def test_equivalence_agrees_with_the_definition_on_all_short_topics() -> None:
    short = ["/".join(parts) for size in (1, 2, 3) for parts in product("ab*", repeat=size)]
    for one, other in product(short, repeat=2):
        pairs = list(zip(one.split("/"), other.split("/"), strict=False))
        defined = one.count("/") == other.count("/") and all(a == b or "*" in (a, b) for a, b in pairs)
        assert equivalent(one, other) is defined, (one, other)


@pytest.mark.rule("FMQP-50")
def test_a_wildcard_stands_for_the_service_level_too() -> None:
    assert equivalent("*/info/clients", "$/info/clients")


@pytest.mark.rule("FMQP-23")
@pytest.mark.parametrize(
    ("topic", "service"), [("$/info/clients", True), ("$", True), ("$x/y", False), ("a/$", False), ("*/info", False)]
)
def test_a_service_topic_begins_with_the_level_dollar(topic: str, *, service: bool) -> None:
    assert is_service(topic) is service


@pytest.mark.rule("FMQP-54")
@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (b"a/b", True),
        (b"a//b", True),
        (b"a*/b", True),
        ("grün/ß".encode(), True),
        (b"a/*", False),
        (b"*", False),
        (b"/a", False),
        (b"a/", False),
        (b"$/signals/stop", False),
        (b"$", False),
        (b"", False),
        (b"a\0b", False),
        (b"\xff", False),
    ],
)
def test_only_literal_regular_stripped_topics_are_plain(raw: bytes, *, plain: bool) -> None:
    assert is_plain(raw) is plain
