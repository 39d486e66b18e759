"""MQTT's packets as values, the decoder that reads them, and ``encode``, which writes them.

A packet is one byte of type and flags, the remaining length, and that many bytes (MQTT-007). The decoder checks types,
flags, lengths and the order of packets on the fixed header, before it holds anything for the packet, and the fields
once the packet is complete. Any violation ends the connection (MQTT-165). ``encode`` refuses what the standard forbids.

``feed_runs`` is the hub's fast path: consecutive plain publications stay the bytes they came in, as a ``Run``, and
``publications_in``, ``locate`` and ``acknowledge`` walk such a run.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, Final, Literal, final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_le
from mypy_extensions import i16, i32, i64, mypyc_attr

from polywire.protocols.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polywire.protocols.mqtt.topics import MAX_STRING, filter_problem, name_problem, plain_name, text_problem
from polywire.wire.frame import LONGEST_KEPT, NAMES_KEPT, Assembler, Frame, Names, Run, same_bytes

# MQTT-008: the types of packets.
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14

NAMES: Final = (
    "a packet of the forbidden type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "a packet of the forbidden type 15",
)

PROTOCOL_NAME: Final = b"MQTT"  # MQTT-030
PROTOCOL_LEVEL: Final = 4  # MQTT-031
OLD_PROTOCOL_NAME: Final = b"MQIsdp"  # of MQTT 3.1
BRIDGE: Final = 0x80  # MQTT-201: the bit of the protocol level that marks a bridge

# The connect flags, MQTT-032 to MQTT-051.
RESERVED_FLAG: Final = 0x01
CLEAN_SESSION: Final = 0x02
WILL: Final = 0x04
WILL_QOS: Final = 0x18
WILL_RETAIN: Final = 0x20
PASSWORD: Final = 0x40
USER_NAME: Final = 0x80

# MQTT-083: the return codes of CONNACK.
ACCEPTED: Final = 0
UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
IDENTIFIER_REJECTED: Final = 2
SERVER_UNAVAILABLE: Final = 3
BAD_USER_NAME_OR_PASSWORD: Final = 4
NOT_AUTHORIZED: Final = 5

FAILURE: Final = 0x80  # MQTT-120: the return code of SUBACK besides the three QoS

MAX_PACKET_ID: Final = 0xFFFF
MAX_REMAINING: Final = 268_435_455  # MQTT-015
MAX_HEADER: Final = 5
MAX_PACKET: Final = MAX_HEADER + 2 + MAX_STRING + 2 + 16 * 1024 * 1024
"""A payload of 16 MiB with the longest topic name and a packet id."""

MAX_PACKET_BEFORE_CONNECT: Final = MAX_HEADER + 10 + 5 * (2 + MAX_STRING)
"""The largest possible CONNECT."""

MAX_FILTERS: Final = 16384

# Neither DUP nor RETAIN:
PLAIN_PUBLISH: Final = 0x30  # QoS 0
CONFIRMED_PUBLISH: Final = 0x32  # QoS 1

NO_LENGTH: Final = 255
LENGTHS: Final = bytes((255, 255, 2, 255, 2, 2, 2, 2, 255, 255, 255, 2, 0, 0, 0, 255))
"""By type: the only valid remaining length, or ``NO_LENGTH`` (MQTT-078, MQTT-105, MQTT-132)."""

COPIED_ONCE: Final = 1024
"""Larger payloads bypass the writer, which would copy them twice."""

_texts: Final = Names()  # topic names by their bytes, valid ones only
_encoded: Final[dict[str, bytes]] = {}  # the way back, a few thousand of them


@final
@mypyc_attr(acyclic=True)
class Will(Frame):
    """The message that the server publishes when the client's connection ends without DISCONNECT."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "payload", "qos", "retain")

    def __init__(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.topic: Final = topic
        self.payload: Final = payload
        self.qos: Final = qos
        self.retain: Final = retain


@final
@mypyc_attr(acyclic=True)
class Connect(Frame):
    """A client asks for a session. ``keep_alive`` is in seconds, 0 disables it. ``bridge``: it is another broker."""

    __match_args__: ClassVar[tuple[str, ...]] = (
        "client_id",
        "clean_session",
        "keep_alive",
        "will",
        "user_name",
        "password",
        "bridge",
    )

    def __init__(
        self,
        client_id: str,
        clean_session: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        bridge: bool = False,
    ) -> None:
        self.client_id: Final = client_id
        self.clean_session: Final = clean_session
        self.keep_alive: Final = keep_alive
        self.will: Final = will
        self.user_name: Final = user_name
        self.password: Final = password
        self.bridge: Final = bridge


@final
@mypyc_attr(acyclic=True)
class Connack(Frame):
    """The server's answer to CONNECT. After any ``return_code`` but 0 the server closes the connection."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_present", "return_code")

    def __init__(self, session_present: bool, return_code: int) -> None:
        self.session_present: Final = session_present
        self.return_code: Final = return_code


@final
@mypyc_attr(acyclic=True)
class Publish(Frame):
    """A message for a topic. ``packet_id`` is None with QoS 0 only."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "payload", "qos", "retain", "dup", "packet_id")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
    ) -> None:
        self.topic: Final = topic
        self.payload: Final = payload
        self.qos: Final = qos
        self.retain: Final = retain
        self.dup: Final = dup
        self.packet_id: Final = packet_id


