"""A UMQ session on the hub: the handshake, the peer's life, and its end."""

import pytest

from polywire.hub.access import AccessRule, AccessRules, Identity
from polywire.hub.peer import Limits, Login
from tests.protocols.umq.peers import UmqPeer
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.rule("UMQ-73")
def test_the_hub_welcomes_a_hello_and_the_client_joins(site: Site) -> None:
    peer = UmqPeer(site, None)
    assert site.hub.clients == {}
    peer.wire.feed("H1:")
    assert peer.wire.taken() == b"\x81\x03W1:"
    assert peer.wire.is_established
    assert list(site.hub.clients.values()) == [peer.wire.client]


def test_a_newer_version_is_answered_with_ours(site: Site) -> None:
    assert UmqPeer(site, None).say("H7:") == ["W1:"]


@pytest.mark.rule("UMQ-97")
@pytest.mark.parametrize(
    ("first", "answer"),
    [
        ("H:", "F0:5 Unsupported version: version 0, not 1"),
        ("C1:[]", "F0:3 Protocol error: receive message: the first message of a connection is the client's H"),
        ("", "F0:3 Protocol error: the text message is empty"),
        ("Q1:", "F0:4 Unsupported command: command 'Q' is none of -HWFCBRETDUSX"),
        (b"x", "F0:3 Protocol error: a binary message nobody announced"),
    ],
)
def test_what_is_no_hello_gets_an_f_and_the_hub_hangs_up(site: Site, first: str | bytes, answer: str) -> None:
    peer = UmqPeer(site, None)
    assert peer.say(first) == [answer]
    assert peer.wire.closed
    assert sum(peer.faults.values()) == 1


