"""MQTT's decoder: octets of one connection to packets, and the scanner for runs of publications.

A packet is an octet of type and flags, the remaining length, and that many octets (MQTT-007). Types, flags, lengths
and the order of packets are judged on the fixed header, before anything is held for the packet; the fields once it
is whole. Any violation ends the connection (MQTT-165).
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, final

from mypy_extensions import i64

from polywire.protocols.mqtt.errors import RemoteProtocolError
from polywire.protocols.mqtt.packets import (
    ACCEPTED,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MAX_OCTETS,
    NAMES,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Connack,
)
from polywire.protocols.mqtt.publications import has_packet_id, qos_of
from polywire.protocols.mqtt.reading import read_other, read_publish
from polywire.protocols.mqtt.state import REFUSAL, Sender, State, after, out_of_order
from polywire.protocols.mqtt.topics import name_problem, plain_name
from polywire.protocols.mqtt.writing import encode
from polywire.wire.buffers import Assembler, same_bytes
from polywire.wire.frame import Frame, Run

__all__ = ["MAX_FILTERS", "MAX_PACKET", "MAX_PACKET_BEFORE_CONNECT", "Decoder", "Role", "encode"]

Role = Literal["server", "client", "both"]

MAX_HEADER: Final = 5
MAX_PACKET: Final = MAX_HEADER + 2 + MAX_OCTETS + 2 + 16 * 1024 * 1024
"""A payload of 16 MiB with the longest topic name and a packet id."""

MAX_PACKET_BEFORE_CONNECT: Final = MAX_HEADER + 10 + 5 * (2 + MAX_OCTETS)
"""The largest CONNECT there can be."""

MAX_FILTERS: Final = 16384

# Neither DUP nor RETAIN:
PLAIN_PUBLISH: Final = 0x30  # QoS 0
CONFIRMED_PUBLISH: Final = 0x32  # QoS 1

NO_LENGTH: Final = 255
LENGTHS: Final = bytes((255, 255, 2, 255, 2, 2, 2, 2, 255, 255, 255, 2, 0, 0, 0, 255))
"""By type: the only remaining length there is, or ``NO_LENGTH`` (MQTT-078, MQTT-105, MQTT-132)."""


def _flags_problem(first: int) -> tuple[str, str] | None:
    """Why no packet at all begins with this octet, as (rule, reason), or None where one does."""
    kind, flags = first >> 4, first & 15
    if kind in {0, 15}:
        return ("MQTT-009", f"type {kind} is forbidden")
    if kind == PUBLISH:
        if flags & 6 == 6:
            return ("MQTT-089", "PUBLISH: QoS is 3, and must be 0, 1 or 2")
        if flags & 14 == 8:
            return ("MQTT-087", "PUBLISH: DUP is set with QoS 0")
        return None
    wanted = 2 if kind in {PUBREL, SUBSCRIBE, UNSUBSCRIBE} else 0
    if flags == wanted:
        return None
    rule = {PUBREL: "MQTT-106", SUBSCRIBE: "MQTT-107", UNSUBSCRIBE: "MQTT-122", DISCONNECT: "MQTT-134"}
    return (rule.get(kind, "MQTT-013"), f"{NAMES[kind]}: the flags are {flags:04b}, and must be {wanted:04b}")


def _allowed(sender: Sender | None, state: State) -> bytes:
    """For each first octet, 1 where ``sender`` (None: either, in any order) may send such a packet now, else 0."""
    allowed = bytearray(256)
    for first in range(256):
        if _flags_problem(first) is None and (sender is None or after(sender, state, first >> 4) is not None):
            allowed[first] = 1
    return bytes(allowed)


ALLOWED: Final[dict[tuple[Sender | None, State], bytes]] = {
    **{("client", state): _allowed("client", state) for state in State},
    **{("server", state): _allowed("server", state) for state in State},
    **{(None, state): _allowed(None, state) for state in State},
}


@final
class Decoder:
    """Turns the octets of one connection into frames.

    ``role`` is the side that reads: a ``"server"`` takes what clients send, in the order they may send it, a
    ``"client"`` what servers send, ``"both"`` any packet at any time. The limits count octets of whole packets;
    ``max_filters`` is for the topic filters of one packet, and the return codes of one SUBACK.
    """

    def __init__(
        self,
        *,
        max_packet: int = MAX_PACKET,
        max_packet_before_connect: int = MAX_PACKET_BEFORE_CONNECT,
        max_filters: int = MAX_FILTERS,
        role: Role = "server",
    ) -> None:
        if role not in {"server", "client", "both"}:
            raise ValueError(f"role is {role!r}, and must be 'server', 'client' or 'both'")
        sender: Sender | None = "client" if role == "server" else "server" if role == "client" else None
        self._sender: Final = sender
        self._state = State.NEW
        self._allowed: bytes = ALLOWED[sender, State.NEW]
        self._max_packet: i64 = max_packet
        self._max_filters: i64 = max_filters
        before: i64 = max_packet_before_connect
        self._limit: i64 = before if sender is not None and before < max_packet else max_packet
        self._octets = Assembler()
        self._head: i64 = 0
        self._failure: RemoteProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The packets that ``data`` completes, in order. Raises ``RemoteProtocolError`` on a violation."""
        frames: list[Frame] = []
        if self._failure is not None:
            raise _without_frames(self._failure)
        chunk = self._octets.take(data)
        if chunk is None:
            return frames
        try:
            self._read(chunk, frames)
        except RemoteProtocolError as error:
            self._fail(error, frames)
            raise
        return frames

    def feed_runs(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None], max_qos: i64 = 0
    ) -> list[Frame | Run]:
        """As ``feed``, with consecutive publications to one route as one ``Run`` (MQTT-194).

        ``routes`` maps the octets of topic names to routes. A name it lacks is given to ``resolve``, which returns
        its route (and may put it into ``routes``), or None to have the frame itself. Only publications with no flags,
        the shortest header and a valid name outside of ``$`` become part of a run: those with QoS 0 may be forwarded as
        they stand, those with QoS 1, if ``max_qos`` says so, make runs of their own.
        """
        items: list[Frame | Run] = []
        if self._failure is not None:
            raise _without_frames(self._failure)
        chunk = self._octets.take(data)
        if chunk is None:
            return items
        end: i64 = len(chunk)
        pos: i64 = 0
        want: i64 = 0
        run: object | None = None
        start: i64 = 0
        count: i64 = 0
        topic: i64 = 0
        known: i64 = -1  # the length of the topic name at `topic`, which has the route `run`
        kind: i64 = PLAIN_PUBLISH  # of the run
        try:
            while pos < end:
                first: i64 = chunk[pos]
                publication = first == PLAIN_PUBLISH or (first == CONFIRMED_PUBLISH and max_qos > 0)
                head: i64 = 2
                size: i64 = 0
                if publication and pos + 1 < end and chunk[pos + 1] < 128 and self._allowed[first] != 0:
                    size = 2 + i64(chunk[pos + 1])
                if size == 0 or size > self._limit:
                    size = self._measure(chunk, pos, end)
                    head = self._head
                if size == 0 or pos + size > end:
                    want = size if size != 0 else end - pos + 1
                    break
                route: object | None = None
                name: i64 = pos + head + 2
                if publication and name <= pos + size and (head == 2 or size - head >= 1 << (7 * (head - 2))):
                    length: i64 = (i64(chunk[name - 2]) << 8) | i64(chunk[name - 1])
                    if name + length > pos + size or (
                        first == CONFIRMED_PUBLISH and not has_packet_id(chunk, name + length, pos + size)
                    ):
                        known = -1
                    elif length == known and same_bytes(chunk, topic, name, length):
                        route = run
                    else:
                        octets = chunk[name : name + length]
                        route = routes.get(octets)
                        if route is None and _may_run(octets):
                            route = resolve(octets)
                        topic = name
                        known = length
                if route is not run or first != kind:
                    if run is not None:
                        items.append(Run(run, chunk, start, pos, count, qos_of(kind)))
                    run = route
                    kind = first
                    start = pos
                    count = 0
                if route is None:
                    known = -1
                    items.append(self._frame(chunk, first, pos + head, pos + size))
                else:
                    count += 1
                pos += size
        except RemoteProtocolError as error:
            if run is not None:
                items.append(Run(run, chunk, start, pos, count, qos_of(kind)))
            self._fail(error, items)
            raise
        if run is not None:
            items.append(Run(run, chunk, start, pos, count, qos_of(kind)))
        self._octets.keep(chunk, pos, want)
        return items

    def pending(self) -> int:
        """How many octets of an unfinished packet are held."""
        return self._octets.pending()

    def _read(self, chunk: bytes, frames: list[Frame]) -> None:
        end: i64 = len(chunk)
        pos: i64 = 0
        want: i64 = 0
        while pos < end:
            size = self._measure(chunk, pos, end)
            if size == 0 or pos + size > end:
                want = size if size != 0 else end - pos + 1
                break
            frames.append(self._frame(chunk, chunk[pos], pos + self._head, pos + size))
            pos += size
        self._octets.keep(chunk, pos, want)

    def _measure(self, chunk: bytes, pos: i64, end: i64) -> i64:
        """How many octets the packet at ``pos`` has, 0 while its fixed header is not whole; ``_head`` is that one's.

        All that can be said against a packet by its fixed header is said here.
        """
        first: i64 = chunk[pos]
        if self._allowed[first] == 0:
            raise self._refusal(first, pos)
        length: i64 = 0
        shift: i64 = 0
        at: i64 = pos + 1
        while True:
            if at == end:
                return 0
            octet: i64 = chunk[at]
            length |= (octet & 127) << shift
            if octet < 128:
                break
            if shift == 21:
                raise RemoteProtocolError(
                    "the remaining length has more than four octets", rule="MQTT-015", position=int(at)
                )
            at += 1
            shift += 7
        at += 1
        self._head = at - pos
        size = at - pos + length
        kind: i64 = first >> 4
        wanted: i64 = LENGTHS[kind]
        if size > self._limit:
            raise self._too_large(kind, size, pos)
        if wanted not in (NO_LENGTH, length):
            rule = "MQTT-132" if wanted == 0 else "MQTT-078" if kind == CONNACK else "MQTT-105"
            reason = f"{NAMES[kind]}: the remaining length is {length}, and must be {wanted}"
            raise RemoteProtocolError(reason, rule=rule, position=int(pos + 1))
        if kind == SUBACK and length > 2 + self._max_filters:
            reason = f"SUBACK: it has {length - 2} return codes, more than the {self._max_filters} allowed"
            raise RemoteProtocolError(reason, rule="MQTT-181", position=int(pos + 1))
        return size

    def _frame(self, chunk: bytes, first: i64, pos: i64, end: i64) -> Frame:
        """The packet whose variable header and payload are ``chunk[pos:end]``."""
        kind: i64 = first >> 4
        if kind == PUBLISH:
            return read_publish(chunk, first, pos, end)
        frame = read_other(kind, chunk, pos, end, self._max_filters)
        if kind in (CONNECT, CONNACK, DISCONNECT):
            self._advance(kind, frame)
        return frame

    def _advance(self, kind: int, frame: Frame) -> None:
        """Go to the state behind a packet that changes it."""
        sender = self._sender
        if sender is None:
            return
        refused = isinstance(frame, Connack) and frame.return_code != ACCEPTED
        following = after(sender, self._state, REFUSAL if refused else kind)
        if following is not None:
            self._state = following
            self._allowed = ALLOWED[sender, following]
            self._limit = self._max_packet

    def _refusal(self, first: i64, pos: i64) -> RemoteProtocolError:
        """Why no packet with this first octet may come now."""
        sender: Sender = self._sender or "client"  # None refuses by flags alone
        rule, reason = _flags_problem(int(first)) or out_of_order(sender, self._state, int(first >> 4))
        return RemoteProtocolError(reason, rule=rule, position=int(pos))

    def _too_large(self, kind: i64, size: i64, pos: i64) -> RemoteProtocolError:
        rule = "MQTT-179" if self._limit == self._max_packet else "MQTT-180"
        reason = f"{NAMES[kind]}: the packet has {size} octets, more than the {self._limit} allowed"
        error = RemoteProtocolError(reason, rule=rule, position=int(pos + 1))
        if kind == PUBLISH:
            error.oversize = int(size)
        return error

    def _fail(self, error: RemoteProtocolError, frames: Sequence[object]) -> None:
        """Put an error's place in the stream and the frames before it into it, and remember it."""
        error.position += int(self._octets.offset)
        error.frames = list(frames)
        self._failure = _without_frames(error)
        self._octets = Assembler()


def _without_frames(error: RemoteProtocolError) -> RemoteProtocolError:
    """The same error, for the calls behind the one that met it."""
    return RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)


def _may_run(octets: bytes) -> bool:
    """Whether a publication to this topic name may be forwarded as it stands."""
    if octets[:1] == b"$":
        return False
    return plain_name(octets, 0, len(octets)) or name_problem(octets) is None
