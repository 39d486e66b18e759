"""Requests on MQTT topics to services that UMQ or sABC provide."""

import pytest

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Message
from polywire.hub.peer import Limits, Refused
from polywire.hub.services import Call, CallError, service_error
from polywire.protocols.mqttrpc.delivery import error_data
from polywire.protocols.mqttrpc.errors import FAILURES, Failure
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response, TimeoutUnit, encode
from polywire.protocols.mqttrpc.session import ONE_REQUEST, STREAMS_REMEMBERED, TopicRequests
from polywire.wire.frame import Frame
from tests.journal.recording import Recording
from tests.protocols.mqttrpc.parties import BridgedSite, MqttClient, SessionCaller, SessionProvider


@pytest.fixture
def site() -> BridgedSite:
    return BridgedSite()


def shout(_method: str, body: bytes) -> bytes:
    return body.upper()


@pytest.mark.rule("MQTTRPC-47")
def test_a_request_reaches_the_subscribers_of_its_topic_as_any_message_does(site: BridgedSite) -> None:
    caller, server, listener = MqttClient(site, "/svc"), MqttClient(site, "/svc"), MqttClient(site, "#")
    SessionProvider(site, "svc")
    request = Request(7, "Say", b"\xff")
    assert caller.publish("/svc", request) is None
    for client in [caller, server, listener]:
        assert client.payloads == [("/svc", encode(request))]


@pytest.mark.rule("MQTTRPC-48")
def test_a_request_reaches_the_provider_whose_answer_is_published_on_the_topic(site: BridgedSite) -> None:
    caller, listener = MqttClient(site, "/svc"), MqttClient(site, "#")
    provider = SessionProvider(site, "svc", shout)
    caller.publish("/svc", Request(7, "/pkg.Svc/Say", b"\xffabc"))
    assert provider.asked == [("Say", b"\xffabc")]
    message = provider.messages[0]
    assert (message.content_type, message.headers, message.origin) == ("", (), caller.client.number)
    assert caller.responses() == [Response(7, "", b"\xffABC", None, eos=True)]
    assert listener.payloads[1] == ("/svc", encode(Response(7, "", b"\xffABC", None, eos=True)))
    assert site.settled()


@pytest.mark.rule("MQTTRPC-48")
def test_the_providers_of_a_service_share_its_requests(site: BridgedSite) -> None:
    caller = MqttClient(site)
    providers = [SessionProvider(site, "svc", shout) for _ in range(2)]
    for number in range(1, 5):
        caller.publish("/svc", Request(number, "Say"))
    assert [len(provider.asked) for provider in providers] == [2, 2]


def test_a_request_nobody_here_serves_is_left_to_the_topic(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "other")
    caller.publish("/svc", Request(7, "Say"))
    assert (caller.responses(), site.settled()) == ([], True)


@pytest.mark.parametrize("topic", ["svc", "/svc/rq", "client/svc/rq", "//svc", "/svc/"])
def test_only_topics_of_one_level_are_service_topics(site: BridgedSite, topic: str) -> None:
    provider = SessionProvider(site, "svc")
    MqttClient(site).publish(topic, Request(7, "Say"))
    assert provider.asked == []


@pytest.mark.rule("MQTTRPC-49")
def test_an_error_from_umq_becomes_500_and_tells_no_internals(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", lambda *_: CallError(500, "umq", "KeyError at line 7 of secrets.py"))
    caller.publish("/svc", Request(7, "Say"))
    assert caller.error() == ErrorData(500, "handler-failed", "Something went wrong.")
    assert site.settled()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.tag)
