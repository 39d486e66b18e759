"""RPC over MQTT as its document says it, byte for byte, on a running hub.

Every example and every normative sentence of the document is a case: its payloads are written by hand, and so are the
MQTT packets around them. At the other end is a service or a stub of the library. What can't be done as the document
says is in ``CANNOT``, with the reason, and on the protocol's page. The last tests have a client that others wrote:
Eclipse Paho, with envelopes that protoc made of a definition of their own.
"""

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import pytest
from google.protobuf import any_pb2
from websockets.sync.client import connect as websocket

import polywire
from polywire.protocols.mqttrpc import RpcError
from polywire.protocols.mqttrpc import client as rpc
from polywire.protocols.mqttrpc.server import serve
from tests.hub_process import HubProcess
from tests.interop.paho_client import Paho
from tests.protocols.mqttrpc.protobuf import MY_COOL_SERVICE, compiled
from tests.wires import Plain, connected

SECONDS = 20.0
TOPIC = "/my-cool-service"
PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "mqttrpc.md"

CANNOT = {
    "the schema files the document includes": "which the document includes, are not part of it",
    "a streamed request without any element": "**An empty request stream** has no form",
    "a Request with neither typeUrl, eos nor timeout": "can't be distinguished from a Response on the shared",
}
"""What of the document does not work as it says, and the words for the reason on the page."""

Result = TypeVar("Result")


class Round(NamedTuple):
    """Payloads that are published, and those that are then heard besides them."""

    says: list[bytes]
    hears: list[bytes]


class Case(NamedTuple):
    """A sentence of the document, or what it comes to, and the exchange that shows it."""

    sentence: str
    rounds: list[Round]


