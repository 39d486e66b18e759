"""Every example of the sABC document, as it is printed, against a running hub and against our library.

``EXAMPLES`` has all of them, byte for byte but for the line ends (LF is CR LF, ``^@`` is NUL). Three things can't be
said as printed, and docs/protocols/sabc.md lists them under "Deviations":

- ``COMMAND`` is no command. The examples with it are answered with 400, and read with one of the six in its place.
- On a byte stream a frame without an empty line has not ended. So ``CONNECTED``, ``DISCONNECT`` and ``DISCONNECTING``
  get one there; on WebSocket they are sent as they are printed.
- The hub makes the session id, so it replaces the one of the example; and what the hub is to do with a message is in a
  header of its own, ``destination``, without which it answers 400. Between two programs neither is needed: there the
  examples are exchanged with our library as they are.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as connect_web
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_web

from polywire.client.errors import ConnectionLost
from polywire.protocols.sabc import Connect, Failure, Limits, Peer, Request, connect, serve
from polywire.protocols.sabc.headers import parse_http_date
from tests.client.loops import run, until
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.protocols.sabc.wire import wire
from tests.security.hashing import CountingHasher
from tests.server.subscribers import Line, line_to

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"
EMPTY_LINE = "\n\n"

EXAMPLES = {
    "a valid frame": (
        "COMMAND\nheader-key1::headerValue1\nheader-key2::headerValue2\n\nbodybodybodybody\nbodybodybodybody\n\n^@"
    ),
    "a useless frame": "COMMAND\nheader-key::headerValue\n\n^@",
    "an incomplete message": "COMMAND\nheader-key::headerValue\n\nbodybodybodybody\nbodybodybodybody",
    "no headers": "COMMAND\n\nbodybodybodybody\nbodybodybodybody\n\n^@",
    "connect": "CONNECT\nclient-id::23450-678-aedc\nclient-passcode::Password@123\n\n^@",
    "connected": f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT",
    "disconnect": "DISCONNECT\nsession-id::35a4cf3a-0a75-414b-81e8-69b9b4075c4b",
    "disconnecting": "DISCONNECTING\nsession-id::abcdef123456@#",
    "a message": f"MESSAGE\nsession-id::{SESSION}\nmsg-id::000001\n\nHola\n\n^@",
    "its response": f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::000001\n\nMundo!!!\n\n^@",
    "another message": f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123123\n\nHello\n\n^@",
    "its acknowledgement": f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::123123\n\nOK\n\n^@",
    "send-only": f"MESSAGE\nsession-id::{SESSION}\nmsg-id::888999\nsend-only::yes\n\nOK\n\n^@",
    "frame 1": (
        f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\nmsg-more::yes\n\n"
        "This is first part of the message. Second\npart "
    ),
    "frame 2": (
        f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\nmsg-more::yes\n\n"
        "is on the way. See I can have ^@ within the\n"
        "message but shouldn't precede with two CR-LFs.\nFinally the third"
    ),
    "frame 3": f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\n\npart marks the end of the\nmessage\n\n^@",
    "the three frames": (
        "This is first part of the message. Second\npart is on the way. See I can have ^@ within the\n"
        "message but shouldn't precede with two CR-LFs.\nFinally the thirdpart marks the end of the\nmessage"
    ),
    "the first 300 bytes": (  # the document ends it at "Finally t", which is a miscount
        "This is first part of the message. Second\npart is on the way. See I can have ^@ within the\n"
        "message but shouldn't precede with two CR-LFs.\nFina"
    ),
    "an error": "ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@",
}
FRAMES = ("frame 1", "frame 2", "frame 3")

ON_THE_HUB = pytest.mark.parametrize("listener", ["sabc", "sabc_ws"])
TRANSPORTS = pytest.mark.parametrize("web", [False, True], ids=["tcp", "ws"])


# The hub.


@pytest.fixture(scope="module")
def hub_with_logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder: Path = tmp_path_factory.mktemp("users")
    (folder / "users").write_text(f"23450-678-aedc:{CountingHasher().hash('Password@123')}\n", encoding="utf-8")
    (folder / "users").chmod(0o600)
    listen = "".join(f'{key} = "{address}"\n' for key, address in LISTEN.items())
    config = folder / "polywire.toml"
    config.write_text(f'[listen]\n{listen}[auth]\nusers = "users"\nsession_time = 3600\n', encoding="utf-8")
    with running_hub(config=config) as process:
        yield process


def opened(line: Line) -> str:
    """The id of a session that begins with CONNECT."""
    line.send(wire("CONNECT\nclient-id::23450-678-aedc\n\n^@"))
    found = re.fullmatch(rb"CONNECTED\r\nsession-id::([\w-]{22})\r\n\r\n\0", line.until(b"\0"))
    assert found
    return found[1].decode()


def said(example: str, session: str, *headers: str) -> bytes:
    """An example in a session of the hub's, with further headers on it."""
    text = re.sub(r"session-id::[^\n]*", f"session-id::{session}", EXAMPLES[example], count=1)
    return wire(text.replace("\n\n", "".join(f"\n{each}" for each in headers) + "\n\n", 1))


