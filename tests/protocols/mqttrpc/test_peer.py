"""A service whose answers can't be sent: its caller gets an error in any case, and the log says why."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Self, cast

import pytest

from polywire.client.errors import BufferFull, Closed, Refused
from polywire.client.outgoing import SENT, Receipt
from polywire.protocols.mqtt import LocalProtocolError as MqttProtocolError
from polywire.protocols.mqtt.client import Client
from polywire.protocols.mqttrpc import Decoder, Request, Response, RpcError, Shape, encode
from polywire.protocols.mqttrpc.peer import Server
from tests.client.loops import run, until

LARGE = 1000
TOO_LARGE, HANDLER_FAILED = (413, "too-large"), (500, "handler-failed")


class Message(NamedTuple):
    topic: str
    payload: bytes


class Listening:
    """What the broker sends to the service."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.messages.get()


class Broker:
    """An MQTT client whose broker is this test. ``refuse`` makes the error of a large message."""

    def __init__(self, refuse: Callable[[], Exception] | None = None, *, at_once: bool = False) -> None:
        self.listening = Listening()
        self.published: asyncio.Queue[Response] = asyncio.Queue()
        self.refused = 0
        self._refuse = refuse
        self._at_once = at_once

    async def subscribe(self, _topic: str, *, qos: int) -> Listening:  # noqa: ARG002 - the client's signature
        return self.listening

    def publish(self, _topic: str, payload: bytes, *, qos: int) -> Receipt:  # noqa: ARG002 - as above
        if self._refuse is not None and len(payload) > LARGE:
            self.refused += 1
            if self._at_once:
                raise self._refuse()
            receipt = Receipt()
            receipt.fail(self._refuse())
            return receipt
        (response,) = Decoder().feed(payload)
        assert isinstance(response, Response)
        self.published.put_nowait(response)
        return SENT

    async def close(self) -> None:
        pass


class Handlers:
    """Answers every method with the same."""

    name = "greeter"
    shapes = {"One": Shape.UNARY, "Many": Shape.SERVER_STREAMING}  # noqa: RUF012 - never changed

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    async def one(self, _method: str, _requests: AsyncIterator[bytes], /) -> bytes:
        return self._give(self._answers[0])

    async def many(self, _method: str, _requests: AsyncIterator[bytes], /) -> AsyncIterator[tuple[bytes, bool]]:
        for answer in self._answers:
            yield self._give(answer), False

    def _give(self, answer: Any) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return cast("bytes", answer)


def answers(broker: Broker, method: str, *given: Any) -> list[tuple[int, str] | bytes | None]:
    """What the caller of a method gets: values, and the code and tag of an error."""
    got: list[tuple[int, str] | bytes | None] = []

    async def main() -> None:
        server = Server(cast("Client", broker), Handlers(*given), "greeter")
        await server.start()
        broker.listening.messages.put_nowait(Message("/greeter", encode(Request(7, method, b"", eos=True))))
        last = False
        while not last:
            response = await broker.published.get()
            data = response.error_data
            got.append(response.value if data is None else (data.code, data.tag))
            last = response.eos
        await server.stop()
        assert not server._work
        assert len(server._calls) == 0

    run(main)
    return got


@pytest.mark.rule("MQTTRPC-111")
@pytest.mark.parametrize(
    "error",
    [
        RpcError(503, "busy", "later", 1.5),  # type: ignore[arg-type]
        RpcError(503, None),  # type: ignore[arg-type]
        RpcError(503, "busy", b"later"),  # type: ignore[arg-type]
        RpcError("503"),  # type: ignore[arg-type]
        RpcError(-1),
        RpcError(503, "\ud800"),
    ],
    ids=["fraction", "none", "bytes", "text", "negative", "surrogate"],
)
@pytest.mark.parametrize("method", ["One", "Many"])
def test_an_error_with_a_field_that_can_not_be_written_is_a_failure(
    caplog: pytest.LogCaptureFixture, error: RpcError, method: str
) -> None:
    assert answers(Broker(), method, error) == [HANDLER_FAILED]
    assert f"the answer of greeter.{method} can't be sent" in caplog.text


@pytest.mark.rule("MQTTRPC-111")
@pytest.mark.parametrize(
    ("refuse", "at_once", "error"),
    [
        (lambda: MqttProtocolError("the packet is too large", rule="MQTT-06"), True, TOO_LARGE),
        (lambda: Refused("too large"), False, TOO_LARGE),
        (lambda: BufferFull(2000, 1000), True, HANDLER_FAILED),
    ],
    ids=["mqtt", "broker", "buffer"],
)
def test_an_answer_that_mqtt_does_not_carry_is_a_failure(
    caplog: pytest.LogCaptureFixture, refuse: Callable[[], Exception], at_once: bool, error: tuple[int, str]
) -> None:
    large = bytes(LARGE)
    assert answers(Broker(refuse, at_once=at_once), "One", large) == [error]
    assert "the answer of greeter.One can't be sent" in caplog.text
    assert answers(Broker(refuse, at_once=at_once), "Many", b"1", large, b"2") == [b"1", error]


def test_a_connection_that_is_gone_is_no_failure_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(lambda: Closed("the client was closed"))

    async def main() -> None:
        server = Server(cast("Client", broker), Handlers(bytes(LARGE)), "greeter")
        await server.start()
        broker.listening.messages.put_nowait(Message("/greeter", encode(Request(7, "One", b""))))
        await until(lambda: broker.refused > 0)
        await server.stop()

    run(main)
    assert broker.published.empty()
    assert "can't be sent" not in caplog.text