@mypyc_attr(acyclic=True)
class _Answer(Frame):
    """A packet with a packet id and nothing else."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Puback(Frame):
    """A message with QoS 1 has arrived."""

    # The most frequent answer: with an inherited constructor it would cost a call more.
    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Pubrec(_Answer):
    """A message with QoS 2 has arrived. The receiver remembers its id, so that a second copy is not delivered."""


@final
@mypyc_attr(acyclic=True)
class Pubrel(_Answer):
    """The sender of a message with QoS 2 will not send it again."""


@final
@mypyc_attr(acyclic=True)
class Pubcomp(_Answer):
    """The receiver of a message with QoS 2 has forgotten its id."""


@final
@mypyc_attr(acyclic=True)
class Subscribe(Frame):
    """A client subscribes to ``filters``: pairs of a topic filter and the highest QoS wanted."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "filters")

    def __init__(self, packet_id: int, filters: tuple[tuple[str, int], ...]) -> None:
        self.packet_id: Final = packet_id
        self.filters: Final = filters


@final
@mypyc_attr(acyclic=True)
class Suback(Frame):
    """The answer to SUBSCRIBE: for each filter, in order, the QoS granted, or 128 for failure."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "return_codes")

    def __init__(self, packet_id: int, return_codes: tuple[int, ...]) -> None:
        self.packet_id: Final = packet_id
        self.return_codes: Final = return_codes


@final
@mypyc_attr(acyclic=True)
class Unsubscribe(Frame):
    """A client ends its subscriptions to these topic filters."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "filters")

    def __init__(self, packet_id: int, filters: tuple[str, ...]) -> None:
        self.packet_id: Final = packet_id
        self.filters: Final = filters


@final
@mypyc_attr(acyclic=True)
class Unsuback(_Answer):
    """The answer to UNSUBSCRIBE."""


@final
@mypyc_attr(acyclic=True)
class Pingreq(Frame):
    """A client shows that it is alive, and asks whether the server is."""


@final
@mypyc_attr(acyclic=True)
class Pingresp(Frame):
    """The answer to PINGREQ."""


@final
@mypyc_attr(acyclic=True)
class Disconnect(Frame):
    """The client's last packet: it disconnects on purpose, and its will is discarded."""


# Which packet may be sent when: one table per sender. A decoder follows that of the other end, ``connection.Order``
# that of its own.

Side = Literal["client", "server"]
Reader = Literal["server", "client", "both"]

REFUSAL: Final = 0x10 | CONNACK
"""The event of a CONNACK whose return code is not 0; all other events are the types of packets."""


class State(Enum):
    """How far one sender on a connection has come."""

    NEW = "new"
    CONNECTED = "connected"
    REFUSED = "refused"
    DISCONNECTED = "disconnected"


BOTH_SEND: Final = (PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP)

CLIENT_SENDS: Final[dict[tuple[State, int], State]] = {
    (State.NEW, CONNECT): State.CONNECTED,  # MQTT-027; more may follow before CONNACK arrives (MQTT-074)
    (State.CONNECTED, DISCONNECT): State.DISCONNECTED,  # MQTT-136
    **{(State.CONNECTED, kind): State.CONNECTED for kind in (*BOTH_SEND, SUBSCRIBE, UNSUBSCRIBE, PINGREQ)},
}

SERVER_SENDS: Final[dict[tuple[State, int], State]] = {
    (State.NEW, CONNACK): State.CONNECTED,  # MQTT-077
    (State.NEW, REFUSAL): State.REFUSED,  # MQTT-084
    **{(State.CONNECTED, kind): State.CONNECTED for kind in (*BOTH_SEND, SUBACK, UNSUBACK, PINGRESP)},
}

TABLES: Final[dict[Side, dict[tuple[State, int], State]]] = {"client": CLIENT_SENDS, "server": SERVER_SENDS}

OUT_OF_ORDER: Final[dict[tuple[Side, State], tuple[str, str]]] = {
    ("client", State.NEW): ("MQTT-027", "a client's first packet must be CONNECT, not"),
    ("client", State.CONNECTED): ("MQTT-028", "a client must not send a second"),
    ("client", State.DISCONNECTED): ("MQTT-136", "a client must send nothing after DISCONNECT, not even"),
    ("server", State.NEW): ("MQTT-077", "a server's first packet must be CONNACK, not"),
    ("server", State.CONNECTED): ("MQTT-187", "a server must not send a second"),
    ("server", State.REFUSED): ("MQTT-084", "a server must send nothing after it refused the connection, not even"),
}

ONLY: Final[dict[Side, tuple[str, frozenset[int]]]] = {
    "client": ("MQTT-011", frozenset({CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT})),
    "server": ("MQTT-010", frozenset({CONNACK, SUBACK, UNSUBACK, PINGRESP})),
}
"""What only this sender sends, and the rule by which the same kind of side refuses it."""


def after(sender: Side, state: State, event: int) -> State | None:
    """The state after ``sender`` has sent this, or None where it may not."""
    return TABLES[sender].get((state, event))