def asked(line: Line, session: str, *headers: str) -> bytes:
    """What the hub answers to a message of ours."""
    line.send(wire("\n".join(["MESSAGE", f"session-id::{session}", *headers]) + "\n\n^@"))
    return line.until(b"\r\n\r\n\0")


def ok(session: str, number: str) -> bytes:
    return wire(f"MESSAGE\nsession-id::{session}\nref-msg-id::{number}\n\nOK\n\n^@")


@pytest.mark.rule("SABC-31", "SABC-32", "SABC-34", "SABC-36", "SABC-137")
@ON_THE_HUB
def test_connect_is_answered_with_connected_and_its_expiry(hub_with_logins: HubProcess, listener: str) -> None:
    with line_to(hub_with_logins, listener) as line:
        before = int(time.time())
        line.send(wire(EXAMPLES["connect"]))
        answer = line.until(b"\0").decode()
        form = EXAMPLES["connected"].replace(SESSION, r"[\w-]{22}")
        form = form.replace("Tue, 01 Jun 2017 21:47:38 GMT", r"(\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)")
        found = re.fullmatch(form + EMPTY_LINE + "\0", answer.replace("\r\n", "\n"))
        assert found
        expires = parse_http_date(found[1])
        assert expires is not None
        assert before + 3600 <= expires <= time.time() + 3600


@pytest.mark.rule("SABC-38", "SABC-41", "SABC-76", "SABC-132")
@ON_THE_HUB
def test_disconnect_is_answered_with_disconnecting(hub: HubProcess, listener: str) -> None:
    end = wire(EMPTY_LINE) if listener == "sabc" else b""
    with line_to(hub, listener) as line:
        session = opened(line)
        line.send(said("disconnect", session) + end)
        answer = said("disconnecting", session) + wire("\n\n^@")
        assert line.ended() == ([answer] if listener == "sabc" else [answer.decode(), "closed 1000"])


@pytest.mark.rule("SABC-19", "SABC-41", "SABC-42", "SABC-132")
@ON_THE_HUB
def test_disconnecting_ends_the_connection_without_a_word(hub: HubProcess, listener: str) -> None:
    end = wire(EMPTY_LINE) if listener == "sabc" else b""
    with line_to(hub, listener) as line:
        line.send(said("disconnecting", opened(line)) + end)
        assert line.ended() == ([b""] if listener == "sabc" else ["closed 1000"])


@pytest.mark.rule("SABC-11", "SABC-12", "SABC-13", "SABC-14", "SABC-86", "SABC-88", "SABC-94")
@ON_THE_HUB
@pytest.mark.parametrize("example", ["a valid frame", "a useless frame", "an incomplete message", "no headers"])
def test_a_frame_named_command_is_refused_and_the_session_goes_on(
    hub: HubProcess, listener: str, example: str, name: str
) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        line.send(wire(EXAMPLES[example]))
        # On a byte stream the end of the incomplete one shows when the next frame begins.
        line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::1\nop::subscribe\ndestination::{name}\n\n^@"))
        refused = line.until(b"\r\n\r\n\0")
        assert refused.startswith(wire(f"ERROR\nsession-id::{session}\nerror-code::400\n\n'COMMAND' is not a command"))
        assert line.until(b"\r\n\r\n\0") == ok(session, "1")


