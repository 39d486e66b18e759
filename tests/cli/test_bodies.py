"""Bodies from chunks that are cut anywhere."""

import asyncio
import itertools
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from polywire.cli.bodies import split


async def given_in(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def lines(chunks: list[bytes]) -> list[bytes]:
    async def main() -> list[bytes]:
        return [line async for line in split(given_in(chunks))]

    return asyncio.run(main())


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\r", b"")), st.lists(st.integers(0, 60), max_size=5))
def test_lines_are_the_same_wherever_chunks_are_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines([data[start:end] for start, end in itertools.pairwise(places)]) == expected


def test_a_carriage_return_belongs_to_the_end_of_the_line() -> None:
    assert lines([b"a\r", b"\nb\rc\r\n"]) == [b"a", b"b\rc"]
