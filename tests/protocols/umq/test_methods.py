import json
from datetime import UTC, datetime

import msgspec
import pytest
from fuzz.targets import umq as target
from hypothesis import example, given
from hypothesis import strategies as st

from polywire.protocols.umq import Callback, Decoder, LocalProtocolError, MethodError, Result, TopicUpdate, encode
from polywire.protocols.umq.frames import MAX_NUMBER, write_number
from polywire.protocols.umq.methods import (
    JSON_TYPE,
    METHODS,
    Body,
    CallService,
    Envelope,
    Method,
    Payload,
    Publish,
    ReadAttributes,
    Serve,
    ServedRequest,
    SubscribeTopic,
    Unserve,
    UnsubscribeTopic,
    WhoAmI,
    encode_json,
    read_bare_body,
    read_envelope,
    read_json_body,
    read_method,
    read_request,
    write_bare_body,
    write_envelope,
    write_json_body,
    write_method,
    write_request,
)


def refused(payload: str, rule: str, code: int = 11) -> str:
    with pytest.raises(MethodError) as caught:
        read_method(payload)
    assert caught.value.rule == rule
    assert caught.value.code == code
    assert caught.value.payload.startswith(f"{code} ")
    return caught.value.reason


EACH: list[tuple[str, Method]] = [
    ('["subscribe","home/*",7]', SubscribeTopic("home/*", 7)),
    ('["subscribe","home/**",7,{"envelope":true}]', SubscribeTopic("home/**", 7, envelope=True)),
    ('["unsubscribe",7]', UnsubscribeTopic(7)),
    ('["publish","a/b","21"]', Publish("a/b", Body(b"21"))),
    ('["publish","a/b",{"t": 1.50}]', Publish("a/b", Body(b'{"t": 1.50}', JSON_TYPE))),
    (
        '["publish","a","x",{"headers":{"h":"v","n":1,"f":1.5},"content_type":"text/x","retain":true}]',
        Publish("a", Body(b"x", "text/x"), (("h", "v"), ("n", 1), ("f", 1.5)), retain=True),
    ),
    ('["call","lamp","toggle","on"]', CallService("lamp", "toggle", Body(b"on"))),
    (
        '["call","lamp","toggle",[1],{"timeout":100,"headers":{"h":"v"},"stream":0}]',
        CallService("lamp", "toggle", Body(b"[1]", JSON_TYPE), 100, (("h", "v"),), 0),
    ),
    ('["serve","lamp",5]', Serve("lamp", 5)),
    ('["unserve","lamp"]', Unserve("lamp")),
    ('["whoami"]', WhoAmI()),
    ('["attributes",7]', ReadAttributes(7)),
]


@pytest.mark.rule(
    "UMQ-109",
    "UMQ-112",
    "UMQ-113",
    "UMQ-114",
    "UMQ-115",
    "UMQ-116",
    "UMQ-117",
    "UMQ-118",
    "UMQ-125",
    "UMQ-126",
    "UMQ-128",
)
@pytest.mark.parametrize(("payload", "method"), EACH)
def test_each_method_is_read_and_written(payload: str, method: Method) -> None:
    assert read_method(payload) == method
    assert write_method(method) == Payload(payload)


def test_the_table_has_exactly_the_methods_of_the_page() -> None:
    assert list(METHODS) == ["subscribe", "unsubscribe", "publish", "call", "serve", "unserve", "whoami", "attributes"]


@pytest.mark.rule("UMQ-111")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ('"7Z"', 287),
        ('"0"', 0),
        ('""', 0),
        ("0", 0),
        (str(MAX_NUMBER), MAX_NUMBER),
        ('"3W5E11264SGSF"', MAX_NUMBER),
    ],
)
def test_an_id_is_a_number_or_base_36(text: str, number: int) -> None:
    assert read_method(f'["unsubscribe",{text}]') == UnsubscribeTopic(number)
    assert read_method(f'["subscribe","a",{text}]') == SubscribeTopic("a", number)
    assert read_method(f'["serve","a",{text}]') == Serve("a", number)
    assert read_method(f'["call","a","m","",{{"stream":{text}}}]') == CallService("a", "m", Body(b""), stream=number)