@pytest.mark.rule("SABC-11", "SABC-12", "SABC-13", "SABC-14", "SABC-61")
@ON_THE_HUB
def test_with_a_command_of_the_document_those_frames_are_valid_or_not_as_it_says(
    hub: HubProcess, listener: str, name: str
) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        assert asked(line, session, "msg-id::s", "op::subscribe", f"destination::{name}") == ok(session, "s")
        ids = (f"session-id::{session}", "msg-id::1", "send-only::yes", f"destination::{name}")
        for example in ("a valid frame", "a useless frame"):
            body = EXAMPLES[example].partition("\n\n")[2].removesuffix("^@").removesuffix("\n\n")
            line.send(wire(EXAMPLES[example].replace("COMMAND", "\n".join(["MESSAGE", *ids]))))
            pushed = line.until(b"\0")
            assert b"\r\nheader-key" in pushed
            assert pushed.endswith(wire(f"\n\n{body}\n\n^@" if body else "\n\n^@"))
        incomplete = EXAMPLES["an incomplete message"].replace("COMMAND", "\n".join(["MESSAGE", *ids, "msg-more::yes"]))
        line.send(wire(incomplete))
        line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::1\n\nbody\n\n^@"))
        assert line.until(b"\r\n\r\n\0").endswith(wire("\n\nbodybodybodybody\nbodybodybodybodybody\n\n^@"))
        line.send(wire(EXAMPLES["no headers"].replace("COMMAND", "MESSAGE")))
        assert b"error-code::400\r\n\r\nthe MESSAGE frame has no header" in line.until(b"\r\n\r\n\0")


@pytest.mark.rule("SABC-47", "SABC-54", "SABC-113", "SABC-119")
@ON_THE_HUB
def test_a_message_is_acknowledged(hub: HubProcess, listener: str, name: str) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        line.send(said("another message", session, f"destination::{name}"))
        assert line.until(b"\r\n\r\n\0") == said("its acknowledgement", session)
        line.send(said("another message", session))  # as printed it does not say where to
        refused = f"ERROR\nsession-id::{session}\nerror-code::400\nref-msg-id::123123\n\n"
        assert line.until(b"\r\n\r\n\0") == wire(refused + "publish needs the header 'destination'\n\n^@")


@pytest.mark.rule("SABC-46", "SABC-50")
@ON_THE_HUB
def test_a_message_to_a_service_is_answered_with_its_response(hub: HubProcess, listener: str, name: str) -> None:
    with line_to(hub, listener) as caller, line_to(hub, "sabc") as provider:
        mine, theirs = opened(caller), opened(provider)
        assert asked(provider, theirs, "msg-id::1", "op::serve", f"service::{name}") == ok(theirs, "1")
        caller.send(said("a message", mine, "op::call", f"service::{name}", "method::greet"))
        call = f"MESSAGE\nsession-id::{theirs}\nmsg-id::1\nservice::{name}\nmethod::greet\n\nHola\n\n^@"
        assert provider.until(b"\r\n\r\n\0") == wire(call)
        provider.send(said("its response", theirs).replace(b"ref-msg-id::000001", b"ref-msg-id::1"))
        assert caller.until(b"\r\n\r\n\0") == said("its response", mine)


@pytest.mark.rule("SABC-48", "SABC-51", "SABC-115")
@ON_THE_HUB
def test_a_send_only_message_is_delivered_and_not_answered(hub: HubProcess, listener: str, name: str) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        assert asked(line, session, "msg-id::s", "op::subscribe", f"destination::{name}") == ok(session, "s")
        line.send(said("send-only", session, f"destination::{name}"))
        head = f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::s\nmsg-id::1\ndestination::{name}"
        assert line.until(b"\r\n\r\n\0") == wire(f"{head}\n\nOK\n\n^@")
        assert b"ref-msg-id::2" in asked(line, session, "msg-id::2", "op::unsubscribe", f"destination::{name}")


@pytest.mark.rule("SABC-55", "SABC-56", "SABC-57", "SABC-116")
@ON_THE_HUB
def test_three_frames_make_one_message(hub: HubProcess, listener: str, name: str) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        assert asked(line, session, "msg-id::s", "op::subscribe", f"destination::{name}") == ok(session, "s")
        line.send(said("frame 1", session, f"destination::{name}"))
        line.send(said("frame 2", session))
        line.send(said("frame 3", session))
        got = {line.until(b"\r\n\r\n\0"), line.until(b"\r\n\r\n\0")}
        head = f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::s\nmsg-id::1\ndestination::{name}\n\n"
        assert got == {ok(session, "123456"), wire(head + EXAMPLES["the three frames"] + "\n\n^@")}


