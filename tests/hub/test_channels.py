"""Names and patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub import channels
from polywire.hub.channels import ANY, REST, covers, from_mqtt, from_stars, matches, to_stars

names = st.lists(st.sampled_from(["a", "b", "", "$x", "*"]), min_size=1, max_size=4).map("/".join).filter(bool)
levels = st.lists(st.sampled_from(["a", "b", "", ANY]), min_size=1, max_size=4)
patterns = st.builds(lambda parts, rest: "/".join(parts + [REST] * rest), levels, st.booleans()).filter(bool)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/*", "a/b", True),
        ("a/*", "a", False),
        ("a/*", "a/b/c", False),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("a/**", "ab", False),
        ("**", "a/b", True),
        ("*", "$a", False),
        ("**", "$a/b", False),
        ("$a/**", "$a/b", True),
        ("*/b", "/b", True),
        ("a", "/a", False),
        ("a/**/b", "a/**/b", True),
        ("a/**/b", "a/x/b", False),
    ],
)
def test_patterns_match_level_by_level(pattern: str, name: str, *, fits: bool) -> None:
    assert matches(from_stars(pattern), name) is fits


def test_a_wildcard_in_front_matches_service_names_only_where_asked() -> None:
    assert matches(from_stars("*/info/clients"), "$/info/clients", dollar=True)
    assert not matches(from_stars("*/info/clients"), "$/info/clients")


def test_mqtt_wildcards_become_ours_and_its_stars_stay_ordinary_levels() -> None:
    assert from_mqtt("a/+/#") == from_stars("a/*/**")
    assert from_mqtt("a/*/b") == "a/*/b"
    assert matches(from_mqtt("#"), "a/b")
    assert from_mqtt("sport+/x") == "sport+/x"


def test_two_stars_are_an_ordinary_level_where_the_protocol_has_none() -> None:
    assert from_stars("a/**", rest=False) == "a/**"
    assert from_stars("*/**", rest=False) == f"{ANY}/**"


@given(st.lists(st.sampled_from(["a", "*", "b", ""]), min_size=1, max_size=4), st.integers(0, 1))
def test_patterns_can_be_shown_as_they_were_written(parts: list[str], rest: int) -> None:
    text = "/".join(parts + ["**"] * rest)
    assert to_stars(from_stars(text)) == text


@pytest.mark.parametrize(
    ("wider", "narrower", "fits"),
    [
        ("a/**", "a/b", True),
        ("a/**", "a/**", True),
        ("a/**", "a/*/**", True),
        ("a/*", "a/**", False),
        ("a/*", "a/*", True),
        ("a/*", "a/b", True),
        ("a/b", "a/*", False),
        ("**", "$a", True),
        ("a/*/**", "a/**", False),
        ("a/**", "**", False),
    ],
)
def test_a_pattern_covers_what_matches_less(wider: str, narrower: str, *, fits: bool) -> None:
    assert covers(from_stars(wider), from_stars(narrower)) is fits


@given(patterns, patterns, names)
def test_what_a_covered_pattern_matches_the_covering_one_matches_too(wider: str, narrower: str, name: str) -> None:
    if covers(wider, narrower) and matches(narrower, name, dollar=True):
        assert matches(wider, name, dollar=True)


@pytest.mark.parametrize(
    ("name", "words"), [("", "empty"), ("a\0", "NUL"), ("/" * 200, "200 levels"), ("ü" * 32768, "65535 bytes")]
)
def test_what_can_not_be_a_name_is_told(name: str, words: str) -> None:
    assert words in (channels.name_problem(name) or "")


@pytest.mark.parametrize("name", ["a", "/", "//", "a/*/b", "$SYS/x", "x" * 65535, "/" * 199])
def test_anything_else_can(name: str) -> None:
    assert channels.name_problem(name) is None