def out_of_order(sender: Side, state: State, kind: int) -> tuple[str, str]:
    """Why ``sender`` may not send a packet of this type now, as (rule, reason)."""
    other: Side = "server" if sender == "client" else "client"
    rule, kinds = ONLY[other]
    if kind in kinds:
        return rule, f"{NAMES[kind]} is sent by a {other} only, not by a {sender}"
    rule, reason = OUT_OF_ORDER[sender, state]
    return rule, f"{reason} {NAMES[kind]}"


def _flags_problem(first: int) -> tuple[str, str] | None:
    """Why no packet at all begins with this byte, as (rule, reason), or None where one does."""
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


def _allowed(sender: Side | None, state: State) -> bytes:
    """For each first byte, 1 where ``sender`` (None: either, in any order) may send such a packet now, else 0."""
    allowed = bytearray(256)
    for first in range(256):
        if _flags_problem(first) is None and (sender is None or after(sender, state, first >> 4) is not None):
            allowed[first] = 1
    return bytes(allowed)


ALLOWED: Final[dict[tuple[Side | None, State], bytes]] = {
    **{("client", state): _allowed("client", state) for state in State},
    **{("server", state): _allowed("server", state) for state in State},
    **{(None, state): _allowed(None, state) for state in State},
}


@final
class Decoder:
    """Turns the bytes of one connection into frames.

    ``role`` is the side that reads: a ``"server"`` takes what clients send, in the order they may send it, a
    ``"client"`` what servers send, ``"both"`` any packet at any time. The limits count the bytes of whole packets;
    ``max_filters`` is for the topic filters of one packet, and the return codes of one SUBACK.
    """

    def __init__(
        self,
        *,
        max_packet: int = MAX_PACKET,
        max_packet_before_connect: int = MAX_PACKET_BEFORE_CONNECT,
        max_filters: int = MAX_FILTERS,
        role: Reader = "server",
    ) -> None:
        if role not in {"server", "client", "both"}:
            raise ValueError(f"role is {role!r}, and must be 'server', 'client' or 'both'")
        sender: Side | None = "client" if role == "server" else "server" if role == "client" else None
        self._sender: Final = sender
        self._state = State.NEW
        self._allowed: bytes = ALLOWED[sender, State.NEW]
        self._max_packet: i64 = max_packet
        self._max_filters: i64 = max_filters
        before: i64 = max_packet_before_connect
        self._limit: i64 = before if sender is not None and before < max_packet else max_packet
        self._assembler = Assembler()
        self._head: i64 = 0
        self._failure: RemoteProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The packets that ``data`` completes, in order. Raises ``RemoteProtocolError`` on a violation."""
        frames: list[Frame] = []
        if self._failure is not None:
            raise _without_frames(self._failure)
        chunk = self._assembler.take(data)
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

        ``routes`` maps the bytes of topic names to routes. A name it lacks is given to ``resolve``, which returns its
        route (and may put it into ``routes``), or None to get the frame itself. Only publications with no flags, the
        shortest header and a valid name outside of ``$`` become part of a run: those with QoS 0 may be forwarded as
        they are, those with QoS 1 form runs of their own if ``max_qos`` is 1.
        """
        items: list[Frame | Run] = []
        if self._failure is not None:
            raise _without_frames(self._failure)
        chunk = self._assembler.take(data)
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
                        first == CONFIRMED_PUBLISH and not _has_packet_id(chunk, name + length, pos + size)
                    ):
                        known = -1
                    elif length == known and same_bytes(chunk, topic, name, length):
                        route = run
                    else:
                        raw = chunk[name : name + length]
                        route = routes.get(raw)
                        if route is None and _may_run(raw):
                            route = resolve(raw)
                        topic = name
                        known = length
                if route is not run or first != kind:
                    if run is not None:
                        items.append(Run(run, chunk, start, pos, count, _qos(kind)))
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
                items.append(Run(run, chunk, start, pos, count, _qos(kind)))
            self._fail(error, items)
            raise
        if run is not None:
            items.append(Run(run, chunk, start, pos, count, _qos(kind)))
        self._assembler.keep(chunk, pos, want)
        return items

    def pending(self) -> int:
        """How many bytes of an incomplete packet are held."""
        return self._assembler.pending()

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
        self._assembler.keep(chunk, pos, want)

    def _measure(self, chunk: bytes, pos: i64, end: i64) -> i64:
        """How many bytes the packet at ``pos`` has, 0 while its fixed header is incomplete.

        ``_head`` is the length of that header. All its errors are found here.
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
            byte: i64 = chunk[at]
            length |= (byte & 127) << shift
            if byte < 128:
                break
            if shift == 21:
                raise RemoteProtocolError(
                    "the remaining length has more than four bytes", rule="MQTT-015", position=int(at)
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
            return _read_publish(chunk, first, pos, end)
        frame = _read_other(kind, chunk, pos, end, self._max_filters)
        if kind in (CONNECT, CONNACK, DISCONNECT):
            self._advance(kind, frame)
        return frame

    def _advance(self, kind: int, frame: Frame) -> None:
        """Go to the state after a packet that changes it."""
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
        """Why no packet with this first byte may come now."""
        sender: Side = self._sender or "client"  # None refuses by flags alone
        rule, reason = _flags_problem(int(first)) or out_of_order(sender, self._state, int(first >> 4))
        return RemoteProtocolError(reason, rule=rule, position=int(pos))

    def _too_large(self, kind: i64, size: i64, pos: i64) -> RemoteProtocolError:
        rule = "MQTT-179" if self._limit == self._max_packet else "MQTT-180"
        reason = f"{NAMES[kind]}: the packet has {size} bytes, more than the {self._limit} allowed"
        error = RemoteProtocolError(reason, rule=rule, position=int(pos + 1))
        if kind == PUBLISH:
            error.oversize = int(size)
        return error

    def _fail(self, error: RemoteProtocolError, frames: Sequence[object]) -> None:
        """Add an error's place in the stream and the frames before it, and remember it."""
        error.position += int(self._assembler.offset)
        error.frames = list(frames)
        self._failure = _without_frames(error)
        self._assembler = Assembler()


