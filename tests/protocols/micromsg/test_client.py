"""MicroMsg2 between two programs, over real sockets and without a hub: windows, subscriptions, filters, extensions."""

import asyncio
import datetime as dt
import logging
from pathlib import Path

import pytest

from polywire.client.errors import Closed, ConnectFailed, ConnectionLost, Refused, Timeout
from polywire.client.tls import client_context, server_context
from polywire.protocols.micromsg import (
    Clause,
    Command,
    Extension,
    Failure,
    Filter,
    LocalProtocolError,
    Peer,
    Received,
    connect,
    encode,
    publish,
    serve,
)
from tests.client.loops import run, until
from tests.faults.proxy import Cut, octets, proxied, random_cuts
from tests.protocols.micromsg.programs import connected
from tests.server.certificates import Authority

ACKS = pytest.mark.parametrize("acks", [(), ("ack",), ("batch-ack",)], ids=["none", "ack", "batch-ack"])
BODIES = [b"", b"21", b"\x00\xff", b"x" * 255, b"x" * 256, b"x" * 3_000_000]


class Kept:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[Received] = []

    def __call__(self, _: Peer, message: Received) -> None:
        self.messages.append(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


@ACKS
def test_messages_arrive_in_order_whatever_acknowledges_them(acks: tuple[str, ...]) -> None:
    async def main() -> None:
        kept = Kept()
        async with connected(kept, extensions=("pub-sub", *acks)) as both:
            await asyncio.gather(*[both.near.send("jobs", str(number)) for number in range(100)])
            await both.near.ping()
            assert kept.payloads == [b"%d" % number for number in range(100)]
            assert len(both.near.outflow) == 0

    run(main)


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_any_payload_is_carried_with_its_properties(body: bytes) -> None:
    async def main() -> None:
        kept = Kept()
        when = dt.datetime(2014, 10, 13, 11, tzinfo=dt.UTC)
        properties: dict[str, int | float | str | dt.datetime] = {
            "room": 12,
            "warm": 21.5,
            "name": "Küche; : %",
            "at": when,
        }
        async with connected(kept) as both:
            await both.near.send("topic/rooms", body, properties)
            assert kept.payloads == [body]
            assert kept.messages[0].properties == properties
            assert kept.messages[0].destination == "topic/rooms"

    run(main)


def test_either_side_may_send() -> None:
    async def main() -> None:
        kept = Kept()
        async with connected(near=kept) as both:
            await both.far.send("anything", "from the server")
            assert kept.payloads == [b"from the server"]

    run(main)


def test_sending_waits_while_the_window_is_closed() -> None:
    async def main() -> None:
        release = asyncio.Event()
        came = 0

        async def handler(_: Peer, __: Received) -> None:
            nonlocal came
            came += 1
            await release.wait()

        async with connected(handler, window=4) as both:
            sends = [asyncio.create_task(both.near.send("jobs", str(number))) for number in range(10)]
            await until(lambda: came == 4)
            await both.near.ping()
            assert came == 4
            assert len(both.near.outflow) == 4
            release.set()
            await asyncio.gather(*sends)
            assert came == 10

    run(main)


def test_an_ack_never_passes_a_message_that_is_not_done() -> None:
    async def main() -> None:
        first = asyncio.Event()

        async def handler(_: Peer, message: Received) -> None:
            if message.payload == b"first":
                await first.wait()

        async with connected(handler) as both:
            one = await both.near.post("jobs", "first")
            two = await both.near.post("jobs", "second")
            await both.near.ping()
            assert not one.done()
            assert not two.done()
            first.set()
            await one
            await two

    run(main)


def test_a_failure_of_the_handler_is_told_for_that_message_alone(caplog: pytest.LogCaptureFixture) -> None:
    def handler(_: Peer, message: Received) -> None:
        if message.destination == "secrets":
            raise Failure("forbidden", reason="not for you")
        if message.destination == "broken":
            raise ValueError(message.payload)

    async def main() -> None:
        async with connected(handler) as both:
            outcomes = await asyncio.gather(
                *[both.near.send(name, "internal") for name in ("fine", "secrets", "fine", "broken", "fine")],
                return_exceptions=True,
            )
            assert [type(each) for each in outcomes] == [type(None), Failure, type(None), Failure, type(None)]
            assert isinstance(outcomes[1], Failure)
            assert outcomes[1].arguments["reason"] == "not for you"
            assert "internal" not in str(outcomes[3])

    with caplog.at_level(logging.ERROR, "polywire.micromsg"):
        run(main)
    assert "b'internal'" in [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def test_subscribers_get_what_passes_their_filter() -> None:
    async def main() -> None:
        async with connected() as both:
            warm = Filter((Clause("degrees", ">=", 20), Clause("room", "<", "kit")))
            async with await both.near.subscribe("topic/rooms/*", warm) as rooms:
                assert both.far.subscriptions == {"topic/rooms/*": warm}
                sent = [
                    await publish(both.server.peers, "topic/rooms/1", "cold", {"degrees": 10, "room": "kitchen"}),
                    await publish(both.server.peers, "topic/rooms/1", "warm", {"degrees": 20, "room": "kitchen"}),
                    await publish(both.server.peers, "topic/halls/1", "no room", {"degrees": 20, "room": "kitchen"}),
                    await publish(both.server.peers, "topic/rooms/1", "hall", {"degrees": 20, "room": "hall"}),
                    await publish(both.server.peers, "topic/rooms/2", "hot", {"degrees": 30, "room": "kit"}),
                ]
                assert sent == [0, 1, 0, 0, 1]
                assert [(await rooms.__anext__()).payload for _ in range(2)] == [b"warm", b"hot"]
            assert both.far.subscriptions == {}
            assert await publish(both.server.peers, "topic/rooms/1", "x", {"degrees": 20, "room": "kitchen"}) == 0

    run(main)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("**", "a/b", True),
        ("*/b", "a/b", True),
        ("a/**", "b", False),
        ("*", "", True),
    ],
)
def test_patterns_are_matched_level_by_level(pattern: str, path: str, *, expected: bool) -> None:
    async def main() -> None:
        async with connected() as both:
            await both.near.subscribe(f"topic/{pattern}")
            assert both.far.wants(f"topic/{path}") is expected
            assert not both.far.wants(path)

    run(main)


