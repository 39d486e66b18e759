"""Octets compared in place, and names kept."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.octets import LONGEST_KEPT, NAMES_KEPT, Names, same_octets


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


def test_a_name_that_comes_again_is_the_same_text() -> None:
    names = Names()
    octets = "räume/1".encode()
    assert names.known(octets) is None
    text = names.text(octets)
    assert text == "räume/1"
    assert names.text(bytes(bytearray(octets))) is text
    assert names.known(octets) is text


def test_only_so_many_names_are_kept_and_no_long_ones() -> None:
    names = Names()
    for number in range(3 * NAMES_KEPT):
        assert names.text(b"%d" % number) == str(number)
        assert len(names) <= NAMES_KEPT
    kept = len(names)
    assert names.text(b"x" * (LONGEST_KEPT + 1)) == "x" * (LONGEST_KEPT + 1)
    assert len(names) == kept
