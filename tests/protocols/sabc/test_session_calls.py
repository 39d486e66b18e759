"""Calls over sABC: made by a client, answered by a client, and all the ways they fail."""

import pytest

from polywire.hub.message import Message as HubMessage
from polywire.hub.peer import Limits
from polywire.hub.services import Call, Caller, CallError
from polywire.protocols.sabc import Error, Message
from polywire.protocols.sabc.headers import SENT_MSG_ID, error_headers, header
from tests.protocols.sabc.clients import Speaker, error, is_ok, value
from tests.sessions import Site


class Elsewhere(Caller):
    """A caller by another protocol."""

    def __init__(self) -> None:
        self.replies: list[HubMessage] = []
        self.errors: list[CallError] = []

    def reply(self, call: Call, message: HubMessage, *, last: bool) -> None:  # noqa: ARG002
        self.replies.append(message)

    def fail(self, call: Call, error: CallError) -> None:  # noqa: ARG002
        self.errors.append(error)


def pair(**limits: float) -> tuple[Site, Speaker, Speaker]:
    """A site, a caller and the provider of ``greeter``."""
    site = Site()
    settings = Limits(**limits)  # type: ignore[arg-type]
    caller, provider = Speaker(site, limits=settings), Speaker(site, limits=settings)
    assert is_ok(provider.ask("msg-id::1", "op::serve", "service::greeter"), "1")
    return site, caller, provider


@pytest.mark.rule("SABC-46", "SABC-54", "SABC-118", "SABC-119")
def test_a_call_goes_to_the_provider_and_its_reply_to_the_caller() -> None:
    _, caller, provider = pair()
    assert caller.ask("msg-id::000001", "op::call", "service::greeter", "method::hi", "lang::es", body="Hola") == []
    assert provider.heard() == (
        "MESSAGE\nsession-id::@@\nmsg-id::1\nservice::greeter\nmethod::hi\nlang::es\n\nHola\n\n^@"
    )
    provider.ask("ref-msg-id::1", "content-type::text/plain", "x::y", body="Mundo!!!")
    assert caller.heard() == (
        "MESSAGE\nsession-id::@@\nref-msg-id::000001\ncontent-type::text/plain\nx::y\n\nMundo!!!\n\n^@"
    )


def test_a_providers_error_fails_the_call() -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.raw("ERROR\nsession-id::@@\nerror-code::422\nref-msg-id::1\n\nnot like that\n\n^@")
    answer = "error-code::422\nref-msg-id::7\nerror-source::service\n\nnot like that\n\n^@"
    assert caller.heard() == f"ERROR\nsession-id::@@\n{answer}"


@pytest.mark.rule("SABC-138", "SABC-139")
@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        ("error-tag::no-item", "error-tag::no-item\nerror-source::service"),
        ("retry-after::3000", "retry-after::3000\nerror-source::service"),
        ("retry-after::soon", "error-source::service"),
        ("retry-after::-1", "error-source::service"),
        ("retry-after::00000000001", "error-source::service"),
        ("error-source::hub", "error-source::service"),
        ("error-tag::a\nretry-after::1\nx::y", "error-tag::a\nretry-after::1\nerror-source::service"),
    ],
)
def test_a_providers_error_keeps_its_tag_and_its_time(sent: str, heard: str) -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.raw(f"ERROR\nsession-id::@@\nerror-code::404\nref-msg-id::1\n{sent}\n\nno\n\n^@")
    answer = f"error-code::404\nref-msg-id::7\n{heard}\n\nno\n\n^@"
    assert caller.heard() == f"ERROR\nsession-id::@@\n{answer}"


@pytest.mark.rule("SABC-138")
@pytest.mark.parametrize("tag", ["a::b", "a\r\nb", "\ud800"])
def test_a_tag_that_no_header_can_have_is_left_behind(tag: str) -> None:
    assert error_headers(tag, 5, by_service=True) == (("retry-after", "5"), ("error-source", "service"))


@pytest.mark.parametrize("code", ["200", "abc", "٤٠٤", "4040"])
def test_an_error_code_that_is_none_becomes_500(code: str) -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.raw(f"ERROR\nsession-id::@@\nerror-code::{code}\nref-msg-id::1\n\n^@")
    assert error(caller.got()) == ("500", "7")


@pytest.mark.rule("SABC-105")
@pytest.mark.parametrize("marked", [False, True])
def test_the_reply_to_a_truncated_call_says_so(marked: bool) -> None:
    _, caller, provider = pair(message_size=300)
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi", body="x" * 300)
    [request] = provider.messages()
    assert request.truncated
    assert len(request.body) < 300
    provider.ask(f"ref-msg-id::{request.msg_id}", *(["truncated::yes"] if marked else []), body="hello")
    [reply] = caller.messages()
    assert (reply.body, reply.headers) == (b"hello", (("truncated", "yes"),))
    caller.ask("msg-id::8", "op::call", "service::greeter", "method::hi", body="x")
    provider.ask("ref-msg-id::2", body="hello")
    [reply] = caller.messages()
    assert reply.headers == ()


@pytest.mark.rule("SABC-134")
@pytest.mark.parametrize("key", ["ref-msg-id", "msg-id", "message-id"])
def test_an_error_names_the_call_it_is_about_in_any_of_three_headers(key: str) -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.raw(f"ERROR\nsession-id::@@\nerror-code::418\n{key}::1\n\nno\n\n^@")
    assert error(caller.got()) == ("418", "7")


