"""sABC between two programs, over real sockets and without a hub: sessions, messages with and without answers."""

import asyncio
import logging
import time

import pytest

from polywire.client.errors import Closed, ConnectFailed, ConnectionLost, Refused, Timeout
from polywire.protocols.sabc import (
    Connect,
    Connected,
    Decoder,
    Failure,
    Limits,
    LocalProtocolError,
    Peer,
    Reply,
    Request,
    Truncated,
    Whole,
    connect,
    encode,
    serve,
)
from tests.client.loops import run, until
from tests.faults.proxy import octets, proxied, random_cuts
from tests.protocols.sabc.programs import connected
from tests.protocols.sabc.wire import SESSION, whole, wire

TRANSPORTS = pytest.mark.parametrize("path", [None, "/sabc"], ids=["tcp", "ws"])
BODIES = [b"", b"Hola", "Grüße".encode(), b"\0begins", b"\xff\xfe", b"a\r\n\r\n\0b", b"\r\n\0", b"x" * 300_000]


def echo(request: Request) -> Reply:
    return Reply(request.body, request.headers)


@TRANSPORTS
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_any_body_is_carried_both_ways(path: str | None, body: bytes) -> None:
    async def main() -> None:
        async with connected(echo, path=path) as both:
            answer = await both.near.ask(body, (("colour", "blue"),))
            assert (answer.body, answer.headers) == (body, (("colour", "blue"),))

    run(main)


def test_a_message_without_an_answer_of_its_own_is_acknowledged() -> None:
    async def main() -> None:
        async with connected(lambda _: None) as both:
            assert (await both.near.ask("Hello")).body == b"OK"

    run(main)


def test_a_send_only_message_arrives_and_is_not_answered() -> None:
    async def main() -> None:
        heard: list[Request] = []
        async with connected(heard.append) as both:
            await both.near.send("no answer, please", (("a", "b"),))
            await both.near.ask("now all have come")
            assert [each.body for each in heard] == [b"no answer, please", b"now all have come"]
            assert heard[0].message.send_only
            assert heard[0].header("a") == "b"

    run(main)


def test_either_side_may_ask() -> None:
    async def main() -> None:
        async with connected(echo, near=lambda request: request.body.upper()) as both:
            assert (await both.far.ask("from the server")).body == b"FROM THE SERVER"

    run(main)


def test_many_messages_are_under_way_and_each_gets_its_own_answer() -> None:
    async def answer(request: Request) -> bytes:
        await asyncio.sleep(0.001 * (int(request.body) % 5))
        return request.body

    async def main() -> None:
        async with connected(answer) as both:
            answers = await asyncio.gather(*[both.near.ask(str(number)) for number in range(200)])
            assert [int(each.body) for each in answers] == list(range(200))

    run(main)


def test_a_failure_of_the_handler_reaches_the_sender() -> None:
    def handler(request: Request) -> bytes:
        raise Failure(418, f"not {request.body.decode()}", (("pot", "tea"),))

    async def main() -> None:
        async with connected(handler) as both:
            with pytest.raises(Failure) as failure:
                await both.near.ask("coffee")
            assert (failure.value.code, failure.value.text) == ("418", "not coffee")
            assert failure.value.headers == (("pot", "tea"),)

    run(main)


