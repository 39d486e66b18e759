"""``POST /publish``: messages that come in parts, each published once. This is how the pipeline publishes into a hub.

A part is named by its query, its batch and its number in it. A query belongs to the user who first published under its
name. The answer comes once everything the part has caused is on disk; a client that sends a part again, because it or
the hub was killed, is answered that it was applied before, and no message is delivered twice (see ``restoration.py``).

A large part is decoded in a thread, after what it will take in memory is known from its own metadata, and checked,
recorded and delivered in slices.
"""

import asyncio
import contextlib
import json
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar, assert_never

import pyarrow as pa
from aiohttp import web
from pyarrow import ipc

from polywire.hub.access import Identity
from polywire.hub.channels import name_problem
from polywire.hub.client import Client
from polywire.hub.hub import QUEUE_PREFIX, Hub, is_queue
from polywire.hub.message import Date, Headers, Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.hub.peer import Refused as HubRefused
from polywire.hub.queues import OVERHEAD as QUEUED_OVERHEAD
from polywire.hub.recorder import Recorder, headers_of
from polywire.journal.columns import Columns
from polywire.journal.format import POSTED_SCHEMA
from polywire.journal.housekeeping import Hold
from polywire.protocols.mqtt.kept import sessions_of
from polywire.registry import HTTP_CODE, by_name
from polywire.server.gate import Gate
from polywire.server.http import HttpServer, Refused
from polywire.server.restoration import Part, Progress, note, queries

T = TypeVar("T")

MAX_QUERY: Final = 200
LEAST: Final = 8 << 20
OVERHEAD: Final = 1 << 20
MAX_ROWS: Final = 100_000
MAX_BATCHES: Final = 1_000

THREADS: Final = 2
ROWS_AT_ONCE: Final = 200
BREATH: Final = 0.0002
"""Rows that are made in a thread before it lets go of the interpreter, and for how many seconds it does."""

SMALL_BODY: Final = 8 * 1024
SMALL_SIZE: Final = 64 * 1024
"""Size up to which a part is decoded in the event loop: a thread would take longer."""

SLICE_SECONDS: Final = 0.001
"""How long the loop works on a part before others get their turn."""

PENDING: Final = 8 << 20
"""Bytes that may wait for the disk before delivery continues."""

RETRY_SECONDS: Final = 0.5


def read_part(headers: Mapping[str, str]) -> Part:
    """The part that a request's headers name."""
    query = headers.get("polywire-query", "")
    if not 0 < len(query) <= MAX_QUERY or not query.isprintable():
        raise Refused(400, f"the header polywire-query names the query, with at most {MAX_QUERY} characters")
    numbers = []
    for name in ("polywire-batch", "polywire-part"):
        text = headers.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Refused(400, f"the header {name} must be a number of at least 0")
        numbers.append(int(text))
    return Part(query, *numbers)


def check_size(body: bytes, limit: int) -> tuple[int, int]:
    """The rows of a stream, and how many bytes they take in memory. ``Refused`` where either is too much.

    Nothing is decompressed for that: each batch lists its buffers, and a compressed one begins with its real length.
    """
    size = rows = 0
    reader = ipc.MessageReader.open_stream(pa.BufferReader(body))
    schema = next(reader, None)
    if schema is None or schema.type != "schema" or not ipc.read_schema(schema).equals(POSTED_SCHEMA):
        raise Refused(400, f"the columns must be {', '.join(map(str, POSTED_SCHEMA))}")
    for batches, message in enumerate(reader, start=1):
        if message.type != "record batch":
            raise Refused(400, f"a part must consist of record batches, not of a {message.type}")
        added_rows, added = _batch_size(memoryview(message.metadata), memoryview(message.body or b""))
        rows += added_rows
        size += added
        if rows > MAX_ROWS:
            raise Refused(413, f"the part has more than {MAX_ROWS} rows", fault="part-rows")
        if batches > MAX_BATCHES:
            raise Refused(413, f"the part has more than {MAX_BATCHES} record batches", fault="part-batches")
        if size > limit:
            raise Refused(413, f"the part takes more than {limit} bytes uncompressed", fault="part-size")
    return rows, size


