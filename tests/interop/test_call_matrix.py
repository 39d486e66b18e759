"""Calls among UMQ, sABC and RPC over MQTT, in all nine directions, through a real hub."""

import asyncio
from collections.abc import Iterator

import pytest

import polywire
from polywire.client.transport import Opening
from polywire.protocols.mqttrpc import ErrorData, Request, Response
from polywire.protocols.sabc import Error
from polywire.protocols.umq import CallException
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
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
BARE = {
    ("umq", "umq"): ("", "the seat is taken"),
    ("umq", "sabc"): ("500", "the seat is taken"),
    ("umq", "mqtt"): ("500", "handler-failed: Something went wrong."),
    ("sabc", "umq"): ("409", "the seat is taken"),
    ("sabc", "sabc"): ("409", "the seat is taken"),
    ("sabc", "mqtt"): ("409", ": the seat is taken"),
    ("mqtt", "umq"): ("409", "the seat is taken"),
    ("mqtt", "sabc"): ("409", "the seat is taken"),
    ("mqtt", "mqtt"): ("409", ": the seat is taken"),
}
"""By provider and caller: what the caller gets of the provider's error 409 without a tag."""

UNIFIED = ["umq", "sabc", "sabc_ws", "mqtt", "mqtt_ws"]
HUB_ERROR = "polywire.hub"


def turned(method: str, body: bytes) -> bytes:
    return method.encode() + body[::-1]


def refuse(*_: object) -> bytes:
    raise FailureError(409, "", "the seat is taken")


def miss(*_: object) -> bytes:
    raise FailureError(404, "no-item", "No item 7 here.", 3000)


