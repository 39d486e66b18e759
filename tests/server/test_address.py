"""Addresses of listeners."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.server.address import SCHEMES, Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:7100", Address("http", "127.0.0.1", 7100)),
        ("http://127.0.0.1:7100/", Address("http", "127.0.0.1", 7100)),
        ("tcp://127.0.0.1:0", Address("tcp", "127.0.0.1", 0)),
        ("TCP://LocalHost:1", Address("tcp", "localhost", 1)),
        ("tls://hub.example.org:8883", Address("tls", "hub.example.org", 8883)),
        ("tcp://[::1]:7103", Address("tcp", "::1", 7103)),
        ("unix:/run/fmqp.sock", Address("unix", path="/run/fmqp.sock")),
        ("unix:///run/fmqp.sock", Address("unix", path="/run/fmqp.sock")),
        ("unix:fmqp.sock", Address("unix", path="fmqp.sock")),
        ("ws://127.0.0.1:7101/umq", Address("ws", "127.0.0.1", 7101, "/umq")),
        ("wss://[::]:443/a/b", Address("wss", "::", 443, "/a/b")),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "",
            "an address begins with http://, https://, tcp://, tls://, unix:, ws:// or wss://, such as http://127.0.0.1:7100",
        ),
        ("127.0.0.1:7103", "an address begins with"),
        ("ftp://127.0.0.1:1", "an address begins with"),
        ("tcp:127.0.0.1:1", "after tcp: there must be two slashes and a host, such as tcp://127.0.0.1:7103"),
        ("tcp://127.0.0.1", "the port is missing, such as in tcp://127.0.0.1:7103; 0 picks a free one"),
        ("tcp://127.0.0.1:", "the port is missing"),
        ("tcp://:7103", "the host is missing, such as in tcp://127.0.0.1:7103; 0.0.0.0 or [::] listens on all"),
        ("tcp://127.0.0.1:65536", "Port out of range 0-65535; an address looks like tcp://127.0.0.1:7103"),
        ("tcp://127.0.0.1:x", "Port could not be cast"),
        ("tcp://[::1:7103", "Invalid IPv6 URL"),
        ("tcp://127.0.0.256:1", "127.0.0.256 is not an IP address"),
        ("tcp://a_b:1", "a_b is not the name of a host"),
        ("tcp://-a:1", "-a is not the name of a host"),
        ("tcp://127.0.0.1:1/x", "a tcp address has no path; it looks like tcp://127.0.0.1:7103"),
        ("tcp://me@127.0.0.1:1", "an address has no user, query or fragment"),
        ("ws://127.0.0.1:1/umq?a=b", "an address has no user, query or fragment"),
        ("ws://127.0.0.1:1/umq#", "an address has no user, query or fragment"),
        ("ws://127.0.0.1:1", "a WebSocket address ends in a path, such as ws://127.0.0.1:7101/umq"),
        ("wss://127.0.0.1:1/", "a WebSocket address ends in a path, such as wss://127.0.0.1:7101/umq"),
        ("tcp://127.0.0.1 :1", "an address must not contain spaces or control characters"),
        ("tcp://127.0.0.1:1\n", "an address must not contain spaces or control characters"),
        ("unix:", "unix: is followed by the path of a socket, such as unix:/run/polywire.sock"),
        ("unix:/run/", "unix: is followed by the path of a socket"),
        ("unix://host/x", "a Unix socket has a path and no host"),
        ("unix:/a\0b", "the path must not contain control characters"),
        ("unix:/" + "a" * 107, "the path of a Unix socket has at most 107 bytes, this one has 108"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        parse_address(text)


def test_a_scheme_that_is_not_spoken_here_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^ws is not supported here; allowed is tcp://, tls:// or unix:, such as tcp://"
    ):
        parse_address("ws://127.0.0.1:1/x", ("tcp", "tls", "unix"))


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("unix:/x", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://192.168.1.1:1", False),
        ("tcp://hub.example.org:1", False),
        ("tcp://localhost.example.org:1", False),
    ],
)
def test_what_other_machines_can_reach_is_not_local(text: str, *, local: bool) -> None:
    assert parse_address(text).local is local


def test_port_0_becomes_the_port_that_was_found() -> None:
    assert str(parse_address("ws://[::1]:0/umq").bound(4711)) == "ws://[::1]:4711/umq"


def test_a_relative_socket_is_below_a_folder_and_nothing_else_is() -> None:
    assert str(parse_address("unix:x.sock").below(Path("/run"))) == "unix:/run/x.sock"
    assert str(parse_address("unix:/y/x.sock").below(Path("/run"))) == "unix:/y/x.sock"
    assert str(parse_address("tcp://h:1").below(Path("/run"))) == "tcp://h:1"


rests = st.text("/:[]@?#%.0189afx*-_ \0é", max_size=30) | st.text(max_size=30)


@given(st.builds("{}:{}".format, st.sampled_from(SCHEMES), rests) | st.text(max_size=40))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address
