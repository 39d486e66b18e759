"""Calls from UMQ and sABC to services on MQTT topics."""

import logging

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Message
from polywire.hub.services import CallError, service_error
from polywire.protocols.mqttrpc.delivery import SERVICES_REMEMBERED, UNKNOWN, TopicProvider
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response, TimeoutUnit
from polywire.wire.frame import Frame
from tests.protocols.mqttrpc.parties import BridgedSite, MqttClient, SessionCaller, SessionProvider


@pytest.fixture
def site() -> BridgedSite:
    return BridgedSite()


def shout(request: Request) -> list[Frame]:
    return [Response(request.correlation_id, "", (request.value or b"").upper())]


@pytest.mark.rule("MQTTRPC-44")
def test_a_provider_of_another_protocol_comes_before_the_subscribers_of_the_topic(site: BridgedSite) -> None:
    provider = SessionProvider(site, "svc", lambda _, body: b"from the provider " + body)
    server = MqttClient(site, "/svc", serving=shout)
    caller = SessionCaller(site)
    caller.call("svc")
    assert caller.heard == [(b"from the provider ?", True)]
    assert (provider.asked, server.heard) == ([("Say", b"?")], [])


@pytest.mark.rule("MQTTRPC-45")
def test_a_call_goes_as_a_request_to_the_subscribers_of_the_topic(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", "Say", b"\x00\xffbody", seconds=2.5)
    (request,) = server.requests()
    expected = Request(
        request.correlation_id, "Say", b"\x00\xffbody", eos=True, timeout=2500, timeout_unit=TimeoutUnit.MILLISECOND
    )
    assert request == expected
    assert server.payloads[0][0] == "/svc"
    server.publish("/svc", Response(request.correlation_id, "", b"\xfe"))
    assert caller.heard == [(b"\xfe", True)]
    assert site.settled()
    assert all(alarm.cancelled for alarm in site.clock.alarms)


@pytest.mark.rule("MQTTRPC-45")
def test_the_first_response_is_the_answer_and_the_second_is_discarded(site: BridgedSite) -> None:
    one, two = MqttClient(site, "/svc", serving=shout), MqttClient(site, "/svc", serving=shout)
    caller = SessionCaller(site)
    caller.call("svc", body=b"a")
    assert caller.heard == [(b"A", True)]
    assert (len(one.requests()), len(two.requests())) == (1, 1)
    assert site.counters("mqttrpc") == {UNKNOWN: 1}


@pytest.mark.rule("MQTTRPC-46")
def test_with_neither_provider_nor_subscriber_a_call_fails_at_once(site: BridgedSite) -> None:
    MqttClient(site, "/other", "svc")
    caller = SessionCaller(site)
    for service in ["svc", "a/b", "a+", "#", "", "\0", "\ud800", "x" * 70_000]:
        caller.call(service)
    assert [(error.code, error.tag) for error in caller.heard if isinstance(error, CallError)] == [
        (404, "no-service")
    ] * 8
    assert site.settled()


def test_the_error_of_a_service_is_the_callers(site: BridgedSite) -> None:
    data = ErrorData(409, "taken", "That name is taken.", 250)
    MqttClient(site, "/svc", serving=lambda request: [Response(request.correlation_id, "", b"more", data)])
    caller = SessionCaller(site)
    caller.call("svc")
    assert caller.heard == [service_error(409, "taken", "That name is taken.", 250)]
    assert site.settled()


@pytest.mark.parametrize("code", [0, 200, 399, 600, 4_294_967_295])
def test_error_data_without_an_error_code_is_a_failure_all_the_same(site: BridgedSite, code: int) -> None:
    MqttClient(site, "/svc", serving=lambda request: [Response(request.correlation_id, "", b"", ErrorData(code))])
    caller = SessionCaller(site)
    caller.call("svc")
    assert caller.heard == [service_error(500, "", "")]


@pytest.mark.rule("MQTTRPC-55")
def test_a_caller_that_takes_a_stream_gets_each_response_until_eos(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", streamed=True)
    number = server.requests()[0].correlation_id
    server.publish("/svc", Response(number, "", b"1"))
    server.publish("/svc", Response(number, "", b""))
    server.publish("/svc", Response(number, "", b"3", None, eos=True))
    assert caller.heard == [(b"1", False), (b"", False), (b"3", True)]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-53", "MQTTRPC-55")
@pytest.mark.parametrize(("value", "heard"), [(None, "end"), (b"", (b"", True))], ids=["no body", "empty body"])
def test_only_a_response_without_a_body_merely_ends_the_stream(
    site: BridgedSite, value: bytes | None, heard: object
) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", streamed=True)
    number = server.requests()[0].correlation_id
    server.publish("/svc", Response(number, "", b"1"))
    server.publish("/svc", Response(number, "", value, None, eos=True))
    assert caller.heard == [(b"1", False), heard]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-55")
def test_a_caller_that_takes_no_stream_gets_the_first_response_of_one(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc")
    number = server.requests()[0].correlation_id
    server.publish("/svc", Response(number, "", b"1"))
    server.publish("/svc", Response(number, "", b"2", None, eos=True))
    assert caller.heard == [(b"1", True)]
    assert site.settled()


def test_an_error_ends_a_stream(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", streamed=True)
    number = server.requests()[0].correlation_id
    server.publish("/svc", Response(number, "", b"1"))
    server.publish("/svc", Response(number, "", b"", ErrorData(500, "handler-failed", "Oh.")))
    assert caller.heard == [(b"1", False), service_error(500, "handler-failed", "Oh.")]
    assert site.settled()


def test_requests_may_be_a_stream_too(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    services = site.hub.services
    call = caller.call("svc", streamed=True)
    services.cancel(call, CallError(499, "", ""))
    call = type(call)(caller, "svc", "Chat", streamed=True)
    services.start(call, Message("", b"1"), last=False)
    services.more(call, Message("", b"2"), last=True)
    services.more(call, Message("", b"behind the end"), last=True)
    sent = [(request.type_url, request.value, request.eos) for request in server.requests()]
    assert sent == [("Say", b"?", True), ("Chat", b"1", False), ("Chat", b"2", True)]
    assert len({request.correlation_id for request in server.requests()}) == 2


def test_a_deadline_ends_the_call_and_a_late_response_is_unknown(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", seconds=2)
    site.clock.advance(2)
    assert [error.code for error in caller.heard if isinstance(error, CallError)] == [504]
    assert site.settled()
    server.publish("/svc", Response(server.requests()[0].correlation_id, "", b"late"))
    assert len(caller.heard) == 1
    assert site.counters("mqttrpc") == {UNKNOWN: 1}


def test_a_caller_that_goes_away_is_waited_for_no_more(site: BridgedSite) -> None:
    MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc")
    site.hub.services.end_one(caller)
    assert (site.settled(), caller.heard) == (True, [])


@pytest.mark.rule("MQTTRPC-102")
@pytest.mark.parametrize("monitor", ["/unconcerned", "/+", "#"])
def test_a_call_fails_when_the_last_subscriber_of_its_topic_leaves(site: BridgedSite, monitor: str) -> None:
    server, other = MqttClient(site, "/svc"), MqttClient(site, "/svc")
    MqttClient(site, monitor)
    MqttClient(site, "/unconcerned")
    caller = SessionCaller(site)
    caller.call("svc")
    other.leave()
    assert caller.heard == []
    server.leave()
    assert [(error.code, error.tag) for error in caller.heard if isinstance(error, CallError)] == [
        (503, "provider-gone")
    ]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-102")
@pytest.mark.parametrize("leaving", ["/svc", "#", "/+"])
def test_a_call_goes_on_while_somebody_subscribes_to_its_topic(site: BridgedSite, leaving: str) -> None:
    first, second = MqttClient(site, leaving), MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc")
    first.leave()
    assert caller.heard == []
    second.publish("/svc", Response(second.requests()[0].correlation_id, "", b"still here"))
    assert caller.heard == [(b"still here", True)]


def test_who_listens_to_everything_is_no_service(site: BridgedSite) -> None:
    monitor, caller = MqttClient(site, "#", "/+"), SessionCaller(site)
    caller.call("svc")
    assert [(error.code, error.tag) for error in caller.heard if isinstance(error, CallError)] == [(404, "no-service")]
    assert monitor.requests() == []


@pytest.mark.rule("MQTTRPC-15")
def test_unknown_correlation_ids_are_counted_and_warned_of_now_and_then(
    site: BridgedSite, caplog: pytest.LogCaptureFixture
) -> None:
    server = MqttClient(site, "/svc", serving=shout)
    SessionCaller(site).call("svc")
    with caplog.at_level(logging.WARNING, "polywire.mqttrpc"):
        for number in range(1, 1001):
            server.publish("/svc", Response(number, "", b"x"))
        assert [record.args for record in caplog.records] == [(1, 1, "/svc")]
        site.clock.advance(60)
        server.publish("/svc", Response(7, "", b"x"))
    assert [record.args for record in caplog.records] == [(1, 1, "/svc"), (1000, 7, "/svc")]
    assert site.counters("mqttrpc") == {UNKNOWN: 1001}


@pytest.mark.rule("MQTTRPC-97")
def test_a_response_on_another_services_topic_answers_nothing(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc", "/other")
    caller = SessionCaller(site)
    caller.call("svc")
    caller.call("other")
    server.publish("/other", Response(server.requests()[0].correlation_id, "", b"forged"))
    assert caller.heard == []
    assert site.counters("mqttrpc") == {UNKNOWN: 1}


@pytest.mark.rule("MQTTRPC-97")
def test_a_response_counts_only_from_a_client_that_may_serve() -> None:
    rules = AccessRules(
        [
            AccessRule(["publish", "subscribe"], ["**"]),
            AccessRule(["serve"], ["svc"], user="server"),
        ]
    )
    site = BridgedSite(rules=rules)
    server, stranger = MqttClient(site, "/svc", user="server"), MqttClient(site, "/svc", user="stranger")
    caller = SessionCaller(site)
    caller.call("svc")
    number = server.requests()[0].correlation_id
    stranger.publish("/svc", Response(number, "", b"forged"))
    assert caller.heard == []
    assert site.counters("mqtt") == {"forbidden": 1}
    server.publish("/svc", Response(number, "", b"right"))
    assert caller.heard == [(b"right", True)]


@pytest.mark.parametrize("method", ["", "say hello", "a/", "größe", "//Say"])
def test_what_names_no_method_reaches_no_topic(site: BridgedSite, method: str) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", method)
    assert [(error.code, error.tag) for error in caller.heard if isinstance(error, CallError)] == [(404, "no-method")]
    assert (server.heard, site.settled()) == ([], True)


def test_calls_in_flight_are_bounded(site: BridgedSite) -> None:
    provider = TopicProvider(site.hub, site.bridge._publisher, max_calls=2)
    site.hub.services.elsewhere = lambda _: provider
    MqttClient(site, "/svc")
    caller = SessionCaller(site)
    for _ in range(3):
        caller.call("svc")
    assert [(error.code, error.retry_after) for error in caller.heard if isinstance(error, CallError)] == [(429, 1000)]


def test_the_services_listened_to_are_bounded(site: BridgedSite) -> None:
    MqttClient(site, *[f"/svc{number}" for number in range(SERVICES_REMEMBERED + 10)], serving=shout)
    caller = SessionCaller(site)
    for number in range(SERVICES_REMEMBERED + 10):
        caller.call(f"svc{number}")
    assert len(site.bridge._outgoing._lately) == SERVICES_REMEMBERED
    assert not site.bridge._outgoing.knows("svc9")
    assert site.bridge._outgoing.knows("svc10")
    assert site.settled()


@pytest.mark.rule("MQTTRPC-100")
def test_a_draining_hub_takes_no_new_call_and_finishes_those_under_way(site: BridgedSite) -> None:
    server = MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc")
    site.hub.services.draining = True
    site.bridge.drain()
    caller.call("svc")
    server.publish("/svc", Response(server.requests()[0].correlation_id, "", b"done"))
    assert caller.heard == [CallError(503, "draining", "the hub is shutting down", 1000), (b"done", True)]


def test_a_request_that_mqtt_cannot_carry_is_too_large(site: BridgedSite) -> None:
    MqttClient(site, "/svc")
    caller = SessionCaller(site)
    caller.call("svc", body=bytes(268_435_456))
    assert [(error.code, error.tag) for error in caller.heard if isinstance(error, CallError)] == [(413, "too-large")]
    assert site.settled()
