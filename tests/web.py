"""A WebSocket client for tests, on the sans-IO part of ``websockets``: one blocking socket, one thread.

``websockets.sync`` reads in a thread of its own while the caller writes. OpenSSL allows no two threads in one
connection at a time, and Python 3.11 does not keep them apart: a request written while the other thread reads the
session tickets that a TLS 1.3 server sends first is lost now and then, whatever the server is.
"""

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

SECONDS = 20.0
CLOSE_SECONDS = 5.0
"""How long the other side has for its word when this one hangs up."""


class Web:
    """An open WebSocket; everything on it has a time limit."""

    def __init__(self, connection: socket.socket, protocol: ClientProtocol) -> None:
        self._socket = connection
        self._protocol = protocol
        self._frames: list[Frame] = []
        protocol.send_request(protocol.connect())
        self._write()
        while protocol.state is CONNECTING and self._read():
            pass
        if protocol.handshake_exc is not None:
            raise protocol.handshake_exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def subprotocol(self) -> str | None:
        """What the server chose."""
        return self._protocol.subprotocol

    def send(self, data: str | bytes) -> None:
        """One message."""
        if self._protocol.state is not OPEN:
            raise self._protocol.close_exc
        if isinstance(data, str):
            self._protocol.send_text(data.encode())
        else:
            self._protocol.send_binary(data)
        self._write()

    def recv(self) -> str | bytes:
        """The next message. ``ConnectionClosed`` once the other side has hung up and all was heard."""
        frame = first = self._frame()
        whole = bytes(first.data)
        while not frame.fin:
            frame = self._frame()
            whole += frame.data
        return whole.decode() if first.opcode is Opcode.TEXT else whole

    def close(self) -> None:
        """Say so, hear the other side's word, and hang up."""
        with self._socket, contextlib.suppress(OSError, ConnectionClosed):
            self._socket.settimeout(CLOSE_SECONDS)
            if self._protocol.state is OPEN:
                self._protocol.send_close(1000)
                self._write()
            while True:
                self._frame()
                self._frames.clear()

    def _frame(self) -> Frame:
        """The next frame of a message."""
        while not self._frames:
            if not self._read():
                raise self._protocol.close_exc
        return self._frames.pop(0)

    def _read(self) -> bool:
        """Take what comes next; False at the end."""
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                self._frames.append(event)
        # Who has hung up wants no answer any more.
        with contextlib.suppress(ConnectionError):
            self._write()
        return bool(data)

    def _write(self) -> None:
        """What the protocol wants written, answers to pings and closes included."""
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)


def open_web(address: str, trust: ssl.SSLContext | None = None, *, subprotocols: Sequence[str] = ()) -> Web:
    """A WebSocket to an address as the ``ready`` line writes it; ``trust`` where it is encrypted."""
    uri = parse_uri(address)
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(socket.create_connection((uri.host, uri.port), timeout=SECONDS))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            connection = undo.enter_context(trust.wrap_socket(connection, server_hostname="localhost"))
        offered = [Subprotocol(each) for each in subprotocols] or None
        web = Web(connection, ClientProtocol(uri, subprotocols=offered, max_size=None))
        undo.pop_all()
    return web
