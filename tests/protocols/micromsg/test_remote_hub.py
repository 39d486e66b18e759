"""The MicroMsg2 client against a real hub."""

import asyncio
from collections.abc import Iterator

import pytest

from polywire.protocols.micromsg import Clause, Failure, Filter, connect
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as started:
        yield started


def url(hub: HubProcess) -> str:
    return hub.addresses["micromsg"].replace("tcp://", "micromsg://")


def test_what_is_sent_to_a_topic_is_heard(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub), optional=("pub-sub", "batch-ack", "dotnet")) as peer:
            assert peer.agreement is not None
            assert peer.agreement.peer == "polywire"
            assert peer.agreement.window == 256
            warm = Filter((Clause("degrees", ">", 20),))
            async with await peer.subscribe("topic/rooms/*", warm) as rooms:
                await peer.send("topic/rooms/hall", "cold", {"degrees": 10})
                await peer.send("topic/rooms/hall", "warm", {"degrees": 21.5}, type_name="Room")
                message = await rooms.__anext__()
                assert (message.destination, message.payload) == ("topic/rooms/hall", b"warm")
                assert (message.properties, message.type_name) == ({"degrees": 21.5}, "Room")

    run(main)


def test_thousands_of_messages_go_through_the_window_both_ways(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer, await peer.subscribe("topic/flood") as flood:
            acknowledged = [await peer.post("topic/flood", str(number)) for number in range(5000)]
            for number in range(5000):
                assert (await flood.__anext__()).payload == b"%d" % number
            await asyncio.gather(*acknowledged)

    run(main)


def test_what_is_not_acknowledged_goes_to_the_next_consumer(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            for number in range(4):
                await peer.send("fences", str(number))
        async with connect(url(hub)) as one:
            jobs = await one.subscribe("fences")
            assert [(await jobs.__anext__()).payload for _ in range(3)] == [b"0", b"1", b"2"]
            # The third is not acknowledged: nobody has asked for the next one.
        async with connect(url(hub)) as other:
            jobs = await other.subscribe("fences")
            assert [(await jobs.__anext__()).payload for _ in range(2)] == [b"2", b"3"]

    run(main)


def test_what_the_hub_refuses_raises_for_that_message_alone(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as peer:
            outcomes = await asyncio.gather(
                peer.send("topic/fine", "x"),
                peer.send("topic/a/*", "x"),
                peer.send("topic/fine", "x"),
                return_exceptions=True,
            )
            assert [type(each) for each in outcomes] == [type(None), Failure, type(None)]
            with pytest.raises(Failure, match="no-such-destination"):
                await peer.subscribe("topic/a/**/b")

    run(main)
