"""Whatever is said to an sABC peer: it answers in whole frames or hangs up, and nothing is left behind."""

import asyncio
import contextlib
import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.errors import PolywireError
from polywire.protocols.sabc import Connect, Decoder, Failure, Later, Limits, Peer, RemoteHub, Request, Side
from polywire.wire.frame import Discarded
from tests.client.loops import run
from tests.client.sink import Sink

heads = st.sampled_from(["MESSAGE", "ERROR", "CONNECT", "CONNECTED", "DISCONNECT", "DISCONNECTING", "DANCE", ""])
lines = st.lists(
    st.sampled_from(
        [
            "msg-id::1",
            "msg-id::2",
            "ref-msg-id::1",
            "ref-msg-id::2",
            "send-only::yes",
            "msg-more::yes",
            "client-id::c",
            "error-code::404",
            "subscription::1",
            "service::s",
            "content-encoding::base64",
            "session-id::other",
            "no colons",
        ]
    ),
    max_size=4,
)
bodies = st.sampled_from(["", "x", "fail", "later", "wait", "\0", "eA==", "y" * 200])
ends = st.sampled_from(["\r\n\r\n\0", "\0", ""])
frames = st.tuples(heads, st.booleans(), lines, bodies, ends)
talks = st.lists(st.one_of(frames, st.binary(max_size=20)), max_size=20)


def _octets(frame: tuple[str, bool, list[str], str, str], session: str) -> bytes:
    head, own, lines, body, end = frame
    named = [f"session-id::{session}"] if own else []
    return "\r\n".join([head, *named, *lines, "", body]).encode() + end.encode()


async def talk(side: Side, said: list[tuple[str, bool, list[str], str, str] | bytes]) -> None:
    """Everything a program may do, while the other side says this."""

    async def wait(request: Request) -> bytes:
        await asyncio.sleep(0)
        return request.body

    def handler(request: Request) -> object:
        if request.body == b"fail":
            raise Failure(404)
        if request.body == b"later":
            return Later()
        return wait(request) if request.body == b"wait" else request.body

    link = Sink()
    peer = Peer(side, handler, limits=Limits(in_flight=4, max_message=500, max_unfinished=3, max_head=512))  # type: ignore[arg-type] # of many kinds
    peer.attach(link)
    asking: list[asyncio.Task[object]] = []
    with contextlib.suppress(PolywireError):
        if side is Side.CLIENT:
            peer._sender.send(Connect("me"))
            peer.received(b"CONNECTED\r\nsession-id::s\r\n\r\n\0", False)
            hub = RemoteHub(peer)
            asking = [asyncio.create_task(act) for act in (hub.subscribe("a"), peer.ask("hi"), peer.send("x"))]
        else:
            peer.received(b"CONNECT\r\nclient-id::c\r\n\r\n\0", False)
        await asyncio.sleep(0)
        for frame in said:
            peer.received(frame if isinstance(frame, bytes) else _octets(frame, peer.session_id), False)
            await asyncio.sleep(0)
    peer.lost(None)
    await asyncio.gather(*asking, return_exceptions=True)
    assert not peer.is_open
    assert len(peer._unanswered) == len(peer._requests) == 0
    decoder = Decoder(session_id=peer.session_id or "s")
    read = decoder.feed(b"".join(link.written))
    assert not [frame for frame in read if isinstance(frame, Discarded)]


@settings(max_examples=40)  # each has an event loop of its own
@given(st.sampled_from(Side), talks)
def test_whatever_is_said_a_peer_holds(side: Side, said: list[tuple[str, bool, list[str], str, str] | bytes]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        run(lambda: talk(side, said))
    finally:
        logging.disable(logging.NOTSET)
