"""The hub's operations, asked for over sABC on a real hub."""

import asyncio
from collections.abc import Iterator

import pytest

from polywire.client.message import Message, Request
from polywire.protocols.sabc import Failure, RemoteHub, Reply, connect
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as started:
        yield started


@pytest.fixture(params=["sabc", "sabc_ws"])
def url(hub: HubProcess, request: pytest.FixtureRequest) -> str:
    address = hub.addresses[request.param]
    return address.replace("tcp://", "sabc://").replace("ws://", "sabc+ws://")


def test_what_is_published_is_heard_with_its_channel_and_headers(url: str) -> None:
    async def main() -> None:
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            async with await hub.subscribe("rooms/*/state") as messages:
                await hub.publish("rooms/kitchen/state", "warm", headers={"by": "anna"}, content_type="text/plain")
                await hub.publish("rooms/hall/state", b"\xff\x00")
                first, second = await messages.__anext__(), await messages.__anext__()
            assert first == Message("rooms/kitchen/state", b"warm", {"by": "anna"}, "text/plain")
            assert second.body == b"\xff\x00"

    run(main)


def test_after_leaving_nothing_is_heard(url: str) -> None:
    async def main() -> None:
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            kept = await hub.subscribe("leaving/**")
            left = await hub.subscribe("leaving/here")
            await left.leave()
            await hub.publish("leaving/here", "x")
            assert (await kept.__anext__()).body == b"x"
            assert [message async for message in left] == []
            with pytest.raises(Failure) as failure:
                await hub.subscribe("queue/*")
            assert failure.value.code == "400"

    run(main)


def test_a_message_of_a_queue_goes_to_others_unless_it_is_acknowledged(url: str) -> None:
    async def main() -> None:
        queue = "queue/" + url.partition(":")[0].replace("+", "-")
        async with connect(url) as one, connect(url) as other:
            hub = RemoteHub(one)
            for number in range(3):
                await hub.publish(queue, str(number))
            async with await hub.subscribe(queue) as jobs:
                first = await jobs.__anext__()
                first.ack()
                first.ack()
                second = await jobs.__anext__()
                assert (first.body, second.body) == (b"0", b"1")
            async with await RemoteHub(other).subscribe(queue) as jobs:
                bodies = []
                for _ in range(2):
                    job = await jobs.__anext__()
                    bodies.append(job.body)
                    job.ack()
                assert bodies == [b"1", b"2"]

    run(main)


def test_several_subscriptions_to_one_topic_each_get_all_of_it(url: str) -> None:
    async def main() -> None:
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            subscriptions = await asyncio.gather(*[hub.subscribe("shared/*") for _ in range(3)])
            await hub.publish("shared/a", "1")
            assert [(await anext(each)).body for each in subscriptions] == [b"1"] * 3
            await subscriptions[2].leave()
            await hub.publish("shared/a", "2")
            assert [(await anext(each)).body for each in subscriptions[:2]] == [b"2"] * 2

    run(main)


def test_consumers_of_one_queue_share_it_and_take_over_what_one_leaves(url: str) -> None:
    async def main() -> None:
        queue = "queue/shared-" + url.partition(":")[0].replace("+", "-")
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            one, other = await asyncio.gather(hub.subscribe(queue), hub.subscribe(queue))
            for number in range(4):
                await hub.publish(queue, str(number))
            mine = [await anext(one), await anext(one)]
            mine[0].ack()
            await one.leave()
            theirs = [await anext(other) for _ in range(3)]
            assert sorted([mine[0].body, *[job.body for job in theirs]]) == [b"0", b"1", b"2", b"3"]
            assert mine[1].body in {job.body for job in theirs}
            mine[1].ack()  # too late: it is another's now
            for job in theirs:
                job.ack()
            await hub.publish(queue, "last")
            assert (await anext(other)).body == b"last"

    run(main)


def test_a_cancelled_subscribe_is_undone(url: str) -> None:
    async def main() -> None:
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            subscribing = asyncio.create_task(hub.subscribe("undone"))
            await asyncio.sleep(0)
            subscribing.cancel()
            await asyncio.wait([subscribing])
            with pytest.raises(Failure) as unknown:
                await peer.ask(b"", (("op", "unsubscribe"), ("destination", "undone")))
            assert unknown.value.code == "404"

    run(main)


def test_a_service_of_one_peer_is_called_by_another(url: str) -> None:
    async def shout(request: Request) -> Reply:
        if request.method == "fail":
            raise Failure(418, "teapot")
        return Reply(request.body.upper(), (("by", request.service),))

    async def main() -> None:
        async with connect(url) as one, connect(url) as other:
            serving = RemoteHub(one)
            await serving.serve("shouting", shout)
            calling = RemoteHub(other)
            answer = await calling.call("shouting", "text", "hello")
            assert (answer.body, dict(answer.headers)) == (b"HELLO", {"by": "shouting"})
            with pytest.raises(Failure, match="418 teapot"):
                await calling.call("shouting", "fail")
            await serving.unserve("shouting")
            with pytest.raises(Failure) as failure:
                await calling.call("shouting", "text")
            assert failure.value.code == "404"

    run(main)


def test_many_subscriptions_and_publishers_share_one_session(url: str) -> None:
    async def main() -> None:
        async with connect(url) as peer:
            hub = RemoteHub(peer)
            subscriptions = await asyncio.gather(*[hub.subscribe(f"many/{number}") for number in range(20)])
            await asyncio.gather(*[hub.publish(f"many/{number % 20}", str(number)) for number in range(400)])
            for number, subscription in enumerate(subscriptions):
                found = [int((await subscription.__anext__()).body) for _ in range(20)]
                assert found == list(range(number, 400, 20))

    run(main)
