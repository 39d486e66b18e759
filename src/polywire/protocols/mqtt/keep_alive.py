"""A client's side of keep alive: it says something in time, and notices a server that says nothing (MQTT-053)."""

import asyncio
from collections.abc import Callable

from polywire.client.errors import ConnectionLost, Timeout
from polywire.client.link import Link
from polywire.protocols.mqtt.frames import Pingreq, encode

PINGREQ = encode(Pingreq())


class KeepAlive:
    """Looks three times in ``seconds`` whether anything was sent and ``heard``; 0 turns that off.

    Where nothing was, it sends a PINGREQ, and ends the connection where nothing is heard until the next look. ``deaf``
    tells whether the connection is not read at the moment, so that nothing can be heard.
    """

    def __init__(self, seconds: int, deaf: Callable[[], bool]) -> None:
        self._every = seconds / 3
        self._deaf = deaf
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._passed = 0
        self._asked = False
        self._waiting: list[asyncio.Future[None] | None] = []  # one for each PINGREQ; None where nobody waits
        self.heard = False

    def start(self, link: Link) -> None:
        """Look after this connection from now on."""
        self._link = link
        self._passed = link.passed
        self._asked = self.heard = False
        self._next()

    def stop(self) -> None:
        """It has ended."""
        self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for pong in waiting:
            if pong is not None and not pong.done():
                pong.set_exception(ConnectionLost("the connection ended"))

    @property
    def awaiting(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(pong is not None for pong in self._waiting)

    def ping(self) -> "asyncio.Future[None]":
        """Send a PINGREQ, and give what is done when its answer comes."""
        if self._link is None:
            raise ConnectionLost("there is no connection", sent=False)
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(pong)
        self._link.write(PINGREQ)
        return pong

    def answered(self) -> None:
        """PINGRESP has come."""
        pong = self._waiting.pop(0) if self._waiting else None
        if pong is not None and not pong.done():
            pong.set_result(None)

    def _next(self) -> None:
        if self._every:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        link = self._link
        if link is None:
            return
        if self._asked and not self.heard and not self._deaf():
            link.abort(Timeout("the answer to PINGREQ", self._every))
            return
        # Whoever only listens must speak, and whoever only speaks must listen.
        self._asked = link.passed == self._passed or not self.heard
        if self._asked:
            self._waiting.append(None)
            link.write(PINGREQ)
        self.heard = False
        self._passed = link.passed
        self._next()
