"""What answers the calls of a service: by names and octets, and with the types of a protoc-generated module around it.

``server`` asks ``Handlers``; ``TypedHandlers`` is one made of an object with the service's methods.
"""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from polywire.protocols.mqttrpc.errors import BAD_REQUEST, RpcError
from polywire.protocols.mqttrpc.service import Method, Service, Shape

T = TypeVar("T")


class Handlers(Protocol):
    """A service. An ``RpcError`` it raises is the caller's; anything else is logged and told as 500."""

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


class TypedHandlers:
    """An object with a method for each of the service's, by its name."""

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
        """What the method is called with: a message, or a stream of them."""
        method = self._methods[name]
        if method.shape.streams_requests:
            return _messages(method, requests)
        return read_message(method, await anext(requests))


async def _messages(method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    async for value in requests:
        yield read_message(method, value)


def read_message(method: Method, value: bytes) -> Message:
    """A request as its type; ``RpcError`` 400 where it is not one."""
    message = method.request()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise RpcError(BAD_REQUEST.code, BAD_REQUEST.tag, f"The request is no {method.request.__name__}.") from error
    return message


async def with_last(values: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[tuple[T, bool]]:
    """Each value, and whether it is known to be the last (MQTTRPC-106).

    An iterable is read one value ahead. With an async one that could mean to wait, so none of its values is marked.
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
            yield held.pop(), False  # it was there before the iterable failed
        raise
    if held:
        yield held.pop(), True


def write_requests(method: Method, request: Any) -> AsyncIterator[tuple[bytes, bool]] | bytes:
    """What is to be sent, serialized, the values of a stream as ``with_last`` gives them.

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