def pretend(*_: object) -> bytes:
    raise FailureError(404, "no-service", "nobody offers the service")


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
def test_an_error_without_a_tag_arrives_with_the_code_and_text_it_has(
    hub: HubProcess, name: str, caller: str, provider: str
) -> None:
    with speak(provider, hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Sit", b"here")
        service.answer(refuse)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        assert (told.value.code, told.value.text) == BARE[provider, caller]
        # Neither of them is the worse for it.
        ticket = client.begin_call(name, "Turn", b"ab")
        service.answer(turned)
        assert client.end_call(ticket) == b"Turnba"


def check_service_error(caller: str, error: RefusedError, code: int, tag: str, text: str, retry_after: int) -> None:
    """What a caller gets of a service's error, as its protocol has it."""
    frame = error.frame
    if caller == "umq":
        wait = f" (retry after {retry_after} ms)" if retry_after else ""
        assert isinstance(frame, CallException)
        assert frame.payload == f"{code} {tag}{wait}: {text}"
    elif caller.startswith("sabc"):
        wanted = [("error-tag", tag), ("retry-after", str(retry_after)), ("error-source", "service")]
        assert isinstance(frame, Error)
        assert (frame.error_code, frame.body) == (str(code), text.encode())
        assert list(frame.headers) == [pair for pair in wanted if pair[1] != "0"]
    else:
        assert isinstance(frame, Response)
        assert frame.error_data == ErrorData(code, tag, text, retry_after)
        assert (frame.type_url, frame.value) == ("", None)


def check_hub_error(caller: str, error: RefusedError, umq: str, code: int, tag: str, retry_after: int = 0) -> None:
    """What a caller gets of an error of the hub itself; ``umq`` is how the text begins on UMQ."""
    frame = error.frame
    if caller == "umq":
        wait = f" (retry after {retry_after} ms)" if retry_after else ""
        assert isinstance(frame, CallException)
        full = f"{umq}: {code} {tag}{wait}: "
        assert frame.payload == umq if tag == "no-service" else frame.payload.startswith(full)
    elif caller.startswith("sabc"):
        wanted = [("error-tag", tag), ("retry-after", str(retry_after))]
        assert isinstance(frame, Error)
        assert frame.error_code == str(code)
        assert list(frame.headers) == [pair for pair in wanted if pair[1] != "0"]
    else:
        assert isinstance(frame, Response)
        data = frame.error_data
        assert data is not None
        assert (data.code, data.tag, data.retry_after) == (code, tag, retry_after)
        assert (frame.type_url, frame.value) == (HUB_ERROR, b"")


@pytest.mark.parametrize("provider", CALLERS)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("UMQ-161", "SABC-138", "MQTTRPC-109")
def test_a_services_error_keeps_its_code_tag_text_and_time(
    hub: HubProcess, name: str, caller: str, provider: str
) -> None:
    with speak(provider, hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Find", b"7")
        service.answer(miss)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        check_service_error(caller, told.value, 404, "no-item", "No item 7 here.", 3000)


@pytest.mark.parametrize("provider", UNIFIED)
@pytest.mark.parametrize("caller", UNIFIED)
@pytest.mark.rule("UMQ-161", "SABC-138", "MQTTRPC-109")
def test_our_clients_raise_a_services_error_with_all_its_parts(
    hub: HubProcess, name: str, caller: str, provider: str
) -> None:
    def find(request: polywire.Request) -> bytes:
        if request.method == "Find":
            raise polywire.CallFailed(404, "no-item", "No item 7 here.", retry_after=3)
        if request.method == "Close":
            raise polywire.CallFailed(503, "closed", "Opens: at noon.")
        if request.method == "Pretend":
            raise polywire.CallFailed(404, "no-service", "")
        raise ValueError("internal")

    async def failure(bus: polywire.Bus, method: str) -> tuple[int, str, str, float | None, bool]:
        with pytest.raises(polywire.CallFailed) as raised:
            await bus.call(name, method)
        error = raised.value
        return error.code, error.tag, error.text, error.retry_after, error.from_hub

    async def main() -> None:
        async with _opened(hub, provider) as serving, _opened(hub, caller) as calling:
            await serving.serve(name, find)
            assert await failure(calling, "Find") == (404, "no-item", "No item 7 here.", 3.0, False)
            assert await failure(calling, "Close") == (503, "closed", "Opens: at noon.", None, False)
            assert await failure(calling, "Pretend") == (404, "no-service", "", None, False)
            broken = await failure(calling, "Break")
            assert (broken[:2], broken[4]) == ((500, "handler-failed"), False)
            assert "internal" not in broken[2]

    run(main)


def _opened(hub: HubProcess, listener: str) -> Opening[polywire.Bus]:
    return polywire.connect(hub.addresses[listener], protocol=listener.partition("_")[0])


@pytest.mark.parametrize("provider", ["umq", "sabc"])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("UMQ-162", "SABC-139", "MQTTRPC-110")
def test_a_service_can_not_pass_for_the_hub(hub: HubProcess, name: str, caller: str, provider: str) -> None:
    with speak(provider, hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Find", b"7")
        service.answer(pretend)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        check_service_error(caller, told.value, 404, "no-service", "nobody offers the service", 0)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("sent", "code", "tag", "text"),
    [
        ("6 No RPC server here: 404 no-service: nobody offers it", 404, "no-service", "nobody offers it"),
        ("8 Temporarily unavailable: not now", 503, "unavailable", "not now"),
        ("2 Callback not found", 404, "no-callback", "Callback not found"),
        ("12 Forbidden: not you", 403, "forbidden", "not you"),
    ],
)
@pytest.mark.rule("UMQ-162")
def test_the_error_of_a_providers_runtime_is_not_taken_for_the_hubs(
    hub: HubProcess, name: str, caller: str, sent: str, code: int, tag: str, text: str
) -> None:
    def say(*_: object) -> bytes:
        raise FailureError(0, "", sent)

    with speak("umq", hub.addresses) as service, speak(caller, hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Find", b"7")
        service.answer(say)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        check_service_error(caller, told.value, code, tag, text, 0)


@pytest.mark.parametrize("text", ["7 items are left", "I'm teapot", "404 bananas", "418", " ", "9"])
@pytest.mark.rule("UMQ-161")
def test_a_text_of_a_umq_service_reaches_umq_callers_word_for_word(hub: HubProcess, name: str, text: str) -> None:
    def say(*_: object) -> bytes:
        raise FailureError(0, "", text)

    with speak("umq", hub.addresses) as service, speak("umq", hub.addresses) as client:
        service.serve(name)
        ticket = client.begin_call(name, "Brew", b"")
        service.answer(say)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        assert isinstance(told.value.frame, CallException)
        assert told.value.frame.payload == text


@pytest.mark.parametrize("caller", ["umq", "sabc", "sabc-ws"])
@pytest.mark.rule("UMQ-162", "SABC-139")
def test_the_hub_says_that_nobody_offers_a_service(hub: HubProcess, name: str, caller: str) -> None:
    with speak(caller, hub.addresses) as client:
        with pytest.raises(RefusedError) as told:
            client.call(name, "Find", b"")
        check_hub_error(caller, told.value, "6 No RPC server here", 404, "no-service")


@pytest.mark.parametrize("provider", ["umq", "sabc"])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("UMQ-162", "SABC-139", "MQTTRPC-110")
def test_the_hub_says_that_the_provider_has_gone(hub: HubProcess, name: str, caller: str, provider: str) -> None:
    with speak(caller, hub.addresses) as client:
        with speak(provider, hub.addresses) as service:
            service.serve(name)
            ticket = client.begin_call(name, "Find", b"")
            with pytest.raises(LeavingError):
                service.answer(leave)
        with pytest.raises(RefusedError) as told:
            client.end_call(ticket)
        check_hub_error(caller, told.value, "8 Temporarily unavailable", 503, "provider-gone", 1)


@pytest.fixture(scope="module")
def strict() -> Iterator[HubProcess]:
    """A hub whose calls may take a tenth of a second."""
    with running_hub("limits.call_time=0.1") as process:
        yield process


@pytest.mark.parametrize("provider", ["umq", "sabc"])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("UMQ-162", "SABC-139", "MQTTRPC-110")
def test_the_hub_says_that_a_call_took_too_long(strict: HubProcess, name: str, caller: str, provider: str) -> None:
    with speak(provider, strict.addresses) as service, speak(caller, strict.addresses) as client:
        service.serve(name)
        with pytest.raises(RefusedError) as told:
            client.call(name, "Find", b"")
        check_hub_error(caller, told.value, "8 Temporarily unavailable", 504, "timeout")


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.rule("UMQ-148", "UMQ-162", "SABC-139", "MQTTRPC-110")
def test_the_hub_says_that_a_provider_is_overloaded(name: str, caller: str) -> None:
    with (
        running_hub("limits.in_flight=2") as hub,
        speak("umq", hub.addresses) as service,
        speak("sabc", hub.addresses) as first,
        speak(caller, hub.addresses) as client,
    ):
        service.serve(name)
        tickets = [first.begin_call(name, "Turn", b"ab") for _ in range(2)]
        while hub.metric("polywire_calls_under_way") < 2:
            pass
        with pytest.raises(RefusedError) as told:
            client.call(name, "Find", b"")
        check_hub_error(caller, told.value, "8 Temporarily unavailable", 429, "overloaded", 1000)
        for ticket in tickets:
            service.answer(turned)
            assert first.end_call(ticket) == b"Turnba"


@pytest.mark.parametrize("caller", UNIFIED)
@pytest.mark.rule("UMQ-162", "SABC-139", "MQTTRPC-110")
def test_our_clients_tell_the_hubs_errors_from_a_services(hub: HubProcess, name: str, caller: str) -> None:
    async def main() -> None:
        async with _opened(hub, caller) as bus:
            with speak("umq", hub.addresses) as service:
                service.serve(name)
                call = asyncio.create_task(bus.call(name, "Wait"))
                with pytest.raises(LeavingError):
                    await asyncio.to_thread(service.answer, leave)
            with pytest.raises(polywire.CallFailed) as gone:
                await call
            assert (gone.value.code, gone.value.tag, gone.value.retry_after) == (503, "provider-gone", 0.001)
            assert gone.value.from_hub
            if not caller.startswith("mqtt"):  # where nobody says so
                with pytest.raises(polywire.CallFailed) as nobody:
                    await bus.call(name, "Find")
                assert (nobody.value.code, nobody.value.tag, nobody.value.from_hub) == (404, "no-service", True)

    run(main)


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
