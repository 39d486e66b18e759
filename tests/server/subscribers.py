"""A client of each protocol on a real socket: subscribed to a topic, and listening until it is hung up on."""

import contextlib
import socket
import ssl
from collections.abc import Iterator

from websockets.exceptions import ConnectionClosed

from polywire.protocols import fmqp, micromsg, mqtt
from polywire.protocols.micromsg.text import read_extensions
from polywire.protocols.mqtt import Connack, Suback
from tests.hub_process import HubProcess
from tests.protocols.sabc.wire import wire
from tests.web import Web, open_web
from tests.wires import Plain, connected

Heard = list[bytes | str]
"""Bytes in one piece, or messages and the code of the close."""

SUBPROTOCOLS = {"umq": "umq", "mqtt_ws": "mqtt", "sabc_ws": "sabc"}


class Line:
    """A connection, by TCP or WebSocket, on which bytes or messages are sent and expected."""

    def __init__(self, connection: socket.socket | Web) -> None:
        self._socket = Plain(connection) if isinstance(connection, socket.socket) else None
        self._web = connection if isinstance(connection, Web) else None

    def send(self, data: bytes | str) -> None:
        """All of it, as one message where there are messages."""
        if self._web is not None:
            self._web.send(data)
        elif self._socket is not None and isinstance(data, bytes):
            self._socket.send(data)

    def expect(self, wanted: bytes | str) -> None:
        """Exactly this."""
        if self._web is not None:
            assert self._web.recv() == wanted
        elif self._socket is not None:
            assert self._socket.expect(len(wanted)) == wanted

    def until(self, end: bytes) -> bytes:
        """Everything up to the bytes that end it; on a WebSocket, one message."""
        if self._web is not None:
            message = self._web.recv()
            return message.encode() if isinstance(message, str) else message
        assert self._socket is not None
        data = b""
        while not data.endswith(end):
            data += self._socket.expect(1)
        return data

    def octet(self) -> bytes:
        """One byte of a stream."""
        assert self._socket is not None
        return self._socket.expect(1)

    def ended(self) -> Heard:
        """What comes until the hub hangs up, and on a WebSocket the code it gives."""
        if self._socket is not None:
            return [self._socket.rest()]
        assert self._web is not None
        heard: Heard = []
        try:
            while True:
                heard.append(self._web.recv())
        except ConnectionClosed as error:
            return [*heard, f"closed {error.rcvd.code if error.rcvd is not None else 'without a word'}"]


@contextlib.contextmanager
def line_to(hub: HubProcess, listener: str, trust: ssl.SSLContext | None = None) -> Iterator[Line]:
    """A connection to a listener; ``trust`` where it is encrypted."""
    address = hub.addresses[listener]
    if listener in SUBPROTOCOLS:
        with open_web(address, trust, subprotocols=[SUBPROTOCOLS[listener]]) as web:
            assert web.subprotocol == SUBPROTOCOLS[listener]
            yield Line(web)
    else:
        with connected(address, trust=trust) as plain:
            yield Line(plain)


def subscribe(line: Line, listener: str, topic: str, token: str = "") -> str:
    """Shake hands, subscribe to a topic, and wait until that is done. Returns the session id, where there is one."""
    return {
        "fmqp": _fmqp,
        "micromsg": _micromsg,
        "mqtt": _mqtt,
        "mqtt_ws": _mqtt,
        "sabc": _sabc,
        "sabc_ws": _sabc,
        "umq": _umq,
    }[listener](line, topic, token)


def _fmqp(line: Line, topic: str, token: str) -> str:
    assert not token, "FMQP has no logins"
    mark = fmqp.encode(fmqp.Publication("settled", b"!"))
    line.send(fmqp.encode(fmqp.Subscription(topic)) + fmqp.encode(fmqp.Subscription("settled")) + mark)
    line.expect(mark)
    return ""


def _micromsg(line: Line, topic: str, token: str) -> str:
    use = read_extensions(f"pub-sub;x-auth:token={token}".encode() if token else b"pub-sub")
    offer = micromsg.encode(micromsg.Handshake("me", use, ()))
    line.send(offer)
    decoder = micromsg.Decoder(micromsg.CLIENT)
    while not decoder.feed(line.octet()):
        pass
    subscribe_to = micromsg.Command("subscribe", (("destination", f"topic/{topic}"),))
    line.send(offer + micromsg.encode(subscribe_to) + micromsg.encode(micromsg.Command("ping")))
    line.expect(micromsg.encode(micromsg.Command("pong")))
    return ""


def _mqtt(line: Line, topic: str, token: str) -> str:
    # Without a name of its own: two of one name would throw each other out.
    login = mqtt.Connect("", user_name="token" if token else None, password=token.encode() or None)
    line.send(mqtt.encode(login))
    line.expect(mqtt.encode(Connack(session_present=False, return_code=0)))
    line.send(mqtt.encode(mqtt.Subscribe(1, ((topic, 0),))))
    line.expect(mqtt.encode(Suback(1, (0,))))
    return ""


def _sabc(line: Line, topic: str, token: str) -> str:
    login = f"client-id::token\nclient-passcode::{token}" if token else "client-id::me"
    line.send(wire(f"CONNECT\n{login}\n\n^@"))
    answer = line.until(b"\0").decode()
    assert answer.startswith("CONNECTED\r\nsession-id::"), answer
    session = answer.split("\r\n")[1].removeprefix("session-id::")
    line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::1\nop::subscribe\ndestination::{topic}\n\n\n\n^@"))
    assert b"ref-msg-id::1" in line.until(b"\0")
    return session


def _umq(line: Line, topic: str, token: str) -> str:
    line.send(f'H1:{{"token":"{token}"}}' if token else "H1:")
    line.expect("W1:")
    line.send(f'C1:["subscribe","{topic}",1]')
    line.expect("R1:null")
    return ""
