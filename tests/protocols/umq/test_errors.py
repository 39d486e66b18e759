import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import FatalCode, MethodError
from polywire.protocols.umq.errors import (
    MEANINGS,
    Failure,
    describe,
    error_text,
    read_error_text,
    read_failure,
    write_failure,
)

WORDS = [
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
    assert [(code.value, code.text) for code in FatalCode] == WORDS


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


@pytest.mark.rule("UMQ-161")
@pytest.mark.parametrize("code", [400, 404, 599])
@pytest.mark.parametrize("tag", ["", "no-item", "NO_ITEM", "a b", "a:b", "100%", "größe", "(retry after 1 ms)", ":"])
@pytest.mark.parametrize("text", ["", "No item 7 here.", "file: gone", ": ", "a (retry after 1 ms): b", "404 x", "\n"])
@pytest.mark.parametrize("retry_after", [0, 1, 4_294_967_295])
def test_an_error_is_read_as_it_was_written(code: int, tag: str, text: str, retry_after: int) -> None:
    assert read_failure(write_failure(code, tag, text, retry_after)) == Failure(code, tag, text, retry_after)


@pytest.mark.rule("UMQ-161")
@pytest.mark.parametrize(
    ("code", "retry_after", "written"),
    [(200, 0, "500 t: x"), (600, -1, "500 t: x"), (404, 1 << 40, "404 t (retry after 4294967295 ms): x")],
)
def test_what_the_form_has_no_room_for_is_cut_to_fit(code: int, retry_after: int, written: str) -> None:
    assert write_failure(code, "t", "x", retry_after) == written


@pytest.mark.rule("UMQ-161", "UMQ-162")
@pytest.mark.parametrize(
    ("payload", "failure"),
    [
        ("I'm teapot", Failure(500, "", "I'm teapot")),
        ("399 a: b", Failure(500, "", "399 a: b")),
        ("0404 a: b", Failure(500, "", "0404 a: b")),
        ("404", Failure(500, "", "404")),
        ("404 bananas", Failure(404, "", "bananas")),
        ("404 a%41: b", Failure(404, "", "a%41: b")),
        ("404 a(retry after 5 ms): b", Failure(404, "", "a(retry after 5 ms): b")),
        ("7 items", Failure(500, "", "7 items")),
        ("7 No route to methods", Failure(500, "", "7 No route to methods")),
        ("7 No route to method", Failure(404, "no-method", "No route to method", 0, by_runtime=True)),
        ("8 Temporarily unavailable: busy", Failure(503, "unavailable", "busy", 0, by_runtime=True)),
        ("8 Temporarily unavailable: 504 timeout: late", Failure(504, "timeout", "late", 0, by_runtime=True)),
    ],
)
def test_what_an_e_says_is_read_as_far_as_it_goes(payload: str, failure: Failure) -> None:
    assert read_failure(payload) == failure


@pytest.mark.rule("UMQ-162")
def test_every_code_of_umq_has_a_meaning_after_http() -> None:
    assert set(MEANINGS) == set(FatalCode)
    assert all(400 <= code <= 599 for code, _ in MEANINGS.values())
