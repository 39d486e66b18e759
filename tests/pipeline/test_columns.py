"""What the tables' kernels are made of, against simple Python."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.pipeline.columns import Groups, Headers, coded, hashes, parsed, text_and_bytes, valid_utf8

ODD = (
    b"\xc3",
    b"\xc3\xa4",
    b"\xe2\x82\xac",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x8e\x89",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
    b"a",
)
PIECES = st.lists(st.sampled_from(ODD), max_size=8).map(b"".join)
BODIES = st.lists(st.one_of(st.binary(max_size=12), PIECES, st.text(max_size=6).map(str.encode)), max_size=20)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(BODIES, st.integers(0, 5))
def test_a_body_is_text_where_python_decodes_it(bodies: list[bytes], skip: int) -> None:
    column = pa.array([b"\xff"] * skip + bodies, pa.binary()).slice(skip)
    wanted = [is_text(body) for body in bodies]
    assert valid_utf8(column).tolist() == wanted
    text, rest = text_and_bytes(column)
    text.validate(full=True)
    assert text.to_pylist() == [body.decode() if good else None for body, good in zip(bodies, wanted, strict=True)]
    assert rest.to_pylist() == [None if good else body for body, good in zip(bodies, wanted, strict=True)]


def test_long_texts_are_decoded_one_by_one() -> None:
    long = "grün " * 100
    column = pa.array([long.encode(), long.encode() + b"\xff", b"", None], pa.binary())
    assert valid_utf8(column).tolist()[:2] == [True, False]
    assert [each.null_count for each in text_and_bytes(column)] == [2, 3]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4), st.booleans())
def test_headers_are_the_members_of_one_object(headers: dict[str, Any], plain: bool) -> None:
    text = json.dumps(headers, ensure_ascii=plain)
    wanted = {
        name: value
        if isinstance(value, str) or value is None
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in headers.items()
    }
    assert parsed(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        '"a"',
        "{'a':1}",
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":1} x',
        '{"a":1},{}',
        "{" * 5000,
        '{"a":"\n"}',
    ],
)
def test_what_is_not_one_json_object_is_bad(text: str) -> None:
    assert parsed(text) is None


def test_numbers_stay_as_they_are_written_and_half_a_surrogate_is_replaced() -> None:
    assert parsed('{"a":1.50,"b":[1e400,{"c":-0}],"d":true}') == {"a": "1.50", "b": '[1e400,{"c":-0}]', "d": "true"}
    assert parsed('{"a":"x\\ud800y","b":"\\ud83c\\udf89"}') == {"a": "x�y", "b": "🎉"}


def test_headers_are_read_once_for_many_rows() -> None:
    found = Headers.of(pa.array(['{"a":1,"b":null}', None, "bad", '{"a":1,"b":null}']))
    assert found.bad.tolist() == [False, False, True, False]
    assert found.word("a").to_pylist() == ["1", None, None, "1"]
    assert found.maps().to_pylist() == [[("a", "1"), ("b", None)], None, None, [("a", "1"), ("b", None)]]
    some = found.chosen(np.array([False, True, True, False]))
    assert (some.bad.tolist(), some.word("a").to_pylist()) == ([False, True], [None, None])
    assert Headers.of(pa.nulls(2, pa.utf8())).maps().to_pylist() == [None, None]


TEXTS = st.lists(st.one_of(st.text(max_size=20), st.text("ab", max_size=3), st.text("x", min_size=500, max_size=600)))


@given(TEXTS, st.integers(0, 3))
def test_the_same_text_has_the_same_hash_and_no_other_one(texts: list[str], skip: int) -> None:
    column = pa.array(["skipped"] * skip + texts, pa.utf8()).slice(skip)
    found = dict(zip(texts, hashes(column).tolist(), strict=True))
    assert [found[text] for text in texts] == hashes(column).tolist()
    assert len(set(found.values())) == len(found)
    assert found.items() >= dict(zip(texts[1:], hashes(pa.array(texts[1:], pa.utf8())).tolist(), strict=True)).items()


KEYS = st.one_of(st.none(), st.integers(0, 3).map(str))


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(-5, 5)), max_size=30))
def test_groups_are_summed(rows: list[tuple[str | None, str | None, int]]) -> None:
    wanted: dict[Any, list[int]] = {}
    for first, second, amount in rows:
        wanted.setdefault((first, second), []).append(amount)
    columns = [coded(pa.array([row[at] for row in rows], pa.utf8())) for at in (0, 1)]
    found = Groups(*columns).aggregated(amount=(np.array([row[2] for row in rows], np.int64), "sum"))
    told = {
        (one, two): (count, total) for one, two, count, total in zip(*(each.to_pylist() for each in found), strict=True)
    }
    assert told == {key: (len(own), sum(own)) for key, own in wanted.items()}