def test_an_unforeseen_failure_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> bytes:
        raise ValueError(request.body)

    async def main() -> None:
        async with connected(handler) as both:
            with pytest.raises(Failure) as failure:
                await both.near.ask("secret")
            assert failure.value.code == "500"
            assert "secret" not in failure.value.text

    with caplog.at_level(logging.ERROR, "polywire.sabc"):
        run(main)
    assert "b'secret'" in [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def test_without_a_handler_messages_are_refused() -> None:
    async def main() -> None:
        async with connected() as both:
            with pytest.raises(Failure) as failure:
                await both.near.ask("anybody?")
            assert failure.value.code == "404"

    run(main)


@TRANSPORTS
def test_a_long_message_goes_in_several_frames_and_short_ones_come_between(path: str | None) -> None:
    order: list[int] = []

    def handler(request: Request) -> Reply:
        order.append(len(request.body))
        return Reply(request.body)

    async def main() -> None:
        async with connected(handler, path=path, limits=Limits(frame_size=1024)) as both:
            long = bytes(range(256)) * 4096
            one = asyncio.create_task(both.near.ask(long))
            other = asyncio.create_task(both.near.ask("short"))
            assert (await other).body == b"short"
            assert (await one).body == long
            assert order == [5, len(long)]

    run(main)


def test_a_cancelled_long_message_does_not_stay_unfinished() -> None:
    async def main() -> None:
        heard: list[int] = []

        def handler(request: Request) -> None:
            heard.append(len(request.body))

        async with connected(handler, limits=Limits(frame_size=1024)) as both:
            for _ in range(70):  # more than may be unfinished
                asking = asyncio.create_task(both.near.ask(b"x" * 200_000))
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
            await both.near.ask("fine")
            assert heard[-1] == 4
            assert set(heard) <= {4, 200_000}

    run(main)


@pytest.mark.rule("SABC-105", "SABC-136")
def test_a_message_that_is_cut_at_the_other_sides_limit_is_an_error() -> None:
    heard: list[int] = []

    def handler(request: Request) -> None:
        heard.append(len(request.body))

    async def main() -> None:
        limits = Limits(max_message=4096, frame_size=0, max_sent=0)
        async with connected(handler, limits=limits) as both:
            assert not (await both.near.ask(b"x" * 3000)).truncated
            with pytest.raises(Truncated) as cut:
                await both.near.ask(b"x" * 10_000)
            assert (cut.value.code, cut.value.answer.body, cut.value.answer.truncated) == ("413", b"OK", True)
            assert heard[0] == 3000 < heard[1] < 4096
            assert (await both.near.ask("still here")).body == b"OK"

    run(main)


@pytest.mark.rule("SABC-136")
@pytest.mark.parametrize("limits", [Limits(max_message=4096), Limits(max_sent=4096), Limits(4096, frame_size=1024)])
def test_a_message_over_a_limit_that_is_known_is_not_sent(limits: Limits) -> None:
    heard: list[int] = []

    def handler(request: Request) -> bytes:
        heard.append(len(request.body))
        return request.body * 2

    async def main() -> None:
        async with connected(handler, limits=limits) as both:
            for send in (both.near.ask, both.near.send):
                with pytest.raises(LocalProtocolError) as refused:
                    await send(b"x" * 4096)
                assert refused.value.rule == "SABC-136"
            with pytest.raises(LocalProtocolError):
                both.near.tell(b"x" * 4096)
            with pytest.raises(Failure) as failed:  # and neither is such an answer
                await both.near.ask(b"x" * 3000)
            assert failed.value.code == "500"
            assert heard == [3000]

    run(main)


@pytest.mark.rule("SABC-135")
@pytest.mark.parametrize("size", [1024, 2048])
def test_what_connect_sends_is_cut_into_frames_of_the_size_it_was_given(size: int) -> None:
    body = "ü" * 5000
    sizes: list[int] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(wire(f"CONNECTED\nsession-id::{SESSION}\n\n"))
        frames = Decoder(session_id=SESSION).feed(await reader.readuntil(b"\r\n\r\n\0"))
        sizes.extend(len(encode(frame)) for frame in frames)
        assert whole(frames) == [Whole(SESSION, "1", body.encode())]
        writer.write(wire(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::1\n\nOK\n\n^@"))
        await reader.read()
        writer.close()

    async def main() -> None:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, connect(f"sabc://127.0.0.1:{port}", frame_size=size) as peer:
            assert (await peer.ask(body, timeout=10)).body == b"OK"
        assert len(sizes) > 10_000 // size
        assert max(sizes) <= size

    run(main)


@pytest.mark.rule("SABC-135")
def test_what_serve_sends_is_cut_into_frames_of_the_size_it_was_given() -> None:
    body = b"x" * 10_000

    async def main() -> None:
        async with serve(lambda _: body, port=0, frame_size=1024) as server:
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire("CONNECT\nclient-id::me\n\n"))
            decoder = Decoder()
            [connected_frame] = decoder.feed(await reader.readuntil(b"\0"))
            assert isinstance(connected_frame, Connected)
            writer.write(wire(f"MESSAGE\nsession-id::{connected_frame.session_id}\nmsg-id::1\n\n^@"))
            frames = decoder.feed(await reader.readuntil(b"\r\n\r\n\0"))
            writer.close()
            await writer.wait_closed()
        assert [each.body for each in whole(frames) if isinstance(each, Whole)] == [body]
        assert len(frames) > 9
        assert max(len(encode(frame)) for frame in frames) <= 1024

    run(main)


@pytest.mark.rule("SABC-134")
@pytest.mark.parametrize("key", ["ref-msg-id", "msg-id", "message-id"])
def test_an_error_about_a_message_is_its_answer_whichever_header_names_it(key: str) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(wire(f"CONNECTED\nsession-id::{SESSION}\n\n"))
        asked = await reader.readuntil(b"\r\n\r\n\0")
        number = asked.partition(b"msg-id::")[2].partition(b"\r\n")[0].decode()
        writer.write(wire(f"ERROR\n{key}::{number}\nerror-code::403\n\nAccess Forbidden\n\n^@"))
        await reader.read()
        writer.close()

    async def main() -> None:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, connect(f"sabc://127.0.0.1:{port}") as peer:
            with pytest.raises(Failure) as refused:
                await peer.ask("Hola", timeout=10)
            assert (refused.value.code, refused.value.text) == ("403", "Access Forbidden")

    run(main)


def test_headers_that_cannot_be_written_are_refused_before_anything_is_sent() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            for wrong in (("a", "b::c"), ("session-id", "forged"), ("a", "line\r\nend"), ("", "x")):
                with pytest.raises(LocalProtocolError):
                    await both.near.ask("x", (wrong,))
            assert (await both.near.ask("fine")).body == b"fine"
            assert len(both.near._unanswered) == 0

    run(main)


def test_the_login_sees_who_comes_and_may_refuse() -> None:
    async def login(peer: Peer, connect: Connect) -> None:
        if connect.client_passcode != "s@cret":
            raise Failure(401, f"{peer.client_id} is not known")

    async def main() -> None:
        async with serve(echo, port=0, login=login) as server:
            async with connect(server.url.replace("//", "//anna:s%40cret@")) as peer:
                assert (await peer.ask("hi")).body == b"hi"
            with pytest.raises(Refused, match="bert is not known") as refused:
                async with connect(server.url, user="bert", password="wrong"):
                    pass
            assert refused.value.code == "401"
            await until(lambda: not server._tasks)

    run(main)


def test_messages_behind_connect_wait_for_the_login() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def login(_: Peer, __: Connect) -> None:
            await gate.wait()

        async with serve(echo, port=0, login=login) as server:
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"CONNECT\r\nclient-id::eager\r\n\r\n\0DISCONNECT\r\nsession-id::guessed\r\n\r\n\0")
            gate.set()
            assert (await reader.readuntil(b"\0")).startswith(b"CONNECTED\r\nsession-id::")
            assert b"error-code::401" in await reader.readuntil(b"\0")
            writer.close()
            await writer.wait_closed()

    run(main)


def test_a_session_ends_when_it_expires() -> None:
    async def main() -> None:
        async with connected(echo, login=lambda _, __: time.time() + 0.2) as both:
            assert both.near.expires is not None
            await both.near.wait_ended()
            with pytest.raises(Closed, match="the other side ended the session"):
                await both.near.ask("too late")

    run(main)


def test_disconnect_lets_what_was_accepted_be_answered() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request) -> bytes:
            await release.wait()
            return request.body

        async with connected(handler) as both:
            asking = asyncio.create_task(both.near.ask("accepted"))
            await until(lambda: len(both.far._requests) == 1)
            leaving = asyncio.create_task(both.near.disconnect())
            await asyncio.sleep(0)
            with pytest.raises(Closed):
                await both.near.ask("too late")
            release.set()
            assert (await asking).body == b"accepted"
            await leaving

    run(main)


