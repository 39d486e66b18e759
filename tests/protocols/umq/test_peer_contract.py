"""Whatever is said to a UMQ peer: it answers in whole messages or hangs up, and nothing is left behind."""

import asyncio
import contextlib
import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.errors import PolywireError
from polywire.protocols.umq import Decoder, Hello, Limits, Peer, Reply, Request, Role, RpcException, encode
from tests.client.loops import run
from tests.client.sink import Sink
from tests.protocols.umq.strategies import conversations

messages = st.one_of(
    st.sampled_from(
        ["A1:C1:x", "C2:x", "C2:fail", "C2:later", "B3:1:x", "T1:x", "A2:T1:x", "D1:", "U1:", "S:a=b", "X:a"]
    ),
    st.sampled_from(["R1:x", "A1:R1:x", "E1:x", "-:gone", "H1:", "W1:", "F0:1 x", "", "c", "C1:\ud800"]),
    st.sampled_from([b"", b"octets"]),
    st.text(max_size=8),
)
written = conversations().map(lambda frames: [encode(frame) for frame in frames])
talks = st.one_of(st.lists(messages, max_size=30), written)


async def talk(role: Role, said: list[str | bytes]) -> None:
    """Everything a program may do, while the other side says this."""

    async def later(request: Request) -> Reply:
        return Reply("later", [await each for each in request.attachments])

    def handler(request: Request) -> object:
        if request.text == "fail":
            raise RpcException("failed")
        return later(request) if request.text == "later" or request.attachments else request.text

    link = Sink()
    peer = Peer(role, handler, limits=Limits(in_flight=4, topics=3, max_unfinished=6))  # type: ignore[arg-type] # of many kinds
    peer.attach(link)
    asking: list[asyncio.Task[object]] = []
    with contextlib.suppress(PolywireError):
        if role is Role.CLIENT:
            peer._sender.send(Hello(1))
            peer.received(b"W1:", True)
            asking = [asyncio.create_task(peer.call("hi", [b"a"])) for _ in range(2)]
            peer.subscription(1)
        else:
            peer.received(b"H1:", True)
        await asyncio.sleep(0)
        peer.register(later, 1)
        for message in said:
            octets = message.encode(errors="surrogatepass") if isinstance(message, str) else message
            with contextlib.suppress(UnicodeDecodeError):  # a link lets no such text through
                peer.received(octets, isinstance(message, str))
            await asyncio.sleep(0)
    peer.lost(None)
    await asyncio.gather(*asking, return_exceptions=True)
    assert not peer.is_open
    assert not peer._unfinished
    decoder = Decoder()
    for octets, text in zip(link.written, link.texts, strict=True):
        decoder.feed(octets.decode() if text else octets)


@settings(max_examples=40)  # each has an event loop of its own
@given(st.sampled_from(Role), talks)
def test_whatever_is_said_a_peer_holds(role: Role, said: list[str | bytes]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        run(lambda: talk(role, said))
    finally:
        logging.disable(logging.NOTSET)
