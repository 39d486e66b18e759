"""Why a call failed, between the hub's words and those of RPC over MQTT."""

from typing import Final

from polywire.hub.services import CallError
from polywire.protocols.mqttrpc.errors import FAILURES, HANDLER_FAILED, Failure
from polywire.protocols.mqttrpc.frames import ErrorData
from polywire.protocols.mqttrpc.timeouts import MAX_UINT32

UNAVAILABLE: Final = "Not available, please try again."


def error_data(error: CallError) -> ErrorData:
    """What the caller on MQTT is told of a provider's failure.

    A failure of the table keeps the table's words. Other errors below 500 are meant for the caller and keep their own;
    the words of those from 500 on could tell internals (MQTTRPC-66), and are ours. What is no error code is a 500.
    """
    code = error.code if 400 <= error.code <= 599 else HANDLER_FAILED.code
    retry_after = min(max(error.retry_after, 0), MAX_UINT32)
    if code == HANDLER_FAILED.code:
        return _told(HANDLER_FAILED, retry_after)  # MQTTRPC-49
    for failure in FAILURES:
        if failure.code == code and error.tag in {"", failure.tag}:
            return _told(failure, retry_after)
    words = error.text if code < 500 else UNAVAILABLE if code == 503 else HANDLER_FAILED.user_message
    return ErrorData(code, error.tag, words, retry_after)


def call_error(data: ErrorData) -> CallError:
    """What a caller in the hub is told of a Response with error data. What is no error code is a 500."""
    code = data.code if 400 <= data.code <= 599 else HANDLER_FAILED.code
    return CallError(code, data.tag, data.user_message, data.retry_after)


def refusal(failure: Failure) -> CallError:
    """One of the table's failures in the hub's words."""
    return CallError(failure.code, failure.tag, failure.user_message, failure.retry_after)


def _told(failure: Failure, retry_after: int) -> ErrorData:
    return ErrorData(failure.code, failure.tag, failure.user_message, retry_after or failure.retry_after)
