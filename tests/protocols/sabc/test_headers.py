import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Disconnect,
    Error,
    LocalProtocolError,
    Message,
    RemoteProtocolError,
    encode,
)
from polywire.protocols.sabc.headers import COMMANDS, PLACES, http_date, is_yes, parse_http_date
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION, code_of, message, server, wire

LAST_SECOND = 253402300799


@pytest.mark.rule("SABC-08")
def test_keys_and_values_are_taken_as_they_stand() -> None:
    [frame] = server().feed(message("msg-id::1", " Key ::  a: value :", "empty::", "colon:::x"))
    assert isinstance(frame, Message)
    assert frame.headers == ((" Key ", "  a: value :"), ("empty", ""), ("colon", ":x"))


@pytest.mark.rule("SABC-87", "SABC-08")
@pytest.mark.parametrize("line", ["no parting", "one:colon", "::no key", ""])
def test_a_header_without_key_or_parting_is_malformed(line: str) -> None:
    data = message("msg-id::1", line or "x", "other::fine", body="text")
    [frame] = server().feed(data)
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-87"
    assert frame.position == len(wire("CONNECT\nclient-id::me\n\n")) + data.index(b"\r\nmsg-id::1") + 13
    assert frame.reply == Error("400", frame.reason.encode(), SESSION, "1")


@pytest.mark.rule("SABC-71")
@pytest.mark.parametrize("line", ["key::a::b", "key::::", "key:::::x"])
def test_a_value_with_two_colons_is_malformed(line: str) -> None:
    [frame] = server().feed(message("msg-id::1", line))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-71"
    assert code_of(frame) == "400"


@pytest.mark.rule("SABC-71")
def test_a_value_with_two_colons_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-71"):
        encode(Message(SESSION, "1", b"", (("key", "a::b"),)))
    with pytest.raises(LocalProtocolError, match="SABC-71"):
        encode(Message(SESSION, "a::b"))


@pytest.mark.rule("SABC-87")
@pytest.mark.parametrize("key", ["", "a::b", "a:", "::"])
def test_a_key_that_could_not_be_told_from_its_value_is_not_written(key: str) -> None:
    with pytest.raises(LocalProtocolError, match="SABC-87"):
        encode(Message(SESSION, "1", b"", ((key, "value"),)))


@pytest.mark.rule("SABC-89", "SABC-81")
@pytest.mark.parametrize("line", ["key::a\nb", "ke\ry::a", "key::a\0", "key::a\r"])
def test_a_stray_line_end_or_nul_in_a_header_is_malformed(line: str) -> None:
    data = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::1\r\n{line}\r\n\r\nbody\r\n\r\n\0".encode()
    [frame] = server().feed(data)
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-89"
    assert code_of(frame) == "400"


@pytest.mark.rule("SABC-89")
@pytest.mark.parametrize("value", ["a\nb", "a\r", "a\r\nb", "\0"])
def test_a_stray_line_end_or_nul_is_not_written(value: str) -> None:
    for frame in (
        Message(SESSION, "1", b"", (("key", value),)),
        Message(SESSION, value),
        Message(SESSION, None, ref_msg_id=value),
        Error(value),
        Connect(value),
        Disconnect(SESSION, ((value, "x"),)),
    ):
        with pytest.raises(LocalProtocolError, match="SABC-89"):
            encode(frame)


