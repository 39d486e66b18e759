"""UMQ's error codes, and the text they stand in: the payload of ``F``, and of an ``E`` the runtime itself makes."""

from enum import IntEnum, unique
from typing import Final

MAX_CODE: Final = 999_999_999
"""UMQ-27: a code has at most nine digits; a longer run of digits is taken as words."""


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
        """The meaning in words, as it goes over the wire."""
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
    """The words behind a code: its meaning and, where there is more to say, a colon and the detail."""
    return f"{code.text}: {detail}" if detail else code.text


def error_text(code: FatalCode, detail: str = "") -> str:
    """``<code> <message>``, the form of UMQ-27 and UMQ-98."""
    return f"{code.value} {describe(code, detail)}"


def read_error_text(payload: str) -> tuple[int, str]:
    """The code and the message of ``<code> <message>``; code 0 and the whole text where it has no code."""
    digits, _, message = payload.partition(" ")
    if 0 < len(digits) <= 9 and digits.isascii() and digits.isdigit():
        return int(digits), message
    return 0, payload
