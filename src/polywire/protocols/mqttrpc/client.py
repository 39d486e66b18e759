"""RPC over MQTT with the types of an ordinary protoc-generated service, over any MQTT 3.1.1 broker.

A program that calls has a stub:

    greeter = greeter_pb2.DESCRIPTOR.services_by_name["Greeter"]
    async with mqttrpc.client.connect("mqtt://127.0.0.1:1883", greeter) as stub:
        reply = await stub.SayHello(greeter_pb2.HelloRequest(name="Anna"), timeout=5)

A program that serves has an object with the service's methods:

    class Greeter:
        async def SayHello(self, request):
            return greeter_pb2.HelloReply(message=f"hello, {request.name}")

    async with mqttrpc.server.serve("mqtt://127.0.0.1:1883", greeter, Greeter()):
        await asyncio.Future()

A stub's method that streams its answers is iterated (``async for``); in the service it is an async generator, or
returns an iterable. A method that streams its requests takes an iterable or an async iterable of them, and in the
service an async iterator.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from polywire.client.transport import Opening
from polywire.protocols.mqtt import client as mqtt
from polywire.protocols.mqttrpc.connection import MAX_CALLS
from polywire.protocols.mqttrpc.errors import BAD_REQUEST, RpcError, retry_at
from polywire.protocols.mqttrpc.peer import IDLE_SECONDS, PER_CLIENT, QOS, SECONDS, SHARED, Caller, Server
from polywire.protocols.mqttrpc.service import Method, Service, read_service

__all__ = ["Caller", "Stub", "connect"]  # what a service needs is in server.py

T = TypeVar("T")


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
        # Called only for names that do not exist. mypy needs it: a stub's methods are made at run time.
        raise AttributeError(f"{self.service.full_name} has no method {name}; it has {', '.join(self.service.methods)}")

    def _method(self, method: Method) -> Callable[..., Any]:
        streams_responses = method.shape.streams_responses

        async def one(request: Any, *, timeout: float | None = None, retries: int = 0) -> Message:  # noqa: ASYNC109
            """One answer. A call that failed is retried up to ``retries`` times, if and when its error allows it."""
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
            """The answers, as they arrive."""
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
                    raise RpcError(502, "bad-response", f"The answer is not a {method.response.__name__}.") from error
                yield message


class TypedHandlers:
    """An object with a method for each method of the service, with the same name, as ``Handlers``."""

    def __init__(self, service: Service, handler: object) -> None:
        missing = [method for method in service.methods if not callable(getattr(handler, method, None))]
        if missing:
            raise TypeError(f"{type(handler).__name__} lacks methods of {service.full_name}: {', '.join(missing)}")
        self.name = service.full_name
        self.shapes = service.shapes()
        self._methods = service.methods
        self._handler = handler

    async def one(self, method: str, requests: AsyncIterator[bytes], /) -> bytes:
        """The answer of a method that gives one."""
        answer = getattr(self._handler, method)(await self._given(method, requests))
        message: Message = await answer if inspect.isawaitable(answer) else answer
        return message.SerializeToString()

    async def many(self, method: str, requests: AsyncIterator[bytes], /) -> AsyncIterator[tuple[bytes, bool]]:
        """The answers of a method that gives several: it is an async generator, or returns an iterable."""
        given = getattr(self._handler, method)(await self._given(method, requests))
        answers = await given if inspect.isawaitable(given) else given
        async for message, last in with_last(answers):
            yield message.SerializeToString(), last

    async def _given(self, name: str, requests: AsyncIterator[bytes]) -> Any:
        """The method's argument: a message, or a stream of them."""
        method = self._methods[name]
        if method.shape.streams_requests:
            return _messages(method, requests)
        return read_message(method, await anext(requests))


async def _messages(method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    async for value in requests:
        yield read_message(method, value)


def read_message(method: Method, value: bytes) -> Message:
    """A request as its type; ``RpcError`` 400 if it is not one."""
    message = method.request()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise RpcError(BAD_REQUEST.code, BAD_REQUEST.tag, f"The request is no {method.request.__name__}.") from error
    return message


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
    """A stub for a service at the broker at ``url``: ``async with`` it, or await it and close it yourself.

    ``name`` is the name in its topic, by default that of the service. ``topics="per-client"`` uses two topics for each
    client instead of a shared one. ``options`` are those of ``mqtt.connect``.
    """
    known = _checked(service, topics)

    async def opened() -> Stub:
        client = await mqtt.connect(url, **options)
        try:
            caller = Caller(client, name or known.name, topics=topics, qos=qos, max_calls=max_calls)
            await caller.start()
        except BaseException:
            await client.close()
            raise
        return Stub(caller, known, timeout)

    return Opening(opened)


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

    ``handler`` has a method for each method of the service, with the same name. An ``RpcError`` it raises goes to the
    caller; anything else is logged and becomes 500. ``timeout`` is how many seconds a call without a timeout may take,
    ``idle_time`` how many may pass between the requests of a stream. ``name``, ``topics`` and ``options`` are those of
    ``client.connect``.
    """
    known = _checked(service, topics)
    handlers = TypedHandlers(known, handler)

    async def opened() -> Server:
        client = await mqtt.connect(url, **options)
        try:
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
            await server.start()
        except BaseException:
            await client.close()
            raise
        return server

    return Opening(opened)


async def with_last(values: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[tuple[T, bool]]:
    """Each value, and whether it is known to be the last (MQTTRPC-106).

    An iterable is read one value ahead. With an async one that could mean waiting, so none of its values is marked.
    """
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value, False
        return
    held: list[T] = []
    try:
        for value in values:
            if held:
                yield held.pop(), False
            held.append(value)
    except Exception:
        if held:
            yield held.pop(), False  # it was read before the iterable failed
        raise
    if held:
        yield held.pop(), True


def write_requests(method: Method, request: Any) -> AsyncIterator[tuple[bytes, bool]] | bytes:
    """The serialized request, or the values of a stream as ``with_last`` gives them.

    A message of another type is refused before it is sent.
    """

    def serialized(message: Any) -> bytes:
        if not isinstance(message, method.request):
            raise TypeError(f"{method.name} takes {method.request.__name__}, not {type(message).__name__}")
        return message.SerializeToString()

    if not method.shape.streams_requests:
        return serialized(request)

    if not isinstance(request, AsyncIterable | Iterable):
        name = method.request.__name__
        raise TypeError(f"{method.name} takes an iterable or async iterable of {name}, not {type(request).__name__}")

    async def each() -> AsyncIterator[tuple[bytes, bool]]:
        async for message, last in with_last(request):
            yield serialized(message), last

    return each()


def _checked(service: ServiceDescriptor | Service, topics: str) -> Service:
    if topics not in {SHARED, PER_CLIENT}:
        raise ValueError(f"topics is {topics!r}, and must be {SHARED!r} or {PER_CLIENT!r}")
    return service if isinstance(service, Service) else read_service(service)
