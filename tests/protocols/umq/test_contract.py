"""What holds for any messages whatsoever, shared with the fuzzer."""

import pytest
from fuzz.targets import umq as target
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polywire.protocols.umq import Decoder, RemoteProtocolError, encode
from polywire.wire.frame import Frame
from tests.protocols.umq.strategies import conversations


@pytest.mark.rule("UMQ-03", "UMQ-04", "UMQ-87", "UMQ-90")
@given(conversations())
def test_any_conversation_is_written_and_read_back(frames: list[Frame]) -> None:
    decoder = Decoder()
    for frame in frames:
        assert decoder.feed(encode(frame)) == [frame]


@settings(max_examples=200)
@given(st.binary(max_size=300))
@example(b"A3W5E11264SGSF:C1:")
@example(b"A1:H1:\n\0\nC1:x")
def test_any_octets_hold_the_contract(data: bytes) -> None:
    target.run(data)


pieces = st.one_of(
    st.sampled_from(
        ["A", ":", "-", "=", "0", "1", "Z", "a", "é", "\ud800", "3W5E11264SGSG", '["publish","a",null]', " "]
    ),
    st.sampled_from(list("HWFCBRETDUSX")),
    st.text(max_size=3),
)


@settings(max_examples=300)
@given(st.lists(st.one_of(st.lists(pieces, max_size=6).map("".join), st.binary(max_size=3)), max_size=8))
def test_near_misses_hold_the_contract(messages: list[str | bytes]) -> None:
    decoder = Decoder(max_unfinished=5)
    for message in messages:
        try:
            (frame,) = decoder.feed(message)
        except RemoteProtocolError as error:
            target.check_error(error, message)
            target.check_repeats(decoder, error)
            return
        assert isinstance(frame, Frame)
        assert decoder.unfinished() <= 5


@settings(max_examples=200)
@given(conversations(), st.data())
def test_a_damaged_conversation_holds_the_contract(frames: list[Frame], data: st.DataObject) -> None:
    octets = bytearray(target.join([encode(frame) for frame in frames]))
    for _ in range(data.draw(st.integers(1, 3))):
        if octets:
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    target.run(bytes(octets))


def test_the_seeds_hold_the_contract() -> None:
    for seed in target.seeds():
        target.run(seed)
