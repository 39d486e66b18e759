"""One connection as its session and its outbox see it, whatever transport carries it.

A transport (``server/listeners.py``, ``server/websockets.py``) calls ``opened``, ``deliver`` and ``closed``, and tells
the outbox when it is full; the session sees a ``Peer``, the outbox a ``Link``. Logins that take time run elsewhere:
what arrives meanwhile waits, and reading is paused, so it is little.

All connections share one event loop. What they send is handled at once as long as that takes little time. A connection
that has used more than its share of the loop waits: all of these together get a few milliseconds in each turn of the
loop, and take turns slice by slice; so do the hosts they come from.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, final

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.outbox import Outbox
from polywire.hub.peer import GoesOn, HoldsUnfinished, Limits, Login, Refusal, SaysTooBig, Session
from polywire.hub.work import DONE, TURN, Turns
from polywire.server.gate import LITTLE, Gate, Host

HIGH_WATER: Final = 256 * 1024
"""How many bytes a transport may hold before the outbox keeps the rest."""

CLOSE_TIME: Final = 2.0
"""Seconds a peer has to take its last bytes once its connection is being closed."""

SMALL: Final = 4 * 1024
"""Bytes of unfinished messages of one connection that are not counted."""
SLICE: Final = 1024
LEAST_SLICE: Final = 256
UNFINISHED_SLICE: Final = 32 * 1024
MOST_SLICE: Final = 256 * 1024
"""Bytes of a stream that are handled at once: at first, at least and at most, by the time they take."""

LONG: Final = 1_000_000
SHORT: Final = 500_000
"""A slice that took more nanoseconds than ``LONG`` makes the next one smaller, fewer than ``SHORT`` make it larger."""

PATIENCE: Final = 8
"""While only busy connections are there, a slice may take so many times as long."""

SHARE: Final = 1_000_000
WINDOW: Final = 0.05
"""A connection that has taken so many nanoseconds, within so many seconds, is busy: it waits for its turn."""

HOST_SHARE: Final = 4 * SHARE
"""The same for all connections from one host: then each of them waits for its turn with more than a slice."""

LONG_READ: Final = 250_000
"""Nanoseconds that a single read may take before the rest of it waits for its turn: of those who just came, too."""

EXPIRED: Final = "login-expired"
REVOKED: Final = "login-revoked"
HANDSHAKE_TIME: Final = "handshake-time"
IDLE_TIME: Final = "idle-time"
INTERNAL_ERROR: Final = "internal-error"
UNFINISHED_SIZE: Final = "unfinished-size"

log = logging.getLogger("polywire.server")


MakeSession = Callable[[Client, "Endpoint", Limits], Session]
Wrap = Callable[[list[bytes | memoryview]], list[bytes | memoryview]]


@final
class Endpoint:
    """A session, its client and its outbox on one transport. ``wrap`` frames what is written, where that is needed."""

    def __init__(self, gate: Gate, listener: str, protocol: int, make_session: MakeSession, wrap: Wrap | None) -> None:
        self._gate = gate
        self._hub = gate.hub
        self._backlog = gate.backlog
        self._buffer = gate.buffer
        self._little_buffer = gate.little_buffer
        self._turns = gate.turns
        self._now = gate.loop.time
        self._monotonic = gate.hub.monotonic
        self._listener = listener
        self._protocol = protocol
        self._make_session = make_session
        self._wrap = wrap
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._holder: HoldsUnfinished | None = None
        self._partial = 0  # bytes of an unfinished message that the transport holds
        self._counted = 0  # bytes that the gate knows of
        self._held: deque[bytes | str] | None = None
        self._held_size = 0
        self._is_crowded = False  # little is read at once
        self._floods = False  # and the peer has sent more than that
        self._last = b""
        self._last_too_big = b""
        self._pauses = 0
        self._resumed = 0
        self._handshake: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._hanging_up: asyncio.TimerHandle | None = None
        self._closing = False
        self._slice = SLICE
        self._window = 0.0  # when the time began that is counted
        self._used = 0  # nanoseconds that what the peer sent has taken since then
        self._used_before = 0  # the same in the time before it
        self._host = Host("")
        self.is_stream = False  # what it carries can be cut anywhere
        self.protocols: tuple[asyncio.BaseProtocol, asyncio.BaseProtocol] | None = None
        """What reads little from the transport, and what reads all there is, where it can do either."""
        self.is_established = False
        self.active = 0.0
        topics, replies, queues = gate.policies
        self.outbox = Outbox(self, gate.hub.flusher, cap=gate.outbox_cap, policy=topics, replies=replies, queues=queues)
        self.client: Client | None = None

    @property
    def is_closing(self) -> bool:
        """Whether the last words have been said."""
        return self._closing

    @property
    def is_held(self) -> bool:
        """Whether what the peer sends is put aside."""
        return self._held is not None

    @property
    def certificate(self) -> Mapping[str, object] | None:
        """The certificate the peer showed, if it did."""
        found = self._transport.get_extra_info("peercert") if self._transport is not None else None
        return found or None

    @property
    def unread_until(self) -> int:
        """When what the peer sends was last left unread, by the hub's monotonic clock."""
        return self._hub.monotonic() if self._pauses > 0 else self._resumed

    def opened(self, transport: asyncio.Transport, last: bytes = b"", last_too_big: bytes = b"") -> None:
        """The peer is there: make its session. ``last`` is what the transport wants written before it closes.

        ``last_too_big`` is that where a message was too big.
        """
        self._transport = transport
        self._last = last
        self._last_too_big = last_too_big
        transport.set_write_buffer_limits(high=HIGH_WATER)
        gate = self._gate
        if not gate.enter(self):
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        inet = isinstance(peer, tuple) and len(peer) > 1
        address = f"{peer[0]}:{peer[1]}" if inet else "unix"
        local = not inet or gate.is_loopback(peer[0])
        self._host = gate.backlog.enter(str(peer[0]) if inet else "unix")
        self.active = gate.loop.time()
        self._handshake = gate.loop.call_later(gate.handshake_time, self._handshake_over)
        self.client = gate.hub.client(self._protocol, self.outbox, address, local=local)
        session = self._make_session(self.client, self, gate.limits)
        self._session = session
        self._holder = session if isinstance(session, HoldsUnfinished) else None
        if gate.journaling is not None:
            gate.journaling.hold_if_full(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the gate knows better
        """What the peer's next bytes are read into. ``take`` has to follow before anything else is read."""
        backlog = self._backlog
        # uvloop reads a new connection once, even if it was paused at once.
        self._is_crowded = self._pauses > 0 or (backlog.size > backlog.most and backlog.is_crowded(self._host))
        return self._little_buffer if self._is_crowded else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """The peer's bytes have been read."""
        data = self.take(nbytes)
        protocols = self.protocols
        if protocols is not None and not self._is_crowded:
            self._host.whole.add(self)
            self._read_by(protocols[1])
        self.deliver(data)

    def read_little(self) -> None:
        """Read little at once while the host is crowded: what is read then is asked of ``get_buffer`` first."""
        if self.protocols is not None:
            self._read_by(self.protocols[0])

    def _read_by(self, protocol: asyncio.BaseProtocol) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._pauses == 0:
            transport.pause_reading()
        transport.set_protocol(protocol)
        if self._pauses == 0:
            transport.resume_reading()

    def take(self, size: int) -> bytes:
        """The bytes that were read."""
        self._floods = self._is_crowded and size == LITTLE
        return self._buffer[:size].tobytes()

    def deliver(self, data: bytes | str) -> None:
        """What the peer has sent: to the session, or aside while its login or a large request is in progress."""
        self.active = self._now()
        if self._closing:
            return
        if self._pauses:
            self._pause_transport()  # see ``get_buffer``
        if self._held is not None:
            self._held.append(data)
            self._count_held(len(data))
        elif (self._used > SHARE or self._floods) and not self._turns.has_time():
            self._hold(data)
            self._wait_for_turn()
        elif self.is_stream and len(data) > self._slice:
            self._handle_slices(data)
        else:
            self._handle(data)

    def _handle_slices(self, data: bytes | str) -> None:
        """Handle a long piece of a stream slice by slice, until that has taken too long."""
        host = self._host
        if host.used > HOST_SHARE and self.active - host.window <= WINDOW and not self._turns.has_time():
            self._hold(data)
            self._wait_for_turn()
            return
        start = 0
        begun = self._monotonic()
        while start < len(data):
            end = start + self._slice
            self._handle(data[start:end])
            start = end
            is_long = self._used > SHARE or host.used > HOST_SHARE or self._monotonic() - begun > LONG_READ
            if self._held is None and is_long and not self._turns.has_time():
                self._hold()
                self._wait_for_turn()
            if self._held is not None:
                if start < len(data):
                    self._held.appendleft(data[start:])
                    self._count_held(len(data) - start)
                return

    def _handle(self, data: bytes | str) -> None:
        """Let the session handle a slice."""
        session = self._session
        if session is None or self._closing:
            return
        begun = self._monotonic()
        self._guarded(session.received, data)
        taken = self._monotonic() - begun
        turns = self._turns
        age = self.active - self._window
        if age > WINDOW:
            self._used_before = self._used if age < 2 * WINDOW else 0
            self._window = self.active
            self._used = 0
        self._used += taken
        host = self._host
        if self.active - host.window > WINDOW:
            host.window = self.active
            host.used = 0
        host.used += taken
        if self._used > SHARE or host.used > HOST_SHARE:
            turns.charge(taken)
        if self._used <= SHARE and self._used_before <= SHARE:
            turns.light.at = begun
        holder = self._holder
        if holder is not None:
            pending = holder.pending()
            if pending > SMALL or self._counted:
                self._count(pending + self._partial)
        self._hold_if_busy()
        if not turns.light.is_near(begun):
            taken //= PATIENCE
        if taken > LONG:
            # Cutting up an unfinished message only makes its session look at it more often.
            self._slice = max(UNFINISHED_SLICE if self._counted else LEAST_SLICE, self._slice // 2)
        elif taken < SHORT and len(data) >= self._slice:
            self._slice = min(MOST_SLICE, self._slice * 2)
        if self._gate.journaling is not None:
            self._gate.journaling.hold_if_full(self)

    def _wait_for_turn(self) -> None:
        """Handle what was put aside in turns with other busy connections."""
        self._turns.start(self._host.name, Turns(self._take_turn))

    def _take_turn(self) -> int:
        """Handle a slice of what was put aside."""
        held = self._held
        if held is None or self._session is None or self._closing:
            self._forget_held()
            return DONE
        if not held:
            self._held = None
            self.resume_reading()
            return DONE
        data = held.popleft()
        if self.is_stream and len(data) > self._slice:
            held.appendleft(data[self._slice :])
            data = data[: self._slice]
        self._count_held(-len(data))
        self._held = None  # so that it can be put aside for another reason, by a login say
        self._handle(data)
        if not self.is_held:
            self._held = held
            return TURN
        self._held = held
        self.resume_reading()
        return DONE

    def hold(self, partial: int) -> None:
        """The transport holds this much of a message that has not arrived whole."""
        self._partial = partial
        if self._holder is not None and (partial > SMALL or self._counted):
            self._count(self._holder.pending() + partial)

    def _hold(self, *data: bytes | str) -> None:
        self._held = deque(data)
        self._count_held(sum(map(len, data)))
        self.pause_reading()

    def _count_held(self, size: int) -> None:
        """So much more is put aside, or less."""
        if size:
            self._held_size += size
            self._backlog.count(self._host, size)

    def _forget_held(self) -> None:
        self._held = None
        self._count_held(-self._held_size)

    def _hold_if_busy(self) -> None:
        """Put aside what the peer sends until what it has asked for is done."""
        client = self.client
        if client is not None and self._held is None and not self._closing and self._hub.busy(client):
            self._hold()
            self._hub.when_idle(client, self._go_on)

    def _go_on(self) -> None:
        """Handle what was put aside."""
        session, client = self._session, self.client
        if session is None or client is None or self._closing:
            self._forget_held()
            return
        if isinstance(session, GoesOn):
            self._guarded(session.go_on)
            if self._hub.busy(client):
                self._hub.when_idle(client, self._go_on)
                return
        if self._held:
            self._wait_for_turn()
        else:
            self._held = None
            self.resume_reading()

    def closed(self) -> None:
        """The connection has ended, however it ended."""
        self._closing = True
        self._forget_unfinished()
        self.outbox.close()
        self._cancel_handshake()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        self._forget_held()
        self._host.whole.discard(self)
        self.protocols = None  # they know the endpoint
        self._backlog.leave(self._host)
        self._gate.leave(self)
        session, self._session = self._session, None
        if session is not None:
            self._guarded(session.lost)
        self._transport = None  # that of TLS keeps its protocol, and so this

    def drain(self) -> None:
        """Let the session refuse new work."""
        if self._session is not None:
            self._session.drain()

    def busy(self) -> bool:
        """Whether something waits to be written to this peer, here or in the transport, or to be answered."""
        transport, session = self._transport, self._session
        if self.outbox.size() > 0 or (session is not None and session.busy()):
            return True
        return transport is not None and transport.get_write_buffer_size() > 0

    def goodbye(self) -> None:
        """Let the session say its last words and close."""
        if self._session is not None and not self._closing:
            self._session.goodbye()

    def is_silent_since(self, when: float) -> bool:
        """Whether nothing has passed since then, though the peer was listened to."""
        return self.active < when and self._pauses == 0

    def idle(self) -> None:
        """The peer has been silent for too long."""
        self._timed_out(IDLE_TIME)

    def login(self, login: Login, done: Callable[[Identity | Refusal], None]) -> None:
        """Find out who the peer is; hold back what it sends until that is known."""
        client = self.client
        if client is None:
            return
        self._hold()

        def finished(who: Identity | Refusal) -> None:
            if isinstance(who, Identity):
                client.identity = who
                client.grants = self._gate.rules.grants(who, client.counters.protocol)
            held, self._held = self._held or (), None
            self._count_held(-sum(map(len, held)))
            self.resume_reading()
            if self._closing:
                return
            self._guarded(done, who)
            self._hold_if_busy()
            if isinstance(who, Identity) and who.expires is not None and not self._closing:
                left = who.expires - self._hub.clock() / 1e9
                self._expiry = self._gate.loop.call_later(max(0.0, left), self._expired)
            for data in held:
                self.deliver(data)

        self._gate.authenticate(login, self.certificate, self._listener, client.address, finished)

    def established(self) -> None:
        """The handshake is over."""
        self.is_established = True
        self._cancel_handshake()

    def send(self, chunks: list[bytes | memoryview]) -> None:
        """Write what the outbox collected, unless the last words have been said.

        Outboxes are flushed one behind the other: whatever one fails with ends its connection, and no other.
        """
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        if self.client is not None:
            self.client.counters.octets_out += sum(map(len, chunks))
        self.active = self._now()
        try:
            transport.writelines(chunks if self._wrap is None else self._wrap(chunks))
        except Exception:
            log.exception("%s: writing failed, its connection is closed", self.client)
            self._failed()

    def pause_reading(self) -> None:
        """Leave the peer's bytes where they are."""
        self._pauses += 1
        if self._pauses == 1:
            self._pause_transport()

    def _pause_transport(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, once nobody wants it paused."""
        self._pauses -= 1
        if self._pauses > 0:
            return
        self._resumed = self._hub.monotonic()
        # What came meanwhile is still to be read: until then the peer has not been silent.
        self.active = self._now()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def overflow(self) -> None:
        """A reader too slow for its policy is disconnected."""
        self.broke("slow-reader-disconnected")
        self.abort()

    def close(self, last: bytes | None = None, *, too_big: bool = False) -> None:
        """Write what is left, then what the transport wants last, and hang up; at once on a peer that reads nothing."""
        if self._closing:
            return
        self.outbox.finish()
        self._closing = True
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if last is None:
                last = self._last_too_big if too_big else self._last
            transport.write(last)
            transport.close()
            self._hanging_up = self._gate.loop.call_later(CLOSE_TIME, transport.abort)

    def too_big(self, size: int = 0) -> None:
        """Let the session report a message that is too big to be read, before the transport closes.

        ``size`` is how large it is, 0 where that is not known.
        """
        session: object = self._session
        if not self._closing and self.client is not None:
            limits = self._gate.limits
            limit = limits.message_size if self.is_established else limits.message_size_before_auth
            self._hub.oversized(self.client, size, limit)
        if not self._closing and isinstance(session, SaysTooBig):
            self._guarded(session.too_big)

    def _count(self, held: int) -> None:
        """So much is held of unfinished messages. Where that is too much, this connection ends, and no other."""
        if held <= SMALL:
            held = 0
        before, self._counted = self._counted, held
        reason = self._gate.hold(self, before, held)
        if reason and self._holder is not None and not self._closing:
            self.broke(UNFINISHED_SIZE)
            self._guarded(self._holder.no_room, reason)
            self.linger(self._last_too_big)
            session, self._session = self._session, None
            if session is not None:
                self._guarded(session.lost)  # what it holds is free now, however long the peer takes to hang up
            self._forget_unfinished()

    def _forget_unfinished(self) -> None:
        self._holder = None
        self._gate.hold(self, self._counted, 0)
        self._counted = 0

    def linger(self, last: bytes = b"") -> None:
        """Write what is left, then ``last``; discard what the peer sends until it hangs up, ``CLOSE_TIME`` at most.

        Closing at once while the peer is still sending would reset the connection, and the last words would be lost.
        """
        if self._closing:
            return
        self.outbox.finish()
        self._closing = True
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if last:
                transport.write(last)
            if transport.can_write_eof():
                transport.write_eof()
            transport.resume_reading()
            self._hanging_up = self._gate.loop.call_later(CLOSE_TIME, transport.abort)

    def abort(self) -> None:
        """Hang up at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _handshake_over(self) -> None:
        self._handshake = None
        self._timed_out(HANDSHAKE_TIME)

    def _timed_out(self, limit: str) -> None:
        if self._session is not None and not self._closing:
            self.broke(limit)
            self._guarded(self._session.timed_out)

    def _expired(self) -> None:
        """What proved who the peer is has run out."""
        self._expiry = None
        if self._session is not None and not self._closing:
            self.broke(EXPIRED)
            self._session.goodbye(expired=True)

    def revoke(self) -> None:
        """A reload has locked the peer out: the protocol's last words, then the end."""
        if self._session is not None and not self._closing:
            self.broke(REVOKED)
            log.info("%s: its login was revoked by a reload, its connection is closed", self.client)
            self._session.goodbye(expired=True)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        """Let the session act for this peer; whatever it fails with ends this connection, and no other."""
        flusher = self._hub.flusher
        flusher.source = self
        flusher.is_busy = self._used > SHARE or self._used_before > SHARE
        try:
            act(*arguments)
        except Exception:
            log.exception("%s: a session failed, its connection is closed", self.client)
            self._failed()
        finally:
            flusher.source = None
            flusher.is_busy = False

    def _failed(self) -> None:
        """Hang up because of a fault of the hub's own."""
        self.broke(INTERNAL_ERROR)
        self.abort()

    def _cancel_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def broke(self, fault: str) -> None:
        """Count what the peer did wrong."""
        if self.client is not None:
            self.client.counters.fault(fault)
            self.client.reason = fault
