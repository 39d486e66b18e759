"""The hub's methods, called on a real hub."""

import asyncio
from collections.abc import Iterator

import pytest

import polywire
from polywire.client.errors import CallFailed, Timeout
from polywire.protocols.umq import (
    AttachmentError,
    AttachmentFailed,
    FatalCode,
    HubRequest,
    RemoteHub,
    Reply,
    Request,
    RpcException,
    connect,
)
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import WebSocketWire


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as started:
        yield started


def url(hub: HubProcess) -> str:
    return hub.addresses["umq"].replace("ws://", "umq://")


def test_what_is_published_is_heard_with_its_channel_headers_and_attachments(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            remote = RemoteHub(peer)
            async with await remote.subscribe("rooms/*/state") as messages:
                await remote.publish("rooms/kitchen/state", "warm", headers={"by": "anna", "n": 2})
                await remote.publish("rooms/hall/state", b"\xff\x00", attachments=[b"a", b"\xfe"])
                await remote.publish("rooms/bath/state", b'{"a": 1}', content_type="application/json")
                first, second, third = [await messages.__anext__() for _ in range(3)]
            assert (first.channel, first.body, dict(first.headers)) == (
                "rooms/kitchen/state",
                b"warm",
                {"by": "anna", "n": 2},
            )
            assert first.ts > 0
            assert (second.body, second.attachments) == (b"\xff\x00", (b"a", b"\xfe"))
            assert (third.body, third.content_type) == (b'{"a": 1}', "application/json")

    run(main)


def test_a_service_of_one_peer_is_called_by_another(hub: HubProcess) -> None:
    async def shout(request: HubRequest) -> bytes:
        if request.method == "fail":
            raise RpcException("I'm teapot")
        return request.body.upper() + b"\xff" if request.method == "binary" else request.body.upper()

    async def main() -> None:
        async with connect(url(hub)) as one, connect(url(hub)) as other:
            await RemoteHub(one).serve("shouting", shout)
            remote = RemoteHub(other)
            assert (await remote.call("shouting", "text", "hello")).body == b"HELLO"
            assert (await remote.call("shouting", "binary", b"\xfehello")).body == b"\xfeHELLO\xff"
            with pytest.raises(RpcException, match="I'm teapot"):
                await remote.call("shouting", "fail")
            await RemoteHub(one).unserve("shouting")
            with pytest.raises(RpcException) as failure:
                await remote.call("shouting", "text")
            assert failure.value.code == FatalCode.NO_RPC_SERVER

    run(main)


def test_a_call_tells_the_hub_how_long_it_may_take(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            remote = RemoteHub(peer)
            never = asyncio.Event()

            async def sleepy(_: HubRequest) -> bytes:
                await never.wait()
                return b""

            await remote.serve("sleeping", sleepy)
            with pytest.raises((Timeout, RpcException)):
                await remote.call("sleeping", "", timeout=0.05)

    run(main)


def test_a_streamed_call_gives_each_response_and_ends(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            remote = RemoteHub(peer)
            await remote.serve("once", lambda request: request.body)
            async with remote.stream("once", "m", "only") as responses:
                assert [response async for response in responses] == [b"only"]
            with pytest.raises(RpcException) as failure:
                async with remote.stream("nobody", "m") as responses:
                    [response async for response in responses]
            assert failure.value.code == FatalCode.NO_RPC_SERVER
            async with remote.stream("once", "m", "left early"):
                pass
            assert (await remote.call("once", "m", "still fine")).body == b"still fine"

    run(main)


def test_a_refused_subscription_raises_and_is_forgotten(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            with pytest.raises(RpcException) as failure:
                await RemoteHub(peer).subscribe("queue/*")
            assert failure.value.code == FatalCode.BAD_REQUEST
            assert len(peer._streaming) == 0

    run(main)


def test_each_message_of_a_queue_goes_to_one_consumer(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            remote = RemoteHub(peer)
            for number in range(10):
                await remote.publish("queue/jobs", str(number))
            async with await remote.subscribe("queue/jobs") as jobs:
                assert [(await jobs.__anext__()).body for _ in range(10)] == [b"%d" % n for n in range(10)]

    run(main)


def test_the_hub_says_who_this_is(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            assert (await RemoteHub(peer).whoami())["how"] == "anonymous"

    run(main)


@pytest.mark.rule("UMQ-74")
def test_the_subprotocol_is_offered_and_accepted(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            assert peer.is_open

    run(main)
    wire = WebSocketWire(hub.addresses["umq"], "umq")
    assert wire.subprotocol == "umq"
    wire.close()


async def failing() -> bytes:
    raise OSError("Upstream download error")


@pytest.mark.rule("UMQ-154", "UMQ-155")
def test_a_failed_attachment_is_its_error_and_a_failed_body_is_raised(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer, polywire.connect(url(hub)) as bus:
            both = await bus.subscribe("failing")
            async with await RemoteHub(peer).subscribe("failing") as messages:
                await peer.call('["publish","failing",null]', [failing()])
                await peer.call('["publish","failing","x"]', [b"1", failing(), b"3"])
                with pytest.raises(AttachmentFailed, match="Upstream download error"):
                    await anext(messages)
                message = await anext(messages)
            for each in (message, await anext(both)):  # the bus has nothing without a body
                assert each.body == b"x"
                first, second, third = each.attachments
                assert (first, third) == (b"1", b"3")
                assert isinstance(second, AttachmentFailed)

    run(main)


@pytest.mark.rule("UMQ-154", "UMQ-155")
def test_failed_attachments_of_calls(hub: HubProcess) -> None:
    def raw_service(request: Request) -> Reply:
        return Reply("", [failing()]) if "bodiless" in request.text else Reply("fine", [failing(), b"2"])

    seen: list[HubRequest] = []

    def service(request: HubRequest) -> str:
        seen.append(request)
        return "ok"

    async def main() -> None:
        async with connect(url(hub)) as peer, polywire.connect(url(hub)) as bus:
            remote = RemoteHub(peer)
            await peer.call(f'["serve","replies",{peer.register(raw_service)}]')
            answer = await remote.call("replies", "get")
            assert answer.body == b"fine"
            assert isinstance(answer.attachments[0], AttachmentFailed)
            assert answer.attachments[1] == b"2"
            with pytest.raises(AttachmentFailed, match="Upstream download error"):
                await remote.call("replies", "bodiless")
            with pytest.raises(CallFailed, match="the body failed: Upstream download error"):
                await bus.call("replies", "bodiless", b"")
            await remote.serve("requests", service)
            assert (await peer.call('["call","requests","get","x"]', [failing()])).text == "ok"
            assert isinstance(seen[0].attachments[0], AttachmentFailed)
            with pytest.raises(RpcException, match="the body failed: Upstream download error"):
                await peer.call('["call","requests","get",null]', [failing()])
            assert len(seen) == 1

    run(main)


@pytest.mark.rule("UMQ-157", "UMQ-158")
def test_attributes_of_this_and_of_another_connection(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer, connect(url(hub)) as other:
            peer.set("room", "kitchen")
            peer.set("icon", "png", [b"\x89", failing()])
            who = await RemoteHub(peer).whoami()
            assert who["attributes"]["room"] == "kitchen"
            found = await RemoteHub(other).attributes(who["connection"])
            assert {name: each.value for name, each in found.items()} == {"room": "kitchen", "icon": "png"}
            assert found["icon"].attachments == (b"\x89", AttachmentError("Upstream download error", 0, 1))
            with pytest.raises(RpcException) as failure:
                await RemoteHub(other).attributes(999_999)
            assert failure.value.code == FatalCode.BAD_REQUEST

    run(main)
