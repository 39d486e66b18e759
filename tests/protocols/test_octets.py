"""Octets compared in place."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.octets import same_octets


@given(st.binary(max_size=40), st.binary(max_size=40), st.data())
def test_two_places_are_the_same_when_their_octets_are(one: bytes, other: bytes, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([other, one]))
    length = data.draw(st.integers(0, min(len(one), len(other))))
    assert same_octets(one + other, 0, len(one), length) == (one[:length] == other[:length])


def test_one_different_octet_is_seen_wherever_it_is() -> None:
    for length in range(20):
        data = bytes(range(length)) * 2
        assert same_octets(data, 0, length, length)
        for at in range(length):
            changed = bytearray(data)
            changed[at] ^= 0x80
            assert not same_octets(bytes(changed), 0, length, length)
