"""What a server without a hub puts up with: silence, handshakes that take too long, too many connections."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from polywire.client.errors import ClientError, Closed
from polywire.client.tls import server_context
from polywire.client.transport import Opening
from polywire.protocols import micromsg, sabc, umq
from tests.client.loops import run, until
from tests.server.certificates import Authority

Gate = asyncio.Event


class Kind:
    """One protocol: how to serve, to connect, and to send something that is answered once ``gate`` is open."""

    def __init__(self, serve: Callable[..., Opening[Any]], connect: Callable[[str], Opening[Any]], words: str) -> None:
        self.serve, self.connect, self.words = serve, connect, words


def _umq(gate: Gate, **options: Any) -> Opening[Any]:
    async def handler(_: umq.Request) -> str:
        await gate.wait()
        return "done"

    return umq.serve(handler, port=0, **options)


def _sabc(gate: Gate, **options: Any) -> Opening[Any]:
    async def handler(_: sabc.Request) -> str:
        await gate.wait()
        return "done"

    return sabc.serve(handler, port=0, **options)


def _micromsg(gate: Gate, **options: Any) -> Opening[Any]:
    async def handler(_peer: micromsg.Peer, _message: micromsg.Received) -> None:
        await gate.wait()

    return micromsg.serve(handler, port=0, **options)


KINDS = {
    "umq": Kind(_umq, umq.connect, "no data received within the idle timeout"),
    "sabc": Kind(_sabc, sabc.connect, "the other side ended the session"),
    "sabc-ws": Kind(lambda gate, **options: _sabc(gate, path="/sabc", **options), sabc.connect, "ended the session"),
    "micromsg": Kind(_micromsg, micromsg.connect, "no data received within the idle timeout"),
}


def asked(peer: Any) -> Awaitable[Any]:
    """Something that ends when it was answered."""
    if isinstance(peer, umq.Peer):
        return peer.call("?")
    return peer.ask("?") if isinstance(peer, sabc.Peer) else peer.send("queue", "?")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_silent_client_is_told_so_and_one_that_waits_for_an_answer_is_not(kind: Kind) -> None:
    async def main() -> None:
        gate = Gate()
        async with kind.serve(gate, idle_time=0.2) as server:
            async with kind.connect(server.url) as waiting:
                answer = asyncio.ensure_future(asked(waiting))
                async with kind.connect(server.url) as silent:
                    await silent.wait_ended()
                    with pytest.raises(Closed, match=kind.words):
                        await asked(silent)
                gate.set()
                await answer
            await until(lambda: not server.peers)

    run(main)


def test_an_sabc_client_hears_why() -> None:
    failures: list[sabc.Failure] = []

    async def main() -> None:
        async with sabc.serve(None, port=0, idle_time=0.1) as server, sabc.connect(server.url) as peer:
            peer.failed = failures.append
            await peer.wait_ended()

    run(main)
    assert [(failure.code, failure.text) for failure in failures] == [
        ("408", "no data received within the idle timeout")
    ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_more_than_so_many_are_connected(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        gate = Gate()
        gate.set()
        async with kind.serve(gate, connections=2) as server, kind.connect(server.url) as first:
            async with kind.connect(server.url) as second:
                for _ in range(2):
                    with pytest.raises(ClientError):
                        await kind.connect(server.url)
                await asked(first)
                await asked(second)
            assert server.refused == 2
            await until(lambda: len(server.peers) == 1)
            async with kind.connect(server.url) as third:
                await asked(third)

    with caplog.at_level(logging.WARNING, "polywire.client"):
        run(main)
    assert sum("2 connections are open, and no more are let in" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_handshake_that_does_not_come_is_not_waited_for(kind: Kind) -> None:
    async def main() -> None:
        async with kind.serve(Gate(), handshake_time=0.1) as server:
            host, port = server.url.partition("//")[2].partition("/")[0].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                await reader.read()  # whatever its last words are, then the end
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    run(main)


@pytest.mark.parametrize("kind", [KINDS["umq"], KINDS["sabc"], KINDS["micromsg"]], ids=["umq", "sabc", "micromsg"])
def test_a_handshake_of_tls_that_does_not_come_is_not_waited_for(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = server_context(certificate=authority.issue("server"))

    async def main() -> None:
        async with kind.serve(Gate(), handshake_time=0.1, tls=context) as server:
            host, port = server.url.partition("//")[2].partition("/")[0].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    run(main)
