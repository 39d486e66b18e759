"""Every example of UMQ's document, byte for byte, on a running hub and between a raw WebSocket and the library.

UMQ leaves payloads to the application. The hub's own are JSON arrays, so it refuses a request of the document with an
``E``; through the hub, what a service answers or publishes is as in the document. Between two programs every example is
as it is written. What can't come from us is in ``NOT_FROM_THE_HUB``, with the reason, and on docs/protocols/umq.md.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_raw
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_raw
from websockets.exceptions import ConnectionClosed

from polywire.client.errors import Closed, Refused
from polywire.protocols import umq
from polywire.protocols.umq.peer import Handler
from tests.hub_process import HubProcess, running_hub
from tests.web import Web, open_web

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "umq.md"
PNG = b"\x89PNG\r\n\x1a\n"
READY = "I am ready, please send me a work as ID=4454"
WORK = "here is a work: <work>. Send me result as ID=81A5"
SUBSCRIBE = "Subscribe on 'ABC'. TopicID=9A8Z"

REQUESTS = [
    ('C1AZ3:["method","arg1","arg2"]', "E1AZ3:7 No route to method: "),
    ("C121:Send me duck.png", "E121:11 Bad request: "),
    ("C5AX12:How are you?", "E5AX12:11 Bad request: "),
    ("C112:Brew coffee", "E112:11 Bad request: "),
    (f"C13:{READY}", "E13:11 Bad request: "),
    (f"C41:{SUBSCRIBE}", "E41:11 Bad request: "),
]
"""The document's requests, and what the hub itself answers: its methods are JSON arrays (UMQ-109, UMQ-129)."""

NOT_FROM_THE_HUB = {
    "B63:4454:here is a work": "the hub chooses the id of a B, and the argument of a served call is JSON",
    "F0:123 Authorization failed": "123 is none of the hub's codes; a failed login is code 1",
}


def test_the_page_names_what_the_hub_never_sends() -> None:
    deviations = PAGE.read_text(encoding="utf-8").partition("## Deviations")[2].partition("\n## ")[0]
    assert all(example in deviations for example in NOT_FROM_THE_HUB)


# On a running hub.


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.fixture
def client(hub: HubProcess) -> Iterator[Web]:
    with welcomed(hub) as web:
        yield web


@pytest.fixture
def other(hub: HubProcess) -> Iterator[Web]:
    with welcomed(hub) as web:
        yield web


def welcomed(hub: HubProcess) -> Web:
    web = open_web(hub.addresses["umq"], subprotocols=["umq"])
    web.send("H1:")
    assert web.recv() == "W1:"
    return web


def asked(service: Web, callback: str, argument: str) -> str:
    """The hub's ``B`` to a service; its id."""
    found = re.fullmatch(r"B([0-9A-Z]+):(.*)", str(service.recv()))
    assert found
    assert found[2] == f"{callback}:{argument}"
    return found[1]


@pytest.mark.rule("UMQ-11", "UMQ-109", "UMQ-129")
@pytest.mark.parametrize(("request_", "answer"), REQUESTS)
def test_the_hub_answers_each_request_of_the_document(client: Web, request_: str, answer: str) -> None:
    client.send(request_)
    assert str(client.recv()).startswith(answer)


@pytest.mark.rule("UMQ-12")
def test_hub_the_call_with_attachments(client: Web) -> None:
    client.send('A3:C1AZ4:["method","arg1","arg2"]')
    assert str(client.recv()).startswith("E1AZ4:7 No route to method: ")
    for each in (b"1", b"2", b"3"):  # the count counts, whatever the document calls it
        client.send(each)
    client.send('C1AZ5:["unsubscribe",1]')
    assert str(client.recv()).startswith("E1AZ5:11 ")


@pytest.mark.rule("UMQ-16")
def test_hub_the_duck(client: Web, other: Web) -> None:
    other.send('C1:["serve","pictures",1]')
    assert other.recv() == "R1:null"
    client.send('C121:["call","pictures","get","Send me duck.png"]')
    number = asked(other, "1", '["get","Send me duck.png"]')
    other.send(f"A1:R{number}:Sending image/png")
    other.send(PNG)
    assert [client.recv(), client.recv()] == ["A1:R121:Sending image/png", PNG]


@pytest.mark.rule("UMQ-31", "UMQ-97")
@pytest.mark.parametrize("fatal", ["F0:123 Authorization failed", "F0:3 Protocol error"])
def test_hub_closes_after_a_fatal_error(client: Web, fatal: str) -> None:
    client.send(fatal)
    with pytest.raises(ConnectionClosed) as caught:
        client.recv()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1000


