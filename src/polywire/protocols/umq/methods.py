"""The hub's payloads, read and written, and nothing done about them. UMQ leaves payloads to its users.

A ``C`` to the hub carries a JSON array, the method's name first (UMQ-109). A ``B`` from the hub carries
``["method", body]``, and a ``T`` is the bare body or an envelope. What is wrong with a payload is a ``MethodError``,
whose ``payload`` is what the answering ``E`` carries.

A body is bare (``T``, and the ``R`` of a call) or a JSON value among others. Bare, a UTF-8 body is the text itself,
another one an attachment. In JSON, a string is its UTF-8, another value its JSON text, and ``null`` with attachments
says that the first of them is the body.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, final

import msgspec
from mypy_extensions import mypyc_attr

from polywire.protocols.umq.errors import FatalCode, LocalProtocolError, MethodError
from polywire.protocols.umq.frames import MAX_NUMBER, parse_number
from polywire.wire.frame import Frame

JSON_TYPE: Final = "application/json"  # UMQ-120

MAX_TIMEOUT: Final = 0xFFFF_FFFF
"""UMQ-126: the longest timeout in ms; what RPC over MQTT can carry, too."""

SHOWN: Final = 64
"""How much of a name an error message repeats."""

Header: TypeAlias = str | int | float

T = TypeVar("T")


@final
@mypyc_attr(acyclic=True)
class Body(Frame):
    """A body as it was read. ``data`` is None where it is the first attachment (UMQ-121)."""

    __match_args__: ClassVar[tuple[str, ...]] = ("data", "content_type")

    def __init__(self, data: bytes | None, content_type: str | None = None) -> None:
        self.data: Final = data
        self.content_type: Final = content_type


@final
@mypyc_attr(acyclic=True)
class Payload(Frame):
    """What to send: the text of the payload, and the attachments to announce with it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("text", "attachments")

    def __init__(self, text: str, attachments: tuple[bytes, ...] = ()) -> None:
        self.text: Final = text
        self.attachments: Final = attachments


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


@final
@mypyc_attr(acyclic=True)
class SubscribeTopic(Frame):
    """``["subscribe", pattern, topicId, options?]``: send what is published to the pattern as updates of the topic."""

    __match_args__: ClassVar[tuple[str, ...]] = ("pattern", "topic_id", "envelope")

    def __init__(self, pattern: str, topic_id: int, envelope: bool = False) -> None:
        self.pattern: Final = pattern
        self.topic_id: Final = topic_id
        self.envelope: Final = envelope


