import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import LocalProtocolError
from polywire.protocols.umq.frames import MAX_NUMBER, digit, parse_number, write_number

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.rule("UMQ-08", "UMQ-13")
@pytest.mark.parametrize(("value", "char"), list(enumerate(DIGITS)))
def test_each_digit_has_its_value(value: int, char: str) -> None:
    assert digit(ord(char)) == value
    assert parse_number(char) == value
    assert write_number(value) == char


@pytest.mark.rule("UMQ-08", "UMQ-76")
def test_no_other_character_is_a_digit() -> None:
    others = [chr(code) for code in range(0x3000) if chr(code) not in DIGITS]
    assert [
        char for char in [*others, "\uff11", "\U0001d7d8"] if digit(ord(char)) >= 0 or parse_number(char) is not None
    ] == []


@pytest.mark.rule("UMQ-77")
def test_an_empty_number_is_zero() -> None:
    assert parse_number("") == 0


def test_zero_is_written_with_a_digit() -> None:
    assert write_number(0) == "0"


@pytest.mark.rule("UMQ-13")
@given(st.integers(0, MAX_NUMBER))
def test_a_written_number_is_read_back(number: int) -> None:
    text = write_number(number)
    assert int(text, 36) == number
    assert text == text.upper()
    assert parse_number(text) == number
    assert number == 0 or text[0] != "0"


@pytest.mark.rule("UMQ-84")
@pytest.mark.parametrize("number", [36**power + offset for power in range(13) for offset in (-1, 0, 1)])
def test_the_edges_of_each_length_are_read_back(number: int) -> None:
    assert parse_number(write_number(number)) == number
    assert parse_number("000" + write_number(number)) == number


@pytest.mark.rule("UMQ-84")
def test_the_largest_number_has_64_bits() -> None:
    assert write_number(2**64 - 1) == "3W5E11264SGSF"
    assert parse_number("3W5E11264SGSF") == 2**64 - 1
    assert parse_number("3W5E11264SGSG") is None
    assert parse_number("ZZZZZZZZZZZZZ") is None
    assert parse_number("10000000000000") is None


@pytest.mark.rule("UMQ-84")
def test_leading_zeros_do_not_make_a_number_large() -> None:
    assert parse_number("0" * 100_000 + "3W5E11264SGSF") == 2**64 - 1


@pytest.mark.rule("UMQ-84")
@pytest.mark.parametrize("number", [-1, 2**64, 2**80])
def test_what_is_no_id_is_not_written(number: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write_number(number)
    assert caught.value.rule == "UMQ-84"
    assert str(number) in caught.value.reason
