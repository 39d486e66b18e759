"""Values to bytes, frames to whole messages, and what a message asks of the hub."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp import Subscription
from polywire.protocols.sabc import (
    Assembly,
    Connected,
    Decoder,
    Disconnect,
    Disconnecting,
    Error,
    LocalProtocolError,
    Message,
    Operation,
    Whole,
    encode,
    operation,
    split,
)
from polywire.protocols.sabc.frames import from_base64, to_base64
from polywire.wire.frame import Discarded, Frame
from tests.protocols.sabc.wire import SESSION, code_of, server, whole, wire

BASE64 = (("content-encoding", "base64"),)
BOUNDARY = f"MESSAGE\r\nsession-id::{SESSION}\r\n".encode()


@pytest.mark.rule("SABC-79", "SABC-02")
def test_the_session_id_is_the_first_header() -> None:
    frames: list[Frame] = [
        Connected(SESSION, 0, (("a", "b"),)),
        Disconnect(SESSION, (("a", "b"),)),
        Disconnecting(SESSION, (("a", "b"),)),
        Message(SESSION, "1", b"x", (("a", "b"),), send_only=True),
        Message(SESSION, None, b"x", (("a", "b"),), "1", more=True),
        Error("400", b"", SESSION, "1", (("a", "b"),)),
    ]
    for frame in frames:
        assert encode(frame).split(b"\r\n")[1] == b"session-id::" + SESSION.encode()


@pytest.mark.rule("SABC-80", "SABC-81")
def test_everything_but_a_msg_more_frame_has_a_null_portion_and_lines_end_with_cr_lf() -> None:
    assert encode(Message(SESSION, "1", b"x")) == wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\n\nx\n\n^@")
    piece = encode(Message(SESSION, "1", b"x", more=True))
    assert piece == wire(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\nmsg-more::yes\n\nx")
    for frame in (Connected(SESSION), Disconnect(SESSION), Disconnecting(SESSION), Error("400")):
        assert encode(frame).endswith(b"\r\n\r\n\0")


@pytest.mark.rule("SABC-15")
def test_only_sabc_frames_are_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-15"):
        encode(Subscription("topic"))


@pytest.mark.rule("SABC-14")
def test_an_error_without_headers_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-14"):
        encode(Error(None, b"text"))


@pytest.mark.rule("SABC-82", "SABC-83")
@pytest.mark.parametrize("body", [b"\xff", b"ok\xc3", b"\0", b"\0x", b"\r\n\0", b"a\r\n\r\n\0b", b"\r\n\r\n\0"])
def test_a_body_the_wire_can_not_carry_goes_as_base64(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert b"content-encoding::base64\r\n" in octets
    assert octets.decode()
    assert whole(server().feed(octets)) == [Whole(SESSION, "1", body)]
    octets = encode(Error("400", body, SESSION))
    assert b"content-encoding::base64\r\n" in octets
    assert server().feed(octets) == [Error("400", body, SESSION)]


@pytest.mark.rule("SABC-82", "SABC-84")
@pytest.mark.parametrize("body", [b"a\0", "grüße".encode(), b"\n\0", b"\r\n\r\n", b"a\r\n\0", b"\r\n\r\n\r\n"])
def test_every_other_body_goes_as_it_is(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert body in octets
    assert b"base64" not in octets
    assert server().feed(octets) == [Message(SESSION, "1", body)]


@pytest.mark.rule("SABC-126")
@pytest.mark.parametrize("body", [BOUNDARY, b"x" + BOUNDARY + b"y", BOUNDARY[:-2]])
def test_a_body_with_a_boundary_of_its_own_session_goes_as_base64(body: bytes) -> None:
    octets = encode(Message(SESSION, "1", body))
    assert b"content-encoding::base64\r\n" in octets
    assert whole(server().feed(octets)) == [Whole(SESSION, "1", body)]
    assert body in encode(Message("another", "1", body))


@pytest.mark.rule("SABC-82", "SABC-126")
@pytest.mark.parametrize("body", [b"\xff", b"\0", b"\r\n\0", b"\r\n\r\n\0", BOUNDARY])
def test_a_piece_the_wire_can_not_carry_is_not_written(body: bytes) -> None:
    for frame in (
        Message(SESSION, "1", body, more=True),
        Message(SESSION, "1", body, (("content-encoding", "base64"),)),
        Error("400", body, SESSION, None, (("content-encoding", "gzip"),)),
    ):
        with pytest.raises(LocalProtocolError, match=r"SABC-82|SABC-126"):
            encode(frame)


@pytest.mark.rule("SABC-64")
def test_an_error_is_one_frame_however_large() -> None:
    frame = Error("400", b"x" * 100_000, SESSION)
    assert Decoder(session_id=SESSION).feed(encode(frame)) == [frame]


AWKWARD = [b"\0", b"\r\n", b"x", "ß→😀".encode(), b"\r\n\r\n", b"MESSAGE"]
BODIES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(str.encode),
    st.lists(st.sampled_from(AWKWARD), max_size=60).map(b"".join),
)


@pytest.mark.rule("SABC-129", "SABC-116", "SABC-124")
@given(BODIES, st.integers(120, 400), st.booleans())
def test_a_split_message_is_the_same_message(body: bytes, size: int, send_only: bool) -> None:
    sent = Message(SESSION, "1", body, (("a", "b"),), send_only=send_only)
    frames = split(sent, size + 30)
    octets = [encode(frame) for frame in frames]
    assert all(len(part) <= size + 30 for part in octets)
    assert all(part.decode() for part in octets)
    assert [frame.more for frame in frames] == [True] * (len(frames) - 1) + [False]
    assert server().feed(b"".join(octets)) == frames
    assert whole(server().feed(b"".join(octets))) == [Whole(SESSION, "1", body, (("a", "b"),), None, send_only)]
    for frame in frames[1:]:
        assert (frame.headers, frame.send_only) == ((), False)


@pytest.mark.rule("SABC-129")
def test_a_small_message_stays_one_frame() -> None:
    sent = Message(SESSION, None, b"x", ref_msg_id="1")
    assert split(sent, 1000) == [sent]


@pytest.mark.rule("SABC-129")
def test_a_body_of_nuls_is_split_as_base64() -> None:
    body = b"x" + b"\0" * 1000
    frames = split(Message(SESSION, "1", body), 200)
    assert frames[0].headers == (("content-encoding", "base64"),)
    assert len(frames) > 5
    assert whole(list(frames)) == [Whole(SESSION, "1", body)]


@pytest.mark.rule("SABC-129")
def test_what_can_not_be_split_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no room"):
        split(Message(SESSION, "1", b"x" * 100), 70)
    with pytest.raises(LocalProtocolError, match="whole message"):
        split(Message(SESSION, "1", b"x", more=True), 1000)
    with pytest.raises(LocalProtocolError, match="SABC-82"):
        split(Message(SESSION, "1", b"\xff", (("content-encoding", "gzip"),)), 1000)
    with pytest.raises(LocalProtocolError, match="be split anywhere"):
        split(Message(SESSION, "1", b"x" + b"\0" * 1000, (("content-encoding", "gzip"),)), 200)


def test_a_refused_frame_is_a_value_like_any_other() -> None:
    [one] = server().feed(wire("HELLO\n\n\n\n^@"))
    [other] = server().feed(wire("HELLO\n\n\n\n^@"))
    assert isinstance(one, Discarded)
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.rule("SABC-04", "SABC-57")
def test_a_message_is_one_or_more_frames() -> None:
    assembly = Assembly()
    assert assembly.add(Message(SESSION, "1", b"alone")) == Whole(SESSION, "1", b"alone")
    assert assembly.add(Message(SESSION, "1", b"a ", more=True)) is None
    assert assembly.add(Message(SESSION, "1", b"", more=True)) is None
    assert assembly.pending() == 2
    assert len(assembly) == 1
    assert assembly.add(Message(SESSION, "1", b"b")) == Whole(SESSION, "1", b"a b")
    assert len(assembly) == assembly.pending() == 0


@pytest.mark.rule("SABC-58", "SABC-69", "SABC-107")
def test_messages_and_responses_of_the_same_id_are_kept_apart() -> None:
    frames = [
        Message(SESSION, "1", b"question ", more=True),
        Message(SESSION, None, b"answer ", ref_msg_id="1", more=True),
        Message(SESSION, "2", b"other"),
        Message(SESSION, "1", b"end"),
        Message(SESSION, None, b"end", ref_msg_id="1"),
    ]
    expected = [
        Whole(SESSION, "2", b"other"),
        Whole(SESSION, "1", b"question end"),
        Whole(SESSION, None, b"answer end", ref_msg_id="1"),
    ]
    assert whole(list(frames)) == expected
    assert whole(server().feed(b"".join(map(encode, frames)))) == expected


@pytest.mark.rule("SABC-68", "SABC-116", "SABC-124", "SABC-118")
def test_the_first_frame_speaks_for_all() -> None:
    frames = [
        Message(SESSION, "1", b"a", (("destination", "x"),), send_only=True, more=True),
        Message(SESSION, "1", b"b", (("destination", "y"), ("z", "z"))),
    ]
    assert whole(list(frames)) == [Whole(SESSION, "1", b"ab", (("destination", "x"),), send_only=True)]
    late = [Message(SESSION, "1", b"a", more=True), Message(SESSION, "1", b"b", send_only=True)]
    [made] = whole(list(late))
    assert isinstance(made, Whole)
    assert made.wants_answer


@pytest.mark.rule("SABC-83")
@given(st.binary(max_size=200), st.integers(0, 300))
def test_base64_cut_anywhere_is_decoded(body: bytes, cut: int) -> None:
    text = to_base64(body)
    frames = [Message(SESSION, "1", text[:cut], BASE64, more=True), Message(SESSION, "1", text[cut:])]
    assert whole(list(frames)) == [Whole(SESSION, "1", body)]


@pytest.mark.rule("SABC-125")
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
def test_pieces_encoded_each_on_its_own_are_decoded(pieces: list[bytes]) -> None:
    frames = [
        Message(SESSION, "1", b64encode(piece), BASE64, more=number < len(pieces) - 1)
        for number, piece in enumerate(pieces)
    ]
    assert whole(list(frames)) == [Whole(SESSION, "1", b"".join(pieces))]


@pytest.mark.rule("SABC-125")
@pytest.mark.parametrize(
    "text", [b"a", b"YQ=", b"YQ", b"Y===", b"====", b"YQ==\r\n", b"Y Q==", b"\xff\xff\xff\xff", b"YQ==Y"]
)
def test_what_is_no_base64_is_malformed(text: bytes) -> None:
    assert from_base64(text) is None
    [made] = whole([Message(SESSION, "1", text, (("a", "b"), *BASE64))])
    assert isinstance(made, Discarded)
    assert made.rule == "SABC-125"
    assert made.reply == Error("400", made.reason.encode(), SESSION, "1")


@pytest.mark.rule("SABC-84")
def test_another_content_encoding_is_none_of_our_business() -> None:
    headers = (("content-encoding", "gzip"),)
    assert whole([Message(SESSION, "1", b"YQ==", headers)]) == [Whole(SESSION, "1", b"YQ==", headers)]


@pytest.mark.rule("SABC-103", "SABC-125")
def test_truncated_base64_is_decoded_as_far_as_it_goes() -> None:
    body = bytes(range(256)) * 4
    octets = encode(Message(SESSION, "1", body, (("a", "b"),)))
    for limit in range(300, 310):
        [made] = whole(server(max_message=limit).feed(octets))
        assert isinstance(made, Whole)
        assert made.truncated
        assert made.headers == (("a", "b"), ("truncated", "yes"))
        assert body.startswith(made.body)
        assert len(made.body) > 90


@pytest.mark.rule("SABC-103")
def test_a_message_that_calls_itself_truncated_stays_so() -> None:
    headers = (("truncated", "yes"),)
    [made] = whole([Message(SESSION, "1", b"x", headers)])
    assert made == Whole(SESSION, "1", b"x", headers, truncated=True)
    frames = [Message(SESSION, "1", b"x", (("truncated", "no"),), more=True), Message(SESSION, "1", b"y", headers)]
    assert whole(list(frames)) == [Whole(SESSION, "1", b"xy", headers, truncated=True)]


@pytest.mark.rule("SABC-131")
def test_the_message_with_which_all_unfinished_have_too_much_is_given_up() -> None:
    decoder, assembly = server(max_message=400), Assembly()
    pieces = [encode(Message(SESSION, str(number), b"x" * 200, more=True)) for number in range(3)]
    ends = [encode(Message(SESSION, str(number), b"y")) for number in range(3)]
    held = 0
    given_up = []
    made = []
    for frame in decoder.feed(b"".join([*pieces, *ends])):
        if isinstance(frame, Message):
            made.append(assembly.add(frame))
        elif code_of(frame) == "429":
            given_up.append(decoder.given_up())
            assembly.forget(given_up[-1])
        held = max(held, assembly.pending())
    assert given_up == ["m2"]
    assert [each.body for each in made if isinstance(each, Whole)] == [b"x" * 200 + b"y"] * 2
    assert held == 400
    assert len(assembly) == 0
    # What ended makes room again, and the one that was given up may begin anew.
    assert decoder.feed(pieces[2] + ends[2]) == [
        Message(SESSION, "2", b"x" * 200, more=True),
        Message(SESSION, "2", b"y"),
    ]


def test_limits_can_be_widened_once_a_client_is_known() -> None:
    decoder = server(max_message=200, max_head=600)
    octets = encode(Message(SESSION, "1", b"x" * 300, (("long", "y" * 700),)))
    assert code_of(decoder.feed(octets)[0]) == "429"
    decoder.allow(max_message=2000, max_head=1000)
    assert decoder.feed(octets) == [Message(SESSION, "1", b"x" * 300, (("long", "y" * 700),))]
    with pytest.raises(ValueError, match="at least 512"):
        decoder.allow(max_message=2000, max_head=10)


def read(*headers: tuple[str, str]) -> Operation | Discarded:
    return operation(Whole(SESSION, "7", b"body", headers))


@pytest.mark.rule("SABC-112")
def test_without_op_a_message_is_published() -> None:
    assert read(("destination", "a/b")) == Operation("publish", "a/b")


@pytest.mark.rule("SABC-112", "SABC-113", "SABC-117")
@pytest.mark.parametrize("op", ["publish", "subscribe", "unsubscribe"])
def test_what_goes_to_a_channel_needs_a_destination(op: str) -> None:
    assert read(("op", op), ("destination", "a/b")) == Operation(op, "a/b")
    for headers in ([("service", "x")], [("destination", "")]):
        refused = read(("op", op), *headers)
        assert isinstance(refused, Discarded)
        assert refused.rule == "SABC-113"
        assert refused.reply == Error("400", refused.reason.encode(), SESSION, "7")


@pytest.mark.rule("SABC-112", "SABC-113")
@pytest.mark.parametrize("op", ["serve", "unserve"])
def test_offering_a_service_needs_its_name(op: str) -> None:
    assert read(("op", op), ("service", "s")) == Operation(op, None, "s")
    assert isinstance(read(("op", op), ("destination", "a")), Discarded)


@pytest.mark.rule("SABC-112", "SABC-113")
def test_a_call_needs_service_and_method() -> None:
    assert read(("op", "call"), ("service", "s"), ("method", "m")) == Operation("call", None, "s", "m")
    assert isinstance(read(("op", "call"), ("service", "s")), Discarded)
    assert isinstance(read(("op", "call"), ("method", "m")), Discarded)


@pytest.mark.rule("SABC-112")
@pytest.mark.parametrize("op", ["", "PUBLISH", "delete", "x" * 5000])
def test_another_op_is_malformed(op: str) -> None:
    refused = read(("op", op), ("destination", "a"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-112"
    assert len(refused.reason) < 200


@pytest.mark.rule("SABC-118")
def test_other_headers_travel() -> None:
    found = read(("unit", "C"), ("op", "publish"), ("truncated", "yes"), ("destination", "a"), ("unit", "F"))
    assert found == Operation("publish", "a", headers=(("unit", "C"), ("truncated", "yes"), ("unit", "F")))


@pytest.mark.rule("SABC-121")
@pytest.mark.parametrize("key", ["op", "destination", "service", "method"])
def test_the_hubs_headers_stand_once(key: str) -> None:
    refused = read(("destination", "a"), (key, "publish"), (key, "publish"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-121"
