"""Payloads to frames and back: the worked example, the two kinds, what is refused, what is not sent, timeouts."""

import math
import pickle
import tracemalloc
from types import ModuleType

import pytest
from fuzz.targets import mqttrpc as target
from fuzz.targets.mqttrpc import KINDS, UnreadableError, fields, kinds
from google.protobuf import any_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polywire.protocols.mqttrpc import envelope_pb2
from polywire.protocols.mqttrpc import frames as module
from polywire.protocols.mqttrpc.connection import deadline
from polywire.protocols.mqttrpc.errors import (
    BAD_REQUEST,
    OVERLOADED,
    TOO_LARGE,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
)
from polywire.protocols.mqttrpc.frames import (
    CUT,
    DEFAULT_TIMEOUT,
    FINEST_FIRST,
    MAX_MESSAGE,
    MAX_TIMEOUT,
    MAX_UINT32,
    MILLISECONDS,
    OVERLONG,
    Decoder,
    ErrorData,
    Request,
    Response,
    TimeoutUnit,
    encode,
    failed,
    from_seconds,
    milliseconds,
    varint,
    walk,
    written,
)
from polywire.protocols.mqttrpc.service import service_topic
from polywire.wire.frame import Frame
from tests.protocols.mqttrpc import strategies as some

HELLO = bytes.fromhex("0807 1213 0a0853617948656c6c6f 12070a05776f726c64 2805 3003")
HELLO_BACK = bytes.fromhex("0807 1210 120e0a0c48656c6c6f2c20776f726c64")
SEVEN = b"\x08\x07"


def decode(message: bytes) -> Frame:
    (frame,) = Decoder().feed(message)
    return frame


def refusal(message: bytes, decoder: Decoder | None = None) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        (decoder or Decoder()).feed(message)
    assert caught.value.frames == []
    return caught.value


@pytest.mark.rule("MQTTRPC-03", "MQTTRPC-04", "MQTTRPC-06", "MQTTRPC-07")
def test_the_worked_example_is_read_and_written_byte_by_byte(my_cool_service: ModuleType) -> None:
    value = my_cool_service.HelloRequest(name="world").SerializeToString()
    request = Request(7, "SayHello", value, timeout=5, timeout_unit=TimeoutUnit.SECOND)
    assert service_topic("my-cool-service") == "/my-cool-service"
    assert encode(request) == HELLO
    assert decode(HELLO) == request
    assert my_cool_service.HelloRequest.FromString(value).name == "world"


@pytest.mark.rule("MQTTRPC-20", "MQTTRPC-25", "MQTTRPC-26")
def test_the_answer_to_the_worked_example_needs_no_type_url(my_cool_service: ModuleType) -> None:
    value = my_cool_service.HelloResponse(greeting="Hello, world").SerializeToString()
    assert encode(Response(7, "", value)) == HELLO_BACK
    assert decode(HELLO_BACK) == Response(7, "", value)


@pytest.mark.rule("MQTTRPC-26", "MQTTRPC-39")
def test_a_successful_response_may_have_a_type_url() -> None:
    response = Response(7, "examples.HelloResponse", b"\n\x01x")
    assert encode(response).endswith(b"\x20\x00")
    assert decode(encode(response)) == response


