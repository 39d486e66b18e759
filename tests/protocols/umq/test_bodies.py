import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import LocalProtocolError, MethodError, Result, TopicUpdate, encode
from polywire.protocols.umq.bodies import (
    JSON_TYPE,
    Body,
    Payload,
    encode_json,
    read_bare_body,
    read_json_body,
    write_bare_body,
    write_json_body,
)


@pytest.mark.rule("UMQ-119")
@pytest.mark.parametrize(
    ("text", "data"),
    [('""', b""), ('"21.5"', b"21.5"), ('"\\u00e9"', "é".encode()), ('"\\ud83d\\ude00"', "😀".encode())],
)
def test_a_string_is_its_utf_8(text: str, data: bytes) -> None:
    assert read_json_body(msgspec.Raw(text), 0) == Body(data)
    assert read_json_body(msgspec.Raw(text), 1) == Body(data)


@pytest.mark.rule("UMQ-120")
@pytest.mark.parametrize(
    "text", ["1", "1.50", "true", "null", "[]", '{"a": [1, 2.0]}', "123456789012345678901234567890"]
)
def test_another_value_is_its_text_as_written(text: str) -> None:
    assert read_json_body(msgspec.Raw(text), 0) == Body(text.encode(), JSON_TYPE)


@pytest.mark.rule("UMQ-121")
def test_null_with_attachments_is_the_first_of_them() -> None:
    assert read_json_body(msgspec.Raw("null"), 1) == Body(None)
    assert read_json_body(msgspec.Raw("null"), 2, "image/png") == Body(None, "image/png")
    assert read_json_body(msgspec.Raw("null"), 0) == Body(b"null", JSON_TYPE)


@pytest.mark.rule("UMQ-125")
def test_a_content_type_that_is_given_wins() -> None:
    assert read_json_body(msgspec.Raw("[1]"), 0, "text/x") == Body(b"[1]", "text/x")
    assert read_json_body(msgspec.Raw('"x"'), 0, "text/x") == Body(b"x", "text/x")


bodies = st.one_of(
    st.builds(Body, st.binary(max_size=30), st.sampled_from([None, JSON_TYPE, "text/plain"])),
    st.builds(Body, st.text(max_size=30).map(lambda text: text.encode(errors="ignore"))),
    st.builds(
        Body,
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")), st.lists).map(
            lambda value: json.dumps(value).encode()
        ),
        st.just(JSON_TYPE),
    ),
)


@pytest.mark.rule("UMQ-119", "UMQ-120", "UMQ-121", "UMQ-122")
@given(bodies, st.lists(st.binary(max_size=5), max_size=2))
def test_a_body_written_into_json_is_read_back(body: Body, further: list[bytes]) -> None:
    value, sent, assumed = write_json_body(body, further)
    json.loads(bytes(value))
    read = read_json_body(value, len(sent))
    data = sent[0] if read.data is None else read.data
    expected = body.data if assumed is None else (body.data or b"").strip()
    assert data == expected
    assert read.content_type == assumed
    assert list(sent[len(sent) - len(further) :]) == further
    assert len(sent) == len(further) + (read.data is None)


@pytest.mark.rule("UMQ-122")
@given(st.binary(max_size=30), st.lists(st.binary(max_size=5), max_size=2))
def test_a_bare_body_is_read_back(data: bytes, further: list[bytes]) -> None:
    written = write_bare_body(data, further)
    read = read_bare_body(written.text, len(written.attachments))
    assert (written.attachments[0] if read.data is None else read.data) == data
    assert list(written.attachments[len(written.attachments) - len(further) :]) == further


@pytest.mark.rule("UMQ-122", "UMQ-110", "UMQ-124")
def test_a_text_body_goes_as_text_and_another_as_an_attachment() -> None:
    assert write_bare_body("grün".encode()) == Payload("grün")
    assert write_bare_body(b"") == Payload("")
    binary = write_bare_body(b"\x89PNG")
    assert binary == Payload("", (b"\x89PNG",))
    update = TopicUpdate(7, binary.text, len(binary.attachments))
    assert encode(update) == "A1:T7:"
    assert encode(Result(4, write_bare_body(b'{"ok":true}').text)) == 'R4:{"ok":true}'


@pytest.mark.rule("UMQ-122")
def test_an_empty_body_with_attachments_goes_as_one() -> None:
    assert write_bare_body(b"", [b"x"]) == Payload("", (b"", b"x"))
    assert write_bare_body(b"a", [b"x"]) == Payload("a", (b"x",))


@pytest.mark.rule("UMQ-123", "UMQ-122")
@pytest.mark.parametrize(
    ("data", "content_type", "value"),
    [
        (b'{"a":1}', JSON_TYPE, b'{"a":1}'),
        (b" [1, 2]\n", JSON_TYPE, b"[1, 2]"),
        (b'{"a":1}', None, b'"{\\"a\\":1}"'),
        (b'"abc"', JSON_TYPE, b'"\\"abc\\""'),
        (b"{broken", JSON_TYPE, b'"{broken"'),
        (b"[" * 5000, JSON_TYPE, b'"' + b"[" * 5000 + b'"'),
        (b"", JSON_TYPE, b'""'),
    ],
)
def test_json_stands_as_the_value_it_is(data: bytes, content_type: str | None, value: bytes) -> None:
    written, sent, _ = write_json_body(Body(data, content_type))
    assert bytes(written) == value
    assert sent == ()


def test_a_body_that_is_an_attachment_needs_one() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write_json_body(Body(None))
    assert caught.value.rule == "UMQ-121"


@pytest.mark.rule("UMQ-01")
def test_text_that_is_no_text_is_no_body() -> None:
    with pytest.raises(MethodError) as caught:
        read_bare_body("\ud800", 0)
    assert caught.value.rule == "UMQ-01"


@pytest.mark.parametrize("value", ["\ud800", object(), {1j: 2}])
def test_what_json_cannot_say_is_a_local_error(value: object) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode_json(value)
    assert caught.value.rule == "UMQ-109"