def _without_frames(error: RemoteProtocolError) -> RemoteProtocolError:
    """The same error, for the calls after the one that raised it."""
    return RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)


def _may_run(raw: bytes) -> bool:
    """Whether a publication to this topic name may be forwarded as it is."""
    if raw[:1] == b"$":
        return False
    return plain_name(raw, 0, len(raw)) or name_problem(raw) is None


# The fields of each packet. Errors have the position in these bytes; the decoder adds their place in the stream.


@final
class Fields:
    """Reads one field after the other, never beyond the packet's end."""

    def __init__(self, data: bytes, pos: i64, end: i64, kind: i64) -> None:
        self._data: Final = data
        self.pos: i64 = pos
        self.end: i64 = end
        self._kind: i64 = kind

    def wrong(self, reason: str, rule: str, position: i64) -> RemoteProtocolError:
        """The error to raise, naming the packet."""
        return RemoteProtocolError(f"{NAMES[self._kind]}: {reason}", rule=rule, position=int(position))

    def byte(self, what: str) -> i64:
        """A field of one byte."""
        if self.pos >= self.end:
            raise self.wrong(f"the packet ends before its {what}", "MQTT-178", self.end)
        self.pos += 1
        return i64(self._data[self.pos - 1])

    def number(self, what: str) -> i64:
        """A field of two bytes (MQTT-001)."""
        if self.pos + 2 > self.end:
            raise self.wrong(f"the packet ends before its {what}", "MQTT-178", self.end)
        self.pos += 2
        return (i64(self._data[self.pos - 2]) << 8) | i64(self._data[self.pos - 1])

    def binary(self, what: str) -> bytes:
        """A length of two bytes, and that many bytes of any kind."""
        length = self.number(f"{what}'s length")
        start = self.pos
        if start + length > self.end:
            left = self.end - start
            raise self.wrong(f"its {what} should have {length} bytes, but {left} are left", "MQTT-178", start - 2)
        self.pos = start + length
        return self._data[start : start + length]

    def text(self, what: str) -> str:
        """A string (MQTT-002)."""
        raw = self.binary(what)
        return self._valid(raw, text_problem(raw), what)

    def topic_name(self, what: str) -> str:
        """A string that is a topic name."""
        raw = self.binary(what)
        return self._valid(raw, name_problem(raw), what)

    def topic_filter(self) -> str:
        """A string that is a topic filter."""
        raw = self.binary("topic filter")
        return self._valid(raw, filter_problem(raw), "topic filter")

    def packet_id(self, rule: str) -> i64:
        """A packet id, which is never zero."""
        number = self.number("packet id")
        if number == 0:
            raise self.wrong("its packet id is 0, and must be 1 to 65535", rule, self.pos - 2)
        return number

    def finish(self) -> None:
        """Check that nothing is left."""
        if self.pos != self.end:
            raise self.wrong(f"{self.end - self.pos} bytes are left after its last field", "MQTT-178", self.pos)

    def _valid(self, raw: bytes, problem: tuple[str, str] | None, what: str) -> str:
        if problem is not None:
            raise self.wrong(f"its {what} is invalid: {problem[1]}", problem[0], self.pos - i64(len(raw)))
        return raw.decode()


def _read_publish(data: bytes, first: i64, pos: i64, end: i64) -> Publish:
    """The PUBLISH with this first byte whose variable header and payload are ``data[pos:end]``."""
    start: i64 = pos + 2
    stop: i64 = start
    if start <= end:
        stop += (i64(data[pos]) << 8) | i64(data[pos + 1])
    known: str | None = None
    if stop <= end and start <= end:
        raw = data[start:stop]
        known = _texts.known(raw)
        if known is None and plain_name(data, start, stop):
            known = _texts.text(raw)
    topic = known if known is not None else Fields(data, pos, end, first >> 4).topic_name("topic name")
    qos = _qos(first)
    if qos == 0:
        return Publish(topic, data[stop:end], 0, first & 1 != 0, dup=False, packet_id=None)
    packet_id: i64 = 0
    if stop + 2 <= end:
        packet_id = _number_at(data, stop)
    if packet_id == 0:
        packet_id = Fields(data, stop, end, first >> 4).packet_id("MQTT-017")  # raises
    return Publish(topic, data[stop + 2 : end], qos, first & 1 != 0, first & 8 != 0, packet_id)