@pytest.mark.rule("SABC-62", "SABC-63", "SABC-103", "SABC-105")
@ON_THE_HUB
def test_at_the_size_limit_the_message_ends(listener: str) -> None:
    to = "destination::docs"
    with running_hub(f"limits.message_size={300 + len(to) + 2}") as hub, line_to(hub, listener) as line:
        session = opened(line)
        assert asked(line, session, "msg-id::s", "op::subscribe", to) == ok(session, "s")
        line.send(said("frame 1", session, to))
        line.send(said("frame 2", session))
        line.send(said("frame 3", session))
        got = {line.until(b"\r\n\r\n\0"), line.until(b"\r\n\r\n\0")}
        head = f"MESSAGE\nsession-id::{session}\nsend-only::yes\nsubscription::s\nmsg-id::1\n{to}\ntruncated::yes\n\n"
        acknowledged = ok(session, "123456").replace(b"\r\n\r\nOK", b"\r\ntruncated::yes\r\n\r\nOK")
        assert got == {acknowledged, wire(head + EXAMPLES["the first 300 bytes"] + "\n\n^@")}


@pytest.mark.rule("SABC-65", "SABC-66", "SABC-123")
@ON_THE_HUB
def test_an_error_about_nothing_is_taken_without_an_answer(hub: HubProcess, listener: str, name: str) -> None:
    with line_to(hub, listener) as line:
        session = opened(line)
        line.send(wire(EXAMPLES["an error"]))
        assert asked(line, session, "msg-id::1", "op::subscribe", f"destination::{name}") == ok(session, "1")


# Two programs, one of them ours.


class Stranger:
    """Somebody else's end of a connection: frames are said and expected as they are written."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[bytes]]) -> None:
        self._send = send
        self.receive = receive

    async def say(self, text: str) -> None:
        await self._send(wire(text))

    async def expect(self, text: str) -> None:
        assert await self.receive() == wire(text)


@contextlib.asynccontextmanager
async def stranger(talk: Callable[[Stranger], Awaitable[None]], *, web: bool) -> AsyncIterator[str]:
    """The URL of a server that talks to its clients so; at the end, it has."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run_talk(one: Stranger) -> None:
        try:
            await talk(one)
        except BaseException as error:
            done.set_exception(error)
            raise
        done.set_result(None)

    async def by_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with contextlib.suppress(Exception):
            await run_talk(Stranger(send, lambda: reader.readuntil(b"\0")))
        await reader.read()
        writer.close()

    async def by_web(connection: ServerConnection) -> None:
        async def receive() -> bytes:
            message = await connection.recv()
            return message.encode() if isinstance(message, str) else message

        with contextlib.suppress(Exception):
            await run_talk(Stranger(lambda data: connection.send(data.decode()), receive))
        await connection.wait_closed()

    if web:
        async with serve_web(by_web, "127.0.0.1", 0, subprotocols=["sabc"]) as server:  # type: ignore[list-item]
            port = next(iter(server.sockets)).getsockname()[1]
            yield f"sabc+ws://127.0.0.1:{port}/sabc"
            await asyncio.wait_for(done, 20)
    else:
        listening = await asyncio.start_server(by_stream, "127.0.0.1", 0)
        async with listening:
            yield f"sabc://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            await asyncio.wait_for(done, 20)


@contextlib.asynccontextmanager
async def visiting(url: str) -> AsyncIterator[Stranger]:
    """A client of somebody else's."""
    if url.startswith("sabc+ws:"):
        async with connect_web(url.removeprefix("sabc+"), subprotocols=["sabc"]) as connection:  # type: ignore[list-item]

            async def receive() -> bytes:
                return str(await connection.recv()).encode()

            yield Stranger(lambda data: connection.send(data.decode()), receive)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        yield Stranger(send, lambda: reader.readuntil(b"\0"))
        writer.close()
        await writer.wait_closed()


def ended(example: str, *, web: bool) -> str:
    """An example without its empty line, as it can be said on this transport."""
    return EXAMPLES[example] if web else EXAMPLES[example] + EMPTY_LINE


