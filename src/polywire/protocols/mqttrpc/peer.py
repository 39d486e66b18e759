"""RPC over MQTT for programs, by names and bytes: ``Caller`` makes calls, ``Server`` answers them.

Both use any MQTT 3.1.1 broker through an MQTT client. ``client.py`` adds the types of a protoc-generated service.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, Protocol

from google.protobuf import any_pb2

from polywire.client.errors import ClientError, Closed, ConnectionLost, Refused, Timeout
from polywire.client.outgoing import Receipt
from polywire.errors import LocalProtocolError as AnyLocalProtocolError
from polywire.protocols.mqtt import client as mqtt
from polywire.protocols.mqttrpc.connection import (
    MAX_CALLS,
    Call,
    ClientCalls,
    CorrelationIds,
    Outcome,
    ServerCalls,
    UnknownWarnings,
)
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
from polywire.protocols.mqttrpc.frames import (
    DEFAULT_TIMEOUT,
    Decoder,
    ErrorData,
    Request,
    Response,
    encode,
    failed,
    from_seconds,
)
from polywire.protocols.mqttrpc.service import (
    Shape,
    answer_topic,
    request_filter,
    request_topic,
    response_topic,
    service_topic,
)

QOS: Final = 1  # MQTTRPC-72
SECONDS: Final = DEFAULT_TIMEOUT / 1000
IDLE_SECONDS: Final = 60.0
TICK: Final = 0.1
"""Seconds between two checks of deadlines."""

CLOSE_SECONDS: Final = 2.0
"""How long calls in flight may take when the service is closed."""

MAX_WAITING: Final = 10_000
"""Messages of one stream that may wait to be taken; with more of them its call fails."""

SHARED: Final = "shared"
PER_CLIENT: Final = "per-client"

log = logging.getLogger("polywire.mqttrpc")


class Caller:
    """Calls on one service's topic, by names and bytes. ``Stub`` adds the types."""

    def __init__(
        self, client: mqtt.Client, name: str, *, topics: str = SHARED, qos: int = QOS, max_calls: int = MAX_CALLS
    ) -> None:
        self._client = client
        self._qos = qos
        per_client = topics == PER_CLIENT
        self._requests = request_topic(client.client_id, name) if per_client else service_topic(name)
        self._responses = response_topic(client.client_id, name) if per_client else self._requests
        self._ids = CorrelationIds()
        self._calls = ClientCalls(max_calls=max_calls)
        self._warnings = UnknownWarnings()
        self._waiting: dict[int, asyncio.Queue[Response | Exception]] = {}
        self._reader: asyncio.Task[None] | None = None

    @property
    def unknown(self) -> int:
        """How many Responses with unknown correlation ids were discarded (MQTTRPC-71)."""
        return self._calls.unknown

    async def start(self) -> None:
        """Subscribe to the answers."""
        listening = await self._client.subscribe(self._responses, qos=self._qos)
        self._reader = asyncio.create_task(self._read(listening), name="mqttrpc-answers")

    async def close(self) -> None:
        """Stop waiting for answers, and disconnect."""
        await self.stop()
        await self._client.close()

    async def stop(self) -> None:
        """Stop waiting for answers. Calls in flight raise ``Closed``."""
        for answers in self._waiting.values():
            answers.put_nowait(Closed("the client was closed", sent=True))
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def call(
        self, method: str, shape: Shape, requests: AsyncIterator[tuple[bytes, bool]] | bytes, seconds: float
    ) -> AsyncGenerator[Response]:
        """The Responses of a call, as they arrive; those with error data are raised.

        ``requests`` is the one request, or each value of a stream with whether it is known to be the last.
        """
        loop = asyncio.get_running_loop()
        number = self._ids.new(self._calls)
        timeout, unit = from_seconds(seconds)
        sender: asyncio.Future[None] | None = None
        receipt: Receipt | None = None
        answers: asyncio.Queue[Response | Exception] = asyncio.Queue()
        self._waiting[number] = answers
        due = loop.time() + seconds
        try:
            if isinstance(requests, bytes):
                request = Request(number, method, requests, eos=True, timeout=timeout, timeout_unit=unit)
                self._calls.start(request, shape, loop.time())
                receipt = self._publish(request)
                sender = asyncio.create_task(_report_failure(receipt, answers))
            else:
                first = Request(number, method, b"", eos=False, timeout=timeout, timeout_unit=unit)
                sender = asyncio.create_task(self._send_stream(first, shape, requests, answers))
            while True:
                try:
                    async with asyncio.timeout_at(due):
                        answer = await answers.get()
                except TimeoutError:
                    sent = receipt is None or receipt.withdraw is None
                    raise Timeout(f"the call of {method}", seconds, sent=sent) from None  # MQTTRPC-58
                if isinstance(answer, Exception):
                    raise answer
                if answer.error_data is not None:
                    raise answer.error_data.error(_details(answer))
                last = answer.eos or not shape.streams_responses
                if not (last and answer.value is None and shape.streams_responses):  # MQTTRPC-53
                    yield answer
                if last:
                    return
        finally:
            if receipt is not None and receipt.withdraw is not None:
                receipt.withdraw()  # it is still waiting for a connection, and its answer is no longer awaited
            if sender is not None:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sender
            self._calls.end(number)
            del self._waiting[number]

    async def _send_stream(
        self,
        first: Request,
        shape: Shape,
        requests: AsyncIterator[tuple[bytes, bool]],
        answers: "asyncio.Queue[Response | Exception]",
    ) -> None:
        """Send the Requests of a call, as they arrive. ``first`` holds what the first one has besides its value.

        If the last value is not known to be the last, a Request without a body ends the stream (MQTTRPC-106).
        """
        number, method = first.correlation_id, first.type_url
        started = last = False
        try:
            async for value, last in requests:
                if not started:
                    request = Request(number, method, value, last, first.timeout, first.timeout_unit)
                    self._calls.start(request, shape, asyncio.get_running_loop().time())
                    started = True
                else:
                    request = Request(number, method, value, last)
                    self._calls.send(request)
                await self._publish(request)
            if not started:
                error = LocalProtocolError(f"the stream of requests to {method} is empty", rule="MQTTRPC-95")
                answers.put_nowait(error)
            elif not last:
                end = Request(number, eos=True)
                self._calls.send(end)
                await self._publish(end)
        except Exception as failure:  # noqa: BLE001 - it is raised where the answer is awaited
            answers.put_nowait(failure)

    def _publish(self, request: Request) -> Receipt:
        return self._client.publish(self._requests, encode(request), qos=self._qos)

    async def _read(self, listening: Any) -> None:
        decoder = Decoder()
        try:
            async with listening:
                async for message in listening:
                    try:
                        (frame,) = decoder.feed(message.payload)
                    except RemoteProtocolError as error:
                        log.debug("a payload on %s is not a message: %s", self._responses, error)
                        continue
                    now = asyncio.get_running_loop().time()
                    step = self._calls.receive(frame, now)
                    if step.outcome is Outcome.UNKNOWN and isinstance(frame, Response):
                        self._warnings.add(frame.correlation_id, message.topic, now)
                    elif step.outcome is Outcome.TAKEN and step.call is not None and isinstance(frame, Response):
                        self._answered(step.call.correlation_id, frame)
        except ClientError as error:
            for answers in self._waiting.values():
                answers.put_nowait(error)

    def _answered(self, number: int, frame: Response) -> None:
        answers = self._waiting.get(number)
        if answers is None:
            return
        if answers.qsize() >= MAX_WAITING:
            self._calls.end(number)
            answers.put_nowait(RpcError(413, "overrun", "Too many answers are waiting; read them faster."))
        else:
            answers.put_nowait(frame)