def test_closing_the_server_lets_what_is_under_way_finish_and_refuses_the_rest() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request) -> bytes:
            await release.wait()
            return request.body

        async with serve(handler, port=0) as server, connect(server.url) as peer:
            under_way = asyncio.create_task(peer.ask("first"))
            await until(lambda: any(len(each._requests) for each in server.peers))
            closing = asyncio.create_task(server.close())
            await until(lambda: any(each._requests.draining for each in server.peers))
            with pytest.raises(Failure) as refused:
                await peer.ask("second")
            assert refused.value.code == "503"
            release.set()
            assert (await under_way).body == b"first"
            await closing
            await peer.wait_ended()

    run(main)


def test_an_answer_that_takes_too_long_raises_and_is_passed_over_later() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request) -> bytes:
            if request.body == b"slow":
                await release.wait()
            return request.body

        async with connected(handler) as both:
            with pytest.raises(Timeout) as late:
                await both.near.ask("slow", timeout=0.01)
            assert late.value.sent is True
            release.set()
            assert (await both.near.ask("next")).body == b"next"

    run(main)


def test_a_cancelled_ask_leaves_nothing_behind() -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def handler(_: Request) -> None:
            await never.wait()

        async with connected(handler) as both:
            asking = [asyncio.create_task(both.near.ask("x", timeout=60)) for _ in range(3)]
            await until(lambda: len(both.far._requests) == 3)
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
            assert len(both.near._unanswered) == 0
            await both.far.close()

    run(main)


