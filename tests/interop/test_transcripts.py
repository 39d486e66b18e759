"""The documents' own examples, said to a running hub over sockets and answered by it, octet for octet.

Where an example leaves the payload to the application, the hub's own methods and headers stand in its place.
"""

import re
from collections.abc import Iterator

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.wires import Plain, connected


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def test_sabc_connect_send_only_and_a_message_in_three_frames(hub: HubProcess) -> None:
    with connected(hub.addresses["sabc"]) as wire:
        client = Plain(wire)
        client.send(b"CONNECT\r\nclient-id::23450-678-aedc\r\n\r\n\0")
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += client.expect(1)
        found = re.match(rb"CONNECTED\r\n(session-id::[^\r]+)\r\n", answer)
        assert found
        session = found[1]
        rest = b"\0" if client.socket.recv(1, 0x2) == b"\0" else b""  # a NUL behind it is allowed, MSG_PEEK looks
        client.expect(len(rest))
        client.send(b"MESSAGE\r\n" + session + b"\r\nmsg-id::000001\r\nop::subscribe\r\ndestination::docs\r\n\r\n\0")
        ok = until(client, b"\0")
        assert ok.startswith(b"MESSAGE\r\n" + session + b"\r\n")
        assert b"ref-msg-id::000001\r\n" in ok
        assert ok.endswith(b"\r\n\r\nOK\r\n\r\n\0")
        first = b"MESSAGE\r\n" + session + b"\r\nmsg-id::123456\r\n"
        client.send(first + b"send-only::yes\r\ndestination::docs\r\nmsg-more::yes\r\n\r\n")
        client.send(b"This is first part of the message. Second\r\npart ")
        client.send(first + b"msg-more::yes\r\n\r\nis on the way. See I can have \0 within the\r\n")
        client.send(b"message but shouldn't precede with two CR-LFs.\r\nFinally the third")
        client.send(first + b"\r\npart marks the end of the\r\nmessage\r\n\r\n\0")
        pushed = until(client, b"\r\n\r\n\0")
        assert pushed.endswith(
            b"\r\n\r\nThis is first part of the message. Second\r\npart is on the way. See I can have \0 within the\r\n"
            b"message but shouldn't precede with two CR-LFs.\r\nFinally the thirdpart marks the end of the\r\n"
            b"message\r\n\r\n\0"
        )
        client.send(b"DISCONNECT\r\n" + session + b"\r\n\r\n")
        assert client.rest().startswith(b"DISCONNECTING\r\n" + session + b"\r\n\r\n")


def until(client: Plain, end: bytes) -> bytes:
    """What comes up to these octets."""
    data = b""
    while not data.endswith(end):
        data += client.expect(1)
    return data