@given(some.frames)
@pytest.mark.rule("MQTTRPC-04", "MQTTRPC-20", "MQTTRPC-39")
def test_every_frame_survives_a_round_trip(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(some.requests)
@pytest.mark.rule("MQTTRPC-05")
def test_a_request_is_what_protobuf_reads(frame: Request) -> None:
    sent = envelope_pb2.Request.FromString(encode(frame))
    assert (sent.correlation_id, sent.body.type_url, sent.body.value) == (
        frame.correlation_id,
        frame.type_url,
        frame.value or b"",
    )
    assert sent.HasField("body") == (frame.value is not None)
    assert (sent.eos, sent.timeout, int(sent.timeout_unit)) == (frame.eos, frame.timeout, int(frame.timeout_unit))


@given(some.responses)
@pytest.mark.rule("MQTTRPC-21", "MQTTRPC-34")
def test_a_response_is_what_protobuf_reads(frame: Response) -> None:
    sent = envelope_pb2.Response.FromString(encode(frame))
    assert (sent.correlation_id, sent.body.type_url, sent.body.value, sent.eos) == (
        frame.correlation_id,
        frame.type_url,
        frame.value or b"",
        frame.eos,
    )
    assert sent.HasField("body") == (frame.value is not None)
    assert sent.HasField("error_data") == (frame.error_data is not None)
    if frame.error_data is not None:
        data = sent.error_data
        assert ErrorData(data.code, data.tag, data.user_message, data.retry_after) == frame.error_data


@pytest.mark.rule("MQTTRPC-36")
@pytest.mark.parametrize(
    ("field", "frame"),
    [
        (b"\x18\x01", Request(7, eos=True)),
        (b"\x18\x00", Request(7)),
        (b"\x28\x05", Request(7, timeout=5)),
        (b"\x28\x00", Request(7)),
        (b"\x30\x01", Request(7, timeout_unit=TimeoutUnit.HOUR)),
        (b"\x30\x00", Request(7)),
    ],
)
def test_a_field_only_requests_have_makes_a_request(field: bytes, frame: Request) -> None:
    assert decode(SEVEN + field) == frame
    assert decode(field + SEVEN) == frame


@pytest.mark.rule("MQTTRPC-37")
@pytest.mark.parametrize(
    ("field", "frame"),
    [
        (b"\x1a\x00", Response(7, error_data=ErrorData(0))),
        (b"\x1a\x03\x08\xf4\x03", Response(7, error_data=ErrorData(500))),
        (b"\x20\x01", Response(7, eos=True)),
        (b"\x20\x00", Response(7)),
        (b"\x12\x03\x0a\x01A\x20\x00", Response(7, "A")),
    ],
)
def test_a_field_only_responses_have_makes_a_response(field: bytes, frame: Response) -> None:
    assert decode(SEVEN + field) == frame
    assert decode(field + SEVEN) == frame


@pytest.mark.rule("MQTTRPC-38")
@pytest.mark.parametrize(
    ("body", "frame"),
    [
        (b"\x12\x03\x0a\x01A", Request(7, "A")),
        (b"\x12\x06\x0a\x01A\x12\x01x", Request(7, "A", b"x")),
        (b"\x12\x03\x12\x01x", Response(7, "", b"x")),
        (b"\x12\x02\x0a\x00", Response(7, "", b"")),
        (b"\x12\x00", Response(7, "", b"")),
        (b"", Response(7)),
    ],
)
def test_with_no_such_field_the_type_url_decides(body: bytes, frame: Frame) -> None:
    assert decode(SEVEN + body) == frame


@pytest.mark.rule("MQTTRPC-39", "MQTTRPC-53")
@pytest.mark.parametrize(
    ("frame", "octets"),
    [
        (Request(7), "0807 1800"),
        (Request(7, "", b"x"), "0807 1203120178 1800"),
        (Request(7, "A"), "0807 12030a0141"),
        (Request(7, timeout=1), "0807 2801"),
        (Request(7, eos=True), "0807 1801"),
        (Request(7, "", b"", eos=True), "0807 1200 1801"),
        (Request(0, "A"), "12030a0141"),
        (Response(7), "0807"),
        (Response(7, "", b""), "0807 1200"),
        (Response(7, "", b"", eos=True), "0807 1200 2001"),
        (Response(0, "", b"x", eos=True), "1203120178 2001"),
        (Response(7, "A"), "0807 12030a0141 2000"),
        (Response(7, "A", error_data=ErrorData(0)), "0807 12030a0141 1a00"),
        (Response(7, eos=True), "0807 2001"),
    ],
)
def test_a_false_eos_is_written_only_where_it_tells_the_kind(frame: Frame, octets: str) -> None:
    assert encode(frame) == bytes.fromhex(octets)
    assert decode(bytes.fromhex(octets)) == frame


@pytest.mark.rule("MQTTRPC-27", "MQTTRPC-33")
def test_an_error_may_be_all_zero_and_may_have_a_body() -> None:
    bare = decode(SEVEN + b"\x1a\x00")
    assert isinstance(bare, Response)
    assert bare.error_data == ErrorData(0, "", "", 0)
    detailed = Response(7, "examples.Detail", b"\x08\x01", ErrorData(422, "too-late", "Too late."), eos=True)
    assert decode(encode(detailed)) == detailed


@pytest.mark.rule("MQTTRPC-28")
@pytest.mark.parametrize("code", [0, 200, 418, 999, 2**32 - 1])
def test_codes_of_others_are_passed_on_as_they_are(code: int) -> None:
    response = Response(7, error_data=ErrorData(code))
    assert decode(encode(response)) == response


@pytest.mark.rule("MQTTRPC-30", "MQTTRPC-31")
def test_error_data_becomes_the_error_a_caller_gets() -> None:
    error = ErrorData(429, "overloaded", "Too busy.", 1500).error()
    assert isinstance(error, RpcError)
    assert (error.code, error.tag, error.user_message, error.retry_after) == (429, "overloaded", "Too busy.", 1500)
    assert error.details is None
    assert ErrorData(429).error(any_pb2.Any(value=b"x")).details == any_pb2.Any(value=b"x")


@pytest.mark.rule("MQTTRPC-22", "MQTTRPC-65")
def test_a_failure_becomes_the_response_to_its_request() -> None:
    assert failed(7, OVERLOADED) == Response(
        7, "", None, ErrorData(429, "overloaded", OVERLOADED.user_message, OVERLOADED.retry_after), eos=True
    )
    later = failed(7, OVERLOADED, 9000)
    assert later.error_data is not None
    assert later.error_data.retry_after == 9000


ANSWER = failed(7, BAD_REQUEST)
ANSWER_TO_0 = failed(0, BAD_REQUEST)
REFUSED = [
    # (the rule, the bytes, the position, the reply)
    ("MQTTRPC-77", SEVEN + b"\x18\x01\x20\x01", 4, ANSWER),
    ("MQTTRPC-77", SEVEN + b"\x20\x01\x28\x01", 4, ANSWER),
    ("MQTTRPC-77", SEVEN + b"\x1a\x00\x18\x00", 4, ANSWER),
    ("MQTTRPC-77", b"\x20\x00\x30\x00", 2, ANSWER_TO_0),
    ("MQTTRPC-78", b"\x08", 0, None),
    ("MQTTRPC-78", b"\x08\x87", 0, None),
    ("MQTTRPC-78", SEVEN + b"\x80", 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x12", 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x12\x05abcd", 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x12\xff\xff\xff\xff\x0f", 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x12\xff\xff\xff\xff\x7f", 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x49" + bytes(7), 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x4d" + bytes(3), 2, ANSWER),
    ("MQTTRPC-78", SEVEN + b"\x20\x01\x12", 4, None),
    ("MQTTRPC-79", b"\x08" + b"\x80" * 10 + b"\x01", 0, None),
    ("MQTTRPC-79", SEVEN + b"\x48" + b"\xff" * 10 + b"\x01", 2, ANSWER),
    ("MQTTRPC-79", SEVEN + b"\x88\x80\x80\x80\x80\x00\x01", 2, ANSWER),
    ("MQTTRPC-79", SEVEN + b"\xc8\x80\x80\x80\x10\x01", 2, ANSWER),
    ("MQTTRPC-79", SEVEN + b"\x4a\x80\x80\x80\x80\x80\x00", 2, ANSWER),
    ("MQTTRPC-80", SEVEN + b"\x00\x01", 2, ANSWER),
    ("MQTTRPC-80", SEVEN + b"\x02\x00", 2, ANSWER),
    ("MQTTRPC-80", SEVEN + b"\x4e\x01", 2, ANSWER),
    ("MQTTRPC-80", SEVEN + b"\x4f\x01", 2, ANSWER),
    ("MQTTRPC-81", b"\x0a\x01a", 0, None),
    ("MQTTRPC-81", b"\x09" + bytes(8), 0, None),
    ("MQTTRPC-81", SEVEN + b"\x10\x01", 2, ANSWER),
    ("MQTTRPC-81", SEVEN + b"\x1d" + bytes(4), 2, ANSWER),
    ("MQTTRPC-81", SEVEN + b"\x22\x00", 2, ANSWER),
    ("MQTTRPC-81", SEVEN + b"\x2a\x01\x05", 2, ANSWER),
    ("MQTTRPC-81", SEVEN + b"\x33\x34", 2, ANSWER),
    ("MQTTRPC-82", SEVEN + b"\x4b", 3, ANSWER),
    ("MQTTRPC-82", SEVEN + b"\x4c", 2, ANSWER),
    ("MQTTRPC-82", SEVEN + b"\x4b\x54", 3, ANSWER),
    ("MQTTRPC-82", SEVEN + b"\x4b" * 101 + b"\x4c" * 101, 102, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x12\x03\x0a\x01\xff", 2, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x12\x05\x0a\x03\xed\xa0\x80", 2, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x12\x02\x0a\x09", 2, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x28\x01\x12\x00\x12\x01\x07", 6, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x1a\x03\x12\x01\xff", 2, None),
    ("MQTTRPC-85", SEVEN + b"\x4b\x12\x01\x07\x4c\x49" + bytes(8) + b"\x4d" + bytes(4) + b"\x12\x01\x07", 21, ANSWER),
    ("MQTTRPC-85", SEVEN + b"\x12\xc8\x01" + b"\x1b" * 100 + b"\x1c" * 100, 0, ANSWER),  # too deep, but not by itself
    ("MQTTRPC-86", SEVEN + b"\x30\x05", 2, ANSWER),
    ("MQTTRPC-86", b"\x30\x05", 0, ANSWER_TO_0),
    ("MQTTRPC-86", SEVEN + b"\x28\x01\x30" + b"\xff" * 9 + b"\x01", 2, ANSWER),
]


@pytest.mark.rule(*sorted({row[0] for row in REFUSED}), "MQTTRPC-60", "MQTTRPC-89", "MQTTRPC-90")
@pytest.mark.parametrize(("rule", "message", "position", "reply"), REFUSED)
def test_what_breaks_a_rule_is_refused_and_answered(
    rule: str, message: bytes, position: int, reply: Response | None
) -> None:
    decoder = Decoder()
    error = refusal(message, decoder)
    assert (error.rule, error.position, error.reply) == (rule, position, reply)
    assert error.reason
    assert decoder.feed(HELLO_BACK) == [decode(HELLO_BACK)]
    target.run(message)


@pytest.mark.rule("MQTTRPC-76")
@pytest.mark.parametrize(
    ("message", "frame"),
    [
        (b"\x08\x00\x18\x01", Request(0, eos=True)),
        (b"\x12\x03\x0a\x01A", Request(0, "A")),
        (b"\x08\x07\x08\x00\x20\x01", Response(0, eos=True)),
        (b"", Response(0)),
    ],
)
def test_a_message_without_a_correlation_id_has_0(message: bytes, frame: Frame) -> None:
    assert decode(message) == frame


@pytest.mark.rule("MQTTRPC-76", "MQTTRPC-89")
def test_a_refused_request_without_a_correlation_id_is_answered_where_it_was_read_to_its_end() -> None:
    assert refusal(b"\x28\x01\x30\x05").reply == ANSWER_TO_0
    assert refusal(b"\x28\x01\x12").reply is None
    assert refusal(b"\x12\x01\x07").reply is None
    assert refusal(b"\x20\x01\x12\x01\x07").reply is None


@pytest.mark.rule("MQTTRPC-79", "MQTTRPC-84")
@pytest.mark.parametrize(
    ("message", "frame"),
    [
        (b"\x08\x87\x80\x00", Response(7)),
        (b"\x88\x00\x07", Response(7)),
        (b"\x88\x80\x80\x80\x00\x07", Response(7)),
        (SEVEN + b"\x4a\x80\x80\x80\x80\x00", Response(7)),
        (b"\x08" + b"\xff" * 9 + b"\x01", Response(2**64 - 1)),
        (b"\x08" + b"\xff" * 9 + b"\x7f", Response(2**64 - 1)),
        (SEVEN + b"\x28\x85\x80\x80\x80\x10", Request(7, timeout=5)),
    ],
)
def test_padded_and_wide_numbers_are_read_as_protobuf_does(message: bytes, frame: Frame) -> None:
    assert decode(message) == frame


@pytest.mark.rule("MQTTRPC-82", "MQTTRPC-83")
@pytest.mark.parametrize(
    "unknown",
    [
        b"\x38\x01",
        b"\x3a\x03abc",
        b"\x39" + bytes(8),
        b"\x3d" + bytes(4),
        b"\x4b\x4c",
        b"\x4b\x18\x01\x20\x01\x08\x09\x53\x54\x4c",
        b"\x4b" * 100 + b"\x4c" * 100,
        b"\xf8\xff\xff\xff\x0f\x01",
    ],
)
def test_unknown_fields_and_what_is_in_groups_say_nothing(unknown: bytes) -> None:
    assert decode(unknown + HELLO) == decode(HELLO)
    assert decode(HELLO_BACK + unknown) == decode(HELLO_BACK)


@pytest.mark.rule("MQTTRPC-84")
def test_the_last_of_a_repeated_field_counts() -> None:
    assert decode(b"\x08\x05\x18\x01\x28\x05" + SEVEN + b"\x18\x00\x28\x06") == Request(7, timeout=6)
    assert decode(SEVEN + b"\x12\x03\x0a\x01A" + b"\x12\x03\x0a\x01B") == Request(7, "B")
    assert decode(SEVEN + b"\x12\x03\x0a\x01A" + b"\x12\x03\x12\x01x") == Request(7, "A", b"x")
    merged = decode(SEVEN + b"\x1a\x03\x08\xf4\x03" + b"\x1a\x03\x12\x01t")
    assert merged == Response(7, error_data=ErrorData(500, "t"))


@pytest.mark.rule("MQTTRPC-64", "MQTTRPC-87", "MQTTRPC-89")
def test_a_message_over_the_limit_is_answered_with_413() -> None:
    decoder = Decoder(max_message=len(HELLO))
    assert decoder.feed(HELLO) == [decode(HELLO)]
    error = refusal(HELLO + b"\x38\x01", decoder)
    assert (error.rule, error.position) == ("MQTTRPC-87", len(HELLO))
    assert error.reply == failed(7, TOO_LARGE)
    assert f"{len(HELLO) + 2} bytes, more than the {len(HELLO)}" in error.reason
    assert refusal(bytes(100), Decoder(max_message=99)).reply is None
    assert refusal(HELLO_BACK + b"\x20\x01", Decoder(max_message=9)).reply is None


@pytest.mark.rule("MQTTRPC-87")
def test_the_limit_is_16_mib_unless_told_otherwise() -> None:
    around = len(encode(Response(7, "", bytes(1 << 21)))) - (1 << 21)
    fits = encode(Response(7, "", bytes(MAX_MESSAGE - around)))
    assert len(fits) == MAX_MESSAGE == 16 * 1024 * 1024
    assert decode(fits) == Response(7, "", bytes(MAX_MESSAGE - around))
    assert refusal(fits + b"\x38\x01").rule == "MQTTRPC-87"


@pytest.mark.rule("MQTTRPC-88")
def test_a_message_of_too_many_fields_is_refused() -> None:
    decoder = Decoder(max_fields=3)
    assert decoder.feed(SEVEN + b"\x38\x01" * 2) == [Response(7)]
    error = refusal(SEVEN + b"\x38\x01" * 3, decoder)
    assert (error.rule, error.position, error.reply) == ("MQTTRPC-88", 6, ANSWER)
    assert refusal(SEVEN + b"\x4b\x38\x01\x4c", decoder).rule == "MQTTRPC-88"
    assert refusal(SEVEN + b"\x38\x01" * 1000).rule == "MQTTRPC-88"


@pytest.mark.rule("MQTTRPC-78")
@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f"])
def test_a_length_field_alone_costs_no_memory(length: bytes) -> None:
    decoder = Decoder()
    refusal(SEVEN + b"\x12" + length, decoder)
    tracemalloc.start()
    try:
        refusal(SEVEN + b"\x12" + length, decoder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert decoder.pending() == 0


@pytest.mark.rule("MQTTRPC-91", "MQTTRPC-04")
@pytest.mark.parametrize(
    ("rule", "frame"),
    [
        ("MQTTRPC-91", Request(-1, "A")),
        ("MQTTRPC-91", Response(2**64)),
        ("MQTTRPC-91", Request(7, "A", timeout=2**32)),
        ("MQTTRPC-91", Request(7, "A", timeout=-1)),
        ("MQTTRPC-91", Request(7, "\ud800")),
        ("MQTTRPC-91", Response(7, "\ud800")),
        ("MQTTRPC-91", Response(7, error_data=ErrorData(2**32))),
        ("MQTTRPC-91", Response(7, error_data=ErrorData(-1))),
        ("MQTTRPC-91", Response(7, error_data=ErrorData(500, retry_after=2**32))),
        ("MQTTRPC-91", Response(7, error_data=ErrorData(500, "\udfff"))),
        ("MQTTRPC-91", Response(7, error_data=ErrorData(500, "", "\udfff"))),
        ("MQTTRPC-04", ErrorData(500)),
    ],
)
def test_what_may_not_be_sent_is_a_local_error(rule: str, frame: Frame) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.rule == rule


@pytest.mark.rule("MQTTRPC-91")
def test_what_no_mqtt_packet_holds_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="268435456 bytes") as caught:
        encode(Request(7, "A", bytes(module.MAX_PAYLOAD + 1)))
    assert caught.value.rule == "MQTTRPC-91"


@given(some.frames)
def test_frames_are_values(frame: Frame) -> None:
    assert pickle.loads(pickle.dumps(frame)) == frame  # noqa: S301 - pickled right here
    assert hash(frame) == hash(decode(encode(frame)))


@settings(max_examples=300)
@given(st.binary(max_size=300))
@example(b"\x08" + b"\xff" * 9 + b"\x02")
@pytest.mark.rule("MQTTRPC-36", "MQTTRPC-37", "MQTTRPC-38")
def test_any_bytes_give_a_frame_or_the_documented_error(data: bytes) -> None:
    target.run(data)


@settings(max_examples=300)
@given(some.frames, some.frames, st.data())
def test_damaged_messages_give_a_frame_or_the_documented_error(one: Frame, other: Frame, data: st.DataObject) -> None:
    octets = bytearray(encode(one) + encode(other)) or bytearray(1)  # all that is default is nothing at all
    place = data.draw(st.integers(0, len(octets) - 1))
    octets[place] = data.draw(st.integers(0, 255))
    target.run(bytes(octets))
    target.run(bytes(octets[:place]))


@pytest.mark.parametrize("seed", target.seeds())
def test_the_seeds_of_the_fuzzer_hold_the_contract(seed: bytes) -> None:
    for end in range(len(seed) + 1):
        target.run(seed[:end])


def octets(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@st.composite
def field(draw: st.DrawFn) -> bytes:
    number, kind = draw(st.integers(0, 9)), draw(st.sampled_from([0, 0, 1, 2, 2, 3, 4, 5, 6]))
    tag = octets(number << 3 | kind)
    if kind == 0:
        return tag + octets(draw(st.integers(0, 2**64 - 1)))
    if kind == 2:
        body = draw(st.binary(max_size=5))
        return tag + octets(len(body)) + body
    return tag + bytes({1: 8, 5: 4}.get(kind, 0))


@settings(max_examples=500)
@given(st.lists(field(), max_size=6).map(b"".join))
@pytest.mark.rule("MQTTRPC-36", "MQTTRPC-37", "MQTTRPC-80", "MQTTRPC-81", "MQTTRPC-82")
def test_the_walk_finds_what_a_plain_reading_finds(message: bytes) -> None:
    found = walk(message, 1000)
    try:
        outermost = fields(message)
    except UnreadableError:
        assert found.rule
        return
    if any(kind not in KINDS.get(number, {kind}) for number, kind, _ in outermost):
        assert found.rule == "MQTTRPC-81"
        return
    assert not found.rule
    assert ({"Request"} if found.request_at >= 0 else set()) | (
        {"Response"} if found.response_at >= 0 else set()
    ) == kinds(outermost)
    assert found.correlation_id == ([0] + [value for number, _, value in outermost if number == 1])[-1]


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_a_number_is_read_up_to_its_end(number: int, after: bytes) -> None:
    data = b"\xff" + octets(number) + after
    assert varint(data, 1, len(data), 10) == (number, 1 + len(octets(number)))


@pytest.mark.rule("MQTTRPC-78", "MQTTRPC-79")
@pytest.mark.parametrize(
    ("data", "most", "why"),
    [
        (b"", 5, CUT),
        (b"\x80\x80", 5, CUT),
        (b"\x80" * 4, 5, CUT),
        (b"\x80" * 5, 5, OVERLONG),
        (b"\x80" * 9, 10, CUT),
        (b"\x80" * 10, 10, OVERLONG),
    ],
)
def test_a_number_without_an_end_is_cut_or_overlong(data: bytes, most: int, why: int) -> None:
    assert varint(data, 0, len(data), most)[1] == why


@pytest.mark.rule("MQTTRPC-16", "MQTTRPC-18", "MQTTRPC-19", "MQTTRPC-35")
@pytest.mark.parametrize(
    ("unit", "duration"),
    [
        (TimeoutUnit.HOUR, 7_200_000),
        (TimeoutUnit.MINUTE, 120_000),
        (TimeoutUnit.SECOND, 2000),
        (TimeoutUnit.MILLISECOND, 2),
        (TimeoutUnit.UNSPECIFIED, 2),
    ],
)
def test_a_timeout_is_counted_in_its_unit(unit: TimeoutUnit, duration: int) -> None:
    assert milliseconds(2, unit) == duration


@pytest.mark.rule("MQTTRPC-17", "MQTTRPC-59")
@pytest.mark.parametrize("unit", TimeoutUnit)
def test_without_a_timeout_the_default_counts(unit: TimeoutUnit) -> None:
    assert milliseconds(0, unit) == DEFAULT_TIMEOUT == 30_000
    assert milliseconds(0, unit, 5) == 5


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize(
    ("duration", "timeout", "unit"),
    [
        (1, 1, TimeoutUnit.MILLISECOND),
        (3_600_000, 3_600_000, TimeoutUnit.MILLISECOND),
        (MAX_UINT32, MAX_UINT32, TimeoutUnit.MILLISECOND),
        (MAX_UINT32 + 1, 4_294_968, TimeoutUnit.SECOND),
        (4_294_968_000, 4_294_968, TimeoutUnit.SECOND),
        (MAX_UINT32 * 1000, MAX_UINT32, TimeoutUnit.SECOND),
        (MAX_UINT32 * 1000 + 1, 71_582_789, TimeoutUnit.MINUTE),
        (MAX_UINT32 * 60_000, MAX_UINT32, TimeoutUnit.MINUTE),
        (MAX_TIMEOUT - 1, MAX_UINT32, TimeoutUnit.HOUR),
        (MAX_TIMEOUT, MAX_UINT32, TimeoutUnit.HOUR),
    ],
)
def test_a_timeout_is_written_in_the_finest_unit_that_holds_it(duration: int, timeout: int, unit: TimeoutUnit) -> None:
    assert written(duration) == (timeout, unit)


@given(st.integers(1, MAX_TIMEOUT) | st.integers(1, MAX_UINT32).map(lambda n: n * 1000))
@pytest.mark.rule("MQTTRPC-92")
def test_what_is_written_is_never_less_and_exact_where_it_can_be(duration: int) -> None:
    timeout, unit = written(duration)
    assert 0 < timeout <= MAX_UINT32
    back = milliseconds(timeout, unit)
    exact = any(duration % MILLISECONDS[u] == 0 and duration // MILLISECONDS[u] <= MAX_UINT32 for u in FINEST_FIRST)
    assert back == duration if exact else duration < back < duration + MILLISECONDS[unit]


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize("duration", [0, -1, MAX_TIMEOUT + 1])
def test_a_duration_no_timeout_holds_is_a_local_error(duration: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        written(duration)
    assert caught.value.rule == "MQTTRPC-92"


@pytest.mark.rule("MQTTRPC-92")
def test_seconds_are_rounded_up_to_milliseconds() -> None:
    assert from_seconds(1.5) == (1500, TimeoutUnit.MILLISECOND)
    assert from_seconds(0.0001) == (1, TimeoutUnit.MILLISECOND)
    assert from_seconds(1.1) == (1100, TimeoutUnit.MILLISECOND)
    assert from_seconds(1e-12) == (1, TimeoutUnit.MILLISECOND)
    assert from_seconds(MAX_TIMEOUT / 1000) == (MAX_UINT32, TimeoutUnit.HOUR)


@pytest.mark.rule("MQTTRPC-92")
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, -math.inf, math.nan, 1e300, 1e308])
def test_seconds_that_are_no_timeout_are_a_local_error(seconds: float) -> None:
    with pytest.raises(LocalProtocolError):
        from_seconds(seconds)


@pytest.mark.rule("MQTTRPC-16")
def test_a_deadline_is_the_start_and_the_duration() -> None:
    assert deadline(100.0, 1500) == 101.5