@pytest.mark.rule("SABC-100")
def test_a_service_nobody_offers_is_answered_with_404() -> None:
    _, caller, provider = pair()
    assert error(caller.ask("msg-id::7", "op::call", "service::other", "method::hi")) == ("404", "7")
    assert is_ok(provider.ask("msg-id::2", "op::unserve", "service::greeter"), "2")
    assert error(caller.ask("msg-id::8", "op::call", "service::greeter", "method::hi")) == ("404", "8")
    assert error(provider.ask("msg-id::3", "op::unserve", "service::greeter")) == ("404", "3")


@pytest.mark.rule("SABC-101")
def test_a_provider_that_takes_too_long_is_told_and_so_is_the_caller() -> None:
    site, caller, provider = pair(call_time=2.0)
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    [request] = provider.messages()
    site.clock.advance(3)
    assert error(caller.got()) == ("504", "7")
    [told] = provider.got()
    assert isinstance(told, Error)
    assert (told.error_code, told.about, header(told.headers, SENT_MSG_ID)) == ("408", None, request.msg_id)
    assert provider.ask(f"ref-msg-id::{request.msg_id}", body="late") == []
    assert caller.got() == []


def test_a_provider_that_goes_away_fails_its_calls() -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.wire.lose()
    assert error(caller.got()) == ("503", "7")
    assert error(caller.ask("msg-id::8", "op::call", "service::greeter", "method::hi")) == ("404", "8")


def test_a_caller_that_goes_away_leaves_nothing() -> None:
    site, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.got()
    caller.wire.lose()
    assert site.hub.services.under_way() == 0
    assert not provider.sabc.busy()
    assert provider.ask("ref-msg-id::1", body="late") == []


def test_calls_under_way_are_limited() -> None:
    _, caller, provider = pair(in_flight=2)
    for number in range(2):
        caller.ask(f"msg-id::{number}", "op::call", "service::greeter", "method::hi")
    assert error(caller.ask("msg-id::3", "op::call", "service::greeter", "method::hi")) == ("429", "3")
    provider.ask("ref-msg-id::1")
    caller.got()
    assert caller.ask("msg-id::4", "op::call", "service::greeter", "method::hi") == []


def test_the_reply_of_a_send_only_call_goes_nowhere() -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi", "send-only::yes")
    provider.ask("ref-msg-id::1", body="x")
    assert caller.got() == []
    assert not caller.sabc.busy()
    assert error(caller.ask("msg-id::8", "op::call", "service::none", "method::hi", "send-only::yes")) == ("404", "8")


def test_offering_a_service_twice_is_offering_it_once() -> None:
    site, caller, provider = pair()
    assert is_ok(provider.ask("msg-id::2", "op::serve", "service::greeter"), "2")
    for number in range(2):
        caller.ask(f"msg-id::{number}", "op::call", "service::greeter", "method::hi")
    assert len(provider.messages()) == 2
    provider.wire.lose()
    assert site.hub.services.names() == []


def test_a_client_may_call_itself() -> None:
    client = Speaker(Site())
    client.ask("msg-id::1", "op::serve", "service::me")
    [request] = client.ask("msg-id::2", "op::call", "service::me", "method::m", body="q")
    assert isinstance(request, Message)
    [reply] = client.ask(f"ref-msg-id::{request.msg_id}", body="a")
    assert isinstance(reply, Message)
    assert (reply.ref_msg_id, reply.body) == ("2", b"a")
    client.ask("msg-id::3", "op::call", "service::me", "method::m")
    client.raw("DISCONNECT\nsession-id::@@\n\n^@")
    failed, end = client.got()
    assert error([failed]) == ("503", "3")
    assert type(end).__name__ == "Disconnecting"


def test_calls_from_other_protocols_bring_octets_and_headers() -> None:
    site, _, provider = pair()
    elsewhere = Elsewhere()
    request = HubMessage("", b"\xff\x00", "application/protobuf", (("n", 5),))
    site.hub.services.start(Call(elsewhere, "greeter", "hi"), request)
    [message] = provider.messages()
    assert value(message, "n") == "5"
    assert value(message, "content-type") == "application/protobuf"
    assert value(message, "content-encoding") == "base64"
    provider.ask("ref-msg-id::1", "content-encoding::base64", "content-type::a/b", "h::v", body="/w==")
    [reply] = elsewhere.replies
    assert (reply.body, reply.content_type, reply.headers) == (b"\xff", "a/b", (("h", "v"),))


def test_what_a_provider_can_not_be_asked_fails_clearly() -> None:
    site, _, provider = pair()
    elsewhere = Elsewhere()
    site.hub.services.start(Call(elsewhere, "greeter", "hi"), HubMessage("", b""), last=False)
    site.hub.services.start(Call(elsewhere, "greeter", "a::b"), HubMessage("", b""))
    assert [error.code for error in elsewhere.errors] == [400, 400]
    assert provider.got() == []


def test_a_reply_in_several_frames_is_one() -> None:
    _, caller, provider = pair()
    caller.ask("msg-id::7", "op::call", "service::greeter", "method::hi")
    provider.raw("MESSAGE\nsession-id::@@\nref-msg-id::1\nmsg-more::yes\n\none ")
    provider.raw("MESSAGE\nsession-id::@@\nref-msg-id::1\n\ntwo\n\n^@")
    assert [message.body for message in caller.messages()] == [b"one two"]
