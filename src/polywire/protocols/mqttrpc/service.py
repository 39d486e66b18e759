"""Services and their names: the topics they are called on, their methods, and what a protoc-generated module says.

A service has one topic for both directions, or two for each client (MQTTRPC-41, MQTTRPC-42).
"""

from enum import Enum
from types import ModuleType
from typing import Final, NamedTuple

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from polywire.protocols.mqttrpc.errors import LocalProtocolError

MAX_TOPIC: Final = 65_535
"""MQTT's own limit on a topic, in bytes."""

REQUESTS: Final = "rq"
RESPONSES: Final = "rsp"


class Shape(Enum):
    """MQTTRPC-51: which directions of a call are streams: (requests, responses)."""

    UNARY = (False, False)
    CLIENT_STREAMING = (True, False)
    SERVER_STREAMING = (False, True)
    BIDIRECTIONAL = (True, True)

    @property
    def streams_requests(self) -> bool:
        """Whether the caller may send several Requests."""
        return self.value[0]

    @property
    def streams_responses(self) -> bool:
        """Whether the server may send several Responses."""
        return self.value[1]


class Method(NamedTuple):
    """A method of a service. ``full_name`` is ``package.Service.Method``, as protobuf has it."""

    name: str
    full_name: str
    shape: Shape
    request: type[Message]
    response: type[Message]


class Service(NamedTuple):
    """A service and its methods by name, in the order in which they are defined."""

    name: str
    full_name: str
    methods: dict[str, Method]

    def shapes(self) -> dict[str, Shape]:
        """The shape of each method, as ``ServerCalls.receive`` takes them."""
        return {name: method.shape for name, method in self.methods.items()}


def services(module: ModuleType) -> dict[str, Service]:
    """MQTTRPC-74: the services that a generated module defines, by their names without the package."""
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


class MethodName(NamedTuple):
    """A method, and the full name of its service if the ``type_url`` has it."""

    service: str | None
    method: str


def parse_type_url(type_url: str) -> MethodName | None:
    """MQTTRPC-50: the method a ``type_url`` names, or None if it names none.

    ``SayHello``, ``/SayHello`` and ``package.Service/SayHello`` are one method.
    """
    service, _, method = type_url.removeprefix("/").rpartition("/")
    if not is_identifier(method):
        return None
    if not service:
        # What is left of "//SayHello" has an empty service before its slash.
        return MethodName(None, method) if type_url in {method, "/" + method} else None
    if not all(is_identifier(part) for part in service.split(".")):
        return None
    return MethodName(service, method)


def is_identifier(name: str) -> bool:
    """Whether protobuf accepts this as the name of a method, a service or a part of a package."""
    return name.isascii() and name.isidentifier()


class ClientTopic(NamedTuple):
    """A topic of the option ``topics="per-client"``, taken apart. ``direction`` is ``rq`` or ``rsp``."""

    client_id: str
    service: str
    direction: str


def service_topic(service: str) -> str:
    """MQTTRPC-41: the topic on which a service is called, and answers."""
    return _checked("/" + _level(service, "service name"))


def service_of(topic: str) -> str | None:
    """MQTTRPC-43: the service a topic belongs to, or None if it is not of the form ``/<name>``."""
    name = topic[1:]
    return name if topic[:1] == "/" and _problem(name) is None else None


def request_topic(client_id: str, service: str) -> str:
    """MQTTRPC-42: where this client publishes its Requests, with topics per client."""
    return _client_topic(client_id, service, REQUESTS)


def response_topic(client_id: str, service: str) -> str:
    """MQTTRPC-42: where this client receives Responses, with topics per client."""
    return _client_topic(client_id, service, RESPONSES)


def request_filter(service: str) -> str:
    """What a server subscribes to in order to serve all clients, with topics per client."""
    return _checked(f"+/{_level(service, 'service name')}/{REQUESTS}")


def client_topic_of(topic: str) -> ClientTopic | None:
    """The parts of a topic per client, or None if it is not one."""
    parts = topic.split("/")
    if len(parts) != 3 or parts[2] not in {REQUESTS, RESPONSES} or parts[0][:1] == "$":
        return None
    if _problem(parts[0]) is not None or _problem(parts[1]) is not None:
        return None
    return ClientTopic(parts[0], parts[1], parts[2])


def answer_topic(topic: str) -> str | None:
    """MQTTRPC-02: where the Responses to a Request on ``topic`` go, or None if it is not a topic for Requests."""
    if service_of(topic) is not None:
        return topic
    parts = client_topic_of(topic)
    if parts is None or parts.direction != REQUESTS:
        return None
    return response_topic(parts.client_id, parts.service)


def _client_topic(client_id: str, service: str, direction: str) -> str:
    if client_id[:1] == "$":
        # A server's subscription starts with "+", which by MQTT's rules does not match a level starting with "$".
        raise LocalProtocolError(f"the client id {client_id!r} starts with '$'", rule="MQTTRPC-42")
    return _checked(f"{_level(client_id, 'client id')}/{_level(service, 'service name')}/{direction}")


def _level(name: str, what: str) -> str:
    wrong = _problem(name)
    if wrong is not None:
        raise LocalProtocolError(f"the {what} {name!r} {wrong}, so it can't be a level of a topic", rule="MQTTRPC-43")
    return name


def _problem(name: str) -> str | None:
    """Why a name can't be one level of a topic."""
    if not name:
        return "is empty"
    for character in "/+#\0":
        if character in name:
            return f"contains {character!r}"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "can't be written as UTF-8"
    return None


def _checked(topic: str) -> str:
    size = len(topic.encode())
    if size > MAX_TOPIC:
        raise LocalProtocolError(f"the topic has {size} bytes, more than {MAX_TOPIC}", rule="MQTTRPC-43")
    return topic
