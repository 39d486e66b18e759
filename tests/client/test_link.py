"""Links of every kind, against listeners of the same make."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from polywire.client.address import parse
from polywire.client.errors import ClientError, ConnectFailed, ConnectionLost
from polywire.client.link import BATCH, Link
from polywire.client.tls import TlsError, client_context, server_context
from polywire.client.transport import dial, listen
from tests.client.loops import run, until
from tests.faults.proxy import proxied, random_cuts
from tests.server.certificates import Authority

KINDS = ("tcp", "tls", "unix", "ws", "wss")
BIG = bytes(range(256)) * 8192


@dataclass
class Collector:
    """A receiver that keeps everything."""

    data: bytearray = field(default_factory=bytearray)
    messages: list[tuple[bytes, bool]] = field(default_factory=list)
    ends: list[Exception | None] = field(default_factory=list)

    def received(self, data: bytes, text: bool, /) -> None:
        self.data += data
        self.messages.append((data, text))

    def lost(self, error: Exception | None, /) -> None:
        self.ends.append(error)


@dataclass
class Echo:
    """A receiver that sends back what comes."""

    link: Link
    web: bool
    ends: list[Exception | None] = field(default_factory=list)

    def received(self, data: bytes, text: bool, /) -> None:
        if self.web:
            self.link.send(data, text=text)
        else:
            self.link.write(data)

    def lost(self, error: Exception | None, /) -> None:
        self.ends.append(error)


@dataclass(frozen=True)
class Place:
    url: str
    protocol: str
    server: ssl.SSLContext | None
    client: ssl.SSLContext | None


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    protocol = "umq" if kind in {"ws", "wss"} else "fmqp"
    url = f"unix:{tmp_path}/s" if kind == "unix" else f"{kind}://localhost:0"
    if kind not in {"tls", "wss"}:
        return Place(url, protocol, None, None)
    authority = Authority(tmp_path)
    return Place(url, protocol, server_context(certificate=authority.issue("hub")), client_context(ca=authority.root))


def test_what_is_written_comes_back(place: Place) -> None:
    async def main() -> None:
        address = parse(place.url, protocol=place.protocol, any_port=True)
        web = address.websocket
        listener = await listen(address, lambda link: Echo(link, web), tls=place.server, subprotocol="umq")
        collector = Collector()
        link = await dial(listener.address, collector, tls=place.client, subprotocol="umq")
        if web:
            link.send("grüße".encode(), text=True)
            link.send(b"\xff", text=False)
            link.send(BIG, text=False)
            await until(lambda: len(collector.messages) == 3)
            assert collector.messages == [("grüße".encode(), True), (b"\xff", False), (BIG, False)]
        else:
            link.write(b"one")
            link.write(b"two")
            link.write(BIG)
            await until(lambda: len(collector.data) == 6 + len(BIG))
            assert collector.data == b"onetwo" + BIG
        await link.close()
        assert collector.ends == [None]
        assert not link.is_open
        await until(lambda: not listener.links)
        await listener.close()

    run(main)


def test_a_listener_that_closes_ends_its_links(place: Place) -> None:
    async def main() -> None:
        address = parse(place.url, protocol=place.protocol, any_port=True)
        listener = await listen(address, lambda link: Echo(link, address.websocket), tls=place.server)
        collector = Collector()
        await dial(listener.address, collector, tls=place.client)
        await until(lambda: bool(listener.links))
        await listener.close()
        await until(lambda: bool(collector.ends))
        with pytest.raises(ConnectFailed):
            await dial(listener.address, Collector(), tls=place.client)

    run(main)


def test_octets_on_a_web_socket_need_no_messages() -> None:
    async def main() -> None:
        accepted = Collector()
        address = parse("mqtt+ws://127.0.0.1:0", any_port=True)
        listener = await listen(address, lambda _: accepted, subprotocol="mqtt", stream=True)
        link = await dial(listener.address, Collector(), subprotocol="mqtt", stream=True)
        for _ in range(3):
            link.write(b"abc")
        await until(lambda: bool(accepted.messages))
        assert accepted.messages == [(b"abcabcabc", False)]
        await link.close()
        await listener.close()

    run(main)


def test_writes_of_one_turn_are_one_write() -> None:
    async def main() -> None:
        accepted = Collector()
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), lambda _: accepted)
        link = await dial(listener.address, Collector())
        for _ in range(1000):
            link.write(b"x")
        await until(lambda: bool(accepted.messages))
        assert accepted.messages == [(b"x" * 1000, False)]
        await link.close()
        await listener.close()

    run(main)


def test_a_writer_waits_for_a_peer_that_does_not_read() -> None:
    async def main() -> None:
        links: list[Link] = []
        accepted = Collector()

        def accept(link: Link) -> Collector:
            links.append(link)
            return accepted

        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), accept)
        link = await dial(listener.address, Collector())
        await until(lambda: bool(links))
        links[0].pause_reading()
        sent = 0
        while sent < 64 * 1024 * 1024:
            link.write(bytes(BATCH))
            sent += BATCH
            try:
                async with asyncio.timeout(0.3):
                    await link.room()
            except TimeoutError:
                break
        assert link.full
        assert sent < 64 * 1024 * 1024
        links[0].resume_reading()
        await link.room()
        await until(lambda: len(accepted.data) == sent)
        await link.close()
        await listener.close()

    run(main)


def test_whoever_waits_for_room_hears_of_the_end() -> None:
    async def main() -> None:
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), lambda _: Collector())
        link = await dial(listener.address, Collector())
        await until(lambda: bool(listener.links))
        next(iter(listener.links)).pause_reading()
        while not link.full or link.held < BATCH:
            link.write(bytes(BATCH))
            await asyncio.sleep(0)
        waiting = asyncio.create_task(link.room())
        await asyncio.sleep(0)
        link.abort()
        await asyncio.wait([waiting])
        assert waiting.exception() is None or isinstance(waiting.exception(), ConnectionLost)
        assert link.leftover
        await listener.close()

    run(main)


def test_an_error_of_the_receiver_ends_the_connection_once_its_last_words_are_sent() -> None:
    class Broken(Collector):
        link: Link

        def received(self, data: bytes, text: bool, /) -> None:
            super().received(data, text)
            self.link.write(b"bye")
            raise ClientError("not this")

    async def main() -> None:
        broken = Broken()

        def accept(link: Link) -> Broken:
            broken.link = link
            return broken

        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), accept)
        collector = Collector()
        link = await dial(listener.address, collector)
        link.write(b"x")
        await until(lambda: bool(collector.ends) and bool(broken.ends))
        assert collector.data == b"bye"
        assert collector.ends == [None]
        assert str(broken.ends[0]) == "not this"
        await listener.close()

    run(main)


@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_however_it_is_cut_everything_arrives(kind: str) -> None:
    async def main(port: Callable[[int], int]) -> None:
        protocol = "umq" if kind == "ws" else "fmqp"
        address = parse(f"{kind}://127.0.0.1:0", protocol=protocol, any_port=True)
        listener = await listen(address, lambda link: Echo(link, address.websocket))
        collector = Collector()
        link = await dial(listener.address.bound(port(listener.address.port)), collector)
        for number in range(100):
            if address.websocket:
                link.send(str(number).encode(), text=True)
            else:
                link.write(str(number).encode())
        wanted = "".join(map(str, range(100))).encode()
        await until(lambda: len(collector.data) == len(wanted))
        assert collector.data == wanted
        await link.close()
        await listener.close()

    proxies = []

    def through(port: int) -> int:
        proxy = proxied(port, random_cuts(7))
        proxies.append(proxy)
        return proxy.__enter__()

    try:
        run(lambda: main(through))
    finally:
        for proxy in proxies:
            proxy.__exit__(None, None, None)


def test_a_refused_connection_says_where_and_why() -> None:
    async def main() -> None:
        listener = await listen(parse("umq://127.0.0.1:0", any_port=True), lambda link: Echo(link, web=True))
        wrong = parse(f"umq://127.0.0.1:{listener.address.port}/elsewhere")
        with pytest.raises(ConnectFailed, match=r"no WebSocket there: .*404: nothing is spoken at /elsewhere"):
            await dial(wrong, Collector())
        await listener.close()
        with pytest.raises(ConnectFailed, match=r"umq://127\.0\.0\.1:\d+/umq: ") as caught:
            await dial(listener.address, Collector())
        assert caught.value.address == str(listener.address)

    run(main)


def test_a_peer_that_says_nothing_is_not_waited_for_long() -> None:
    async def main() -> None:
        listener = await listen(parse("fmqp://127.0.0.1:0", any_port=True), lambda _: Collector())
        silent = parse(f"umq://127.0.0.1:{listener.address.port}")
        with pytest.raises(ConnectFailed, match=r"longer than 0\.2 s"):
            await dial(silent, Collector(), timeout=0.2)
        await listener.close()

    run(main)


@pytest.mark.parametrize("scheme", ["fmqps", "umqs"])
def test_a_certificate_nobody_trusts_is_refused(scheme: str, tmp_path: Path) -> None:
    async def main() -> None:
        context = server_context(certificate=Authority(tmp_path).issue("hub"))
        listener = await listen(parse(f"{scheme}://localhost:0", any_port=True), lambda _: Collector(), tls=context)
        with pytest.raises(ConnectFailed, match="certificate is not trusted"):
            await dial(listener.address, Collector())
        link = await dial(listener.address, Collector(), tls=client_context(verify=False))
        await link.close()
        await listener.close()

    run(main)


def test_a_server_may_want_a_clients_certificate(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        context = server_context(certificate=authority.issue("hub"), client_ca=authority.root)
        seen: list[object] = []

        def accept(link: Link) -> Collector:
            seen.append(link.peer("peercert"))
            return Collector()

        listener = await listen(parse("fmqps://localhost:0", any_port=True), accept, tls=context)
        mine = client_context(ca=authority.root, certificate=authority.issue("anna"))
        link = await dial(listener.address, Collector(), tls=mine)
        await link.close()
        assert "anna" in str(seen)
        await listener.close()

    run(main)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing", encoding="utf-8")
    with pytest.raises(TlsError, match=r"wrong\.pem") as caught:
        client_context(ca=wrong)
    assert caught.value.file == str(wrong)
    with pytest.raises(TlsError, match=r"wrong\.pem"):
        client_context(certificate=wrong)
    with pytest.raises(TlsError, match=r"none\.pem"):
        server_context(certificate=tmp_path / "none.pem")
