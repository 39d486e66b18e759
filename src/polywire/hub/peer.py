"""What a session and its connection may ask of each other, the limits of a peer, and why the hub refuses a request.

The server implements ``Peer``; sessions see nothing else of it. Everything here is answered in the hub's own thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from polywire.hub.access import Identity


class Refused(Enum):
    """Why the hub refuses what a client asks for. Each protocol turns these reasons into answers of its own.

    ``label`` names a reason in metrics, log lines and the journal; ``message`` is for people.

    ``temporary``: the same request may succeed later, without any change to it or to the hub's configuration.
    """

    FORBIDDEN = ("forbidden", "the access rules don't allow it")
    SERVICE_CHANNEL = ("service-channel", "channels under '$' are the hub's own")
    UNSUPPORTED = ("unsupported", "nothing can be published there")
    TOO_DEEP = ("too-deep", "the channel has too many levels")
    LIMIT = ("limit", "you have too many subscriptions, services or calls")
    PATTERN_COST = (
        "pattern-cost",
        "your patterns overlap too much; use fewer patterns, or fewer levels and wildcards in each",
    )
    NAMES_SIZE = (
        "names-size",
        "the memory limit for names is reached; use fewer or shorter names",
    )
    WATCHERS = ("watchers", "the limit on watchers of demand is reached")
    WILLS_SIZE = ("wills-size", "the limit on last wills is reached")
    RETAINED_FULL = ("retained-full", "the limit on retained messages is reached")
    TOO_MANY_QUEUES = ("too-many-queues", "the limit on queues is reached", True)
    QUEUE_FULL = ("queue-full", "the queue is full", True)
    QUEUES_FULL = ("queues-full", "the hub's queues are full", True)
    DRAINING = ("draining", "the hub is shutting down", True)
    UNAVAILABLE = ("journal-unavailable", "the journal can't be written at the moment; try again later", True)

    def __init__(self, label: str, message: str, temporary: bool = False) -> None:
        self.label = label
        self.message = message
        self.temporary = temporary


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use; the configuration's ``[limits]``, where each is explained.

    ``sabc_frame_size`` is its ``sabc.frame_size``: longer messages are written in several frames, 0 for one frame each.
    """

    message_size: int = 16 * MIB
    message_size_before_auth: int = 64 * 1024
    header_size: int = 64 * 1024
    call_time: float = 30.0
    subscriptions: int = 10_000
    in_flight: int = 1_000
    unfinished: int = 64
    wills: int = 1_000
    wills_size: int = 16 * MIB
    sessions: int = 20_000
    sessions_per_user: int = 10_000
    sessions_size: int = 128 * MIB
    sessions_size_per_user: int = 64 * MIB
    session_age: float = 7 * 86400.0
    offline_messages: int = 1_000
    sabc_frame_size: int = 64 * 1024


@dataclass(frozen=True, slots=True)
class Login:
    """What a client presented to prove who it is. ``password`` and ``token`` are None where it showed none."""

    user: str = ""
    password: str | bytes | None = None
    token: str | bytes | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A failed login. ``reason`` reveals nothing about users; ``retry_after`` is in seconds, 0 for now."""

    reason: str
    retry_after: float = 0.0


class Peer(Protocol):
    """The other end of a session's connection."""

    @property
    def certificate(self) -> Mapping[str, object] | None:
        """The certificate the peer showed, if it did."""

    @property
    def unread_until(self) -> int:
        """When the hub last left unread what the peer sends, by ``Hub.monotonic``: now while it does, 0 for never.

        Up to then the peer's silence is none of its own.
        """

    def login(self, login: Login, done: Callable[[Identity | Refusal], None]) -> None:
        """Find out who the peer is. ``done`` is called once, perhaps later; until then nothing more is received.

        On success the client's identity and grants are set before ``done`` runs. Where the identity ends at some
        time, the session's ``goodbye`` is called then.
        """

    def established(self) -> None:
        """The handshake is over: the time for it no longer runs. Call ``Hub.join`` as well."""

    def close(self, *, too_big: bool = False) -> None:
        """Write what is in the outbox, then hang up. ``lost`` is called afterwards, not from here.

        ``too_big``: because of a message that is too big, which a WebSocket's closing code says.
        """

    def abort(self) -> None:
        """Close the connection immediately."""


class Session(Protocol):
    """The hub's side of one connection, in one protocol."""

    def received(self, data: Any, /) -> None:
        """The peer has sent this: bytes of a stream, or one message of a WebSocket, which may be a text."""

    def lost(self) -> None:
        """The connection has ended."""

    def drain(self) -> None:
        """The hub is shutting down: refuse new work with the protocol's error, finish what was accepted.

        Connected clients stay; clients that have not finished the handshake may be closed.
        """

    def busy(self) -> bool:
        """Whether something accepted is still to be answered or acknowledged, by either side."""

    def goodbye(self, *, expired: bool = False) -> None:
        """Say the protocol's last words, then ``Peer.close``. ``expired``: because the login has ended."""

    def timed_out(self) -> None:
        """The time for the handshake, or for being silent, is over: the protocol's words, then ``Peer.close``."""


@runtime_checkable
class SaysTooBig(Protocol):
    """A session that has words for a message too big to be read."""

    def too_big(self) -> None:
        """Put them into the outbox; the transport closes the connection."""


@runtime_checkable
class HoldsUnfinished(Protocol):
    """A session that may hold parts of messages until the rest has arrived."""

    def pending(self) -> int:
        """How many bytes it holds. Asked for after each read, so it must be quick."""

    def no_room(self, reason: str) -> None:
        """The limit is exceeded: put the protocol's error into the outbox. The connection is closed afterwards."""


@runtime_checkable
class GoesOn(Protocol):
    """A session that keeps what is behind a large request until that is done."""

    def go_on(self) -> None:
        """Continue after the request is done."""
