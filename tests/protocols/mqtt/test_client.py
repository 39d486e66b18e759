"""The MQTT client against a running hub and against Mosquitto, through a proxy that cuts, delays and splits."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.backoff import Backoff
from polywire.client.errors import ConnectFailed, Refused
from polywire.client.outgoing import Promise
from polywire.client.tls import client_context
from polywire.protocols.mqtt import Publish, Will, connect
from tests.client.loops import run, until
from tests.faults.proxy import Proxy, octets, proxied, random_cuts
from tests.hub_process import HubProcess, running_hub
from tests.mosquitto_process import MISSING, PROGRAM, running_mosquitto
from tests.server.certificates import Authority

QUICK = Backoff(first=0.01, most=0.05)
LEVELS = (0, 1, 2)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as port:
        yield port


@pytest.fixture(params=["hub", "hub over WebSocket", "mosquitto"])
def url(request: pytest.FixtureRequest) -> str:
    """Where an MQTT server is."""
    if request.param == "mosquitto":
        return f"mqtt://127.0.0.1:{request.getfixturevalue('mosquitto')}"
    hub: HubProcess = request.getfixturevalue("hub")
    return hub.addresses["mqtt_ws" if "Web" in request.param else "mqtt"].replace("ws://", "mqtt+ws://")


@pytest.fixture
def name() -> str:
    """A topic nobody else uses."""
    return f"client/{secrets.token_hex(4)}"


@pytest.mark.rule("MQTT-171", "MQTT-174")
@pytest.mark.parametrize("subscribed", LEVELS)
@pytest.mark.parametrize("published", LEVELS)
def test_what_one_publishes_another_gets(url: str, name: str, published: int, subscribed: int) -> None:
    async def main() -> None:
        async with connect(url) as one, connect(url) as other:
            messages = await one.subscribe(f"{name}/+", qos=subscribed)
            assert messages.granted == subscribed
            promise = await other.publish(f"{name}/a", b"1", qos=published)
            assert promise is (Promise.ACKNOWLEDGED if published else Promise.SENT)
            other.publish(f"{name}/b", b"", qos=published)
            first, second = await anext(messages), await anext(messages)
            assert (first.topic, first.payload, first.qos) == (f"{name}/a", b"1", min(published, subscribed))
            assert (second.topic, second.payload) == (f"{name}/b", b"")

    run(main)


def test_a_thousand_messages_of_each_level_arrive_once_and_in_order(url: str, name: str) -> None:
    async def main() -> None:
        async with connect(url) as one, connect(url, window=50) as other:
            messages = await one.subscribe(name, qos=2)
            for qos in LEVELS:
                receipts = [other.publish(name, f"{qos} {number}".encode(), qos=qos) for number in range(1000)]
                for receipt in receipts:
                    await receipt
                for number in range(1000):
                    assert (await anext(messages)).payload == f"{qos} {number}".encode()

    run(main)


def test_a_late_subscriber_gets_the_retained_message(url: str, name: str) -> None:
    async def main() -> None:
        async with connect(url) as client:
            await client.publish(name, b"kept", qos=1, retain=True)
            messages = await client.subscribe(name)
            assert await anext(messages) == Publish(name, b"kept", retain=True)
            await client.publish(name, b"", qos=1, retain=True)

    run(main)


def test_a_will_is_published_unless_the_client_disconnects(url: str, name: str) -> None:
    async def main() -> None:
        async with connect(url) as reader:
            messages = await reader.subscribe(f"{name}/#")
            async with connect(url, will=Will(f"{name}/polite", b"never")):
                pass
            rude = await connect(url, will=Will(f"{name}/rude", b"gone"), backoff=None)
            assert rude._peer.link is not None
            rude._peer.link.abort()
            assert (await anext(messages)).topic == f"{name}/rude"
            await rude.close()

    run(main)


def test_a_server_keeps_messages_for_a_session_that_outlives_its_connection(url: str, name: str) -> None:
    async def main() -> None:
        client_id = name.replace("/", "-")
        async with connect(url, client_id=client_id, clean_session=False) as client:
            assert not client.session_present
            await client.subscribe(name, qos=1)
        async with connect(url) as other:
            await other.publish(name, b"meanwhile", qos=1)
        async with connect(url, client_id=client_id, clean_session=False) as client:
            assert client.session_present
            messages = await client.subscribe(name, qos=1)
            assert (await anext(messages)).payload == b"meanwhile"
        async with connect(url, client_id=client_id) as client:
            assert not client.session_present

    run(main)


def test_an_unsubscribed_topic_is_no_longer_heard(url: str, name: str) -> None:
    async def main() -> None:
        async with connect(url) as client:
            gone, stays = await client.subscribe(f"{name}/a"), await client.subscribe(f"{name}/b")
            gone.close()
            await client.publish(f"{name}/a", b"1")
            await client.publish(f"{name}/b", b"2")
            assert (await anext(stays)).payload == b"2"
            assert client.discarded == 0
            assert [each async for each in gone] == []

    run(main)


def test_a_message_that_is_not_acknowledged_comes_again(url: str, name: str) -> None:
    async def main() -> None:
        client_id = name.replace("/", "-")
        async with connect(url) as other:
            first = await connect(url, client_id=client_id, clean_session=False, backoff=None)
            deliveries = await first.consume(name, qos=1)
            await other.publish(name, b"1", qos=1)
            await other.publish(name, b"2", qos=1)
            delivery = await anext(deliveries)
            delivery.ack()
            delivery.ack()
            assert (await anext(deliveries)).message.payload == b"2"
            await first.ping()
            assert first._peer.link is not None
            first._peer.link.abort()
            await first.close()
            async with connect(url, client_id=client_id, clean_session=False) as second:
                deliveries = await second.consume(name, qos=1)
                again = await anext(deliveries)
                assert (again.message.payload, again.message.dup) == (b"2", True)
                again.ack()
            async with connect(url, client_id=client_id):
                pass

    run(main)


def test_the_server_answers_a_ping(url: str) -> None:
    async def main() -> None:
        async with connect(url) as client:
            await asyncio.gather(client.ping(), client.ping())

    run(main)


@pytest.mark.parametrize("cut", [octets, random_cuts(11)], ids=["octets", "random"])
@pytest.mark.parametrize("qos", LEVELS)
def test_however_it_is_cut_everything_arrives_in_order(hub: HubProcess, name: str, qos: int, cut: object) -> None:
    async def main() -> None:
        async with connect(f"mqtt://127.0.0.1:{port}") as client:
            messages = await client.subscribe(name, qos=qos)
            for number in range(100):
                client.publish(name, str(number).encode() * 20, qos=qos)
            for number in range(100):
                assert (await anext(messages)).payload == str(number).encode() * 20

    with proxied(hub.port("mqtt"), cut) as port:  # type: ignore[arg-type] # one of the two
        run(main)


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledged_messages_all_arrive_however_often_the_connection_is_cut(
    hub: HubProcess, name: str, qos: int
) -> None:
    async def main() -> None:
        async with (
            connect(there, backoff=QUICK, client_id=f"{client_id}-p", clean_session=False) as publisher,
            connect(there, backoff=QUICK, client_id=f"{client_id}-s", clean_session=False) as subscriber,
        ):
            messages = await subscriber.subscribe(name, qos=qos)
            got: list[int] = []

            async def read() -> None:
                while not got or got[-1] != 800:
                    got.append(int((await anext(messages)).payload))

            async def write() -> None:
                receipts = [publisher.publish(name, str(number).encode(), qos=qos) for number in range(801)]
                for receipt in receipts:
                    assert await receipt is Promise.ACKNOWLEDGED

            async def cut() -> None:
                for _ in range(5):
                    await until(lambda: publisher.connected and subscriber.connected)
                    heard = len(got)
                    await until(lambda before=heard: len(got) > before + 30 or got[-1:] == [800])  # type: ignore[misc]
                    proxy.cut()

            await asyncio.gather(read(), write(), cut())
            if qos == 1:
                assert set(got) == set(range(801))
            else:
                assert got == list(range(801))
        for each in ("p", "s"):
            async with connect(there, client_id=f"{client_id}-{each}"):
                pass

    client_id = name.replace("/", "-")
    proxy = Proxy(hub.port("mqtt"))
    there = f"mqtt://127.0.0.1:{proxy.port}"
    try:
        run(main)
    finally:
        proxy.close()


def test_a_hub_restarted_under_a_publisher_and_a_subscriber_finds_both_again(name: str) -> None:
    async def main() -> None:
        async with connect(here, backoff=QUICK) as publisher, connect(there, backoff=QUICK) as subscriber:
            messages = await subscriber.subscribe(name, qos=1)
            await publisher.publish(name, b"before", qos=1)
            assert (await anext(messages)).payload == b"before"
            await asyncio.to_thread(first.process.kill)
            await until(lambda: not publisher.connected and not subscriber.connected)
            kept = [publisher.publish(name, str(number).encode(), qos=1) for number in range(1000)]
            # The subscriber is back first: without a journal a hub that was killed remembers nobody.
            with_subscriber.retarget(second.port("mqtt"))
            await until(lambda: subscriber.connected)
            await subscriber.ping()
            with_publisher.retarget(second.port("mqtt"))
            assert {await receipt for receipt in kept} == {Promise.ACKNOWLEDGED}
            for number in range(1000):
                assert (await anext(messages)).payload == str(number).encode()

    with running_hub() as first, running_hub() as second:
        with_publisher, with_subscriber = Proxy(first.port("mqtt")), Proxy(first.port("mqtt"))
        here, there = (f"mqtt://127.0.0.1:{proxy.port}" for proxy in (with_publisher, with_subscriber))
        try:
            run(main)
        finally:
            with_publisher.close()
            with_subscriber.close()


def test_it_speaks_over_tls_web_sockets_and_unix_sockets(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("localhost")

    async def main(address: str) -> None:
        async with connect(address, tls=client_context(ca=authority.root)) as client:
            messages = await client.subscribe("a", qos=1)
            await client.publish("a", b"1", qos=1)
            assert (await anext(messages)).payload == b"1"

    with running_hub(
        "listen.mqtt=tls://localhost:0",
        "listen.mqtt_ws=wss://localhost:0/mqtt",
        "listen.umq=off",
        "listen.sabc_ws=off",
        f"tls.certificate={certificate}",
        f"tls.key={certificate}",
    ) as hub:
        run(lambda: main(hub.addresses["mqtt"].replace("tls:", "mqtts:")))
        run(lambda: main(hub.addresses["mqtt_ws"].replace("wss:", "mqtt+wss:")))
    with running_hub(f"listen.mqtt=unix:{tmp_path}/mqtt.sock") as hub:
        run(lambda: main(hub.addresses["mqtt"]))


def test_a_server_that_is_not_there_or_not_one_is_said_so(hub: HubProcess) -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed, match="refused"):
            await connect("mqtt://127.0.0.1:1")
        with pytest.raises(
            ConnectFailed, match=r"no CONNACK received within 0\.3 s|closed the connection before answering CONNECT"
        ):
            await connect(f"mqtt://127.0.0.1:{hub.port('fmqp')}", connect_time=0.3)

    run(main)


def test_a_wrong_password_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("", encoding="utf-8")

    async def main() -> None:
        with pytest.raises(Refused, match="wrong user name or password") as caught:
            await connect(guarded.addresses["mqtt"], user="anna", password="wrong")
        assert (caught.value.code, caught.value.temporary) == (4, False)
        assert "wrong" not in repr(caught.value).replace("wrong user", "")

    with running_hub(f"auth.users={users}") as guarded:
        run(main)
