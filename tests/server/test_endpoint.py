"""What an endpoint tells and does in time: pauses, silence, logins that end. No sockets."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from polywire.hub.access import ANONYMOUS, Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits, Login, Refusal
from polywire.hub.work import ALONE
from polywire.server.endpoint import SLICE, Endpoint
from polywire.server.gate import LITTLE, READ_SIZE, Gate
from tests.hub.links import Clock

SECOND = 1_000_000_000


class HandLoop:
    """As much of an event loop as a gate needs, driven by hand."""

    def __init__(self, clock: Clock) -> None:
        self.time = lambda: clock.now
        self.call_later = clock.later
        self.soon: list[Callable[[], None]] = []
        self.call_soon = self.soon.append

    def turn(self) -> None:
        """Do what is due now."""
        due, self.soon[:] = list(self.soon), []
        for each in due:
            each()


class Transport:
    """As much of a transport as an endpoint needs."""

    def __init__(self, host: str = "192.0.2.1") -> None:
        self.host = host
        self.written = b""
        self.closing = False
        self.ended = False
        self.is_read = True
        self.protocol: object = None

    def set_protocol(self, protocol: object) -> None:
        assert not self.is_read, "uvloop goes on with the protocol it has begun to read for"
        self.protocol = protocol

    def get_extra_info(self, name: str) -> object:
        return (self.host, 5000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        """Any will do."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, chunks: list[bytes]) -> None:
        if self.ended:
            raise RuntimeError("nothing can be written behind the end")
        self.written += b"".join(chunks)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None:
        self.closing = True

    abort = close


class Talk:
    """A session that notes what it is told, and closes when it is to."""

    def __init__(self, client: Client, peer: Endpoint) -> None:
        self.peer, self.client = peer, client
        self.told: list[object] = []
        self.is_busy = False
        self.on_received: Callable[[], None] | None = None

    def received(self, data: Any) -> None:
        self.told.append(data)
        if self.on_received is not None:
            self.on_received()

    def lost(self) -> None:
        self.told.append("lost")

    def drain(self) -> None:
        self.told.append("drain")

    def busy(self) -> bool:
        return self.is_busy

    def goodbye(self, *, expired: bool = False) -> None:
        self._end("expired" if expired else "goodbye")

    def timed_out(self) -> None:
        self._end("timed out")

    def _end(self, words: str) -> None:
        self.told.append(words)
        self.client.outbox.put(words.encode())
        self.peer.close()


