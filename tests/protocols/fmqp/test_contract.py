"""FMQP under any bytes at all."""

import pytest
from fuzz.targets import fmqp
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp.frames import encode
from polywire.wire.frame import Frame
from tests.protocols.fmqp import strategies


@pytest.mark.rule("FMQP-35")
@given(st.binary(max_size=200))
def test_any_octets_cut_anywhere_give_frames(data: bytes) -> None:
    fmqp.run(data)


@pytest.mark.rule("FMQP-35")
@given(st.lists(strategies.frames, max_size=4), st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_stream_gives_frames(frames: list[Frame], place: int, octet: int) -> None:
    wire = bytearray(b"\x05" + b"".join(map(encode, frames)))
    wire[place % len(wire)] = octet
    fmqp.run(bytes(wire))
