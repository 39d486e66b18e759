"""Unfinished frames, bytes compared in place, and names kept."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polywire.wire.frame import LONGEST_KEPT, NAMES_KEPT, Assembler, Names, same_bytes


def test_with_nothing_held_a_chunk_passes_as_it_is() -> None:
    assembler = Assembler()
    chunk = b"abc"
    assert assembler.take(chunk) is chunk


def test_chunks_wait_until_the_wanted_number_is_there() -> None:
    assembler = Assembler()
    assembler.keep(b"xxab", 2, 5)
    assert (assembler.pending(), assembler.offset) == (2, 2)
    assert assembler.take(b"c") is None
    assert assembler.take(b"d") is None
    assert assembler.pending() == 4
    assert assembler.take(b"ef") == b"abcdef"
    assert assembler.pending() == 0


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8), st.integers(1, 9))
def test_no_octet_is_lost_or_moved(data: bytes, cuts: list[int], size: int) -> None:
    assembler = Assembler()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    taken = b""
    for start, end in itertools.pairwise(places):
        chunk = assembler.take(data[start:end])
        if chunk is not None:
            whole = len(chunk) // size * size
            assert assembler.offset == len(taken)
            taken += chunk[:whole]
            assembler.keep(chunk, whole, size)
    assert taken == data[: len(data) // size * size]
    assert assembler.pending() == len(data) % size


@given(st.binary(max_size=40), st.binary(max_size=40), st.data())
def test_two_places_are_the_same_when_their_octets_are(one: bytes, other: bytes, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([other, one]))
    length = data.draw(st.integers(0, min(len(one), len(other))))
    assert same_bytes(one + other, 0, len(one), length) == (one[:length] == other[:length])


def test_one_different_octet_is_seen_wherever_it_is() -> None:
    for length in range(20):
        data = bytes(range(length)) * 2
        assert same_bytes(data, 0, length, length)
        for at in range(length):
            changed = bytearray(data)
            changed[at] ^= 0x80
            assert not same_bytes(bytes(changed), 0, length, length)


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
