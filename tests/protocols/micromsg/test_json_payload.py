"""JSON, walked and never built."""

import json

import pytest
from fuzz.targets.micromsg import check_json
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg import json_payload
from polywire.protocols.micromsg.errors import ends_connection
from polywire.protocols.micromsg.frames import Error, encode

VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.rule("MICROMSG-150")
@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_accepted(value: object, escaped: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    assert json_payload.problem(text.encode("utf-8", "surrogatepass")) is None


@pytest.mark.rule("MICROMSG-150")
@pytest.mark.parametrize(
    "payload",
    [b"0", b"-0", b"-1.5e+10", b"1E5", b" [ ] ", b"{}", b'""', b'"\\u00e9\\n\\/"', '"é"'.encode(), b"\r\n\ttrue\n"],
)
def test_small_json_is_accepted(payload: bytes) -> None:
    assert json_payload.check(payload) is None


@pytest.mark.rule("MICROMSG-150")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "ends unfinished at octet 0"),
        (b"  ", "ends unfinished at octet 2"),
        (b"{", "ends unfinished at octet 1"),
        (b"[1,", "ends unfinished at octet 3"),
        (b'"abc', "ends unfinished at octet 4"),
        (b'"\\', "ends unfinished at octet 2"),
        (b'"\\u12', "ends unfinished at octet 5"),
        (b'{"a"', "ends unfinished at octet 4"),
        (b"-", "ends unfinished at octet 1"),
        (b"1.", "ends unfinished at octet 2"),
        (b"1e", "ends unfinished at octet 2"),
        (b"1e+", "ends unfinished at octet 3"),
        (b"[1,]", "not JSON at octet 3"),
        (b"[1 2]", "not JSON at octet 3"),
        (b"[1}", "not JSON at octet 2"),
        (b'{"a" 1}', "not JSON at octet 5"),
        (b"{[", "not JSON at octet 1"),
        (b'{"a":1,}', "not JSON at octet 7"),
        (b"{1:2}", "not JSON at octet 1"),
        (b"01", "not JSON at octet 1"),
        (b"+1", "not JSON at octet 0"),
        (b".5", "not JSON at octet 0"),
        (b"1 1", "not JSON at octet 2"),
        (b"tru", "not JSON at octet 0"),
        (b"falsy", "not JSON at octet 0"),
        (b"nul", "not JSON at octet 0"),
        (b"NaN", "not JSON at octet 0"),
        (b"'a'", "not JSON at octet 0"),
        (b'{"\n":1}', "not JSON at octet 2"),
        (b'"a\nb"', "not JSON at octet 2"),
        (b'"\\x"', "not JSON at octet 2"),
        (b'"\\u12g4"', "not JSON at octet 5"),
        (b'"\xff"', "not UTF-8 at octet 1"),
        (b"\xef\xbb\xbf1", "not JSON at octet 0"),
    ],
)
def test_what_is_not_json_is_a_bad_frame_that_says_where(payload: bytes, words: str) -> None:
    error = json_payload.check(payload)
    assert isinstance(error, Error)
    assert error.name == "bad-frame"
    assert words in (error.value("reason") or "")
    assert ends_connection(error.name)
    encode(error)


@pytest.mark.rule("MICROMSG-171", "MICROMSG-150")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_a_bad_frame_and_costs_no_stack(opening: bytes, closing: bytes) -> None:
    assert json_payload.check(opening * 512 + b"1" + closing * 512) is None
    for payload in (opening * 513 + b"1" + closing * 513, opening * 200_000):
        error = json_payload.check(payload)
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
        assert f"deeper than 512 levels at octet {512 * len(opening)}" in (error.value("reason") or "")
    assert json_payload.check(b"[[1]]", max_depth=2) is None
    assert json_payload.check(b"[[[1]]]", max_depth=2) is not None


@pytest.mark.rule("MICROMSG-150")
@given(st.text('[]{}",:\\ 0123.eE+-untrfalsx', max_size=12).map(str.encode) | st.binary(max_size=12))
def test_the_walk_and_the_standard_library_agree(payload: bytes) -> None:
    check_json(payload)
