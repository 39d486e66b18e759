"""UMQ's errors: their codes, the texts they travel in, and the exceptions.

The payload of ``F``, and of an ``E`` that a runtime made, is ``<code> <message>``. The error of a service is an ``E``
in a form of its own, with a code as in HTTP, a tag and a time to wait before the next attempt (UMQ-161):
``404 no-item: No item 7 here.``, ``429 busy (retry after 3000 ms): Too many orders.``.
"""

import re
from enum import IntEnum, unique
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from polywire import errors
from polywire.client.errors import ClientError

MOST_DIGITS: Final = 9
MAX_CODE: Final = 999_999_999
"""UMQ-27: a code has at most nine digits; a longer run of digits is part of the message."""


@unique
class FatalCode(IntEnum):
    """UMQ-96: what the numbers mean."""

    REJECTED = 1
    CALLBACK_NOT_FOUND = 2
    PROTOCOL_ERROR = 3
    UNSUPPORTED_COMMAND = 4
    UNSUPPORTED_VERSION = 5
    NO_RPC_SERVER = 6
    NO_ROUTE = 7
    UNAVAILABLE = 8
    LIMIT_EXCEEDED = 9
    SHUTTING_DOWN = 10
    BAD_REQUEST = 11
    FORBIDDEN = 12

    @property
    def text(self) -> str:
        """The meaning as text, as it is sent."""
        return TEXTS[self]


TEXTS: Final = {
    FatalCode.REJECTED: "Rejected",
    FatalCode.CALLBACK_NOT_FOUND: "Callback not found",
    FatalCode.PROTOCOL_ERROR: "Protocol error",
    FatalCode.UNSUPPORTED_COMMAND: "Unsupported command",
    FatalCode.UNSUPPORTED_VERSION: "Unsupported version",
    FatalCode.NO_RPC_SERVER: "No RPC server here",
    FatalCode.NO_ROUTE: "No route to method",
    FatalCode.UNAVAILABLE: "Temporarily unavailable",
    FatalCode.LIMIT_EXCEEDED: "Limit exceeded",
    FatalCode.SHUTTING_DOWN: "Shutting down",
    FatalCode.BAD_REQUEST: "Bad request",
    FatalCode.FORBIDDEN: "Forbidden",
}


def describe(code: FatalCode, detail: str = "") -> str:
    """The text for a code: its meaning and, where there is a detail, a colon and the detail."""
    return f"{code.text}: {detail}" if detail else code.text


def error_text(code: FatalCode, detail: str = "") -> str:
    """``<code> <message>``, the form of UMQ-27 and UMQ-98."""
    return f"{code.value} {describe(code, detail)}"


def read_error_text(payload: str) -> tuple[int, str]:
    """The code and the message of ``<code> <message>``; code 0 and the whole text where it has no code."""
    digits, _, message = payload.partition(" ")
    if 0 < len(digits) <= MOST_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits), message
    return 0, payload


MEANINGS: Final = {
    FatalCode.REJECTED: (403, "rejected"),
    FatalCode.CALLBACK_NOT_FOUND: (404, "no-callback"),
    FatalCode.PROTOCOL_ERROR: (500, "protocol-error"),
    FatalCode.UNSUPPORTED_COMMAND: (501, "unsupported-command"),
    FatalCode.UNSUPPORTED_VERSION: (505, "unsupported-version"),
    FatalCode.NO_RPC_SERVER: (404, "no-service"),
    FatalCode.NO_ROUTE: (404, "no-method"),
    FatalCode.UNAVAILABLE: (503, "unavailable"),
    FatalCode.LIMIT_EXCEEDED: (429, "limit"),
    FatalCode.SHUTTING_DOWN: (503, "draining"),
    FatalCode.BAD_REQUEST: (400, "bad-request"),
    FatalCode.FORBIDDEN: (403, "forbidden"),
}
"""UMQ-162: the code as in HTTP and the tag of an ``E`` that a runtime made without saying more."""

CODES: Final = range(400, 600)
"""What an error's code may be (UMQ-161)."""

