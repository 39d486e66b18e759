"""sABC against a running hub, on both transports: what only whole connections show."""

import asyncio
from collections.abc import Iterator

import pytest

import polywire
from polywire.client.errors import CallFailed, Refused
from polywire.client.message import Request
from polywire.protocols.sabc import (
    Decoder,
    Failure,
    Message,
    MessageDecoder,
    RemoteHub,
    Truncated,
    Whole,
    connect,
    encode,
)
from polywire.protocols.sabc import Limits as SabcLimits
from polywire.wire.frame import Frame
from tests.client.loops import run
from tests.hub_process import HubProcess, running_hub
from tests.protocols.sabc.wire import whole, wire
from tests.server.subscribers import Line, line_to, subscribe

BOTH = pytest.mark.parametrize("listener", ["sabc", "sabc_ws"])
SIZE = 4000
"""The hub's limit for a message, and twice that of its frames."""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(f"limits.message_size={SIZE}", f"sabc.frame_size={SIZE // 2}", "limits.call_time=1") as process:
        yield process


def url(hub: HubProcess, listener: str) -> str:
    address = hub.addresses[listener]
    return address.replace("tcp:", "sabc:").replace("ws:", "sabc+ws:")


def frames_of_a_message(line: Line, listener: str, session: str) -> list[Frame]:
    """The frames that come next, up to the end of their message."""
    decoder = Decoder(session_id=session) if listener == "sabc" else MessageDecoder(session_id=session)
    frames: list[Frame] = []
    while not frames or (isinstance(frames[-1], Message) and frames[-1].more):
        frames += decoder.feed(line.until(b"\r\n\r\n\0"))
    return frames


@pytest.mark.rule("SABC-132")
def test_on_websocket_heads_alone_are_whole_frames(hub: HubProcess) -> None:
    with line_to(hub, "sabc_ws") as line:
        line.send("CONNECT\r\nclient-id::me")
        session = line.until(b"\0").split(b"\r\n")[1].decode()
        line.send(f"MESSAGE\r\n{session}\r\nmsg-id::1\r\nop::subscribe\r\ndestination::heads")
        line.expect(wire(f"MESSAGE\n{session}\nref-msg-id::1\n\nOK\n\n^@").decode())
        line.send(f"MESSAGE\r\n{session}\r\nmsg-id::2\r\nsend-only::yes\r\ndestination::heads\r\n")
        head = f"MESSAGE\n{session}\nsend-only::yes\nsubscription::1\nmsg-id::1\ndestination::heads"
        line.expect(wire(f"{head}\n\n^@").decode())
        line.send(f"DISCONNECT\r\n{session}")
        assert line.ended() == [wire(f"DISCONNECTING\n{session}\n\n^@").decode(), "closed 1000"]


@pytest.mark.rule("SABC-133")
@BOTH
def test_a_message_whose_headers_pass_the_size_limit_is_refused_and_not_published(
    hub: HubProcess, listener: str
) -> None:
    with line_to(hub, listener) as line:
        session = subscribe(line, listener, "far/away")
        padding = "x" * SIZE
        line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::2\np::{padding}\ndestination::far/away\n\nbody\n\n^@"))
        refused = line.until(b"\r\n\r\n\0")
        assert refused.startswith(wire(f"ERROR\nsession-id::{session}\nerror-code::400\nref-msg-id::2\n\n"))
        line.send(
            wire(f"MESSAGE\nsession-id::{session}\nmsg-id::3\nsend-only::yes\ndestination::far/away\n\nnext\n\n^@")
        )
        assert line.until(b"\r\n\r\n\0").endswith(b"msg-id::1\r\ndestination::far/away\r\n\r\nnext\r\n\r\n\0")


@pytest.mark.rule("SABC-134")
@BOTH
@pytest.mark.parametrize("key", ["ref-msg-id", "msg-id", "message-id"])
def test_an_error_about_a_call_fails_it_at_once(hub: HubProcess, listener: str, key: str) -> None:
    with line_to(hub, listener) as provider, line_to(hub, "sabc") as caller:
        theirs, mine = subscribe(provider, listener, "a"), subscribe(caller, "sabc", "a")
        provider.send(wire(f"MESSAGE\nsession-id::{theirs}\nmsg-id::2\nop::serve\nservice::{key}\n\n^@"))
        assert b"ref-msg-id::2" in provider.until(b"\0")
        caller.send(wire(f"MESSAGE\nsession-id::{mine}\nmsg-id::2\nop::call\nservice::{key}\nmethod::m\n\n^@"))
        assert b"\r\nmsg-id::1\r\n" in provider.until(b"\0")
        provider.send(wire(f"ERROR\nsession-id::{theirs}\nerror-code::418\n{key}::1\n\na teapot\n\n^@"))
        answer = f"ERROR\nsession-id::{mine}\nerror-code::418\nref-msg-id::2\nerror-source::service\n\na teapot\n\n^@"
        assert caller.until(b"\r\n\r\n\0") == wire(answer)


