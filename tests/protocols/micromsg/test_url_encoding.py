"""Percent escapes, strict both ways."""

import pytest
from hypothesis import given

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.url_encoding import decoded, encoded, shown
from tests.protocols.micromsg import strategies


@pytest.mark.rule("MICROMSG-19", "MICROMSG-60", "MICROMSG-80")
def test_the_documents_examples_are_read_and_written() -> None:
    assert decoded("Hello%20%25%20mother%20fucker!") == "Hello % mother fucker!"
    assert encoded('Hello "world"') == "Hello%20%22world%22"
    assert decoded("Hello%20%22world%22") == 'Hello "world"'


@pytest.mark.rule("MICROMSG-162")
def test_a_plus_is_a_plus() -> None:
    assert decoded("1+1%2b1") == "1+1+1"


@pytest.mark.rule("MICROMSG-162")
@pytest.mark.parametrize(
    ("text", "at"), [("%", 0), ("a%", 1), ("a%4", 1), ("%4g", 0), ("%g4", 0), ("ok%20%", 5), ("%%20", 0)]
)
def test_a_percent_sign_without_two_digits_is_malformed(text: str, at: int) -> None:
    with pytest.raises(MalformedError) as caught:
        decoded(text)
    assert (caught.value.rule, caught.value.at) == ("MICROMSG-162", at)


@pytest.mark.rule("MICROMSG-162")
@pytest.mark.parametrize("text", ["%ff", "%c3", "%c3x", "%ed%a0%80", "%c0%80"])
def test_escapes_that_are_not_utf8_are_malformed(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decoded(text, 7)
    assert (caught.value.rule, caught.value.at) == ("MICROMSG-162", 7)


@pytest.mark.rule("MICROMSG-162")
def test_what_utf8_can_not_say_is_not_written() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encoded("\ud800")
    assert caught.value.rule == "MICROMSG-162"


@given(strategies.texts)
def test_a_text_survives_its_escapes(text: str) -> None:
    assert decoded(encoded(text)) == text
    assert encoded(text).isascii()


def test_a_long_text_is_cut_in_messages() -> None:
    assert shown("a\n") == r"'a\n'"
    assert shown("x" * 1000) == "'" + "x" * 40 + "'… (1000 characters)"
