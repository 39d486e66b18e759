"""What nodes of a fabric send each other: batches, and the records in them.

A **batch** has a header of fixed size (``Header``), and is either about the link itself or carries the next part of a
stream of records. The stream does not care where batches end: a record may begin in one and end in another.

A **record** begins with four bytes, little-endian: its length without them, and in the highest bit whether it is a
``Run``, publications exactly as a client has sent them. Any other record is a MessagePack array, which msgspec reads
and writes by the fields of its class; the first element says which class.

Whatever is received is either decoded or raises ``LinkError``.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from polywire.errors import PolywireError
from polywire.hub.message import Attached, Date, FailedAttachment, Headers, Message

VERSION: Final = 1
"""Nodes that speak different versions don't link."""

LARGEST_RECORD: Final = (1 << 31) - 1
RUN_BIT: Final = 1 << 31

RETAIN: Final = 1
BODY_FAILED: Final = 2
BINARY: Final = 4
QOS_SHIFT: Final = 3
LATE: Final = 32

_LENGTH: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<BBxxxxxxQQQQQ")
_RUN: Final = struct.Struct("<BxxxIqqq")

HEADER_SIZE: Final = _HEADER.size


class LinkError(PolywireError):
    """What a node has sent can't be understood. ``reason`` says what is wrong with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Kind(IntEnum):
    """What a batch is for. ``REQUEST`` asks what has arrived, ``STATUS`` says so, ``AGAIN`` that some was lost."""

    HELLO = 1
    RECORDS = 2
    STATUS = 3
    REQUEST = 4
    AGAIN = 5


class Header(NamedTuple):
    """The beginning of a batch.

    ``mine`` numbers this end of the link, and is larger each time it is set up anew; ``theirs`` is what the sender
    knows of the other end, 0 for nothing. ``number`` is that of a batch with records, or of the last one sent; in a
    ``HELLO`` it is 1 where the sender has been greeted by its own number, and the link is up for it. ``got`` is up to
    where the sender has received batches, ``done`` how many bytes of records it has handled in all.
    """

    kind: Kind
    mine: int
    theirs: int
    number: int
    got: int
    done: int


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """What a node says about itself. ``window`` is how many bytes of records may wait for it to handle them.

    ``protocols`` are the names of those whose numbers are in runs. ``journal`` is up to where it has the other node's
    journal, -1 for nothing. ``life`` is another number each time it starts. ``series`` is
    that of the numbers of its connections and calls.
    """

    version: int
    node: str
    window: int
    protocols: tuple[str, ...] = ()
    journal: int = -1
    life: int = 0
    series: int = 0


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The base of those that are not runs."""


class Interest(Record, tag=1, frozen=True, gc=False):
    """Patterns that the first of the sender's clients has subscribed to, or the last has unsubscribed from."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Published(Record, tag=2, frozen=True, gc=False):
    """A message to a topic.

    ``flags`` are ``RETAIN``, ``BODY_FAILED``, ``BINARY``, the QoS from ``QOS_SHIFT`` on, and ``LATE`` where it was
    published a while ago and is sent again. ``offset`` is its row in the sender's journal if it was promised to its
    publisher, otherwise -1. A date is an array. An attachment that failed is None, with its text.
    """

    channel: str
    body: bytes
    flags: int
    time: int
    origin: int
    offset: int = -1
    content_type: str = ""
    headers: tuple[tuple[str, str | int | float | tuple[float]], ...] = ()
    attachments: tuple[tuple[bytes | None, str], ...] = ()


class Ready(Record, tag=3, frozen=True, gc=False):
    """The sender has said all there was to say when the link was set up."""


class Kept(Record, tag=4, frozen=True, gc=False):
    """What a channel retains: the message, or one without a body where it retains nothing.

    Of two, the one with the larger ``version`` counts: microseconds, and the node whose client has published it.
    ``fresh``: it was published just now, so subscribers get it.
    """

    message: Published
    version: tuple[int, str]
    fresh: bool = False


class Clients(Record, tag=5, frozen=True, gc=False):
    """How many clients the sender has."""

    count: int


class Watched(Record, tag=6, frozen=True, gc=False):
    """Patterns of topics whose demand the sender wants to know, because clients of it do, and others no more."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Counted(Record, tag=7, frozen=True, gc=False):
    """How many clients of the sender have subscribed to exactly these topics."""

    topics: tuple[tuple[str, int], ...]