def test_the_failures_of_the_table_keep_their_code_and_tag(site: BridgedSite, failure: Failure) -> None:
    code, tag, words, retry_after = failure
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", lambda *_: CallError(code, tag, "in other words"))
    caller.publish("/svc", Request(7, "Say"))
    assert caller.error() == ErrorData(code, tag, words, retry_after)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CallError(409, "taken", "That name is taken.", 5), ErrorData(409, "taken", "That name is taken.", 5)),
        (CallError(404, "no-service", ""), ErrorData(404, "no-service", "There is no such service.")),
        (service_error(404, "no-item", "No 7.", 3000), ErrorData(404, "no-item", "No 7.", 3000)),
        (service_error(404, "", "No 7."), ErrorData(404, "", "No 7.")),
        (service_error(404, "no-service", "Ours."), ErrorData(404, "no-service", "Ours.")),
        (service_error(503, "closed", "Until noon.", 5), ErrorData(503, "closed", "Until noon.", 5)),
        (service_error(503, "", "inside", 5), ErrorData(503, "", "Not available, please try again.", 5)),
        (service_error(501, "", "inside"), ErrorData(501, "", "Something went wrong.")),
        (service_error(500, "", "inside"), ErrorData(500, "handler-failed", "Something went wrong.")),
        (service_error(500, "handler-failed", "inside"), ErrorData(500, "handler-failed", "Something went wrong.")),
        (service_error(7, "odd", "Odd."), ErrorData(500, "odd", "Odd.")),
        (
            CallError(503, "provider-gone", "inside", 1),
            ErrorData(503, "provider-gone", "Not available, please try again.", 1),
        ),
        (CallError(502, "upstream", "inside"), ErrorData(502, "upstream", "Something went wrong.")),
        (CallError(200, "odd", "inside"), ErrorData(500, "handler-failed", "Something went wrong.")),
        (CallError(999, "odd", "inside"), ErrorData(500, "handler-failed", "Something went wrong.")),
        (
            CallError(429, "overloaded", "", 1 << 40),
            ErrorData(429, "overloaded", "Too busy, please try again.", 4_294_967_295),
        ),
        (CallError(429, "overloaded", "", -1), ErrorData(429, "overloaded", "Too busy, please try again.", 1000)),
    ],
)
def test_other_errors_are_told_without_internals(error: CallError, told: ErrorData) -> None:
    assert error_data(error) == told


