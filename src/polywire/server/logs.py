"""What the hub logs, to standard error: from which level on, as text or as JSON, and how often.

A record may have fields besides its message: ``log.warning("…", extra={"client": …, "user": …})``. As JSON they are
separate keys; a text line must contain what matters in its message. Lines that any client can cause are rate-limited: a
flood of events must not become a flood of lines.
"""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from polywire.hub.client import Client
from polywire.hub.peer import Refused
from polywire.server.config.schema import Log

FIELDS: Final = ("client", "user", "address", "protocol", "action", "channel", "reason")
"""The fields a record may carry."""

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TEXT_OF_NODE: Final = "%(asctime)s {node} %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object on a line for each record. ``node`` is in it where there are several."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._node:
            found["node"] = self._node
        found.update((name, getattr(record, name)) for name in FIELDS if getattr(record, name, None))
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def set_up(wanted: Log, node: str = "") -> None:
    """Log as configured, from now on. May be called again. ``node`` is the name of this one where there are several."""
    handler = logging.StreamHandler(sys.stderr)
    text = TEXT_OF_NODE.format(node=node.replace("%", "%%")) if node else TEXT
    handler.setFormatter(JsonFormatter(node) if wanted.format == "json" else logging.Formatter(text))
    level = getattr(logging, wanted.level.upper())
    logging.basicConfig(handlers=[handler], level=level, force=True)


SECONDS = 5.0
"""How far apart two lines of the same kind are."""

MOST_KEYS: Final = 1000
"""How many sources of lines are kept apart."""

APART: Final = 8
"""How many clients of one user or host have lines of their own."""

SHOWN: Final = 100
"""How much of a name that a client has chosen goes to the log."""


TOO_LARGE: Final = "too-large"


class Seldom:
    """One kind of line. What happens in between is counted, and reported with the next line."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._next = float("-inf")
        self._untold = 0

    @property
    def is_due(self) -> bool:
        """Whether the next line would be written, and nothing is left to report with it."""
        return self._untold == 0 and self._clock() >= self._next

    def warn(self, words: str, *arguments: object, **fields: object) -> None:
        """Write the line, unless the last one was a moment ago. ``fields`` are among ``FIELDS``."""
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        self._next = now + SECONDS
        if self._untold:
            words += " (and %d more like it)"
            arguments = (*arguments, self._untold)
            self._untold = 0
        self._log.warning(words, *arguments, extra=fields)


class SeldomEach:
    """One kind of line for each of up to ``most`` sources, so that a noisy one does not hide the others."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float], most: int = MOST_KEYS) -> None:
        self._log = log
        self._clock = clock
        self._most = most
        self._by_key: dict[object, Seldom] = {}
        self._rest = Seldom(log, clock)

    @property
    def is_due(self) -> bool:
        """Whether the next line of any source would be written, and nothing is left to report with it."""
        return self._rest.is_due and all(each.is_due for each in self._by_key.values())

    def warn(self, key: object, words: str, *arguments: object, **fields: object) -> None:
        """Write the line, unless the last one of this source was a moment ago."""
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) >= self._most:
                self._by_key = {other: each for other, each in self._by_key.items() if not each.is_due}
            # In a flood from everywhere at once those who come late share one line.
            found = self._rest
            if len(self._by_key) < self._most:
                found = self._by_key[key] = Seldom(self._log, self._clock)
        found.warn(words, *arguments, **fields)


class Refusals:
    """What clients were refused: a line for each client, action and reason every few seconds.

    Up to ``APART`` clients of one user, or of one host without a login, have lines of their own, the others share one:
    a program that connects again for each message must not fill the log.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._sources: dict[object, SeldomEach] = {}
        self._rest = SeldomEach(log, clock, APART)

    def refused(self, client: Client, action: str, channel: str, reason: Refused) -> None:
        """A client may not do this: ``action`` is one of those of ``[[access]]``, ``channel`` may be a service."""
        denied = reason is Refused.FORBIDDEN
        self._warn(
            client,
            reason.label,
            "%s from %s over %s may not %s %r" if denied else "%s from %s over %s: %s %r is refused: %s",
            *((action, channel[:SHOWN]) if denied else (action, channel[:SHOWN], reason.label)),
            action=action,
            channel=channel[:SHOWN],
        )

    def oversized(self, client: Client, size: int, limit: int, cut: bool) -> None:  # noqa: FBT001 - a Callable has no names
        """A client's message is larger than the limit; ``size`` is 0 where it is not known."""
        self._warn(
            client,
            TOO_LARGE,
            "%s from %s over %s: a message of %s bytes is over the size limit of %d, and %s",
            size or f"more than {limit}",
            limit,
            "was cut" if cut else "was refused",
        )

    def _warn(self, client: Client, reason: str, words: str, *arguments: object, **fields: object) -> None:
        user, protocol, name = client.identity.name, client.counters.protocol, client.name[:SHOWN]
        source = (user or client.address.rpartition(":")[0], protocol, fields.get("action"), reason)
        self._lines(source).warn(
            client.number,
            words,
            repr(user or name) if user or name else "a client",
            client.address,
            protocol,
            *arguments,
            client=name,
            user=user,
            address=client.address,
            protocol=protocol,
            reason=reason,
            **fields,
        )

    def _lines(self, source: object) -> SeldomEach:
        found = self._sources.get(source)
        if found is None:
            if len(self._sources) >= MOST_KEYS:
                self._sources = {other: each for other, each in self._sources.items() if not each.is_due}
            found = self._rest
            if len(self._sources) < MOST_KEYS:
                found = self._sources[source] = SeldomEach(self._log, self._clock, APART)
        return found
