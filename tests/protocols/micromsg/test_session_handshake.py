"""The hub's side of the handshake: negotiation, login, and what ends it."""

import pytest

from polywire.hub.access import Identity
from polywire.hub.peer import Limits, Login, Refusal
from polywire.protocols.micromsg.frames import Command, Error, Handshake, Message, encode
from polywire.protocols.micromsg.text import NamedExtension, read_extensions
from tests.protocols.micromsg.talk import Talker, handshake
from tests.sessions import Site


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.rule("MICROMSG-34", "MICROMSG-106", "MICROMSG-11")
def test_the_complete_example_octet_for_octet(site: Site) -> None:
    talker = Talker(site, None)
    assert talker.wire.taken() == b""
    talker.wire.feed(b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\0")
    assert talker.wire.taken() == b"\x01\0\0\x08polywire\0\0\0\x16batch-ack:max-count=10"
    assert not site.hub.clients
    talker.wire.feed(b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\x16batch-ack:max-count=10")
    assert talker.wire.taken() == b""
    assert talker.wire.is_established
    assert talker.wire.client.name == "hulk"
    assert site.hub.clients == {talker.wire.client.number: talker.wire.client}
    # SEND 1 with type A, then its ack: batch-ack is number 3.
    talker.wire.feed(b"\x02\x02\x01A" + b"\0\0\x01\x07topic/a\0\0\x0221")
    assert talker.wire.taken() == b"\x02\x03\x02\0\x01"


def test_what_the_client_asks_of_batch_ack_it_gets_within_the_limit(site: Site) -> None:
    for offer, reply in ((100, 100), (5, 5), (5000, 1000)):
        talker = Talker(site, None)
        talker.wire.feed(handshake("", f"batch-ack:max-count={offer}"))
        assert talker.wire.taken() == handshake("", f"batch-ack:max-count={reply}", "polywire")


def test_a_client_that_wants_ack_is_not_talked_into_batch_ack(site: Site) -> None:
    talker = Talker(site, None)
    talker.wire.feed(handshake("", "ack"))
    assert talker.wire.taken() == handshake("", "ack", "polywire")


@pytest.mark.rule("MICROMSG-31")
def test_of_the_optional_ones_the_hub_names_those_it_knows(site: Site) -> None:
    talker = Talker(site, None)
    talker.wire.feed(handshake("", "json;xml;protobuf;"))
    assert talker.frames() == [Handshake("polywire", (), tuple(_listed("json;batch-ack:max-count=10")))]
    talker.wire.feed(handshake("", "json"))
    assert talker.wire.is_established


def _listed(text: str) -> list[NamedExtension]:

    return list(read_extensions(text.encode()))


@pytest.mark.parametrize(
    ("octets", "name", "fault"),
    [
        (b"\x02\0\0\0\0\0\0\0", "bad-version", "MICROMSG-108"),
        (handshake("xml"), "unsupported-extension", "MICROMSG-14"),
        (handshake("json") + handshake(""), "bad-handshake", "MICROMSG-101"),
        (handshake("json") + handshake("json;dotnet"), "bad-handshake", "MICROMSG-101"),
        (handshake("", "xml") + handshake("", "xml"), "unsupported-extension", "MICROMSG-165"),
        (handshake("x-auth:user=a") + handshake("x-auth:user=a"), "bad-handshake", "MICROMSG-101"),
        (handshake("json") + b"GET / HTTP/1.1", "bad-handshake", "MICROMSG-105"),
        (b"\x01\0\0\0\xff\xff", "too-large", "MICROMSG-154"),
    ],
)
def test_a_handshake_that_fails_is_told_and_ends(site: Site, octets: bytes, name: str, fault: str) -> None:
    talker = Talker(site, None, limits=Limits(message_size_before_auth=8192))
    talker.wire.feed(octets)
    written = talker.wire.taken()
    reply = written[:1] == b"\x01"
    talker.decoder = talker.decoder if reply else type(talker.decoder)("client", established=True)
    error = talker.decoder.feed(written)[-1]
    assert isinstance(error, Error)
    assert error.name == name
    assert talker.closed
    assert talker.wire.client.counters.faults == {fault: 1}
    assert not site.hub.clients


def test_an_error_of_the_client_in_the_handshake_ends_it_quietly(site: Site) -> None:
    talker = Talker(site, None)
    talker.wire.feed(handshake(""))
    talker.frames()
    talker.tell(Error("unsupported-extension", (("name", "batch-ack"),)))
    assert talker.closed
    assert talker.wire.taken() == b""


class TestLogin:
    @pytest.fixture
    def site(self) -> Site:
        return Site(passwords={"anna": "p w"})

    @pytest.mark.rule("MICROMSG-178")
    def test_user_and_password_come_with_x_auth(self, site: Site) -> None:
        talker = Talker(site, "x-auth:user=anna,password=p%20w;pub-sub")
        assert talker.wire.is_established
        assert talker.wire.logins == [Login("anna", "p w")]
        assert talker.wire.client.identity == Identity("anna", (), "password")

    def test_a_token_comes_with_x_auth(self, site: Site) -> None:
        assert Talker(site, "x-auth:token=abc").wire.logins == [Login(token="abc")]

    def test_without_x_auth_the_listener_or_the_certificate_decides(self, site: Site) -> None:
        assert Talker(site, "pub-sub").wire.logins == [Login()]

    @pytest.mark.rule("MICROMSG-178")
    def test_a_refused_login_is_forbidden_and_ends_the_connection(self, site: Site) -> None:
        talker = Talker(site, "x-auth:user=anna,password=guess")
        assert talker.frames() == [Error("forbidden", (("name", "x-auth"), ("reason", "login failed")))]
        assert talker.closed
        assert not talker.wire.is_established
        assert talker.wire.client.counters.faults == {"login": 1}

    @pytest.mark.rule("MICROMSG-178")
    def test_what_came_with_the_final_message_waits_for_the_login(self, site: Site) -> None:
        site.slow_logins = True
        talker, use = Talker(site, None), "x-auth:user=anna,password=p%20w;pub-sub"
        talker.wire.feed(handshake(use) + handshake(use) + encode(Command("ping")) + b"\xff")
        talker.frames()
        assert not talker.wire.is_established
        site.pending_logins.pop()()
        pong, error = talker.frames()
        assert pong == Command("pong")
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
        assert talker.closed

    def test_a_refusal_tells_when_to_try_again(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site, "who", lambda _: Refusal("login refused", 0.5))
        (error,) = Talker(site, "x-auth:user=anna,password=guess").frames()
        assert isinstance(error, Error)
        assert error.value("retry-after") == "0.500"

    def test_what_came_with_a_final_message_that_is_refused_is_never_looked_at(self, site: Site) -> None:
        site.slow_logins = True
        talker, use = Talker(site, None), "x-auth:user=anna,password=guess"
        talker.wire.feed(handshake(use) + handshake(use) + encode(Message(1, "q", b"")))
        talker.frames()
        site.pending_logins.pop()()
        assert [type(frame) for frame in talker.frames()] == [Error]
        assert not site.hub.queues

    def test_a_connection_lost_during_its_login_never_joins(self, site: Site) -> None:
        site.slow_logins = True
        talker = Talker(site, "x-auth:user=anna,password=p%20w")
        talker.wire.lose()
        site.pending_logins.pop()()
        assert not site.hub.clients


def test_before_the_login_only_small_handshakes_are_held(site: Site) -> None:
    talker = Talker(site, None, limits=Limits(message_size_before_auth=100))
    talker.wire.feed(b"\x01\0\0\0\0\x65")
    assert talker.closed


class TestDrain:
    def test_before_the_offer_the_hub_just_hangs_up(self, site: Site) -> None:
        talker = Talker(site, None)
        talker.wire.session.drain()  # type: ignore[attr-defined]
        assert talker.wire.taken() == b""
        assert talker.closed

    def test_in_the_handshake_the_client_is_told(self, site: Site) -> None:
        talker = Talker(site, None)
        talker.wire.feed(handshake(""))
        talker.frames()
        talker.wire.session.drain()  # type: ignore[attr-defined]
        assert talker.frames() == [Error("shutting-down")]
        assert talker.closed

    def test_an_offer_to_a_hub_that_goes_down_is_answered_so(self, site: Site) -> None:
        talker = Talker(site, None)
        site.hub.draining = True
        talker.wire.feed(handshake(""))
        assert talker.wire.taken() == encode(Error("shutting-down"))
        assert talker.closed

    @pytest.mark.rule("MICROMSG-186")
    def test_so_is_an_offer_that_it_could_not_accept_anyway(self, site: Site) -> None:
        talker = Talker(site, None)
        site.hub.draining = True
        talker.wire.feed(handshake("x-unknown"))
        assert talker.wire.taken() == encode(Error("shutting-down"))
        assert talker.closed
        assert talker.wire.client.counters.faults == {}

    def test_during_a_login_the_client_is_sent_away_too(self, site: Site) -> None:
        site.slow_logins = True
        talker = Talker(site, "pub-sub")
        talker.wire.session.drain()  # type: ignore[attr-defined]
        assert talker.frames() == [Error("shutting-down")]
        assert talker.closed
        site.pending_logins.pop()()
        assert talker.frames() == []
        assert not site.hub.clients


@pytest.mark.rule("MICROMSG-176")
def test_a_handshake_that_takes_too_long_is_ended_and_said_so_to_whom_it_can_be(site: Site) -> None:
    silent, begun, slow = Talker(site, None), Talker(site, None), Talker(site, None)
    begun.wire.feed(handshake("json")[:-1])
    begun.decoder = type(begun.decoder)("client", established=True)
    slow.wire.feed(handshake(""))
    slow.frames()
    for talker in (silent, begun, slow):
        talker.wire.session.timed_out()  # type: ignore[attr-defined]
        assert talker.closed
    assert silent.wire.taken() == b""
    for talker in (begun, slow):
        assert talker.frames() == [Error("bad-handshake", (("reason", "the handshake took too long"),))]
