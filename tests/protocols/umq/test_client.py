"""UMQ's server without a hub: who is let in, how it ends, and what a hostile or broken connection does to it."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as web_connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_blocking

import polywire
from polywire.client.errors import CallFailed, ConnectFailed, ConnectionLost, Refused, Timeout
from polywire.client.tls import client_context, server_context
from polywire.protocols.umq import (
    AttachmentError,
    AttachmentFailed,
    FatalCode,
    HubRequest,
    Peer,
    Received,
    Rejected,
    RemoteHub,
    Reply,
    Request,
    RpcException,
    connect,
    serve,
)
from tests.client.loops import run, until
from tests.faults.proxy import proxied, random_cuts
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import WebSocketWire
from tests.protocols.umq.programs import connected
from tests.server.certificates import Authority

MIB = 1024 * 1024


def echo(request: Request) -> Reply:
    async def attachment(at: int) -> bytes:
        return await request.attachments[at]

    return Reply(request.text, [attachment(at) for at in range(len(request.attachments))])


def test_what_comes_with_hello_is_seen_before_the_client_is_welcomed() -> None:
    async def greet(_: Peer, hello: Received) -> Reply:
        return Reply(f"welcome {hello.text}", [await hello.attachments[0]])

    async def main() -> None:
        async with (
            serve(echo, port=0, greet=greet) as server,
            connect(server.url, hello="anna", attachments=[b"key"]) as peer,
        ):
            assert peer.welcome.text == "welcome anna"
            assert await peer.welcome.all() == [b"key"]

    run(main)


def test_the_url_says_who_the_client_is() -> None:
    seen: list[str] = []

    def greet(_: Peer, hello: Received) -> None:
        seen.append(hello.text)

    async def main() -> None:
        async with serve(echo, port=0, greet=greet) as server:
            with_user = server.url.replace("//", "//anna:s%40cret@")
            for url, token in ((with_user, None), (server.url, "abc"), (server.url, None)):
                async with connect(url, token=token):
                    pass

    run(main)
    assert seen == ['{"user": "anna", "password": "s@cret"}', '{"token": "abc"}', ""]


def test_a_client_that_is_rejected_learns_why() -> None:
    def greet(_: Peer, hello: Received) -> None:
        raise Rejected(f"nobody knows {hello.text}")

    async def main() -> None:
        async with serve(echo, port=0, greet=greet) as server:
            with pytest.raises(Refused, match="nobody knows bert") as refused:
                async with connect(server.url, hello="bert"):
                    pass
            assert refused.value.code == FatalCode.REJECTED
            assert not refused.value.temporary
            assert not server.peers

    run(main)


def test_a_greeting_that_fails_is_logged_and_refuses_for_now(caplog: pytest.LogCaptureFixture) -> None:
    def greet(_: Peer, hello: Received) -> None:
        raise ValueError(hello.text)

    async def main() -> None:
        async with serve(echo, port=0, greet=greet) as server:
            with pytest.raises(Refused) as refused:
                async with connect(server.url, hello="secret"):
                    pass
            assert refused.value.temporary
            assert "secret" not in str(refused.value)

    with caplog.at_level(logging.ERROR, "polywire.umq"):
        run(main)
    assert "secret" in [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def test_a_client_that_says_nothing_is_sent_away() -> None:
    async def main() -> None:
        async with (
            serve(echo, port=0, handshake_time=0.05) as server,
            web_connect(server.url.replace("umq:", "ws:")) as socket,
        ):
            assert await socket.recv() == "F0:9 Limit exceeded: the handshake took too long"
            with pytest.raises(ConnectionClosed):
                await socket.recv()

    run(main)


def test_a_client_that_breaks_a_rule_gets_fatal_and_touches_nobody_else() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            async with web_connect(both.server.url.replace("umq:", "ws:")) as socket:
                await socket.send("H1:")
                assert await socket.recv() == "W1:"
                await socket.send("C1:fine")
                assert await socket.recv() == "R1:fine"
                await socket.send("Cb:lower case")
                assert str(await socket.recv()).startswith("F0:3 Protocol error: 'b' is lower case")
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert (await both.near.call("unharmed")).text == "unharmed"

    run(main)


def test_a_server_that_breaks_a_rule_ends_the_connection_of_its_client() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            assert both.far._sender.link is not None
            both.far._sender.link.send(b"R1:", text=False)
            await both.near.wait_ended()
            with pytest.raises(ConnectionLost, match="nobody announced"):
                raise ConnectionLost(both.near._sender.reason)

    run(main)


@pytest.mark.rule("UMQ-106")
def test_closing_lets_what_is_under_way_finish_and_refuses_the_rest() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request) -> str:
            await release.wait()
            return request.text

        async with serve(handler, port=0) as server, connect(server.url) as peer:
            under_way = asyncio.create_task(peer.call("first"))
            await until(lambda: any(len(each._connection.requests) for each in server.peers))
            closing = asyncio.create_task(server.close())
            await until(lambda: server._draining)
            with pytest.raises(RpcException) as refused:
                await peer.call("second")
            assert refused.value.code == FatalCode.SHUTTING_DOWN
            with pytest.raises(RpcException) as unknown:
                await peer.call_back(99, "third")  # UMQ-106: whether the server goes down or not
            assert unknown.value.code == FatalCode.CALLBACK_NOT_FOUND
            release.set()
            assert (await under_way).text == "first"
            await closing
            await peer.wait_ended()
            with pytest.raises(ConnectFailed):
                async with connect(server.url or "umq://127.0.0.1:1", connect_time=5):
                    pass

    run(main)


def test_two_programs_talk_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("localhost")

    async def main() -> None:
        tls = server_context(certificate=certificate)
        async with serve(echo, "localhost", 0, tls=tls) as server:
            assert server.url.startswith("umqs://localhost:")
            trust = client_context(ca=authority.root)
            async with connect(server.url, tls=trust) as peer:
                assert (await peer.call("secret")).text == "secret"

    run(main)


def test_a_connection_that_is_cut_anywhere_carries_everything() -> None:
    async def main() -> None:
        async with serve(echo, port=0) as server:
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            with proxied(port, random_cuts(5)) as through:
                async with connect(server.url.replace(str(port), str(through))) as peer:
                    body = bytes(range(256)) * 40
                    answers = await asyncio.gather(*[peer.call(str(n), [body]) for n in range(10)])
                    assert [each.text for each in answers] == [str(n) for n in range(10)]
                    assert [await each.all() for each in answers] == [[body]] * 10

    run(main)


def test_a_connection_that_breaks_in_the_middle_is_told_to_all_who_wait() -> None:
    async def main() -> None:
        async with serve(echo, port=0) as server:
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            with proxied(port, most=100_000) as through:
                async with connect(server.url.replace(str(port), str(through))) as peer:
                    calls = [peer.call("x" * 10_000) for _ in range(30)]
                    outcomes = await asyncio.gather(*calls, return_exceptions=True)
                    assert any(isinstance(each, ConnectionLost) for each in outcomes)
                    assert all(isinstance(each, ConnectionLost | Received) for each in outcomes)
            await until(lambda: not server.peers)

    run(main)


def test_nobody_there_is_told_as_such() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed, match=re.escape("umq://127.0.0.1:1/umq")):
            async with connect("umq://anna:secret@127.0.0.1:1"):
                pass

    run(main)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    async def greet(_: Peer, __: Received) -> str:
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        async with serve(echo, port=0, greet=greet) as server:

            async def dial() -> None:
                async with connect(server.url):
                    pass

            dialing = asyncio.create_task(dial())
            await until(lambda: bool(server._tasks))
            dialing.cancel()
            await asyncio.wait([dialing])
            assert dialing.cancelled()
            await until(lambda: not server._tasks)

    run(main)


def test_what_runs_for_a_peer_ends_with_it() -> None:
    ended: list[str] = []

    async def joined(peer: Peer) -> None:
        try:
            await peer.call("who are you?")
            await peer.wait_ended()
        finally:
            ended.append("joined")

    async def main() -> None:
        async with serve(None, port=0, joined=joined) as server:
            async with connect(server.url, handler=lambda _: "me"):
                await until(lambda: bool(server.peers))
            await until(lambda: not server.peers)
            assert ended == ["joined"]

    run(main)


@pytest.mark.rule("UMQ-160")
@pytest.mark.parametrize("size", [17 * MIB, 65 * MIB])
def test_a_message_that_is_too_big_gets_code_9_and_then_1009(size: int) -> None:
    def client(url: str) -> None:
        with connect_blocking(url, compression=None, open_timeout=20) as web:
            web.send("H1:")
            assert web.recv(20) == "W1:"
            with contextlib.suppress(ConnectionClosed):  # it is closed while this is being sent
                web.send(bytes(size))
            assert str(web.recv(20)).startswith("F0:9 Limit exceeded: ")
            with pytest.raises(ConnectionClosed) as caught:
                web.recv(20)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009

    async def main() -> None:
        async with serve(echo, port=0) as server:
            await asyncio.to_thread(client, server.url.replace("umq:", "ws:"))

    run(main)


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
            assert len(peer._connection.subscriptions) == 0

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
