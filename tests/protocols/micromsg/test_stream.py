"""The contract of the decoder on any bytes: hypothesis and the fuzzer's own target."""

import pytest
from fuzz.targets import micromsg
from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.protocols.micromsg.frames import Handshake, encode
from polywire.wire.frame import Frame
from tests.protocols.micromsg import strategies


@pytest.mark.rule("MICROMSG-155", "MICROMSG-156", "MICROMSG-157")
@settings(max_examples=150)
@given(st.binary(max_size=300))
def test_any_octets_hold_the_contract(data: bytes) -> None:
    micromsg.run(data)


@pytest.mark.rule("MICROMSG-155", "MICROMSG-156", "MICROMSG-157")
@settings(max_examples=100)
@given(
    st.integers(0, 255),
    st.lists(strategies.handshakes, max_size=2),
    st.lists(strategies.frames, max_size=3),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
)
def test_mutated_streams_hold_the_contract(
    first: int, handshakes: list[Handshake], frames: list[Frame], changes: list[tuple[int, int]]
) -> None:
    stream = bytearray(b"".join(map(encode, [*handshakes, *frames])))
    for at, octet in changes:
        if stream:
            stream[at % len(stream)] = octet
    micromsg.run(bytes([first, *stream]))


@pytest.mark.parametrize("seed", micromsg.seeds())
def test_the_seeds_hold_the_contract(seed: bytes) -> None:
    micromsg.run(seed)
    for mode in range(3):
        micromsg.run(bytes([mode]) + seed[1:])
