import asyncio
import logging

import pytest

from polywire.backoff import Backoff
from polywire.client.errors import Closed, ConnectFailed, Refused
from polywire.client.reconnect import Keeper
from tests.client.loops import run, until

QUICK = Backoff(first=0.001, most=0.002)


class Peer:
    """Something to connect to, which fails as told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.attempts = 0
        self.given_up: list[Closed] = []

    async def open(self) -> None:
        self.attempts += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)

    def keeper(self, backoff: Backoff | None = QUICK) -> Keeper:
        return Keeper("peer", self.open, backoff, self.given_up.append)


def test_a_keeper_tries_until_it_succeeds() -> None:
    async def main() -> None:
        peer = Peer()
        keeper = peer.keeper()
        await keeper.start()
        peer.failures = [ConnectFailed("peer", "no"), OSError("no"), Refused("busy", temporary=True)]
        keeper.lost(None)
        await keeper.up()
        assert keeper.connected
        assert peer.attempts == 5
        await keeper.close()

    run(main)


def test_the_first_failure_is_the_callers() -> None:
    async def main() -> None:
        keeper = Peer(ConnectFailed("peer", "no")).keeper()
        with pytest.raises(ConnectFailed):
            await keeper.start()
        assert not keeper.connected

    run(main)


@pytest.mark.parametrize("failure", [Refused("never"), ZeroDivisionError("a mistake of ours")])
def test_a_refusal_or_a_mistake_ends_it(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        peer = Peer()
        keeper = peer.keeper()
        await keeper.start()
        peer.failures = [failure]
        waiting = asyncio.create_task(keeper.up())
        keeper.lost(None)
        await until(lambda: bool(peer.given_up))
        assert peer.given_up[0].__cause__ is failure
        with pytest.raises(Closed):
            await keeper.up()
        with pytest.raises(Closed):
            await waiting
        await keeper.close()

    with caplog.at_level(logging.CRITICAL):
        run(main)


def test_whoever_waits_for_a_connection_can_be_cancelled_and_hears_of_the_end() -> None:
    async def main() -> None:
        peer = Peer()
        keeper = peer.keeper(Backoff(first=100, most=100))
        await keeper.start()
        keeper.lost(None)
        cancelled, waiting = asyncio.create_task(keeper.up()), asyncio.create_task(keeper.up())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        await keeper.close()
        with pytest.raises(Closed):
            await waiting
        assert cancelled.cancelled()

    run(main)