class Offered(Record, tag=8, frozen=True, gc=False):
    """Services that clients of the sender offer, and others that none does any more.

    ``native``: over a protocol that has services. Otherwise they are subscribers of the service's topic.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    native: bool = True


class Asked(Record, tag=9, frozen=True, gc=False):
    """A call begins, with its first request. ``call`` is its number on the caller's node."""

    call: int
    service: str
    method: str
    request: Published
    seconds: float
    streamed: bool = False
    last: bool = True


class AskedOn(Record, tag=10, frozen=True, gc=False):
    """A further request of a call."""

    call: int
    request: Published
    last: bool


class Replied(Record, tag=11, frozen=True, gc=False):
    """A reply to a call."""

    call: int
    reply: Published
    last: bool


class Ended(Record, tag=12, frozen=True, gc=False):
    """A call has ended with an error: ``failed`` on the provider's side, otherwise on the caller's."""

    call: int
    failed: bool
    code: int
    label: str
    text: str
    retry_after: int = 0
    from_hub: bool = True


# Queues; see queues.py for how a request is done once, and a message on loan.


class Put(Record, tag=20, frozen=True, gc=False):
    """Request: a message to be put into its queue. ``protocol`` and ``client`` say who has published it.

    ``attempts``: how often it was delivered before it came from an earlier owner; -1 where it is new.
    """

    shard: int
    first: int
    number: int
    message: Published
    protocol: str = ""
    client: str = ""
    attempts: int = -1


class LoanEnded(Record, tag=21, frozen=True, gc=False):
    """Request: a message on loan needs no more, or has to go back. ``how`` is one of the values below.

    ``lender`` is the node that has given it, in this ``term``.
    """

    shard: int
    first: int
    number: int
    queue: str
    term: int
    place: int
    how: int
    delay: float = 0.0
    reason: str = ""
    lender: str = ""


ACKNOWLEDGED: Final = 0
REJECTED: Final = 1
ABANDONED: Final = 2
"""Its consumer has gone without an acknowledgement."""
UNTOUCHED: Final = 3
UNWANTED: Final = 4
"""No consumer of the node has had it, and with ``UNWANTED`` none wants it."""


class Done(Record, tag=22, frozen=True, gc=False):
    """The requests up to this number are safe, apart from those that were refused, and why."""

    shard: int
    number: int
    refused: dict[int, str] = {}


class Want(Record, tag=23, frozen=True, gc=False):
    """A node wants so many messages more of a queue. ``fresh``: what its consumers want has changed."""

    queue: str
    credit: int
    fresh: bool = False


class Leave(Record, tag=24, frozen=True, gc=False):
    """A node has no consumers of a queue any more."""

    queue: str


class Given(Record, tag=25, frozen=True, gc=False):
    """A message on loan, from the owner with this term."""

    queue: str
    term: int
    place: int
    attempts: int
    message: Published


class Owning(Record, tag=26, frozen=True, gc=False):
    """The sender owns the shard, and takes requests.

    Places below ``first`` have the messages that they had in earlier terms. Those of all others are gone.
    """

    shard: int
    term: int
    first: int = 0


class Resume(Record, tag=27, frozen=True, gc=False):
    """The places of messages that consumers of the sender hold, by queue. It has sent all its requests before."""

    shard: int
    term: int
    held: dict[str, list[int]] = {}


class Mark(Record, tag=30, frozen=True, gc=False):
    """The receiver has all that it wants of the sender's journal before this offset."""

    offset: int


class Outcome(IntEnum):
    """What is with a session that a client wants: there is none, it is another user's, or it was ``TAKEN`` elsewhere.

    ``WAIT``: that is not known yet. ``PROBED`` answers a ``Probe``.
    """

    NONE = 0
    ANOTHER = 1
    TAKEN = 2
    WAIT = 3
    PROBED = 4