@pytest.mark.rule("SABC-81", "SABC-07")
def test_a_lone_line_feed_ends_no_line() -> None:
    decoder = server()
    data = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\n\nbody\n\n\0".encode()
    assert decoder.feed(data) == []
    [frame, following] = decoder.feed(b"\r\n\r\n\0" + message("msg-id::2"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-88"
    assert following == Message(SESSION, "2")


@pytest.mark.rule("SABC-70")
def test_headers_are_utf_8() -> None:
    [fine, bad] = server().feed(
        message("msg-id::1", "größe::ß→") + message("msg-id::2").replace(b"msg-id::2", b"msg-id::2\r\nkey::\xff")
    )
    assert isinstance(fine, Message)
    assert fine.headers == (("größe", "ß→"),)
    assert isinstance(bad, Discarded)
    assert bad.rule == "SABC-70"
    assert bad.reply == Error("400", bad.reason.encode(), SESSION, "2")
    assert encode(fine) == message("msg-id::1", "größe::ß→", end="^@")


@pytest.mark.rule("SABC-70")
def test_what_is_not_unicode_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="SABC-70"):
        encode(Message(SESSION, "1", b"", (("key", "\ud800"),)))


def frame_with(command: str, key: str) -> bytes:
    """The least valid frame of a command, and one more header."""
    value = "Thu, 01 Jun 2017 21:47:38 GMT" if key == "session-expiry" else "x"
    needed = {"CONNECT": ["client-id::me"], "MESSAGE": [f"session-id::{SESSION}", "msg-id::1"]}
    lines = needed.get(command, [f"session-id::{SESSION}"])
    if not any(line.startswith(key + "::") for line in lines):
        lines.append(f"{key}::{value}")
    return wire("\n".join([command, *lines]) + "\n\n^@")


@pytest.mark.rule("SABC-22", "SABC-23", "SABC-24", "SABC-25", "SABC-26", "SABC-27", "SABC-28", "SABC-29", "SABC-30")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("key", PLACES)
def test_a_reserved_header_stands_only_in_its_place(command: str, key: str) -> None:
    documented = {
        "client-id": {"CONNECT"},
        "client-passcode": {"CONNECT"},
        "session-id": {"CONNECTED", "DISCONNECT", "DISCONNECTING", "MESSAGE"},
        "session-expiry": {"CONNECTED"},
        "msg-id": {"MESSAGE"},
        "ref-msg-id": {"MESSAGE"},
        "send-only": {"MESSAGE"},
        "msg-more": {"MESSAGE"},
        "error-code": set(),
    }
    [frame] = server().feed(frame_with(command, key))
    if command in documented[key] or command == "ERROR":
        assert not isinstance(frame, Discarded)
    else:
        assert isinstance(frame, Discarded)
        assert repr(key) in frame.reason
        assert code_of(frame) == "400"


@pytest.mark.rule("SABC-30")
@pytest.mark.parametrize("key", PLACES)
def test_a_reserved_header_is_not_written_as_one_of_the_applications(key: str) -> None:
    with pytest.raises(LocalProtocolError, match=key):
        encode(Message(SESSION, "1", b"", ((key, "x"),)))
    with pytest.raises(LocalProtocolError, match=key):
        encode(Connect("me", None, ((key, "x"),)))


@pytest.mark.rule("SABC-23", "SABC-33")
def test_the_passcode_may_be_left_out() -> None:
    data = wire("CONNECT\nclient-id::me\n\n^@")
    assert Decoder().feed(data) == [Connect("me")]
    assert encode(Connect("me")) == data


@pytest.mark.rule("SABC-85", "SABC-96")
@pytest.mark.parametrize("line", ["client-passcode::x", "client-id::"])
def test_a_connect_without_client_id_ends_the_connection(line: str) -> None:
    decoder = Decoder(session_id=SESSION)
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(wire(f"CONNECT\n{line}\n\n"))
    assert caught.value.rule == "SABC-85"
    assert caught.value.reply == Error("400", caught.value.reason.encode())
    with pytest.raises(LocalProtocolError, match="SABC-85"):
        encode(Connect(""))


@pytest.mark.rule("SABC-25")
def test_the_expiry_may_be_left_out() -> None:
    assert Decoder().feed(encode(Connected("s"))) == [Connected("s")]
    assert b"expiry" not in encode(Connected("s"))


@pytest.mark.rule("SABC-24", "SABC-90")
@pytest.mark.parametrize("command", ["CONNECTED", "DISCONNECT", "DISCONNECTING", "MESSAGE"])
@pytest.mark.parametrize("line", ["msg::1", "session-id::"])
def test_a_missing_session_id_is_unauthorized(command: str, line: str) -> None:
    [frame] = server().feed(wire(f"{command}\n{line}\n\n^@"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-90"
    assert code_of(frame) == "401"


@pytest.mark.rule("SABC-24")
def test_a_frame_without_session_id_is_not_written() -> None:
    for frame in (Message("", "1"), Connected(""), Disconnect("")):
        with pytest.raises(LocalProtocolError, match="SABC-24"):
            encode(frame)


@pytest.mark.rule("SABC-26", "SABC-49")
@pytest.mark.parametrize("line", ["other::1", "msg-id::", "ref-msg-id::"])
def test_a_message_without_id_is_malformed(line: str) -> None:
    [frame] = server().feed(message(line, body="text"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-49"
    assert code_of(frame) == "400"
    for bad in (Message(SESSION), Message(SESSION, ""), Message(SESSION, "1", ref_msg_id="")):
        with pytest.raises(LocalProtocolError, match="SABC-49"):
            encode(bad)


@pytest.mark.rule("SABC-52", "SABC-59")
@pytest.mark.parametrize("value", ["no", "YES", "Yes", "true", "1", "", " yes"])
def test_every_value_but_yes_means_no(value: str) -> None:
    [frame] = server().feed(message("msg-id::1", f"send-only::{value}", f"msg-more::{value}"))
    assert isinstance(frame, Message)
    assert not frame.send_only
    assert not frame.more
    assert not is_yes(value)
    assert is_yes("yes")
    [cut, _] = server().feed(message("msg-id::1", f"msg-more::{value}", end="") + message("msg-id::2"))
    assert code_of(cut) == "400"


@pytest.mark.rule("SABC-53")
def test_a_send_only_message_has_no_ref_msg_id() -> None:
    [frame] = server().feed(message("ref-msg-id::1", "send-only::yes"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-53"
    assert code_of(frame) == "400"
    with pytest.raises(LocalProtocolError, match="SABC-53"):
        encode(Message(SESSION, None, ref_msg_id="1", send_only=True))


@pytest.mark.rule("SABC-121")
@pytest.mark.parametrize("line", ["msg-id::2", "msg-id::1", f"session-id::{SESSION}"])
def test_a_reserved_header_stands_once(line: str) -> None:
    [frame] = server().feed(message("msg-id::1", line))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-121"
    assert code_of(frame) == "400"


@pytest.mark.rule("SABC-121")
def test_other_headers_may_be_repeated() -> None:
    [frame] = server().feed(message("msg-id::1", "a::1", "a::2"))
    assert isinstance(frame, Message)
    assert frame.headers == (("a", "1"), ("a", "2"))


@pytest.mark.rule("SABC-122")
def test_a_session_id_is_bounded() -> None:
    assert Decoder().feed(wire(f"CONNECTED\nsession-id::{'x' * 255}\n\n")) == [Connected("x" * 255)]
    [frame] = Decoder().feed(wire(f"CONNECTED\nsession-id::{'ß' * 128}\n\n"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-122"
    assert code_of(frame) == "429"
    with pytest.raises(LocalProtocolError, match="SABC-122"):
        encode(Connected("x" * 256))


@pytest.mark.rule("SABC-36", "SABC-109")
@given(st.integers(-62135596800, LAST_SECOND))
def test_a_date_that_is_written_can_be_read(seconds: int) -> None:
    text = http_date(seconds)
    assert text is not None
    assert len(text) == 29
    assert text.endswith(" GMT")
    assert parse_http_date(text) == seconds


@pytest.mark.rule("SABC-109")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "1496353658",
        "Thu, 01 Jun 2017 21:47:38 CET",
        "Thu, 01 Jun 2017 21:47:38",
        "Thu, 1 Jun 2017 21:47:38 GMT",
        "Thu, 31 Jun 2017 21:47:38 GMT",
        "Thu, 00 Jun 2017 21:47:38 GMT",
        "Thu, 01 Jun 2017 24:47:38 GMT",
        "Thu, 01 Jun 2017 21:60:38 GMT",
        "Thu, 01 Jun 2017 21:47:61 GMT",
        "Thu, 01 Jun 0000 21:47:38 GMT",
        "Thu, 01 Jun 2017 21-47-38 GMT",
        "Thu; 01 Jun 2017 21:47:38 GMT",
        "Thu, 01-Jun-2017 21:47:38 GMT",
        "Xyz, 01 Jun 2017 21:47:38 GMT",
        "Thu, 01 Xyz 2017 21:47:38 GMT",
        "Thu, 01 Jun 20\u00b27 21:47:38 GMT",
        "Thu, 01 Jun +017 21:47:38 GMT",
        "Thursday, 01-Jun-17 21:47:38 GMT",
    ],
)
def test_what_is_no_http_date_is_malformed(text: str) -> None:
    assert parse_http_date(text) is None
    [frame] = Decoder().feed(wire(f"CONNECTED\nsession-id::s\nsession-expiry::{text}\n\n"))
    assert isinstance(frame, Discarded)
    assert frame.rule == "SABC-109"
    assert code_of(frame) == "400"


@pytest.mark.rule("SABC-36")
def test_a_leap_second_is_read_and_a_time_out_of_reach_not_written() -> None:
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == 1483228800
    for seconds in (LAST_SECOND + 1, -(10**20), 10**30):
        assert http_date(seconds) is None
        with pytest.raises(LocalProtocolError, match="SABC-36"):
            encode(Connected("s", seconds))


@pytest.mark.rule("SABC-120")
def test_a_head_has_its_limits() -> None:
    decoder = server(max_head=512, max_headers=4)
    room = 512 - len(message("msg-id::1", "k::", end=""))
    fits = message("msg-id::1", "k::" + "x" * room)
    assert len(fits.partition(b"\r\n\r\n")[0]) == 508
    assert [type(frame) for frame in decoder.feed(fits)] == [Message]
    [long, following] = decoder.feed(message("msg-id::1", "k::" + "x" * (room + 1)) + message("msg-id::2"))
    assert isinstance(long, Discarded)
    assert long.rule == "SABC-120"
    assert long.reply == Error("429", long.reason.encode(), SESSION, "1")
    assert following == Message(SESSION, "2")
    assert [type(frame) for frame in decoder.feed(message("msg-id::1", "a::", "b::"))] == [Message]
    [many] = decoder.feed(message("msg-id::1", "a::", "b::", "c::"))
    assert isinstance(many, Discarded)
    assert many.rule == "SABC-120"
    assert code_of(many) == "429"


@pytest.mark.rule("SABC-120")
def test_an_endless_head_is_not_held() -> None:
    decoder = server(max_head=512)
    for _ in range(1000):
        assert decoder.feed(b"x" * 1000) == []
        assert decoder.pending() <= 1100
    [frame] = decoder.feed(b"\r\n\r\n\0")
    assert isinstance(frame, Discarded)
    assert frame.size == 1_000_005
    assert frame.raw == b"x" * 1024


def test_a_head_limit_too_small_for_any_session_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 512"):
        Decoder(max_head=511)
