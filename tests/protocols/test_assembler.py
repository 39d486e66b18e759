"""The octets of an unfinished frame."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.assembler import Assembler


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