@pytest.mark.rule("UMQ-111")
@pytest.mark.parametrize(
    "text",
    ['"7z"', '"-1"', "-1", "1.0", "1e3", "true", "null", "[7]", "{}", str(MAX_NUMBER + 1), '"3W5E11264SGSG"', '" 7"']
    + ["1" * length for length in (4000, 4300, 4301, 10_000)],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert len(refused(f'["unsubscribe",{text}]', "UMQ-111")) < 300


@pytest.mark.rule("UMQ-109")
@pytest.mark.parametrize(
    "payload",
    [
        *["", "x", "{}", '"publish"', "[", '["publish"', "[1]", "[[]]", "[null]", "[]", "null", "\ud800", '["\ud800"]'],
        *['["whoami"] x', '["whoami",]', '["publish","a","\\ud800"]', '["publish","a","\x01"]', '["publish","a",NaN]'],
        *[
            '["publish","a",01]',
            "[" * 100_000,
            '["publish","a",' + "[" * 100_000,
            '["publish","a",' + '{"a":' * 100_000,
        ],
    ],
    ids=lambda payload: ascii(payload[:20]),
)
def test_what_is_no_array_with_a_name_is_refused(payload: str) -> None:
    assert len(refused(payload, "UMQ-109")) < 300


@pytest.mark.rule("UMQ-129")
@pytest.mark.parametrize("name", ["foo", "", "Publish", "x" * 10_000, "publish ", "\\u0000"])
def test_an_unknown_method_has_no_route(name: str) -> None:
    reason = refused(f'["{name}"]', "UMQ-129", code=7)
    assert "publish" in reason
    assert len(reason) < 300


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        ('["subscribe"]', "UMQ-112"),
        ('["subscribe","a"]', "UMQ-112"),
        ('["subscribe","a",1,{},2]', "UMQ-112"),
        ('["subscribe","",1]', "UMQ-112"),
        ('["subscribe",5,1]', "UMQ-112"),
        ('["subscribe","a",1,{"envelop":true}]', "UMQ-128"),
        ('["subscribe","a",1,{"envelope":1}]', "UMQ-128"),
        ('["subscribe","a",1,[]]', "UMQ-128"),
        ('["unsubscribe"]', "UMQ-113"),
        ('["unsubscribe",1,2]', "UMQ-113"),
        ('["publish","a"]', "UMQ-114"),
        ('["publish","","x"]', "UMQ-114"),
        ('["publish",null,"x"]', "UMQ-114"),
        ('["publish","a","x",{"timeout":1}]', "UMQ-125"),
        ('["publish","a","x",{"retain":"yes"}]', "UMQ-125"),
        ('["publish","a","x",{"content_type":1}]', "UMQ-125"),
        ('["publish","a","x",{"headers":{"a":true}}]', "UMQ-125"),
        ('["publish","a","x",{"headers":{"a":[1]}}]', "UMQ-125"),
        ('["publish","a","x",{"headers":{"a":1e999}}]', "UMQ-125"),
        ('["publish","a","x",{"headers":[]}]', "UMQ-125"),
        ('["call","s","m"]', "UMQ-115"),
        ('["call","","m","x"]', "UMQ-115"),
        ('["call","s",1,"x"]', "UMQ-115"),
        ('["call","s","m","x",{"timeout":0}]', "UMQ-126"),
        ('["call","s","m","x",{"timeout":-5}]', "UMQ-126"),
        ('["call","s","m","x",{"timeout":1.5}]', "UMQ-126"),
        ('["call","s","m","x",{"timeout":4294967296}]', "UMQ-126"),
        ('["call","s","m","x",{"timeout":' + "9" * 4300 + "}]", "UMQ-126"),
        ('["call","s","m","x",{"retain":true}]', "UMQ-126"),
        ('["call","s","m","x",{"stream":"a"}]', "UMQ-111"),
        ('["serve","s"]', "UMQ-116"),
        ('["serve","",1]', "UMQ-116"),
        ('["unserve"]', "UMQ-117"),
        ('["unserve",""]', "UMQ-117"),
        ('["whoami",1]', "UMQ-118"),
        ('["attributes"]', "UMQ-158"),
        ('["attributes","7"]', "UMQ-158"),
        ('["attributes",-7]', "UMQ-158"),
    ],
    ids=lambda text: text[:60],
)
@pytest.mark.rule(
    "UMQ-109", "UMQ-112", "UMQ-113", "UMQ-114", "UMQ-115", "UMQ-116", "UMQ-117", "UMQ-118", "UMQ-125", "UMQ-126"
)
def test_wrong_arguments_are_a_bad_request(payload: str, rule: str) -> None:
    assert len(refused(payload, rule)) < 300


