"""sABC over WebSocket: one frame is one message, both ways."""

import pytest

from polywire.hub.message import Message
from polywire.hub.peer import Limits
from polywire.protocols.sabc import MessageDecoder, Whole
from polywire.wire import websocket
from tests.protocols.sabc.clients import Speaker, messages
from tests.protocols.sabc.wire import whole as made
from tests.protocols.sabc.wire import wire
from tests.sessions import Site


def connected(site: Site, **limits: int) -> tuple[Speaker, str]:
    """A client on a WebSocket, and its session id."""
    client = Speaker(site, make=messages, connect=False, limits=Limits(**limits))
    client.wire.feed("CONNECT\r\nclient-id::me\r\n\r\n\0")
    session = client.sabc._line.session_id
    assert client.wire.taken() == websocket.text(wire(f"CONNECTED\nsession-id::{session}\n\n^@"))
    return client, session


def websocket_texts(data: bytes) -> list[str]:
    """The text messages of an unmasked stream."""
    found = []
    while data:
        assert data[0] == websocket.TEXT
        start, size = {126: (4, int.from_bytes(data[2:4], "big")), 127: (10, int.from_bytes(data[2:10], "big"))}.get(
            data[1], (2, data[1])
        )
        found.append(data[start : start + size].decode())
        data = data[start + size :]
    return found


@pytest.mark.rule("SABC-73")
@pytest.mark.parametrize("binary", [True, False])
def test_frames_come_and_go_as_messages(binary: bool) -> None:
    client, session = connected(Site())
    octets = wire(f"MESSAGE\nsession-id::{session}\nmsg-id::s\nop::subscribe\ndestination::a\n\n^@")
    client.wire.feed(octets if binary else octets.decode())
    assert client.wire.taken() == websocket.text(wire(f"MESSAGE\nsession-id::{session}\nref-msg-id::s\n\nOK\n\n^@"))
    client.site.hub.publish(Message("a", "grüß".encode()), client.wire.client)
    head = f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::s\nmsg-id::1\ndestination::a\n\n"
    assert client.wire.taken() == websocket.text(wire(head + "grüß\n\n^@"))
    assert client.wire.client.counters.octets_in == len(octets) + len("CONNECT\r\nclient-id::me\r\n\r\n\0")


@pytest.mark.parametrize("size", [10, 200, 20000, 65000])
def test_pushed_messages_of_every_size_are_framed(size: int) -> None:
    client, session = connected(Site())
    client.wire.feed(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::s\nop::subscribe\ndestination::a\n\n^@"))
    client.wire.taken()
    client.site.hub.publish(Message("a", b"x" * size), client.wire.client)
    head = f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::s\nmsg-id::1\ndestination::a\n\n"
    assert client.wire.taken() == websocket.text(wire(head + "x" * size + "\n\n^@"))


@pytest.mark.rule("SABC-135")
@pytest.mark.parametrize("body", [b"x" * 70000, ("ü" * 35000).encode(), bytes(range(256)) * 300, b"a" + bytes(70000)])
def test_a_large_message_is_pushed_in_several_frames(body: bytes) -> None:
    client, session = connected(Site(), sabc_frame_size=4096)
    client.wire.feed(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::s\nop::subscribe\ndestination::a\n\n^@"))
    client.wire.taken()
    client.site.hub.publish(Message("a", body), client.wire.client)
    frames = websocket_texts(client.wire.taken())
    decoder = MessageDecoder(session_id=session)
    pieces = [piece for frame in frames for piece in decoder.feed(frame)]
    [whole] = made(pieces)
    assert isinstance(whole, Whole)
    assert whole.body == body
    if body[1:2] != b"\0":  # NULs side by side can't be parted
        assert max(len(frame.encode()) for frame in frames) <= 4096
        assert len(frames) >= len(body) // 4096


def test_octets_are_text_too_because_they_are_base64() -> None:
    client, session = connected(Site())
    client.wire.feed(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::s\nop::subscribe\ndestination::a\n\n^@"))
    client.wire.taken()
    client.site.hub.publish(Message("a", b"\xff"), client.wire.client)
    written = client.wire.taken()
    assert written[0] == websocket.TEXT
    assert written.endswith(b"content-encoding::base64\r\n\r\n/w==\r\n\r\n\0")


def test_text_that_is_no_unicode_is_a_broken_frame() -> None:
    client, session = connected(Site())
    client.wire.feed(f"MESSAGE\r\nsession-id::{session}\r\nmsg-id::\ud800\r\n\r\n\0")
    assert b"error-code::400" in client.wire.taken()


def test_the_unfinished_are_bounded_here_too() -> None:
    client, session = connected(Site(), message_size=1000)
    for number in range(4):
        frame = f"MESSAGE\nsession-id::{session}\nmsg-id::{number}\nmsg-more::yes\ndestination::a\n\n" + "x" * 800
        client.wire.feed(wire(frame))
    assert client.wire.taken().count(b"error-code::429") == 2
    assert len(client.sabc._connection._assembly) == 2
    client.wire.lose()
    assert not client.site.hub.clients