def test_a_message_for_several_subscriptions_is_given_to_all_of_them() -> None:
    async def main() -> None:
        async with connected() as both:
            one = await both.near.subscribe("topic/a/*")
            other = await both.near.subscribe("topic/**")
            same = await both.near.subscribe("topic/**")
            await both.far.send("topic/a/b", "once on the wire")
            for each in (one, other, same):
                assert (await each.__anext__()).payload == b"once on the wire"
            await same.leave()
            assert both.far.wants("topic/x")
            await other.leave()
            assert not both.far.wants("topic/x")
            with pytest.raises(LocalProtocolError, match="another filter"):
                await both.near.subscribe("topic/a/*", Filter((Clause("n", "=", 1),)))

    run(main)


def test_a_message_of_a_queue_is_acknowledged_when_the_next_one_is_asked_for() -> None:
    async def main() -> None:
        async with connected() as both:
            jobs = await both.near.subscribe("jobs")
            acknowledged = [await both.far.post("jobs", str(number)) for number in range(3)]
            assert (await jobs.__anext__()).payload == b"0"
            await both.far.ping()
            assert not acknowledged[0].done()
            assert (await jobs.__anext__()).payload == b"1"
            await acknowledged[0]
            assert not acknowledged[1].done()
            third = asyncio.ensure_future(jobs.__anext__())
            (await third).ack()
            await acknowledged[2]

    run(main)


def test_what_a_consumer_did_not_acknowledge_is_told_as_perhaps_arrived() -> None:
    async def main() -> None:
        async with connected() as both:
            jobs = await both.near.subscribe("jobs")
            acknowledged = await both.far.post("jobs", "paint the fence")
            await jobs.__anext__()
            await both.near.close()
            with pytest.raises(ConnectionLost) as lost:
                await acknowledged
            assert lost.value.sent is True

    run(main)


def test_the_server_may_refuse_a_subscription() -> None:
    def subscribed(_: Peer, destination: str, __: Filter | None) -> None:
        if "secret" in destination:
            raise Failure("forbidden")

    async def main() -> None:
        async with connected(subscribed=subscribed) as both:
            results = await asyncio.gather(
                *[both.near.subscribe(name) for name in ("topic/a", "topic/secret", "topic/b", "topic/c")],
                return_exceptions=True,
            )
            assert [isinstance(each, Failure) for each in results] == [False, True, False, False]
            assert set(both.far.subscriptions) == {"topic/a", "topic/b", "topic/c"}
            with pytest.raises(Failure, match="no-such-destination"):
                await both.near.subscribe("topic/$/info")

    run(main)


