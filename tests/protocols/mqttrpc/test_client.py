"""Stubs and services of RPC over MQTT, over the hub and over Mosquitto."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import ModuleType
from typing import Any

import pytest

import polywire
from polywire.protocols import mqtt
from polywire.protocols.mqtt import client as mqtt_client
from polywire.protocols.mqttrpc import Decoder, Request, Response, RpcError, encode
from polywire.protocols.mqttrpc import client as rpc
from polywire.protocols.mqttrpc.server import Server, serve
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
from tests.mosquitto_process import MISSING, PROGRAM, running_mosquitto

pytestmark = pytest.mark.timeout(120)

NAME = "my-cool-service"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in an event loop of its own, which must end with nothing left in it."""

    @functools.wraps(test)
    def wrapped(*arguments: Any, **names: Any) -> None:
        run(functools.partial(test, *arguments, **names), 60)

    return wrapped


class Greeter:
    """The service's methods."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.cancelled = asyncio.Event()
        self.asked = asyncio.Event()
        self.busy = 0

    async def SayHello(self, request: Any) -> Any:  # noqa: N802 - the service's own name
        if request.name == "slow":
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if request.name == "busy" and self.busy < 1:
            self.busy += 1
            raise RpcError(429, "busy", "one moment", 10)
        if request.name == "never":
            raise RpcError(403, "no", "not you", details=self._module.HelloRequest(name="somebody else"))
        if request.name == "broken":
            raise ZeroDivisionError
        return self._module.HelloResponse(greeting=f"hello, {request.name}")

    async def GreetAll(self, requests: AsyncIterator[Any]) -> Any:  # noqa: N802
        names = [request.name async for request in requests]
        return self._module.HelloResponse(greeting=f"hello, {' and '.join(names)}")

    def GreetOften(self, request: Any) -> Any:  # noqa: N802
        kind, _, count = request.name.rpartition(" ")
        answers = [self._module.HelloResponse(greeting=str(number)) for number in range(int(count))]
        return self._each(answers) if kind == "async" else self._all(answers) if kind == "await" else answers

    async def _each(self, answers: list[Any]) -> AsyncIterator[Any]:
        for answer in answers:
            yield answer

    async def _all(self, answers: list[Any]) -> list[Any]:
        return answers

    async def Chat(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            yield self._module.HelloResponse(greeting=request.name.upper())


@pytest.fixture(scope="module", params=["hub", "mosquitto"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "hub":
            port = stack.enter_context(running_hub()).port("mqtt")
        else:
            if PROGRAM is None:
                pytest.skip(MISSING)
            port = stack.enter_context(running_mosquitto(tmp_path_factory.mktemp("mosquitto")))
        yield f"mqtt://127.0.0.1:{port}"


class Pair:
    """A service and a stub for it."""

    def __init__(self, module: ModuleType, handler: Greeter, server: Server, stub: Any) -> None:
        self.module, self.handler, self.server, self.stub = module, handler, server, stub

    def request(self, name: str) -> Any:
        return self.module.HelloRequest(name=name)

    async def requests(self, *names: str) -> AsyncIterator[Any]:
        for name in names:
            yield self.request(name)


@contextlib.asynccontextmanager
async def pair(broker: str, module: ModuleType, **options: Any) -> AsyncIterator[Pair]:
    descriptor = module.DESCRIPTOR.services_by_name["MyCoolService"]
    handler = Greeter(module)
    async with (
        serve(broker, descriptor, handler, name=NAME, **options) as server,
        rpc.connect(broker, descriptor, name=NAME, **options) as stub,
    ):
        yield Pair(module, handler, server, stub)


@pytest.mark.rule("MQTT-176")
@pytest.mark.parametrize("topics", ["shared", "per-client"])
@in_loop
async def test_calls_of_all_four_shapes(broker: str, my_cool_service: ModuleType, topics: str) -> None:
    async with pair(broker, my_cool_service, topics=topics) as p:
        assert (await p.stub.SayHello(p.request("world"))).greeting == "hello, world"
        assert (await p.stub.GreetAll(p.requests("a", "b", "c"))).greeting == "hello, a and b and c"
        for kind in ("", "async ", "await "):
            assert [reply.greeting async for reply in p.stub.GreetOften(p.request(kind + "3"))] == ["0", "1", "2"]
            assert [reply.greeting async for reply in p.stub.GreetOften(p.request(kind + "0"))] == []
        assert [reply.greeting async for reply in p.stub.Chat(p.requests("x", "y"))] == ["X", "Y"]


async def frames_of(broker: str, action: Callable[[], Coroutine[Any, Any, object]]) -> list[Request | Response]:
    """What is published on the topic while ``action`` runs, up to the last Response."""
    frames: list[Request | Response] = []
    async with mqtt_client.connect(broker) as watcher, await watcher.subscribe(f"/{NAME}", qos=1) as seen:
        await action()
        async for message in seen:
            (frame,) = Decoder().feed(message.payload)
            assert isinstance(frame, Request | Response)
            frames.append(frame)
            if isinstance(frame, Response) and frame.eos:
                return frames
    raise AssertionError("the topic ended")


@pytest.mark.rule("MQTTRPC-52", "MQTTRPC-53", "MQTTRPC-106")
@pytest.mark.parametrize(("kind", "marked"), [("async", False), ("list", True), ("tuple", True), ("iterator", True)])
@in_loop
async def test_a_caller_marks_its_last_request_where_it_knows_the_end(
    broker: str, my_cool_service: ModuleType, kind: str, marked: bool
) -> None:
    async with pair(broker, my_cool_service) as p:
        for names in (["a", "b", ""], [""]):
            values: Any = [p.request(name) for name in names]
            given: dict[str, Any] = {"async": p.requests(*names), "tuple": tuple(values), "iterator": iter(values)}

            requests = given.get(kind, values)

            async def call(requests: Any = requests, names: list[str] = names) -> None:
                assert (await p.stub.GreetAll(requests)).greeting == f"hello, {' and '.join(names)}"

            frames = await frames_of(broker, call)
            sent = [(frame.type_url, frame.eos, frame.value is None) for frame in frames if isinstance(frame, Request)]
            elements = [("GreetAll", False, False)] * len(names)
            assert sent == ([*elements[1:], ("GreetAll", True, False)] if marked else [*elements, ("", True, True)])


@pytest.mark.rule("MQTTRPC-53", "MQTTRPC-106", "MQTTRPC-108")
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("2", [("0", False), ("1", True)]),
        ("await 2", [("0", False), ("1", True)]),
        ("async 2", [("0", False), ("1", False), (None, True)]),
        ("0", [(None, True)]),
        ("async 0", [(None, True)]),
    ],
)
@in_loop
async def test_a_service_marks_its_last_response_where_it_knows_the_end(
    broker: str, my_cool_service: ModuleType, name: str, sent: list[tuple[str | None, bool]]
) -> None:
    async with pair(broker, my_cool_service) as p:

        async def call() -> None:
            greetings = [reply.greeting async for reply in p.stub.GreetOften(p.request(name))]
            assert greetings == [each for each, _ in sent if each is not None]

        read = p.module.HelloResponse.FromString
        frames = [frame for frame in await frames_of(broker, call) if isinstance(frame, Response)]
        assert [(None if frame.value is None else read(frame.value).greeting, frame.eos) for frame in frames] == sent


@pytest.mark.rule("MQTTRPC-95")
@in_loop
async def test_a_request_stream_without_elements_is_refused_and_nothing_is_sent(
    broker: str, my_cool_service: ModuleType
) -> None:
    async with pair(broker, my_cool_service) as p:

        async def call() -> None:
            streams: list[Any] = [p.requests(), [], (), iter(())]
            for nothing in streams:
                with pytest.raises(polywire.LocalProtocolError, match="is empty") as refused:
                    await p.stub.GreetAll(nothing)
                assert refused.value.rule == "MQTTRPC-95"
            with pytest.raises(TypeError, match="takes an iterable or async iterable of HelloRequest"):
                await p.stub.GreetAll(p.request("x"))
            await p.stub.SayHello(p.request("x"))

        request, _ = await frames_of(broker, call)
        assert request.type_url == "SayHello"


@pytest.mark.rule("MQTTRPC-15", "MQTTRPC-71")
@in_loop
async def test_a_stub_warns_of_unknown_responses_now_and_then_and_counts_them(
    broker: str, my_cool_service: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "polywire.mqttrpc")
    async with mqtt_client.connect(broker) as other, pair(broker, my_cool_service) as p:
        for number in range(3):
            await other.publish(f"/{NAME}", encode(Response(number, "", b"for somebody else")), qos=1)
        await p.stub.SayHello(p.request("x"))
        assert p.stub.discarded() == 3
    (record,) = [record for record in caplog.records if record.name == "polywire.mqttrpc"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (f"discarded 1 Responses with unknown correlation ids, the last one 0 on /{NAME}")


@in_loop
async def test_many_calls_at_once_get_their_own_answers(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        answers = await asyncio.gather(*(p.stub.SayHello(p.request(str(number))) for number in range(200)))
        assert [answer.greeting for answer in answers] == [f"hello, {number}" for number in range(200)]


@in_loop
async def test_a_conversation_goes_back_and_forth(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        said: asyncio.Queue[str] = asyncio.Queue()

        async def talk() -> AsyncIterator[Any]:
            while (word := await said.get()) != "end":
                yield p.request(word)

        said.put_nowait("one")
        heard = []
        async for reply in p.stub.Chat(talk()):
            heard.append(reply.greeting)
            said.put_nowait("two" if len(heard) == 1 else "end")
        assert heard == ["ONE", "TWO"]


@in_loop
async def test_a_name_that_is_no_topic_is_refused_and_leaves_no_connection(
    broker: str, my_cool_service: ModuleType
) -> None:
    descriptor = my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]
    with pytest.raises(polywire.PolywireError, match="service name"):
        await rpc.connect(broker, descriptor, name="a/b")
    with pytest.raises(polywire.PolywireError, match="service name"):
        await serve(broker, descriptor, Greeter(my_cool_service), name="a/b")


@pytest.mark.rule("MQTTRPC-58")
@in_loop
async def test_the_caller_gives_up_at_its_deadline_answer_or_not(broker: str, my_cool_service: ModuleType) -> None:
    descriptor = my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]
    async with rpc.connect(broker, descriptor, name="nobody") as stub:
        with pytest.raises(polywire.Timeout):
            await stub.SayHello(my_cool_service.HelloRequest(name="x"), timeout=0.2)
        with pytest.raises(polywire.Timeout):
            async for _ in stub.Chat(_never(), timeout=0.2):
                pass


async def _never() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield None


@pytest.mark.rule("MQTTRPC-57")
@in_loop
async def test_the_service_stops_a_handler_whose_time_is_up(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        with pytest.raises((polywire.Timeout, RpcError)):
            await p.stub.SayHello(p.request("slow"), timeout=0.3)
        await asyncio.wait_for(p.handler.cancelled.wait(), 20)


@in_loop
async def test_a_cancelled_call_is_forgotten(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        call = asyncio.ensure_future(p.stub.SayHello(p.request("slow")))
        await asyncio.wait_for(p.handler.asked.wait(), 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not p.stub._caller._waiting
        assert len(p.stub._caller._calls) == 0


@pytest.mark.rule("MQTTRPC-33", "MQTTRPC-107")
@in_loop
async def test_errors_reach_the_caller_and_internals_do_not(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        with pytest.raises(RpcError, match="not you") as refused:
            await p.stub.SayHello(p.request("never"), retries=3)
        assert (refused.value.code, refused.value.tag) == (403, "no")
        details = p.module.HelloRequest()
        assert refused.value.details is not None
        assert refused.value.details.Unpack(details)
        assert details.name == "somebody else"
        with pytest.raises(RpcError, match="Something went wrong") as broken:
            await p.stub.SayHello(p.request("broken"))
        assert (broken.value.code, broken.value.details) == (500, None)
        with pytest.raises(TypeError, match="takes HelloRequest"):
            await p.stub.SayHello("hello")
        with pytest.raises(AttributeError, match="has no method Wave"):
            p.stub.Wave(p.request("x"))


@pytest.mark.rule("MQTTRPC-69")
@in_loop
async def test_a_call_is_tried_again_when_asked_to(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        assert (await p.stub.SayHello(p.request("busy"), retries=1)).greeting == "hello, busy"


@in_loop
async def test_a_service_that_ends_tells_its_callers(broker: str, my_cool_service: ModuleType) -> None:
    async with pair(broker, my_cool_service) as p:
        call = asyncio.ensure_future(p.stub.SayHello(p.request("slow")))
        await asyncio.wait_for(p.handler.asked.wait(), 20)
        await p.server.close()
        with pytest.raises(RpcError) as ended:
            await call
        assert ended.value.code == 503


@pytest.mark.rule("MQTTRPC-72")
@in_loop
async def test_requests_and_responses_are_published_with_qos_1(broker: str, my_cool_service: ModuleType) -> None:
    async with mqtt_client.connect(broker) as watcher, pair(broker, my_cool_service) as p:
        async with await watcher.subscribe(f"/{NAME}", qos=2) as seen:
            await p.stub.SayHello(p.request("x"))
            kinds = {}
            async for message in seen:
                assert isinstance(message, mqtt.Publish)
                kinds[type(Decoder().feed(message.payload)[0])] = message.qos
                if len(kinds) == 2:
                    break
        assert kinds == {Request: 1, Response: 1}


@pytest.mark.rule("MQTTRPC-76", "MQTTRPC-105")
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (encode(Request(0, "SayHello", b"\n\x01x")), 0),
        (encode(Request(0, "Wave")), 404),
        (encode(Request(5, timeout=5)), 400),
        (encode(Request(5, eos=True, timeout=5)), 400),
    ],
)
@in_loop
async def test_a_request_without_an_id_or_without_a_body_is_answered(
    broker: str, my_cool_service: ModuleType, payload: bytes, code: int
) -> None:
    async with mqtt_client.connect(broker) as other, pair(broker, my_cool_service):

        async def ask() -> None:
            await other.publish(f"/{NAME}", payload, qos=1)

        request, response = await frames_of(broker, ask)
        assert isinstance(response, Response)
        assert response.correlation_id == request.correlation_id
        data = response.error_data
        assert (0 if data is None else data.code) == code


@in_loop
async def test_what_is_no_request_is_answered_or_ignored(broker: str, my_cool_service: ModuleType) -> None:
    async with mqtt_client.connect(broker) as other, pair(broker, my_cool_service) as p:
        async with await other.subscribe(f"/{NAME}", qos=1) as seen:
            await other.publish(f"/{NAME}", b"\xff\xff", qos=1)
            await other.publish(f"/{NAME}", encode(Request(9, "Wave", b"")), qos=1)
            async for message in seen:
                with contextlib.suppress(polywire.RemoteProtocolError):
                    (frame,) = Decoder().feed(message.payload)
                    if isinstance(frame, Response):
                        assert frame.error_data is not None
                        assert (frame.correlation_id, frame.error_data.tag) == (9, "no-method")
                        break
        assert (await p.stub.SayHello(p.request("still there"))).greeting == "hello, still there"


def test_a_handler_that_lacks_methods_is_refused(my_cool_service: ModuleType) -> None:
    descriptor = my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]
    with pytest.raises(TypeError, match="lacks methods of examples"):
        serve("mqtt://127.0.0.1:1", descriptor, object())


@in_loop
async def test_an_sabc_client_calls_a_service_offered_here(my_cool_service: ModuleType) -> None:
    with running_hub() as hub:
        await _across(hub, my_cool_service)


async def _across(hub: HubProcess, module: ModuleType) -> None:
    async with (
        pair(f"mqtt://127.0.0.1:{hub.port('mqtt')}", module) as p,
        polywire.connect(f"sabc://127.0.0.1:{hub.port('sabc')}") as bus,
    ):
        answer = await bus.call(NAME, "SayHello", p.request("sABC").SerializeToString(), timeout=20)
        assert module.HelloResponse.FromString(answer.body).greeting == "hello, sABC"
