"""The life of an sABC session on the hub: login, expiry, leaving, going down, and what breaks a rule."""

import pytest

from polywire.hub.access import Identity
from polywire.hub.peer import Limits, Login, Refusal
from polywire.protocols.sabc import Disconnecting, Error
from tests.protocols.sabc.clients import Speaker, error, is_ok
from tests.protocols.sabc.wire import wire
from tests.sessions import Site


class Expiring(Site):
    """A site whose logins end at a given time."""

    def __init__(self, expires: float) -> None:
        super().__init__()
        self.expires = expires

    def who(self, login: Login) -> Identity | Refusal:
        return Identity(login.user, (), "token", self.expires)


@pytest.mark.rule("SABC-01", "SABC-35")
def test_connect_is_answered_with_a_session_of_its_own() -> None:
    client = Speaker(Site(), connect=False)
    client.wire.feed(wire("CONNECT\nclient-id::thermometer-7\n\n^@"))
    client.session = client.sabc._line.session_id
    assert client.heard() == "CONNECTED\nsession-id::@@\n\n^@"
    assert len(client.session) == 22
    assert client.wire.is_established
    assert client.wire.client.name == "thermometer-7"
    assert list(client.site.hub.clients) == [client.wire.client.number]


@pytest.mark.rule("SABC-03", "SABC-90")
def test_a_session_id_is_good_for_its_own_connection_only() -> None:
    site = Site()
    one, other = Speaker(site), Speaker(site)
    assert one.session != other.session
    one.raw(f"MESSAGE\nsession-id::{other.session}\nmsg-id::1\ndestination::a\n\nx\n\n^@")
    assert error(one.got()) == ("401", "1")
    assert other.got() == []
    assert is_ok(one.ask("msg-id::2", "destination::a"), "2")


@pytest.mark.rule("SABC-32", "SABC-33")
def test_the_passcode_proves_the_client_id_and_without_one_no_user_is_claimed() -> None:
    site = Site(passwords={"anna": "secret"})
    client = Speaker(site, "anna", "secret")
    assert client.wire.logins == [Login("anna", "secret")]
    assert client.wire.client.identity.name == "anna"
    open_site = Site()
    assert Speaker(open_site, "anna").wire.logins == [Login()]


@pytest.mark.rule("SABC-96", "SABC-98")
@pytest.mark.parametrize("passcode", ["\nclient-passcode::wrong", ""])
def test_a_failed_login_is_answered_with_401_and_the_end(passcode: str) -> None:
    client = Speaker(Site(passwords={"anna": "secret"}), connect=False)
    client.wire.feed(wire(f"CONNECT\nclient-id::anna{passcode}\n\n^@"))
    assert client.heard() == "ERROR\nerror-code::401\n\nlogin failed\n\n^@"
    assert client.wire.closed
    assert not client.wire.is_established
    assert client.wire.client.counters.faults == {"SABC-98": 1}
    client.wire.lose()
    assert not client.site.hub.clients


def test_what_comes_behind_connect_waits_for_the_login() -> None:
    site = Site()
    site.slow_logins = True
    client = Speaker(site, connect=False)
    client.wire.feed(wire("CONNECT\nclient-id::a\n\n^@MESSAGE\nsession-id::guess\nmsg-id::1\n\nx\n\n^@"))
    assert client.got() == []
    site.pending_logins.pop()()
    first, second = client.got()
    assert type(first).__name__ == "Connected"
    assert error([second]) == ("401", "1")


def test_a_login_that_ends_after_its_connection_did_changes_nothing() -> None:
    site = Site()
    site.slow_logins = True
    client = Speaker(site, connect=False)
    client.wire.feed(wire("CONNECT\nclient-id::a\n\n^@"))
    client.wire.lose()
    site.pending_logins.pop()()
    assert not site.hub.clients
    assert not client.wire.is_established


@pytest.mark.rule("SABC-90")
def test_nothing_is_done_before_connect() -> None:
    client = Speaker(Site(), connect=False)
    client.wire.feed(wire("MESSAGE\nsession-id::x\nmsg-id::1\n\nx\n\n^@"))
    assert error(client.got()) == ("401", "1")
    assert not client.wire.closed
    client.connect()