def test_without_pub_sub_there_are_no_subscriptions() -> None:
    async def main() -> None:
        async with connected(extensions=()) as both:
            with pytest.raises(Failure, match="unknown-command"):
                await both.near.subscribe("topic/a")
            await both.near.ping()

    run(main)


def test_types_stick_to_their_messages() -> None:
    async def main() -> None:
        kept = Kept()
        async with connected(kept, extensions=("dotnet", "batch-ack")) as both:
            for name in ("System.Int32", "System.Int32", "", "System.String"):
                await both.near.send("x", "1", type_name=name)
            assert [message.type_name for message in kept.messages] == [
                "System.Int32",
                "System.Int32",
                "",
                "System.String",
            ]
        async with connected(kept) as both:
            with pytest.raises(LocalProtocolError, match="dotnet"):
                await both.near.send("x", "1", type_name="System.Int32")

    run(main)


def test_with_json_nothing_else_is_sent() -> None:
    async def main() -> None:
        kept = Kept()
        async with connected(kept, extensions=("json", "ack")) as both:
            await both.near.send("x", '{"a": [1]}')
            with pytest.raises(LocalProtocolError):
                await both.near.send("x", "no json")
            await both.near.send("x", "2")
            assert kept.payloads == [b'{"a": [1]}', b"2"]

    run(main)


def test_frames_of_a_vendors_extension_are_handed_on() -> None:
    async def main() -> None:
        heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        def joined(peer: Peer) -> None:
            peer.extended = lambda name, payload: heard.put_nowait((name, payload))

        async with (
            serve(None, port=0, optional=("x-colour",), joined=joined) as server,
            connect(server.url, optional=("x-colour",)) as peer,
        ):
            await until(lambda: bool(server.peers))
            peer.extend("x-colour", b"blue")
            assert await heard.get() == ("x-colour", b"blue")
            with pytest.raises(LocalProtocolError):
                peer.extend("x-other", b"")

    run(main)


@pytest.mark.rule("MICROMSG-193")
def test_frames_of_a_vendors_extension_come_with_the_message_behind_them() -> None:
    async def main() -> None:
        got: asyncio.Queue[Received] = asyncio.Queue()

        def handler(_: Peer, message: Received) -> None:
            got.put_nowait(message)

        async with (
            serve(handler, port=0, optional=("x-colour", "x-size")) as server,
            connect(server.url, optional=("batch-ack", "x-colour", "x-size")) as peer,
        ):
            peer.extend("x-size", b"1")
            await peer.send("a", "1", extensions=[("x-colour", b"blue"), ("x-size", b""), ("x-colour", b"\xff")])
            await peer.send("a", "2")
            with pytest.raises(LocalProtocolError):
                await peer.send("a", "3", extensions=[("x-other", b"")])
            for _ in range(20):
                peer.extend("x-size", b"many")
            await peer.send("a", "4")
            assert (await got.get()).extensions == (
                ("x-size", b"1"),
                ("x-colour", b"blue"),
                ("x-size", b""),
                ("x-colour", b"\xff"),
            )
            assert (await got.get()).extensions == ()
            assert (await got.get()).extensions == (("x-size", b"many"),) * 16

    run(main)


@pytest.mark.rule("MICROMSG-167")
@pytest.mark.parametrize("number", [0, 3, 255])
def test_an_extension_frame_for_a_number_that_was_not_agreed_on_ends_the_connection(number: int) -> None:
    async def main() -> None:
        kept = Kept()
        async with connected(kept) as both:
            assert both.near.outflow.link is not None
            both.near.outflow.link.write(bytes([2, number, 2, 0, 1]))
            await both.near.wait_ended()
            with pytest.raises(Closed, match="bad-frame"):
                await both.near.send("x", "y")
        async with connected(near=kept) as both:
            assert both.far.outflow.link is not None
            both.far.outflow.link.write(bytes([2, number, 2, 0, 1]))
            await both.far.wait_ended()
            with pytest.raises(Closed, match="bad-frame"):
                await both.far.send("x", "y")

    run(main)


