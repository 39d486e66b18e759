"""Why a call failed, between the hub's words and those of RPC over MQTT."""

from typing import Final

from polywire.hub.services import HIGHEST_CODE, LOWEST_CODE, CallError, service_error
from polywire.protocols.mqttrpc.errors import FAILURES, HANDLER_FAILED, HUB_ERROR, Failure
from polywire.protocols.mqttrpc.frames import MAX_UINT32, ErrorData, Response

UNAVAILABLE: Final = "Not available, please try again."


def error_data(error: CallError) -> ErrorData:
    """The error data for a caller on MQTT.

    MQTTRPC-109: a service's error keeps its code, tag, text and time. MQTTRPC-49: the text of one from 500 on that has
    no tag could reveal internals (MQTTRPC-66), and is replaced. The hub's own errors have the table's text.
    """
    code = error.code if LOWEST_CODE <= error.code <= HIGHEST_CODE else HANDLER_FAILED.code
    retry_after = min(max(error.retry_after, 0), MAX_UINT32)
    if not error.from_hub and error.tag != HANDLER_FAILED.tag and (error.tag or code < HANDLER_FAILED.code):
        return ErrorData(code, error.tag, error.text, retry_after)
    if code == HANDLER_FAILED.code:
        return ErrorData(code, HANDLER_FAILED.tag, HANDLER_FAILED.user_message, retry_after)
    if error.from_hub:
        for failure in FAILURES:
            if failure.code == code and failure.tag == error.tag:
                return ErrorData(code, failure.tag, failure.user_message, retry_after or failure.retry_after)
        if code < HANDLER_FAILED.code:
            return ErrorData(code, error.tag, error.text, retry_after)
    return ErrorData(code, error.tag, UNAVAILABLE if code == 503 else HANDLER_FAILED.user_message, retry_after)


def failed_call(correlation_id: int, error: CallError) -> Response:
    """The Response that ends a call of a caller on MQTT."""
    data = error_data(error)
    return hub_response(correlation_id, data) if error.from_hub else Response(correlation_id, "", None, data, True)


def hub_response(correlation_id: int, data: ErrorData) -> Response:
    """MQTTRPC-110: a Response with an error of the hub itself; its body tells that from a service's."""
    return Response(correlation_id, HUB_ERROR, b"", data, True)


def refused(correlation_id: int, failure: Failure) -> Response:
    """The Response to a Request that the hub refuses."""
    return hub_response(correlation_id, ErrorData(failure.code, failure.tag, failure.user_message, failure.retry_after))


def call_error(data: ErrorData) -> CallError:
    """The error of a service on MQTT, for a caller in the hub."""
    return service_error(data.code, data.tag, data.user_message, data.retry_after)


def refusal(failure: Failure) -> CallError:
    """One of the table's failures in the hub's words."""
    return CallError(failure.code, failure.tag, failure.user_message, failure.retry_after)