@pytest.mark.rule("SABC-96")
def test_a_connect_that_is_malformed_is_the_end() -> None:
    client = Speaker(Site(), connect=False)
    client.wire.feed(wire("CONNECT\nname::a\n\n^@"))
    assert error(client.got()) == ("400", None)
    assert client.wire.closed
    assert client.wire.client.counters.faults == {"SABC-85": 1}


@pytest.mark.rule("SABC-91", "SABC-93")
def test_a_second_connect_is_answered_with_409_and_the_session_lives_on() -> None:
    client = Speaker(Site())
    client.raw("CONNECT\nclient-id::again\n\n^@")
    assert error(client.got()) == ("409", None)
    assert is_ok(client.ask("msg-id::1", "destination::a"), "1")


@pytest.mark.rule("SABC-94")
def test_a_broken_frame_is_answered_counted_and_survived() -> None:
    client = Speaker(Site())
    assert error(client.ask("msg-id::1", "destination=a")) == ("400", "1")
    assert error(client.ask("msg-id::1", "destination::a", "content-encoding::base64", body="?")) == ("400", "1")
    assert client.wire.client.counters.faults == {"SABC-87": 1, "SABC-125": 1}
    assert is_ok(client.ask("msg-id::2", "destination::a"), "2")


@pytest.mark.rule("SABC-34", "SABC-36", "SABC-37", "SABC-97", "SABC-110")
def test_a_session_ends_when_the_login_does() -> None:
    site = Expiring(1496353658.5)
    site.clock.now = 1496353600.0
    client = Speaker(site, connect=False)
    client.wire.feed(wire("CONNECT\nclient-id::token\nclient-passcode::jwt\n\n^@"))
    client.session = client.sabc._line.session_id
    expected = "CONNECTED\nsession-id::@@\nsession-expiry::Thu, 01 Jun 2017 21:47:38 GMT\n\n^@"
    assert client.heard() == expected
    client.sabc.goodbye(expired=True)
    assert client.heard() == "DISCONNECTING\nsession-id::@@\n\n^@"
    assert client.wire.closed


def test_an_expiry_no_date_can_tell_is_not_told() -> None:
    client = Speaker(Expiring(1e300))
    assert client.expiry is None


@pytest.mark.rule("SABC-38", "SABC-39", "SABC-41", "SABC-111")
def test_disconnect_is_answered_once_everything_accepted_is() -> None:
    site = Site()
    client, provider = Speaker(site), Speaker(site)
    provider.ask("msg-id::1", "op::serve", "service::slow")
    client.raw("MESSAGE\nsession-id::@@\nmsg-id::7\nop::call\nservice::slow\nmethod::m\n\n^@")
    client.raw("DISCONNECT\nsession-id::@@\n\n^@")
    assert client.heard() == ""
    [request] = provider.messages()
    provider.ask(f"ref-msg-id::{request.msg_id}", body="done")
    assert client.heard() == ("MESSAGE\nsession-id::@@\nref-msg-id::7\n\ndone\n\n^@DISCONNECTING\nsession-id::@@\n\n^@")
    assert client.wire.closed


@pytest.mark.rule("SABC-40", "SABC-102")
def test_after_disconnect_messages_are_refused_with_503() -> None:
    site = Site()
    client, provider = Speaker(site), Speaker(site)
    provider.ask("msg-id::1", "op::serve", "service::slow")
    client.ask("msg-id::7", "op::call", "service::slow", "method::m")
    client.raw("DISCONNECT\nsession-id::@@\n\n^@")
    assert error(client.ask("msg-id::8", "destination::a")) == ("503", "8")


@pytest.mark.rule("SABC-39")
def test_a_provider_that_leaves_answers_no_more() -> None:
    site = Site()
    client, provider = Speaker(site), Speaker(site)
    provider.ask("msg-id::1", "op::serve", "service::slow")
    client.ask("msg-id::7", "op::call", "service::slow", "method::m")
    provider.got()
    provider.raw("DISCONNECT\nsession-id::@@\n\n^@")
    assert error(client.got()) == ("503", "7")
    assert provider.got() == [Disconnecting(provider.session)]
    assert provider.wire.closed


