"""A pattern means the same channels here as in the hub."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.channels import from_stars, matches
from polywire.journal.format import values
from polywire.journal.query import ChannelPatterns

LEVELS = st.sampled_from(["a", "b", "", "*", "**", "a*", ".", "[", "$x", "é\n"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)


def hits(patterns: str | list[str], channels: list[str | None]) -> list[bool]:
    return values(ChannelPatterns(patterns).match(pa.array(channels, pa.utf8())))


@given(NAMES, st.lists(NAMES, max_size=8))
def test_a_pattern_means_what_it_means_in_the_hub(pattern: str, channels: list[str]) -> None:
    expected = [matches(from_stars(pattern), channel, dollar=True) for channel in channels]
    assert hits(pattern, list(channels)) == expected


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("a/b", ["a/b"]),
        ("a/*", ["a/b", "a/c"]),
        ("a/**", ["a", "a/b", "a/c", "a/b/c"]),
        ("*/b", ["a/b", "d/b"]),
        ("**", ["a", "a/b", "a/c", "a/b/c", "d/b", "/a"]),
        ("/a", ["/a"]),
        ("*", ["a"]),
    ],
)
def test_stars_stand_for_levels(pattern: str, meant: list[str]) -> None:
    channels = ["a", "a/b", "a/c", "a/b/c", "d/b", "/a"]
    assert [name for name, hit in zip(channels, hits(pattern, [*channels]), strict=True) if hit] == meant


def test_several_patterns_mean_what_any_of_them_means() -> None:
    assert hits(["a/*", "d/b"], ["a/b", "a", "d/b", "d/c"]) == [True, False, True, False]
    assert hits([], ["a"]) == [False]


def test_a_row_without_a_channel_is_never_meant() -> None:
    assert hits("**", [None, "a"]) == [False, True]
    assert hits("a", [None, "a"]) == [False, True]
