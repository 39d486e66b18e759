"""A TCP proxy in the test's own process that cuts what goes through it, delays it, or hangs up in the middle."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

Cut = Callable[[bytes], Iterator[bytes]]
"""How a chunk is cut into those that are sent on."""


def whole(data: bytes) -> Iterator[bytes]:
    """Everything as it comes."""
    yield data


def octets(data: bytes) -> Iterator[bytes]:
    """Every byte by itself."""
    for at in range(len(data)):
        yield data[at : at + 1]


def random_cuts(seed: int) -> Cut:
    """Pieces of random lengths, most of them short."""
    chance = random.Random(seed)  # noqa: S311 - for a test

    def cut(data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            size = chance.choice((1, 2, 3, 5, 17, 1000))
            yield data[at : at + size]
            at += size

    return cut


def dial_loopback(port: int) -> socket.socket:
    """A connection to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=30)


class Proxy:
    """Listens on ``port`` and goes on to ``target``. After ``most`` bytes of one direction both sides are cut off.

    ``dial`` opens the connections to the target; it raises ``OSError`` where that is not possible.
    """

    def __init__(
        self,
        target: int,
        cut: Cut = whole,
        *,
        delay: float = 0.0,
        most: int | None = None,
        dial: Callable[[int], socket.socket] = dial_loopback,
    ) -> None:
        self._target = target
        self._dial = dial
        self._cut = cut
        self._delay = delay
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def retarget(self, target: int) -> None:
        """Go on to another port with connections that come from now on."""
        self._target = target

    def cut(self) -> None:
        """Hang up on everybody who is connected now."""
        for each in self._sockets[1:]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up on everybody, and wait for the threads."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _start(self, act: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self._sockets.append(client)
            self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = self._dial(self._target)
        except OSError:  # nobody is there, which the client notices so
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            return
        self._sockets.append(server)
        for each in (client, server):
            each.settimeout(None)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start(self._pump, server, client)
        self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                for piece in self._cut(data):
                    if self._delay:
                        time.sleep(self._delay)
                    target.sendall(piece)
                    sent += len(piece)
                    if self._most is not None and sent >= self._most:
                        source.shutdown(socket.SHUT_RDWR)
                        break
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(target: int, cut: Cut = whole, *, delay: float = 0.0, most: int | None = None) -> Iterator[int]:
    """The port of a proxy to ``target``."""
    proxy = Proxy(target, cut, delay=delay, most=most)
    try:
        yield proxy.port
    finally:
        proxy.close()