@pytest.mark.rule("SABC-42")
def test_behind_a_clients_disconnecting_nothing_counts() -> None:
    client = Speaker(Site())
    client.raw("DISCONNECTING\nsession-id::@@\n\n^@MESSAGE\nsession-id::@@\nmsg-id::1\ndestination::a\n\nx\n\n^@")
    assert client.got() == []
    assert client.wire.closed
    client.sabc.received(b"more")
    assert client.wire.client.counters.messages_in == 0


@pytest.mark.rule("SABC-43")
def test_a_connection_may_just_end_and_a_cut_frame_is_counted() -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    client.wire.lose()
    other.raw("MESSAGE\nsession-id::@@\nmsg-id::1\ndesti")
    other.wire.lose()
    assert site.hub.counters[client.wire.client.protocol].faults == {"SABC-43": 1}
    assert not site.hub.clients


@pytest.mark.rule("SABC-101")
def test_who_is_too_slow_is_told_so() -> None:
    site = Site()
    silent, idle = Speaker(site, connect=False), Speaker(site)
    silent.sabc.timed_out()
    assert silent.heard() == "ERROR\nerror-code::408\n\nno CONNECT received in time\n\n^@"
    assert silent.wire.closed
    idle.sabc.timed_out()
    first, second = idle.got()
    assert error([first]) == ("408", None)
    assert second == Disconnecting(idle.session)
    assert idle.wire.closed
    idle.sabc.timed_out()
    assert idle.got() == []


def test_a_hub_that_goes_down_refuses_new_work_and_finishes_the_old() -> None:
    site = Site()
    client, provider, late = Speaker(site), Speaker(site), Speaker(site, connect=False)
    provider.ask("msg-id::1", "op::serve", "service::slow")
    client.ask("msg-id::7", "op::call", "service::slow", "method::m")
    for each in (client, provider, late):
        each.sabc.drain()
    assert client.sabc.busy()
    assert provider.sabc.busy()
    assert not late.sabc.busy()
    assert error(client.ask("msg-id::8", "destination::a")) == ("503", "8")
    late.wire.feed(wire("CONNECT\nclient-id::a\n\n^@"))
    assert error(late.got()) == ("503", None)
    assert late.wire.closed
    [request] = provider.messages()
    provider.ask(f"ref-msg-id::{request.msg_id}", body="done")
    assert [frame.body for frame in client.messages()] == [b"done"]
    assert not client.sabc.busy()
    client.sabc.goodbye()
    client.sabc.goodbye()
    assert client.got() == [Disconnecting(client.session)]
    assert client.wire.closed


@pytest.mark.rule("SABC-123")
def test_an_error_from_a_client_is_not_answered() -> None:
    client = Speaker(Site())
    client.raw("ERROR\nerror-code::500\n\nsomething\n\n^@")
    client.raw("ERROR\nsession-id::@@\nref-msg-id::99\n\nsomething\n\n^@")
    assert client.got() == []


def test_before_the_login_less_is_read() -> None:
    limits = Limits(message_size=4000, message_size_before_auth=600, header_size=2000)
    client = Speaker(Site(), connect=False, limits=limits)
    client.wire.feed(wire("CONNECT\nclient-id::" + "a" * 700 + "\n\n^@"))
    [frame] = client.got()
    assert isinstance(frame, Error)
    assert frame.error_code == "429"
    assert client.wire.closed
    other = Speaker(Site(), limits=limits)
    assert is_ok(other.ask("msg-id::1", "destination::a", "long::" + "a" * 1500, body="b" * 1000), "1")


def test_too_many_broken_messages_end_the_connection() -> None:
    client = Speaker(Site(), limits=Limits(unfinished=1))
    for number in range(1027):
        client.raw(f"MESSAGE\nsession-id::@@\nmsg-id::{number}\nmsg-more::yes\n\nx")
    assert client.wire.closed
    assert client.wire.client.counters.faults["SABC-128"] == 1
