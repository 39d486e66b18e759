"""The WebSocket of the client for Node: what it reads, and how it answers what it must not read."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.javascript.runtimes import Runtime, needs_node, runtime

pytestmark = needs_node

SECONDS = 20


@pytest.fixture(scope="module")
def program() -> Iterator[Runtime]:
    with runtime("node", "") as found:
        yield found


@contextlib.contextmanager
def server(talk: Callable[[ServerConnection], None]) -> Iterator[str]:
    """A server that welcomes a client, accepts its subscription and then talks. Gives its URL."""

    def handle(web: ServerConnection) -> None:
        assert web.recv(SECONDS) == "H1:"
        web.send("W1:")
        request = web.recv(SECONDS)
        assert isinstance(request, str)
        web.send(f"R{request[1]}:null")
        talk(web)

    with serve(handle, "127.0.0.1", 0, subprotocols=[Subprotocol("umq")], compression=None) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listening.socket.getsockname()[1]}/umq"
        finally:
            listening.shutdown()
            thread.join(SECONDS)


def update(size: int) -> str:
    return f'T1:{{"channel":"any","headers":{{}},"body":"{"é" * size}","ts":1}}'


def test_messages_of_any_size_and_in_any_pieces_are_read(program: Runtime) -> None:
    pongs = []

    def talk(web: ServerConnection) -> None:
        def pieces(text: str) -> Iterator[str]:
            for start in range(0, len(text), 1000):
                pongs.append(web.ping())
                yield text[start : start + 1000]

        for size in (1, 50, 60, 1000, 40_000, 1_000_000):
            web.send(update(size))
        web.send(pieces(update(5000)))
        web.socket.sendall(b"".join(b"\x81" + bytes([len(each)]) + each for each in [update(2).encode()] * 3))
        with contextlib.suppress(ConnectionClosed):
            web.recv(SECONDS)

    with server(talk) as url:
        assert program.run("hear", url, 10) == [1, 50, 60, 1000, 40_000, 1_000_000, 5000, 2, 2, 2]
    assert len(pongs) > 1
    assert all(pong.wait(SECONDS) for pong in pongs)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param(b"\xc1\x00", 1002, id="reserved bit"),
        pytest.param(b"\x83\x00", 1002, id="reserved opcode"),
        pytest.param(b"\x81\x81\0\0\0\0x", 1002, id="masked"),
        pytest.param(b"\x80\x00", 1002, id="continues nothing"),
        pytest.param(b"\x01\x00\x81\x00", 1002, id="begins within another"),
        pytest.param(b"\x09\x00", 1002, id="ping in pieces"),
        pytest.param(b"\x89\x7e\x00\x7e" + bytes(126), 1002, id="long ping"),
        pytest.param(b"\x81\x01\xff", 1007, id="not UTF-8"),
        pytest.param(b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), 1009, id="too big"),
        pytest.param(b"\x88\x02\x03\xe9", 1001, id="closed"),
        pytest.param(b"\x81\x01x", 1000, id="not UMQ"),
    ],
)
def test_what_is_wrong_ends_the_connection_with_a_code(program: Runtime, frames: bytes, code: int) -> None:
    codes: list[int | None] = []

    def talk(web: ServerConnection) -> None:
        web.socket.sendall(frames)
        try:
            while True:
                web.recv(SECONDS)
        except ConnectionClosed as closed:
            codes.append(None if closed.rcvd is None else closed.rcvd.code)

    with server(talk) as url:
        assert program.run("hear", url, 1) == []
    assert codes[:1] == [code]


def test_a_server_that_is_no_hub_is_an_error(program: Runtime) -> None:
    with serve(
        lambda web: web.close(), "127.0.0.1", 0, process_request=lambda web, _: web.respond(418, "teapot")
    ) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        port = other.socket.getsockname()[1]
        found = program.run("refused", f"ws://127.0.0.1:{port}/umq")
        other.shutdown()
        thread.join(SECONDS)
    assert found["tag"] == "connection-lost"
    assert found["text"] == f"no connection to ws://127.0.0.1:{port}/umq: 418 teapot"
