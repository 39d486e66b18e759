"""What a stub or a server needs to know of a service, read from a module that protoc generated (MQTTRPC-74)."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from polywire.protocols.mqttrpc.state import Shape

T = TypeVar("T")


class Method(NamedTuple):
    """A method of a service. ``full_name`` is ``package.Service.Method``, as protobuf has it."""

    name: str
    full_name: str
    shape: Shape
    request: type[Message]
    response: type[Message]


class Service(NamedTuple):
    """A service and its methods by name, in the order of its definition."""

    name: str
    full_name: str
    methods: dict[str, Method]

    def shapes(self) -> dict[str, Shape]:
        """The shape of each method, as ``ServerCalls`` wants them."""
        return {name: method.shape for name, method in self.methods.items()}


def services(module: ModuleType) -> dict[str, Service]:
    """The services a generated module defines, by their names without the package."""
    file = getattr(module, "DESCRIPTOR", None)
    if not isinstance(file, FileDescriptor):
        raise TypeError(f"{module.__name__} is not a module that protoc generated")
    return {name: read_service(descriptor) for name, descriptor in file.services_by_name.items()}


def read_service(descriptor: ServiceDescriptor) -> Service:
    """A service from its descriptor."""
    methods = {method.name: _method(method) for method in descriptor.methods}
    return Service(descriptor.name, descriptor.full_name, methods)


def _method(descriptor: MethodDescriptor) -> Method:
    return Method(
        descriptor.name,
        descriptor.full_name,
        Shape((bool(descriptor.client_streaming), bool(descriptor.server_streaming))),
        GetMessageClass(descriptor.input_type),
        GetMessageClass(descriptor.output_type),
    )


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