@pytest.mark.rule("SABC-101", "SABC-134")
def test_a_provider_that_is_too_slow_does_not_fail_a_message_of_its_own(hub: HubProcess) -> None:
    """The ERROR about the hub's message 2 is not taken for one about the client's message 2."""

    async def main() -> None:
        late: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        begun, released = asyncio.Event(), asyncio.Event()

        async def answer(request: Request) -> None:
            if request.method == "slowly":
                begun.set()
                await released.wait()

        async with connect(url(hub, "sabc")) as peer, connect(url(hub, "sabc")) as other:
            peer.failed = late.set_result
            mine, theirs = RemoteHub(peer), RemoteHub(other)
            await mine.serve("mine", answer)
            await theirs.serve("theirs", answer)
            await theirs.call("mine", "quickly")
            late_call = asyncio.create_task(theirs.call("mine", "slowly"))  # message 2 of the hub
            await begun.wait()
            own_call = asyncio.create_task(mine.call("theirs", "slowly"))  # message 2 of this client
            failure = await asyncio.wait_for(late, 20)
            assert (failure.code, failure.headers) == ("408", (("sent-msg-id", "2"),))
            for call in (late_call, own_call):
                with pytest.raises(Failure) as failed:
                    await call
                assert failed.value.code == "504"
            released.set()

    run(main)


@pytest.mark.rule("SABC-135")
@BOTH
def test_what_is_larger_than_a_frame_is_sent_in_several(hub: HubProcess, listener: str) -> None:
    body = "grün " * 600
    queue = f"queue/large-{listener}"  # the hub is shared, and nothing acknowledges the message
    with line_to(hub, listener) as line, line_to(hub, listener) as other:
        session, theirs = subscribe(line, listener, "large"), subscribe(other, listener, "b")
        line.send(
            wire(f"MESSAGE\nsession-id::{session}\nmsg-id::2\nsend-only::yes\ndestination::large\n\n{body}\n\n^@")
        )
        pushed = frames_of_a_message(line, listener, session)
        line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::3\nop::subscribe\ndestination::{queue}\n\n^@"))
        assert b"ref-msg-id::3" in line.until(b"\0")
        other.send(wire(f"MESSAGE\nsession-id::{theirs}\nmsg-id::2\ndestination::{queue}\n\n{body}\n\n^@"))
        assert b"ref-msg-id::2" in other.until(b"\0")
        queued = frames_of_a_message(line, listener, session)
        line.send(wire(f"MESSAGE\nsession-id::{session}\nmsg-id::4\nop::serve\nservice::large\n\n^@"))
        assert b"ref-msg-id::4" in line.until(b"\0")
        head = f"MESSAGE\nsession-id::{theirs}\nmsg-id::3\nop::call\nservice::large\nmethod::m"
        other.send(wire(f"{head}\n\n{body}\n\n^@"))
        called = frames_of_a_message(line, listener, session)
        number = called[0].msg_id if isinstance(called[0], Message) else ""
        line.send(wire(f"MESSAGE\nsession-id::{session}\nref-msg-id::{number}\n\n{body}\n\n^@"))
        replied = frames_of_a_message(other, listener, theirs)
        for frames in (pushed, queued, called, replied):
            assert [each.body.decode() for each in whole(frames) if isinstance(each, Whole)] == [body]
            assert len(frames) == 2
            assert max(len(encode(frame)) for frame in frames) <= SIZE // 2


@pytest.mark.rule("SABC-105", "SABC-136")
@BOTH
def test_what_the_hub_cuts_is_an_error_to_our_clients(hub: HubProcess, listener: str) -> None:
    async def main() -> None:
        async with connect(url(hub, listener)) as peer, polywire.connect(url(hub, listener)) as bus:
            remote = RemoteHub(peer)
            with pytest.raises(Truncated):
                await remote.publish("cut", b"x" * SIZE, timeout=20)
            with pytest.raises(Refused) as refused:
                await bus.publish("cut", b"x" * SIZE)
            assert refused.value.code == "413"
            assert not refused.value.temporary
            await bus.serve("echo", lambda request: request.body)
            assert (await bus.call("echo", "m", b"x" * 100)).body == b"x" * 100
            with pytest.raises(CallFailed) as failed:
                await bus.call("echo", "m", b"x" * SIZE)
            assert (failed.value.code, failed.value.tag) == (413, "too-large")
        limits = SabcLimits(max_message=SIZE)
        async with connect(url(hub, listener), limits=limits) as peer:
            remote = RemoteHub(peer)
            async with await remote.subscribe("uncut") as messages:
                with pytest.raises(polywire.errors.LocalProtocolError):
                    await remote.publish("uncut", b"x" * SIZE)
                await remote.publish("uncut", b"short", timeout=20)
                assert (await anext(messages)).body == b"short"

    run(main)
