"""Whatever is said to a MicroMsg2 peer: it answers in whole frames or hangs up, and nothing is left behind."""

import asyncio
import contextlib
import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.errors import PolywireError
from polywire.protocols.micromsg import (
    CLIENT,
    SERVER,
    Command,
    Decoder,
    Error,
    Extension,
    Failure,
    Handshake,
    Message,
    NamedExtension,
    Peer,
    Received,
    encode,
)
from polywire.protocols.micromsg.client import terms_of
from polywire.wire.frame import Frame
from tests.client.loops import run
from tests.client.sink import Sink
from tests.protocols.micromsg.strategies import frames

small = st.integers(1, 5)
likely: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Message, small, st.sampled_from(["topic/a", "q", "fail", "wait"]), st.sampled_from([b"", b"1"])),
    st.builds(lambda number: Extension(2, bytes([0, number])), small),
    st.builds(Extension, st.integers(1, 4), st.sampled_from([b"", b"Type", b"\xff"])),
    st.sampled_from(
        [
            Command("ping"),
            Command("pong"),
            Command("subscribe", (("destination", "topic/a"),)),
            Command("subscribe", (("destination", "topic/a"), ("filter", "n"))),
            Command("unsubscribe", (("destination", "topic/a"),)),
            Command("dance"),
            Error("forbidden", (("sequence", "1"),)),
            Error("forbidden", (("name", "x-auth"),)),
            Error("no-such-destination"),
            Error("shutting-down"),
        ]
    ),
)
talks = st.lists(st.one_of(likely, likely, frames, st.binary(max_size=12)), max_size=25)
USED = (NamedExtension("pub-sub"), NamedExtension("batch-ack", (("max-count", "3"),)), NamedExtension("dotnet"))


async def talk(role: str, said: list[Frame | bytes]) -> None:
    """Everything a program may do, while the other side says this."""

    async def wait() -> None:
        await asyncio.sleep(0)

    def handler(_: Peer, message: Received) -> object:
        if message.destination == "fail":
            raise Failure("forbidden")
        return wait() if message.destination == "wait" else None

    link = Sink()
    peer = Peer(role, terms_of(None, "me", (), ("pub-sub", "batch-ack", "dotnet"), 3), handler)  # type: ignore[arg-type] # of both kinds
    peer.attach(link)
    asking: list[asyncio.Task[object]] = []
    with contextlib.suppress(PolywireError):
        if role == CLIENT:
            peer._shake()
            peer.received(encode(Handshake("you", (), USED)), False)
        else:
            peer.received(encode(Handshake("you", USED)) + encode(Handshake("you", USED)), False)
        asking = [
            asyncio.create_task(act)
            for act in (peer.subscribe("topic/a"), peer.send("x", "y"), peer.send("x", "y", type_name="T"), peer.ping())
        ]
        await asyncio.sleep(0)
        for frame in said:
            peer.received(frame if isinstance(frame, bytes) else encode(frame), False)
            await asyncio.sleep(0)
    peer.lost(None)
    await asyncio.gather(*asking, return_exceptions=True)
    assert not peer.is_open
    assert len(peer.outflow) == len(peer._commands) == peer._work.due == len(peer._inflow) == 0
    decoder = Decoder(SERVER if role == CLIENT else CLIENT)
    decoder.feed(b"".join(link.written))


@settings(max_examples=40)  # each has an event loop of its own
@given(st.sampled_from([CLIENT, SERVER]), talks)
def test_whatever_is_said_a_peer_holds(role: str, said: list[Frame | bytes]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        run(lambda: talk(role, said))
    finally:
        logging.disable(logging.NOTSET)
