"""Calls among UMQ, sABC and RPC over MQTT in all nine directions, with stand-ins for the sessions."""

from collections.abc import Callable

import pytest

from polywire.hub.services import CallError
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response
from polywire.wire.frame import Frame
from tests.protocols.mqttrpc.parties import BridgedSite, MqttClient, SessionCaller, SessionProvider

PROTOCOLS = ["umq", "sabc", "mqttrpc"]
BODIES = [b"", b"text", "größe".encode(), bytes(range(256)), bytes(100_000)]

Answer = Callable[[str, bytes], bytes | CallError]


def serve(site: BridgedSite, protocol: str, answer: Answer) -> None:
    if protocol != "mqttrpc":
        SessionProvider(site, "svc", answer)
        return

    def respond(request: Request) -> list[Frame]:
        outcome = answer(request.type_url, request.value or b"")
        if isinstance(outcome, bytes):
            return [Response(request.correlation_id, "", outcome)]
        data = ErrorData(outcome.code, outcome.tag, outcome.text, outcome.retry_after)
        return [Response(request.correlation_id, "", b"", data)]

    MqttClient(site, "/svc", serving=respond)


def call(site: BridgedSite, protocol: str, method: str, body: bytes) -> bytes | tuple[int, str, int]:
    """The reply, or the error's code, tag and time to wait."""
    if protocol != "mqttrpc":
        caller = SessionCaller(site)
        caller.call("svc", method, body)
        (heard,) = caller.heard
        if isinstance(heard, CallError):
            return heard.code, heard.tag, heard.retry_after
        assert isinstance(heard, tuple)
        assert heard[1]
        return bytes(heard[0])
    client = MqttClient(site, "/svc")
    client.publish("/svc", Request(7, method, body))
    (response,) = client.responses()
    data = response.error_data
    return response.value or b"" if data is None else (data.code, data.tag, data.retry_after)


@pytest.mark.parametrize("body", BODIES, ids=["empty", "text", "utf-8", "binary", "large"])
@pytest.mark.parametrize("server", PROTOCOLS)
@pytest.mark.parametrize("caller", PROTOCOLS)
def test_a_call_and_its_reply_cross_whole(caller: str, server: str, body: bytes) -> None:
    site = BridgedSite()
    serve(site, server, lambda method, asked: method.encode() + asked[::-1])
    assert call(site, caller, "Turn", body) == b"Turn" + body[::-1]
    assert site.settled()


@pytest.mark.parametrize(
    "error",
    [
        CallError(404, "no-method", "no such method"),
        CallError(409, "taken", "taken", 20),
        CallError(429, "overloaded", "", 5),
    ],
    ids=lambda error: error.tag,
)
@pytest.mark.parametrize("server", PROTOCOLS)
@pytest.mark.parametrize("caller", PROTOCOLS)
def test_an_error_crosses_with_its_code_tag_and_time_to_wait(caller: str, server: str, error: CallError) -> None:
    site = BridgedSite()
    serve(site, server, lambda *_: error)
    assert call(site, caller, "Try", b"") == (error.code, error.tag, error.retry_after)
    assert site.settled()
