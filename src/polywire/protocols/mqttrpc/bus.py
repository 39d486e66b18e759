"""Calls and services for ``polywire.connect`` over MQTT: RPC over MQTT, with bodies as they are.

A body is the ``value`` of the envelope's ``Any`` and the method its ``type_url``, as in the hub's own calls between
protocols. So services here can be called by stubs and from every protocol, and calls reach services of both kinds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from polywire.client.adapter import Handler, answered, require
from polywire.client.errors import CallFailed, Timeout, call_failed
from polywire.client.message import Message, Request
from polywire.protocols.mqtt.client import Client
from polywire.protocols.mqttrpc.connection import MAX_CALLS, UnaryMethods
from polywire.protocols.mqttrpc.errors import HANDLER_FAILED, RpcError
from polywire.protocols.mqttrpc.peer import Caller, Server
from polywire.protocols.mqttrpc.service import Shape, is_identifier, service_of

SERVICES_KEPT: Final = 64
"""Services that stay subscribed while no call is in flight: those called last."""

SHORTEST: Final = 0.001
"""Seconds: the shortest timeout in RPC over MQTT."""


class _Topic:
    """The topic of one service, and how many calls use it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.wanted = 0
        self._starting = asyncio.Lock()
        self._listening = False

    async def listen(self) -> None:
        """Subscribe to the answers, from the first call on."""
        async with self._starting:
            if not self._listening:
                await self.caller.start()
                self._listening = True


class MqttRpc:
    """The calls and services of one connection. It subscribes to the topic of each service that is called."""

    def __init__(self, client: Client, qos: int) -> None:
        self._client = client
        self._qos = qos
        self._topics: dict[str, _Topic] = {}
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._services: dict[str, Serving] = {}

    async def call(self, service: str, method: str, body: bytes, seconds: float) -> Message:
        """Call a service. If nobody offers it, the call ends with ``Timeout``."""
        check_service(service)
        if not is_identifier(method):
            require("a method that is no identifier", "mqtt")
        topic = self._topics.pop(service, None) or _Topic(Caller(self._client, service, qos=self._qos))
        self._topics[service] = topic  # those called last come last
        topic.wanted += 1
        try:
            return await self._call(topic, method, body, seconds)
        finally:
            topic.wanted -= 1
            await self._leave_some()

    async def serve(self, service: str, handler: Handler) -> "Serving":
        """Offer a service, and again after each reconnect."""
        if service in self._services:
            raise ValueError(f"the service {service!r} is offered on this connection already")
        check_service(service)
        server = Server(self._client, Offered(service, handler), service, qos=self._qos)
        await server.start()
        serving = Serving(server, lambda: self._services.pop(service, None))
        self._services[service] = serving
        return serving

    async def close(self) -> None:
        """Offer nothing more, and stop waiting for answers."""
        await asyncio.gather(*[each.close() for each in list(self._services.values())])
        while self._topics:
            await self._topics.popitem()[1].caller.stop()

    async def _call(self, topic: _Topic, method: str, body: bytes, seconds: float) -> Message:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        try:
            async with asyncio.timeout_at(due):
                await topic.listen()
                await self._turns.acquire()
        except TimeoutError as error:
            raise Timeout("the connection", seconds, sent=False) from error
        try:
            left = max(SHORTEST, due - loop.time())
            async with contextlib.aclosing(topic.caller.call(method, Shape.UNARY, body, left)) as answers:
                return Message("", (await anext(answers)).value or b"")
        except RpcError as error:
            raise call_failed(
                error.code, error.tag, error.user_message, error.retry_after, from_hub=error.from_hub
            ) from error
        except Timeout as error:
            raise Timeout("the answer", seconds, sent=error.sent) from error
        finally:
            self._turns.release()

    async def _leave_some(self) -> None:
        idle = [service for service, topic in self._topics.items() if not topic.wanted]
        for service in idle[: max(0, len(self._topics) - SERVICES_KEPT)]:
            await self._topics.pop(service).caller.stop()


class Offered:
    """A service of this program as ``Handlers``: any method name is accepted, and each method has one answer."""

    shapes = UnaryMethods()

    def __init__(self, name: str, handler: Handler) -> None:
        self.name = name
        self._handler = handler

    async def one(self, method: str, requests: AsyncIterator[bytes], /) -> bytes:
        """The answer to a call."""
        request = Request(self.name, method, await anext(requests))
        try:
            found = await answered(self._handler, request)
        except CallFailed as error:
            code = error.code if error.code > 0 else HANDLER_FAILED.code
            raise RpcError(code, error.tag, error.text, round((error.retry_after or 0) * 1000)) from error
        return found.body

    def many(self, method: str, requests: AsyncIterator[bytes], /) -> AsyncIterator[tuple[bytes, bool]]:
        """Never called: no method is a stream."""
        raise NotImplementedError


class Serving:
    """A service that is offered. ``closed`` is called when it no longer is."""

    def __init__(self, server: Server, closed: Callable[[], object]) -> None:
        self._server = server
        self._closed = closed

    async def close(self) -> None:
        """Stop offering it; calls in flight get two seconds."""
        self._closed()
        await self._server.stop()


def check_service(name: str) -> None:
    """Raise ``Unsupported`` if this can't be the name of a service's topic."""
    if service_of("/" + name) is None:
        require("a service's name that is no level of a topic", "mqtt")
