"""A UMQ peer that calls services through the hub, and one that offers them."""

import pytest

from polywire.hub.message import FailedAttachment, Message
from polywire.hub.outbox import PATIENCE
from polywire.hub.peer import Limits
from polywire.hub.services import END, Call, Caller, CallError, Provider, service_error
from tests.protocols.umq.peers import UmqPeer
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


class Service(Provider):
    """A provider of another protocol."""

    def __init__(self, site: Site, name: str = "lamp") -> None:
        self.calls: list[Call] = []
        self.asked: list[Message] = []
        self.cancelled: list[str] = []
        site.hub.services.serve(name, self)

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        assert last
        self.calls.append(call)
        self.asked.append(message)

    def cancel(self, call: Call, error: CallError) -> None:  # noqa: ARG002 - the test's own calls
        self.cancelled.append(error.tag)


class Client(Caller):
    """A caller of another protocol."""

    def __init__(self) -> None:
        self.got: list[Message | CallError] = []

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        assert call.ended is last
        self.got.append(message)

    def fail(self, call: Call, error: CallError) -> None:
        assert call.ended
        self.got.append(error)


def ask(site: Site, message: Message | None = None, *, last: bool = True) -> tuple[Client, Call]:
    """Call ``lamp`` from another protocol."""
    client = Client()
    call = Call(client, "lamp", "on")
    site.hub.services.start(call, message or Message("lamp", b"x"), last=last)
    return client, call


def serving(site: Site, *, limits: Limits | None = None, cap: int = 1 << 22) -> UmqPeer:
    peer = UmqPeer(site, limits=limits, cap=cap)
    assert peer.say('C1:["serve","lamp","5A"]') == ["R1:null"]
    return peer


def test_a_call_reaches_a_provider_with_all_it_says(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    assert peer.say('A2:C1:["call","lamp","on",null,{"headers":{"N":1}}]', b"\xff", b"more") == []
    (call,), (message,) = service.calls, service.asked
    assert (call.service, call.method, call.streamed) == ("lamp", "on", False)
    assert (message.body, message.attachments, message.headers) == (b"\xff", (b"more",), (("n", 1),))
    site.hub.services.reply(call, Message("lamp", b"done"))
    assert peer.hears() == ["R1:done"]


def test_a_reply_that_is_not_text_is_an_attachment(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","on",""]')
    site.hub.services.reply(service.calls[0], Message("lamp", b"\xff", attachments=(b"more",)))
    assert peer.hears() == ["A2:R1:", b"\xff", b"more"]


@pytest.mark.rule("UMQ-130", "UMQ-147", "UMQ-161", "UMQ-162")
@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (CallError(404, "no-method", "no method 'on'"), "E1:7 No route to method: no method 'on'"),
        (CallError(400, "bad", "no JSON"), "E1:11 Bad request: 400 bad: no JSON"),
        (CallError(400, "bad-request", "no JSON"), "E1:11 Bad request: no JSON"),
        (CallError(403, "forbidden", "not you"), "E1:12 Forbidden: not you"),
        (CallError(413, "too-large", "too large"), "E1:9 Limit exceeded: 413 too-large: too large"),
        (
            CallError(429, "overloaded", "busy", 10),
            "E1:8 Temporarily unavailable: 429 overloaded (retry after 10 ms): busy",
        ),
        (
            CallError(503, "draining", "going down", 10),
            "E1:10 Shutting down: 503 draining (retry after 10 ms): going down",
        ),
        (service_error(500, "", "I'm teapot"), "E1:I'm teapot"),
        (service_error(500, "", "caf\u00e9 \ud800"), "E1:café ?"),
        (service_error(500, "", "404 bananas"), "E1:500 404 bananas"),
        (service_error(500, "", "8 Temporarily unavailable"), "E1:500 8 Temporarily unavailable"),
        (service_error(599, "odd", ""), "E1:599 odd: "),
        (service_error(404, "no-item", "No 7.", 3000), "E1:404 no-item (retry after 3000 ms): No 7."),
        (service_error(404, "no-service", "No 7."), "E1:404 no-service: No 7."),
        (service_error(404, "", "file: gone"), "E1:404 : file: gone"),
    ],
)
def test_a_call_that_fails_is_answered_in_the_words_of_umq(site: Site, error: CallError, answer: str) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","on",""]')
    site.hub.services.fail(service.calls[0], error)
    assert peer.hears() == [answer]