@final
@mypyc_attr(acyclic=True)
class UnsubscribeTopic(Frame):
    """``["unsubscribe", topicId]``: end the topic."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic_id",)

    def __init__(self, topic_id: int) -> None:
        self.topic_id: Final = topic_id


@final
@mypyc_attr(acyclic=True)
class Publish(Frame):
    """``["publish", channel, body, options?]``."""

    __match_args__: ClassVar[tuple[str, ...]] = ("channel", "body", "headers", "retain")

    def __init__(
        self, channel: str, body: Body, headers: tuple[tuple[str, Header], ...] = (), retain: bool = False
    ) -> None:
        self.channel: Final = channel
        self.body: Final = body
        self.headers: Final = headers
        self.retain: Final = retain


@final
@mypyc_attr(acyclic=True)
class CallService(Frame):
    """``["call", service, method, body, options?]``; ``timeout`` in ms, ``stream`` the topic id for the responses."""

    __match_args__: ClassVar[tuple[str, ...]] = ("service", "method", "body", "timeout", "headers", "stream")

    def __init__(
        self,
        service: str,
        method: str,
        body: Body,
        timeout: int | None = None,
        headers: tuple[tuple[str, Header], ...] = (),
        stream: int | None = None,
    ) -> None:
        self.service: Final = service
        self.method: Final = method
        self.body: Final = body
        self.timeout: Final = timeout
        self.headers: Final = headers
        self.stream: Final = stream


@final
@mypyc_attr(acyclic=True)
class Serve(Frame):
    """``["serve", service, callbackId]``: requests to the service come as ``B`` to that callback."""

    __match_args__: ClassVar[tuple[str, ...]] = ("service", "callback_id")

    def __init__(self, service: str, callback_id: int) -> None:
        self.service: Final = service
        self.callback_id: Final = callback_id


@final
@mypyc_attr(acyclic=True)
class Unserve(Frame):
    """``["unserve", service]``."""

    __match_args__: ClassVar[tuple[str, ...]] = ("service",)

    def __init__(self, service: str) -> None:
        self.service: Final = service


@final
@mypyc_attr(acyclic=True)
class WhoAmI(Frame):
    """``["whoami"]``."""


@final
@mypyc_attr(acyclic=True)
class ReadAttributes(Frame):
    """``["attributes", connection]``: the attributes that a connection has set."""

    __match_args__: ClassVar[tuple[str, ...]] = ("connection",)

    def __init__(self, connection: int) -> None:
        self.connection: Final = connection


Method: TypeAlias = (
    SubscribeTopic | UnsubscribeTopic | Publish | CallService | Serve | Unserve | WhoAmI | ReadAttributes
)


# What msgspec reads objects into. Made by a call, since mypyc loses the options of a class statement.
SubscribeOptions: Final[Any] = msgspec.defstruct(
    "SubscribeOptions", [("envelope", bool, False)], forbid_unknown_fields=True
)
PublishOptions: Final[Any] = msgspec.defstruct(
    "PublishOptions",
    [("headers", dict[str, Header], {}), ("content_type", str | None, None), ("retain", bool, False)],
    forbid_unknown_fields=True,
)
CallOptions: Final[Any] = msgspec.defstruct(
    "CallOptions",
    [("timeout", int | None, None), ("headers", dict[str, Header], {}), ("stream", int | str | None, None)],
    forbid_unknown_fields=True,
)
EnvelopeObject: Final[Any] = msgspec.defstruct(
    "EnvelopeObject", [("channel", str), ("headers", dict[str, Header]), ("body", msgspec.Raw), ("ts", int)]
)

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_ID: Final[msgspec.json.Decoder[int | str]] = msgspec.json.Decoder(int | str)
_CONNECTION: Final = msgspec.json.Decoder(int)
_SUBSCRIBE_OPTIONS: Final = msgspec.json.Decoder(SubscribeOptions | None)
_PUBLISH_OPTIONS: Final = msgspec.json.Decoder(PublishOptions | None)
_CALL_OPTIONS: Final = msgspec.json.Decoder(CallOptions | None)
_ENVELOPE: Final = msgspec.json.Decoder(EnvelopeObject)


def decode_json(decoder: msgspec.json.Decoder[T], text: str | msgspec.Raw, what: str, rule: str) -> T:
    """Decode JSON of a known shape. Anything wrong with it is a ``MethodError``."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise MethodError(f"{what}: the JSON is nested too deeply", rule=rule) from None
    except UnicodeEncodeError:
        raise MethodError(f"{what}: the text can't be written as UTF-8", rule=rule) from None
    except msgspec.MsgspecError as error:
        raise MethodError(f"{what}: {error}", rule=rule) from None


def encode_json(value: Any) -> str:
    """The JSON text of what this side sends."""
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, RecursionError, TypeError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"can't be written as JSON: {error}", rule="UMQ-109") from error


def read_json_body(raw: msgspec.Raw, attachments: int, content_type: str | None = None) -> Body:
    """The body of a JSON value; ``content_type``, where given, wins over the one that the value implies."""
    data = bytes(raw)
    if data == b"null" and attachments > 0:
        return Body(None, content_type)
    if data[:1] == b'"':
        return Body(decode_json(_STRING, raw, "body", "UMQ-119").encode(), content_type)
    return Body(data, content_type or JSON_TYPE)


def write_json_body(body: Body, attachments: Sequence[bytes] = ()) -> tuple[msgspec.Raw, tuple[bytes, ...], str | None]:
    """The JSON value of a body, the attachments to send, and the content type that a reader will assume."""
    data = body.data
    if data is None:
        if not attachments:
            raise LocalProtocolError("a body that is an attachment, and no attachments", rule="UMQ-121")
        return msgspec.Raw(b"null"), tuple(attachments), None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return msgspec.Raw(b"null"), (data, *attachments), None
    if body.content_type == JSON_TYPE:
        value = _json_value(data)
        if value is not None and not (attachments and bytes(value) == b"null"):
            return value, tuple(attachments), JSON_TYPE
    return msgspec.Raw(msgspec.json.encode(text)), tuple(attachments), None


def _json_value(data: bytes) -> msgspec.Raw | None:
    """The JSON value of a body that can be written as one: valid, and not a string, which would lose its quotes."""
    try:
        value = _RAW.decode(data)
    except (RecursionError, msgspec.MsgspecError):
        return None
    return None if bytes(value)[:1] == b'"' else value


