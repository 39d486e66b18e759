"""What two sides agree on in the handshake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg.connection import Agreement, Connection, Ended, Terms
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import Decoder, Error, Extension, Handshake, encode
from polywire.protocols.micromsg.text import KNOWN, NamedExtension, batch_ack, read_extensions, write_extensions
from polywire.wire.frame import Frame, Role
from tests.protocols.micromsg import strategies
from tests.protocols.micromsg.pairs import events, pair


def listed(text: str) -> tuple[NamedExtension, ...]:
    return read_extensions(text.encode())


def text(found: tuple[NamedExtension, ...]) -> str:
    return write_extensions(found).decode()


def said(required: str = "", optional: str = "", *, identity: str = "c", minor: int = 0) -> bytes:
    """A handshake message of anybody, written out: not all of them are such as we would encode."""
    lists = b"".join(len(names).to_bytes(2, "big") + names.encode() for names in (required, optional))
    return bytes([1, minor, 0, len(identity)]) + identity.encode() + lists


def only(found: list[Frame]) -> Handshake | Error:
    (event,) = found
    if isinstance(event, Ended):
        return event.error
    assert isinstance(event, Handshake)
    return event


def offer(terms: Terms) -> Handshake:
    """The offer of a client with these terms."""
    (found,) = Decoder().feed(Connection(Role.CLIENT, terms).handshake())
    assert isinstance(found, Handshake)
    return found


def answer(received: bytes, terms: Terms) -> Handshake | Error:
    """What a server with these terms replies to an offer."""
    server = Connection(Role.SERVER, terms)
    taken = only(events(server, received))
    return taken if isinstance(taken, Error) else only(Decoder("client").feed(server.handshake()))


def replied(received: bytes, terms: Terms) -> Handshake:
    reply = answer(received, terms)
    assert isinstance(reply, Handshake), reply
    return reply


def finished(received: bytes, terms: Terms) -> tuple[Handshake | Error, Agreement | None]:
    """The final message with which a client answers a reply, and what it has agreed on then."""
    client = Connection(Role.CLIENT, terms)
    client.handshake()
    taken = only(events(client, received))
    return (taken, None) if isinstance(taken, Error) else (only(Decoder().feed(client.handshake())), client.agreement)


def final(received: bytes, terms: Terms) -> Handshake:
    found, _ = finished(received, terms)
    assert isinstance(found, Handshake), found
    return found


def agree(offered: bytes, last: bytes, terms: Terms) -> Agreement | Error:
    """What a server has agreed on with an offer and a final message."""
    server = Connection(Role.SERVER, terms)
    events(server, offered)
    server.handshake()
    taken = only(events(server, last))
    if isinstance(taken, Error):
        return taken
    assert server.agreement is not None
    return server.agreement


def shake(client: Terms, server: Terms) -> tuple[Agreement, Agreement]:
    """A whole handshake; what the client and what the server have agreed on."""
    near, far = pair(client, server)
    assert near.agreement is not None
    assert far.agreement is not None
    return near.agreement, far.agreement


@pytest.mark.rule("MICROMSG-34", "MICROMSG-33", "MICROMSG-102", "MICROMSG-30", "MICROMSG-29")
def test_the_complete_example_numbers_json_dotnet_and_batch_ack() -> None:
    client = Terms("hulk", supported=("json", "dotnet", "batch-ack"), required=listed("json;dotnet"))
    server = Terms("srver", optional=listed("batch-ack"))
    near, far = Connection(Role.CLIENT, client), Connection(Role.SERVER, server)
    offered = near.handshake()
    assert offered == b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\0"
    events(far, offered)
    reply = far.handshake()
    assert reply == b"\x01\0\0\x05srver\0\0\0\x16batch-ack:max-count=10"
    events(near, reply)
    assert near.handshake() == b"\x01\0\0\x04hulk\0\x0bjson;dotnet\0\x16batch-ack:max-count=10"
    for agreement in shake(client, server):
        assert [agreement.number(name) for name in ("json", "dotnet", "batch-ack")] == [1, 2, 3]
        assert agreement.window == 10
        assert agreement.json


@pytest.mark.rule("MICROMSG-31", "MICROMSG-106", "MICROMSG-04")
def test_the_example_of_optional_extensions_ends_with_json_alone() -> None:
    offered = said(optional="json;xml;protobuf;")
    server = Terms("s", supported=("json", "ack", "batch-ack"), optional=listed("ack;batch-ack"))
    reply = replied(offered, server)
    assert text(reply.optional) == "json;batch-ack:max-count=10"  # MICROMSG-116
    assert reply.required == ()
    agreement = agree(offered, said(optional="json"), server)
    assert isinstance(agreement, Agreement)
    assert agreement.number("json") == 1
    assert agreement.acks is None
    assert agreement.window == 0
    for received in (encode(reply), said(optional="json;ack;batch-ack")):
        assert text(final(received, Terms("c", supported=("json",), optional=listed("json"))).optional) == "json"


@pytest.mark.rule("MICROMSG-16", "MICROMSG-102", "MICROMSG-30")
def test_both_sides_may_require_and_suggest() -> None:
    every = ("x-a", "x-b", "x-c", "x-y", "x-z")
    client = Terms("c", supported=(*every, "x-x"), required=listed("x-a;x-b"), optional=listed("x-x;x-y"))
    server = Terms("s", supported=every, required=listed("x-c"), optional=listed("x-y;x-z"))
    reply = replied(encode(offer(client)), server)
    assert (text(reply.required), text(reply.optional)) == ("x-c", "x-y;x-z")
    for agreement in shake(client, server):
        assert [extension.name for extension in agreement.extensions] == ["x-a", "x-b", "x-c", "x-y", "x-z"]
        assert agreement.extension(3) == NamedExtension("x-c")


@pytest.mark.rule("MICROMSG-14", "MICROMSG-98")
def test_a_server_refuses_a_required_extension_it_lacks() -> None:
    error = answer(said("json;xml"), Terms("s"))
    assert error == Error("unsupported-extension", (("name", "xml"),))
    assert isinstance(error, Error)
    assert encode(error) == b"\x04\x1eunsupported-extension;name=xml"


@pytest.mark.rule("MICROMSG-15")
def test_a_client_refuses_a_required_extension_it_lacks() -> None:
    error, _ = finished(said("json;x-c"), Terms("c"))
    assert error == Error("unsupported-extension", (("name", "x-c"),))


@pytest.mark.rule("MICROMSG-15", "MICROMSG-115")
def test_a_client_without_credentials_can_not_log_in() -> None:
    wanted = replied(said(), Terms("s", required=listed("x-auth")))
    assert finished(encode(wanted), Terms("c"))[0] == Error("unsupported-extension", (("name", "x-auth"),))
    assert final(said(optional="x-auth"), Terms("c")).optional == ()


@pytest.mark.rule("MICROMSG-01", "MICROMSG-12", "MICROMSG-24")
@pytest.mark.parametrize(("client", "server", "agreed"), [(0, 0, 0), (3, 0, 0), (0, 3, 0), (2, 3, 2)])
def test_the_lower_version_is_used(client: int, server: int, agreed: int) -> None:
    assert replied(said(minor=client), Terms("s", minor=server)).minor == agreed
    assert final(said(minor=server), Terms("c", minor=client)).minor == agreed
    both = shake(Terms("c", minor=client), Terms("s", minor=server))
    assert [agreement.version for agreement in both] == [(1, agreed), (1, agreed)]
    assert (offer(Terms("c")).major, offer(Terms("c")).minor) == (1, 0)


@pytest.mark.rule("MICROMSG-13", "MICROMSG-108")
def test_another_major_version_is_refused_on_both_sides() -> None:
    other = b"\x02" + said()[1:]
    for refused in (answer(other, Terms("s")), finished(other, Terms("c"))[0]):
        assert isinstance(refused, Error)
        assert (refused.name, refused.value("version")) == ("bad-version", "1.0")


@pytest.mark.rule("MICROMSG-103")
@pytest.mark.parametrize("last", ["json", "dotnet", ""])
def test_a_final_message_may_not_drop_a_required_extension(last: str) -> None:
    error = agree(said("json"), said(last), Terms("s", required=listed("dotnet")))
    assert isinstance(error, Error)
    assert error.name == "bad-handshake"
    assert error.value("name") == ("json" if last != "json" else "dotnet")


@pytest.mark.rule("MICROMSG-104")
def test_a_final_message_may_not_add_what_nobody_named() -> None:
    error = agree(said("json"), said("json", "pub-sub"), Terms("s"))
    assert isinstance(error, Error)
    assert (error.name, error.value("name")) == ("bad-handshake", "pub-sub")


@pytest.mark.rule("MICROMSG-165")
def test_a_final_message_may_not_use_what_the_server_does_not_know() -> None:
    error = agree(said(optional="xml"), said(optional="xml"), Terms("s"))
    assert error == Error("unsupported-extension", (("name", "xml"),))


@pytest.mark.rule("MICROMSG-164")
def test_a_final_message_names_an_extension_once() -> None:
    error = agree(said("json"), said("json", "json"), Terms("s"))
    assert isinstance(error, Error)
    assert (error.name, error.value("name")) == ("bad-handshake", "json")


@pytest.mark.rule("MICROMSG-166")
@pytest.mark.parametrize("count", [255, 256])
def test_a_final_message_has_at_most_255_extensions(count: int) -> None:
    many = tuple(NamedExtension(f"x-{number}") for number in range(count))
    server = Terms("s", supported=tuple(extension.name for extension in many))
    offered = said(text(many))
    agreement = agree(offered, offered, server)
    if count == 255:
        assert isinstance(agreement, Agreement)
        assert agreement.number("x-254") == 255
    else:
        assert isinstance(agreement, Error)
        assert agreement.name == "bad-handshake"


@pytest.mark.rule("MICROMSG-106", "MICROMSG-114")
def test_the_reply_names_every_offered_extension_the_server_knows() -> None:
    offered = said("json", "ack;batch-ack:max-count=50;dotnet;pub-sub;x-auth:token=a;x-other")
    reply = replied(offered, Terms("s", max_count=20))
    assert text(reply.optional) == "batch-ack:max-count=20;dotnet;pub-sub;x-auth"


@pytest.mark.rule("MICROMSG-116")
@pytest.mark.parametrize(
    ("required", "optional", "expected"),
    [
        ("", "ack;batch-ack:max-count=5", "batch-ack:max-count=5"),
        ("batch-ack:max-count=5", "ack", "batch-ack:max-count=5"),
        ("ack", "batch-ack", "batch-ack:max-count=10"),
        ("", "ack", "ack"),
        ("ack", "", ""),
        ("", "", "batch-ack:max-count=15"),
    ],
)
def test_the_reply_names_one_of_the_ack_extensions_and_prefers_batch_ack(
    required: str, optional: str, expected: str
) -> None:
    server = Terms("s", optional=(batch_ack(15),), max_count=20)
    assert text(replied(said(required, optional), server).optional) == expected


@pytest.mark.rule("MICROMSG-189")
def test_a_name_with_upper_case_letters_is_none_of_the_known_ones() -> None:
    server = Terms("s", forwards=True)
    assert replied(said(optional="JSON;extensionName1:propName1=a;X-a;x-B"), server).optional == ()
    assert answer(said("JSON"), server) == Error("unsupported-extension", (("name", "JSON"),))


@pytest.mark.rule("MICROMSG-192")
def test_a_server_that_forwards_agrees_on_optional_vendor_extensions_only() -> None:
    server = Terms("s", forwards=True)
    offered = said("json", "x-a:b=c;xml;x-b")
    assert text(replied(offered, server).optional) == "x-a;x-b"
    agreement = agree(offered, said("json", "x-b;x-a:b=c"), server)
    assert isinstance(agreement, Agreement)
    assert agreement.vendors == {"x-b": 2, "x-a": 3}
    refused = Error("unsupported-extension", (("name", "x-a"),))
    assert answer(said("x-a"), server) == refused
    assert replied(offered, Terms("s")).optional == ()


def test_x_auth_is_not_among_the_vendor_extensions() -> None:
    auth = NamedExtension("x-auth", (("token", "t"),))
    agreement, _ = shake(Terms("c", optional=(auth,)), Terms("s", forwards=True))
    assert agreement.has("x-auth")
    assert agreement.vendors == {}


@pytest.mark.rule("MICROMSG-107", "MICROMSG-65")
@pytest.mark.parametrize(
    ("asked", "cap", "window"), [(50, 100, 50), (100, 50, 50), (10, 10, 10), (1, 65534, 1), (65534, 65534, 65534)]
)
@pytest.mark.parametrize("needed", [True, False])
def test_the_count_of_the_final_message_is_capped_by_the_servers(
    asked: int, cap: int, window: int, needed: bool
) -> None:
    wanted = (batch_ack(asked),)
    client = Terms("c", required=wanted, max_count=asked) if needed else Terms("c", optional=wanted, max_count=asked)
    ours, theirs = shake(client, Terms("s", max_count=cap))
    assert ours.window == theirs.window == window


@pytest.mark.rule("MICROMSG-107")
def test_a_count_that_the_server_does_not_speak_of_stays_as_it_is() -> None:
    client = Terms("c", required=(batch_ack(30),), max_count=40)
    last, agreement = finished(said(), client)
    assert isinstance(last, Handshake)
    assert text(last.required) == "batch-ack:max-count=30"
    assert agreement is not None
    assert agreement.window == 30


@pytest.mark.rule("MICROMSG-107")
@pytest.mark.parametrize(
    ("asked", "count"), [("batch-ack:max-count=5", 5), ("batch-ack:max-count=50", 20), ("batch-ack", 10)]
)
@pytest.mark.parametrize("needed", [True, False])
def test_the_reply_never_raises_the_count_and_the_final_message_may_not_either(
    asked: str, count: int, needed: bool
) -> None:
    server = Terms("s", optional=(batch_ack(20),), max_count=20)
    offered = said(asked) if needed else said(optional=asked)
    assert text(replied(offered, server).optional) == f"batch-ack:max-count={count}"
    for last, window in (("batch-ack", count), (f"batch-ack:max-count={count}", count), ("batch-ack:count=2", 2)):
        agreement = agree(offered, said(last), server)
        assert isinstance(agreement, Agreement)
        assert agreement.window == window
    error = agree(offered, said(optional=f"batch-ack:max-count={count + 1}"), server)
    assert isinstance(error, Error)
    assert (error.name, error.value("name")) == ("bad-handshake", "batch-ack")


@pytest.mark.rule("MICROMSG-116", "MICROMSG-05")
def test_batch_ack_wins_over_ack() -> None:
    server = Terms("s")
    asked = "ack;batch-ack:max-count=5"
    offered = said(optional=asked)
    agreement = agree(offered, offered, server)
    assert isinstance(agreement, Agreement)
    assert (agreement.acks, agreement.window) == ("batch-ack", 5)
    assert agreement.purpose(Extension(2, b"\0\x01")) == "batch-ack"
    assert isinstance(agreement.purpose(Extension(1, b"\0\x01")), Error)
    last = final(encode(replied(offered, server)), Terms("c", optional=listed(asked)))
    assert text(last.optional) == "batch-ack:max-count=5"


@pytest.mark.rule("MICROMSG-04", "MICROMSG-05", "MICROMSG-44")
def test_acks_are_there_only_where_agreed_on() -> None:
    for agreement in shake(Terms("c", supported=("ack",), required=listed("ack")), Terms("s")):
        assert (agreement.acks, agreement.window) == ("ack", 1)
    for agreement in shake(Terms("c"), Terms("s")):
        assert (agreement.acks, agreement.window) == (None, 0)


@pytest.mark.rule("MICROMSG-08", "MICROMSG-09", "MICROMSG-167", "MICROMSG-33")
def test_extension_frames_are_only_for_agreed_extensions_that_have_frames() -> None:
    client = Terms("c", supported=(*KNOWN, "x-mine"), required=listed("json;dotnet;batch-ack;pub-sub;x-mine"))
    agreement, _ = shake(client, Terms("s", supported=(*KNOWN, "x-mine")))
    assert agreement.purpose(Extension(2, b"Type")) == "dotnet"
    assert agreement.purpose(Extension(3, b"\0\x01")) == "batch-ack"
    assert agreement.purpose(Extension(5, b"")) == "x-mine"
    for number in (0, 1, 4, 6, 255):
        error = agreement.purpose(Extension(number, b""))
        assert isinstance(error, Error)
        assert error.name == "bad-frame"
    assert agreement.pub_sub
    assert not agreement.has("ack")


@pytest.mark.rule("MICROMSG-74")
def test_pub_sub_has_no_properties() -> None:
    agreement, _ = shake(Terms("c", required=listed("pub-sub")), Terms("s"))
    assert agreement.extensions == (NamedExtension("pub-sub"),)
    assert text(agreement.extensions) == "pub-sub"


@pytest.mark.rule("MICROMSG-115", "MICROMSG-170")
@pytest.mark.parametrize(
    "credentials", [(("user", "ann"), ("password", "p;w")), (("token", "t%t"),)], ids=["password", "token"]
)
@pytest.mark.parametrize("server", [Terms("s"), Terms("s", required=(NamedExtension("x-auth"),))])
def test_the_client_says_who_it_is_and_the_server_does_not_repeat_it(
    credentials: tuple[tuple[str, str], ...], server: Terms
) -> None:
    client = Terms("c", optional=(NamedExtension("x-auth", credentials),))
    reply = replied(encode(offer(client)), server)
    assert NamedExtension("x-auth") in (*reply.required, *reply.optional)
    _, agreement = shake(client, server)
    assert agreement.credentials == dict(credentials)


@pytest.mark.rule("MICROMSG-115")
@pytest.mark.parametrize(
    "auth", ["x-auth", "x-auth:user=a", "x-auth:password=b", "x-auth:token=a,user=b", "x-auth:user=a,password=b,c=d"]
)
def test_other_credentials_are_a_bad_handshake(auth: str) -> None:
    error = agree(said(auth), said(auth), Terms("s"))
    assert isinstance(error, Error)
    assert (error.name, error.value("name")) == ("bad-handshake", "x-auth")


def test_without_x_auth_there_are_no_credentials() -> None:
    agreement, _ = shake(Terms("c"), Terms("s"))
    assert agreement.credentials is None
    assert agreement.peer == "s"


@pytest.mark.rule("MICROMSG-10", "MICROMSG-08", "MICROMSG-164", "MICROMSG-113")
@pytest.mark.parametrize(
    ("supported", "required", "optional", "max_count", "rule"),
    [
        (("xml",), "", "", 10, "MICROMSG-10"),
        (("x-Mine",), "", "", 10, "MICROMSG-10"),
        (("json",), "dotnet", "", 10, "MICROMSG-08"),
        (KNOWN, "json", "json", 10, "MICROMSG-164"),
        (KNOWN, "", "", 0, "MICROMSG-113"),
        (KNOWN, "", "", 65535, "MICROMSG-113"),
    ],
)
def test_terms_that_may_not_be_offered_are_refused(
    supported: tuple[str, ...], required: str, optional: str, max_count: int, rule: str
) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Terms("a", supported, listed(required), listed(optional), max_count)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-10")
def test_a_vendor_extension_may_be_offered() -> None:
    assert text(offer(Terms("a", supported=("x-mine",), required=listed("x-mine"))).required) == "x-mine"


@pytest.mark.rule("MICROMSG-30", "MICROMSG-33", "MICROMSG-103", "MICROMSG-104")
@given(strategies.known_lists, strategies.known_lists, strategies.known_lists, st.integers(1, 20))
def test_two_sides_with_any_terms_agree_on_the_same(
    required: tuple[NamedExtension, ...],
    suggested: tuple[NamedExtension, ...],
    offered: tuple[NamedExtension, ...],
    cap: int,
) -> None:
    auth = NamedExtension("x-auth", (("token", "t"),))
    required = tuple(auth if extension.name == "x-auth" else extension for extension in required)
    names = {extension.name for extension in required}
    optional = tuple(
        auth if extension.name == "x-auth" else extension for extension in offered if extension.name not in names
    )
    suggested = tuple(extension for extension in suggested if extension.name != "x-auth")
    client = Terms("c", required=required, optional=optional)
    ours, theirs = shake(client, Terms("s", required=suggested, max_count=cap))
    assert ours.extensions == theirs.extensions
    assert (ours.window, ours.acks, ours.version) == (theirs.window, theirs.acks, theirs.version)
    used = {extension.name for extension in ours.extensions}
    assert names <= used
    assert {extension.name for extension in suggested} <= used
