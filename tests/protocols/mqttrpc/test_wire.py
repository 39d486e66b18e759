"""The walk over a message's fields, against a reference reading of the wire format."""

import pytest
from fuzz.targets.mqttrpc import KINDS, UnreadableError, fields, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.protocols.mqttrpc.wire import CUT, OVERLONG, varint, walk


def octets(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@st.composite
def field(draw: st.DrawFn) -> bytes:
    number, kind = draw(st.integers(0, 9)), draw(st.sampled_from([0, 0, 1, 2, 2, 3, 4, 5, 6]))
    tag = octets(number << 3 | kind)
    if kind == 0:
        return tag + octets(draw(st.integers(0, 2**64 - 1)))
    if kind == 2:
        body = draw(st.binary(max_size=5))
        return tag + octets(len(body)) + body
    return tag + bytes({1: 8, 5: 4}.get(kind, 0))


@settings(max_examples=500)
@given(st.lists(field(), max_size=6).map(b"".join))
@pytest.mark.rule("MQTTRPC-36", "MQTTRPC-37", "MQTTRPC-80", "MQTTRPC-81", "MQTTRPC-82")
def test_the_walk_finds_what_a_plain_reading_finds(message: bytes) -> None:
    found = walk(message, 1000)
    try:
        outermost = fields(message)
    except UnreadableError:
        assert found.rule
        return
    if any(kind not in KINDS.get(number, {kind}) for number, kind, _ in outermost):
        assert found.rule == "MQTTRPC-81"
        return
    assert not found.rule
    assert ({"Request"} if found.request_at >= 0 else set()) | (
        {"Response"} if found.response_at >= 0 else set()
    ) == kinds(outermost)
    assert found.correlation_id == ([0] + [value for number, _, value in outermost if number == 1])[-1]


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_a_number_is_read_up_to_its_end(number: int, after: bytes) -> None:
    data = b"\xff" + octets(number) + after
    assert varint(data, 1, len(data), 10) == (number, 1 + len(octets(number)))


@pytest.mark.rule("MQTTRPC-78", "MQTTRPC-79")
@pytest.mark.parametrize(
    ("data", "most", "why"),
    [
        (b"", 5, CUT),
        (b"\x80\x80", 5, CUT),
        (b"\x80" * 4, 5, CUT),
        (b"\x80" * 5, 5, OVERLONG),
        (b"\x80" * 9, 10, CUT),
        (b"\x80" * 10, 10, OVERLONG),
    ],
)
def test_a_number_without_an_end_is_cut_or_overlong(data: bytes, most: int, why: int) -> None:
    assert varint(data, 0, len(data), most)[1] == why