def read_bare_body(payload: str, attachments: int) -> Body:
    """The body of a bare payload: the text or, where that is empty and attachments come, the first of them."""
    if not payload and attachments > 0:
        return Body(None)
    try:
        return Body(payload.encode())
    except UnicodeEncodeError:
        raise MethodError("the text can't be written as UTF-8", rule="UMQ-01") from None


def write_bare_body(data: bytes, attachments: Sequence[bytes] = ()) -> Payload:
    """A body as text where it is UTF-8, else as the first attachment (UMQ-122).

    An empty body that has attachments goes as one too: an empty text would make the next one the body.
    """
    if data or not attachments:
        try:
            return Payload(data.decode(), tuple(attachments))
        except UnicodeDecodeError:
            pass
    return Payload("", (data, *attachments))


def read_method(payload: str, attachments: int = 0) -> Method:
    """The method a call of the hub asks for. ``attachments`` is how many the ``C`` announced."""
    parts = decode_json(_ARRAY, payload, "the payload", "UMQ-109")
    if not parts:
        raise MethodError("the payload is an empty array, not one with a method", rule="UMQ-109")
    name = decode_json(_STRING, parts[0], "the method's name", "UMQ-109")
    known = METHODS.get(name)
    if known is None:
        reason = f"there is no method {shown(name)}, only {', '.join(METHODS)}"
        raise MethodError(reason, rule="UMQ-129", code=FatalCode.NO_ROUTE)
    read, least, most, rule = known
    count = len(parts) - 1
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise MethodError(f"{name} takes {wanted} arguments, not {count}", rule=rule)
    return read(parts, attachments)


def _subscribe(parts: list[msgspec.Raw], attachments: int) -> SubscribeTopic:  # noqa: ARG001 - all readers have one signature
    options = _options(_SUBSCRIBE_OPTIONS, parts, 3, "UMQ-128") or SubscribeOptions()
    pattern = _name(parts[1], "pattern", "UMQ-112")
    return SubscribeTopic(pattern, read_id(parts[2], "topic id"), options.envelope)


def _unsubscribe(parts: list[msgspec.Raw], attachments: int) -> UnsubscribeTopic:  # noqa: ARG001 - as above
    return UnsubscribeTopic(read_id(parts[1], "topic id"))


def _publish(parts: list[msgspec.Raw], attachments: int) -> Publish:
    options = _options(_PUBLISH_OPTIONS, parts, 3, "UMQ-125") or PublishOptions()
    channel = _name(parts[1], "channel", "UMQ-114")
    body = read_json_body(parts[2], attachments, options.content_type)
    return Publish(channel, body, tuple(options.headers.items()), options.retain)


def _call(parts: list[msgspec.Raw], attachments: int) -> CallService:
    options = _options(_CALL_OPTIONS, parts, 4, "UMQ-126") or CallOptions()
    timeout = _timeout(options.timeout)
    stream = None if options.stream is None else check_id(options.stream, "stream")
    service = _name(parts[1], "service", "UMQ-115")
    method = decode_json(_STRING, parts[2], "method", "UMQ-115")
    body = read_json_body(parts[3], attachments)
    return CallService(service, method, body, timeout, tuple(options.headers.items()), stream)


def _serve(parts: list[msgspec.Raw], attachments: int) -> Serve:  # noqa: ARG001 - as above
    return Serve(_name(parts[1], "service", "UMQ-116"), read_id(parts[2], "callback id"))


def _unserve(parts: list[msgspec.Raw], attachments: int) -> Unserve:  # noqa: ARG001 - as above
    return Unserve(_name(parts[1], "service", "UMQ-117"))


def _whoami(parts: list[msgspec.Raw], attachments: int) -> WhoAmI:  # noqa: ARG001 - as above
    return WhoAmI()


def _attributes(parts: list[msgspec.Raw], attachments: int) -> ReadAttributes:  # noqa: ARG001 - as above
    connection = decode_json(_CONNECTION, parts[1], "connection", "UMQ-158")
    if connection < 0:
        raise MethodError(f"connection {shown(connection)} is not the number of one", rule="UMQ-158")
    return ReadAttributes(connection)


# Each method: its reader, the least and the most arguments, its rule.
METHODS: Final[dict[str, tuple[Callable[[list[msgspec.Raw], int], Method], int, int, str]]] = {
    "subscribe": (_subscribe, 2, 3, "UMQ-112"),
    "unsubscribe": (_unsubscribe, 1, 1, "UMQ-113"),
    "publish": (_publish, 2, 3, "UMQ-114"),
    "call": (_call, 3, 4, "UMQ-115"),
    "serve": (_serve, 2, 2, "UMQ-116"),
    "unserve": (_unserve, 1, 1, "UMQ-117"),
    "whoami": (_whoami, 0, 0, "UMQ-118"),
    "attributes": (_attributes, 1, 1, "UMQ-158"),
}


