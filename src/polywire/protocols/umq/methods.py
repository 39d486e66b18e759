"""The hub's methods: the payload of a ``C`` to the hub, read and written, and nothing done about it.

A payload is a JSON array, the method's name first (UMQ-109). What is wrong with one is a ``MethodError``, whose
``payload`` is what the answering ``E`` carries.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import ClassVar, Final, TypeAlias, TypeVar, final

import msgspec
from mypy_extensions import mypyc_attr

from polywire.protocols.umq.base36 import MAX_NUMBER, parse
from polywire.protocols.umq.bodies import (
    Body,
    Payload,
    decode_json,
    encode_json,
    read_json_body,
    write_json_body,
)
from polywire.protocols.umq.codes import FatalCode
from polywire.protocols.umq.errors import LocalProtocolError, MethodError
from polywire.protocols.umq.json_objects import CallOptions, Header, PublishOptions, SubscribeOptions
from polywire.wire.frame import Frame

MAX_TIMEOUT: Final = 0xFFFF_FFFF
"""UMQ-126: the longest timeout in ms; what RPC over MQTT can carry, too."""

SHOWN: Final = 64
"""How much of a name an error message repeats."""

T = TypeVar("T")


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


_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_ID: Final[msgspec.json.Decoder[int | str]] = msgspec.json.Decoder(int | str)
_CONNECTION: Final = msgspec.json.Decoder(int)
_SUBSCRIBE_OPTIONS: Final = msgspec.json.Decoder(SubscribeOptions | None)
_PUBLISH_OPTIONS: Final = msgspec.json.Decoder(PublishOptions | None)
_CALL_OPTIONS: Final = msgspec.json.Decoder(CallOptions | None)


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


def _subscribe(parts: list[msgspec.Raw], attachments: int) -> SubscribeTopic:  # noqa: ARG001 - all readers are alike
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
    """The id a JSON value stands for."""
    number = parse(value) if isinstance(value, str) else value
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
    """The payload that asks for a method; ``attachments`` go along, behind a body that is one itself.

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
            raise MethodError(f"header {shown(name)} is {value}, which JSON can't say", rule="UMQ-125")
    return dict(headers) or None


def _array(parts: list[object], options: Mapping[str, object] | None = None, sent: tuple[bytes, ...] = ()) -> Payload:
    """The array of a method; options that say nothing are left out, and so is an object of none."""
    said = {key: value for key, value in (options or {}).items() if value is not None}
    return Payload(encode_json([*parts, said] if said else parts), sent)
