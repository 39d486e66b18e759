"""The errors of RPC over MQTT: its branch of the error tree, and the table of failures a call may end with."""

from typing import Final, NamedTuple

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message

from polywire import errors

HUB_ERROR: Final = "polywire.hub"
"""MQTTRPC-110: the ``type_url`` of the body of a Response whose error the hub itself made."""


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send what RPC over MQTT does not allow."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """A payload is not a message of RPC over MQTT.

    MQTT messages are independent of each other, so the next one is not affected: the decoder and the
    connection continue (MQTTRPC-90). ``reply`` is the Response to publish, or None if there is no one to answer.
    """


class RpcError(errors.PolywireError):
    """A call failed: the other side's error data, as an exception.

    ``code`` is an HTTP status code, ``tag`` is for programs, ``user_message`` for people. ``retry_after``
    is in milliseconds; 0 means: do not retry. ``details`` is additional error data, or None (MQTTRPC-33): an ``Any``,
    sent as the body of the Response. A service may pass any other protobuf message, which is packed into one.
    """

    def __init__(
        self, code: int, tag: str = "", user_message: str = "", retry_after: int = 0, details: Message | None = None
    ) -> None:
        packed: Any | None = None
        if isinstance(details, Any):
            packed = details
        elif details is not None:
            packed = Any()
            packed.Pack(details)
        super().__init__(code, tag, user_message, retry_after, packed)
        self.code = code
        self.tag = tag
        self.user_message = user_message
        self.retry_after = retry_after
        self.details = packed

    @property
    def from_hub(self) -> bool:
        """Whether the hub failed the call, and not the service (MQTTRPC-110)."""
        return self.details is not None and self.details.type_url == HUB_ERROR

    def __str__(self) -> str:
        words = self.user_message or "the call failed"
        name = f"{self.code} {self.tag}".rstrip()
        return f"{words} ({name}, retry after {self.retry_after} ms)" if self.retry_after else f"{words} ({name})"


class Failure(NamedTuple):
    """One way a call fails: what its error data holds. ``retry_after`` is the default, in milliseconds."""

    code: int
    tag: str
    user_message: str
    retry_after: int = 0


BAD_REQUEST = Failure(400, "bad-request", "The request can't be read.")  # MQTTRPC-60
UNAUTHORIZED = Failure(401, "unauthorized", "Please log in first.")  # MQTTRPC-61
FORBIDDEN = Failure(403, "forbidden", "This is not allowed.")  # MQTTRPC-61
NO_SERVICE = Failure(404, "no-service", "There is no such service.")  # MQTTRPC-62
NO_METHOD = Failure(404, "no-method", "The service has no such method.")  # MQTTRPC-62
STREAM_IDLE = Failure(408, "stream-idle", "Nothing came for too long.")  # MQTTRPC-63
TOO_LARGE = Failure(413, "too-large", "The message is too large.")  # MQTTRPC-64
OVERLOADED = Failure(429, "overloaded", "Too busy, please try again.", 1000)  # MQTTRPC-65
HANDLER_FAILED = Failure(500, "handler-failed", "Something went wrong.")  # MQTTRPC-66: no internals in the words
DRAINING = Failure(503, "draining", "Shutting down, please try again.", 1000)  # MQTTRPC-67
TIMEOUT = Failure(504, "timeout", "It took too long.")  # MQTTRPC-68

FAILURES: tuple[Failure, ...] = (
    BAD_REQUEST,
    UNAUTHORIZED,
    FORBIDDEN,
    NO_SERVICE,
    NO_METHOD,
    STREAM_IDLE,
    TOO_LARGE,
    OVERLOADED,
    HANDLER_FAILED,
    DRAINING,
    TIMEOUT,
)
"""Every failure this side itself makes. An application's handlers add theirs, with tags of their own."""


def retry_at(failed_at: float, retry_after: int, *, asked: bool) -> float | None:
    """MQTTRPC-69: the time, in seconds on the clock of ``failed_at``, from which a call may be retried; None for never.

    ``asked`` says whether the caller wants retries at all, ``retry_after`` is the error data's, in milliseconds.
    """
    if not asked or retry_after <= 0:
        return None
    return failed_at + retry_after / 1000
