"""The FMQP client against a running hub, through a proxy that cuts, and against a broker of a few lines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from polywire.backoff import Backoff
from polywire.client.address import parse
from polywire.client.errors import BufferFull, Closed, ConnectFailed, ConnectionLost, Timeout
from polywire.client.link import Link
from polywire.client.outgoing import BUFFER, Promise
from polywire.client.tls import client_context
from polywire.client.transport import listen
from polywire.protocols.fmqp import Decoder, Demand, LocalProtocolError, Publication, Subscription, Unsubscription
from polywire.protocols.fmqp.client import Client, connect
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, LAST_WILL, encode, encode_count
from polywire.wire.frame import Frame
from tests.client.loops import run, until
from tests.faults.proxy import Proxy, octets, proxied, random_cuts
from tests.hub_process import HubProcess, running_hub
from tests.server.certificates import Authority

QUICK = Backoff(first=0.01, most=0.05)
SLOW = Backoff(first=0.5, most=0.5)
"""Never less than 50 ms: long enough to be seen away."""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def url(hub: HubProcess) -> str:
    return hub.addresses["fmqp"]


class Broker:
    """Keeps what clients say, and says what it is told to."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.links: list[Link] = []
        self._decoder = Decoder()

    def accept(self, link: Link) -> "Broker":
        self.links.append(link)
        self._decoder = Decoder()
        return self

    def received(self, data: bytes, _text: bool, /) -> None:
        for frame in self._decoder.feed(data):
            if not isinstance(frame, Subscription | Unsubscription) or not frame.topic.startswith("$/settled/"):
                self.frames.append(frame)
            elif isinstance(frame, Subscription) and not frame.flags:
                self.say(Publication(frame.topic, encode_count(1), FEEDBACK))

    def lost(self, error: Exception | None, /) -> None:
        pass

    def say(self, frame: Frame) -> None:
        self.links[-1].write(encode(frame))


@contextlib.asynccontextmanager
async def brokered(*, backoff: Backoff = QUICK, buffer: int = BUFFER) -> AsyncIterator[tuple[Broker, Client]]:
    broker = Broker()
    listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), broker.accept)
    client = Client(listener.address, backoff=backoff, buffer=buffer)
    await client.start()
    await until(lambda: bool(broker.links))
    try:
        yield broker, client
    finally:
        await client.close()
        await listener.close()