def test_a_provider_that_leaves_is_told_to_the_caller(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    provider = SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say"))
    while site.hub.services.end_one(provider):
        pass
    assert (caller.error().code, caller.error().tag) == (503, "provider-gone")
    assert site.settled()


@pytest.mark.rule("MQTTRPC-57")
@pytest.mark.parametrize(
    ("timeout", "unit", "seconds"),
    [
        (250, TimeoutUnit.UNSPECIFIED, 0.25),
        (250, TimeoutUnit.MILLISECOND, 0.25),
        (2, TimeoutUnit.SECOND, 2),
        (2, TimeoutUnit.MINUTE, 120),
        (1, TimeoutUnit.HOUR, 3600),
        (0, TimeoutUnit.HOUR, 9),
    ],
)
def test_at_the_deadline_the_provider_is_stopped_and_the_caller_told(
    timeout: int, unit: TimeoutUnit, seconds: float
) -> None:
    site = BridgedSite(limits=Limits(call_time=9))
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say", b"", eos=False, timeout=timeout, timeout_unit=unit))
    site.clock.advance(seconds - 0.01)
    assert (caller.responses(), provider.cancelled) == ([], [])
    site.clock.advance(0.01)
    assert caller.error() == ErrorData(504, "timeout", "It took too long.")
    assert [error.tag for error in provider.cancelled] == ["timeout"]
    assert not provider.finish(provider.calls[0], b"late")
    assert (len(caller.responses()), site.settled()) == (1, True)


def test_a_request_that_repeats_one_in_work_is_dropped(site: BridgedSite) -> None:
    caller, again = MqttClient(site, "/svc"), MqttClient(site)
    provider = SessionProvider(site, "svc")
    for client in [caller, caller, again]:
        client.publish("/svc", Request(7, "Say", b"x"))
    again.publish("/svc", Request(7, "Say", b"another's, by chance or by malice"))
    assert provider.asked == [("Say", b"x")]
    assert site.counters("mqtt") == {"duplicate": 3}
    provider.finish(provider.calls[0], b"once")
    assert caller.responses() == [Response(7, "", b"once", None, eos=True)]


def test_a_correlation_id_may_be_used_again_after_the_answer(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", shout)
    for _ in range(2):
        caller.publish("/svc", Request(7, "Say", b"x"))
    assert len(caller.responses()) == 2


@pytest.mark.rule("MQTTRPC-55", "MQTTRPC-101")
def test_a_stream_of_requests_is_refused_as_soon_as_it_shows(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    provider = SessionProvider(site, "svc")
    for body in [b"1", b"2", b"3"]:
        caller.publish("/svc", Request(7, "Say", body))
    caller.publish("/svc", Request(7, eos=True))
    assert caller.error() == ErrorData(*ONE_REQUEST)
    assert provider.asked == [("Say", b"1")]
    assert [error.code for error in provider.cancelled] == [400]
    assert site.settled()
    caller.publish("/svc", Request(7, "Say", b"a new call, after the stream's end"))
    assert len(provider.asked) == 2


@pytest.mark.rule("MQTTRPC-101")
def test_a_stream_of_one_request_may_end_with_a_request_without_a_body(site: BridgedSite) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say", b"1"))
    caller.publish("/svc", Request(7, eos=True))
    provider.finish(provider.calls[0], b"")
    assert caller.responses() == [Response(7, "", b"", None, eos=True)]
    assert (provider.asked, provider.cancelled, site.settled()) == ([("Say", b"1")], [], True)


@pytest.mark.rule("MQTTRPC-76")
def test_a_request_with_the_correlation_id_0_is_answered(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", shout)
    caller.publish("/svc", Request(0, "Say", b"a"))
    assert caller.responses() == [Response(0, "", b"A", None, eos=True)]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-105")
@pytest.mark.parametrize("request_", [Request(7, timeout=5), Request(7, eos=True, timeout=5)])
def test_a_request_without_a_body_is_400(site: BridgedSite, request_: Request) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", request_)
    assert (caller.error().code, caller.error().tag, provider.asked) == (400, "bad-request", [])
    assert site.settled()


@pytest.mark.rule("MQTTRPC-101")
def test_refused_streams_are_remembered_within_bounds(site: BridgedSite) -> None:
    caller = MqttClient(site)
    SessionProvider(site, "svc")
    for number in range(1, STREAMS_REMEMBERED + 11):
        caller.publish("/svc", Request(number, "Say", b"1"))
        caller.publish("/svc", Request(number, "Say", b"2"))
    assert len(site.bridge._incoming._streams) == STREAMS_REMEMBERED
    assert site.settled()


def test_the_end_of_a_stream_that_is_not_open_starts_nothing(site: BridgedSite) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, eos=True))
    assert (provider.asked, caller.responses(), site.settled()) == ([], [], True)
    assert site.counters("mqtt") == {"late": 1}


def test_a_type_url_that_names_no_method_is_404(site: BridgedSite) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "say hello"))
    assert (caller.error().code, caller.error().tag, provider.asked) == (404, "no-method", [])
    assert site.settled()


@pytest.mark.rule("MQTTRPC-99")
def test_a_client_has_so_many_calls_in_flight_and_no_more() -> None:
    site = BridgedSite(limits=Limits(in_flight=2))
    caller, other = MqttClient(site, "/svc"), MqttClient(site)
    provider = SessionProvider(site, "svc")
    for number in [1, 2, 3]:
        caller.publish("/svc", Request(number, "Say"))
    other.publish("/svc", Request(4, "Say"))
    assert caller.error() == ErrorData(429, "overloaded", "Too busy, please try again.", 1000)
    assert caller.responses()[0].correlation_id == 3
    assert len(provider.asked) == 3
    provider.finish(provider.calls[0], b"")
    caller.publish("/svc", Request(3, "Say"))
    assert len(provider.asked) == 4
    assert site.counters("mqtt") == {"limit": 1}
    site.bridge.reload(Limits(in_flight=3))
    caller.publish("/svc", Request(5, "Say"))
    assert len(provider.asked) == 5


def test_calls_of_all_clients_together_are_bounded_too(site: BridgedSite) -> None:
    requests = TopicRequests(site.hub, site.bridge._publisher, Limits(), max_calls=1)
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    for number in [1, 2]:
        requests.request("svc", "/svc", Request(number, "Say"), caller.client)
    assert (caller.error().code, len(provider.asked)) == (429, 1)


