"""Encrypted listeners: connections are accepted here, and count from then on.

An event loop that listens with TLS tells nobody of a connection before its handshake is done, and takes the time for
it when the listener is opened. So the connections are accepted outside of it and handed over one by one: what is not
let in costs no handshake, and a reload reaches the next one.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Self

from polywire.server.gate import Gate, Knock
from polywire.server.seldom import Seldom

AT_ONCE = 64
"""Connections accepted before others get their turn."""

PAUSE = 1.0
"""Seconds without accepting after the operating system had no room for a connection."""

NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

MakeProtocol = Callable[[Knock | None], asyncio.BaseProtocol]
"""Makes the protocol of a connection; the knock ends when it is let in, or sent away."""

log = logging.getLogger("polywire.server")


class TlsListener:
    """One address, on as many sockets as its host has addresses."""

    def __init__(
        self,
        gate: Gate,
        context: ssl.SSLContext,
        make_protocol: MakeProtocol,
        sockets: list[socket.socket],
        knock: Callable[[], Knock | None],
    ) -> None:
        self._gate = gate
        self._knock = knock
        self._context = context
        self._make_protocol = make_protocol
        self._sockets = sockets
        self._handshakes: set[asyncio.Task[None]] = set()
        self._full = Seldom(log, gate.loop.time)
        for each in sockets:
            self._listen(each)

    @classmethod
    async def open(
        cls,
        gate: Gate,
        context: ssl.SSLContext,
        make_protocol: MakeProtocol,
        host: str,
        port: int,
        backlog: int,
        knock: Callable[[], Knock | None] | None = None,
    ) -> Self:
        """Listen. Raises ``OSError`` where that can't be. ``knock`` lets connections in, by default the gate's does."""
        sockets: list[socket.socket] = []
        found = await gate.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                # All have the port that the first got, where any will do.
                at = port or (sockets[0].getsockname()[1] if sockets else 0)
                where = (address[0], at, *address[2:])
                sockets.append(socket.create_server(where, family=family, backlog=backlog))
                sockets[-1].setblocking(False)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return cls(gate, context, make_protocol, sockets, knock or gate.knock)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Accept nobody any more; handshakes under way are given up."""
        for each in self._sockets:
            self._gate.loop.remove_reader(each)
            each.close()
        for task in self._handshakes:
            task.cancel()

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._gate.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._full.warn("no connection can be accepted: %s", error.strerror)
                self._gate.loop.remove_reader(listening)
                self._gate.loop.call_later(PAUSE, self._listen, listening)
                return
            knock = self._knock()
            if knock is None:
                connection.close()
                continue
            task = self._gate.loop.create_task(self._shake_hands(connection, knock))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, knock: Knock) -> None:
        """From the handshake on the connection is its protocol's, and the knock with it."""
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._gate.loop.connect_accepted_socket(
                lambda: self._make_protocol(knock),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._gate.handshake_time,
            )
        except OSError:  # those of TLS included: the peer has hung up, is too slow, or speaks something else
            knock.done()
            connection.close()
        except BaseException:
            knock.done()
            connection.close()
            raise
