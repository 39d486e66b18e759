"""What crosses between the hub's messages and sABC, and what is left behind."""

import pytest

from polywire.hub.channels import ANY
from polywire.hub.message import Date, Message
from polywire.protocols.sabc.delivery import MAX_DESTINATIONS, _destinations
from tests.hub.links import contents
from tests.protocols.sabc.clients import Speaker, value
from tests.sessions import Site


def pushed(message: Message) -> Speaker:
    """A subscriber to everything, to whom the message was published by another protocol."""
    site = Site()
    client = Speaker(site)
    client.ask("msg-id::s", "op::subscribe", "destination::**")
    site.hub.publish(message, client.wire.client)
    return client


def test_text_numbers_and_dates_travel_as_text() -> None:
    headers = (("t", "text"), ("n", 5), ("f", 2.5), ("d", Date(1496353658)))
    [found] = pushed(Message("a", b"x", "text/plain", headers)).messages()
    assert [value(found, key) for key in ("t", "n", "f", "d")] == ["text", "5", "2.5", "Thu, 01 Jun 2017 21:47:38 GMT"]
    assert value(found, "content-type") == "text/plain"


@pytest.mark.parametrize(
    "header",
    [
        ("a", "b::c"),
        ("a", "b\r\nc"),
        ("msg-id", "9"),
        ("destination", "x"),
        ("", "x"),
        ("d", Date(1e300)),
        ("d", Date(float("inf"))),
    ],
)
def test_a_header_that_can_not_be_written_is_left_behind(header: tuple[str, str]) -> None:
    [found] = pushed(Message("a", b"x", "text\n", (header, ("k", "v")))).messages()
    assert [key for key, _ in found.headers] == ["subscription", "destination", "k"]


def test_a_time_that_never_comes_is_left_behind() -> None:
    [found] = pushed(Message("a", b"x", headers=(("d", Date(float("inf"))),))).messages()
    assert value(found, "d") is None


def test_a_name_that_can_not_be_written_is_left_behind() -> None:
    for channel in ("a::b", "a\rb", "a\nb"):
        [found] = pushed(Message(channel, b"x")).messages()
        assert value(found, "destination") is None
        assert found.body == b"x"


def test_a_publication_to_a_pattern_names_it_with_stars() -> None:
    [found] = pushed(Message(f"a/{ANY}", b"x")).messages()
    assert value(found, "destination") == "a/*"


def test_destinations_are_kept_within_bounds() -> None:
    site = Site()
    client = Speaker(site)
    client.ask("msg-id::s", "op::subscribe", "destination::**")
    for number in range(MAX_DESTINATIONS + 10):
        site.hub.publish(Message(f"bounds/{number}", b"x"), client.wire.client)
    site.hub.publish(Message("long" * 100, b"x"), client.wire.client)
    assert len(_destinations) <= MAX_DESTINATIONS
    assert value(client.messages()[-1], "destination") == "long" * 100


@pytest.mark.rule("SABC-82")
@pytest.mark.parametrize("body", [b"\xff", b"\0x", b"\r\n\0x", b"a\r\n\r\n\0b"])
def test_a_body_that_is_no_text_is_pushed_as_base64(body: bytes) -> None:
    site = Site()
    client, other = Speaker(site), Speaker(site)
    client.ask("msg-id::s", "op::subscribe", "destination::a")
    site.hub.publish(Message("a", body, headers=(("content-encoding", "gzip"),)), other.wire.client)
    [found] = client.messages()
    assert [pair for pair in found.headers if pair[0] == "content-encoding"] == [("content-encoding", "base64")]


def test_another_content_encoding_travels_with_text() -> None:
    [found] = pushed(Message("a", b"x", headers=(("content-encoding", "rot13"),))).messages()
    assert value(found, "content-encoding") == "rot13"


@pytest.mark.rule("SABC-126")
def test_a_body_with_a_sessions_own_id_is_base64_for_that_session_only() -> None:
    site = Site()
    one, other = Speaker(site), Speaker(site)
    for each in (one, other):
        each.ask("msg-id::s", "op::subscribe", "destination::a")
    body = f"MESSAGE\r\nsession-id::{one.session}\r\nmsg-id::1\r\n\r\nx".encode()
    site.hub.publish(Message("a", body), other.wire.client)
    [mine] = one.messages()
    [others] = other.messages()
    assert value(mine, "content-encoding") == "base64"
    assert (value(others, "content-encoding"), others.body) == (None, body)


@pytest.mark.rule("SABC-83", "SABC-118")
def test_what_a_client_sends_becomes_a_message_of_the_hub() -> None:
    site = Site()
    client = Speaker(site)
    site.hub.queue("a")
    headers = ["content-type::image/png", "content-encoding::base64", "x::y", "X::z", "subscription::no"]
    client.ask("msg-id::1", "destination::queue/a", *headers, body="/w==")
    [message] = contents(site.hub.queue("a"))
    assert (message.channel, message.body, message.content_type) == ("queue/a", b"\xff", "image/png")
    assert message.headers == (("x", "y"), ("X", "z"))
    assert message.origin == client.wire.client.number