FAILED: Final = 500
MAX_RETRY_AFTER: Final = 0xFFFF_FFFF
TAG: Final = "._~/+-"
"""Characters that a tag may contain besides ASCII letters and digits; other characters are percent-encoded."""

_HEAD: Final = re.compile(r"([A-Za-z0-9._~/+%-]*)(?: ?\(retry after ([0-9]{1,10}) ms\))?: ", re.ASCII)


class Failure(NamedTuple):
    """Why a call failed. ``retry_after`` is in milliseconds, 0 for never.

    ``by_runtime``: a runtime made the error (UMQ-98), in the answer to a ``call`` the hub's; otherwise a service did.
    """

    code: int
    tag: str
    text: str
    retry_after: int = 0
    by_runtime: bool = False


def write_failure(code: int, tag: str, text: str, retry_after: int = 0) -> str:
    """UMQ-161: an error in the form that ``read_failure`` reads. A code that is not from 400 to 599 becomes 500."""
    head = quote(tag, safe=TAG, errors="replace")
    if retry_after > 0:
        head = f"{head} (retry after {min(retry_after, MAX_RETRY_AFTER)} ms)".lstrip()
    code = code if code in CODES else FAILED
    # Without a tag a text that seems to begin with one gets an empty one.
    return f"{code} {head}: {text}" if head or _HEAD.match(text) else f"{code} {text}"


def read_failure(payload: str) -> Failure:
    """What the payload of an ``E`` says. A text without a code is an error 500 without a tag."""
    number, message = read_error_text(payload)
    if payload.startswith(f"{number} "):
        if number in CODES:
            return _read(number, message)
        meaning = TEXTS.get(number)  # type: ignore[call-overload] # a number that is no code is not found
        if meaning is not None and (message == meaning or message.startswith(f"{meaning}: ")):
            detail = message[len(meaning) + 2 :]
            inner, rest = read_error_text(detail)
            if inner in CODES and detail.startswith(f"{inner} "):
                return _read(inner, rest)._replace(by_runtime=True)
            code, tag = MEANINGS[FatalCode(number)]
            return Failure(code, tag, detail or message, by_runtime=True)
    return Failure(FAILED, "", payload)


def _read(code: int, message: str) -> Failure:
    found = _HEAD.match(message)
    if found is not None:
        tag = unquote(found[1], errors="replace")
        failure = Failure(code, tag, message[found.end() :], int(found[2] or 0))
        if write_failure(*failure[:4]) == f"{code} {message}":
            return failure
    return Failure(code, "", message)


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send a message, or to use an id, that UMQ does not allow."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """The peer broke a rule that ends the connection; ``reply`` is the ``Fatal`` to answer with (UMQ-96)."""


class MethodError(errors.ProtocolError):
    """A call that can't be served; the connection stays open.

    ``code`` is one of the codes of UMQ-96, ``payload`` what the ``E`` that answers the call carries (UMQ-98).
    """

    def __init__(self, reason: str, *, rule: str, code: FatalCode = FatalCode.BAD_REQUEST) -> None:
        super().__init__(reason, rule=rule)
        self.code = code

    @property
    def payload(self) -> str:
        """The text of the ``E``: the code, a space, its meaning, and what was wrong."""
        return error_text(self.code, self.reason)


class RpcException(ClientError):
    """The other side answered a request with ``E``; raised by a handler, it is that answer.

    ``text`` is the whole payload. Where it begins with a code, as one that the other side's runtime made does,
    ``code`` is that code and ``message`` the rest (UMQ-98); else ``code`` is 0.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code, self.message = read_error_text(text)

    @classmethod
    def of(cls, code: FatalCode, detail: str = "") -> "RpcException":
        """One with a code of UMQ's own."""
        return cls(error_text(code, detail))


class Rejected(ClientError):
    """Raised by a server's ``greet`` to refuse a client: ``F`` and code 1."""

    def __init__(self, reason: str, code: FatalCode = FatalCode.REJECTED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
