"""FMQP's packets and topics: bytes to frames and back, and the scanner for runs of publications.

A packet is one byte of flags, one of topic length, four of body length, the topic, the body (FMQP-36). Whatever is
wrong with one, its lengths still say where the next begins, so a bad packet is returned as ``Discarded`` and decoding
continues. A body over the limit is skipped as it streams in and never held.

Topics are compared level by level. ``*`` matches any one level, on either side (FMQP-20). Slashes at the ends are
ignored (FMQP-14), those inside are not.
"""

from collections.abc import Callable
from typing import ClassVar, Final, final

from librt.strings import BytesWriter, read_i32_be, write_i16_be, write_i32_be, write_i64_le
from mypy_extensions import i16, i32, i64, mypyc_attr

from polywire.protocols.fmqp.errors import LocalProtocolError
from polywire.wire.frame import RAW_KEPT, Assembler, Discarded, Frame, Names, Run, same_bytes

SUBSCRIPTION: Final = 0x80  # FMQP-39
UNSUBSCRIBE: Final = 0x40  # FMQP-40
FEEDBACK: Final = 0x20  # FMQP-41
DEBUG: Final = 0x10  # FMQP-42
LAST_WILL: Final = 0x08  # FMQP-43
CACHE: Final = 0x04  # FMQP-44
FLAGS: Final = 0xFC  # FMQP-46: bits 6 and 7 mean nothing

HEADER: Final = 6
MAX_TOPIC: Final = 255  # FMQP-11: the length field has one byte
MAX_BODY: Final = 16 * 1024 * 1024
MAX_LENGTH: Final = 0xFFFF_FFFF

SLASH: Final = 0x2F
DOLLAR: Final = 0x24
STAR: Final = 0x2A
FIRST_BEYOND_ASCII: Final = 0x80
WILDCARD: Final = "*"
SERVICE_LEVEL: Final = "$"

_names: Final = Names()


def read_topic(raw: bytes) -> str | None:
    """The stripped topic in these bytes, or None if they are not a topic; ``topic_problem`` then says why."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError:
        return None
    if topic.startswith("/") or topic.endswith("/"):
        topic = topic.strip("/")
    return None if not topic or "\0" in topic else topic


def topic_problem(raw: bytes) -> tuple[str, str]:
    """What is wrong with bytes that ``read_topic`` refuses, as (rule, reason)."""
    if not raw.strip(b"/"):
        return ("FMQP-15", "the topic consists of slashes only" if raw else "the topic is empty")
    if b"\0" in raw:
        return ("FMQP-12", "the topic contains NUL")
    return ("FMQP-10", "the topic is not UTF-8")


def is_plain(raw: bytes) -> bool:
    """Whether a publication to this topic may be forwarded verbatim: valid, stripped, no wildcard, no service topic."""
    length: i64 = len(raw)
    if length > 0 and raw[0] != SLASH and raw[0] != DOLLAR and raw[length - 1] != SLASH:
        i: i64 = 0
        while i < length and 0 < raw[i] < FIRST_BEYOND_ASCII and raw[i] != STAR:
            i += 1
        if i == length:
            return True  # as nearly all are: what follows takes ten times as long
    topic = read_topic(raw)
    if topic is None or len(topic.encode()) != len(raw) or is_service(topic):
        return False
    return WILDCARD not in topic or WILDCARD not in topic.split("/")


def is_service(topic: str) -> bool:
    """FMQP-23: whether a stripped topic begins with the level ``$``."""
    return topic == SERVICE_LEVEL or topic.startswith("$/")


def equivalent(one: str, other: str) -> bool:
    """FMQP-19: whether two topics have the same number of levels, and equivalent levels in the same positions."""
    if one == other:
        return True
    ones = one.strip("/").split("/")
    others = other.strip("/").split("/")
    if len(ones) != len(others):
        return False
    for mine, theirs in zip(ones, others, strict=True):
        if mine != theirs and mine != WILDCARD and theirs != WILDCARD:  # noqa: PLR1714 - one comparison is enough mostly
            return False
    return True


@final
@mypyc_attr(acyclic=True)
class Publication(Frame):
    """A message for a topic. ``flags`` holds the six bits FMQP defines; the topic is stripped of outer slashes."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "body", "flags")

    def __init__(self, topic: str, body: bytes, flags: int = 0) -> None:
        self.topic: Final = topic
        self.body: Final = body
        self.flags: Final = flags

    @property
    def feedback(self) -> bool:
        """Whether it belongs to the system of feedback topics."""
        return bool(self.flags & FEEDBACK)

    @property
    def last_will(self) -> bool:
        """Whether it is published when its sender disconnects."""
        return bool(self.flags & LAST_WILL)

    @property
    def cache(self) -> bool:
        """Whether the broker keeps it for later subscribers."""
        return bool(self.flags & CACHE)