class Claim(Record, tag=31, frozen=True, gc=False):
    """A client has connected to the sender at this time, and wants its session. ``ask`` numbers what is asked.

    ``user`` is None where any may have it. ``clean``: nothing of it is to be kept, and there is no answer.
    """

    ask: int
    client_id: str
    user: str | None
    at: int
    clean: bool


class Claimed(Record, tag=32, frozen=True, gc=False):
    """The answer where nothing is handed over."""

    ask: int
    outcome: Outcome


class SessionSent(Record, tag=33, frozen=True, gc=False):
    """The session that was asked for. ``filters`` are the patterns of its subscriptions, with their QoS."""

    ask: int
    data: bytes
    filters: tuple[tuple[str, int], ...]


class Probe(Record, tag=34, frozen=True, gc=False):
    """To be answered when it has come. ``last``: the sender of a session is to probe, too, and then send the rest."""

    ask: int
    last: bool = False


class Extras(Record, tag=35, frozen=True, gc=False):
    """What has come for a session since it was sent: messages, each with the pattern and the QoS."""

    ask: int
    messages: tuple[tuple[Published, str, int], ...]


class SessionKept(Record, tag=36, frozen=True, gc=False):
    """The sender has a session that was sent to it, on disk."""

    ask: int
    client_id: str


class SessionsHeld(Record, tag=37, frozen=True, gc=False):
    """Sessions that the sender has: each with whether its client is connected, and since when that is so.

    ``leaving``: it can't keep them.
    """

    sessions: tuple[tuple[str, bool, int], ...]
    leaving: bool = False


AnyRecord = (
    Interest
    | Published
    | Ready
    | Kept
    | Clients
    | Watched
    | Counted
    | Offered
    | Asked
    | AskedOn
    | Replied
    | Ended
    | Put
    | LoanEnded
    | Done
    | Want
    | Leave
    | Given
    | Owning
    | Resume
    | Mark
    | Claim
    | Claimed
    | SessionSent
    | Probe
    | Extras
    | SessionKept
    | SessionsHeld
)


class RunHead(NamedTuple):
    """What comes before the bytes of a run: ``size`` is how many publications of one client it has.

    ``protocol`` is the sender's number for their protocol, ``origin`` that of the client, ``offset`` that of the first
    one's row in the sender's journal if they were promised to their publisher, otherwise -1.
    """

    protocol: int
    size: int
    origin: int
    time: int
    offset: int


class Run(NamedTuple):
    """Publications of one client, as it has sent them."""

    head: RunHead
    data: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_records: Final = msgspec.msgpack.Decoder(AnyRecord)
_hellos: Final = msgspec.msgpack.Decoder(Hello)


def encode_batch(header: Header, payload: bytes = b"") -> bytes:
    """A whole batch."""
    return _HEADER.pack(VERSION, *header) + payload


def decode_batch(data: bytes) -> tuple[Header, memoryview]:
    """The header of a batch, and what follows it."""
    if len(data) < HEADER_SIZE:
        raise LinkError(f"a batch of {len(data)} bytes has no room for a header")
    version, kind, mine, theirs, number, got, done = _HEADER.unpack_from(data)
    if version != VERSION:
        raise LinkError(f"version {version} of the link protocol is not spoken here, only {VERSION}")
    try:
        header = Header(Kind(kind), mine, theirs, number, got, done)
    except ValueError as error:
        raise LinkError(f"there are no batches of kind {kind}") from error
    return header, memoryview(data)[HEADER_SIZE:]


def encode_hello(hello: Hello) -> bytes:
    """The payload of a batch that introduces a node."""
    return _encoder.encode(hello)


def decode_hello(payload: memoryview) -> Hello:
    """What a node says about itself."""
    try:
        return _hellos.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LinkError(f"a greeting can't be read: {error}") from error


