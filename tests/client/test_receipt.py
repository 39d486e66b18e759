import asyncio

import pytest

from polywire.client.errors import ConnectionLost, Timeout
from polywire.client.outgoing import SENT, Promise, Receipt
from tests.client.loops import run


async def _awaited(receipt: Receipt) -> Promise:
    return await receipt


def test_what_is_known_is_given_at_once() -> None:
    coroutine = _awaited(SENT)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value is Promise.SENT


def test_all_who_wait_hear_of_the_promise() -> None:
    async def main() -> None:
        receipt = Receipt()
        waiting = [asyncio.create_task(_awaited(receipt)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not receipt.done
        receipt.keep(Promise.ACKNOWLEDGED)
        receipt.fail(ConnectionLost("too late"))
        assert [await each for each in waiting] == [Promise.ACKNOWLEDGED] * 3
        assert receipt.done

    run(main)


def test_an_error_is_raised_for_whoever_asks_and_for_nobody_else() -> None:
    async def main() -> None:
        receipt = Receipt()
        receipt.fail(ConnectionLost("gone", sent=True))
        receipt.keep(Promise.SENT)
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="gone; it was sent, and may have arrived"):
                await receipt
        Receipt().fail(ConnectionLost("nobody asks"))

    run(main)


def test_what_was_sent_and_not_acknowledged_in_time_may_have_arrived() -> None:
    async def main() -> None:
        for withdraw, sent in ((None, True), (lambda: True, True), (lambda: False, False)):
            receipt = Receipt(withdraw=withdraw)
            receipt.expire(0.01)
            with pytest.raises(Timeout) as late:
                await receipt
            assert late.value.sent is sent
        kept = Receipt()
        kept.expire(0.0)
        kept.keep(Promise.SENT)
        await asyncio.sleep(0.01)
        assert await kept is Promise.SENT

    run(main)


def test_only_when_the_last_one_who_waits_is_cancelled_is_it_withdrawn() -> None:
    async def main() -> None:
        withdrawn: list[int] = []
        receipt = Receipt(withdraw=lambda: withdrawn.append(1))
        first, second = asyncio.create_task(_awaited(receipt)), asyncio.create_task(_awaited(receipt))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert withdrawn == []
        second.cancel()
        await asyncio.wait([second])
        assert withdrawn == [1]

    run(main)