@final
@mypyc_attr(acyclic=True)
class Subscription(Frame):
    """A client wants what is published to a topic, or with ``feedback`` the demand for it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "flags")

    def __init__(self, topic: str, flags: int = 0) -> None:
        self.topic: Final = topic
        self.flags: Final = flags

    @property
    def feedback(self) -> bool:
        """Whether it watches the system of feedback topics."""
        return bool(self.flags & FEEDBACK)

    @property
    def debug(self) -> bool:
        """Whether it is left out of the demand that publishers see."""
        return bool(self.flags & DEBUG)


@final
@mypyc_attr(acyclic=True)
class Unsubscription(Frame):
    """A client no longer wants a topic."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "flags")

    def __init__(self, topic: str, flags: int = 0) -> None:
        self.topic: Final = topic
        self.flags: Final = flags

    @property
    def feedback(self) -> bool:
        """Whether it ends watching the system of feedback topics."""
        return bool(self.flags & FEEDBACK)


@final
class Decoder:
    """Turns the bytes of one connection into frames. ``max_body``: longer bodies are skipped and discarded."""

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._max_body: i64 = max_body
        self._assembler = Assembler()
        self._skip: i64 = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order; what broke a rule is ``Discarded``."""
        frames: list[Frame] = []
        chunk = self._assembler.take(data)
        if chunk is None:
            return frames
        end: i64 = len(chunk)
        pos: i64 = self._skipped(end)
        want: i64 = HEADER
        while pos + HEADER <= end:
            topic_length: i64 = chunk[pos + 1]
            length: i64 = i64(read_i32_be(chunk, pos + 2)) & MAX_LENGTH
            want = HEADER + topic_length
            if length <= self._max_body:
                want += length
            if pos + want > end:
                break
            frames.append(self._frame(chunk, pos, topic_length, length))
            pos = self._after(pos, end, want, length)
            want = HEADER
        self._assembler.keep(chunk, pos, want)
        return frames

    def feed_runs(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None]
    ) -> list[Frame | Run]:
        """As ``feed``, with consecutive publications to one route as one ``Run``.

        ``routes`` maps the bytes of topics to routes. A topic it lacks is given to ``resolve``, which returns its
        route (and may put it into ``routes``), or None to get the frame itself. Only what may be forwarded verbatim
        becomes part of a run: no flags, a body, a plain topic.
        """
        items: list[Frame | Run] = []
        chunk = self._assembler.take(data)
        if chunk is None:
            return items
        end: i64 = len(chunk)
        pos: i64 = self._skipped(end)
        want: i64 = HEADER
        max_body = self._max_body
        run: object | None = None
        start: i64 = 0
        count: i64 = 0
        topic: i64 = 0
        known: i64 = -1  # the length of the topic at `topic`, which has the route `run`
        while pos + HEADER <= end:
            topic_length: i64 = chunk[pos + 1]
            length: i64 = i64(read_i32_be(chunk, pos + 2)) & MAX_LENGTH
            want = HEADER + topic_length
            if length <= max_body:
                want += length
            if pos + want > end:
                break
            route: object | None = None
            if chunk[pos] == 0 and 0 < length <= max_body:
                if topic_length == known and same_bytes(chunk, topic, pos + HEADER, topic_length):
                    route = run
                else:
                    name = chunk[pos + HEADER : pos + HEADER + topic_length]
                    route = routes.get(name)
                    if route is None and is_plain(name):
                        route = resolve(name)
                    topic = pos + HEADER
                    known = topic_length
            if route is not run:
                if run is not None:
                    items.append(Run(run, chunk, start, pos, count))
                run = route
                start = pos
                count = 0
            if route is None:
                known = -1
                items.append(self._frame(chunk, pos, topic_length, length))
                pos = self._after(pos, end, want, length)
            else:
                count += 1
                pos += want
            want = HEADER
        if run is not None:
            items.append(Run(run, chunk, start, pos, count))
        self._assembler.keep(chunk, pos, want)
        return items

    def pending(self) -> int:
        """How many bytes of an unfinished packet are held."""
        return self._assembler.pending()

    def _skipped(self, end: i64) -> i64:
        """Where parsing starts: after what is left of an oversize body."""
        skip = self._skip if self._skip < end else end
        self._skip -= skip
        return skip

    def _after(self, pos: i64, end: i64, want: i64, length: i64) -> i64:
        """Where the next packet starts; an oversize body that has not all arrived is left to ``_skipped``."""
        following = pos + want
        if length <= self._max_body:
            return following
        following += length
        if following <= end:
            return following
        self._skip = following - end
        return end

    def _frame(self, chunk: bytes, pos: i64, topic_length: i64, length: i64) -> Frame:
        """The packet at ``pos``, whose header, topic and (unless oversize) body are all there."""
        body: i64 = pos + HEADER + topic_length
        if length > self._max_body:
            reason = f"the body has {length} bytes, more than the {self._max_body} allowed"
            return self._discarded(chunk, pos, body, HEADER + topic_length + length, "FMQP-52", reason)
        topic = read_topic(chunk[pos + HEADER : body])
        if topic is None:
            rule, reason = topic_problem(chunk[pos + HEADER : body])
            return self._discarded(chunk, pos, body + length, HEADER + topic_length + length, rule, reason)
        flags: i64 = i64(chunk[pos]) & FLAGS
        if flags & SUBSCRIPTION == 0:
            return Publication(topic, chunk[body : body + length], flags)
        if flags & UNSUBSCRIBE == 0:
            return Subscription(topic, flags & ~SUBSCRIPTION)
        return Unsubscription(topic, flags & ~(SUBSCRIPTION | UNSUBSCRIBE))

    def _discarded(self, chunk: bytes, pos: i64, end: i64, size: i64, rule: str, reason: str) -> Discarded:
        kept = end if end - pos < RAW_KEPT else pos + RAW_KEPT
        return Discarded(rule, reason, self._assembler.offset + pos, chunk[pos:kept], size)


def publications_in(data: bytes, start: i64, end: i64) -> list[Publication]:
    """The publications of a run: ``data[start:end]`` is whole packets, as ``feed_runs`` found them."""
    found: list[Publication] = []
    topic = ""
    at: i64 = 0
    known: i64 = -1  # the length of the name at `at`, which is `topic`
    pos: i64 = start
    while pos < end:
        name: i64 = pos + HEADER
        topic_length: i64 = data[pos + 1]
        body: i64 = name + topic_length
        pos = body + (i64(read_i32_be(data, pos + 2)) & MAX_LENGTH)
        if topic_length != known or not same_bytes(data, at, name, topic_length):
            topic = _names.text(data[name:body])
            at = name
            known = topic_length
        found.append(Publication(topic, data[body:pos], 0))
    return found


def locate(data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
    """Write where the topics and bodies of a run are, counted from ``base``: the start and, 32 bits up, the end."""
    pos: i64 = start
    while pos < end:
        name: i64 = pos + HEADER
        body: i64 = name + i64(data[pos + 1])
        pos = body + (i64(read_i32_be(data, pos + 2)) & MAX_LENGTH)
        middle: i64 = base + body
        write_i64_le(places, (base + name) | (middle << 32))
        write_i64_le(places, middle | ((base + pos) << 32))


def encode(frame: Frame) -> bytes:
    """The packet of a frame. Raises ``LocalProtocolError`` if FMQP does not allow it."""
    if isinstance(frame, Publication):
        return _packet(frame.flags, frame.topic, frame.body)
    if isinstance(frame, Subscription):
        return _packet(frame.flags | SUBSCRIPTION, frame.topic, b"")
    if isinstance(frame, Unsubscription):
        return _packet(frame.flags | SUBSCRIPTION | UNSUBSCRIBE, frame.topic, b"")
    raise LocalProtocolError(f"{type(frame).__name__} is not an FMQP packet", rule="FMQP-36")


def publication(topic: str, body: bytes, flags: int) -> bytes:
    """The packet of a publication, as ``encode`` makes it, for a client that has its parts but no frame."""
    return _packet(flags, topic, body)


def _packet(flags: int, topic: str, body: bytes) -> bytes:
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"topic {topic!r} can't be written as UTF-8", rule="FMQP-10") from error
    size: i64 = len(name)
    if size != 0 and (name[0] == SLASH or name[size - 1] == SLASH):
        name = name.strip(b"/")
        size = len(name)
    if size == 0 or "\0" in topic:
        rule, reason = topic_problem(name)
        raise LocalProtocolError(reason, rule=rule)
    if size > MAX_TOPIC:
        raise LocalProtocolError(f"the topic has {size} bytes, more than {MAX_TOPIC}", rule="FMQP-11")
    if len(body) > MAX_LENGTH:
        raise LocalProtocolError(f"the body has {len(body)} bytes, more than {MAX_LENGTH}", rule="FMQP-37")
    return _assemble(flags, name, body)


def forwarded(topic: str, body: bytes, flags: int) -> bytes | None:
    """The packet of a publication under exactly this name, outer slashes included, or None if FMQP can't carry it.

    This is how a broker forwards what came in over a protocol in which ``/a`` and ``a`` differ.
    """
    name = topic.encode(errors="replace")
    if not name or len(name) > MAX_TOPIC or len(body) > MAX_LENGTH:
        return None
    return _assemble(flags, name, body)


def _assemble(flags: int, name: bytes, body: bytes) -> bytes:
    out = BytesWriter()
    first: i64 = (flags & FLAGS) << 8 | len(name)
    write_i16_be(out, i16(first if first < 0x8000 else first - 0x1_0000))
    length: i64 = len(body)
    write_i32_be(out, i32(length if length <= 0x7FFF_FFFF else length - 0x1_0000_0000))
    out.write(name)
    out.write(body)
    return out.getvalue()


def encode_count(count: int) -> bytes:
    """A number as FMQP writes it in bodies: eight bytes, big-endian (FMQP-29)."""
    try:
        return count.to_bytes(8, "big")
    except OverflowError as error:
        raise LocalProtocolError(f"{count} is not an unsigned 64-bit number", rule="FMQP-29") from error


def decode_count(body: bytes) -> int | None:
    """The number in a body, or None if the body is not one."""
    return int.from_bytes(body, "big") if len(body) == 8 else None
