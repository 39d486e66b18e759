"""The MQTT client against a server of a few lines, which shows what it says, and when."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.server import ServerConnection, serve

from polywire.backoff import Backoff
from polywire.client.address import parse
from polywire.client.errors import BufferFull, Closed, ConnectFailed, Refused, Timeout
from polywire.client.link import Link
from polywire.client.outgoing import Promise
from polywire.client.transport import listen
from polywire.protocols.mqtt import (
    Client,
    Connack,
    Connect,
    Delivery,
    Disconnect,
    LocalProtocolError,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RemoteProtocolError,
    Subscribe,
    Unsubscribe,
    connect,
    encode,
)
from polywire.protocols.mqtt import peer as peer_module
from tests.client.loops import run, until
from tests.protocols.mqtt.server_of_lines import SLOW, Server, served


async def cut(server: Server, client: Client) -> None:
    """Hang up, and wait until the client has come back."""
    links = len(server.links)
    server.links[-1].abort()
    await until(lambda: len(server.links) > links and client.connected)


@pytest.mark.rule("MQTT-053")
def test_a_silent_client_sends_a_ping_within_its_keep_alive() -> None:
    async def main() -> None:
        async with served(keep_alive=1) as (server, client):
            await until(lambda: len(server.heard(Pingreq)) == 2)
            assert client.connected

    run(main)


def test_a_server_that_does_not_answer_pings_is_left() -> None:
    async def main() -> None:
        async with served(keep_alive=1) as (server, client):
            server.silent.add("Pingreq")
            await until(lambda: len(server.links) == 2)
            server.silent.clear()
            await until(lambda: client.connected)

    run(main)


@pytest.mark.rule("MQTT-135")
def test_a_client_disconnects_and_then_closes_the_connection() -> None:
    async def main() -> None:
        async with served() as (server, client):
            await client.close()
            await until(lambda: server.ends == 1)
            assert isinstance(server.frames[-1], Disconnect)

    run(main)


@pytest.mark.rule("MQTT-169")
def test_a_web_socket_client_offers_the_subprotocol_mqtt() -> None:
    async def main() -> None:
        offered: list[str | None] = []

        async def handle(connection: ServerConnection) -> None:
            assert connection.request is not None
            offered.append(connection.request.headers.get("Sec-WebSocket-Protocol"))
            assert await connection.recv()
            await connection.send(encode(Connack(session_present=False, return_code=0)))
            await connection.wait_closed()

        async with serve(handle, "127.0.0.1", 0, subprotocols=["mqtt"]) as server:  # type: ignore[list-item] # a str
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"mqtt+ws://127.0.0.1:{port}/any"):
                pass
        assert offered == ["mqtt"]

    run(main)


def test_connect_says_who_the_client_is() -> None:
    async def main() -> None:
        async with served(url="mqtt://anna:secret@127.0.0.1:0", keep_alive=7, client_id="me") as (server, _):
            assert server.frames == [
                Connect("me", clean_session=True, keep_alive=7, will=None, user_name="anna", password=b"secret")
            ]
        async with served(url="mqtt://127.0.0.1:0?token=abc") as (server, client):
            (frame,) = server.frames
            assert isinstance(frame, Connect)
            assert (frame.client_id, frame.user_name, frame.password) == (client.client_id, "token", b"abc")

    run(main)


def test_what_was_unacknowledged_goes_again_under_its_id_to_a_server_that_remembers() -> None:
    async def main() -> None:
        async with served(client_id="me", clean_session=False) as (server, client):
            server.connack = Connack(session_present=True, return_code=0)
            server.silent |= {"Publish", "Pubrel"}
            first, second = client.publish("a", b"1", qos=1), client.publish("a", b"2", qos=2)
            third = client.publish("a", b"3", qos=2)
            await until(lambda: len(server.heard(Publish)) == 3)
            server.say(Pubrec(3))
            await until(lambda: bool(server.heard(Pubrel)))
            server.frames.clear()
            server.silent.clear()
            await cut(server, client)
            assert [await first, await second, await third] == [Promise.ACKNOWLEDGED] * 3
            assert server.frames[1:4] == [
                Pubrel(3),
                Publish("a", b"1", 1, dup=True, packet_id=1),
                Publish("a", b"2", 2, dup=True, packet_id=2),
            ]

    run(main)


def test_what_was_unacknowledged_is_new_to_a_server_that_has_forgotten() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.silent |= {"Publish", "Pubrel"}
            first, second = client.publish("a", b"1", qos=1), client.publish("a", b"2", qos=2)
            await until(lambda: len(server.heard(Publish)) == 2)
            server.say(Pubrec(2))
            await until(lambda: bool(server.heard(Pubrel)))
            assert not second.done
            server.frames.clear()
            server.silent.clear()
            await cut(server, client)
            assert [await first, await second] == [Promise.ACKNOWLEDGED] * 2
            assert server.heard(Publish) == [Publish("a", b"1", 1, packet_id=1)]
            assert not server.heard(Pubrel)

    run(main)


def test_subscriptions_are_made_again_where_the_server_has_forgotten_them() -> None:
    async def main() -> None:
        async with served() as (server, client):
            await client.subscribe("a", qos=1)
            await client.subscribe("a", qos=2)
            gone = await client.subscribe("b")
            gone.close()
            server.frames.clear()
            await cut(server, client)
            assert server.heard(Subscribe) == [Subscribe(1, (("a", 2),))]

    run(main)


def test_a_server_that_remembers_is_told_only_what_has_changed() -> None:
    async def main() -> None:
        async with served(client_id="me", clean_session=False, backoff=SLOW) as (server, client):
            server.connack = Connack(session_present=True, return_code=0)
            await client.subscribe("a")
            gone = await client.subscribe("b")
            server.frames.clear()
            server.links[-1].abort()
            await until(lambda: not client.connected)
            gone.close()
            new = await client.subscribe("c")
            await until(lambda: bool(server.heard(Unsubscribe)))
            assert [type(frame) for frame in server.frames] == [Connect, Subscribe, Unsubscribe]
            assert server.heard(Subscribe) == [Subscribe(3, (("c", 0),))]
            assert server.heard(Unsubscribe) == [Unsubscribe(4, ("b",))]
            new.close()

    run(main)


def test_a_refused_subscription_raises_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.refused.add("forbidden")
            with pytest.raises(Refused, match="'forbidden'"):
                await client.subscribe("forbidden")
            assert client._peer.subscriptions.filters(unanswered=False) == []
            kept = await client.subscribe("later")
            server.refused.add("later")
            await cut(server, client)
            with pytest.raises(Refused, match="'later'"):
                await anext(kept)

    run(main)


def test_a_subscription_that_is_cancelled_is_taken_back() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.silent.add("Subscribe")
            waiting = asyncio.create_task(client.subscribe("a"))
            await until(lambda: bool(server.heard(Subscribe)))
            waiting.cancel()
            await until(lambda: bool(server.heard(Unsubscribe)))
            assert client._peer.subscriptions.filters(unanswered=False) == []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.subscribe("b"), 0.05)
            assert client._peer.subscriptions.filters(unanswered=False) == []

    run(main)


def test_acknowledgements_are_sent_in_order_however_readers_take_their_time() -> None:
    async def main() -> None:
        async with served() as (server, client):
            slow, fast = await client.consume("slow", qos=2), await client.subscribe("fast", qos=1)
            server.frames.clear()
            server.say(Publish("slow", b"1", 1, packet_id=1), Publish("fast", b"2", 1, packet_id=2))
            server.say(Publish("nobody", b"3", 1, packet_id=3), Publish("slow", b"4", 2, packet_id=4))
            first, last = await anext(slow), await anext(slow)
            assert (await anext(fast)).payload == b"2"
            last.ack()
            await client.ping()
            assert not server.heard(Puback)
            first.ack()
            await until(lambda: bool(server.heard(Pubrec)))
            wanted = [Puback(1), Puback(2), Puback(3), Pubrec(4)]
            assert [frame for frame in server.frames if isinstance(frame, Puback | Pubrec)] == wanted
            server.say(Publish("slow", b"4", 2, dup=True, packet_id=4), Pubrel(4))
            await until(lambda: bool(server.heard(Pubcomp)))
            assert len(slow) == 0

    run(main)


def test_a_reader_that_stops_holds_nobody_else_up() -> None:
    async def main() -> None:
        async with served() as (server, client):
            slow, fast = await client.consume("slow"), await client.subscribe("fast", qos=1)
            server.say(Publish("slow", b"1", 1, packet_id=1), Publish("fast", b"2", 1, packet_id=2))
            assert (await anext(fast)).payload == b"2"
            slow.close()
            await until(lambda: server.heard(Puback) == [Puback(2)])

    run(main)


def test_an_acknowledgement_is_never_sent_on_another_connection() -> None:
    async def main() -> None:
        async with served() as (server, client):
            deliveries = await client.consume("a")
            server.say(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 1, packet_id=2))
            first = await anext(deliveries)
            await cut(server, client)
            assert len(deliveries) == 0
            first.ack()
            await client.ping()
            assert not server.heard(Puback)

    run(main)


@pytest.mark.rule("MQTT-145")
def test_what_a_reader_had_not_acknowledged_is_delivered_again_and_everything_else_once() -> None:
    async def main() -> None:
        async with served(client_id="me", clean_session=False) as (server, client):
            server.connack = Connack(session_present=True, return_code=0)
            deliveries, messages = await client.consume("slow", qos=2), await client.subscribe("fast", qos=2)
            given_up = await client.consume("closed", qos=2)
            sent = [Publish(topic, b"x", 2, packet_id=id_) for id_, topic in enumerate(("slow", "fast", "closed"), 1)]
            server.say(*sent)
            assert (await anext(deliveries)).message == sent[0]
            assert await anext(messages) == sent[1]
            assert (await anext(given_up)).message == sent[2]
            given_up.close()
            await cut(server, client)
            taken = await client.consume("closed", qos=2)
            assert not server.heard(Pubrec)
            server.say(*[Publish(each.topic, b"x", 2, dup=True, packet_id=each.packet_id) for each in sent])
            for reader in (deliveries, taken):
                (await anext(reader)).ack()
            await until(lambda: server.heard(Pubrec) == [Pubrec(1), Pubrec(2), Pubrec(3)])
            assert (len(deliveries), len(messages), len(taken)) == (0, 0, 0)

    run(main)


def test_a_reader_may_publish_and_wait_though_its_inbox_is_full() -> None:
    async def main() -> None:
        async with served() as (server, client):
            messages = await client.subscribe("in", limit=10)
            for number in range(100):
                server.say(Publish("in", str(number).encode()))
            await client.ping()
            for _ in range(100):
                message = await anext(messages)
                assert await client.publish("out", message.payload, qos=1) is Promise.ACKNOWLEDGED

    run(main)


def test_messages_that_wait_for_their_reader_outlive_the_connection() -> None:
    def remember(server: Server) -> None:
        server.connack = Connack(session_present=True, return_code=0)

    async def main() -> None:
        async with served(client_id="me", clean_session=False, prepare=remember) as (server, client):
            server.say(Publish("a", b"1", 2, packet_id=1))
            await client.ping()
            await cut(server, client)
            server.say(Publish("a", b"1", 2, dup=True, packet_id=1))
            await client.ping()
            messages = await client.subscribe("a", qos=2)
            assert (await anext(messages)).payload == b"1"
            await until(lambda: server.heard(Pubrec) == [Pubrec(1)])

    run(main)


def test_messages_of_a_remembered_session_wait_for_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "CLAIM_TIME", 0.2)

    def remember(server: Server) -> None:
        server.connack = Connack(session_present=True, return_code=0)

    async def main() -> None:
        async with served(client_id="me", clean_session=False, prepare=remember) as (server, client):
            server.say(Publish("a", b"1", 1, packet_id=1), Publish("b", b"2", 1, packet_id=2))
            await client.ping()
            assert not server.heard(Puback)
            messages = await client.subscribe("a", qos=1)
            assert (await anext(messages)).payload == b"1"
            await until(lambda: server.heard(Puback) == [Puback(1), Puback(2)])
            assert client.discarded == 1

    run(main)


def test_a_server_that_says_it_is_busy_is_asked_again_and_one_that_says_no_is_not() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.connack = Connack(session_present=False, return_code=3)
            server.links[-1].abort()
            await until(lambda: len(server.links) == 3)
            server.connack = Connack(session_present=False, return_code=0)
            await until(lambda: client.connected)
            messages = await client.subscribe("a")
            server.connack = Connack(session_present=False, return_code=5)
            server.links[-1].abort()
            with pytest.raises(Closed, match="not authorized") as caught:
                await anext(messages)
            assert isinstance(caught.value.__cause__, Refused)
            with pytest.raises(Closed):
                client.publish("a", b"1")

    run(main)


def test_what_was_published_fails_with_how_far_it_came_when_the_client_is_closed() -> None:
    async def main() -> None:
        async with served(backoff=SLOW, window=1) as (server, client):
            server.silent.add("Publish")
            sent, kept = client.publish("a", b"1", qos=1), client.publish("a", b"2", qos=1)
            await until(lambda: bool(server.heard(Publish)))
            server.links[-1].abort()
            await until(lambda: not client.connected)
            plain = client.publish("a", b"3")
            await client.close()
            for receipt, far in ((sent, True), (kept, False), (plain, False)):
                with pytest.raises(Closed) as caught:
                    await receipt
                assert caught.value.sent is far

    run(main)


def test_closing_waits_a_little_for_acknowledgements() -> None:
    async def main() -> None:
        async with served(window=5) as (_, client):
            receipts = [client.publish("a", b"x", qos=2) for _ in range(100)]
            await client.close()
            assert [await receipt for receipt in receipts] == [Promise.ACKNOWLEDGED] * 100

    run(main)


def test_a_publish_cancelled_before_it_is_sent_is_never_sent() -> None:
    async def main() -> None:
        async with served(backoff=SLOW) as (server, client):
            server.links[-1].abort()
            await until(lambda: not client.connected)

            async def publish(payload: bytes, qos: int) -> Promise:
                return await client.publish("a", payload, qos=qos)

            tasks = [asyncio.create_task(publish(str(qos).encode(), qos)) for qos in (0, 1, 2)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            assert await publish(b"last", 1) is Promise.ACKNOWLEDGED
            assert server.heard(Publish) == [Publish("a", b"last", 1, packet_id=1)]

    run(main)


def test_cancelling_the_wait_for_an_acknowledgement_leaves_the_message_under_way() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.silent.add("Publish")
            receipt = client.publish("a", b"1", qos=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_awaited(receipt), 0.05)
            server.say(Puback(1))
            assert await receipt is Promise.ACKNOWLEDGED

    run(main)


async def _awaited(receipt: object) -> object:
    return await receipt  # type: ignore[misc] # a Receipt


def test_pings_and_waiting_readers_can_be_cancelled() -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.silent.add("Pingreq")
            deliveries = await client.consume("a")
            waiting = [asyncio.create_task(client.ping()), asyncio.create_task(_first(deliveries))]
            await until(lambda: bool(server.heard(Pingreq)))
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            assert all(task.cancelled() for task in waiting)

    run(main)


async def _first(deliveries: AsyncIterator[Delivery]) -> Delivery:
    return await anext(deliveries)


def test_a_server_that_breaks_the_rules_is_left_and_what_was_whole_counts() -> None:
    async def main() -> None:
        async with served(backoff=None) as (server, client):
            messages = await client.subscribe("a")
            server.links[-1].write(encode(Publish("a", b"1")) + b"\xf0\x00")
            assert (await anext(messages)).payload == b"1"
            with pytest.raises(Closed) as caught:
                await anext(messages)
            assert isinstance(caught.value.__cause__, RemoteProtocolError)

    run(main)


def test_what_mqtt_does_not_allow_is_refused_at_once() -> None:
    async def main() -> None:
        async with served() as (server, client):
            for topic in ("", "a/+", "a\0"):
                for qos in (0, 1):
                    with pytest.raises(LocalProtocolError):
                        client.publish(topic, b"", qos=qos)
            for topic_filter in ("", "a/#/b", "a+"):
                with pytest.raises(LocalProtocolError):
                    await client.subscribe(topic_filter)
            await client.ping()
            assert [type(frame) for frame in server.frames] == [Connect, Pingreq]
        with pytest.raises(LocalProtocolError, match="client id"):
            await connect("mqtt://127.0.0.1:1", clean_session=False)

    run(main)


def test_what_waits_is_bounded() -> None:
    async def main() -> None:
        async with served(backoff=SLOW, buffer=5000) as (server, client):
            server.links[-1].abort()
            await until(lambda: not client.connected)
            for qos in (0, 1, 2):
                client.publish("a", bytes(1000), qos=qos)
            with pytest.raises(BufferFull):
                client.publish("a", bytes(4000), qos=1)

    run(main)


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    def silence(server: Server) -> None:
        server.silent.add("Connect")

    async def main() -> None:
        with pytest.raises(ConnectFailed, match=r"no CONNACK received within 0\.1 s"):
            async with served(connect_time=0.1, prepare=silence):
                pass

    run(main)


def test_what_was_sent_again_on_an_attempt_that_took_too_long_is_sent_on_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with served(client_id="me", clean_session=False, connect_time=0.2) as (server, client):
            server.connack = Connack(session_present=True, return_code=0)
            server.silent.add("Publish")
            receipt = client.publish("a", b"1", qos=2)
            await until(lambda: bool(server.heard(Publish)))
            open_ = client._peer.open

            def opened_too_late(link: Link) -> "asyncio.Future[Connack]":
                """The answer is handled, but the time is over at the same moment."""
                open_(link)
                monkeypatch.undo()
                return asyncio.get_running_loop().create_future()

            monkeypatch.setattr(client._peer, "open", opened_too_late)
            server.links[-1].abort()
            await until(lambda: len(server.heard(Publish)) == 2)
            server.silent.clear()
            assert await receipt is Promise.ACKNOWLEDGED
            assert len(server.links) == 3

    run(main)


def test_a_client_that_is_closed_while_it_reconnects_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with served(backoff=Backoff(first=0.01, most=0.01)) as (server, client):
            server.silent.add("Connect")
            server.links[-1].abort()
            await until(lambda: len(server.links) == 2)
            await client.close()
            await until(lambda: server.ends == 2)

    run(main)


def test_the_missing_answer_to_a_ping_is_why_the_connection_ended() -> None:
    async def main() -> None:
        async with served(keep_alive=1, backoff=None) as (server, client):
            server.silent.add("Pingreq")
            messages = await client.subscribe("a")
            with pytest.raises(Closed) as caught:
                await anext(messages)
            assert isinstance(caught.value.__cause__, Timeout)

    run(main)


@pytest.mark.parametrize("turns", range(12))
def test_connecting_can_be_cancelled_at_any_moment(turns: int) -> None:
    async def main() -> None:
        server = Server()
        listener = await listen(parse("mqtt://127.0.0.1:0", any_port=True), server.accept)
        connecting = asyncio.ensure_future(_opened(str(listener.address)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not connecting.done():
            connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():
            await connecting.result().close()
        await until(lambda: not listener.links)
        await listener.close()

    run(main)


async def _opened(address: str) -> Client:
    return await connect(address)


@pytest.mark.parametrize("turns", range(1, 5))
def test_closing_can_be_cancelled_and_closes_all_the_same(turns: int) -> None:
    async def main() -> None:
        async with served() as (server, client):
            server.silent.add("Publish")
            receipt = client.publish("a", b"1", qos=1)
            await until(lambda: bool(server.heard(Publish)))
            closing = asyncio.ensure_future(client.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            with pytest.raises(Closed, match="it was sent"):
                await receipt
            await until(lambda: server.ends == 1)

    run(main)
