"""Sizes and durations."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.server.config.kinds import parse_seconds, parse_size, show_seconds, show_size


@pytest.mark.parametrize(
    ("text", "octets"),
    [("16 MiB", 16 << 20), ("64KiB", 65536), ("1.5 kib", 1536), ("2 GB", 2 * 10**9), ("7 B", 7), (" 1 kB ", 1000)],
)
def test_sizes_have_units(text: str, octets: int) -> None:
    assert parse_size(text) == octets


@pytest.mark.parametrize(
    ("text", "seconds"), [("30 s", 30), ("500ms", 0.5), ("2 min", 120), ("1.5 h", 5400), ("1 d", 86400)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("big", "this is not a number and a unit"),
        ("16", "this is not a number and a unit"),
        ("-1 KiB", "this is not a number and a unit"),
        ("1e3 B", "this is not a number and a unit"),
        ("٣ B", "this is not a number and a unit"),
        ("16 MiBs", "MiBs is not a unit; units are B, kB, MB, GB, KiB, MiB, GiB"),
        ("0.5 B", "this is not a whole number of bytes"),
    ],
)
def test_what_is_wrong_with_a_size_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words) + "$"):
        parse_size(text)


def test_what_is_wrong_with_a_duration_is_said() -> None:
    with pytest.raises(ValueError, match=r"^m is not a unit; units are ms, s, min, h, d$"):
        parse_seconds("3 m")


@given(st.integers(0, 2**50))
def test_a_size_can_be_read_as_it_is_shown(octets: int) -> None:
    assert parse_size(show_size(octets)) == octets


def test_a_duration_is_shown_without_needless_digits() -> None:
    assert [show_seconds(value) for value in (0.0, 30.0, 0.25)] == ["0 s", "30 s", "0.25 s"]
