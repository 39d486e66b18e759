"""A client that does not read, under each policy of ``slow_reader.topics``: nobody else suffers."""

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.friends import FRIENDS, Friend, HungUpError, friend
from tests.hub_process import HubProcess, running_hub

BODY = b"z" * 10_000
MANY = 2000
"""Messages that fill the sockets' buffers and an outbox of 64 KiB many times over."""

FEW = 5
LAST = b"last"
EACH = pytest.mark.parametrize("key", [key for key in FRIENDS if not key.endswith("_ws")])


def hub_with(policy: str) -> Iterator[HubProcess]:
    with running_hub(f"slow_reader.topics={policy}", "limits.outbox=64 KiB") as process:
        yield process


@pytest.fixture(scope="module")
def dropping() -> Iterator[HubProcess]:
    yield from hub_with("drop")


@pytest.fixture(scope="module")
def disconnecting() -> Iterator[HubProcess]:
    yield from hub_with("disconnect")


@pytest.fixture(scope="module")
def blocking() -> Iterator[HubProcess]:
    yield from hub_with("block")


def company(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> tuple[Friend, Friend, Friend]:
    """Somebody who does not read, somebody who does, both of ``key``, and a publisher."""
    lazy, keen, publisher = friend(hub, key), friend(hub, key), friend(hub, "fmqp")
    for each in (lazy, keen, publisher):
        stack.callback(each.close)
    lazy.subscribe("hot")
    keen.subscribe("hot")
    return lazy, keen, publisher


def publish_all(publisher: Friend) -> None:
    for number in range(MANY):
        publisher.line.send(publisher.push("hot", b"%06d" % number + BODY))


def hear_all(keen: Friend) -> None:
    assert [int(keen.hear()[:6]) for _ in range(MANY)] == list(range(MANY))


def read_until_last(lazy: Friend, got: list[int], done: threading.Event) -> None:
    while (body := lazy.hear()) != LAST:
        got.append(int(body[:6]))
    done.set()


def converse(publisher: Friend, keen: Friend) -> None:
    """Publish everything, a few at a time: whoever reads is never behind, however slow this machine is."""
    for start in range(0, MANY, FEW):
        for number in range(start, start + FEW):
            publisher.line.send(publisher.push("hot", b"%06d" % number + BODY))
        assert [int(keen.hear()[:6]) for _ in range(FEW)] == list(range(start, start + FEW))


def published(publisher: Friend) -> threading.Thread:
    thread = threading.Thread(target=publish_all, args=(publisher,), daemon=True)
    thread.start()
    return thread


def count(hub: HubProcess, kind: str, protocol: str, reason: str) -> float:
    try:
        return hub.metric(f'polywire_{kind}_total{{protocol="{protocol}",reason="{reason}"}}')
    except AssertionError:
        return 0.0


@pytest.mark.rule("MICROMSG-176")
@EACH
def test_drop_leaves_messages_out_for_the_slow_reader_only(dropping: HubProcess, key: str) -> None:
    with contextlib.ExitStack() as stack:
        lazy, keen, publisher = company(dropping, key, stack)
        converse(publisher, keen)
        assert count(dropping, "dropped", key, "slow-reader") > 0
        # It is still there, and what it gets is in order, with gaps.
        got: list[int] = []
        done = threading.Event()
        reader = threading.Thread(target=read_until_last, args=(lazy, got, done), daemon=True)
        reader.start()
        while not done.wait(0.05):
            publisher.publish("hot", LAST)
        assert 0 < len(got) < MANY
        assert got == sorted(set(got))


@EACH
def test_disconnect_ends_the_slow_reader_s_connection_only(disconnecting: HubProcess, key: str) -> None:
    with contextlib.ExitStack() as stack:
        lazy, keen, publisher = company(disconnecting, key, stack)
        converse(publisher, keen)
        assert count(disconnecting, "faults", key, "slow-reader-disconnected") == 1
        with pytest.raises((HungUpError, ConnectionError)):  # noqa: PT012 - it may still read what was on its way
            while True:
                lazy.hear()
        publisher.publish("hot", b"000000")
        assert keen.hear() == b"000000"


@pytest.mark.parametrize("key", ["fmqp", "sabc", "umq"])
def test_block_stops_reading_from_whoever_causes_more(blocking: HubProcess, key: str) -> None:
    """Acknowledging protocols wait by their windows instead, and publishers no longer than a moment for those."""
    with contextlib.ExitStack() as stack:
        lazy, keen, publisher = company(blocking, key, stack)
        bystander, listener = friend(blocking, "mqtt"), friend(blocking, "mqtt")
        for each in (bystander, listener):
            stack.callback(each.close)
        listener.subscribe("cool")
        thread = published(publisher)
        started = time.monotonic()
        for number in range(200):
            bystander.publish("cool", b"%d" % number)
            assert listener.hear() == b"%d" % number
        assert time.monotonic() - started < 20
        assert thread.is_alive()
        assert count(blocking, "dropped", key, "slow-reader") == 0
        reader = threading.Thread(target=hear_all, args=(keen,), daemon=True)
        reader.start()
        hear_all(lazy)
        reader.join(20)
        thread.join(20)
        assert not thread.is_alive()
