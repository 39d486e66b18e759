"""UMQ between two programs, over real sockets and without a hub: calls, attachments, callbacks, topics, attributes."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from polywire.client.errors import Closed, ConnectionLost, Timeout
from polywire.protocols.umq import (
    AttachmentFailed,
    FatalCode,
    Limits,
    LocalProtocolError,
    MethodError,
    Peer,
    Reply,
    Request,
    RpcException,
)
from tests.client.loops import run, until
from tests.protocols.umq.programs import connected


def echo(request: Request) -> str:
    return request.text


async def echo_later(request: Request) -> Reply:
    return Reply(request.text, [await each for each in request.attachments])


def test_a_call_is_answered_by_the_handler_of_the_other_side() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            assert (await both.near.call("How are you?")).text == "How are you?"

    run(main)


def test_many_calls_are_in_flight_and_each_gets_its_own_answer() -> None:
    async def answer(request: Request) -> str:
        await asyncio.sleep(0.001 * (int(request.text) % 5))
        return request.text

    async def main() -> None:
        async with connected(answer) as both:
            answers = await asyncio.gather(*[both.near.call(str(number)) for number in range(200)])
            assert [each.text for each in answers] == [str(number) for number in range(200)]

    run(main)


def test_either_side_may_call() -> None:
    async def main() -> None:
        async with connected(echo, near=lambda request: request.text.upper()) as both:
            assert (await both.far.call("from the server")).text == "FROM THE SERVER"

    run(main)


def test_an_exception_of_the_handler_reaches_the_caller_in_its_own_words() -> None:
    def handler(request: Request) -> str:
        raise RpcException(f"I'm teapot, not {request.text}")

    async def main() -> None:
        async with connected(handler) as both:
            with pytest.raises(RpcException) as failure:
                await both.near.call("coffee")
            assert (failure.value.text, failure.value.code) == ("I'm teapot, not coffee", 0)

    run(main)


def test_an_unforeseen_failure_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> str:
        raise ValueError(request.text)

    async def main() -> None:
        async with connected(handler) as both:
            with pytest.raises(RpcException) as failure:
                await both.near.call("secret")
            assert failure.value.code == FatalCode.UNAVAILABLE
            assert "secret" not in failure.value.text

    with caplog.at_level(logging.ERROR, "polywire.umq"):
        run(main)
    assert "secret" in [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def test_without_a_handler_a_call_gets_code_6() -> None:
    async def main() -> None:
        async with connected() as both:
            with pytest.raises(RpcException) as failure:
                await both.near.call("anybody?")
            assert failure.value.code == FatalCode.NO_RPC_SERVER

    run(main)


def test_a_text_that_cannot_be_written_is_refused_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            with pytest.raises(LocalProtocolError):
                await both.near.call("\ud800")
            assert (await both.near.call("fine")).text == "fine"

    run(main)


def test_attachments_go_along_with_a_call_and_with_its_answer() -> None:
    async def main() -> None:
        async with connected(echo_later) as both:
            large = bytes(range(256)) * 4096
            answer = await both.near.call("here", [b"", b"\x00\xff", large])
            assert await answer.all() == [b"", b"\x00\xff", large]

    run(main)


@pytest.mark.rule("UMQ-139")
def test_each_attachment_resolves_or_raises_on_its_own_apart_from_its_message() -> None:
    gate: asyncio.Future[bytes]

    async def broken() -> bytes:
        raise OSError("Upstream download error")

    def handler(_: Request) -> Reply:
        return Reply("three of them", [b"first", broken(), gate])

    async def main() -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        async with connected(handler) as both:
            answer = await both.near.call("send")
            assert answer.text == "three of them"
            assert await answer.attachments[0] == b"first"
            with pytest.raises(AttachmentFailed, match="Upstream download error"):
                await answer.attachments[1]
            assert not answer.attachments[2].done()
            gate.set_result(b"last")
            assert await answer.attachments[2] == b"last"
            assert await answer.attachments[0] == b"first"

    run(main)


def test_a_slow_attachment_holds_up_no_message_behind_it() -> None:
    async def main() -> None:
        async with connected(echo_later) as both:
            slow: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            waiting = asyncio.create_task(both.near.call("with", [slow]))
            assert (await both.near.call("without")).text == "without"
            behind = asyncio.create_task(both.near.call("behind", [b"second"]))
            slow.set_result(b"first")
            assert await (await waiting).all() == [b"first"]
            assert await (await behind).all() == [b"second"]

    run(main)


def test_an_attachment_that_is_still_due_fails_with_the_connection() -> None:
    async def main() -> None:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with connected(lambda _: Reply("soon", [never])) as both:
            answer = await both.near.call("send")
            awaited = asyncio.create_task(answer.all())
            await asyncio.sleep(0)
            await both.far.close()
            with pytest.raises(AttachmentFailed):
                await awaited
        assert never.cancelled()

    run(main)


def test_a_callback_reaches_what_was_registered() -> None:
    async def work(request: Request) -> str:
        done = await request.peer.call_back(int(request.text), "here is work")
        return f"told: {done.text}"

    async def main() -> None:
        async with connected(work) as both:
            number = both.near.register(lambda request: f"{request.text} for {request.callback_id}")
            assert (await both.near.call(str(number))).text == f"told: here is work for {number}"
            both.near.unregister(number)
            with pytest.raises(RpcException):
                await both.near.call(str(number))
            with pytest.raises(RpcException) as failure:
                await both.far.call_back(number, "again")
            assert failure.value.code == FatalCode.CALLBACK_NOT_FOUND

    run(main)


def test_a_topic_is_read_from_its_first_update_to_its_end() -> None:
    def publish(request: Request) -> str:
        async def updates(peer: Peer) -> None:
            async with peer.publication(int(request.text)) as publication:
                for number in range(3000):
                    await publication.update(f" update{number}", [b"x"] if number == 1 else [])

        tasks.append(asyncio.get_running_loop().create_task(updates(request.peer)))
        return "accepted"

    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        async with connected(publish) as both, both.near.subscription() as topic:
            await both.near.call(str(topic.topic_id))
            found = [update async for update in topic]
            assert [update.text for update in found] == [f" update{number}" for number in range(3000)]
            assert await found[1].all() == [b"x"]
            await asyncio.gather(*tasks)

    run(main)


def test_leaving_a_topic_tells_its_publisher() -> None:
    async def main() -> None:
        async with connected() as both:
            async with both.near.subscription() as topic:
                publication = both.far.publication(topic.topic_id)
                assert await publication.update("one")
                assert (await topic.__anext__()).text == "one"
            await publication.wait_ended()
            assert not await publication.update("nobody reads this")
            again = both.far.publication(topic.topic_id)
            again.close()

    run(main)


def test_a_topic_id_in_use_is_refused_with_code_11() -> None:
    def handler(request: Request) -> str:
        request.peer.publication(7)
        return "accepted"

    async def main() -> None:
        async with connected(handler) as both:
            await both.near.call("subscribe")
            with pytest.raises(RpcException) as failure:
                await both.near.call("subscribe")
            assert failure.value.code == FatalCode.BAD_REQUEST
            with pytest.raises(MethodError):
                both.far.publication(7)

    run(main)


def test_updates_nobody_subscribed_to_are_answered_with_unsubscribe() -> None:
    async def main() -> None:
        async with connected() as both:
            publication = both.far.publication(99)
            await publication.update("?")
            await publication.wait_ended()

    run(main)


def test_a_reader_that_makes_a_call_for_each_update_never_stalls() -> None:
    def publish(request: Request) -> str:
        return request.text

    async def main() -> None:
        async with connected(publish) as both, both.near.subscription() as topic:
            publication = both.far.publication(topic.topic_id)

            async def flood() -> None:
                for number in range(5000):
                    await publication.update(str(number))
                publication.close()

            flooding = asyncio.create_task(flood())
            count = 0
            async for update in topic:
                assert (await both.near.call(update.text)).text == str(count)
                count += 1
            assert count == 5000
            await flooding

    run(main)


def test_a_reader_that_does_not_read_makes_the_publisher_wait() -> None:
    async def main() -> None:
        async with connected() as both, both.near.subscription() as topic:
            publication = both.far.publication(topic.topic_id)
            body = "x" * 10_000
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while await publication.update(body):
                    sent += 1

            flooding = asyncio.create_task(flood())
            await until(lambda: len(topic.inbox) >= 1000)
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.05)
            assert not flooding.done()
            assert len(topic.inbox) < 1200
            for _ in range(2000):
                await topic.__anext__()
            topic.leave()
            await flooding

    run(main)


@pytest.mark.rule("UMQ-159")
def test_attributes_of_one_side_are_seen_by_the_other() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            names: list[str] = []
            both.far.changed = names.append
            both.near.set("room", "kitchen", [b"plan"])
            both.near.set("colour", "a=b")
            both.near.unset("colour")
            await both.near.call("wait for it")
            assert names == ["room", "colour", "colour"]
            assert both.far.attributes["room"].value == "kitchen"
            assert both.far.attributes["room"].attachments == (b"plan",)
            assert "colour" not in both.far.attributes
            seen = both.far.attributes
            assert isinstance(seen, Mapping)
            assert {name: each.value for name, each in seen.items()} == {"room": "kitchen"}
            assert seen.get("colour") is None
            assert not hasattr(seen, "set")
            with pytest.raises(TypeError):
                seen["room"] = seen["room"]  # type: ignore[index]

    run(main)


def test_a_call_that_takes_too_long_raises_and_its_late_answer_is_passed_over() -> None:
    release: asyncio.Event

    async def handler(request: Request) -> str:
        if request.text == "slow":
            await release.wait()
        return request.text

    async def main() -> None:
        nonlocal release
        release = asyncio.Event()
        async with connected(handler) as both:
            with pytest.raises(Timeout) as late:
                await both.near.call("slow", timeout=0.01)
            assert late.value.sent is True
            release.set()
            assert (await both.near.call("next")).text == "next"
            assert both.near._connection.calls.ignored == 1

    run(main)


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async def handler(_: Request) -> str:
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        async with connected(handler) as both:
            calls = [asyncio.create_task(both.near.call("x", [b"y"], timeout=60)) for _ in range(3)]
            await until(lambda: len(both.far._connection.requests) == 3)
            for each in calls:
                each.cancel()
            await asyncio.wait(calls)
            assert all(each.cancelled() for each in calls)
            assert len(both.near._connection.calls) == 0
            await both.far.close()

    run(main)


def test_a_cancelled_wait_for_an_update_or_an_attachment_loses_nothing() -> None:
    async def main() -> None:
        later: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with connected(lambda _: Reply("", [later])) as both, both.near.subscription() as topic:
            publication = both.far.publication(topic.topic_id)
            answer = await both.near.call("send")
            waits = [asyncio.ensure_future(topic.__anext__()), asyncio.ensure_future(answer.body())]
            await asyncio.sleep(0)
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
            later.set_result(b"there")
            await publication.update("update")
            assert (await topic.__anext__()).text == "update"
            assert await answer.body() == b"there"

    run(main)


def test_more_calls_than_may_be_in_flight_wait_for_their_turn() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request) -> str:
            await release.wait()
            return request.text

        async with connected(handler, limits=Limits(in_flight=4)) as both:
            calls = [asyncio.create_task(both.near.call(str(number))) for number in range(20)]
            await until(lambda: len(both.far._connection.requests) == 4)
            assert len(both.near._connection.calls) == 4
            calls[10].cancel()
            release.set()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert [each.text for each in done if not isinstance(each, BaseException)] == [
                str(number) for number in range(20) if number != 10
            ]

    run(main)


def test_who_waits_for_room_when_the_connection_ends_is_told_that_it_may_have_arrived() -> None:
    async def main() -> None:
        async with connected(echo) as both:
            assert both.far._sender.link is not None
            both.far._sender.link.pause_reading()
            calls = [asyncio.create_task(both.near.call("x" * 1_000_000)) for _ in range(20)]
            await until(lambda: not both.near.has_room)
            both.far._sender.link.abort()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in outcomes} == {ConnectionLost}
            assert all(each.sent for each in outcomes if isinstance(each, ConnectionLost))

    run(main)


def test_what_waits_when_the_connection_ends_is_told_so() -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def handler(_: Request) -> str:
            await never.wait()
            return ""

        async with connected(handler) as both:
            topic = both.near.subscription()
            call = asyncio.create_task(both.near.call("x"))
            await until(lambda: len(both.far._connection.requests) == 1)
            both.far.fail(FatalCode.SHUTTING_DOWN)
            with pytest.raises(ConnectionLost, match="Shutting down") as lost:
                await call
            assert lost.value.sent is True
            with pytest.raises(ConnectionLost):
                await topic.__anext__()
            await both.near.wait_ended()
            with pytest.raises(Closed) as closed:
                await both.near.call("too late")
            assert closed.value.sent is False
            with pytest.raises(Closed):
                both.near.subscription()
            assert not both.near.is_open

    run(main)