def _read_other(kind: i64, data: bytes, pos: i64, end: i64, max_filters: i64) -> Frame:
    """The packet of any other type whose variable header and payload are ``data[pos:end]``."""
    if kind == PUBACK and pos + 2 == end:
        # The most frequent one: a short cut where nothing is wrong with it.
        number: i64 = (i64(data[pos]) << 8) | i64(data[pos + 1])
        if number != 0:
            return Puback(number)
    fields = Fields(data, pos, end, kind)
    if kind == PUBACK:
        return Puback(fields.packet_id("MQTT-023"))
    if kind == PUBREC:
        return Pubrec(fields.packet_id("MQTT-023"))
    if kind == PUBREL:
        return Pubrel(fields.packet_id("MQTT-023"))
    if kind == PUBCOMP:
        return Pubcomp(fields.packet_id("MQTT-023"))
    if kind == UNSUBACK:
        return Unsuback(fields.packet_id("MQTT-024"))
    if kind == PINGREQ:
        return Pingreq()
    if kind == PINGRESP:
        return Pingresp()
    if kind == SUBSCRIBE:
        return _read_subscribe(fields, max_filters)
    if kind == SUBACK:
        return _read_suback(fields)
    if kind == UNSUBSCRIBE:
        return _read_unsubscribe(fields, max_filters)
    if kind == CONNECT:
        return _read_connect(fields)
    if kind == CONNACK:
        return _read_connack(fields)
    return Disconnect()


def _read_connect(fields: Fields) -> Connect:
    """The fields of CONNECT. Its form is checked first, then whether it can be accepted."""
    start = fields.pos
    name = fields.binary("protocol name")
    if name != PROTOCOL_NAME:
        wrong = fields.wrong(f"the protocol name is {name[:16]!r}, not {PROTOCOL_NAME!r}", "MQTT-030", start)
        if name == OLD_PROTOCOL_NAME:
            wrong.reply = Connack(session_present=False, return_code=UNACCEPTABLE_PROTOCOL_VERSION)
        raise wrong
    level = fields.byte("protocol level")
    if level & ~BRIDGE != PROTOCOL_LEVEL:
        # Other levels have other fields, so nothing after this one can be checked.
        error = fields.wrong(f"the protocol level is {level}, only {PROTOCOL_LEVEL} is spoken", "MQTT-031", start + 6)
        error.reply = Connack(session_present=False, return_code=UNACCEPTABLE_PROTOCOL_VERSION)
        raise error
    flags = fields.byte("connect flags")
    at = fields.pos - 1
    will_qos = (flags & WILL_QOS) >> 3
    if flags & RESERVED_FLAG != 0:
        raise fields.wrong("the reserved bit of the connect flags is set", "MQTT-032", at)
    if flags & WILL == 0 and will_qos != 0:
        raise fields.wrong(f"will QoS is {will_qos} without a will", "MQTT-042", at)
    if will_qos == 3:
        raise fields.wrong("will QoS is 3, and must be 0, 1 or 2", "MQTT-043", at)
    if flags & WILL == 0 and flags & WILL_RETAIN != 0:
        raise fields.wrong("will retain is set without a will", "MQTT-044", at)
    if flags & USER_NAME == 0 and flags & PASSWORD != 0:
        raise fields.wrong("there is a password without a user name", "MQTT-051", at)
    keep_alive = fields.number("keep alive")
    named = fields.pos
    client_id = fields.text("client id")
    will: Will | None = None
    if flags & WILL != 0:
        topic = fields.topic_name("will topic")
        will = Will(topic, fields.binary("will message"), will_qos, flags & WILL_RETAIN != 0)
    user_name: str | None = None
    if flags & USER_NAME != 0:
        user_name = fields.text("user name")
    password: bytes | None = None
    if flags & PASSWORD != 0:
        password = fields.binary("password")
    fields.finish()
    clean_session = flags & CLEAN_SESSION != 0
    if not client_id and not clean_session:
        error = fields.wrong("an empty client id needs clean session", "MQTT-064", named)
        error.reply = Connack(session_present=False, return_code=IDENTIFIER_REJECTED)
        raise error
    return Connect(client_id, clean_session, keep_alive, will, user_name, password, level & BRIDGE != 0)


def _read_connack(fields: Fields) -> Connack:
    flags = fields.byte("acknowledge flags")
    code = fields.byte("return code")
    if flags > 1:
        raise fields.wrong(f"the acknowledge flags are {flags:#04x}, only 0 and 1 exist", "MQTT-078", fields.pos - 2)
    if code > NOT_AUTHORIZED:
        raise fields.wrong(f"the return code is {code}, only 0 to {NOT_AUTHORIZED} exist", "MQTT-083", fields.pos - 1)
    if code != 0 and flags != 0:
        raise fields.wrong(f"session present is set with return code {code}", "MQTT-082", fields.pos - 2)
    return Connack(flags == 1, code)


def _read_subscribe(fields: Fields, max_filters: i64) -> Subscribe:
    packet_id = fields.packet_id("MQTT-017")
    filters: list[tuple[str, int]] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no topic filter, and must have at least one", "MQTT-110", fields.pos)
    while fields.pos < fields.end:
        if i64(len(filters)) == max_filters:
            raise fields.wrong(f"it has more than {max_filters} topic filters", "MQTT-181", fields.pos)
        topic_filter = fields.topic_filter()
        qos = fields.byte("QoS")
        if qos > 2:
            raise fields.wrong(f"the byte of QoS is {qos:#04x}, and must be 0, 1 or 2", "MQTT-111", fields.pos - 1)
        filters.append((topic_filter, int(qos)))
    return Subscribe(packet_id, tuple(filters))