@pytest.mark.rule("UMQ-130", "UMQ-147")
def test_a_service_that_is_not_there_or_does_not_answer(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site, limits=Limits(call_time=3.0))
    assert peer.say('C1:["call","radio","on",""]') == ["E1:6 No RPC server here"]
    peer.say('C1:["call","lamp","on",""]', 'C2:["call","lamp","on","",{"timeout":1500}]')
    site.clock.advance(1.5)
    assert peer.hears() == ["E2:8 Temporarily unavailable: 504 timeout: no reply from 'lamp' within 1.5 s"]
    site.clock.advance(1.5)
    assert peer.hears() == ["E1:8 Temporarily unavailable: 504 timeout: no reply from 'lamp' within 3 s"]
    assert service.cancelled == ["timeout", "timeout"]
    site.hub.services.draining = True
    assert peer.say('C1:["call","lamp","on",""]') == [
        "E1:10 Shutting down: 503 draining (retry after 1000 ms): the hub is shutting down"
    ]


def test_a_caller_that_goes_away_cancels_its_calls(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","on",""]')
    peer.wire.lose()
    assert service.cancelled == ["caller-gone"]
    assert not site.hub.services.reply(service.calls[0], Message("lamp", b"late"))


@pytest.mark.rule("UMQ-127", "UMQ-146")
def test_a_stream_comes_as_updates_and_ends_with_its_topic(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    assert peer.say('C1:["call","lamp","watch","",{"stream":"9"}]') == []
    (call,) = service.calls
    assert call.streamed
    for body in (b"one", b"", b"\xff"):
        site.hub.services.reply(call, Message("lamp", body), last=False)
    assert peer.hears() == ["T9:one", "T9:", "A1:T9:", b"\xff"]
    site.hub.services.reply(call, Message("lamp", b"last"), last=True)
    assert peer.hears() == ["T9:last", "D9:", "R1:null"]
    assert peer.say('C1:["subscribe","a",9]') == ["R1:null"]


@pytest.mark.rule("UMQ-146")
def test_an_empty_last_response_is_an_update_and_the_end_alone_is_none(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","watch","",{"stream":9}]')
    site.hub.services.reply(service.calls[0], Message("lamp", b""), last=True)
    assert peer.hears() == ["T9:", "D9:", "R1:null"]
    peer.say('C1:["call","lamp","watch","",{"stream":9}]')
    site.hub.services.reply(service.calls[1], END, last=True)
    assert peer.hears() == ["D9:", "R1:null"]


@pytest.mark.rule("UMQ-146")
def test_an_error_ends_a_stream(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","watch","",{"stream":9}]')
    site.hub.services.fail(service.calls[0], service_error(500, "", "burnt out"))
    assert peer.hears() == ["D9:", "E1:burnt out"]
    assert peer.say('C1:["call","radio","watch","",{"stream":9}]') == ["D9:", "E1:6 No RPC server here"]


@pytest.mark.rule("UMQ-127")
def test_the_topic_id_of_a_stream_is_one_of_the_peers(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["subscribe","a",9]')
    assert peer.say('C2:["call","lamp","watch","",{"stream":9}]') == ["E2:11 Bad request: topic id 9 is in use"]
    assert service.calls == []
    peer.say('C2:["call","lamp","watch","",{"stream":8}]')
    assert peer.say('C3:["subscribe","a",8]') == ["E3:11 Bad request: topic id 8 is in use"]


@pytest.mark.rule("UMQ-127")
def test_the_topic_id_of_a_stream_counts_when_the_call_is_whole(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('A1:C1:["call","lamp","watch",null,{"stream":9}]', 'C2:["subscribe","a",9]')
    assert peer.say(b"whole") == ["E1:11 Bad request: topic id 9 is in use"]
    assert service.calls == []


@pytest.mark.rule("UMQ-127")
@pytest.mark.parametrize(("ending", "answers"), [("U9:", []), ('C2:["unsubscribe",9]', ["R2:null"])])
def test_a_peer_ends_a_stream_and_the_call_is_cancelled(site: Site, ending: str, answers: list[str]) -> None:
    service, peer = Service(site), UmqPeer(site)
    peer.say('C1:["call","lamp","watch","",{"stream":9}]')
    assert peer.say(ending) == ["D9:", "R1:null", *answers]
    assert service.cancelled == ["cancelled"]
    assert not site.hub.services.reply(service.calls[0], Message("lamp", b"late"), last=False)
    assert peer.hears() == []


@pytest.mark.rule("UMQ-146")
def test_a_stream_that_is_not_read_is_ended(site: Site) -> None:
    service, peer = Service(site), UmqPeer(site, cap=1000)
    peer.say('C1:["call","lamp","watch","",{"stream":9}]')
    (call,) = service.calls
    peer.wire.stall_next = True
    for _ in range(3):
        site.hub.services.reply(call, Message("lamp", b"x" * 900), last=False)
        site.loop.turn()
    site.clock.advance(PATIENCE)
    peer.hears()
    site.hub.services.reply(call, Message("lamp", b"x" * 900), last=False)
    assert service.cancelled == ["slow-reader"]
    peer.wire.stall_next = False
    peer.wire.outbox.drain()
    assert peer.hears()[-2:] == ["D9:", "E1:9 Limit exceeded: the responses were not read in time"]


def test_a_served_call_is_a_callback_and_its_answer_the_reply(site: Site) -> None:
    peer = serving(site)
    client, _ = ask(site)
    assert peer.hears() == ['B1:5A:["on","x"]']
    peer.say("R1:done")
    ((reply,),) = (client.got,)
    assert isinstance(reply, Message)
    assert (reply.body, reply.attachments, reply.origin) == (b"done", (), peer.wire.client.number)


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (Message("lamp", b'{"a": 1}', "application/json"), ['B1:5A:["on",{"a": 1}]']),
        (Message("lamp", b"\xff", attachments=(b"more",)), ['A2:B1:5A:["on",null]', b"\xff", b"more"]),
        (Message("lamp", "é".encode()), ['B1:5A:["on","é"]']),
        (Message("lamp", b"x" * 9000), ['B1:5A:["on","' + "x" * 9000 + '"]']),
    ],
)
def test_the_body_of_a_request_stands_in_json(site: Site, message: Message, sent: list[str | bytes]) -> None:
    peer = serving(site)
    ask(site, message)
    assert peer.hears() == sent


def test_a_reply_with_attachments_waits_for_them(site: Site) -> None:
    peer = serving(site)
    binary, other = ask(site)[0], ask(site)[0]
    assert peer.say("A2:R1:", "R2:quick", b"\xff") == ['B1:5A:["on","x"]', 'B2:5A:["on","x"]']
    assert (len(binary.got), len(other.got)) == (0, 1)
    peer.say(b"more")
    (reply,) = binary.got
    assert isinstance(reply, Message)
    assert (reply.body, reply.attachments) == (b"\xff", (b"more",))
    texted = ask(site)[0]
    peer.say("A1:R3:text", b"more")
    (reply,) = texted.got
    assert isinstance(reply, Message)
    assert (reply.body, reply.attachments) == (b"text", (b"more",))


@pytest.mark.rule("UMQ-147")
def test_a_reply_that_never_becomes_whole_fails_the_call(site: Site) -> None:
    peer = serving(site, limits=Limits(message_size=100))
    client = ask(site)[0]
    peer.say("A1:R1:", "-:gone")
    assert client.got == [CallError(502, "failed-body", "the body failed: gone")]
    client = ask(site)[0]
    peer.say("A2:R2:" + "x" * 90, b"y" * 11, b"z")
    (error,) = client.got
    assert isinstance(error, CallError)
    assert error.code == 413
    client = ask(site)[0]
    peer.say("A1:C9:" + '["publish","a",null]', "A1:R3:" + "x" * 90)
    (error,) = client.got
    assert isinstance(error, CallError)
    assert error.code == 413
    assert not peer.wire.closed


@pytest.mark.rule("UMQ-154", "UMQ-155")
def test_failed_attachments_of_requests_and_replies_are_relayed(site: Site) -> None:
    peer, caller = serving(site), UmqPeer(site)
    caller.say('A3:C1:["call","lamp","on","x"]', b"1", "-:disk full", b"3")
    assert peer.hears() == ['A3:B1:5A:["on","x"]', b"1", "-:disk full", b"3"]
    peer.say("A2:R1:done", "-:Upstream download error", b"2")
    assert caller.hears() == ["A2:R1:done", "-:Upstream download error", b"2"]
    caller.say('A2:C2:["call","lamp","on",null]', "-:", b"2")
    assert peer.hears() == ['A2:B2:5A:["on",null]', "-:", b"2"]
    peer.say("A1:R2:", "-:gone")
    assert caller.hears() == ["A1:R2:", "-:gone"]
    assert (peer.faults, caller.faults) == ({}, {})


@pytest.mark.rule("UMQ-154", "UMQ-155")
def test_other_protocols_miss_a_failed_attachment_only_where_it_is_the_body(site: Site) -> None:
    service, peer = Service(site, "radio"), serving(site)
    peer.say('A2:C2:["call","radio","on","x"]', "-:lost", b"2")
    assert (service.asked[0].body, service.asked[0].attachments) == (b"x", (FailedAttachment("lost"), b"2"))
    assert peer.say('A1:C3:["call","radio","on",null]', "-:lost") == [
        "E3:11 Bad request: 400 failed-body: the body failed: lost"
    ]
    assert len(service.calls) == 1
    client = ask(site)[0]
    peer.hears()
    peer.say("A1:R1:done", "-:lost")
    (reply,) = client.got
    assert isinstance(reply, Message)
    assert reply.body == b"done"


def test_an_exception_of_the_peer_is_the_callers_error(site: Site) -> None:
    peer, caller = serving(site), UmqPeer(site)
    client = ask(site)[0]
    caller.say('C1:["call","lamp","brew","coffee"]')
    peer.say("E1:I'm teapot", "E2:I'm teapot")
    assert client.got == [service_error(500, "", "I'm teapot")]
    assert caller.hears() == ["E1:I'm teapot"]


@pytest.mark.rule("UMQ-149")
def test_the_late_answer_to_a_caller_that_went_away_is_ignored(site: Site) -> None:
    peer, caller = serving(site), UmqPeer(site)
    caller.say('C1:["call","lamp","on",""]')
    caller.wire.lose()
    assert len(peer.session._connection.calls) == 0
    assert peer.say("R1:late") == ['B1:5A:["on",""]']
    assert peer.faults == {"UMQ-100": 1}
    assert not peer.wire.closed


@pytest.mark.rule("UMQ-149")
def test_the_answer_to_a_call_whose_time_is_over_is_ignored_its_attachments_too(site: Site) -> None:
    peer = serving(site)
    early, late = ask(site)[0], ask(site)[0]
    peer.say("A1:R1:")
    site.clock.advance(30)
    peer.say("A1:R2:", b"\xff", b"\xff")
    assert [error.code for error in [*early.got, *late.got] if isinstance(error, CallError)] == [504, 504]


def test_a_peer_serves_until_it_does_not(site: Site) -> None:
    peer, other = serving(site), UmqPeer(site)
    assert peer.say('C1:["serve","lamp",6]') == ["E1:11 Bad request: service 'lamp' is served already"]
    other.say('C1:["call","lamp","on",""]')
    assert peer.say('C1:["unserve","lamp"]') == ['B1:5A:["on",""]', "R1:null"]
    assert other.say('C2:["call","lamp","on",""]') == ["E2:6 No RPC server here"]
    peer.say("R1:still")
    assert other.hears() == ["R1:still"]
    assert peer.say('C1:["unserve","lamp"]') == ["E1:11 Bad request: service 'lamp' is not served"]


def test_peers_of_one_service_share_its_calls_and_a_peer_may_call_itself(site: Site) -> None:
    one, other = serving(site), serving(site)
    for n in range(2, 6):
        one.say(f'C{n}:["call","lamp","on","{n}"]')
    assert len([each for each in other.hears() if str(each).startswith("B")]) == 2
    assert one.say("R1:a") == ["R2:a"]


def test_services_are_limited(site: Site) -> None:
    peer = serving(site, limits=Limits(subscriptions=1))
    assert peer.say('C1:["serve","radio",6]') == ["E1:9 Limit exceeded: 1 services are served"]


@pytest.mark.rule("UMQ-148")
def test_a_provider_that_does_not_keep_up_gets_no_more(site: Site) -> None:
    peer = serving(site, limits=Limits(in_flight=1))
    client, other = ask(site)[0], ask(site)[0]
    (error,) = other.got
    assert isinstance(error, CallError)
    assert (error.code, error.retry_after) == (429, 1000)
    peer.say("R1:done")
    assert len(client.got) == 1


@pytest.mark.rule("UMQ-148")
def test_a_provider_that_does_not_read_gets_no_more(site: Site) -> None:
    peer = serving(site, cap=1000)
    peer.wire.stall_next = True
    large = Message("lamp", b"x" * 900)
    for _ in range(3):
        ask(site, large)
        site.loop.turn()
    site.clock.advance(PATIENCE)
    client = ask(site, large)[0]
    (error,) = client.got
    assert isinstance(error, CallError)
    assert error.code == 429
    assert len(peer.session._connection.calls) == 3


@pytest.mark.rule("UMQ-147")
def test_requests_that_umq_can_not_carry_fail_at_once(site: Site) -> None:
    peer = serving(site)
    streamed = ask(site, last=False)[0]
    assert streamed.got == [CallError(501, "no-streams", "a service over UMQ takes one request")]
    odd = Client()
    site.hub.services.start(Call(odd, "lamp", "\ud800"), Message("lamp", b"x"))
    assert odd.got == [CallError(400, "bad-request", "the request can't be written as JSON")]
    assert peer.hears() == []


def test_attachments_of_methods_without_a_use_for_them_are_passed_over(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say('A1:C1:["subscribe","a",7]', 'C2:["publish","a","x"]', b"?", 'A1:C3:["fly"]', b"?") == [
        "R1:null",
        "T7:x",
        "R2:null",
        (
            "E3:7 No route to method: there is no method 'fly', only subscribe, unsubscribe, publish, call, serve, "
            "unserve, whoami, attributes"
        ),
    ]