def test_who_waits_for_room_when_the_connection_ends_is_told_that_it_may_have_arrived() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            assert both.far._sender.link is not None
            both.far._sender.link.pause_reading()
            asks = [asyncio.create_task(both.near.ask("x" * 1_000_000)) for _ in range(10)]
            sends = [asyncio.create_task(both.near.send("x" * 1_000_000)) for _ in range(10)]
            await until(lambda: not both.near.has_room)
            both.far._sender.link.abort()
            outcomes = await asyncio.gather(*asks, *sends, return_exceptions=True)
            assert {type(each) for each in outcomes[:10]} == {ConnectionLost}
            assert {type(each) for each in outcomes[10:]} <= {ConnectionLost, type(None)}  # what was sent is sent
            assert all(each.sent for each in outcomes if isinstance(each, ConnectionLost))

    run(main)


def test_who_waits_when_the_connection_breaks_is_told_so() -> None:
    async def main() -> None:
        async with serve(lambda request: request.body, port=0) as server:
            port = int(server.url.rpartition(":")[2])
            with proxied(port, most=50_000) as through:
                async with connect(server.url.replace(str(port), str(through))) as peer:
                    asking = [peer.ask("x" * 10_000) for _ in range(10)]
                    outcomes = await asyncio.gather(*asking, return_exceptions=True)
                    lost = [each for each in outcomes if isinstance(each, ConnectionLost)]
                    assert lost
                    assert all(each.sent for each in lost)
            await until(lambda: not server.peers)

    run(main)


@TRANSPORTS
@pytest.mark.parametrize("cut", [octets, random_cuts(3)], ids=["octets", "random"])
def test_a_connection_that_is_cut_anywhere_carries_everything(path: str | None, cut: object) -> None:
    async def main() -> None:
        async with serve(echo, port=0, path=path, limits=Limits(frame_size=600)) as server:
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            with proxied(port, cut) as through:  # type: ignore[arg-type] # parametrize has lost its type
                url = server.url.replace(str(port), str(through))
                async with connect(url, limits=Limits(frame_size=600)) as peer:
                    bodies = [bytes([number]) * 2000 for number in range(5)]
                    answers = await asyncio.gather(*[peer.ask(body) for body in bodies])
                    assert [each.body for each in answers] == bodies

    run(main)


def test_a_broken_frame_is_answered_and_the_session_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        failures: list[Failure] = []
        async with connected(echo) as both:
            both.near.failed = failures.append
            assert both.near._sender.link is not None
            start = f"MESSAGE\r\nsession-id::{both.near.session_id}\r\n"
            both.near._sender.link.write(f"{start}msg-id::x\r\nno colons\r\n\r\nbody\r\n\r\n\0".encode())
            assert (await both.near.ask("fine")).body == b"fine"
            assert [each.code for each in failures] == ["400"]

    with caplog.at_level(logging.WARNING, "polywire.sabc"):
        run(main)
    assert "no '::'" in caplog.text


def test_a_client_that_says_nothing_is_sent_away() -> None:
    async def main() -> None:
        async with serve(echo, port=0, handshake_time=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            assert b"error-code::408" in await reader.read()
            writer.close()
            await writer.wait_closed()

    run(main)


def test_a_server_that_never_answers_connect_is_given_up() -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            hung_up.set()

        hung_up = asyncio.Event()
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(ConnectFailed, match="no session was opened"):
                async with connect(f"sabc://127.0.0.1:{port}", connect_time=0.1):
                    pass
            await hung_up.wait()

    run(main)