class Stand:
    """A gate whose clock is driven by hand, and whose logins end as told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.now = 1000.0
        self.loop = HandLoop(self.clock)
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        clock = self.clock.nanoseconds
        self.gate = Gate(Hub(loop.call_soon, loop.call_later, clock, ["umq"], monotonic=clock), loop)
        self.logins: list[Callable[[Identity | Refusal], None]] = []
        self.gate.authenticate = self._authenticate  # type: ignore[assignment, method-assign]
        self.transport = Transport()

    def connect(self, last: bytes = b"") -> tuple[Endpoint, Talk]:
        made: list[Talk] = []

        def make(client: Client, peer: Endpoint, _limits: Limits) -> Talk:
            made.append(Talk(client, peer))
            return made[0]

        endpoint = Endpoint(self.gate, "umq", 0, make, None)
        endpoint.opened(cast("asyncio.Transport", self.transport), last)
        return endpoint, made[0]

    def _authenticate(
        self,
        _login: Login,
        _certificate: Mapping[str, object] | None,
        _listener: str,
        _client: Client,
        done: Callable[[Identity | Refusal], None],
    ) -> None:
        self.logins.append(done)


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.gate.close()


def test_nothing_is_written_behind_the_last_words(stand: Stand) -> None:
    endpoint, _ = stand.connect()
    endpoint.outbox.put(b"a")
    endpoint.linger(b"the end")
    endpoint.outbox.put(b"b")  # a message of a topic, say: the peer has not hung up yet
    stand.loop.turn()
    assert stand.transport.written == b"athe end"
    assert not stand.transport.closing


def test_an_outbox_that_cannot_be_written_ends_its_connection_and_no_other(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    bad, _ = stand.connect()
    stand.transport.ended = True
    first, stand.transport = stand.transport, Transport()
    good, _ = stand.connect()
    bad.outbox.put(b"a")
    good.outbox.put(b"b")
    stand.loop.turn()
    assert first.closing
    assert stand.transport.written == b"b"
    assert not stand.transport.closing
    assert "writing failed, its connection is closed" in caplog.text


def test_the_time_a_peer_is_not_read_is_told(stand: Stand) -> None:
    endpoint, _ = stand.connect()
    clock = stand.clock
    assert endpoint.unread_until == 0
    endpoint.pause_reading()
    endpoint.pause_reading()
    clock.advance(1)
    assert endpoint.unread_until == 1001 * SECOND
    endpoint.resume_reading()
    clock.advance(1)
    assert endpoint.unread_until == 1002 * SECOND
    endpoint.resume_reading()
    clock.advance(1)
    assert endpoint.unread_until == 1002 * SECOND


def test_a_peer_that_is_not_read_is_not_silent(stand: Stand) -> None:
    endpoint, talk = stand.connect()
    endpoint.established()
    endpoint.pause_reading()
    stand.clock.advance(10)
    assert not endpoint.is_silent_since(1009.0)
    endpoint.resume_reading()
    assert not endpoint.is_silent_since(1009.0)
    stand.clock.advance(10)
    assert endpoint.is_silent_since(1019.0)
    endpoint.idle()
    assert talk.told == ["timed out"]
    assert stand.transport.closing
    assert talk.client.counters.faults == {"idle-time": 1}


def read(endpoint: Endpoint, data: bytes) -> int:
    """Let the endpoint have what fits into its buffer; how much that is."""
    buffer = endpoint.get_buffer(-1)
    taken = data[: len(buffer)]
    buffer[: len(taken)] = taken
    endpoint.deliver(endpoint.take(len(taken)))
    return len(taken)


def held_back(stand: Stand, host: str, size: int) -> Endpoint:
    """A connection whose input waits for its turn."""
    stand.transport = Transport(host)
    endpoint, talk = stand.connect()
    talk.on_received = lambda: stand.clock.advance(ALONE / SECOND)
    endpoint.deliver(b"takes long")
    endpoint.deliver(bytes(size))
    return endpoint


def test_less_is_read_from_a_host_that_fills_the_backlog_and_only_small_messages_pass(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.gate.backlog.most = 100
    held_back(stand, "192.0.2.1", 80)
    held_back(stand, "192.0.2.2", 10)
    stand.transport = Transport("192.0.2.2")
    elsewhere, _ = stand.connect()
    stand.transport = Transport("192.0.2.1")
    small, said = stand.connect()
    flooding, flood = stand.connect()
    assert len(flooding.get_buffer(-1)) == READ_SIZE
    held_back(stand, "192.0.2.1", 20)
    assert "100 bytes from 4 connections of 192.0.2.1 wait to be handled" in caplog.text
    assert read(flooding, bytes(READ_SIZE)) == LITTLE
    assert flooding.is_held
    assert flood.told == []
    assert read(small, b"small") == 5
    assert said.told == [b"small"]
    assert len(elsewhere.get_buffer(-1)) == READ_SIZE  # others need not care
    while stand.gate.backlog.size:
        stand.loop.turn()
    assert flood.told == [bytes(LITTLE)]
    assert len(flooding.get_buffer(-1)) == READ_SIZE


def test_all_is_read_at_once_from_those_that_have_been_read_before_until_their_host_is_crowded(stand: Stand) -> None:
    stand.gate.backlog.most = 100
    endpoint, talk = stand.connect()
    transport = stand.transport
    endpoint.protocols = little, whole = (asyncio.BaseProtocol(), asyncio.BaseProtocol())
    endpoint.get_buffer(-1)[:5] = b"first"
    endpoint.buffer_updated(5)
    assert (talk.told, transport.protocol, transport.is_read) == ([b"first"], whole, True)
    held_back(stand, "192.0.2.2", 200)
    assert transport.protocol is whole  # others need not care
    held_back(stand, "192.0.2.1", 300)
    assert (transport.protocol, transport.is_read) == (little, True)
    endpoint.get_buffer(-1)[:4] = b"some"
    endpoint.buffer_updated(4)
    assert transport.protocol is little
    endpoint.pause_reading()
    while stand.gate.backlog.size:
        stand.loop.turn()
    endpoint.resume_reading()
    endpoint.get_buffer(-1)[:4] = b"more"
    endpoint.buffer_updated(4)
    assert (transport.protocol, transport.is_read) == (whole, True)
    endpoint.pause_reading()
    held_back(stand, "192.0.2.1", 300)
    assert (transport.protocol, transport.is_read) == (little, False)


def test_little_is_read_of_a_connection_that_was_paused_before_it_is_read(stand: Stand) -> None:
    endpoint, _ = stand.connect()
    endpoint.pause_reading()
    stand.transport.is_read = True  # as uvloop does, once
    assert read(endpoint, bytes(READ_SIZE)) == LITTLE
    assert not stand.transport.is_read


def test_what_a_lost_connection_has_sent_is_no_longer_in_the_backlog(stand: Stand) -> None:
    stand.gate.backlog.most = 10
    endpoint = held_back(stand, "192.0.2.1", 80)
    assert stand.gate.backlog.size == 80
    endpoint.closed()
    assert stand.gate.backlog.size == 0


def test_who_has_used_the_turn_up_waits_for_the_next(stand: Stand) -> None:
    endpoint, talk = stand.connect()
    talk.on_received = lambda: stand.clock.advance(ALONE / SECOND)
    endpoint.deliver(b"long")
    for data in (b"waits", b"behind it"):
        endpoint.deliver(data)
    assert talk.told == [b"long"]
    assert endpoint.is_held
    other, calm = stand.connect()
    other.deliver(b"not held")
    assert calm.told == [b"not held"]
    stand.loop.turn()
    assert talk.told == [b"long", b"waits"]
    stand.loop.turn()
    stand.loop.turn()
    assert talk.told == [b"long", b"waits", b"behind it"]
    assert not endpoint.is_held


def test_a_long_stream_is_handled_slice_by_slice_in_turns(stand: Stand) -> None:
    ends = [stand.connect() for _ in range(2)]
    order: list[str] = []
    for name, (endpoint, talk) in zip("ab", ends, strict=True):
        endpoint.is_stream = True

        def note(name: str = name) -> None:
            order.append(name)
            stand.clock.advance(ALONE / SECOND)

        talk.on_received = note
        endpoint.deliver(bytes(3 * SLICE))
    while not all(sum(map(len, talk.told)) == 3 * SLICE for _, talk in ends):  # type: ignore[arg-type] # all are bytes
        stand.loop.turn()
    # The first slice is handled at once; then their host, which they share, has had its share.
    assert order[:5] == ["a", "a", "b", "a", "b"]


def test_a_connection_that_has_ended_is_freed_at_once(stand: Stand) -> None:
    def make(client: Client, peer: Endpoint, _: Limits) -> Talk:
        return Talk(client, peer)

    endpoint = Endpoint(stand.gate, "umq", 0, make, None)
    endpoint.opened(cast("asyncio.Transport", stand.transport))
    assert endpoint.client is not None
    endpoint.client.outbox.on_room = endpoint.drain
    freed = weakref.ref(make)  # which only the endpoint has, and that is a native object without weak references
    del make
    endpoint.closed()
    stand.clock.alarms.clear()  # as a loop does with those that were cancelled
    gc.disable()
    try:
        del endpoint
        assert freed() is None
    finally:
        gc.enable()


def test_a_login_that_ends_takes_its_connection_along(stand: Stand) -> None:
    endpoint, talk = stand.connect(b"<end>")
    endpoint.login(Login(), talk.told.append)
    endpoint.deliver(b"early")
    endpoint.established()
    anna = Identity("anna", (), "token", 1060.0)
    stand.logins.pop()(anna)
    stand.clock.advance(59)
    assert talk.told == [anna, b"early"]
    stand.clock.advance(1)
    assert talk.told[2:] == ["expired"]
    assert stand.transport.written == b"expired<end>"
    assert talk.client.counters.faults == {"login-expired": 1}


@pytest.mark.parametrize("expires", [None, 1e300, 4600.0])
def test_a_login_without_an_end_or_with_a_far_one_stays(stand: Stand, expires: float | None) -> None:
    endpoint, talk = stand.connect()
    endpoint.login(Login(), talk.told.append)
    stand.logins.pop()(Identity("anna", (), "token", expires))
    endpoint.established()
    stand.clock.advance(3599)
    assert not stand.transport.closing
    endpoint.closed()
    assert all(alarm.cancelled for alarm in stand.clock.alarms)


def test_a_login_that_is_decided_after_the_end_changes_nothing(stand: Stand) -> None:
    endpoint, talk = stand.connect()
    endpoint.login(Login(), talk.told.append)
    endpoint.deliver(b"early")
    endpoint.goodbye()
    stand.logins.pop()(Identity("anna", (), "token", 1000.0))
    endpoint.closed()
    assert talk.told == ["goodbye", "lost"]
    assert all(alarm.cancelled for alarm in stand.clock.alarms)


def test_the_end_is_told_once(stand: Stand) -> None:
    endpoint, talk = stand.connect()
    endpoint.goodbye()
    endpoint.goodbye()
    endpoint.idle()
    endpoint._expired()
    endpoint.closed()
    endpoint.goodbye()
    assert talk.told == ["goodbye", "lost"]
    assert stand.gate.connections == set()


def test_a_handshake_has_its_time(stand: Stand) -> None:
    (_, slow), (endpoint, quick) = stand.connect(), stand.connect()
    endpoint.established()
    stand.clock.advance(stand.gate.handshake_time)
    assert (slow.told, quick.told) == (["timed out"], [])
    assert slow.client.counters.faults == {"handshake-time": 1}


def test_an_endpoint_is_busy_while_its_session_is_or_something_is_unwritten(stand: Stand) -> None:
    endpoint, talk = stand.connect()
    endpoint.login(Login(), talk.told.append)
    stand.logins.pop()(ANONYMOUS)
    assert not endpoint.busy()
    talk.is_busy = True
    assert endpoint.busy()
    talk.is_busy = False
    endpoint.outbox.put(b"x")
    assert endpoint.busy()
    endpoint.outbox.flush()
    assert not endpoint.busy()
