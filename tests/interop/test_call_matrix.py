"""Calls among UMQ, sABC and RPC over MQTT, in all nine directions, through a real hub."""

import pytest

from polywire.protocols.mqttrpc import Request
from tests.hub_process import HubProcess
from tests.interop.mqtt_speaker import Mqtt
from tests.interop.speaker import FailureError, RefusedError
from tests.interop.speakers import CALLING, speak
from tests.interop.umq_speaker import Umq

CALLERS = [*CALLING, "mqtt-ws", "sabc-ws"]
BODIES = {
    "text": b"hello",
    "utf-8": "größer".encode(),
    "binary": bytes(range(256)),
    "large": bytes(100_000),
    "empty": b"",
}
ERRORS = {
    ("umq", "umq"): ("", "the seat is taken"),
    ("umq", "sabc"): ("500", "the seat is taken"),
    ("umq", "mqtt"): ("500", "handler-failed: Something went wrong."),
    ("sabc", "umq"): ("", "the seat is taken"),
    ("sabc", "sabc"): ("409", "the seat is taken"),
    ("sabc", "mqtt"): ("409", "provider: the seat is taken"),
    ("mqtt", "umq"): ("", "the seat is taken"),
    ("mqtt", "sabc"): ("409", "the seat is taken"),
    ("mqtt", "mqtt"): ("409", "taken: the seat is taken"),
}
"""By provider and caller: what the caller is told of the provider's error 409."""


def turned(method: str, body: bytes) -> bytes:
    return method.encode() + body[::-1]


def refuse(*_: object) -> bytes:
    raise FailureError(409, "taken", "the seat is taken")


class LeavingError(Exception):
    """The provider has got the call, and is about to go."""


def leave(*_: object) -> bytes:
    raise LeavingError


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("provider", CALLERS)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("MQTTRPC-44", "MQTTRPC-45", "MQTTRPC-47", "MQTTRPC-48")
def test_a_call_and_its_reply_cross_whole(hub: HubProcess, name: str, caller: str, provider: str, body: bytes) -> None:
    with speak(provider, hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Turn", body)
        service.answer(turned)
        assert client.end_call(ticket) == b"Turn" + body[::-1]


@pytest.mark.parametrize("provider", CALLING)
@pytest.mark.parametrize("caller", CALLING)
@pytest.mark.rule("MQTTRPC-49")
def test_a_providers_error_reaches_the_caller_in_its_own_protocols_words(
    hub: HubProcess, name: str, caller: str, provider: str
) -> None:
    with speak(provider, hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Sit", b"here")
        service.answer(refuse)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        assert (told.value.code, told.value.text) == ERRORS[provider, caller]
        # Neither of them is the worse for it.
        ticket = client.begin_call(name, "Turn", b"ab")
        service.answer(turned)
        assert client.end_call(ticket) == b"Turnba"


@pytest.mark.parametrize(("caller", "code"), [("umq", "6"), ("sabc", "404")])
@pytest.mark.rule("MQTTRPC-46")
def test_a_call_to_a_service_nobody_offers_fails_at_once(hub: HubProcess, name: str, caller: str, code: str) -> None:
    with speak(caller, hub.addresses) as client:
        with pytest.raises(RefusedError) as told:
            client.call(name, "Turn", b"")
        assert told.value.code == code


def test_a_request_on_mqtt_that_nobody_serves_is_left_to_the_callers_deadline(hub: HubProcess, name: str) -> None:
    with speak("mqtt", hub.addresses) as client:
        client.begin_call(name, "Turn", b"")
        client.publish(f"/{name}", b"behind it")
        client.receive()  # its own Request
        assert client.receive().body == b"behind it"


@pytest.mark.parametrize(
    ("caller", "provider", "code"),
    [
        (caller, provider, code)
        for caller, code in (("umq", "8"), ("sabc", "503"), ("mqtt", "503"))
        for provider in CALLING
        if not caller == provider == "mqtt"  # between MQTT clients the hub only passes messages on
    ],
)
@pytest.mark.rule("MQTTRPC-102")
def test_a_call_fails_when_its_provider_goes_away(
    hub: HubProcess, name: str, caller: str, provider: str, code: str
) -> None:
    with speak(caller, hub.addresses) as client:
        with speak(provider, hub.addresses) as service:
            service.serve(name)
            ticket = client.begin_call(name, "Turn", b"")
            with pytest.raises(LeavingError):
                service.answer(leave)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        assert told.value.code == code


@pytest.mark.rule("MQTTRPC-55")
def test_umq_gets_every_response_of_a_streaming_service_on_mqtt(hub: HubProcess, name: str) -> None:
    values = [b"one", b"two", bytes(range(256))]
    with speak("mqtt", hub.addresses) as service, speak("umq", hub.addresses) as client:
        assert isinstance(service, Mqtt)
        assert isinstance(client, Umq)
        service.serve(name)
        ticket = client.begin_stream(name, "Count", b"3")
        service.answer_stream(values)
        assert client.end_stream(ticket) == values


@pytest.mark.parametrize("provider", ["umq", "sabc"])
def test_a_stream_of_a_service_that_has_none_is_its_one_reply(hub: HubProcess, name: str, provider: str) -> None:
    with speak(provider, hub.addresses) as service, speak("umq", hub.addresses) as client:
        assert isinstance(client, Umq)
        service.serve(name)
        ticket = client.begin_stream(name, "Turn", b"ab")
        service.answer(turned)
        assert client.end_stream(ticket) == [b"Turnba"]


@pytest.mark.parametrize("provider", CALLING)
def test_a_stream_that_fails_ends_with_the_error(hub: HubProcess, name: str, provider: str) -> None:
    with speak(provider, hub.addresses) as service, speak("umq", hub.addresses) as client:
        assert isinstance(client, Umq)
        service.serve(name)
        ticket = client.begin_stream(name, "Sit", b"")
        service.answer(refuse)
        with pytest.raises(RefusedError, match="the seat is taken"):
            client.end_stream(ticket)


@pytest.mark.parametrize("caller", ["umq", "sabc"])
def test_a_caller_that_takes_no_stream_gets_its_first_response(hub: HubProcess, name: str, caller: str) -> None:
    with speak("mqtt", hub.addresses) as service, speak(caller, hub.addresses) as client:
        assert isinstance(service, Mqtt)
        service.serve(name)
        ticket = client.begin_call(name, "Count", b"2")
        service.answer_stream([b"one", b"two"])
        assert client.end_call(ticket) == b"one"


@pytest.mark.parametrize("provider", ["umq", "sabc"])
@pytest.mark.rule("MQTTRPC-101")
def test_a_stream_of_requests_is_refused_where_the_service_can_not_take_it(
    hub: HubProcess, name: str, provider: str
) -> None:
    with speak(provider, hub.addresses) as service, speak("mqtt", hub.addresses) as client:
        assert isinstance(client, Mqtt)
        service.serve(name)
        ticket = client.begin_call(name, "Add", b"1")
        client.request(f"/{name}", Request(ticket[1], "Add", b"2"))
        with pytest.raises(RefusedError, match="bad-request") as told:
            client.end_call(ticket)
        assert told.value.code == "400"