def encode(record: Record) -> bytes:
    """A record with its length. ``LinkError`` where a text, a number or the whole can't be sent."""
    try:
        data = _encoder.encode(record)
    except (OverflowError, UnicodeEncodeError) as error:
        raise LinkError(f"a {type(record).__name__} record can't be sent: {error}") from error
    if len(data) > LARGEST_RECORD:
        raise LinkError(f"a {type(record).__name__} record of {len(data)} bytes is too large")
    return _LENGTH.pack(len(data)) + data


def encode_run_head(head: RunHead, octets: int) -> bytes:
    """What comes before a run of so many bytes."""
    return _LENGTH.pack((_RUN.size + octets) | RUN_BIT) + _RUN.pack(*head)


class Decoder:
    """Reads the records in the stream that a link's batches make. ``largest`` bounds the bytes of one of them."""

    def __init__(self, *, largest: int = LARGEST_RECORD) -> None:
        self._largest = largest
        self._pieces: list[bytes | memoryview] = []
        self._held = 0
        self._wanted = 4

    def pending(self) -> int:
        """How many bytes of an unfinished record are held."""
        return self._held

    def feed(self, payload: bytes | memoryview) -> list[AnyRecord | Run]:
        """The records that end in this part of the stream."""
        if self._held + len(payload) < self._wanted:
            self._keep(payload)
            return []
        data = memoryview(b"".join([*self._pieces, payload]) if self._pieces else payload)
        self._pieces = []
        self._held = 0
        self._wanted = 4
        found: list[AnyRecord | Run] = []
        at, end = 0, len(data)
        while end - at >= _LENGTH.size:
            head: int = _LENGTH.unpack_from(data, at)[0]
            length = head & ~RUN_BIT
            if length > self._largest:
                raise LinkError(f"a record of {length} bytes is larger than {self._largest}")
            begin = at + _LENGTH.size
            if end - begin < length:
                self._wanted = _LENGTH.size + length
                break
            at = begin + length
            found.append(_run(data[begin:at]) if head & RUN_BIT else _record(data[begin:at]))
        if at < end:
            self._keep(data[at:])
        return found

    def _keep(self, data: bytes | memoryview) -> None:
        self._pieces.append(bytes(data))
        self._held += len(data)


def _run(data: memoryview) -> Run:
    if len(data) < _RUN.size:
        raise LinkError(f"a run of {len(data)} bytes has no room for its head")
    return Run(RunHead._make(_RUN.unpack_from(data)), bytes(data[_RUN.size :]))


def _record(data: memoryview) -> AnyRecord:
    try:
        record: AnyRecord = _records.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LinkError(f"a record can't be read: {error}") from error
    return record


def published(message: Message, *, offset: bool = True) -> Published:
    """The record of a message, without the ``offset`` of its row if it is not sent as one of a journal."""
    flags = message.qos << QOS_SHIFT
    if message.retain:
        flags |= RETAIN
    if message.body_failed:
        flags |= BODY_FAILED
    if message.binary:
        flags |= BINARY
    headers = tuple([(name, (each.seconds,) if isinstance(each, Date) else each) for name, each in message.headers])
    attachments = tuple([(each, "") if isinstance(each, bytes) else (None, each.text) for each in message.attachments])
    row = int(message.offset) if message.qos and offset else -1
    return Published(
        message.channel, message.body, flags, message.time, message.origin, row, message.content_type, headers,
        attachments,
    )  # fmt: skip


def message_of(record: Published) -> Message:
    """The message of a record. It has no row in the journal of the node that receives it."""
    flags = record.flags
    return Message(
        record.channel,
        record.body,
        record.content_type,
        _headers(record.headers),
        _attachments(record.attachments),
        bool(flags & RETAIN),
        record.time,
        record.origin,
        (flags >> QOS_SHIFT) & 3,
        body_failed=bool(flags & BODY_FAILED),
        binary=bool(flags & BINARY),
    )


def _headers(headers: Iterable[tuple[str, str | int | float | tuple[float]]]) -> Headers:
    return tuple([(name, Date(each[0]) if isinstance(each, tuple) else each) for name, each in headers])


def _attachments(attachments: Iterable[tuple[bytes | None, str]]) -> tuple[Attached, ...]:
    return tuple([FailedAttachment(text) if data is None else data for data, text in attachments])