def _read_suback(fields: Fields) -> Suback:
    packet_id = fields.packet_id("MQTT-024")
    codes: list[int] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no return code, and must have at least one", "MQTT-026", fields.pos)
    while fields.pos < fields.end:
        code = fields.byte("return code")
        if code > 2 and code != FAILURE:
            raise fields.wrong(f"a return code is {code}, only 0, 1, 2 and 128 exist", "MQTT-120", fields.pos - 1)
        codes.append(int(code))
    return Suback(packet_id, tuple(codes))


def _read_unsubscribe(fields: Fields, max_filters: i64) -> Unsubscribe:
    packet_id = fields.packet_id("MQTT-017")
    filters: list[str] = []
    if fields.pos == fields.end:
        raise fields.wrong("it has no topic filter, and must have at least one", "MQTT-124", fields.pos)
    while fields.pos < fields.end:
        if i64(len(filters)) == max_filters:
            raise fields.wrong(f"it has more than {max_filters} topic filters", "MQTT-181", fields.pos)
        filters.append(fields.topic_filter())
    return Unsubscribe(packet_id, tuple(filters))


# Runs. ``feed_runs`` has checked the publications in them, so nothing is checked here.


def publications_in(data: bytes, start: i64, end: i64) -> list[Publish]:
    """The publications of a run: ``data[start:end]`` is whole packets, as ``feed_runs`` found them."""
    found: list[Publish] = []
    topic = ""
    at: i64 = 0
    known: i64 = -1  # the length of the name at `at`, which is `topic`
    pos: i64 = start
    while pos < end:
        qos = _qos(data[pos])
        pos += 1
        byte: i64 = data[pos]
        length: i64 = byte & 127
        shift: i64 = 7
        while byte >= 128:
            pos += 1
            byte = data[pos]
            length |= (byte & 127) << shift
            shift += 7
        name: i64 = pos + 3
        name_length: i64 = (i64(data[pos + 1]) << 8) | i64(data[pos + 2])
        payload: i64 = name + name_length
        pos += 1 + length
        if name_length != known or not same_bytes(data, at, name, name_length):
            topic = _texts.text(data[name:payload])
            at = name
            known = name_length
        if qos == 0:
            found.append(Publish(topic, data[payload:pos], 0, retain=False, dup=False, packet_id=None))
        else:
            packet_id = _number_at(data, payload)
            found.append(Publish(topic, data[payload + 2 : pos], 1, retain=False, dup=False, packet_id=packet_id))
    return found