@pytest.mark.rule("UMQ-97")
def test_an_f_of_the_peer_is_followed_by_hanging_up_and_not_answered(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["subscribe","a",1]')
    assert peer.say("F0:1 Goodbye") == []
    assert peer.wire.closed
    assert len(site.hub.table) == 0


@pytest.mark.rule("UMQ-97")
def test_nothing_is_written_behind_an_f_and_nothing_is_heard(site: Site) -> None:
    peer, other = UmqPeer(site), UmqPeer(site)
    peer.say('C1:["subscribe","a",1]', 'C2:["serve","lamp",5]')
    assert peer.say("c1:") == ["F0:4 Unsupported command: command 'c' is none of -HWFCBRETDUSX"]
    peer.wire.closed = False  # as if hanging up took its time
    assert other.say('C1:["publish","a","x"]', 'C2:["call","lamp","on",""]') == ["R1:null", "E2:6 No RPC server here"]
    assert peer.say('C3:["whoami"]') == []


@pytest.mark.rule("UMQ-141")
@pytest.mark.parametrize(
    ("payload", "login"),
    [
        ("", Login()),
        ('{"user":"anna","password":"pw"}', Login("anna", "pw")),
        ('{"token":"abc"}', Login(token="abc")),
    ],
)
def test_the_hello_says_who_the_peer_is(site: Site, payload: str, login: Login) -> None:
    assert UmqPeer(site, f"H1:{payload}").wire.logins == [login]


@pytest.mark.rule("UMQ-141")
def test_a_login_that_fails_is_rejected() -> None:
    site = Site(passwords={"anna": "right"})
    peer = UmqPeer(site, None)
    assert peer.say('H1:{"user":"anna","password":"wrong"}') == ["F0:1 Rejected: login failed"]
    assert peer.wire.closed
    assert peer.faults == {"login": 1}
    assert site.hub.clients == {}


@pytest.mark.rule("UMQ-141")
@pytest.mark.parametrize("payload", ["token=abc", "[]", '{"user":1}', '{"name":"anna"}'])
def test_a_hello_that_can_not_be_read_is_rejected(site: Site, payload: str) -> None:
    peer = UmqPeer(site, None)
    (answer,) = peer.say(f"H1:{payload}")
    assert isinstance(answer, str)
    assert answer.startswith("F0:1 Rejected: ")
    assert peer.wire.logins == []
    assert peer.wire.closed


@pytest.mark.rule("UMQ-142")
def test_the_hub_says_who_the_peer_is_to_it() -> None:
    site = Site(passwords={"anna": "pw"})
    peer = UmqPeer(site, 'H1:{"user":"anna","password":"pw"}')
    number = peer.wire.client.number
    assert peer.say('C1:["whoami"]') == [
        (
            f'R1:{{"user":"anna","groups":[],"how":"password","connection":{number},"address":"192.0.2.1:5000",'
            '"attributes":{}}'
        )
    ]


def test_a_name_that_utf8_can_not_write_does_no_harm(site: Site) -> None:
    peer = UmqPeer(site)
    peer.wire.client.identity = Identity("\ud800", ["\udfff"], "token")
    (answer,) = peer.say('C1:["whoami"]')
    assert str(answer).startswith('R1:{"user":"?","groups":["?"],"how":"token"')


def test_a_slow_login_holds_what_comes_behind_it(site: Site) -> None:
    site.slow_logins = True
    peer = UmqPeer(site, None)
    assert peer.say("H1:", 'C1:["unsubscribe",1]') == []
    site.pending_logins.pop()()
    assert peer.hears() == ["W1:", "E1:11 Bad request: topic id 1 is not open"]


def test_a_connection_lost_during_its_login_stays_lost(site: Site) -> None:
    site.slow_logins = True
    peer = UmqPeer(site, None)
    peer.say("H1:")
    peer.wire.lose()
    site.pending_logins.pop()()
    assert site.hub.clients == {}


def test_the_attachments_of_a_hello_are_passed_over(site: Site) -> None:
    peer = UmqPeer(site, None)
    assert peer.say("A2:H1:", b"one", 'C1:["unserve","x"]', b"two") == [
        "W1:",
        "E1:11 Bad request: service 'x' is not served",
    ]


def test_before_the_login_messages_are_smaller(site: Site) -> None:
    limits = Limits(message_size=1000, message_size_before_auth=10)
    peer = UmqPeer(site, None, limits=limits)
    (answer,) = peer.say("H1:" + " " * 8)
    assert answer == "F0:9 Limit exceeded: the text message has 11 characters, more than the 10 allowed"
    peer = UmqPeer(site, "H1:", limits=limits)
    assert peer.say('C1:["publish","a","' + "x" * 900 + '"]') == ["R1:null"]


def test_the_limit_is_in_bytes(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(message_size=30))
    text = 'C1:["publish","a","' + "é" * 9 + '"]'
    assert len(text) == 30
    assert peer.say(text) == ["F0:9 Limit exceeded: the text message has 39 bytes, more than the 30 allowed"]
    assert peer.faults == {"UMQ-133": 1}


@pytest.mark.rule("UMQ-133")
def test_a_message_that_is_too_large_is_not_parsed(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(message_size=30))
    text = "?" + "é" * 29  # no command begins with a question mark
    assert peer.say(text) == ["F0:9 Limit exceeded: the text message has 59 bytes, more than the 30 allowed"]
    assert peer.faults == {"UMQ-133": 1}


def test_an_id_in_flight_can_not_be_used_again(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say('A1:C1:["publish","a",null]', 'C1:["whoami"]') == [
        "F0:3 Protocol error: id 1 is used again before its answer"
    ]


def test_the_hub_has_no_callbacks_and_no_subscriptions(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say("A1:B1:5:x", b"att", "T7:x", "A1:T7:x", b"att", "D7:", "U9:", "R5:late", "E6:late") == [
        "E1:2 Callback not found",
        "U7:",
    ]
    assert not peer.wire.closed
    assert peer.faults == {"UMQ-100": 2}


@pytest.mark.rule("UMQ-99", "UMQ-106")
def test_a_callback_shares_its_ids_with_calls(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say("B1:5:x", "B1:5:x") == ["E1:2 Callback not found"] * 2
    assert peer.say('A1:C1:["publish","a",null]', "B1:5:x") == [
        "F0:3 Protocol error: id 1 is used again before its answer"
    ]
    assert peer.wire.closed


@pytest.mark.rule("UMQ-140")
def test_attributes_are_kept_while_the_connection_lives(site: Site) -> None:
    peer = UmqPeer(site)
    assert peer.say("S:name=lamp", "A1:S:icon=png", "S:gone=1", "X:gone", b"\x89") == []
    attributes = peer.session._connection.attributes
    assert sorted(attributes) == ["icon", "name"]
    assert attributes["icon"].attachments == (b"\x89",)
    assert list(UmqPeer(site).session._connection.attributes) == []


def attributes_of(peer: UmqPeer, reader: UmqPeer) -> str | bytes:
    (answer,) = reader.say(f'C9:["attributes",{peer.wire.client.number}]')
    return answer


@pytest.mark.rule("UMQ-157")
def test_attributes_are_in_the_answer_to_whoami(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say("S:key=value", "A2:S:icon=png", b"\x89")
    answer, *attached = peer.say('C1:["whoami"]')
    assert str(answer).endswith('"attributes":{"key":"value","icon":{"value":"png","attachments":[0,1]}}}')
    assert str(answer).startswith("A2:R1:{")
    assert attached == [b"\x89", "-:not received yet"]
    peer.say("-:lost", "X:key")
    answer, *attached = peer.say('C1:["whoami"]')
    assert str(answer).endswith('"attributes":{"icon":{"value":"png","attachments":[0,1]}}}')
    assert attached == [b"\x89", "-:lost"]


@pytest.mark.rule("UMQ-158")
def test_attributes_of_others_are_for_the_same_machine_without_rules(site: Site) -> None:
    peer, other = UmqPeer(site), UmqPeer(site)
    far = UmqPeer(site, local=False)
    peer.say("S:key=value")
    far.say("S:key=far")
    assert attributes_of(peer, other) == 'R9:{"key":"value"}'
    assert attributes_of(far, other) == 'R9:{"key":"far"}'
    forbidden = "E9:12 Forbidden: there is no such connection, or the access rules don't allow it"
    assert [attributes_of(far, far), attributes_of(peer, far)] == ['R9:{"key":"far"}', forbidden]
    assert other.say('C9:["attributes",999]') == ["E9:11 Bad request: there is no connection 999 that speaks UMQ"]
    assert far.say('C9:["attributes",999]') == [forbidden]
    number = peer.wire.client.number
    peer.wire.lose()
    assert other.say(f'C9:["attributes",{number}]') == [
        f"E9:11 Bad request: there is no connection {number} that speaks UMQ"
    ]


@pytest.mark.rule("UMQ-158")
def test_attributes_of_others_are_for_the_same_user_and_whom_a_rule_allows() -> None:
    rules = AccessRules(
        [
            AccessRule(["publish"], ["**"]),
            AccessRule(["signal"], ["$attributes/anna"], user="boss"),
            AccessRule(["signal"], ["$attributes/**"], user="root"),
        ]
    )
    site = Site(passwords=dict.fromkeys(["anna", "bert", "boss", "root"], "x"), rules=rules)
    first, second, bert, boss, root = [
        UmqPeer(site, f'H1:{{"user":"{name}","password":"x"}}') for name in ("anna", "anna", "bert", "boss", "root")
    ]
    first.say("S:key=value")
    forbidden = "E9:12 Forbidden: there is no such connection, or the access rules don't allow it"
    assert [attributes_of(first, each) for each in (second, boss, root)] == ['R9:{"key":"value"}'] * 3
    assert attributes_of(first, bert) == forbidden
    assert [attributes_of(bert, boss), attributes_of(bert, root)] == [forbidden, "R9:{}"]
    assert [peer.say('C9:["attributes",999]')[0] for peer in (bert, boss)] == [forbidden] * 2
    assert root.say('C9:["attributes",999]')[0] != forbidden


@pytest.mark.rule("UMQ-140")
def test_a_lost_connection_leaves_nothing_behind(site: Site) -> None:
    peer, other = UmqPeer(site), UmqPeer(site)
    peer.say('C1:["subscribe","a",1]', 'C2:["subscribe","queue/q",2]', 'C3:["serve","lamp",5]')
    other.say('C1:["call","lamp","on",""]')
    peer.say('C4:["call","lamp","on","","x"]', 'A1:C5:["publish","a",null]')
    peer.wire.lose()
    gone = "503 provider-gone (retry after 1 ms): the provider disconnected before it replied"
    assert other.hears() == [f"E1:8 Temporarily unavailable: {gone}"]
    assert (len(site.hub.table), site.hub.queues, site.hub.services.names()) == (0, {}, [])
    assert site.hub.services.under_way() == 0
    assert list(site.hub.clients) == [other.wire.client.number]


def test_too_many_requests_at_a_time_are_refused(site: Site) -> None:
    peer = UmqPeer(site, limits=Limits(in_flight=1))
    assert peer.say('A1:C1:["publish","a",null]', 'C2:["whoami"]', b"x") == [
        "E2:9 Limit exceeded: 1 requests are in flight",
        "R1:null",
    ]


RULES = AccessRules([AccessRule(["publish", "subscribe"], ["open/**"])])


@pytest.mark.rule("UMQ-143")
@pytest.mark.parametrize(
    "request_",
    [
        '["publish","secret","x"]',
        '["subscribe","secret",1]',
        '["subscribe","**",1]',
        '["subscribe","queue/q",1]',
        '["call","lamp","on",""]',
        '["serve","lamp",5]',
    ],
)
def test_what_no_rule_allows_is_forbidden_and_counted(request_: str) -> None:
    peer = UmqPeer(Site(rules=RULES))
    assert peer.say(f"C1:{request_}") == ["E1:12 Forbidden: the access rules don't allow it"]
    assert peer.drops == {"forbidden": 1}
    assert peer.say('C1:["subscribe","open/**",1]', 'C2:["publish","open/a","x"]') == ["R1:null", "T1:x", "R2:null"]


@pytest.mark.rule("UMQ-143")
def test_what_is_forbidden_does_not_wait_for_its_attachments() -> None:
    peer = UmqPeer(Site(rules=RULES))
    assert peer.say('A1:C1:["publish","secret",null]') == ["E1:12 Forbidden: the access rules don't allow it"]
    assert peer.say(b"late", 'C1:["unserve","x"]') == ["E1:11 Bad request: service 'x' is not served"]


@pytest.mark.rule("UMQ-145")
def test_when_the_hub_goes_down_new_requests_are_refused_and_old_ones_finished(site: Site) -> None:
    peer, caller = UmqPeer(site), UmqPeer(site)
    peer.say('C1:["serve","lamp",5]', 'A1:C2:["publish","a",null]')
    caller.say('C1:["call","lamp","on",""]', 'C2:["subscribe","a",1]')
    assert peer.hears() == ['B1:5:["on",""]']
    for each in (peer, caller):
        each.session.drain()
        each.session.drain()
        assert each.session.busy()
    assert peer.say('C3:["whoami"]') == ["E3:10 Shutting down"]
    assert peer.say(b"last", "R1:done") == ["R2:null"]
    assert caller.hears() == ["A1:T1:", b"last", "R1:done"]
    for each in (peer, caller):
        assert not each.session.busy()
        assert not each.wire.closed
        each.session.goodbye()
        each.session.goodbye()
        assert each.hears() == ["F0:10 Shutting down"]
        assert each.wire.closed


def test_who_goes_with_something_under_way_is_not_busy_any_more(site: Site) -> None:
    peer = UmqPeer(site)
    peer.say('C1:["serve","lamp",5]', 'C2:["call","lamp","on",""]')
    assert peer.session.busy()
    peer.session.goodbye()
    assert not peer.session.busy()


@pytest.mark.rule("UMQ-137")
def test_who_takes_too_long_is_told_so_and_sent_away(site: Site) -> None:
    for peer, words in (
        (UmqPeer(site, None), "the handshake took too long"),
        (UmqPeer(site), "no data received within the idle timeout"),
    ):
        peer.session.timed_out()
        peer.session.timed_out()
        assert peer.hears() == [f"F0:9 Limit exceeded: {words}"]
        assert peer.wire.closed


def test_who_is_sent_away_because_the_login_has_expired_hears_that(site: Site) -> None:
    peer = UmqPeer(site)
    peer.session.goodbye(expired=True)
    assert peer.hears() == ["F0:1 Rejected: the login has expired"]
    assert peer.wire.closed


@pytest.mark.rule("UMQ-145")
def test_who_has_not_said_hello_when_the_hub_goes_down_is_sent_away(site: Site) -> None:
    peer = UmqPeer(site, None)
    peer.session.drain()
    assert peer.hears() == ["F0:10 Shutting down"]
    assert peer.wire.closed


@pytest.mark.rule("UMQ-145")
def test_who_says_hello_to_a_hub_that_goes_down_is_sent_away(site: Site) -> None:
    site.hub.draining = True
    assert UmqPeer(site, None).say("H1:") == ["F0:10 Shutting down"]


def test_a_connection_that_is_lost_while_the_hub_goes_down_is_left_alone(site: Site) -> None:
    peer = UmqPeer(site)
    session = peer.session
    session.drain()
    peer.wire.lose()
    session.goodbye()
    assert peer.hears() == []


def test_octets_are_counted(site: Site) -> None:
    peer = UmqPeer(site)
    before = peer.wire.client.counters.octets_in
    peer.say("S:a=é", b"")
    assert peer.wire.client.counters.octets_in - before == 6