def read_id(raw: msgspec.Raw, what: str) -> int:
    """UMQ-111: an id in JSON, a number or a string in base 36."""
    return check_id(decode_json(_ID, raw, what, "UMQ-111"), what)


def check_id(value: int | str, what: str) -> int:
    """The id in a JSON value."""
    number = parse_number(value) if isinstance(value, str) else value
    if number is None or not 0 <= number <= MAX_NUMBER:
        raise MethodError(f"{what} {shown(value)} is not a number of 64 bits or its base-36 text", rule="UMQ-111")
    return number


def shown(value: int | str) -> str:
    """What an error message repeats of a peer's value: not all of it where it is long."""
    text = ascii(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _name(raw: msgspec.Raw, what: str, rule: str) -> str:
    return _checked(decode_json(_STRING, raw, what, rule), what, rule)


def _checked(name: str, what: str, rule: str) -> str:
    if not name:
        raise MethodError(f"{what} is empty", rule=rule)
    return name


def _timeout(timeout: int | None) -> int | None:
    if timeout is not None and not 0 < timeout <= MAX_TIMEOUT:
        raise MethodError(f"timeout {shown(timeout)} is not from 1 to {MAX_TIMEOUT} ms", rule="UMQ-126")
    return timeout


def _options(decoder: msgspec.json.Decoder[T], parts: list[msgspec.Raw], at: int, rule: str) -> T | None:
    return decode_json(decoder, parts[at], "options", rule) if len(parts) > at else None


def write_method(method: Method, attachments: Sequence[bytes] = ()) -> Payload:
    """The payload that asks for a method; ``attachments`` follow a body that is one itself.

    Raises ``LocalProtocolError`` for what the hub would refuse.
    """
    try:
        return _write(method, attachments)
    except MethodError as error:
        raise LocalProtocolError(error.reason, rule=error.rule) from None


def _write(method: Method, attachments: Sequence[bytes]) -> Payload:
    if isinstance(method, Publish):
        value, sent, assumed = write_json_body(method.body, attachments)
        options: dict[str, object] = {
            "headers": _headers(method.headers),
            "content_type": method.body.content_type if method.body.content_type != assumed else None,
            "retain": method.retain or None,
        }
        return _array(["publish", _checked(method.channel, "channel", "UMQ-114"), value], options, sent)
    if isinstance(method, CallService):
        value, sent, _ = write_json_body(method.body, attachments)
        options = {
            "timeout": _timeout(method.timeout),
            "headers": _headers(method.headers),
            "stream": None if method.stream is None else check_id(method.stream, "stream"),
        }
        return _array(["call", _checked(method.service, "service", "UMQ-115"), method.method, value], options, sent)
    if isinstance(method, SubscribeTopic):
        pattern = _checked(method.pattern, "pattern", "UMQ-112")
        options = {"envelope": method.envelope or None}
        return _array(["subscribe", pattern, check_id(method.topic_id, "topic id")], options)
    if isinstance(method, UnsubscribeTopic):
        return _array(["unsubscribe", check_id(method.topic_id, "topic id")])
    if isinstance(method, Serve):
        service = _checked(method.service, "service", "UMQ-116")
        return _array(["serve", service, check_id(method.callback_id, "callback id")])
    if isinstance(method, Unserve):
        return _array(["unserve", _checked(method.service, "service", "UMQ-117")])
    if isinstance(method, ReadAttributes):
        return _array(["attributes", method.connection])
    return _array(["whoami"])


def _headers(headers: tuple[tuple[str, Header], ...]) -> dict[str, Header] | None:
    for name, value in headers:
        if isinstance(value, float) and not isfinite(value):
            raise MethodError(f"header {shown(name)} is {value}, which JSON can't represent", rule="UMQ-125")
    return dict(headers) or None


def _array(parts: list[object], options: Mapping[str, object] | None = None, sent: tuple[bytes, ...] = ()) -> Payload:
    """The array of a method, without options that are None, and without an object of none."""
    said = {key: value for key, value in (options or {}).items() if value is not None}
    return Payload(encode_json([*parts, said] if said else parts), sent)


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
    """The enveloped update in the payload of a ``T``; unknown fields are ignored."""
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