def test_what_one_publishes_another_gets(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as one, connect(url(hub)) as other, one.subscribe("/client/*/one/") as messages:
            await one.settled()
            assert await other.publish("client/a/one", b"1") is Promise.SENT
            await other.publish("client/b/one/", b"2")
            assert await anext(messages) == Publication("client/a/one", b"1")
            assert await anext(messages) == Publication("client/b/one", b"2")

    run(main)


def test_a_message_goes_to_every_subscription_that_matches(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as client:
            exact, wild, other = client.subscribe("each/a"), client.subscribe("each/*"), client.subscribe("other/*")
            await client.publish("each/a", b"1")
            await client.publish("other/a", b"2")
            assert (await anext(exact)).body == b"1"
            assert (await anext(wild)).body == b"1"
            assert (await anext(other)).body == b"2"
            exact.close()
            await client.publish("each/a", b"3")
            assert (await anext(wild)).body == b"3"
            assert [each async for each in exact] == []

    run(main)


def test_a_late_subscriber_gets_the_cached_message(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as client:
            client.publish("cached/x", b"kept", cache=True)
            first = client.subscribe("cached/x")
            assert await anext(first) == Publication("cached/x", b"kept", CACHE)
            second = client.subscribe("cached/x")
            assert await anext(second) == Publication("cached/x", b"kept", CACHE)
            client.clear("cached/x")
            third = client.subscribe("cached/x")
            await client.settled()
            assert len(third) == 0

    run(main)


def test_a_publisher_hears_of_the_demand(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as publisher, connect(url(hub)) as subscriber:
            demand = publisher.watch("demand/*")
            await publisher.settled()
            async with subscriber.subscribe("demand/a"):
                assert await anext(demand) == Demand("demand/a", 1)
                subscriber.subscribe("demand/b", debug=True)
                await subscriber.settled()
            assert await anext(demand) == Demand("demand/a", 0)
            demand.close()

    run(main)


@pytest.mark.rule("FMQP-66", "FMQP-78")
def test_a_late_watch_tells_deserted_topics_from_those_never_subscribed_to(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as publisher, connect(url(hub)) as subscriber:
            async with subscriber.subscribe("late/deserted"):
                pass
            subscriber.subscribe("late/wanted")
            await subscriber.settled()
            demand = publisher.watch("late/*")
            found = {await anext(demand), await anext(demand)}
            assert found == {Demand("late/deserted", 0), Demand("late/wanted", 1)}
            never = publisher.watch("later/never")
            await publisher.settled()
            assert (len(demand), len(never)) == (0, 0)
            subscriber.subscribe("late/wanted")
            assert await anext(demand) == Demand("late/wanted", 1)

    run(main)


def test_every_will_is_published_in_order_when_its_client_is_gone(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as reader:
            messages = reader.subscribe("will/*")
            await reader.settled()
            async with connect(url(hub)) as writer:
                writer.leave_will("will/a", b"first")
                writer.leave_will("will/b", b"second")
                writer.leave_will("will/a", b"third")
            assert [await anext(messages) for _ in range(3)] == [
                Publication("will/a", b"first"),
                Publication("will/b", b"second"),
                Publication("will/a", b"third"),
            ]

    run(main)


def test_a_queue_gives_each_message_to_one_of_its_consumers(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(url(hub)) as one, connect(url(hub)) as other:
            ones, others = one.subscribe("queue/fmqp-client"), other.subscribe("queue/fmqp-client")
            await one.settled()
            await other.settled()
            for number in range(20):
                await one.publish("queue/fmqp-client", str(number).encode())
            await until(lambda: len(ones) + len(others) == 20)

    run(main)


@pytest.mark.parametrize("cut", [octets, random_cuts(3)], ids=["octets", "random"])
def test_however_it_is_cut_everything_arrives_in_order(hub: HubProcess, cut: object) -> None:
    async def main() -> None:
        async with connect(f"fmqp://127.0.0.1:{port}") as client:
            messages = client.subscribe("cut/*")
            await client.settled()
            for number in range(200):
                await client.publish(f"cut/{number % 3}", str(number).encode() * 20)
            for number in range(200):
                assert (await anext(messages)).body == str(number).encode() * 20

    with proxied(hub.port("fmqp"), cut) as port:  # type: ignore[arg-type] # one of the two
        run(main)


def test_it_speaks_over_a_unix_socket_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("localhost")

    async def main(address: str) -> None:
        async with connect(address, tls=client_context(ca=authority.root)) as client:
            messages = client.subscribe("a")
            await client.publish("a", b"1")
            assert (await anext(messages)).body == b"1"

    with running_hub(f"listen.fmqp=unix:{tmp_path}/fmqp.sock") as hub:
        run(lambda: main(hub.addresses["fmqp"]))
    with running_hub(
        "listen.fmqp=tls://localhost:0", f"tls.certificate={certificate}", f"tls.key={certificate}"
    ) as hub:
        run(lambda: main(hub.addresses["fmqp"]))


def test_a_hub_restarted_under_a_publisher_and_a_subscriber_finds_both_again() -> None:
    async def main() -> None:
        async with connect(here, backoff=QUICK) as publisher, connect(there, backoff=QUICK) as subscriber:
            messages = subscriber.subscribe("restart/*")
            publisher.leave_will("restart/will", b"again")
            await subscriber.settled()
            await publisher.publish("restart/a", b"before")
            assert (await anext(messages)).body == b"before"
            await asyncio.to_thread(first.process.kill)
            await until(lambda: not publisher.connected and not subscriber.connected)
            kept = [publisher.publish("restart/a", str(number).encode()) for number in range(100)]
            assert not any(receipt.done for receipt in kept)
            # The subscriber is back first: FMQP keeps nothing for those who are not there.
            with_subscriber.retarget(second.port("fmqp"))
            await until(lambda: subscriber.connected)
            await subscriber.settled()
            with_publisher.retarget(second.port("fmqp"))
            assert [await receipt for receipt in kept] == [Promise.SENT] * 100
            for number in range(100):
                assert (await anext(messages)).body == str(number).encode()
            with_publisher.cut()
            assert await anext(messages) == Publication("restart/will", b"again")

    with running_hub() as first, running_hub() as second:
        with_publisher = Proxy(first.port("fmqp"))
        with_subscriber = Proxy(first.port("fmqp"))
        try:
            here, there = (f"fmqp://127.0.0.1:{proxy.port}" for proxy in (with_publisher, with_subscriber))
            run(main)
        finally:
            with_publisher.close()
            with_subscriber.close()


def test_after_a_lost_connection_everything_is_said_again() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            client.subscribe("a")
            client.subscribe("b", debug=True)
            gone = client.subscribe("c")
            client.watch("d")
            client.leave_will("e", b"will", cache=True)
            gone.close()
            await until(lambda: len(broker.frames) == 6)
            broker.frames.clear()
            broker.links[0].abort()
            await until(lambda: len(broker.links) == 2)
            await until(lambda: len(broker.frames) == 4)
            assert broker.frames == [
                Publication("e", b"will", LAST_WILL | CACHE),
                Subscription("a"),
                Subscription("b", 0x10),
                Subscription("d", FEEDBACK),
            ]

    run(main)


def test_closing_a_subscription_unsubscribes_once_the_last_one_is_closed() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            one, other = client.subscribe("a"), client.subscribe("a")
            one.close()
            one.close()
            await client.settled()
            assert Unsubscription("a") not in broker.frames
            other.close()
            await until(lambda: broker.frames[-1] == Unsubscription("a"))

    run(main)


def test_what_is_published_while_away_is_bounded() -> None:
    async def main() -> None:
        async with brokered(backoff=SLOW, buffer=10_000) as (broker, client):
            broker.links[0].abort()
            await until(lambda: not client.connected)
            for _ in range(8):
                client.publish("a", bytes(1000))
            with pytest.raises(BufferFull) as caught:
                client.publish("a", bytes(2000))
            assert caught.value.limit == 10_000
            assert caught.value.sent is False
            await until(lambda: client.connected)
            assert await client.publish("a", b"1") is Promise.SENT

    run(main)


def test_a_publish_cancelled_while_away_is_never_sent() -> None:
    async def main() -> None:
        async with brokered(backoff=SLOW) as (broker, client):
            broker.links[0].abort()
            await until(lambda: not client.connected)

            async def publish(body: bytes) -> Promise:
                return await client.publish("a", body)

            first, second = asyncio.create_task(publish(b"1")), asyncio.create_task(publish(b"2"))
            await asyncio.sleep(0)
            first.cancel()
            assert await second is Promise.SENT
            assert first.cancelled()
            await until(lambda: bool(broker.frames))
            assert broker.frames == [Publication("a", b"2")]

    run(main)


def test_a_publisher_waits_for_a_broker_that_does_not_read() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            broker.links[0].pause_reading()
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    while sent < 5000:
                        await client.publish("a", bytes(10_000))
                        sent += 1
            assert 0 < sent < 5000
            broker.links[0].resume_reading()
            assert await client.publish("a", b"last") is Promise.SENT
            await until(lambda: broker.frames[-1] == Publication("a", b"last"))
            assert len(broker.frames) == sent + 1

    run(main)


def test_a_reader_that_is_slow_makes_the_broker_wait() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            messages = client.subscribe("a", limit=100)
            await client.settled()
            said = 0
            while said < 64 * 1024 * 1024:
                broker.links[0].write(encode(Publication("a", bytes(50_000))))
                said += 50_000
                try:
                    async with asyncio.timeout(0.3):
                        await broker.links[0].room()
                except TimeoutError:
                    break
            assert said < 64 * 1024 * 1024
            for _ in range(said // 50_000):
                await anext(messages)
            await broker.links[0].room()

    run(main)


def test_a_client_that_is_closed_ends_its_subscriptions_and_takes_nothing_more() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            messages = client.subscribe("a")
            reading = asyncio.create_task(_all(messages))
            await client.settled()
            broker.say(Publication("a", b"1"))
            await client.settled()
            await client.close()
            assert await reading == [b"1"]
            with pytest.raises(Closed) as caught:
                client.publish("a", b"2")
            assert caught.value.sent is False
            with pytest.raises(Closed):
                client.subscribe("b")

    run(main)


async def _all(messages: AsyncIterator[Publication]) -> list[bytes]:
    return [message.body async for message in messages]


def test_without_backoff_a_lost_connection_is_the_end() -> None:
    async def main() -> None:
        broker = Broker()
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), broker.accept)
        async with connect(str(listener.address), backoff=None) as client:
            messages = client.subscribe("a")
            await until(lambda: bool(broker.frames))
            broker.links[0].abort()
            with pytest.raises(Closed, match="gone for good") as caught:
                await anext(messages)
            assert isinstance(caught.value.__cause__, ConnectionLost | ConnectionResetError)
            with pytest.raises(Closed):
                client.publish("a", b"1")
        await listener.close()

    run(main)


def test_a_client_gives_up_when_its_time_is_over() -> None:
    async def main() -> None:
        broker = Broker()
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), broker.accept)
        async with connect(str(listener.address), backoff=Backoff(first=0.01, most=0.02, give_up=0.1)) as client:
            await until(lambda: bool(broker.links))
            await listener.close()
            await until(lambda: not client.connected)
            kept = client.publish("a", b"1")
            with pytest.raises(Closed, match="not sent") as caught:
                await kept
            assert caught.value.sent is False

    run(main)


def test_the_first_connection_must_succeed() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed, match="refused"):
            await connect("fmqp://127.0.0.1:1")

    run(main)


def test_what_fmqp_does_not_allow_is_refused_at_once() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            for topic in ("", "///", "a\0b", "x" * 256):
                with pytest.raises(LocalProtocolError):
                    client.publish(topic, b"")
                with pytest.raises(LocalProtocolError):
                    client.subscribe(topic)
                with pytest.raises(LocalProtocolError):
                    client.watch(topic)
            await client.settled()
            assert broker.frames == []

    run(main)


def test_settling_takes_no_longer_than_told() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            broker.links[0].pause_reading()
            with pytest.raises(Timeout, match=r"settling took longer than 0\.1 s"):
                await client.settled(0.1)
            waiting = asyncio.create_task(client.settled())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert len(client._round_trips) == 0
            broker.links[0].resume_reading()
            await client.settled()

    run(main)


def test_waiting_for_a_message_can_be_cancelled() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            messages = client.subscribe("a")
            waiting = asyncio.create_task(_all(messages))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await client.settled()
            broker.say(Publication("a", b"1"))
            assert (await anext(messages)).body == b"1"

    run(main)


def test_packets_nobody_listens_to_are_dropped_and_counted() -> None:
    async def main() -> None:
        async with brokered() as (broker, client):
            await client.settled()
            before = client.discarded
            broker.say(Publication("nobody", b"1"))
            broker.links[0].write(b"\x00\x01\x00\x00\x00\x00\xff")
            broker.say(Publication("nobody", b"1", CACHE))
            await client.settled()
            assert client.discarded >= before + 3

    run(main)


def test_a_slow_way_to_the_broker_loses_nothing(hub: HubProcess) -> None:
    async def main() -> None:
        async with connect(f"fmqp://127.0.0.1:{port}") as client, client.subscribe("slow/*") as messages:
            await client.settled()
            for number in range(50):
                await client.publish("slow/a", str(number).encode())
            assert [(await anext(messages)).body for _ in range(50)] == [str(number).encode() for number in range(50)]

    with proxied(hub.port("fmqp"), random_cuts(5), delay=0.002) as port:
        run(main)


@pytest.mark.parametrize("turns", range(12))
def test_connecting_can_be_cancelled_at_any_moment(turns: int) -> None:
    async def main() -> None:
        broker = Broker()
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), broker.accept)
        connecting = asyncio.ensure_future(_opened(str(listener.address)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not connecting.done():
            connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():
            await connecting.result().close()
        # Whether it was accepted or not: nothing stays open.
        await until(lambda: not listener.links)
        await listener.close()

    run(main)


async def _opened(address: str) -> Client:
    return await connect(address)


@pytest.mark.parametrize("turns", range(1, 5))
def test_closing_can_be_cancelled_and_closes_all_the_same(turns: int) -> None:
    async def main() -> None:
        broker = Broker()
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), broker.accept)
        client = await connect(str(listener.address))
        await until(lambda: bool(broker.links))
        broker.links[0].pause_reading()
        receipts = []
        with contextlib.suppress(BufferFull):
            for _ in range(10_000):
                receipts.append(client.publish("a", bytes(10_000)))  # noqa: PERF401 - it fails on the way
        closing = asyncio.ensure_future(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert client._link is None
        with pytest.raises(Closed, match="not sent"):
            await receipts[-1]
        broker.links[0].resume_reading()
        await until(lambda: not listener.links)
        await listener.close()

    run(main)
