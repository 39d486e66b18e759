"""RPC over MQTT for callers: a stub made of an ordinary protoc-generated service, over any MQTT 3.1.1 broker.

    greeter = greeter_pb2.DESCRIPTOR.services_by_name["Greeter"]
    async with mqttrpc.client.connect("mqtt://127.0.0.1:1883", greeter) as stub:
        reply = await stub.SayHello(greeter_pb2.HelloRequest(name="Anna"), timeout=5)

A method that streams its answers is iterated (``async for``). One that streams its requests gets an iterable or an
async iterable of them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from google.protobuf import any_pb2
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from polywire.client.errors import ClientError, Closed, Timeout
from polywire.client.opening import Opening
from polywire.client.receipt import Receipt
from polywire.protocols.mqtt import client as mqtt
from polywire.protocols.mqttrpc.connection import MAX_CALLS, ClientCalls, CorrelationIds, Outcome, UnknownWarnings
from polywire.protocols.mqttrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError, retry_at
from polywire.protocols.mqttrpc.frames import DEFAULT_TIMEOUT, Decoder, Request, Response, encode, from_seconds
from polywire.protocols.mqttrpc.handlers import write_requests
from polywire.protocols.mqttrpc.service import (
    Method,
    Service,
    Shape,
    read_service,
    request_topic,
    response_topic,
    service_topic,
)

QOS: Final = 1  # MQTTRPC-72
SECONDS: Final = DEFAULT_TIMEOUT / 1000
MOST_WAITING: Final = 10_000
"""Answers of one stream that may wait to be taken; with more of them its call ends."""

SHARED: Final = "shared"
PER_CLIENT: Final = "per-client"

log = logging.getLogger("polywire.mqttrpc")


class Caller:
    """Calls on one service's topic, by names and octets; ``Stub`` puts types around it."""

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
        """Listen for answers."""
        listening = await self._client.subscribe(self._responses, qos=self._qos)
        self._reader = asyncio.create_task(self._read(listening), name="mqttrpc-answers")

    async def close(self) -> None:
        """Wait for no answer any more, and disconnect."""
        await self.stop()
        await self._client.close()

    async def stop(self) -> None:
        """Wait for no answer any more; whoever does gets ``Closed``."""
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
        """The Responses of a call, as they come; those with error data are raised.

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
                request = Request(number, method, requests, True, timeout, unit)
                self._calls.start(request, shape, loop.time())
                receipt = self._publish(request)
                sender = asyncio.create_task(_told(receipt, answers))
            else:
                first = Request(number, method, b"", False, timeout, unit)
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
                receipt.withdraw()  # it waits for a connection still, and nobody for its answer
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
        """The Requests of a call, as they come. ``first`` holds what the first one has besides its value.

        Where the last value is not known to be the last, a Request without a body ends the stream (MQTTRPC-106).
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
                error = LocalProtocolError(f"the stream of requests to {method} has no element", rule="MQTTRPC-95")
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
                        log.debug("what came on %s is no answer: %s", self._responses, error)
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
        if answers.qsize() >= MOST_WAITING:
            self._calls.end(number)
            answers.put_nowait(RpcError(413, "overrun", "More answers wait than can be kept; take them faster."))
        else:
            answers.put_nowait(frame)


class Stub:
    """The methods of a service, as attributes. ``timeout`` is in seconds, for a whole call."""

    def __init__(self, caller: Caller, service: Service, timeout: float) -> None:
        self._caller = caller
        self._timeout = timeout
        self.service: Final = service
        for method in service.methods.values():
            setattr(self, method.name, self._method(method))

    async def close(self) -> None:
        """Disconnect."""
        await self._caller.close()

    def discarded(self) -> int:
        """How many Responses were discarded because their correlation ids are unknown."""
        return self._caller.unknown

    def __getattr__(self, name: str) -> Any:
        # Only names that are not there come here: types of stubs are made at run time.
        raise AttributeError(f"{self.service.full_name} has no method {name}; it has {', '.join(self.service.methods)}")

    def _method(self, method: Method) -> Callable[..., Any]:
        streams_responses = method.shape.streams_responses

        async def one(request: Any, *, timeout: float | None = None, retries: int = 0) -> Message:  # noqa: ASYNC109
            """One answer. A call that failed and may be tried again is, up to ``retries`` times, when it may."""
            loop = asyncio.get_running_loop()
            while True:
                try:
                    async with contextlib.aclosing(self._responses(method, request, timeout)) as responses:
                        async for response in responses:
                            return response
                except RpcError as error:
                    again = retry_at(loop.time(), error.retry_after, asked=retries > 0)
                    if again is None:
                        raise
                    retries -= 1
                    await asyncio.sleep(again - loop.time())
                else:
                    raise RpcError(502, "no-answer", "The service ended the call without an answer.")

        def many(request: Any, *, timeout: float | None = None) -> AsyncIterator[Message]:
            """The answers as they come."""
            return self._responses(method, request, timeout)

        call = many if streams_responses else one
        call.__name__ = method.name
        return call

    async def _responses(self, method: Method, request: Any, seconds: float | None) -> AsyncGenerator[Message]:
        given = write_requests(method, request)
        call = self._caller.call(method.name, method.shape, given, self._timeout if seconds is None else seconds)
        async with contextlib.aclosing(call) as answers:
            async for answer in answers:
                message = method.response()
                try:
                    message.ParseFromString(answer.value or b"")
                except DecodeError as error:
                    raise RpcError(502, "bad-response", f"The answer is no {method.response.__name__}.") from error
                yield message


def connect(
    url: str | None,
    service: ServiceDescriptor | Service,
    *,
    name: str | None = None,
    topics: str = SHARED,
    timeout: float = SECONDS,
    qos: int = QOS,
    max_calls: int = MAX_CALLS,
    **options: Any,
) -> Opening[Stub]:
    """A stub for the service behind the broker at ``url``: ``async with`` it, or await it and close it yourself.

    ``name`` is what its topic is called, by default as the service. ``topics="per-client"`` uses two topics for each
    client instead of a shared one. ``options`` are those of ``mqtt.connect``.
    """
    if topics not in {SHARED, PER_CLIENT}:
        raise ValueError(f"topics is {topics!r}, and must be {SHARED!r} or {PER_CLIENT!r}")
    known = service if isinstance(service, Service) else read_service(service)

    async def opened() -> Stub:
        client = await mqtt.connect(url, **options)
        caller = Caller(client, name or known.name, topics=topics, qos=qos, max_calls=max_calls)
        try:
            await caller.start()
        except BaseException:
            await client.close()
            raise
        return Stub(caller, known, timeout)

    return Opening(opened)


def _details(response: Response) -> any_pb2.Any | None:
    """The body of a Response with error data: what else it says about the error."""
    if response.value is None:
        return None
    return any_pb2.Any(type_url=response.type_url, value=response.value)


async def _told(receipt: Receipt, answers: "asyncio.Queue[Response | Exception]") -> None:
    """Whoever waits for the answer is told where the request can't be sent."""
    try:
        await receipt
    except ClientError as error:
        answers.put_nowait(error)
