from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.sabc import Assembly, Error, Message, Whole, encode
from polywire.protocols.sabc.bodies import from_base64, to_base64
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION, code_of, server, whole

BASE64 = (("content-encoding", "base64"),)


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
