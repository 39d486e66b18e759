import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import FatalCode, MethodError
from polywire.protocols.umq.codes import describe, error_text, read_error_text

MEANINGS = [
    (1, "Rejected"),
    (2, "Callback not found"),
    (3, "Protocol error"),
    (4, "Unsupported command"),
    (5, "Unsupported version"),
    (6, "No RPC server here"),
    (7, "No route to method"),
    (8, "Temporarily unavailable"),
    (9, "Limit exceeded"),
    (10, "Shutting down"),
    (11, "Bad request"),
    (12, "Forbidden"),
]


@pytest.mark.rule("UMQ-96")
def test_the_codes_have_their_numbers_and_words() -> None:
    assert [(code.value, code.text) for code in FatalCode] == MEANINGS


@pytest.mark.rule("UMQ-98")
@pytest.mark.parametrize("code", list(FatalCode))
def test_an_error_of_the_runtime_starts_with_its_code_and_a_space(code: FatalCode) -> None:
    assert error_text(code) == f"{code.value} {code.text}"
    assert error_text(code, "why") == f"{code.value} {code.text}: why"
    assert MethodError("why", rule="UMQ-96", code=code).payload == f"{code.value} {code.text}: why"
    assert read_error_text(error_text(code, "why")) == (code, describe(code, "why"))


@pytest.mark.rule("UMQ-27")
@pytest.mark.parametrize(
    ("payload", "read"),
    [
        ("123 Authorization failed", (123, "Authorization failed")),
        ("3 Protocol error", (3, "Protocol error")),
        ("7", (7, "")),
        ("7 ", (7, "")),
        ("7  two spaces", (7, " two spaces")),
        ("007 agent", (7, "agent")),
        ("999999999 x", (999_999_999, "x")),
        ("1000000000 x", (0, "1000000000 x")),
        ("", (0, "")),
        (" 3", (0, " 3")),
        ("-3 x", (0, "-3 x")),
        ("+3 x", (0, "+3 x")),
        ("٣ x", (0, "٣ x")),
        ("1_0 x", (0, "1_0 x")),
        ("boom", (0, "boom")),
    ],
)
def test_a_code_is_decimal_and_the_rest_is_the_message(payload: str, read: tuple[int, str]) -> None:
    assert read_error_text(payload) == read


@given(st.text())
def test_any_text_is_an_error_text(payload: str) -> None:
    code, message = read_error_text(payload)
    assert 0 <= code <= 999_999_999
    assert payload.endswith(message)