def test_an_error_says_what_is_allowed() -> None:
    assert refused('["publish","a"]', "UMQ-114") == "publish takes 2 to 3 arguments, not 1"
    assert refused('["whoami",1]', "UMQ-118") == "whoami takes 0 arguments, not 1"
    assert (
        refused('["publish","a","x",{"retian":true}]', "UMQ-125") == "options: Object contains unknown field `retian`"
    )


def test_options_may_be_null() -> None:
    assert read_method('["publish","a","x",null]') == Publish("a", Body(b"x"))
    assert read_method('["subscribe","a",1,null]') == SubscribeTopic("a", 1)
    assert read_method('["call","s","m","x",null]') == CallService("s", "m", Body(b"x"))


@pytest.mark.rule("UMQ-121")
def test_a_binary_body_is_announced_and_goes_first() -> None:
    written = write_method(Publish("a", Body(b"\xff", "image/png")), [b"more"])
    assert written == Payload('["publish","a",null,{"content_type":"image/png"}]', (b"\xff", b"more"))
    assert read_method(written.text, 2) == Publish("a", Body(None, "image/png"))
    assert read_method('["call","s","m",null]', 1) == CallService("s", "m", Body(None))


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
ids = st.integers(0, MAX_NUMBER)
headers = st.dictionaries(
    names,
    st.one_of(names, st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False)),
    max_size=3,
).map(lambda found: tuple(found.items()))
texts = names.map(lambda name: Body(name.encode()))
methods: st.SearchStrategy[Method] = st.one_of(
    st.builds(SubscribeTopic, names, ids, st.booleans()),
    st.builds(UnsubscribeTopic, ids),
    st.builds(Publish, names, texts, headers, st.booleans()),
    st.builds(CallService, names, names, texts, st.none() | st.integers(1, 2**32 - 1), headers, st.none() | ids),
    st.builds(Serve, names, ids),
    st.builds(Unserve, names),
    st.just(WhoAmI()),
)


@pytest.mark.rule("UMQ-109")
@given(methods)
def test_a_written_method_is_read_back(method: Method) -> None:
    assert read_method(write_method(method).text) == method


@pytest.mark.rule("UMQ-111")
@given(ids)
def test_both_forms_of_an_id_are_the_same(number: int) -> None:
    assert read_method(f'["unsubscribe",{number}]') == read_method(f'["unsubscribe","{write_number(number)}"]')


@pytest.mark.rule("UMQ-109")
@given(st.text(), st.integers(0, 2))
@example('["publish","a",null]', 1)
def test_any_text_is_a_payload_or_the_documented_error(payload: str, attachments: int) -> None:
    target.check_payload(payload, attachments)


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (SubscribeTopic("", 1), "UMQ-112"),
        (SubscribeTopic("a", 2**64), "UMQ-111"),
        (UnsubscribeTopic(-1), "UMQ-111"),
        (Publish("", Body(b"")), "UMQ-114"),
        (Publish("\ud800", Body(b"")), "UMQ-109"),
        (Publish("a", Body(b""), (("h", float("nan")),)), "UMQ-125"),
        (CallService("", "m", Body(b"")), "UMQ-115"),
        (CallService("s", "m", Body(b""), timeout=0), "UMQ-126"),
        (CallService("s", "m", Body(b""), stream=-1), "UMQ-111"),
        (Serve("", 1), "UMQ-116"),
        (Unserve(""), "UMQ-117"),
    ],
)
def test_what_the_hub_would_refuse_is_not_sent(method: Method, rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write_method(method)
    assert caught.value.rule == rule


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
    assert json.loads(encode_json(value)) == value
