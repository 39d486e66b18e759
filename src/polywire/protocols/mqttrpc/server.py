"""RPC over MQTT for services: an object with the methods of an ordinary protoc-generated service, at any broker.

    class Greeter:
        async def SayHello(self, request):
            return greeter_pb2.HelloReply(message=f"hello, {request.name}")

    greeter = greeter_pb2.DESCRIPTOR.services_by_name["Greeter"]
    async with mqttrpc.server.serve("mqtt://127.0.0.1:1883", greeter, Greeter()):
        await asyncio.Future()

A method that streams its answers is an async generator, or returns an iterable; one whose requests are a stream gets an
async iterator.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from google.protobuf.descriptor import ServiceDescriptor

from polywire.client.errors import Refused
from polywire.client.opening import Opening
from polywire.protocols.mqtt import client as mqtt
from polywire.protocols.mqttrpc.client import PER_CLIENT, QOS, SECONDS, SHARED
from polywire.protocols.mqttrpc.connection import MAX_CALLS, Call, Outcome, ServerCalls
from polywire.protocols.mqttrpc.errors import (
    BAD_REQUEST,
    DRAINING,
    HANDLER_FAILED,
    STREAM_IDLE,
    TIMEOUT,
    TOO_LARGE,
    Failure,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
)
from polywire.protocols.mqttrpc.frames import Decoder, ErrorData, Request, Response, encode, failed
from polywire.protocols.mqttrpc.handlers import Handlers, TypedHandlers
from polywire.protocols.mqttrpc.service import Service, answer_topic, read_service, request_filter, service_topic

IDLE_SECONDS: Final = 60.0
TICK: Final = 0.1
"""Seconds between two looks at deadlines."""

CLOSE_SECONDS: Final = 2.0
"""How long calls under way may take when the service ends."""

MOST_WAITING: Final = 10_000
"""Requests of one stream that may wait for their handler."""

log = logging.getLogger("polywire.mqttrpc")


class _Work:
    """A call and the handler that works on it."""

    def __init__(self, call: Call, topic: str) -> None:
        self.call: Final = call
        self.topic: Final = topic
        self.requests: Final[asyncio.Queue[bytes | None]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def values(self) -> AsyncIterator[bytes]:
        """The requests, as they come."""
        while (value := await self.requests.get()) is not None:
            yield value


class Server:
    """A service at a broker. Made by ``serve``, which says what the arguments are."""

    def __init__(
        self,
        client: mqtt.Client,
        handlers: Handlers,
        name: str,
        *,
        topics: str = SHARED,
        qos: int = QOS,
        max_calls: int = MAX_CALLS,
        timeout: float = SECONDS,
        idle_time: float = IDLE_SECONDS,
    ) -> None:
        self._client = client
        self._handlers = handlers
        self._topic = request_filter(name) if topics == PER_CLIENT else service_topic(name)
        self._qos = qos
        self._idle = int(idle_time * 1000)
        self._calls = ServerCalls(max_calls=max_calls, default_timeout=max(1, round(timeout * 1000)))  # MQTTRPC-17
        self._work: dict[int, _Work] = {}
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take calls from now on."""
        listening = await self._client.subscribe(self._topic, qos=self._qos)
        self._tasks = [
            asyncio.create_task(self._read(listening), name="mqttrpc-requests"),
            asyncio.create_task(self._watch(), name="mqttrpc-deadlines"),
        ]

    async def close(self) -> None:
        """Take no calls any more, and disconnect."""
        try:
            await self.stop()
        finally:
            await self._client.close()

    async def stop(self) -> None:
        """Refuse new calls, give those under way a moment, and take no more."""
        self._closing = True
        under_way = [work.task for work in self._work.values() if work.task is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_SECONDS)
        for work in list(self._work.values()):
            self._fail(work.call, DRAINING, work.topic)
        for task in [*self._tasks, *under_way]:
            task.cancel()
        for task in [*self._tasks, *under_way]:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _read(self, listening: Any) -> None:
        decoder = Decoder()
        async with listening:
            async for message in listening:
                topic = answer_topic(message.topic)
                if topic is None:
                    continue
                try:
                    (frame,) = decoder.feed(message.payload)
                except RemoteProtocolError as error:
                    if isinstance(error.reply, Response):
                        self._publish(topic, error.reply)
                    continue
                if isinstance(frame, Request):
                    self._requested(frame, topic)

    def _requested(self, frame: Request, topic: str) -> None:
        if self._closing and frame.correlation_id not in self._calls:
            self._publish(topic, failed(frame.correlation_id, DRAINING))
            return
        step = self._calls.receive(frame, self._handlers.shapes, asyncio.get_running_loop().time())
        call = step.call
        if step.outcome is Outcome.REFUSED and step.failure is not None:
            if call is None:
                self._publish(topic, failed(frame.correlation_id, step.failure))
            else:
                self._fail(call, step.failure, topic)
        elif step.outcome is Outcome.TAKEN and call is not None:
            if step.started:
                work = _Work(call, topic)
                self._work[call.correlation_id] = work
                work.task = asyncio.create_task(self._run(work), name=f"mqttrpc-{call.method}")
            work = self._work[call.correlation_id]
            if step.item:
                work.requests.put_nowait(frame.value or b"")
            if step.last:
                work.requests.put_nowait(None)
            if work.requests.qsize() > MOST_WAITING:
                self._fail(call, BAD_REQUEST, topic)

    async def _run(self, work: _Work) -> None:
        """Let the handler work, and answer with what it gives."""
        number = work.call.correlation_id
        try:
            await self._answer(work)
        except RpcError as error:
            data = ErrorData(error.code, error.tag, error.user_message, error.retry_after)
            body = error.details  # MQTTRPC-33
            type_url, value = ("", None) if body is None else (body.type_url, body.value)
            self._end(work, Response(number, type_url, value, data, eos=True))
        except Exception:
            # MQTTRPC-66: the caller is told no internals; who runs the service is.
            log.exception("%s.%s failed", self._handlers.name, work.call.method)
            self._end(work, failed(number, HANDLER_FAILED))

    async def _answer(self, work: _Work) -> None:
        number, method = work.call.correlation_id, work.call.method
        if not work.call.shape.streams_responses:
            self._end(work, Response(number, value=await self._handlers.one(method, work.values()), eos=True))
            return
        last = False
        async for value, last in self._handlers.many(method, work.values()):
            response = Response(number, value=value, eos=last)
            if last:
                self._end(work, response)
            else:
                self._calls.answer(response)
                await self._publish(work.topic, response)
        if not last:
            self._end(work, Response(number, eos=True))  # MQTTRPC-53

    def _end(self, work: _Work, response: Response) -> None:
        """The last answer to a call, unless it has one. MQTTRPC-111: one that can't be sent is replaced by an error."""
        number, method = work.call.correlation_id, work.call.method
        try:
            payload = encode(response)
        except LocalProtocolError as error:
            log.error("the answer of %s.%s can't be sent: %s", self._handlers.name, method, error)  # noqa: TRY400 - it says what is wrong
            response = failed(number, TOO_LARGE if response.error_data is None else HANDLER_FAILED)
            payload = encode(response)
        self._work.pop(number, None)
        with contextlib.suppress(LocalProtocolError):  # it has its last answer
            self._calls.answer(response)
            receipt = self._send(work.topic, payload)
            receipt.add_done_callback(lambda sent: self._sent_last(sent, work, response))

    def _sent_last(self, sent: "asyncio.Future[None]", work: _Work, response: Response) -> None:
        """What became of the last answer. MQTTRPC-111: where the broker does not take it, the caller gets an error."""
        error = None if sent.cancelled() else sent.exception()
        if isinstance(error, Refused):
            log.error("the answer of %s.%s was not taken: %s", self._handlers.name, work.call.method, error)
            if response.error_data is None:
                self._publish(work.topic, failed(response.correlation_id, TOO_LARGE))

    def _fail(self, call: Call, failure: Failure, topic: str) -> None:
        """End a call from outside its handler."""
        work = self._work.pop(call.correlation_id, None)
        if work is not None and work.task is not None:
            work.task.cancel()
        response = failed(call.correlation_id, failure)
        with contextlib.suppress(LocalProtocolError):
            self._calls.answer(response)
            self._publish(topic, response)

    def _publish(self, topic: str, response: Response) -> "asyncio.Future[None]":
        return self._send(topic, encode(response))

    def _send(self, topic: str, payload: bytes) -> "asyncio.Future[None]":
        receipt = asyncio.ensure_future(_sent(self._client, topic, payload, self._qos))
        receipt.add_done_callback(_forgotten)
        return receipt

    async def _watch(self) -> None:
        """MQTTRPC-57: end what takes too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            for calls, failure in (
                (self._calls.overdue(loop.time()), TIMEOUT),
                (self._calls.idle(loop.time(), self._idle), STREAM_IDLE),
            ):
                for call in calls:
                    work = self._work.get(call.correlation_id)
                    if work is not None:
                        self._fail(call, failure, work.topic)


def serve(
    url: str | None,
    service: ServiceDescriptor | Service,
    handler: object,
    *,
    name: str | None = None,
    topics: str = SHARED,
    qos: int = QOS,
    max_calls: int = MAX_CALLS,
    timeout: float = SECONDS,
    idle_time: float = IDLE_SECONDS,
    **options: Any,
) -> Opening[Server]:
    """Offer a service at the broker at ``url``: ``async with`` it, or await it and close it yourself.

    ``handler`` has a method for each of the service's, by its name. An ``RpcError`` it raises is the caller's; anything
    else becomes 500 and is logged. ``timeout`` is how many seconds a call may take that does not say so itself,
    ``idle_time`` how many may pass between the requests of a stream. ``name``, ``topics`` and ``options`` are as with
    ``client.connect``.
    """
    if topics not in {SHARED, PER_CLIENT}:
        raise ValueError(f"topics is {topics!r}, and must be {SHARED!r} or {PER_CLIENT!r}")
    known = service if isinstance(service, Service) else read_service(service)
    handlers = TypedHandlers(known, handler)

    async def opened() -> Server:
        client = await mqtt.connect(url, **options)
        server = Server(
            client,
            handlers,
            name or known.name,
            topics=topics,
            qos=qos,
            max_calls=max_calls,
            timeout=timeout,
            idle_time=idle_time,
        )
        try:
            await server.start()
        except BaseException:
            await client.close()
            raise
        return server

    return Opening(opened)


async def _sent(client: mqtt.Client, topic: str, payload: bytes, qos: int) -> None:
    await client.publish(topic, payload, qos=qos)


def _forgotten(future: "asyncio.Future[None]") -> None:
    """An answer that could not be published: its caller's deadline tells it."""
    if not future.cancelled() and future.exception() is not None:
        log.debug("an answer was not published: %s", future.exception())