@pytest.mark.rule("UMQ-31")
def test_hub_sends_the_protocol_error(client: Web) -> None:
    client.send("Ca:")
    assert str(client.recv()).startswith("F0:3 Protocol error")


@pytest.mark.rule("UMQ-35", "UMQ-154")
def test_hub_the_attachment_error(client: Web) -> None:
    client.send('C1:["subscribe","ABC",1]')
    assert client.recv() == "R1:null"
    client.send('A1:C2:["publish","ABC","x"]')
    client.send("-:Upstream download error")
    assert [client.recv() for _ in range(3)] == ["A1:T1:x", "-:Upstream download error", "R2:null"]


@pytest.mark.rule("UMQ-40", "UMQ-43", "UMQ-46")
def test_hub_a_result_and_an_exception(client: Web, other: Web) -> None:
    other.send('C1:["serve","people",1]')
    assert other.recv() == "R1:null"
    client.send('C5AX12:["call","people","ask","How are you?"]')
    number = asked(other, "1", '["ask","How are you?"]')
    other.send(f"R{number}:Fine")
    assert client.recv() == "R5AX12:Fine"
    client.send('C112:["call","people","ask","Brew coffee"]')
    number = asked(other, "1", '["ask","Brew coffee"]')
    other.send(f"E{number}:I'm teapot")
    assert client.recv() == "E112:I'm teapot"


@pytest.mark.rule("UMQ-51")
def test_hub_the_callbacks(client: Web, other: Web) -> None:
    client.send('C13:["serve","work","4454"]')
    assert client.recv() == "R13:null"
    other.send(f'C1:["call","work","take","{WORK}"]')
    number = asked(client, "4454", f'["take","{WORK}"]')
    client.send(f"R{number}:accepted")
    assert other.recv() == "R1:accepted"
    client.send("B88:81A5:Work done: <result>")
    assert client.recv() == "E88:2 Callback not found"  # the hub registers none


@pytest.mark.rule("UMQ-55", "UMQ-59", "UMQ-64")
@pytest.mark.parametrize("end", [["U9A8Z:", "U9A8Z:"], ['C42:["unsubscribe","9A8Z"]']])
def test_hub_the_topic(client: Web, other: Web, end: list[str]) -> None:
    client.send('C41:["subscribe","ABC","9A8Z"]')
    assert client.recv() == "R41:null"
    for number in (1, 2, 3, 4):
        other.send(f'C{number}:["publish","ABC"," update{number}"]')
        assert client.recv() == f"T9A8Z: update{number}"
    for each in end:
        client.send(each)
    assert client.recv() == "D9A8Z:"
    if len(end) == 1:
        assert client.recv() == "R42:null"
    client.send('C43:["unsubscribe","9A8Z"]')
    assert str(client.recv()).startswith("E43:11 ")  # the second U was ignored


@pytest.mark.rule("UMQ-68", "UMQ-71", "UMQ-157")
def test_hub_the_attributes(client: Web) -> None:
    client.send("S:key=value")
    client.send('C1:["whoami"]')
    assert str(client.recv()).endswith('"attributes":{"key":"value"}}')
    client.send("X:key")
    client.send('C1:["whoami"]')
    assert str(client.recv()).endswith('"attributes":{}}')


# Between a raw WebSocket and the library: the raw one is the document's client, then its server.


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(within())


@asynccontextmanager
async def raw_client(handler: Handler | None) -> AsyncIterator[tuple[ClientConnection, umq.Peer]]:
    """A raw client of a server of ours, and the server's peer."""
    joined: asyncio.Queue[umq.Peer] = asyncio.Queue()
    async with (
        umq.serve(handler, "127.0.0.1", 0, joined=joined.put_nowait) as server,
        connect_raw(server.url.replace("umq://", "ws://")) as raw,
    ):
        await raw.send("H1:")
        assert await raw.recv() == "W1:"
        yield raw, await joined.get()


