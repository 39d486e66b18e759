"""Messages that come in parts over HTTP, each part applied once: how the pipeline publishes into a hub.

A part is named by its query, its batch and its number in it. Its messages and its name are recorded as one batch of the
journal, and delivered when that is safe: whoever sends a part again, because the hub or itself was killed, is told that
it is there already, and nobody gets a message twice.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from polywire.hub.access import Identity
from polywire.hub.channels import name_problem
from polywire.hub.client import Client
from polywire.hub.hub import FORBIDDEN, QUEUE_FULL, QUEUE_PREFIX, RETAINED_FULL, UNAVAILABLE, UNWRITABLE, Hub
from polywire.hub.message import Message
from polywire.hub.outbox import Nowhere, Outbox
from polywire.journal.kinds import HTTP
from polywire.server.gate import Gate
from polywire.server.http_door import HttpDoor, words
from polywire.server.http_resources import Reply, Request
from polywire.server.parts import PREFIX, Part, applied_parts
from polywire.server.restoring import headers_of

MAX_QUERY: Final = 200
LEAST: Final = 8 << 20
OVERHEAD: Final = 1 << 20
SCHEMA: Final[Any] = pa.schema(
    [
        pa.field("channel", pa.utf8(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("headers", pa.utf8()),
        pa.field("content_type", pa.utf8()),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("queue", pa.bool_(), nullable=False),
    ]
)

STATUS: Final = {FORBIDDEN: 403, QUEUE_FULL: 503, RETAINED_FULL: 507, UNAVAILABLE: 503}


class Rejected(Exception):  # noqa: N818 - what happened to the part
    """A part that is not applied: an HTTP status and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def read_part(headers: Mapping[str, str]) -> Part:
    """The part that a request's headers name."""
    query = headers.get("polywire-query", "")
    if not 0 < len(query) <= MAX_QUERY:
        raise Rejected(400, f"the header polywire-query names the query, with at most {MAX_QUERY} characters")
    numbers = []
    for name in ("polywire-batch", "polywire-part"):
        text = headers.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Rejected(400, f"the header {name} is a number from 0 on")
        numbers.append(int(text))
    return Part(query, *numbers)


def read_messages(body: bytes, hub: Hub, origin: int) -> list[Message]:
    """The messages in an Arrow stream."""
    try:
        table = ipc.open_stream(body).read_all()
        if not table.schema.equals(SCHEMA):
            raise Rejected(400, f"the columns are to be {', '.join(map(str, SCHEMA))}")
        table.validate(full=True)
        rows = table.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise Rejected(400, f"the body is no Arrow stream: {error}") from error
    now = hub.clock()
    messages = []
    for row in rows:
        channel = row["channel"]
        if row["queue"] and not channel.startswith(QUEUE_PREFIX):
            channel = QUEUE_PREFIX + channel
        problem = name_problem(channel)
        if problem is not None:
            raise Rejected(400, f"{channel!r} can't be published to: {problem}")
        try:
            headers = headers_of(row["headers"])
        except (ValueError, AttributeError, KeyError) as error:
            raise Rejected(400, f"headers are no JSON object: {row['headers'][:80]!r}") from error
        messages.append(
            Message(channel, row["body"], row["content_type"] or "", headers, (), row["retain"], now, origin)
        )
    return messages


class Ingest:
    """Applies parts, one after the other: what is behind ``POST /publish``."""

    def __init__(self, gate: Gate, *, local: bool) -> None:
        self._hub = gate.hub
        self._gate = gate
        self._door = HttpDoor(gate, local=local)
        self._turn = asyncio.Lock()

    @property
    def limit(self) -> int:
        """Octets of a part: the largest message, and what is around it."""
        return max(self._gate.limits.message_size, LEAST) + OVERHEAD

    async def admit(self, request: Request) -> Identity | Reply:
        """Who publishes."""
        try:
            read_part(request.headers)
        except Rejected as error:
            return words(error.status, error.reason)
        return await self._door.who(request)

    async def take(self, request: Request, who: Identity, body: bytes) -> Reply:
        """Apply the part, and say whether that was needed."""
        try:
            applied = await self.apply(read_part(request.headers), body, who)
        except Rejected as error:
            return words(error.status, error.reason)
        return Reply(200, "application/json", json.dumps({"applied": applied}).encode() + b"\n")

    async def apply(self, part: Part, body: bytes, who: Identity) -> bool:
        """Publish a part's messages. False where that was done before; ``Rejected`` where it can't be."""
        async with self._turn:
            applied = applied_parts(self._hub)
            if part.place <= applied.get(part.query, (-1, -1)):
                return False
            if not self._gate.open:
                raise Rejected(503, "the hub is shutting down")
            client = self._client(who)
            messages = read_messages(body, self._hub, client.number)
            client.counters.received += len(messages)
            self._accept(part, messages, client)
            await self._safe()
            applied[part.query] = part.place
            for message in messages:
                self._hub.deliver(message, client)
                client.counters.messages_in += 1
            return True

    def _client(self, who: Identity) -> Client:
        """Somebody who publishes and is not connected."""
        client = self._hub.client(HTTP, Outbox(Nowhere(), self._hub.flusher))
        client.identity = who
        client.grants = self._gate.rules.grants(who, "http")
        return client

    def _accept(self, part: Part, messages: list[Message], client: Client) -> None:
        """Take all messages or none, and with them the note that they were taken."""
        hub = self._hub
        for message in messages:
            refused = hub.refusal(message, client, acknowledged=True)
            if refused is not None:
                client.counters.drop(refused)
                reason = UNWRITABLE if refused == UNAVAILABLE else f"{message.channel}: {refused}"
                raise Rejected(STATUS.get(refused, 400), reason)
        recorder = hub.recorder
        if recorder is not None:
            recorder.together(True)
            for message in messages:
                hub.record(message, client, recorder)
            recorder.applied(PREFIX + part.query, f"{part.batch}:{part.number}")
            recorder.together(False)

    async def _safe(self) -> None:
        loop = asyncio.get_running_loop()
        safe: asyncio.Future[bool] = loop.create_future()
        self._hub.safe(lambda: safe.set_result(True), lambda: safe.set_result(False))
        if not await safe:
            raise Rejected(503, UNWRITABLE)