@pytest.mark.rule("MQTTRPC-96")
@pytest.mark.parametrize(("user", "code", "tag"), [("", 401, "unauthorized"), ("eve", 403, "forbidden")])
def test_the_publisher_of_a_request_needs_the_right_to_call(user: str, code: int, tag: str) -> None:
    rules = AccessRules(
        [
            AccessRule(["publish", "subscribe"], ["/svc"]),
            AccessRule(["call"], ["svc"], user="anna"),
        ]
    )
    site = BridgedSite(rules=rules)
    provider = SessionProvider(site, "svc", shout)
    anna, other = MqttClient(site, user="anna"), MqttClient(site, "/svc", user=user)
    other.publish("/svc", Request(7, "Say"))
    assert (other.error().code, other.error().tag) == (code, tag)
    assert site.counters("mqtt") == {"forbidden": 1}
    other.publish("/svc", bytes.fromhex("0807 ff"))
    assert len(other.responses()) == 1
    anna.publish("/svc", Request(8, "Say"))
    assert len(provider.asked) == 1


def test_a_request_that_may_not_be_published_reaches_nobody() -> None:
    site = BridgedSite(rules=AccessRules([AccessRule(["call"], ["svc"])]))
    caller, provider = MqttClient(site), SessionProvider(site, "svc")
    assert caller.publish("/svc", Request(7, "Say")) is Refused.FORBIDDEN
    assert provider.asked == []


@pytest.mark.rule("MQTTRPC-103")
def test_a_call_outlives_the_connection_it_came_by(site: BridgedSite) -> None:
    caller, listener = MqttClient(site, "/svc"), MqttClient(site, "/svc")
    provider = SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say"))
    caller.leave()
    assert provider.cancelled == []
    provider.finish(provider.calls[0], b"answer")
    assert listener.responses() == [Response(7, "", b"answer", None, eos=True)]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-100")
def test_a_draining_hub_answers_503_and_finishes_what_it_accepted(site: BridgedSite) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say"))
    site.bridge.drain()
    caller.publish("/svc", Request(8, "Say"))
    provider.finish(provider.calls[0], b"done")
    while site.hub.services.end_one(provider):
        pass
    caller.publish("/svc", Request(9, "Say"))
    draining = ErrorData(503, "draining", "Shutting down, please try again.", 1000)
    assert caller.responses() == [
        Response(8, "polywire.hub", b"", draining, eos=True),
        Response(7, "", b"done", None, eos=True),
        Response(9, "polywire.hub", b"", draining, eos=True),
    ]
    assert site.settled()