@asynccontextmanager
async def raw_server(
    script: Callable[[ServerConnection], Awaitable[None]], handler: Handler | None = None
) -> AsyncIterator[umq.Peer]:
    """A client of ours at a raw server that follows a script after its ``W``."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def follow(raw: ServerConnection) -> None:
        try:
            assert await raw.recv() == "H1:"
            await raw.send("W1:")
            await script(raw)
        except BaseException as error:
            outcome.set_exception(error)
            raise
        outcome.set_result(None)
        await raw.wait_closed()

    async with serve_raw(follow, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with umq.connect(f"umq://127.0.0.1:{port}/", handler=handler) as peer:
            yield peer
            await outcome


async def heard(raw: ClientConnection | ServerConnection, *messages: str | bytes) -> None:
    assert [await raw.recv() for _ in messages] == list(messages)


def answering(**answers: str | umq.Reply) -> Handler:
    """A handler that knows some requests by their first word."""
    return lambda request: answers[re.split(r"\W", request.text.lstrip('["'))[0]]


@pytest.mark.rule("UMQ-11", "UMQ-12")
def test_library_the_calls_of_the_format_section() -> None:
    async def handler(request: umq.Request) -> str:
        assert request.text == '["method","arg1","arg2"]'
        return str(await request.message.all())

    async def main() -> None:
        async with raw_client(handler) as (raw, _):
            await raw.send('C1AZ3:["method","arg1","arg2"]')
            await heard(raw, "R1AZ3:[]")
            await raw.send('A3:C1AZ4:["method","arg1","arg2"]')
            for each in (b"1", b"2", b"3"):
                await raw.send(each)
            await heard(raw, "R1AZ4:[b'1', b'2', b'3']")

    run(main)


@pytest.mark.rule("UMQ-16", "UMQ-40", "UMQ-43")
def test_library_the_duck_and_the_result() -> None:
    async def main() -> None:
        handler = answering(Send=umq.Reply("Sending image/png", [PNG]), How="Fine")
        async with raw_client(handler) as (raw, _):
            await raw.send("C121:Send me duck.png")
            await heard(raw, "A1:R121:Sending image/png", PNG)
            await raw.send("C5AX12:How are you?")
            await heard(raw, "R5AX12:Fine")

    run(main)


@pytest.mark.rule("UMQ-46")
def test_library_the_exception() -> None:
    def teapot(request: umq.Request) -> str:
        assert request.text == "Brew coffee"
        raise umq.RpcException("I'm teapot")

    async def main() -> None:
        async with raw_client(teapot) as (raw, _):
            await raw.send("C112:Brew coffee")
            await heard(raw, "E112:I'm teapot")

    run(main)


@pytest.mark.rule("UMQ-31", "UMQ-97")
@pytest.mark.parametrize(
    ("fatal", "code", "reason"),
    [("F0:123 Authorization failed", 123, "Authorization failed"), ("F0:3 Protocol error", 3, "Protocol error")],
)
def test_library_the_fatal_errors(fatal: str, code: int, reason: str) -> None:
    async def refuse(raw: ServerConnection) -> None:
        assert await raw.recv() == "H1:"
        await raw.send(fatal)
        await raw.wait_closed()

    async def later(raw: ServerConnection) -> None:
        await raw.send(fatal)

    async def main() -> None:
        async with serve_raw(refuse, "127.0.0.1", 0) as server:
            with pytest.raises(Refused) as refused:
                await umq.connect(f"umq://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert (refused.value.code, refused.value.reason) == (code, reason)
        async with raw_server(later) as peer:
            await peer.wait_ended()
            with pytest.raises(Closed, match=f"{code} {reason}"):
                await peer.call("still there?")
        async with raw_client(None) as (raw, _):
            await raw.send(fatal)
            await raw.wait_closed()
            assert raw.close_code == 1000

    run(main)


@pytest.mark.rule("UMQ-35", "UMQ-139")
def test_library_the_attachment_error() -> None:
    async def broken() -> bytes:
        raise OSError("Upstream download error")

    async def handler(request: umq.Request) -> umq.Reply:
        with pytest.raises(umq.AttachmentFailed, match=r"^Upstream download error$"):
            await request.attachments[0]
        return umq.Reply("as you did", [broken(), await request.attachments[1]])

    async def main() -> None:
        async with raw_client(handler) as (raw, _):
            await raw.send("A2:C1:here it is")
            await raw.send("-:Upstream download error")
            await raw.send(PNG)
            await heard(raw, "A2:R1:as you did", "-:Upstream download error", PNG)

    run(main)


@pytest.mark.rule("UMQ-51")
def test_library_the_callbacks() -> None:
    before = int("63", 36) - 1  # so many requests of its own until the library counts to 63
    tasks = []

    async def hand_out(peer: umq.Peer) -> None:
        for _ in range(before):
            await peer.call_back(1, "")
        peer.register(lambda request: {"Work done: <result>": "Thank you!"}[request.text], int("81A5", 36))
        assert (await peer.call_back(int("4454", 36), WORK)).text == "accepted"

    def handler(request: umq.Request) -> str:
        assert request.text == READY
        tasks.append(asyncio.get_running_loop().create_task(hand_out(request.peer)))
        return "accepted"

    async def client(raw: ServerConnection) -> None:
        """The document's server: the library is its client."""
        for number in range(1, int("13", 36)):
            await raw.send(f"R{await id_of(raw)}:{number}")
        await heard(raw, f"C13:{READY}")
        await raw.send("R13:accepted")
        await raw.send(f"B63:4454:{WORK}")
        await heard(raw, "R63:accepted")

    async def main() -> None:
        async with raw_client(handler) as (raw, _):
            await raw.send(f"C13:{READY}")
            await heard(raw, "R13:accepted")
            for _ in range(before):
                await raw.send(f"R{await id_of(raw)}:")
            await heard(raw, f"B63:4454:{WORK}")
            await raw.send("R63:accepted")
            await asyncio.gather(*tasks)
            await raw.send("B88:81A5:Work done: <result>")
            await heard(raw, "R88:Thank you!")
        async with raw_server(client) as peer:
            peer.register(lambda request: {WORK: "accepted"}[request.text], int("4454", 36))
            for _ in range(1, int("13", 36)):
                await peer.call("")
            assert (await peer.call(READY)).text == "accepted"

    async def id_of(raw: ClientConnection | ServerConnection) -> str:
        return str(await raw.recv())[1:].partition(":")[0]

    run(main)


