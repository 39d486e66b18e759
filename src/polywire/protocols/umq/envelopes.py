"""JSON that the hub sends to a peer: requests to a service it offers, enveloped updates, plain answers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, ClassVar, Final, final

import msgspec
from mypy_extensions import mypyc_attr

from polywire.protocols.umq.bodies import Body, Payload, decode_json, encode_json, read_json_body, write_json_body
from polywire.protocols.umq.errors import MethodError
from polywire.protocols.umq.json_objects import EnvelopeObject, Header
from polywire.wire.frame import Frame


@final
@mypyc_attr(acyclic=True)
class ServedRequest(Frame):
    """What the ``B`` of a served call asks: ``["method", body]`` (UMQ-123)."""

    __match_args__: ClassVar[tuple[str, ...]] = ("method", "body")

    def __init__(self, method: str, body: Body) -> None:
        self.method: Final = method
        self.body: Final = body


@final
@mypyc_attr(acyclic=True)
class Envelope(Frame):
    """An update with what the hub knows of it (UMQ-128); ``ts`` in milliseconds since 1970 UTC."""

    __match_args__: ClassVar[tuple[str, ...]] = ("channel", "body", "headers", "ts")

    def __init__(self, channel: str, body: Body, headers: tuple[tuple[str, Header], ...] = (), ts: int = 0) -> None:
        self.channel: Final = channel
        self.body: Final = body
        self.headers: Final = headers
        self.ts: Final = ts


_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_ENVELOPE: Final = msgspec.json.Decoder(EnvelopeObject)


def read_request(payload: str, attachments: int = 0) -> ServedRequest:
    """The request in the argument of a ``B``, which announced ``attachments``."""
    parts = decode_json(_ARRAY, payload, "the request", "UMQ-123")
    if len(parts) != 2:
        raise MethodError(f"a request is a method and a body, not {len(parts)} values", rule="UMQ-123")
    method = decode_json(_STRING, parts[0], "the method's name", "UMQ-123")
    return ServedRequest(method, read_json_body(parts[1], attachments))


def write_request(request: ServedRequest, attachments: Sequence[bytes] = ()) -> Payload:
    """The argument of a ``B`` that carries a request to the peer's service."""
    value, sent, _ = write_json_body(request.body, attachments)
    return Payload(encode_json([request.method, value]), sent)


def read_envelope(payload: str, attachments: int = 0) -> Envelope:
    """The enveloped update in the payload of a ``T``; fields it does not know are passed over."""
    found = decode_json(_ENVELOPE, payload, "the envelope", "UMQ-128")
    body = read_json_body(found.body, attachments)
    return Envelope(found.channel, body, tuple(found.headers.items()), found.ts)


def write_envelope(
    channel: str,
    body: Body,
    headers: Mapping[str, Header | datetime],
    ts: int,
    attachments: Sequence[bytes] = (),
) -> Payload:
    """The payload of an enveloped update; a header JSON has no value for, as a date, is written as text."""
    value, sent, _ = write_json_body(body, attachments)
    written = {name: _plain(header) for name, header in headers.items()}
    fields = {"channel": channel, "headers": written, "body": value, "ts": ts}
    return Payload(encode_json(fields), sent)


def _plain(header: Header | datetime) -> Header:
    if isinstance(header, datetime):
        return header.isoformat()
    return str(header) if isinstance(header, float) and not isfinite(header) else header


def write_answer(value: Any) -> str:
    """The JSON answer of a method (UMQ-109)."""
    return encode_json(value)
