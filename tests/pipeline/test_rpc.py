"""Publications on service topics as parts of calls: what the hub's own decoder finds, and nothing it does not."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.journal.format import PLAIN_SCHEMA
from polywire.pipeline.rpc import NEEDED, parts
from polywire.protocols.mqttrpc import errors
from polywire.protocols.mqttrpc.errors import RemoteProtocolError
from polywire.protocols.mqttrpc.frames import Decoder, ErrorData, Request, Response, TimeoutUnit, encode
from polywire.protocols.mqttrpc.service import parse_type_url
from tests.protocols.mqttrpc import strategies


def publications(*bodies: bytes, topic: str = "/billing", protocol: str = "mqtt") -> pa.RecordBatch:
    plain = {"kind": "publish", "protocol": protocol, "channel": topic, "flags": 2}
    rows = [plain | {"offset": number, "body": body, "size": len(body)} for number, body in enumerate(bodies)]
    names = ["offset", *NEEDED]
    columns = [pa.array([row.get(name) for row in rows], PLAIN_SCHEMA.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([PLAIN_SCHEMA.field(name) for name in names]))


def expected(offset: int, body: bytes) -> dict[str, Any] | None:
    """The part of a call that the hub's decoder finds in a body."""
    try:
        (frame,) = Decoder().feed(body)
    except RemoteProtocolError:
        return None
    assert isinstance(frame, Request | Response)
    if frame.correlation_id == 0:
        return None
    name = parse_type_url(frame.type_url) if isinstance(frame, Request) else None
    if isinstance(frame, Request) and name is None:
        return None
    error = frame.error_data if isinstance(frame, Response) else None
    value = frame.value or b""
    return {
        "offset": offset,
        "kind": "request" if name is not None else "reply" if error is None else "error",
        "protocol": "mqtt",
        "channel": "billing/" if name is None else f"billing/{name.method}",
        "correlation": f"/billing:{frame.correlation_id}",
        "headers": None if error is None else {"code": error.code, "tag": error.tag, "text": error.user_message},
        "body": value,
        "size": len(value),
        "flags": 2 | (16 if frame.eos or error is not None else 0),
    }


def found(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        one | {"headers": None if one["headers"] is None else json.loads(one["headers"])}
        for one in parts(rows).to_pylist()
    ]


METHODS = st.sampled_from(
    ["Pay", "/Pay", "shop.Billing/Pay", "/shop.Billing/Pay", "//Pay", "Pay-now", "a b/Pay", "x/", ""]
)
REQUESTS = st.builds(
    Request,
    strategies.correlation_ids,
    METHODS | strategies.texts,
    strategies.values,
    st.booleans(),
    strategies.uint32,
    st.sampled_from(TimeoutUnit),
)


@given(st.lists(REQUESTS | strategies.responses, min_size=1, max_size=20))
def test_every_message_is_read_as_the_hub_reads_it(frames: list[Request | Response]) -> None:
    bodies = [encode(frame) for frame in frames]
    wanted = [expected(offset, body) for offset, body in enumerate(bodies)]
    assert found(publications(*bodies)) == [one for one in wanted if one is not None]


def _damaged(body: bytes, at: int, bits: int) -> bytes:
    """A message with one byte changed, or cut there."""
    if not body:
        return body
    at %= len(body)
    return body[:at] + (bytes([bits]) + body[at + 1 :] if bits else b"")


OTHERS = st.binary(max_size=12) | st.builds(
    lambda frame, at, bits: _damaged(encode(frame), at, bits),
    REQUESTS | strategies.responses,
    st.integers(0, 1 << 30),
    st.integers(0, 255),
)


@given(st.lists(OTHERS, min_size=1, max_size=20))
def test_of_other_bytes_nothing_is_taken_that_the_hub_would_not_take(bodies: list[bytes]) -> None:
    wanted = [expected(offset, body) for offset, body in enumerate(bodies)]
    for one in found(publications(*bodies)):
        assert one == wanted[one["offset"]]


@pytest.mark.parametrize("topic", ["billing", "/", "/a/b", "/+", "/#", "a/b", "/a#", "queue/x"])
def test_only_topics_of_one_level_behind_a_slash_are_those_of_services(topic: str) -> None:
    body = encode(Request(7, "Pay", b"5", eos=True))
    assert parts(publications(body, topic=topic)).num_rows == 0
    assert parts(publications(body, topic="/grüße")).column("channel").to_pylist() == ["grüße/Pay"]


def test_what_the_hub_publishes_for_others_is_told_from_its_own_errors() -> None:
    own = ErrorData(errors.DRAINING.code, errors.DRAINING.tag, "later")
    rows = publications(
        encode(Request(1, "Pay", b"5", eos=True)),
        encode(Response(2, "", b"paid", eos=True)),
        encode(Response(3, "", None, ErrorData(500, "failed", "no"), eos=True)),
        encode(Response(4, errors.HUB_ERROR, b"", own, eos=True)),
        protocol="mqttrpc",
    )
    assert [(one["kind"], one["correlation"]) for one in found(rows)] == [
        ("reply", "/billing:2"),
        ("reply", "/billing:3"),
        ("error", "/billing:4"),
    ]


def test_ordinary_texts_and_nothing_at_all_are_no_calls() -> None:
    bodies = [b"21.5", b'{"temp":21.5}', b"hello", b"", b"on", b"\x08\x07", "grüße".encode(), b"\x0a\x00", b"\xff" * 30]
    assert parts(publications(*bodies)).column("correlation").to_pylist() == ["/billing:7"]
    assert parts(publications()).num_rows == 0
