import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import Callback, Decoder, MethodError, encode
from polywire.protocols.umq.bodies import JSON_TYPE, Body, Payload, write_bare_body
from polywire.protocols.umq.envelopes import (
    Envelope,
    ServedRequest,
    read_envelope,
    read_request,
    write_answer,
    write_envelope,
    write_request,
)


@pytest.mark.rule("UMQ-123")
def test_a_served_call_is_a_callback_with_a_method_and_a_body() -> None:
    payload = write_request(ServedRequest("toggle", Body(b"kitchen")))
    message = encode(Callback(1, 5, payload.text, len(payload.attachments)))
    assert message == 'B1:5:["toggle","kitchen"]'
    (frame,) = Decoder().feed(message)
    assert isinstance(frame, Callback)
    assert read_request(frame.payload) == ServedRequest("toggle", Body(b"kitchen"))


@pytest.mark.rule("UMQ-123", "UMQ-122")
def test_a_served_call_carries_json_and_binary_bodies() -> None:
    assert write_request(ServedRequest("m", Body(b'{"a":1}', JSON_TYPE))) == Payload('["m",{"a":1}]')
    binary = write_request(ServedRequest("m", Body(b"\xff")), [b"more"])
    assert binary == Payload('["m",null]', (b"\xff", b"more"))
    assert read_request(binary.text, 2) == ServedRequest("m", Body(None))


@pytest.mark.rule("UMQ-123")
@pytest.mark.parametrize("payload", ["", "[]", '["m"]', '["m",1,2]', '[1,"x"]', "{}", "[" * 50_000])
def test_a_request_of_another_shape_is_refused(payload: str) -> None:
    with pytest.raises(MethodError) as caught:
        read_request(payload)
    assert caught.value.rule == "UMQ-123"
    assert caught.value.code == 11


@pytest.mark.rule("UMQ-128")
def test_an_update_is_bare_or_in_an_envelope() -> None:
    assert write_bare_body(b"21.5").text == "21.5"
    written = write_envelope("home/t", Body(b"21.5"), {"unit": "C", "n": 2}, 1_700_000_000_000)
    assert json.loads(written.text) == {
        "channel": "home/t",
        "headers": {"unit": "C", "n": 2},
        "body": "21.5",
        "ts": 1_700_000_000_000,
    }
    assert read_envelope(written.text) == Envelope(
        "home/t", Body(b"21.5"), (("unit", "C"), ("n", 2)), 1_700_000_000_000
    )


@pytest.mark.rule("UMQ-128", "UMQ-122")
def test_an_envelope_carries_json_and_binary_bodies() -> None:
    value = write_envelope("a", Body(b"[1]", JSON_TYPE), {}, 0)
    assert json.loads(value.text)["body"] == [1]
    binary = write_envelope("a", Body(b"\xff"), {}, 0)
    assert json.loads(binary.text)["body"] is None
    assert binary.attachments == (b"\xff",)
    assert read_envelope(binary.text, 1).body == Body(None)


@pytest.mark.rule("UMQ-128")
def test_headers_json_has_no_value_for_are_text() -> None:
    headers: dict[str, str | int | float | datetime] = {
        "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "n": float("inf"),
    }
    written = json.loads(write_envelope("a", Body(b""), headers, 0).text)
    assert written["headers"] == {"at": "2024-01-02T03:04:05+00:00", "n": "inf"}


@pytest.mark.rule("UMQ-128")
@pytest.mark.parametrize(
    "payload", ["", "[]", "{}", '{"channel":1,"headers":{},"body":"","ts":0}', '{"channel":"a"}', '{"a":' * 50_000]
)
def test_an_envelope_of_another_shape_is_refused(payload: str) -> None:
    with pytest.raises(MethodError) as caught:
        read_envelope(payload)
    assert caught.value.rule == "UMQ-128"


@pytest.mark.rule("UMQ-128")
def test_unknown_fields_of_an_envelope_are_passed_over() -> None:
    payload = '{"channel":"a","headers":{},"body":"x","ts":1,"later":[1]}'
    assert read_envelope(payload) == Envelope("a", Body(b"x"), (), 1)


@pytest.mark.rule("UMQ-109")
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(codec="utf-8")), st.lists
    )
)
def test_an_answer_is_json(value: object) -> None:
    assert json.loads(write_answer(value)) == value
