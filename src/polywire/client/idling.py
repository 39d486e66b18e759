"""Noticing that a connection is silent: nothing has gone over it either way for so long."""

import asyncio
from collections.abc import Callable
from typing import Final

from polywire.client.link import Link

LOOKS: Final = 4
"""How often it looks in the time it is given: a silence is noticed that much late at the most."""


class Idling:
    """Calls ``silent`` once, when ``link`` has been silent for ``seconds`` and nobody was ``busy`` meanwhile."""

    def __init__(self, link: Link, seconds: float, busy: Callable[[], bool], silent: Callable[[], None]) -> None:
        self._link = link
        self._pause = seconds / LOOKS
        self._busy = busy
        self._silent = silent
        self._seen = link.moved
        self._quiet = 0
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        moved = self._link.moved
        self._quiet = 0 if moved != self._seen or self._busy() else self._quiet + 1
        self._seen = moved
        if self._quiet == LOOKS:
            self._silent()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)