@pytest.mark.rule("MICROMSG-191")
@pytest.mark.parametrize(
    ("offer", "name"),
    [
        (b"\x02\0\0\0\0\0\0\0", b"bad-version"),
        (b"\x01\0\0\x01a\0\x04js_n\0\0", b"bad-handshake"),
        (b"\x01\0\0\x01a\0\x09json;json\0\0", b"bad-handshake"),
        (b"\x01\0\0\x01\xe9\0\0\0\0", b"bad-handshake"),
        (b"\x01\0\0\x01a\xff\xff", b"too-large"),
        (b"GET / HTTP/1.1\r\n\r\n", b"bad-version"),
    ],
    ids=["version", "name", "twice", "identity", "size", "http"],
)
def test_a_server_says_what_is_wrong_with_the_first_message(offer: bytes, name: bytes) -> None:
    async def main() -> None:
        async with serve(None, port=0) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(offer)
            answer = await reader.read()
            assert answer[:1] == b"\x04"
            assert answer[1] == len(answer) - 2
            assert answer[2:].startswith(name + b";")
            writer.close()
            await writer.wait_closed()

    run(main)


def test_a_required_extension_that_is_missing_is_told() -> None:
    async def main() -> None:
        async with serve(None, port=0) as server:
            with pytest.raises(Refused, match="x-colour") as refused:
                async with connect(server.url, required=("x-colour",)):
                    pass
            assert refused.value.code == "unsupported-extension"
        async with serve(None, port=0, required=("x-colour",)) as server:
            with pytest.raises(Refused, match="x-colour"):
                async with connect(server.url):
                    pass

    run(main)


def test_the_login_sees_who_comes_and_may_refuse() -> None:
    seen: list[object] = []

    async def login(_: Peer, credentials: object) -> None:
        seen.append(credentials)
        if credentials != {"user": "anna", "password": "s@cret"}:
            raise Failure("forbidden", reason="who are you?")

    async def main() -> None:
        kept = Kept()
        async with serve(kept, port=0, login=login) as server:
            async with connect(server.url.replace("//", "//anna:s%40cret@")) as peer:
                await peer.send("x", "hello")
            with pytest.raises(Refused, match=r"who are you\?"):
                async with connect(server.url, token="abc"):
                    pass
            async with connect(server.url) as peer:
                with pytest.raises(ConnectionLost, match=r"who are you\?"):
                    await peer.ping()
            assert kept.payloads == [b"hello"]

    run(main)
    assert seen == [{"user": "anna", "password": "s@cret"}, {"token": "abc"}, None]


def test_an_error_that_nothing_is_about_is_handed_on() -> None:
    async def main() -> None:
        failures: list[Failure] = []
        async with connected() as both:
            both.near.failed = failures.append
            both.near.outflow.send(Command("dance"))
            await until(lambda: bool(failures))
            assert (failures[0].name, failures[0].arguments) == ("unknown-command", {"name": "dance"})

    run(main)


def test_who_breaks_a_rule_is_told_and_sent_away() -> None:
    async def main() -> None:
        async with connected(Kept()) as both:
            assert both.near.outflow.link is not None
            both.near.outflow.link.write(encode(Extension(2, b"\x00\x09")))
            await both.near.wait_ended()
            with pytest.raises(Closed, match="bad-ack"):
                await both.near.send("x", "y")

    run(main)


def test_closing_the_server_lets_what_is_under_way_finish() -> None:
    async def main() -> None:
        release = asyncio.Event()
        done: list[bytes] = []

        async def handler(_: Peer, message: Received) -> None:
            await release.wait()
            done.append(message.payload)

        async with serve(handler, port=0) as server, connect(server.url) as peer:
            first = await peer.post("jobs", "first")
            await until(lambda: any(each._work.due for each in server.peers))
            closing = asyncio.create_task(server.close())
            await until(lambda: any(each._draining for each in server.peers))
            second = await peer.post("jobs", "second")
            await peer.ping()
            release.set()
            await first
            with pytest.raises(Failure, match="shutting-down"):
                await second
            await closing
            await peer.wait_ended()
            assert done == [b"first"]

    run(main)


def test_cancelled_sends_subscriptions_and_pings_leave_nothing_behind() -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def handler(_: Peer, __: Received) -> None:
            await never.wait()

        async with connected(handler, window=2) as both:
            work = [asyncio.create_task(both.near.send("x", str(number))) for number in range(5)]
            work.append(asyncio.create_task(both.near.ping()))
            await until(lambda: both.far._work.due == 2)
            work.append(asyncio.ensure_future(asyncio.create_task(both.near.ping())))
            for each in work:
                each.cancel()
            await asyncio.wait(work)
            subscribing = asyncio.create_task(both.near.subscribe("topic/a"))
            await asyncio.sleep(0)
            subscribing.cancel()
            await asyncio.wait([subscribing])
            await both.near.ping()
            assert both.far.subscriptions == {}
            assert len(both.near._commands) == 0
            await both.far.close()

    run(main)