class Handlers(Protocol):
    """A service. An ``RpcError`` it raises goes to the caller; anything else is logged and answered with 500."""

    @property
    def name(self) -> str:
        """What it is called in the log."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Its methods."""

    async def one(self, method: str, requests: AsyncIterator[bytes], /) -> bytes:
        """The answer of a method that gives one."""

    def many(self, method: str, requests: AsyncIterator[bytes], /) -> AsyncIterator[tuple[bytes, bool]]:
        """The answers of a method that gives several, each with whether it is known to be the last."""


class _Work:
    """A call and the handler that works on it."""

    def __init__(self, call: Call, topic: str) -> None:
        self.call: Final = call
        self.topic: Final = topic
        self.requests: Final[asyncio.Queue[bytes | None]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def values(self) -> AsyncIterator[bytes]:
        """The requests, as they arrive."""
        while (value := await self.requests.get()) is not None:
            yield value


class _UnsentError(Exception):
    """An element of a stream of answers was not sent; the reason has been logged."""


class Server:
    """A service at a broker. Made by ``serve``, which explains the arguments."""

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
        """Accept calls from now on."""
        listening = await self._client.subscribe(self._topic, qos=self._qos)
        self._tasks = [
            asyncio.create_task(self._read(listening), name="mqttrpc-requests"),
            asyncio.create_task(self._watch(), name="mqttrpc-deadlines"),
        ]

    async def close(self) -> None:
        """Refuse new calls, give those in flight two seconds, and disconnect."""
        try:
            await self.stop()
        finally:
            await self._client.close()

    async def stop(self) -> None:
        """Refuse new calls, give those in flight two seconds, and unsubscribe."""
        self._closing = True
        in_flight = [work.task for work in self._work.values() if work.task is not None]
        if in_flight:
            await asyncio.wait(in_flight, timeout=CLOSE_SECONDS)
        for work in list(self._work.values()):
            self._fail(work.call, DRAINING, work.topic)
        for task in [*self._tasks, *in_flight]:
            task.cancel()
        for task in [*self._tasks, *in_flight]:
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
                        self._send(topic, encode(error.reply))
                    continue
                if isinstance(frame, Request):
                    self._requested(frame, topic)

    def _requested(self, frame: Request, topic: str) -> None:
        if self._closing and frame.correlation_id not in self._calls:
            self._send(topic, encode(failed(frame.correlation_id, DRAINING)))
            return
        step = self._calls.receive(frame, self._handlers.shapes, asyncio.get_running_loop().time())
        call = step.call
        if step.outcome is Outcome.REFUSED and step.failure is not None:
            if call is None:
                self._send(topic, encode(failed(frame.correlation_id, step.failure)))
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
            if work.requests.qsize() > MAX_WAITING:
                self._fail(call, BAD_REQUEST, topic)

    async def _run(self, work: _Work) -> None:
        """Run the handler, and answer with what it gives."""
        number = work.call.correlation_id
        try:
            await self._answer(work)
        except _UnsentError:
            self._end(work, failed(number, TOO_LARGE))
        except RpcError as error:
            self._end(work, error)
        except Exception:
            # MQTTRPC-66: the caller sees no internals; the log does.
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
                await self._send_element(work, response)
        if not last:
            self._end(work, Response(number, eos=True))  # MQTTRPC-53

    async def _send_element(self, work: _Work, response: Response) -> None:
        """Send an answer that is not the last. MQTTRPC-111: one that can't be sent ends the call."""
        self._calls.answer(response)
        try:
            await self._send(work.topic, encode(response))
        except (AnyLocalProtocolError, Refused) as error:
            self._log_unsent(work, error)
            raise _UnsentError from error

    def _end(self, work: _Work, answer: Response | RpcError) -> None:
        """Send the last answer to a call, unless it has one. MQTTRPC-111: one that can't be sent becomes an error."""
        number = work.call.correlation_id
        self._work.pop(number, None)
        try:
            response = _error_response(number, answer) if isinstance(answer, RpcError) else answer
            payload = encode(response)
        except (LocalProtocolError, AttributeError, TypeError, ValueError) as error:
            # All but the first: the handler's error has a field of another type.
            self._log_unsent(work, error)
            response = failed(number, HANDLER_FAILED if isinstance(answer, RpcError) else TOO_LARGE)
            payload = encode(response)
        with contextlib.suppress(LocalProtocolError):  # it has its last answer
            self._calls.answer(response)
            sending = self._send(work.topic, payload)
            sending.add_done_callback(lambda sent: self._sent_last(sent, work, response))

    def _sent_last(self, sent: "asyncio.Future[None]", work: _Work, response: Response) -> None:
        """What became of the last answer. MQTTRPC-111: if it can't be sent, the caller gets an error instead."""
        error = None if sent.cancelled() else sent.exception()
        if error is None or isinstance(error, Closed | ConnectionLost):
            return
        self._log_unsent(work, error)
        if response.error_data is None:
            failure = TOO_LARGE if isinstance(error, AnyLocalProtocolError | Refused) else HANDLER_FAILED
            self._send(work.topic, encode(failed(response.correlation_id, failure)))

    def _log_unsent(self, work: _Work, error: BaseException) -> None:
        log.error("the answer of %s.%s can't be sent: %s", self._handlers.name, work.call.method, error)

    def _fail(self, call: Call, failure: Failure, topic: str) -> None:
        """End a call from outside its handler."""
        work = self._work.pop(call.correlation_id, None)
        if work is not None and work.task is not None:
            work.task.cancel()
        response = failed(call.correlation_id, failure)
        with contextlib.suppress(LocalProtocolError):
            self._calls.answer(response)
            self._send(topic, encode(response))

    def _send(self, topic: str, payload: bytes) -> "asyncio.Future[None]":
        sending = asyncio.ensure_future(_publish(self._client, topic, payload, self._qos))
        sending.add_done_callback(_log_unpublished)
        return sending

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


def _details(response: Response) -> any_pb2.Any | None:
    """The body of a Response with error data: more about the error."""
    if response.value is None:
        return None
    return any_pb2.Any(type_url=response.type_url, value=response.value)


def _error_response(number: int, error: RpcError) -> Response:
    """MQTTRPC-33: the details of an error are the body of its Response."""
    data = ErrorData(error.code, error.tag, error.user_message, error.retry_after)
    body = error.details
    return Response(number, "" if body is None else body.type_url, None if body is None else body.value, data, eos=True)


async def _report_failure(receipt: Receipt, answers: "asyncio.Queue[Response | Exception]") -> None:
    """If the request can't be sent, the one waiting for its answer gets the error."""
    try:
        await receipt
    except ClientError as error:
        answers.put_nowait(error)


async def _publish(client: mqtt.Client, topic: str, payload: bytes, qos: int) -> None:
    await client.publish(topic, payload, qos=qos)


def _log_unpublished(future: "asyncio.Future[None]") -> None:
    """An answer that could not be published: its caller runs into its deadline."""
    if not future.cancelled() and future.exception() is not None:
        log.debug("an answer was not published: %s", future.exception())