def locate(data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
    """Where the topics and payloads of a run are, counted from ``base``: where each begins and, 32 bits up, ends."""
    pos: i64 = start
    while pos < end:
        between: i64 = _qos(data[pos]) * 2
        pos += 1
        byte: i64 = data[pos]
        length: i64 = byte & 127
        shift: i64 = 7
        while byte >= 128:
            pos += 1
            byte = data[pos]
            length |= (byte & 127) << shift
            shift += 7
        name: i64 = pos + 3
        middle: i64 = base + name + ((i64(data[pos + 1]) << 8) | i64(data[pos + 2]))
        pos += 1 + length
        write_i64_le(places, (base + name) | (middle << 32))
        write_i64_le(places, (middle + between) | ((base + pos) << 32))


def acknowledge(data: bytes, start: i64, end: i64, out: BytesWriter) -> None:
    """Append the PUBACKs of a run with QoS 1."""
    pos: i64 = start
    while pos < end:
        pos += 1
        byte: i64 = data[pos]
        length: i64 = byte & 127
        shift: i64 = 7
        while byte >= 128:
            pos += 1
            byte = data[pos]
            length |= (byte & 127) << shift
            shift += 7
        name_length: i64 = (i64(data[pos + 1]) << 8) | i64(data[pos + 2])
        write_acknowledgement(out, PUBACK, _number_at(data, pos + 3 + name_length))
        pos += 1 + length


def _qos(first: i64) -> i64:
    """The QoS in the first byte of a publication."""
    return (first >> 1) & 3


def _number_at(data: bytes, pos: i64) -> i64:
    return (i64(data[pos]) << 8) | i64(data[pos + 1])


def _has_packet_id(data: bytes, pos: i64, end: i64) -> bool:
    """Whether there is a packet id at ``pos``, within the packet that ends at ``end``; 0 is none."""
    return pos + 2 <= end and _number_at(data, pos) != 0


# Writing.


def encode(frame: Frame) -> bytes:
    """The bytes of a packet. Raises ``LocalProtocolError`` for what MQTT does not allow."""
    if isinstance(frame, Publish):
        return _write_publish(frame)
    if isinstance(frame, Puback):
        return _write_answer(PUBACK << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubrec):
        return _write_answer(PUBREC << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubrel):
        return _write_answer(PUBREL << 4 | 2, frame.packet_id, "MQTT-023")
    if isinstance(frame, Pubcomp):
        return _write_answer(PUBCOMP << 4, frame.packet_id, "MQTT-023")
    if isinstance(frame, Unsuback):
        return _write_answer(UNSUBACK << 4, frame.packet_id, "MQTT-024")
    if isinstance(frame, Subscribe):
        return _write_subscribe(frame)
    if isinstance(frame, Suback):
        return _write_suback(frame)
    if isinstance(frame, Unsubscribe):
        return _write_unsubscribe(frame)
    if isinstance(frame, Connect):
        return _write_connect(frame)
    if isinstance(frame, Connack):
        return _write_connack(frame)
    if isinstance(frame, Pingreq):
        return bytes((PINGREQ << 4, 0))
    if isinstance(frame, Pingresp):
        return bytes((PINGRESP << 4, 0))
    if isinstance(frame, Disconnect):
        return bytes((DISCONNECT << 4, 0))
    raise LocalProtocolError(f"{type(frame).__name__} is not an MQTT packet", rule="MQTT-008")


def check_publication(topic: str, payload: bytes) -> None:
    """Raise ``LocalProtocolError`` where no PUBLISH can have this topic and payload."""
    _check_length(4 + i64(len(_name(topic))) + i64(len(payload)))


def publication(topic: str, qos: i64, retain: bool, packet_id: i64, payload: bytes) -> bytes:
    """The PUBLISH of a message that is sent for the first time; ``packet_id`` is 0 where it has none.

    It is what ``encode`` makes of such a frame, for a sender that has the parts and no frame.
    """
    return _publication(PLAIN_PUBLISH | qos << 1 | (1 if retain else 0), _name(topic), packet_id, payload)


def write_acknowledgement(out: BytesWriter, kind: i64, packet_id: i64) -> None:
    """Append a PUBACK, PUBREC or PUBCOMP."""
    write_i32_be(out, i32(kind << 28 | 2 << 16 | packet_id))


def _publication(first: i64, name: bytes, packet_id: i64, payload: bytes) -> bytes:
    length: i64 = 2 + i64(len(name)) + i64(len(payload))
    if packet_id != 0:
        length += 2
    if length < 128:
        out = _word(first << 24 | length << 16 | i64(len(name)))
    else:
        out = _packet(first, length)
        _write_number(out, len(name))
    out.write(name)
    if packet_id != 0:
        write_i16_be(out, i16(packet_id if packet_id < 0x8000 else packet_id - 0x1_0000))
    if len(payload) > COPIED_ONCE:
        return out.getvalue() + payload
    out.write(payload)
    return out.getvalue()


def _write_publish(frame: Publish) -> bytes:
    qos: i64 = frame.qos
    if not 0 <= qos <= 2:
        raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-089")
    name = _name(frame.topic)
    first: i64 = PLAIN_PUBLISH | qos << 1
    if frame.retain:
        first |= 1
    packet_id = frame.packet_id
    number: i64 = 0
    if qos == 0:
        if frame.dup:
            raise LocalProtocolError("DUP is set with QoS 0", rule="MQTT-087")
        if packet_id is not None:
            raise LocalProtocolError(f"there is a packet id, {packet_id}, with QoS 0", rule="MQTT-022")
    else:
        if packet_id is None:
            raise LocalProtocolError(f"there is no packet id, and QoS {qos} needs one", rule="MQTT-017")
        number = _checked_id(packet_id, "MQTT-017")
        if frame.dup:
            first |= 8
    return _publication(first, name, number, frame.payload)


def _write_connect(frame: Connect) -> bytes:
    if not frame.client_id and not frame.clean_session:
        raise LocalProtocolError("an empty client id needs clean session", rule="MQTT-063")
    if not 0 <= frame.keep_alive <= 0xFFFF:
        raise LocalProtocolError(f"keep alive is {frame.keep_alive} s, and must be 0 to 65535", rule="MQTT-052")
    if frame.user_name is None and frame.password is not None:
        raise LocalProtocolError("a password needs a user name", rule="MQTT-051")
    flags: i64 = CLEAN_SESSION if frame.clean_session else 0
    body = BytesWriter()
    _write_text(body, frame.client_id, "client id")
    will = frame.will
    if will is not None:
        if not 0 <= will.qos <= 2:
            raise LocalProtocolError(f"will QoS is {will.qos}, and must be 0, 1 or 2", rule="MQTT-043")
        flags |= WILL | i64(will.qos) << 3
        if will.retain:
            flags |= WILL_RETAIN
        topic = _utf8(will.topic, "will topic")
        _check(name_problem(topic), "will topic")
        _write_binary(body, topic, "will topic", "MQTT-163")
        _write_binary(body, will.payload, "will message", "MQTT-067")
    if frame.user_name is not None:
        flags |= USER_NAME
        _write_text(body, frame.user_name, "user name")
    if frame.password is not None:
        flags |= PASSWORD
        _write_binary(body, frame.password, "password", "MQTT-069")
    out = _packet(CONNECT << 4, 10 + i64(len(body)))
    _write_binary(out, PROTOCOL_NAME, "protocol name", "MQTT-030")
    out.append(PROTOCOL_LEVEL | BRIDGE if frame.bridge else PROTOCOL_LEVEL)
    out.append(flags)
    _write_number(out, frame.keep_alive)
    out.write(body.getvalue())
    return out.getvalue()


def _write_connack(frame: Connack) -> bytes:
    code = frame.return_code
    if not 0 <= code <= NOT_AUTHORIZED:
        raise LocalProtocolError(f"the return code is {code}, and must be 0 to {NOT_AUTHORIZED}", rule="MQTT-083")
    if code != 0 and frame.session_present:
        raise LocalProtocolError(f"session present is set with return code {code}", rule="MQTT-082")
    return bytes((CONNACK << 4, 2, 1 if frame.session_present else 0, code))


def _write_subscribe(frame: Subscribe) -> bytes:
    if not frame.filters:
        raise LocalProtocolError("SUBSCRIBE needs at least one topic filter", rule="MQTT-110")
    body = BytesWriter()
    _write_number(body, _checked_id(frame.packet_id, "MQTT-017"))
    for topic_filter, qos in frame.filters:
        if not 0 <= qos <= 2:
            raise LocalProtocolError(f"QoS is {qos}, and must be 0, 1 or 2", rule="MQTT-111")
        _write_filter(body, topic_filter)
        body.append(qos)
    out = _packet(SUBSCRIBE << 4 | 2, len(body))
    out.write(body.getvalue())
    return out.getvalue()


def _write_suback(frame: Suback) -> bytes:
    if not frame.return_codes:
        raise LocalProtocolError("SUBACK needs at least one return code", rule="MQTT-026")
    for code in frame.return_codes:
        if code not in {0, 1, 2, FAILURE}:
            raise LocalProtocolError(f"a return code is {code}, and must be 0, 1, 2 or 128", rule="MQTT-120")
    number = _checked_id(frame.packet_id, "MQTT-024")
    out = _packet(SUBACK << 4, 2 + i64(len(frame.return_codes)))
    _write_number(out, number)
    out.write(bytes(frame.return_codes))
    return out.getvalue()


def _write_unsubscribe(frame: Unsubscribe) -> bytes:
    if not frame.filters:
        raise LocalProtocolError("UNSUBSCRIBE needs at least one topic filter", rule="MQTT-124")
    body = BytesWriter()
    _write_number(body, _checked_id(frame.packet_id, "MQTT-017"))
    for topic_filter in frame.filters:
        _write_filter(body, topic_filter)
    out = _packet(UNSUBSCRIBE << 4 | 2, len(body))
    out.write(body.getvalue())
    return out.getvalue()


def _write_answer(first: i64, packet_id: int, rule: str) -> bytes:
    return _word(first << 24 | 2 << 16 | _checked_id(packet_id, rule)).getvalue()


def _word(word: i64) -> BytesWriter:
    """A writer that has these four bytes."""
    out = BytesWriter()
    write_i32_be(out, i32(word if word <= 0x7FFF_FFFF else word - 0x1_0000_0000))
    return out


def _packet(first: i64, length: i64) -> BytesWriter:
    """A writer that has the fixed header (MQTT-014)."""
    _check_length(length)
    out = BytesWriter()
    out.append(first)
    left: i64 = length
    while left >= 128:
        out.append(left & 127 | 128)
        left >>= 7
    out.append(left)
    return out


def _check_length(length: i64) -> None:
    if length > MAX_REMAINING:
        raise LocalProtocolError(f"the remaining length is {length}, more than {MAX_REMAINING}", rule="MQTT-015")


def _check(problem: tuple[str, str] | None, what: str) -> None:
    if problem is not None:
        raise LocalProtocolError(f"the {what} is invalid: {problem[1]}", rule=problem[0])


def _checked_id(number: int, rule: str) -> i64:
    if not 1 <= number <= MAX_PACKET_ID:
        raise LocalProtocolError(f"the packet id is {number}, and must be 1 to {MAX_PACKET_ID}", rule=rule)
    return number


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the {what} {text[:64]!r} can't be written as UTF-8", rule="MQTT-003") from error


def _name(topic: str) -> bytes:
    """The bytes of a topic name."""
    known = _encoded.get(topic)
    if known is not None:
        return known
    raw = _utf8(topic, "topic name")
    if len(raw) > MAX_STRING or not plain_name(raw, 0, len(raw)):
        _check(name_problem(raw), "topic name")
    if len(raw) <= LONGEST_KEPT:
        if len(_encoded) >= NAMES_KEPT:
            _encoded.clear()
        _encoded[topic] = raw
    return raw


def _write_text(out: BytesWriter, text: str, what: str) -> None:
    raw = _utf8(text, what)
    _check(text_problem(raw), what)
    _write_binary(out, raw, what, "MQTT-002")


def _write_filter(out: BytesWriter, text: str) -> None:
    raw = _utf8(text, "topic filter")
    _check(filter_problem(raw), "topic filter")
    _write_binary(out, raw, "topic filter", "MQTT-163")


def _write_binary(out: BytesWriter, raw: bytes, what: str, rule: str) -> None:
    if len(raw) > MAX_STRING:
        raise LocalProtocolError(f"the {what} has {len(raw)} bytes, more than {MAX_STRING}", rule=rule)
    _write_number(out, len(raw))
    out.write(raw)


def _write_number(out: BytesWriter, number: i64) -> None:
    """Two bytes, the most significant first (MQTT-001)."""
    out.append(number >> 8)
    out.append(number & 255)
