"""FMQP's packets: octets to frames and back, and the scanner for runs of publications.

A packet is one octet of flags, one of topic length, four of body length, the topic, the body (FMQP-36). Whatever is
wrong with one, its lengths still say where the next begins, so a bad packet is returned as ``Discarded`` and decoding
goes on. A body over the limit is skipped as it streams in and never held.
"""

from collections.abc import Callable
from typing import ClassVar, Final, final

from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_le
from mypy_extensions import i32, i64, mypyc_attr

from polywire.protocols.fmqp.errors import LocalProtocolError
from polywire.protocols.fmqp.topics import MAX_OCTETS, plain, problem, read
from polywire.wire.buffers import Assembler, Names, same_bytes
from polywire.wire.frame import RAW_KEPT, Discarded, Frame, Run

SUBSCRIPTION: Final = 0x80  # FMQP-39
UNSUBSCRIBE: Final = 0x40  # FMQP-40
FEEDBACK: Final = 0x20  # FMQP-41
DEBUG: Final = 0x10  # FMQP-42
LAST_WILL: Final = 0x08  # FMQP-43
CACHE: Final = 0x04  # FMQP-44
FLAGS: Final = 0xFC  # FMQP-46: bits 6 and 7 mean nothing

HEADER: Final = 6
MAX_BODY: Final = 16 * 1024 * 1024
MAX_LENGTH: Final = 0xFFFF_FFFF

_names: Final = Names()


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
        """Whether it is to be published when its sender goes away."""
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
        """Whether it is left out of the demand publishers hear of."""
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
    """Turns the octets of one connection into frames. ``max_body``: longer bodies are skipped and discarded."""

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._max_body: i64 = max_body
        self._octets = Assembler()
        self._skip: i64 = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order; what broke a rule is ``Discarded``."""
        frames: list[Frame] = []
        chunk = self._octets.take(data)
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
        self._octets.keep(chunk, pos, want)
        return frames

    def feed_runs(
        self, data: bytes, routes: dict[bytes, object], resolve: Callable[[bytes], object | None]
    ) -> list[Frame | Run]:
        """As ``feed``, with consecutive publications to one route as one ``Run``.

        ``routes`` maps the octets of topics to routes. A topic it lacks is given to ``resolve``, which returns its
        route (and may put it into ``routes``), or None to have the frame itself. Only what may be forwarded as it
        stands becomes part of a run: no flags, a body, a plain topic.
        """
        items: list[Frame | Run] = []
        chunk = self._octets.take(data)
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
                    if route is None and plain(name):
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
        self._octets.keep(chunk, pos, want)
        return items

    def pending(self) -> int:
        """How many octets of an unfinished packet are held."""
        return self._octets.pending()

    def _skipped(self, end: i64) -> i64:
        """Where parsing starts: behind what is left of an oversize body."""
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
            reason = f"the body has {length} octets, more than the {self._max_body} allowed"
            return self._discarded(chunk, pos, body, HEADER + topic_length + length, "FMQP-52", reason)
        topic = read(chunk[pos + HEADER : body])
        if topic is None:
            rule, reason = problem(chunk[pos + HEADER : body])
            return self._discarded(chunk, pos, body + length, HEADER + topic_length + length, rule, reason)
        flags: i64 = i64(chunk[pos]) & FLAGS
        if flags & SUBSCRIPTION == 0:
            return Publication(topic, chunk[body : body + length], flags)
        if flags & UNSUBSCRIBE == 0:
            return Subscription(topic, flags & ~SUBSCRIPTION)
        return Unsubscription(topic, flags & ~(SUBSCRIPTION | UNSUBSCRIBE))

    def _discarded(self, chunk: bytes, pos: i64, end: i64, size: i64, rule: str, reason: str) -> Discarded:
        kept = end if end - pos < RAW_KEPT else pos + RAW_KEPT
        return Discarded(rule, reason, self._octets.offset + pos, chunk[pos:kept], size)


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
    """Where the topics and bodies of a run stand, counted from ``base``: where each begins and, 32 bits up, ends."""
    pos: i64 = start
    while pos < end:
        name: i64 = pos + HEADER
        body: i64 = name + i64(data[pos + 1])
        pos = body + (i64(read_i32_be(data, pos + 2)) & MAX_LENGTH)
        middle: i64 = base + body
        write_i64_le(places, (base + name) | (middle << 32))
        write_i64_le(places, middle | ((base + pos) << 32))


def encode(frame: Frame) -> bytes:
    """The packet of a frame. Raises ``LocalProtocolError`` for what FMQP does not allow."""
    if isinstance(frame, Publication):
        return _packet(frame.flags, frame.topic, frame.body)
    if isinstance(frame, Subscription):
        return _packet(frame.flags | SUBSCRIPTION, frame.topic, b"")
    if isinstance(frame, Unsubscription):
        return _packet(frame.flags | SUBSCRIPTION | UNSUBSCRIBE, frame.topic, b"")
    raise LocalProtocolError(f"{type(frame).__name__} is not an FMQP packet", rule="FMQP-36")


def publication(topic: str, body: bytes, flags: int) -> bytes:
    """The packet of a publication, as ``encode`` makes it, for a client that has its parts and no frame."""
    return _packet(flags, topic, body)


def _packet(flags: int, topic: str, body: bytes) -> bytes:
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"topic {topic!r} can't be written as UTF-8", rule="FMQP-10") from error
    if name[:1] == b"/" or name[-1:] == b"/":
        name = name.strip(b"/")
    if not name or "\0" in topic:
        rule, reason = problem(name)
        raise LocalProtocolError(reason, rule=rule)
    if len(name) > MAX_OCTETS:
        raise LocalProtocolError(f"the topic has {len(name)} octets, more than {MAX_OCTETS}", rule="FMQP-11")
    if len(body) > MAX_LENGTH:
        raise LocalProtocolError(f"the body has {len(body)} octets, more than {MAX_LENGTH}", rule="FMQP-37")
    return _octets(flags, name, body)


def forwarded(topic: str, body: bytes, flags: int) -> bytes | None:
    """The packet of a publication under exactly this name, outer slashes included, or None where FMQP can't carry it.

    This is how a broker passes on what came in by a protocol in which ``/a`` and ``a`` differ.
    """
    name = topic.encode(errors="replace")
    if not name or len(name) > MAX_OCTETS or len(body) > MAX_LENGTH:
        return None
    return _octets(flags, name, body)


def _octets(flags: int, name: bytes, body: bytes) -> bytes:
    out = BytesWriter()
    out.append(flags & FLAGS)
    out.append(len(name))
    length: i64 = len(body)
    write_i32_be(out, i32(length if length <= 0x7FFF_FFFF else length - 0x1_0000_0000))
    out.write(name)
    out.write(body)
    return out.getvalue()


def encode_count(count: int) -> bytes:
    """A number as FMQP puts it into bodies: eight octets, big-endian (FMQP-29)."""
    try:
        return count.to_bytes(8, "big")
    except OverflowError as error:
        raise LocalProtocolError(f"{count} is not an unsigned 64-bit number", rule="FMQP-29") from error


def decode_count(body: bytes) -> int | None:
    """The number in a body, or None where the body is not one."""
    return int.from_bytes(body, "big") if len(body) == 8 else None