REQUESTS = [
    Case(
        "Request may go to /my-cool-service with body typeUrl equal to SayHello and body value equal to HelloRequest",
        [
            Round(
                [b"\x08\x07\x12\x13\x0a\x08SayHello\x12\x07\x0a\x05world"],
                [b"\x08\x07\x12\x10\x12\x0e\x0a\x0cHello, world\x20\x01"],
            )
        ],
    ),
    Case(
        "the same with every field set: five seconds to answer it",
        [
            Round(
                [b"\x08\x07\x12\x13\x0a\x08SayHello\x12\x07\x0a\x05world\x18\x01\x28\x05\x30\x03"],
                [b"\x08\x07\x12\x10\x12\x0e\x0a\x0cHello, world\x20\x01"],
            )
        ],
    ),
    Case(
        "For non-streamed requests eos field is not being taken into account",
        [
            Round(
                [b"\x08\x08\x12\x0f\x0a\x08SayHello\x12\x03\x0a\x01a\x18" + eos],
                [b"\x08\x08\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            )
            for eos in (b"\x00", b"\x01")
        ],
    ),
    Case(
        "a default HelloRequest is a body with nothing but the method",
        [Round([b"\x08\x08\x12\x0a\x0a\x08SayHello"], [b"\x08\x08\x12\x0b\x12\x09\x0a\x07Hello, \x20\x01"])],
    ),
    Case(
        "typeUrl field should match method name: the forms of it, and a method that does not exist",
        [
            Round(
                [b"\x08\x09\x12\x10\x0a\x09/SayHello\x12\x03\x0a\x01a"],
                [b"\x08\x09\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            ),
            Round(
                [b"\x08\x09\x12\x26\x0a\x1fexamples.MyCoolService/SayHello\x12\x03\x0a\x01a"],
                [b"\x08\x09\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            ),
            Round(
                [b"\x08\x09\x12\x06\x0a\x04Wave"],
                [b"\x08\x09\x1a\x2f\x08\x94\x03\x12\x09no-method\x1a\x1fThe service has no such method.\x20\x01"],
            ),
        ],
    ),
    Case(
        "eos is indicated by the eos flag of the last received Request; it is an element",
        [
            Round(
                [
                    b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a",
                    b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01b\x18\x00",
                    b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01c\x18\x01",
                ],
                [b"\x08\x0a\x12\x15\x12\x13\x0a\x11Hello to 3: a|b|c\x20\x01"],
            )
        ],
    ),
    Case(
        "the last Request has no body: it is no element",
        [
            Round(
                [b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a", b"\x08\x0a\x18\x01"],
                [b"\x08\x0a\x12\x11\x12\x0f\x0a\x0dHello to 1: a\x20\x01"],
            )
        ],
    ),
    Case(
        "the last Request has a default body: it is an element, as the only one and as the second",
        [
            Round(
                [b"\x08\x0a\x12\x0a\x0a\x08GreetAll\x18\x01"],
                [b"\x08\x0a\x12\x10\x12\x0e\x0a\x0cHello to 1: \x20\x01"],
            ),
            Round(
                [b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a", b"\x08\x0a\x12\x0a\x0a\x08GreetAll\x18\x01"],
                [b"\x08\x0a\x12\x12\x12\x10\x0a\x0eHello to 2: a|\x20\x01"],
            ),
            Round(
                [b"\x08\x0a\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a", b"\x08\x0a\x12\x00\x18\x01"],
                [b"\x08\x0a\x12\x12\x12\x10\x0a\x0eHello to 2: a|\x20\x01"],
            ),
        ],
    ),
    Case(
        "client will send the next Request of the same type: another one is refused, the rest of its stream dropped",
        [
            Round(
                [
                    b"\x08\x0b\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a",
                    b"\x08\x0b\x12\x0b\x0a\x04Chat\x12\x03\x0a\x01b",
                ],
                [b"\x08\x0b\x1a\x2c\x08\x90\x03\x12\x0bbad-request\x1a\x1aThe request can't be read.\x20\x01"],
            ),
            Round([b"\x08\x0b\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01c\x18\x01"], []),
        ],
    ),
    Case(
        "which request stream the exact stream part belongs to: each Request contains the same correlation_id",
        [
            Round(
                [
                    b"\x08\x0c\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a",
                    b"\x08\x0d\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01x",
                    b"\x08\x0c\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01b\x18\x01",
                ],
                [b"\x08\x0c\x12\x13\x12\x11\x0a\x0fHello to 2: a|b\x20\x01"],
            ),
            Round(
                [b"\x08\x0d\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01y\x18\x01"],
                [b"\x08\x0d\x12\x13\x12\x11\x0a\x0fHello to 2: x|y\x20\x01"],
            ),
        ],
    ),
    Case(
        "correlation_id is set to an unique value: the largest one, and 0, which is the same as none",
        [
            Round(
                [b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x0f\x0a\x08SayHello\x12\x03\x0a\x01a"],
                [b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            ),
            Round(
                [b"\x12\x0f\x0a\x08SayHello\x12\x03\x0a\x01a"],
                [b"\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            ),
            Round(
                [b"\x08\x00\x12\x0f\x0a\x08SayHello\x12\x03\x0a\x01a\x18\x01"],
                [b"\x12\x0c\x12\x0a\x0a\x08Hello, a\x20\x01"],
            ),
        ],
    ),
    Case(
        "timeout indicates that the request should be handled in the specified duration; default is Millisecond",
        [
            Round(
                [b"\x08\x0e\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04slow\x28\x01" + unit],
                [b"\x08\x0e\x1a\x1f\x08\xf8\x03\x12\x07timeout\x1a\x11It took too long.\x20\x01"],
            )
            for unit in (b"", b"\x30\x00", b"\x30\x04")
        ],
    ),
    Case(
        "timeout_unit tells in which unit timeout is measured: Hour, Minute and Second are not over with a Millisecond",
        [
            Round(
                [
                    b"\x08\x0f\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04gate\x28\x01\x30\x01",
                    b"\x08\x10\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04gate\x28\x01\x30\x02",
                    b"\x08\x11\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04gate\x28\x0a\x30\x03",
                    b"\x08\x12\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04slow\x28\x01\x30\x04",
                ],
                [b"\x08\x12\x1a\x1f\x08\xf8\x03\x12\x07timeout\x1a\x11It took too long.\x20\x01"],
            ),
            Round(
                [b"\x08\x13\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04open"],
                [
                    b"\x08\x13\x12\x0f\x12\x0d\x0a\x0bHello, open\x20\x01",
                    b"\x08\x0f\x12\x0f\x12\x0d\x0a\x0bHello, gate\x20\x01",
                    b"\x08\x10\x12\x0f\x12\x0d\x0a\x0bHello, gate\x20\x01",
                    b"\x08\x11\x12\x0f\x12\x0d\x0a\x0bHello, gate\x20\x01",
                ],
            ),
        ],
    ),
    Case(
        "Possible values are Hour, Minute, Second, Millisecond: another unit is refused",
        [
            Round(
                [b"\x08\x14\x12\x0f\x0a\x08SayHello\x12\x03\x0a\x01a\x28\x01\x30\x05"],
                [b"\x08\x14\x1a\x2c\x08\x90\x03\x12\x0bbad-request\x1a\x1aThe request can't be read.\x20\x01"],
            )
        ],
    ),
    Case(
        "a Request has a body: one with a timeout alone is refused, with the end of a stream or without",
        [
            Round(
                [b"\x08\x15\x28\x05" + rest],
                [b"\x08\x15\x1a\x2c\x08\x90\x03\x12\x0bbad-request\x1a\x1aThe request can't be read.\x20\x01"],
            )
            for rest in (b"", b"\x18\x01", b"\x18\x00\x30\x03")
        ],
    ),
    Case(
        "value should be a serialized request body: another one is refused",
        [
            Round(
                [b"\x08\x16\x12\x0d\x0a\x08SayHello\x12\x01\x07"],
                [b"\x08\x16\x1a\x31\x08\x90\x03\x12\x0bbad-request\x1a\x1fThe request is no HelloRequest.\x20\x01"],
            )
        ],
    ),
    Case(
        "everything goes to the same topic: the service ignores what is a Response, by error_data, eos or no typeUrl",
        [
            Round([b"\x08\x17\x12\x03\x12\x01x"], []),
            Round([b"\x08\x17\x12\x0a\x0a\x08SayHello\x20\x00"], []),
            Round([b"\x08\x17\x12\x0a\x0a\x08SayHello\x1a\x00"], []),
        ],
    ),
]

DETAIL = b"\x12\x10\x0a\x06Detail\x12\x06\x0a\x04free"
RESPONSES = [
    Case(
        "eos field marks response as a final Response of streamed response; the service knows the end of a list",
        [
            Round(
                [b"\x08\x20\x12\x13\x0a\x0aGreetOften\x12\x05\x0a\x03a,b"],
                [b"\x08\x20\x12\x05\x12\x03\x0a\x01a", b"\x08\x20\x12\x05\x12\x03\x0a\x01b\x20\x01"],
            )
        ],
    ),
    Case(
        "it does not know the end of a generator that waits: then the final Response has no body",
        [
            Round(
                [b"\x08\x20\x12\x19\x0a\x0aGreetOften\x12\x0b\x0a\x09async:a,b"],
                [
                    b"\x08\x20\x12\x05\x12\x03\x0a\x01a",
                    b"\x08\x20\x12\x05\x12\x03\x0a\x01b",
                    b"\x08\x20\x20\x01",
                ],
            )
        ],
    ),
    Case(
        "a final Response with a default body is an element, and a response stream may have none",
        [
            Round([b"\x08\x20\x12\x11\x0a\x0aGreetOften\x12\x03\x0a\x01-"], [b"\x08\x20\x12\x00\x20\x01"]),
            Round(
                [b"\x08\x20\x12\x13\x0a\x0aGreetOften\x12\x05\x0a\x03a,-"],
                [b"\x08\x20\x12\x05\x12\x03\x0a\x01a", b"\x08\x20\x12\x00\x20\x01"],
            ),
            Round([b"\x08\x20\x12\x0c\x0a\x0aGreetOften"], [b"\x08\x20\x20\x01"]),
        ],
    ),
    Case(
        "Request → EOS, Response → EOS: both are streamed",
        [
            Round([b"\x08\x21\x12\x0b\x0a\x04Chat\x12\x03\x0a\x01a"], [b"\x08\x21\x12\x05\x12\x03\x0a\x01A"]),
            Round([b"\x08\x21\x12\x0b\x0a\x04Chat\x12\x03\x0a\x01b"], [b"\x08\x21\x12\x05\x12\x03\x0a\x01B"]),
            Round([b"\x08\x21\x18\x01"], [b"\x08\x21\x20\x01"]),
        ],
    ),
    Case(
        "In case of error error_data field should be present: code, tag, user_message, retry_after in milliseconds",
        [
            Round(
                [b"\x08\x22\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04busy"],
                [b"\x08\x22\x1a\x18\x08\xad\x03\x12\x04busy\x1a\x0aOne moment\x20\xfa\x01\x20\x01"],
            )
        ],
    ),
    Case(
        "If retry_after value is zero, retry is not allowed",
        [
            Round(
                [b"\x08\x22\x12\x13\x0a\x08SayHello\x12\x07\x0a\x05never"],
                [b"\x08\x22\x1a\x0f\x08\x93\x03\x12\x02no\x1a\x06Nobody\x20\x01"],
            )
        ],
    ),
    Case(
        "user_message is a text to be shown to a user: a failing handler's own words are not",
        [
            Round(
                [b"\x08\x22\x12\x14\x0a\x08SayHello\x12\x08\x0a\x06broken"],
                [b"\x08\x22\x1a\x2a\x08\xf4\x03\x12\x0ehandler-failed\x1a\x15Something went wrong.\x20\x01"],
            )
        ],
    ),
    Case(
        "Optionally Response body can be filled with additional error data",
        [
            Round(
                [b"\x08\x22\x12\x13\x0a\x08SayHello\x12\x07\x0a\x05taken"],
                [b"\x08\x22" + DETAIL + b"\x1a\x15\x08\x99\x03\x12\x05taken\x1a\x09It is one\x20\x01"],
            )
        ],
    ),
    Case(
        "an error ends a streamed response too",
        [
            Round(
                [b"\x08\x22\x12\x14\x0a\x0aGreetOften\x12\x06\x0a\x04a,!,"],
                [
                    b"\x08\x22\x12\x05\x12\x03\x0a\x01a",
                    b"\x08\x22\x1a\x0f\x08\x93\x03\x12\x02no\x1a\x06Nobody\x20\x01",
                ],
            )
        ],
    ),
]

END = Round(
    [b"\x08\x7f\x12\x11\x0a\x08SayHello\x12\x05\x0a\x03end"], [b"\x08\x7f\x12\x0e\x12\x0c\x0a\x0aHello, end\x20\x01"]
)
"""A call after all others: nothing else was heard before its answer."""


class Greeter:
    """The service behind the topic."""

    def __init__(self, module: ModuleType) -> None:
        self._request, self._response = module.HelloRequest, module.HelloResponse
        self._gate = asyncio.Event()

    async def SayHello(self, request: Any) -> Any:  # noqa: N802 - the service's own name
        match request.name:
            case "slow":
                await asyncio.Event().wait()
            case "gate":
                await self._gate.wait()
            case "open":
                self._gate.set()
            case "busy":
                raise RpcError(429, "busy", "One moment", 250)
            case "never":
                raise RpcError(403, "no", "Nobody")
            case "taken":
                detail = any_pb2.Any(type_url="Detail", value=self._request(name="free").SerializeToString())
                raise RpcError(409, "taken", "It is one", details=detail)
            case "broken":
                raise ZeroDivisionError("internal")
        return self._response(greeting=f"Hello, {request.name}")

    async def GreetAll(self, requests: AsyncIterator[Any]) -> Any:  # noqa: N802
        names = [request.name async for request in requests]
        return self._response(greeting=f"Hello to {len(names)}: {'|'.join(names)}")

    def GreetOften(self, request: Any) -> Any:  # noqa: N802
        kind, _, words = request.name.rpartition(":")
        greetings = self._greetings(words)
        return _waiting(greetings) if kind == "async" else greetings

    def _greetings(self, words: str) -> Iterator[Any]:
        for word in words.split(",") if words else ():
            if word == "!":
                raise RpcError(403, "no", "Nobody")
            yield self._response(greeting=word.removeprefix("-"))

    async def Chat(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            yield self._response(greeting=request.name.upper())


async def _waiting(values: Any) -> AsyncIterator[Any]:
    for value in values:
        yield value


class Loop:
    """An event loop in a thread, for the library's end of the line."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self, main: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run it while the test goes on."""
        return asyncio.run_coroutine_threadsafe(main, self._loop)

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """What it returns."""
        return self.start(main).result(SECONDS)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


class Peer(Plain):
    """A raw MQTT connection, subscribed to one topic with QoS 0."""

    def __init__(self, connection: socket.socket, topic: str = TOPIC) -> None:
        super().__init__(connection)
        self._topic = len(topic).to_bytes(2, "big") + topic.encode()
        self.send(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        assert self.expect(4) == b"\x20\x02\x00\x00"
        self.send(b"\x82" + bytes([len(self._topic) + 3]) + b"\x00\x01" + self._topic + b"\x00")
        assert self.expect(5) == b"\x90\x03\x00\x01\x00"

    def publish(self, payload: bytes) -> None:
        """Publish on the topic, with QoS 0."""
        rest = self._topic + payload
        assert len(rest) < 128
        self.send(b"\x30" + bytes([len(rest)]) + rest)

    def hear(self) -> bytes:
        """The payload of the next publication, which is on the topic, too."""
        kind, size = self.expect(2)
        rest = self.expect(size)
        assert (kind, rest[: len(self._topic)]) == (0x30, self._topic)
        return rest[len(self._topic) :]

    def exchange(self, says: list[bytes], hears: list[bytes]) -> None:
        """Publish, and hear exactly these payloads besides what was published."""
        for payload in says:
            self.publish(payload)
        echoes, heard = list(says), list[bytes]()
        while echoes or len(heard) < len(hears):
            payload = self.hear()
            if echoes and payload == echoes[0]:
                del echoes[0]
            else:
                heard.append(payload)
        assert heard == hears


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    thread = Loop()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    definition = MY_COOL_SERVICE.replace("package examples", "package examples.transcripts")
    return compiled(tmp_path_factory.mktemp("protoc"), "transcripts", definition)


@pytest.fixture(scope="module")
def greeter(hub: HubProcess, loop: Loop, module: ModuleType) -> Iterator[HubProcess]:
    """The hub with the document's service on it."""
    with offered(hub, loop, module, TOPIC[1:]):
        yield hub


@contextlib.contextmanager
def offered(hub: HubProcess, loop: Loop, module: ModuleType, name: str, **options: Any) -> Iterator[None]:
    """A service of the library on the hub."""

    async def start() -> Any:
        descriptor = module.DESCRIPTOR.services_by_name["MyCoolService"]
        return await serve(hub.addresses["mqtt"], descriptor, Greeter(module), name=name, **options)

    server = loop.run(start())
    try:
        yield
    finally:
        loop.run(server.close())


@pytest.mark.parametrize("case", [*REQUESTS, *RESPONSES], ids=lambda case: case.sentence)
@pytest.mark.rule(
    "MQTTRPC-01",
    "MQTTRPC-02",
    "MQTTRPC-07",
    "MQTTRPC-09",
    "MQTTRPC-10",
    "MQTTRPC-12",
    "MQTTRPC-18",
    "MQTTRPC-33",
    "MQTTRPC-53",
    "MQTTRPC-76",
    "MQTTRPC-105",
    "MQTTRPC-106",
    "MQTTRPC-107",
    "MQTTRPC-108",
)
def test_a_caller_written_from_the_document(greeter: HubProcess, case: Case) -> None:
    with connected(greeter.addresses["mqtt"]) as wire:
        caller = Peer(wire)
        for says, hears in [*case.rounds, END]:
            caller.exchange(says, hears)


@pytest.mark.rule("MQTTRPC-17")
def test_if_not_present_server_uses_default_timeout_specified_in_its_own_settings(
    hub: HubProcess, loop: Loop, module: ModuleType, name: str
) -> None:
    with offered(hub, loop, module, name, timeout=0.05), connected(hub.addresses["mqtt"]) as wire:
        Peer(wire, f"/{name}").exchange(
            [b"\x08\x07\x12\x12\x0a\x08SayHello\x12\x06\x0a\x04slow"],
            [b"\x08\x07\x1a\x1f\x08\xf8\x03\x12\x07timeout\x1a\x11It took too long.\x20\x01"],
        )


class Called:
    """A stub of the library, and the service on its topic, written from the document."""

    def __init__(self, loop: Loop, module: ModuleType, stub: Any, service: Peer) -> None:
        self.loop, self.module, self.stub, self.service = loop, module, stub, service

    def request(self, name: str) -> Any:
        return self.module.HelloRequest(name=name)

    def say_hello(self, name: str = "world", **options: Any) -> "Future[str]":
        async def call() -> str:
            return str((await self.stub.SayHello(self.request(name), timeout=5, **options)).greeting)

        return self.loop.start(call())

    def greet_often(self) -> "Future[list[str]]":
        async def call() -> list[str]:
            replies = self.stub.GreetOften(self.request("x"), timeout=5)
            return [reply.greeting async for reply in replies]

        return self.loop.start(call())

    def hear(self, rest: bytes) -> bytes:
        """The correlation id of the next Request, as its field is written; the rest of it is this."""
        payload = self.service.hear()
        found = re.match(rb"\x08[\x80-\xff]{0,9}[\x00-\x7f]", payload, re.DOTALL)
        assert found
        assert payload[found.end() :] == rest
        return found[0]

    def answer(self, *payloads: bytes) -> None:
        """Publish Responses, and hear them."""
        self.service.exchange(list(payloads), [])


HELLO = b"\x12\x13\x0a\x08SayHello\x12\x07\x0a\x05world\x18\x01\x28\x88\x27\x30\x04"
"""What follows the correlation id of SayHello with 5000 milliseconds to answer it."""

OFTEN = b"\x12\x11\x0a\x0aGreetOften\x12\x03\x0a\x01x\x18\x01\x28\x88\x27\x30\x04"


@pytest.fixture
def called(hub: HubProcess, loop: Loop, module: ModuleType, name: str) -> Iterator[Called]:
    async def start() -> Any:
        return await rpc.connect(hub.addresses["mqtt"], module.DESCRIPTOR.services_by_name["MyCoolService"], name=name)

    stub = loop.run(start())
    try:
        with connected(hub.addresses["mqtt"]) as wire:
            yield Called(loop, module, stub, Peer(wire, f"/{name}"))
    finally:
        loop.run(stub.close())


@pytest.mark.parametrize(
    "rest",
    [
        b"\x12\x06\x12\x04\x0a\x02hi",
        b"\x12\x06\x12\x04\x0a\x02hi\x20\x00",
        b"\x12\x06\x12\x04\x0a\x02hi\x20\x01",
        b"\x12\x15\x0a\x0dHelloResponse\x12\x04\x0a\x02hi\x20\x01",
        b"\x20\x01\x12\x06\x12\x04\x0a\x02hi",
    ],
)
@pytest.mark.rule("MQTTRPC-24", "MQTTRPC-25", "MQTTRPC-26")
def test_a_successful_response_needs_no_type_url_and_without_a_stream_no_eos(called: Called, rest: bytes) -> None:
    answer = called.say_hello()
    called.answer(called.hear(HELLO) + rest)
    assert answer.result(SECONDS) == "hi"


@pytest.mark.rule("MQTTRPC-11", "MQTTRPC-13")
def test_based_on_the_correlation_id_a_response_is_matched_with_its_request(called: Called) -> None:
    answers = [called.say_hello() for _ in range(3)]
    numbers = [called.hear(HELLO) for _ in answers]
    assert len(set(numbers)) == 3
    for word, number in zip(b"abc", reversed(numbers), strict=True):
        called.answer(number + b"\x12\x05\x12\x03\x0a\x01" + bytes([word]))
    assert [answer.result(SECONDS) for answer in answers] == ["c", "b", "a"]


@pytest.mark.rule("MQTTRPC-14", "MQTTRPC-15", "MQTTRPC-71")
def test_a_response_with_an_unknown_correlation_id_is_discarded_and_logged_in_noticeable_way(
    called: Called, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "polywire.mqttrpc")
    answer = called.say_hello()
    number = called.hear(HELLO)
    called.answer(b"\x08\x05\x12\x05\x12\x03\x0a\x01x", b"\x08\x06\x1a\x00", number + b"\x12\x05\x12\x03\x0a\x01a")
    assert answer.result(SECONDS) == "a"
    assert called.stub.discarded() == 2
    assert [record.levelname for record in caplog.records if "unknown correlation ids" in record.getMessage()] == [
        "WARNING"
    ]


@pytest.mark.rule("MQTTRPC-23", "MQTTRPC-53")
@pytest.mark.parametrize(
    ("answers", "heard"),
    [
        ([b"\x12\x05\x12\x03\x0a\x01a", b"\x12\x05\x12\x03\x0a\x01b\x20\x01"], ["a", "b"]),
        ([b"\x12\x05\x12\x03\x0a\x01a\x20\x00", b"\x20\x01"], ["a"]),
        ([b"\x12\x05\x12\x03\x0a\x01a", b"\x12\x00\x20\x01"], ["a", ""]),
        ([b"\x12\x00\x20\x01"], [""]),
        ([b"\x12\x0f\x0a\x0dHelloResponse\x20\x01"], [""]),
        ([b"\x20\x01"], []),
    ],
)
def test_eos_marks_the_final_response_of_a_stream(called: Called, answers: list[bytes], heard: list[str]) -> None:
    replies = called.greet_often()
    number = called.hear(OFTEN)
    called.answer(*(number + answer for answer in answers))
    assert replies.result(SECONDS) == heard


@pytest.mark.rule("MQTTRPC-08", "MQTTRPC-12", "MQTTRPC-106")
@pytest.mark.parametrize("waits", [False, True], ids=["a list", "an async iterator"])
def test_each_request_of_a_stream_has_the_same_correlation_id_and_the_last_eos(called: Called, waits: bool) -> None:
    values = [called.request("a"), called.request("")]

    async def call() -> str:
        reply = await called.stub.GreetAll(_waiting(values) if waits else values, timeout=5)
        return str(reply.greeting)

    answer = called.loop.start(call())
    number = called.hear(b"\x12\x0f\x0a\x08GreetAll\x12\x03\x0a\x01a\x28\x88\x27\x30\x04")
    assert called.hear(b"\x12\x0a\x0a\x08GreetAll" + (b"" if waits else b"\x18\x01")) == number
    if waits:
        assert called.hear(b"\x18\x01") == number
    called.answer(number + b"\x12\x06\x12\x04\x0a\x02hi")
    assert answer.result(SECONDS) == "hi"


@pytest.mark.rule("MQTTRPC-27", "MQTTRPC-30", "MQTTRPC-33", "MQTTRPC-107")
@pytest.mark.parametrize(
    ("rest", "error"),
    [
        (b"\x1a\x00", (0, "", "", 0, None)),
        (b"\x1a\x0b\x08\x99\x03\x12\x02no\x1a\x02No\x20\x01", (409, "no", "No", 0, None)),
        (b"\x1a\x06\x08\xad\x03\x20\xfa\x01", (429, "", "", 250, None)),
        (b"\x12\x03\x12\x01x\x1a\x03\x08\x99\x03", (409, "", "", 0, ("", b"x"))),
        (b"\x12\x0b\x0a\x06Detail\x12\x01x\x1a\x03\x08\x99\x03", (409, "", "", 0, ("Detail", b"x"))),
        (b"\x12\x00\x1a\x03\x08\x99\x03", (409, "", "", 0, ("", b""))),
    ],
)
def test_in_case_of_error_the_caller_gets_error_data_and_additional_error_data(
    called: Called, rest: bytes, error: tuple[object, ...]
) -> None:
    answer = called.say_hello()
    called.answer(called.hear(HELLO) + rest)
    with pytest.raises(RpcError) as failed:
        answer.result(SECONDS)
    found, more = failed.value, failed.value.details
    details = None if more is None else (more.type_url, more.value)
    assert (found.code, found.tag, found.user_message, found.retry_after, details) == error


@pytest.mark.rule("MQTTRPC-31", "MQTTRPC-32", "MQTTRPC-69")
def test_retry_after_specifies_duration_after_which_it_is_safe_to_retry(called: Called) -> None:
    answer = called.say_hello(retries=2)
    number = called.hear(HELLO)
    called.answer(number + b"\x1a\x05\x08\xad\x03\x20\x64")
    started = time.monotonic()
    again = called.hear(HELLO)
    assert time.monotonic() - started > 0.09
    assert again != number
    called.answer(again + b"\x1a\x03\x08\xad\x03")
    with pytest.raises(RpcError, match="429"):
        answer.result(SECONDS)  # zero: it is not retried


@pytest.mark.rule("MQTTRPC-95")
def test_a_request_stream_without_elements_has_no_form(called: Called) -> None:
    async def call() -> None:
        await called.stub.GreetAll([])

    with pytest.raises(polywire.LocalProtocolError, match="is empty"):
        called.loop.run(call())


UNKNOWN = 'polywire_dropped_total{protocol="mqttrpc",reason="unknown-correlation-id"}'


@pytest.mark.rule("MQTTRPC-15", "MQTTRPC-53", "MQTTRPC-55", "MQTTRPC-71")
def test_the_hub_takes_a_stream_for_umq_by_the_same_rules(hub: HubProcess, name: str) -> None:
    with websocket(hub.addresses["umq"], open_timeout=20) as caller, connected(hub.addresses["mqtt"]) as wire:
        service = Peer(wire, f"/{name}")
        caller.send("H1:")
        assert str(caller.recv(20)).startswith("W1:")
        for answers, heard in [
            ([b"\x12\x03\x12\x01a", b"\x12\x03\x12\x01b\x20\x01"], ["T9:a", "T9:b"]),
            ([b"\x12\x03\x12\x01a", b"\x20\x01"], ["T9:a"]),
            ([b"\x12\x03\x12\x01a", b"\x12\x00\x20\x01"], ["T9:a", "T9:"]),
            ([b"\x12\x00\x20\x01"], ["T9:"]),
            ([b"\x20\x01"], []),
        ]:
            caller.send(f'C1:["call","{name}","Count","x",{{"stream":9,"timeout":5000}}]')
            request = service.hear()
            number = request[: request.index(b"\x12\x0a\x0a\x05Count\x12\x01x\x18\x01\x28\x88\x27\x30\x04")]
            service.exchange([number + answer for answer in answers], [])
            expected = [*heard, "D9:", "R1:null"]
            assert [caller.recv(20) for _ in expected] == expected
        service.exchange([b"\x08\x05\x20\x01"], [])
        assert hub.metric(UNKNOWN) >= 1
        assert " WARNING polywire.mqttrpc: " in hub.wait_for_log("unknown correlation ids")


@pytest.mark.rule("MQTTRPC-76", "MQTTRPC-101", "MQTTRPC-105")
def test_the_hub_answers_for_a_service_on_umq_by_the_same_rules(hub: HubProcess, name: str) -> None:
    with websocket(hub.addresses["umq"], open_timeout=20) as service, connected(hub.addresses["mqtt"]) as wire:
        caller = Peer(wire, f"/{name}")
        service.send("H1:")
        assert str(service.recv(20)).startswith("W1:")
        service.send(f'C1:["serve","{name}","5"]')
        assert service.recv(20) == "R1:null"
        for says, answer in [
            ([b"\x12\x06\x0a\x01A\x12\x01x"], b"\x12\x03\x12\x01y\x20\x01"),
            ([b"\x08\x07\x12\x06\x0a\x01A\x12\x01x\x18\x01"], b"\x08\x07\x12\x03\x12\x01y\x20\x01"),
            ([b"\x08\x07\x12\x06\x0a\x01A\x12\x01x", b"\x08\x07\x18\x01"], b"\x08\x07\x12\x03\x12\x01y\x20\x01"),
            ([b"\x08\x07\x12\x06\x0a\x01A\x12\x01x"], b"\x08\x07\x12\x00\x20\x01"),
        ]:
            caller.exchange(says, [])
            asked = re.fullmatch(r'B([0-9A-Z]+):5:\["A","x"\]', str(service.recv(20)))
            assert asked
            service.send(f"R{asked[1]}:{'' if b'y' not in answer else 'y'}")
            caller.exchange([], [answer])
        refused = (  # MQTTRPC-110: with the mark of an error of the hub's
            b"\x08\x07\x12\x0e\x0a\x0cpolywire.hub"
            b"\x1a\x2c\x08\x90\x03\x12\x0bbad-request\x1a\x1aThe request can't be read.\x20\x01"
        )
        caller.exchange([b"\x08\x07\x28\x05"], [refused])
        caller.exchange([b"\x08\x07\x18\x01\x28\x05"], [refused])


def test_what_cannot_be_done_is_on_the_page_with_its_reason() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [reason for reason in CANNOT.values() if reason not in page] == []


COMMON = """
syntax = "proto3";
package somebody.elses;
import "google/protobuf/any.proto";
message Request {
  uint64 correlation_id = 1;
  google.protobuf.Any body = 2;
  bool eos = 3;
  uint32 timeout = 5;
  TimeoutUnit timeout_unit = 6;
}
message Response {
  uint64 correlation_id = 1;
  google.protobuf.Any body = 2;
  ErrorData error_data = 3;
  bool eos = 4;
}
message ErrorData {
  uint32 code = 1;
  string tag = 2;
  string user_message = 3;
  uint32 retry_after = 4;
}
enum TimeoutUnit { UNSPECIFIED = 0; HOUR = 1; MINUTE = 2; SECOND = 3; MILLISECOND = 4; }
"""
"""The envelopes as somebody else defines them, from the fields alone."""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return compiled(tmp_path_factory.mktemp("protoc"), "common", COMMON)


@pytest.mark.rule("MQTTRPC-75")
def test_paho_with_generated_envelopes_calls_a_service_of_the_library(
    greeter: HubProcess, module: ModuleType, common: ModuleType
) -> None:
    with Paho(greeter) as client:
        client.subscribe(TOPIC, 1)

        def call(number: int, method: str, *names: str) -> list[Any]:
            """Ask, and give the Responses up to the last."""
            for place, name in enumerate(names, 1):
                body = any_pb2.Any(type_url=method, value=module.HelloRequest(name=name).SerializeToString())
                request = common.Request(correlation_id=number, body=body, eos=place == len(names))
                client.publish(TOPIC, request.SerializeToString())
            echoes, responses = len(names), list[Any]()
            while not responses or not responses[-1].eos:
                payload = client.receive()[1]
                if echoes and common.Request.FromString(payload).body.type_url == method:
                    echoes -= 1
                else:
                    responses.append(common.Response.FromString(payload))
            assert {response.correlation_id for response in responses} == {number}
            return responses

        def greetings(responses: list[Any]) -> list[str]:
            return [
                module.HelloResponse.FromString(response.body.value).greeting
                for response in responses
                if response.HasField("body")
            ]

        assert greetings(call(1, "SayHello", "Paho")) == ["Hello, Paho"]
        assert greetings(call(2, "GreetAll", "a", "b", "")) == ["Hello to 3: a|b|"]
        assert greetings(call(3, "GreetOften", "a,-")) == ["a", ""]
        assert greetings(call(4, "GreetOften", "")) == []
        assert sorted(greetings(call(5, "Chat", "a", "b"))) == ["A", "B"]
        (refused,) = call(6, "SayHello", "taken")
        assert (refused.error_data.code, refused.error_data.tag) == (409, "taken")
        assert module.HelloRequest.FromString(refused.body.value).name == "free"


@pytest.mark.rule("MQTTRPC-75")
def test_a_stub_calls_a_service_written_with_paho_and_generated_envelopes(
    hub: HubProcess, called: Called, common: ModuleType, name: str
) -> None:
    with Paho(hub) as service:
        service.subscribe(f"/{name}", 1)

        def request() -> Any:
            while True:
                found = common.Request.FromString(service.receive()[1])
                if found.body.type_url:
                    return found

        def respond(number: int, greeting: str | None = None, **fields: Any) -> None:
            response = common.Response(correlation_id=number, **fields)
            if greeting is not None:
                response.body.value = called.module.HelloResponse(greeting=greeting).SerializeToString()
                response.body.SetInParent()
            service.publish(f"/{name}", response.SerializeToString())

        answer = called.say_hello()
        asked = request()
        assert (asked.body.type_url, asked.eos) == ("SayHello", True)
        assert (asked.timeout, asked.timeout_unit) == (5000, common.MILLISECOND)
        respond(asked.correlation_id, "hi")
        assert answer.result(SECONDS) == "hi"
        replies = called.greet_often()
        number = request().correlation_id
        respond(number, "a")
        respond(number, "", eos=True)
        assert replies.result(SECONDS) == ["a", ""]
        answer = called.say_hello()
        respond(request().correlation_id, error_data=common.ErrorData(code=409, tag="taken"))
        with pytest.raises(RpcError, match="409 taken"):
            answer.result(SECONDS)