def test_a_command_that_is_not_answered_in_time_raises() -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes.fromhex("010000" + "00" + "0000" + "0000"))
            await reader.read()
            writer.close()
            await writer.wait_closed()
            hung_up.set()

        hung_up = asyncio.Event()
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with listener:
            url = f"micromsg://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with connect(url) as peer:
                with pytest.raises(Timeout):
                    await peer.ping(timeout=0.01)
            await hung_up.wait()

    run(main)


@pytest.mark.parametrize("cut", [octets, random_cuts(3)], ids=["octets", "random"])
def test_a_connection_that_is_cut_anywhere_carries_everything(cut: Cut) -> None:
    async def main() -> None:
        kept = Kept()
        async with serve(kept, port=0) as server:
            port = int(server.url.rpartition(":")[2])
            with proxied(port, cut) as through:
                async with connect(server.url.replace(str(port), str(through))) as peer:
                    bodies = [bytes([number]) * 2000 for number in range(5)]
                    await asyncio.gather(*[peer.send("x", body) for body in bodies])
                    assert kept.payloads == bodies

    run(main)


def test_who_waits_for_room_when_the_connection_ends_is_told_that_it_may_have_arrived() -> None:
    async def main() -> None:
        async with connected(Kept()) as both:
            assert both.far.outflow.link is not None
            both.far.outflow.link.pause_reading()
            sends = [asyncio.create_task(both.near.send("x", "x" * 1_000_000)) for _ in range(16)]
            await until(lambda: both.near.outflow.link is not None and both.near.outflow.link.full)
            both.far.outflow.link.abort()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(each) for each in outcomes} == {ConnectionLost}
            assert all(each.sent for each in outcomes if isinstance(each, ConnectionLost))

    run(main)


def test_who_waits_when_the_connection_breaks_is_told_so() -> None:
    async def main() -> None:
        async with serve(Kept(), port=0) as server:
            port = int(server.url.rpartition(":")[2])
            with proxied(port, most=50_000) as through:
                async with connect(server.url.replace(str(port), str(through)), window=4) as peer:
                    sends = [peer.send("x", "x" * 10_000) for _ in range(20)]
                    outcomes = await asyncio.gather(*sends, return_exceptions=True)
                    lost = [each for each in outcomes if isinstance(each, ConnectionLost)]
                    never_sent = [each for each in outcomes if isinstance(each, Closed)]
                    assert lost
                    assert all(each.sent for each in lost)
                    assert never_sent
                    assert not any(each.sent for each in never_sent)
            await until(lambda: not server.peers)

    run(main)


def test_two_programs_talk_over_tls_and_over_a_unix_socket(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_context(certificate=authority.issue("localhost"))

    async def main() -> None:
        kept = Kept()
        trust = client_context(ca=authority.root)
        async with serve(kept, "localhost", 0, tls=tls) as server, connect(server.url, tls=trust) as peer:
            await peer.send("x", server.url.partition(":")[0])
        async with serve(kept, unix=str(tmp_path / "socket")) as server, connect(server.url) as peer:
            await peer.send("x", server.url.partition(":")[0])
        assert kept.payloads == [b"micromsgs", b"micromsg+unix"]

    run(main)


@pytest.mark.rule("MICROMSG-191", "MICROMSG-176")
def test_a_client_that_does_not_finish_its_offer_is_told() -> None:
    async def main() -> None:
        async with serve(None, port=0, handshake_time=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(b"\x01\0\0\x04hu")
            assert (await reader.read())[2:].startswith(b"bad-handshake;reason=")
            writer.close()
            await writer.wait_closed()

    run(main)


def test_a_client_that_says_nothing_is_sent_away_without_a_word() -> None:
    async def main() -> None:
        async with serve(None, port=0, handshake_time=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(main)


def test_something_else_at_the_other_end_is_told_as_such() -> None:
    async def main() -> None:
        async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()
            await writer.wait_closed()
            hung_up.set()

        hung_up = asyncio.Event()
        listener = await asyncio.start_server(web, "127.0.0.1", 0)
        async with listener:
            with pytest.raises((ConnectionLost, ConnectFailed, Refused)):
                async with connect(f"micromsg://127.0.0.1:{listener.sockets[0].getsockname()[1]}"):
                    pass
            await hung_up.wait()

    run(main)


def test_a_pong_nobody_asked_for_is_passed_over() -> None:
    async def main() -> None:
        async with connected() as both:
            assert both.far.outflow.link is not None
            both.far.outflow.link.write(encode(Command("pong")))
            await both.near.ping()

    run(main)