@pytest.mark.rule("MQTTRPC-100")
def test_a_hub_whose_services_drain_answers_503_as_well(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc")
    site.hub.services.draining = True
    caller.publish("/svc", Request(8, "Say"))
    assert (caller.error().code, caller.error().tag, caller.error().retry_after) == (503, "draining", 1000)
    assert site.settled()


@pytest.mark.parametrize(
    ("payload", "answered"),
    [
        (bytes.fromhex("0807 1280"), 400),  # ends inside its body
        (bytes.fromhex("ff"), 0),  # no correlation id was read
        (bytes.fromhex("0807 2001 ff"), 0),  # plainly a Response
        (b"21.5", 0),
        (b"", 0),
    ],
)
def test_what_is_no_message_is_answered_where_somebody_waits(site: BridgedSite, payload: bytes, answered: int) -> None:
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", payload)
    codes = [data.code for data in [response.error_data for response in caller.responses()] if data is not None]
    assert codes == ([answered] if answered else [])
    assert (provider.asked, site.settled()) == ([], True)
    assert sum(site.bridge._publisher.client.counters.faults.values()) == (1 if payload else 0)


def test_a_payload_over_the_limit_is_413() -> None:
    site = BridgedSite(limits=Limits(message_size=100))
    caller, provider = MqttClient(site, "/svc"), SessionProvider(site, "svc")
    caller.publish("/svc", Request(7, "Say", bytes(100)))
    assert (caller.error().code, provider.asked) == (413, [])


@pytest.mark.rule("MQTTRPC-104")
def test_ordinary_topics_with_a_slash_in_front_are_left_alone(site: BridgedSite) -> None:
    client = MqttClient(site, "/temperature")
    SessionProvider(site, "svc")
    for payload in [b"21.5", bytes.fromhex("0807 1280"), b""]:
        client.publish("/temperature", payload)
    assert len(client.payloads) == 3
    assert site.bridge._publisher.client.counters.faults == {}


def test_a_service_whose_name_is_no_level_of_an_mqtt_topic_has_none(site: BridgedSite) -> None:
    provider = SessionProvider(site, "a+b")
    MqttClient(site).publish("/a+b", Request(7, "Say"))
    assert provider.asked == []


def test_a_server_ignores_responses(site: BridgedSite) -> None:
    client = MqttClient(site, "/svc")
    SessionProvider(site, "svc")
    client.publish("/svc", Response(7, "", b"of a service on MQTT"))
    assert (len(client.heard), site.counters("mqttrpc")) == (1, {})


@pytest.mark.rule("MQTTRPC-98")
def test_the_bridge_does_not_listen_to_itself(site: BridgedSite) -> None:
    server, caller = MqttClient(site, "/svc"), SessionCaller(site)
    call = Call(caller, "svc", "Say", streamed=True)
    site.hub.services.start(call, Message("", b"1"), last=False)
    # Now the service is offered here as well: the bridge has reason to listen to Requests and to Responses.
    provider = SessionProvider(site, "svc", shout)
    site.hub.services.more(call, Message("", b"2"), last=True)
    assert (len(server.requests()), provider.asked) == (2, [])
    server.publish("/svc", Request(7, "Say"))
    assert (len(server.responses()), provider.asked) == (1, [("Say", b"")])
    assert site.counters("mqttrpc") == {}


def test_a_reply_that_mqtt_cannot_carry_is_too_large(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", lambda *_: bytes(268_435_456))
    caller.publish("/svc", Request(7, "Say"))
    assert (caller.error().code, caller.error().tag) == (413, "too-large")
    assert site.settled()


def test_the_hubs_own_publications_are_no_clients(site: BridgedSite) -> None:
    assert site.hub.clients == {}
    caller = MqttClient(site, "/svc")
    SessionProvider(site, "svc", shout)
    caller.publish("/svc", Request(7, "Say"))
    assert list(site.hub.clients) == [caller.client.number]
    counters = site.bridge._publisher.client.counters
    assert (counters.messages_in, counters.messages_out, counters.connected) == (1, 1, 0)


def test_a_will_may_be_a_request(site: BridgedSite) -> None:
    client, provider = MqttClient(site), SessionProvider(site, "svc")
    client.client.wills.add(Message("/svc", encode(Request(7, "Gone"))), 20)
    client.leave()
    assert provider.asked == [("Gone", b"")]


def test_two_services_on_mqtt_and_umq_both_answer_and_the_caller_takes_the_first(site: BridgedSite) -> None:
    caller = MqttClient(site, "/svc")

    def answer(request: Request) -> list[Frame]:
        return [Response(request.correlation_id, "", b"mqtt")]

    MqttClient(site, "/svc", serving=answer)
    SessionProvider(site, "svc", lambda *_: b"umq")
    caller.publish("/svc", Request(7, "Say"))
    assert {response.value for response in caller.responses()} == {b"mqtt", b"umq"}


def test_the_journal_says_who_called_and_who_answered(site: BridgedSite) -> None:
    recording = Recording()
    site.hub.recorder = site.hub.services.recorder = recording.recorder
    caller = MqttClient(site, "/svc", "/other")
    caller.client.name = "caller"
    serving = MqttClient(
        site, "/elsewhere", serving=lambda request: [Response(request.correlation_id, "", b"!", eos=True)]
    )
    serving.client.name = "serving"
    SessionProvider(site, "svc", shout)
    caller.publish("/svc", Request(7, "Say", b"a"))
    SessionCaller(site).call("elsewhere")
    names = ("kind", "protocol", "client", "connection", "correlation")
    rows = [tuple(row[name] for name in names) for row in recording.rows() if row["kind"] in {"request", "reply"}]
    number = site.hub.services.last_number
    assert rows == [
        # With the Request itself this is one call: it has the name under which others know that.
        ("request", "mqtt", "caller", caller.client.number, "/svc:7"),
        ("reply", None, None, 0, "/svc:7"),
        ("request", None, None, 0, str(number)),
        ("reply", "mqtt", "serving", serving.client.number, str(number)),
    ]
