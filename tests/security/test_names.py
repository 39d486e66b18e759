"""What users and groups may be called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.access import fits_in_a_pattern
from polywire.security.names import MAX_NAME, group_name_problem, name_problem, user_name_problem


@pytest.mark.parametrize("name", ["anna", "sensor-7", "anna@example.org", "Jürgen Ö", "x" * MAX_NAME, "a.b_c", "[red]"])
def test_ordinary_names_are_fine(name: str) -> None:
    assert user_name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\n", "a\0", "a/b", "*", "a+b", "#a", "a:b", "a,b", "$a", "token", "x" * (MAX_NAME + 1)]
)
def test_a_user_can_not_be_called_what_a_file_or_a_pattern_could_not_hold(name: str) -> None:
    assert user_name_problem(name) is not None


def test_a_name_proven_elsewhere_may_hold_more_but_nothing_invisible() -> None:
    assert name_problem("host/a+b") is None
    assert name_problem("a\u200b") is not None


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a\n"])
def test_a_group_can_not_be_called_what_a_file_could_not_hold(name: str) -> None:
    assert "group" in (group_name_problem(name) or "")


@given(st.text())
def test_every_user_of_a_file_fits_in_a_pattern(name: str) -> None:
    assert user_name_problem(name) is not None or fits_in_a_pattern(name)