def is_small(body: bytes) -> bool:
    """Whether a part takes so little time that it need not be handled in a thread."""
    if len(body) > SMALL_BODY:
        return False
    try:
        rows, _ = check_size(body, SMALL_SIZE)
    except Exception:  # noqa: BLE001 - whatever is wrong with it is reported where it is decoded
        return False
    return rows < ROWS_AT_ONCE


def _batch_size(metadata: memoryview, body: memoryview) -> tuple[int, int]:
    """The rows of a record batch, and the bytes of its buffers once they are decompressed."""
    batch = _Table.root(metadata).table(2)
    nodes = batch.pairs(1)
    rows = max([batch.number(0), *(length for length, _ in nodes)])
    compressed = batch.has(3)
    size = 0
    for offset, length in batch.pairs(2):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise Refused(400, "a buffer extends beyond its record batch")
        real = length
        if compressed and length >= 8:
            (declared,) = struct.unpack_from("<q", body, offset)
            real = length if declared == -1 else declared
        if real < 0:
            raise Refused(400, "a buffer has a negative length")
        size += real
    return rows, size


@dataclass(frozen=True, slots=True)
class _Table:
    """A table in a flatbuffer, as Arrow's metadata is written."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def field(self, index: int) -> int:
        """Where a field is; 0 where it is left out."""
        vtable = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        size = struct.unpack_from("<H", self.data, vtable)[0] if vtable >= 0 else 0
        entry = 4 + 2 * index
        found = struct.unpack_from("<H", self.data, vtable + entry)[0] if entry + 2 <= size else 0
        return self.at + int(found) if found else 0

    def has(self, index: int) -> bool:
        return self.field(index) != 0

    def number(self, index: int) -> int:
        found = self.field(index)
        return int(struct.unpack_from("<q", self.data, found)[0]) if found else 0

    def table(self, index: int) -> "_Table":
        found = self.field(index)
        return _Table(self.data, found + struct.unpack_from("<I", self.data, found)[0])

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """A vector of two numbers each."""
        found = self.field(index)
        if not found:
            return []
        start = found + struct.unpack_from("<I", self.data, found)[0]
        (count,) = struct.unpack_from("<I", self.data, start)
        # The vector may begin with padding, as its numbers have 8 bytes: the count comes right before them.
        return list(struct.iter_unpack("<qq", self.data[start + 4 : start + 4 + 16 * count]))


@dataclass(slots=True)
class Decoded:
    """A part's messages, with the first one to each channel, and how many messages and bytes each queue is to take.

    All of it is taken out while it is used: freeing so much at once would hold up the loop as well.
    """

    messages: deque[Message] = field(default_factory=deque)
    channels: dict[str, Message] = field(default_factory=dict)
    queued: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """One more."""
        self.messages.append(message)
        self.channels.setdefault(message.channel, message)
        if is_queue(message.channel):
            name = message.channel[len(QUEUE_PREFIX) :]
            count, size = self.queued.get(name, (0, 0))
            self.queued[name] = (count + 1, size + message.size())


def decode(body: bytes, limit: int, message_size: int, header_size: int, now: int, origin: int) -> Decoded:
    """The messages in an Arrow stream. Runs in a thread unless it is small."""
    found = Decoded()
    try:
        check_size(body, limit)
        table = ipc.open_stream(body).read_all()
        table.validate(full=True)
        for start in range(0, table.num_rows, ROWS_AT_ONCE):
            for row in table.slice(start, ROWS_AT_ONCE).to_pylist():
                found.add(_message(row, message_size, header_size, now, origin))
            if start + ROWS_AT_ONCE < table.num_rows:
                time.sleep(BREATH)
    except (pa.ArrowException, UnicodeDecodeError, OSError, struct.error, IndexError) as error:
        raise Refused(400, f"the body is not an Arrow stream: {error}") from error
    return found


def _message(row: dict[str, Any], message_size: int, header_size: int, now: int, origin: int) -> Message:
    channel = row["channel"]
    if row["queue"] and not channel.startswith(QUEUE_PREFIX):
        channel = QUEUE_PREFIX + channel
    problem = name_problem(channel)
    if problem is not None:
        raise Refused(400, f"{channel[:100]!r} can't be published to: {problem}")
    headers = _headers(row["headers"], header_size)
    message = Message(channel, row["body"], row["content_type"] or "", headers, (), row["retain"], now, origin)
    if message.size() > message_size:
        words = f"a message to {channel[:100]!r} is too large: at most {message_size} bytes"
        raise Refused(413, words, fault="message-size")
    return message


def _headers(text: str | None, limit: int) -> Headers:
    if text is not None and len(text) > limit:
        raise Refused(413, f"headers are too large: at most {limit} characters", fault="header-size")
    wrong = f"headers are not a JSON object of strings, numbers and dates: {(text or '')[:80]!r}"
    try:
        found = headers_of(text)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Refused(400, wrong) from error
    for _, value in found:
        plain: object = value.seconds if isinstance(value, Date) else value
        if not isinstance(plain, (int, float)) and not isinstance(value, str):
            raise Refused(400, wrong)
    return found


class Finishing:
    """A part that is recorded: ``task`` delivers it. ``stuck`` is set while the journal can't be written."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.stuck = asyncio.Event()
        self.hold: Hold | None = None  # deliveries stand for the part's messages, which have to stay until then

    async def wait(self) -> None:
        """Until all of it is on disk. ``Refused`` where that takes long because the disk is full or fails."""
        stuck = asyncio.ensure_future(self.stuck.wait())
        try:
            await asyncio.wait({self.task, stuck}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stuck.cancel()
        if not self.task.done():
            raise Refused(503, HubRefused.UNAVAILABLE.message)
        if self.task.cancelled():
            raise Refused(503, "the hub is shutting down")
        self.task.result()


class Sink(Protocol):
    """What publishes parts."""

    @property
    def limit(self) -> int:
        """Bytes of a part, as it is sent and decoded."""

    def check(self, part: Part, who: Identity) -> None:
        """Refuse a part before its body is received."""

    async def publish(self, part: Part, who: Identity, body: bytes) -> bool:
        """Publish a part's messages. False where that was done before; ``Refused`` where it can't be."""

    def busy(self) -> bool:
        """Whether a part is being published."""

    async def close(self) -> None:
        """Publish nothing more."""


class PublishPage:
    """Answers ``POST /publish``."""

    def __init__(self, http: HttpServer, sink: Sink) -> None:
        self._http = http
        self._sink = sink
        self.busy = sink.busy
        self.close = sink.close

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Publish the part in a request, and say whether that was needed."""
        part = read_part(request.headers)
        who = await self._http.door.who(request)
        self._sink.check(part, who)
        with self._http.bodies.place() as place:
            body = await place.read(request, self._sink.limit)
            published = await self._sink.publish(part, who, body)
        return web.Response(body=json.dumps({"applied": published}).encode() + b"\n", content_type="application/json")


def part_limit(message_size: int) -> int:
    """Bytes of a part, as it is sent and decoded: the largest message, and what is around it."""
    return max(message_size, LEAST) + OVERHEAD


class Ingest:
    """Publishes parts, one after the other."""

    def __init__(self, gate: Gate) -> None:
        self._hub: Hub = gate.hub
        self._gate = gate
        self._turn = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "polywire-ingest")
        self._finishing: dict[str, Finishing] = {}  # by query

    @property
    def limit(self) -> int:
        """Bytes of a part."""
        return part_limit(self._gate.limits.message_size)

    def busy(self) -> bool:
        """Whether a part is being published."""
        return self._turn.locked() or any(not each.task.done() for each in self._finishing.values())

    async def close(self) -> None:
        """Stop where it is: what is recorded is delivered at the next start."""
        tasks = [each.task for each in self._finishing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def publish(self, part: Part, who: Identity, body: bytes) -> bool:
        """Publish a part's messages. False where that was done before; ``Refused`` where it can't be."""
        progress = queries(self._hub).get(part.query)
        client = self._client(who)
        decoded = None
        if progress is None or part.place > progress.place:
            limits = self._gate.limits
            sizes = (self.limit, limits.message_size, limits.header_size)
            work = partial(decode, body, *sizes, self._hub.clock(), client.number)
            decoded = work() if is_small(body) else await self._in_thread(work)
        async with self._turn:
            self.check(part, who)
            before = self._finishing.get(part.query)
            if before is not None:
                await before.wait()
            progress = queries(self._hub).get(part.query)
            if decoded is None or (progress is not None and part.place <= progress.place):
                await self._safe()
                return False
            finishing = await self._record(part, who, client, decoded)
            await finishing.wait()
            return True

    def check(self, part: Part, who: Identity) -> None:
        """Refuse queries of other users, and everything once the hub is shutting down."""
        if not self._gate.open:
            raise Refused(503, "the hub is shutting down")
        progress = queries(self._hub).get(part.query)
        if progress is not None and progress.user and self._gate.has_logins and progress.user != who.name:
            raise Refused(
                403,
                f"the query {part.query!r} belongs to another user; choose another name",
                fault=HubRefused.FORBIDDEN.label,
            )

    def _client(self, who: Identity) -> Client:
        """A client that publishes and is not connected."""
        client = self._hub.client(HTTP_CODE, Outbox(Nowhere(), self._hub.flusher))
        client.identity = who
        client.grants = self._gate.rules.grants(who, "http")
        return client

    async def _record(self, part: Part, who: Identity, client: Client, decoded: Decoded) -> Finishing:
        """Take all messages or none, and with them the note that they were taken."""
        client.counters.received += len(decoded.messages)
        heard = await self._accept(client, decoded)
        known = queries(self._hub).get(part.query)
        user = who.name or (known.user if known is not None else "") or ""
        kept = sessions_of(self._hub, by_name("mqtt").code)
        two_steps = bool(decoded.messages) and bool(kept.live or kept.stored)
        recorder = self._hub.recorder
        columns = None
        if recorder is not None:
            rows = len(decoded.messages) if two_steps else 0
            make = partial(_columns, decoded, heard, client, self._hub.clock, part, user, rows)
            few = len(decoded.messages) < ROWS_AT_ONCE
            columns = make() if few else await self._in_thread(make)
        self.check(part, who)
        if recorder is not None and recorder.failed:
            raise Refused(503, HubRefused.UNAVAILABLE.message)
        first = recorder.insert(columns) if recorder is not None and columns is not None else None
        queries(self._hub)[part.query] = Progress(part.place, user)
        finishing = Finishing()
        if two_steps and first is not None and self._gate.journaling is not None:
            finishing.hold = self._gate.journaling.hold(first)
        work = self._finish(part, user, client, decoded.messages, first, finishing, two_steps=two_steps)
        finishing.task = asyncio.get_running_loop().create_task(work)
        self._finishing[part.query] = finishing
        finishing.task.add_done_callback(lambda _: self._forget(part.query, finishing))
        return finishing

    def _forget(self, query: str, finishing: Finishing) -> None:
        if self._finishing.get(query) is finishing:
            del self._finishing[query]

    async def _accept(self, client: Client, decoded: Decoded) -> dict[str, bool]:
        """Check whether all messages can be accepted, and whether each channel has subscribers."""
        hub = self._hub
        heard: dict[str, bool] = {}
        together = 0
        try:
            async for channel, message in in_slices(taken(decoded.channels.popitem)):
                _refuse(hub.refusal(message, client, acknowledged=True), channel, client)
                if not is_queue(channel):
                    heard[channel] = bool(hub.subscribers(channel))
            async for name, (count, size) in in_slices(decoded.queued.items()):
                queue = hub.queue(name)
                together += size + count * QUEUED_OVERHEAD
                if hub.queue_totals.size + together > hub.queue_totals.most:
                    _refuse(HubRefused.QUEUES_FULL, QUEUE_PREFIX + name, client)
                if len(queue) + count > queue.max_messages or queue.octets + size > queue.max_octets:
                    _refuse(HubRefused.QUEUE_FULL, QUEUE_PREFIX + name, client)
        except Refused:
            # The check has created queues that stay empty.
            async for name in in_slices(decoded.queued):
                made = hub.queues.get(name)
                if made is not None and made.idle():
                    hub.forget_queue(name)
            raise
        return heard

    async def _finish(
        self,
        part: Part,
        user: str,
        client: Client,
        messages: deque[Message],
        first: int | None,
        finishing: Finishing,
        *,
        two_steps: bool,
    ) -> None:
        """Deliver what is recorded, once that is on disk, and wait until what this has caused is there too."""
        await self._until_safe(finishing, client)
        recorder = self._hub.recorder
        number = 0
        async for message in in_slices(taken(messages.popleft)):
            if first is not None:
                message.offset = first + number
                number += 1
            self._hub.deliver(message, client)
            client.counters.messages_in += 1
            if recorder is not None and number % ROWS_AT_ONCE == 0 and recorder.pending() > PENDING:
                await self._until_safe(finishing, client)
        if two_steps and recorder is not None:
            note(recorder, part, user)
            if finishing.hold is not None:
                finishing.hold.end = recorder.next_offset()
        await self._until_safe(finishing, client)

    async def _until_safe(self, finishing: Finishing, client: Client) -> None:
        """Until everything recorded so far is on disk, however long that takes: the journal never skips a row.

        What went into queues of other hubs is safe there as well, or was refused and counted.
        """
        while True:
            try:
                await self._safe(client)
            except Refused:
                finishing.stuck.set()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                finishing.stuck.clear()
                return

    async def _safe(self, client: Client | None = None) -> None:
        safe: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(*, well: bool) -> None:
            if not safe.done():
                safe.set_result(well)

        self._hub.safe(lambda: settle(well=True), lambda: settle(well=False), client)
        if not await safe:
            raise Refused(503, HubRefused.UNAVAILABLE.message)

    def _in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, yielding to the event loop after each slice of work."""
    end = time.perf_counter() + SLICE_SECONDS
    for item in items:
        yield item
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE_SECONDS


def taken(take: Callable[[], T]) -> Iterator[T]:
    """What a container gives, until it is empty."""
    with contextlib.suppress(IndexError, KeyError):
        while True:
            yield take()


def _refuse(refused: HubRefused | None, channel: str, client: Client) -> None:
    if refused is not None:
        client.counters.drop(refused.label)
        words = refused.message if refused is HubRefused.UNAVAILABLE else f"{channel}: {refused.label}"
        raise Refused(status_of(refused), words)


def status_of(refused: HubRefused) -> int:
    """The HTTP status for a part that the hub refuses."""
    match refused:
        case HubRefused.FORBIDDEN:
            return 403
        case (
            HubRefused.QUEUE_FULL
            | HubRefused.QUEUES_FULL
            | HubRefused.TOO_MANY_QUEUES
            | HubRefused.UNAVAILABLE
            | HubRefused.DRAINING
        ):
            return 503
        case HubRefused.RETAINED_FULL:
            return 507
        case (
            HubRefused.SERVICE_CHANNEL
            | HubRefused.UNSUPPORTED
            | HubRefused.TOO_DEEP
            | HubRefused.LIMIT
            | HubRefused.PATTERN_COST
            | HubRefused.NAMES_SIZE
            | HubRefused.WATCHERS
            | HubRefused.WILLS_SIZE
        ):
            return 400
        case _:
            assert_never(refused)


def _columns(
    decoded: Decoded,
    heard: Mapping[str, bool],
    client: Client,
    clock: Callable[[], int],
    part: Part,
    user: str,
    rows: int,
) -> Columns:
    """All rows of a part as one batch, to be inserted into the journal at once. For a thread."""
    recorder = Recorder(0, clock, _nothing)
    recorder.together(on=True)
    for number, message in enumerate(decoded.messages):
        if is_queue(message.channel):
            recorder.enqueued(message, client)
        else:
            recorder.published(message, client, 0, heard=heard[message.channel])
        if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            time.sleep(BREATH)
    note(recorder, part, user, rows=rows)
    recorder.columns.close()
    return recorder.columns


def _nothing() -> None:
    """Nobody waits for these rows yet."""