@pytest.mark.rule("SABC-31", "SABC-34", "SABC-36", "SABC-46", "SABC-47", "SABC-48", "SABC-132")
@TRANSPORTS
def test_our_client_writes_and_reads_the_examples(web: bool) -> None:
    async def talk(server: Stranger) -> None:
        await server.expect(EXAMPLES["connect"])
        await server.say(ended("connected", web=web))
        await server.expect(EXAMPLES["a message"])
        await server.say(EXAMPLES["its response"])
        await server.expect(EXAMPLES["another message"])
        await server.say(EXAMPLES["its acknowledgement"])
        await server.expect(EXAMPLES["send-only"].replace("888999", "1"))
        await server.say(EXAMPLES["an error"])
        for example in FRAMES:
            await server.say(EXAMPLES[example])
        await server.expect(EXAMPLES["its response"].replace("000001", "123456"))
        await server.say(EXAMPLES["send-only"])
        await server.say(EXAMPLES["a message"])
        await server.expect(EXAMPLES["its response"])

    async def main() -> None:
        heard: list[tuple[bytes, bool]] = []
        failures: list[Failure] = []

        def handler(request: Request) -> bytes:
            heard.append((request.body, request.message.send_only))
            return b"Mundo!!!"

        async with (
            stranger(talk, web=web) as url,
            connect(url, user="23450-678-aedc", password="Password@123", handler=handler) as peer,
        ):
            peer.failed = failures.append
            assert (peer.session_id, peer.expires) == (SESSION, 1_496_353_658)
            assert (await peer.ask("Hola", msg_id="000001", timeout=20)).body == b"Mundo!!!"
            assert (await peer.ask("Hello", msg_id="123123", timeout=20)).body == b"OK"
            await peer.send("OK")
            await until(lambda: len(heard) == 3)
        assert heard == [(wire(EXAMPLES["the three frames"]), False), (b"OK", True), (b"Hola", False)]
        assert [(each.code, each.text) for each in failures] == [("403", "Access Forbidden")]

    run(main)


@pytest.mark.rule("SABC-38", "SABC-41", "SABC-42")
@TRANSPORTS
def test_our_client_leaves_and_is_left_as_in_the_examples(web: bool) -> None:
    leaving = EXAMPLES["disconnect"].partition("::")[2]
    left = EXAMPLES["disconnecting"].partition("::")[2]

    async def be_left(server: Stranger) -> None:
        await server.expect("CONNECT\nclient-id::me\n\n^@")
        await server.say(f"CONNECTED\nsession-id::{leaving}" + ("" if web else EMPTY_LINE))
        await server.expect(EXAMPLES["disconnect"] + "\n\n^@")
        await server.say(f"DISCONNECTING\nsession-id::{leaving}" + ("" if web else EMPTY_LINE))

    async def leave(server: Stranger) -> None:
        await server.expect("CONNECT\nclient-id::me\n\n^@")
        await server.say(f"CONNECTED\nsession-id::{left}" + ("" if web else EMPTY_LINE))
        await server.expect(f"MESSAGE\nsession-id::{left}\nmsg-id::1\n\n^@")
        await server.say(ended("disconnecting", web=web))

    async def main() -> None:
        async with stranger(be_left, web=web) as url:
            peer = await connect(url, client_id="me")
            await peer.disconnect()
        async with stranger(leave, web=web) as url, connect(url, client_id="me") as peer:
            with pytest.raises(ConnectionLost) as lost:
                await peer.ask(timeout=20)
            assert lost.value.reason == "the other side ended the session"

    run(main)


@pytest.mark.rule("SABC-62", "SABC-63", "SABC-65", "SABC-103")
@TRANSPORTS
def test_our_server_cuts_at_300_bytes_and_refuses_as_in_the_example(web: bool) -> None:
    heard: list[tuple[bytes, bool]] = []

    def handler(request: Request) -> None:
        heard.append((request.body, request.message.truncated))

    def login(_: Peer, said: Connect) -> None:
        if said.client_passcode is None:
            raise Failure(403, "Access Forbidden")

    async def main() -> None:
        path = "/sabc" if web else None
        async with serve(handler, port=0, path=path, login=login, limits=Limits(max_message=300)) as server:
            async with visiting(server.url) as client:
                await client.say("CONNECT\nclient-id::me\n\n^@")
                await client.expect(EXAMPLES["an error"])
            async with visiting(server.url) as client:
                await client.say(EXAMPLES["connect"])
                session = (await client.receive()).split(b"\r\n")[1].removeprefix(b"session-id::").decode()
                for example in FRAMES:
                    await client.say(EXAMPLES[example].replace(SESSION, session))
                await client.expect(f"MESSAGE\nsession-id::{session}\nref-msg-id::123456\ntruncated::yes\n\nOK\n\n^@")
        assert heard == [(wire(EXAMPLES["the first 300 bytes"]), True)]

    run(main)
