"""How the hub's message bodies stand in UMQ payloads: bare, or as a JSON value among others.

Bare (``T``, and the ``R`` of a call): a UTF-8 body is the text itself, another one an attachment. In JSON: a string is
its UTF-8, another value its JSON text, and ``null`` with attachments says that the first of them is the body.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar, final

import msgspec
from mypy_extensions import mypyc_attr

from polywire.protocols.umq.errors import LocalProtocolError, MethodError
from polywire.wire.frame import Frame

JSON_TYPE: Final = "application/json"  # UMQ-120

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


def decode_json(decoder: msgspec.json.Decoder[T], text: str | msgspec.Raw, what: str, rule: str) -> T:
    """Decode JSON of a known shape. Whatever is wrong with it is a ``MethodError`` with the words for the peer."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise MethodError(f"{what}: the JSON is nested too deep", rule=rule) from None
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


_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_STRING: Final = msgspec.json.Decoder(str)


def read_json_body(raw: msgspec.Raw, attachments: int, content_type: str | None = None) -> Body:
    """The body a JSON value stands for; ``content_type``, where given, wins over what the value implies."""
    octets = bytes(raw)
    if octets == b"null" and attachments > 0:
        return Body(None, content_type)
    if octets[:1] == b'"':
        return Body(decode_json(_STRING, raw, "body", "UMQ-119").encode(), content_type)
    return Body(octets, content_type or JSON_TYPE)


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
    """A body that can stand as the JSON value it is: valid, and not a string, which would lose its quotes."""
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
