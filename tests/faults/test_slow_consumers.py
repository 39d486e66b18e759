"""A client that does not read what queues and services send it, under each policy: no queue loses anything."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from polywire.protocols.micromsg import Command, encode
from tests.faults.friends import Friend, HungUpError, MicromsgFriend, SabcFriend, UmqFriend, friend
from tests.hub_process import HubProcess, running_hub

SECONDS = 30.0
MANY = 100
BODY = b"z" * 400_000
"""So many of these are more than the sockets' buffers hold."""

WITHOUT_ACKS = ("umq", "fmqp")


def hub_with(policy: str) -> Iterator[HubProcess]:
    queues = "block" if policy == "drop" else policy
    sets = (f"slow_reader.replies={policy}", f"slow_reader.queues={queues}", "slow_reader.topics=block")
    with running_hub(*sets, "limits.outbox=64 KiB") as process:
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


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def guest(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> Friend:
    made = friend(hub, key)
    stack.callback(made.close)
    return made


def consume(client: Friend, queue: str) -> None:
    if isinstance(client, MicromsgFriend):
        client.line.send(encode(Command("subscribe", (("destination", queue),))))
        client.line.send(encode(Command("ping", ())))
        while client.word() != Command("pong", ()):
            pass
    else:
        client.subscribe(f"queue/{queue}")


def fill(hub: HubProcess, queue: str, stack: contextlib.ExitStack) -> None:
    """Put all messages into a queue; the last is small."""
    publisher = guest(hub, "fmqp", stack)
    for number in range(MANY - 1):
        publisher.line.send(publisher.push(f"queue/{queue}", b"%06d" % number + BODY))
    publisher.publish(f"queue/{queue}", b"%06d" % (MANY - 1))


def take_rest(hub: HubProcess, queue: str, stack: contextlib.ExitStack) -> list[int]:
    """What somebody gets who consumes the queue now, up to the last."""
    keen = guest(hub, "fmqp", stack)
    consume(keen, queue)
    got: list[int] = []
    while not got or got[-1] != MANY - 1:
        got.append(int(keen.hear()[:6]))
    return got


def collect(client: Friend, got: list[int]) -> None:
    """Read numbers until the connection is closed."""
    with contextlib.suppress(OSError, HungUpError):
        while True:
            got.append(int(client.hear()[:6]))


def count(hub: HubProcess, kind: str, protocol: str, reason: str) -> float:
    try:
        return hub.metric(f'polywire_{kind}_total{{protocol="{protocol}",reason="{reason}"}}')
    except AssertionError:
        return 0.0


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end


def hang_up(client: Friend) -> None:
    """Read what is on its way until the hub has hung up."""
    with pytest.raises((HungUpError, ConnectionError)):  # noqa: PT012 - it may still read what was on its way
        while True:
            client.read()


@pytest.mark.parametrize("key", ["fmqp", "umq", "sabc", "micromsg"])
def test_disconnect_ends_the_slow_consumer_and_its_queue_has_its_messages_again(
    disconnecting: HubProcess, key: str, stack: contextlib.ExitStack
) -> None:
    queue = f"jobs-{key}"
    lazy = guest(disconnecting, key, stack)
    consume(lazy, queue)
    fill(disconnecting, queue, stack)
    wait_until(lambda: count(disconnecting, "faults", key, "slow-reader-disconnected") == 1)
    got = take_rest(disconnecting, queue, stack)
    assert got == list(range(got[0], MANY))
    # Without acknowledgements what was written is the consumer's; with them nothing was, for it sent none.
    assert (got[0] > 0) == (key in WITHOUT_ACKS)
    hang_up(lazy)


@pytest.mark.parametrize("key", ["fmqp", "umq", "sabc"])
def test_block_lets_the_messages_wait_in_the_queue_for_whoever_has_room(
    blocking: HubProcess, key: str, stack: contextlib.ExitStack
) -> None:
    queue = f"jobs-{key}"
    lazy = guest(blocking, key, stack)
    consume(lazy, queue)
    fill(blocking, queue, stack)
    keen = guest(blocking, "fmqp", stack)
    consume(keen, queue)
    hers = [int(keen.hear()[:6])]
    his: list[int] = []
    readers = [threading.Thread(target=collect, args=each, daemon=True) for each in ((keen, hers), (lazy, his))]
    for reader in readers:
        reader.start()
    wait_until(lambda: len(hers) + len(his) == MANY)
    assert (hers, his) == (sorted(hers), sorted(his))
    assert sorted(hers + his) == list(range(MANY))
    assert count(blocking, "faults", key, "slow-reader-disconnected") == 0


def provide(hub: HubProcess, stack: contextlib.ExitStack, service: str) -> threading.Event:
    """A service whose replies are large. The event is set once it has been called ``MANY`` times."""
    provider = guest(hub, "umq", stack)
    provider.line.send(f'C1:["serve","{service}",5]'.encode())
    assert provider.word() == "R1:null"
    answered = threading.Event()

    def answer() -> None:
        with contextlib.suppress(OSError, HungUpError):
            for number in itertools.count(1):
                request = str(provider.word())
                provider.line.send(b"R" + request[1:].partition(":")[0].encode() + b":" + BODY)
                if number == MANY:
                    answered.set()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    stack.callback(thread.join, SECONDS)
    stack.callback(provider.line.socket.shutdown, socket.SHUT_RDWR)
    return answered


def call(client: Friend, service: str) -> None:
    if isinstance(client, SabcFriend):
        client.line.send(client.frame("op::call", f"service::{service}", "method::get"))
    else:
        assert isinstance(client, UmqFriend)
        number = f"{next(client.numbers):X}"
        client.line.send(f'C{number}:["call","{service}","get",""]'.encode())


CALLERS = pytest.mark.parametrize("key", ["umq", "sabc"])


@CALLERS
def test_drop_leaves_out_replies_and_counts_them(dropping: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    lazy = guest(dropping, key, stack)
    answered = provide(dropping, stack, key)
    for _ in range(MANY):
        call(lazy, key)
    assert answered.wait(SECONDS)
    wait_until(lambda: dropping.metric("polywire_calls_under_way") == 0)
    left_out = count(dropping, "dropped", key, "slow-reader")
    assert 0 < left_out < MANY
    # It is still there, and once it has caught up its calls are answered again.
    large = [str(lazy.word()) for _ in range(MANY - int(left_out))]
    assert all(len(each) > len(BODY) for each in large)
    call(lazy, key)
    assert len(str(lazy.word())) > len(BODY)
    assert count(dropping, "faults", key, "slow-reader-disconnected") == 0


@CALLERS
def test_disconnect_ends_the_caller_that_does_not_take_its_replies(
    disconnecting: HubProcess, key: str, stack: contextlib.ExitStack
) -> None:
    before = count(disconnecting, "faults", key, "slow-reader-disconnected")
    lazy, other = guest(disconnecting, key, stack), guest(disconnecting, key, stack)
    provide(disconnecting, stack, f"calls-{key}")
    for _ in range(MANY):
        call(lazy, f"calls-{key}")
    wait_until(lambda: count(disconnecting, "faults", key, "slow-reader-disconnected") == before + 1)
    call(other, f"calls-{key}")
    assert len(str(other.word())) > len(BODY)
    hang_up(lazy)


@CALLERS
def test_block_keeps_every_reply(blocking: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    lazy = guest(blocking, key, stack)
    provide(blocking, stack, f"calls-{key}")
    for _ in range(MANY):
        call(lazy, f"calls-{key}")
    assert all(len(str(lazy.word())) > len(BODY) for _ in range(MANY))
    call(lazy, f"calls-{key}")
    assert len(str(lazy.word())) > len(BODY)


def test_disconnect_ends_a_publisher_that_does_not_take_its_acknowledgements(
    disconnecting: HubProcess, stack: contextlib.ExitStack
) -> None:
    before = count(disconnecting, "faults", "sabc", "slow-reader-disconnected")
    lazy = guest(disconnecting, "sabc", stack)
    assert isinstance(lazy, SabcFriend)
    # The acknowledgement repeats the id, so it is as large as the message.
    head = f"MESSAGE\r\nsession-id::{lazy.session}\r\ndestination::a\r\nmsg-id::"
    message = head.encode() + b"9" * 50_000 + b"\r\n\r\n\0"
    with pytest.raises(ConnectionError):  # noqa: PT012 - it is ended somewhere in between
        for _ in range(10 * MANY):
            lazy.line.send(message)
    assert count(disconnecting, "faults", "sabc", "slow-reader-disconnected") == before + 1