@pytest.mark.rule("UMQ-55", "UMQ-59", "UMQ-64")
@pytest.mark.parametrize("leaves", [False, True])
def test_library_the_topic(*, leaves: bool) -> None:
    topic_id = int("9A8Z", 36)

    async def publish(peer: umq.Peer, publication: umq.Publication) -> None:
        for number in range(1, 4 if leaves else 5):
            assert await publication.update(f" update{number}")
        if not leaves:
            publication.close()
        assert peer.is_open

    tasks = []

    def handler(request: umq.Request) -> str:
        assert request.text == SUBSCRIBE
        publication = request.peer.publication(topic_id)
        tasks.append(asyncio.get_running_loop().create_task(publish(request.peer, publication)))
        return "accepted"

    async def server(raw: ServerConnection) -> None:
        await raw.send(f"R{str(await raw.recv())[1:].partition(':')[0]}:accepted")
        for number in (1, 2):
            await raw.send(f"T9A8Z: update{number}")
        if leaves:
            await heard(raw, "U9A8Z:")
        await raw.send("T9A8Z: update3")
        if not leaves:
            await raw.send("T9A8Z: update4")
        await raw.send("D9A8Z:")

    async def main() -> None:
        async with raw_client(handler) as (raw, _):
            await raw.send(f"C41:{SUBSCRIBE}")
            await heard(raw, "R41:accepted", "T9A8Z: update1", "T9A8Z: update2")
            if leaves:
                await raw.send("U9A8Z:")
            await heard(raw, "T9A8Z: update3")  # it was in flight
            if leaves:
                await raw.send("U9A8Z:")
            else:
                await heard(raw, "T9A8Z: update4")
            await heard(raw, "D9A8Z:")
        async with raw_server(server) as peer, peer.subscription(topic_id) as topic:
            assert (await peer.call(SUBSCRIBE)).text == "accepted"
            got = [(await anext(topic)).text, (await anext(topic)).text]
            if leaves:
                topic.leave()
            got += [update.text async for update in topic]
            assert got == [f" update{number}" for number in range(1, 3 if leaves else 5)]

    run(main)


@pytest.mark.rule("UMQ-68", "UMQ-71", "UMQ-159")
def test_library_the_attributes() -> None:
    async def main() -> None:
        async with raw_client(lambda _: "done") as (raw, peer):
            await raw.send("S:key=value")
            await raw.send("C1:")
            await heard(raw, "R1:done")
            assert {name: each.value for name, each in peer.attributes.items()} == {"key": "value"}
            await raw.send("X:key")
            await raw.send("C2:")
            await heard(raw, "R2:done")
            assert dict(peer.attributes) == {}
            peer.set("key", "value")
            peer.unset("key")
            await heard(raw, "S:key=value", "X:key")

    run(main)


@pytest.mark.rule("UMQ-156")
def test_library_reads_the_answer_of_the_next_revision() -> None:
    async def server(raw: ServerConnection) -> None:
        await heard(raw, "C1:anybody?")
        await raw.send("!1:7 No route to method")

    async def main() -> None:
        async with raw_server(server) as peer:
            with pytest.raises(umq.RpcException) as failure:
                await peer.call("anybody?")
            assert (failure.value.code, failure.value.message) == (7, "No route to method")

    run(main)
