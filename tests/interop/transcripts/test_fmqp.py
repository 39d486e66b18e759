"""Every example and every packet of FMQP's document, sent to a running hub over sockets and answered byte for byte.

The packets are built here from the document's diagram, without the codec. The sections are those of the document, in
its order. All of its examples work; none had to be left out.
"""

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.interop.speakers import speak
from tests.wires import Plain, connected

PUBLISH, SUBSCRIBE, UNSUBSCRIBE = 0x00, 0x80, 0xC0
FEEDBACK, DEBUG, LAST_WILL, CACHE = 0x20, 0x10, 0x08, 0x04

VALID = [
    b"home/living-space/living-room1/temperature",
    b"home/living-space/living-room1/temperature/",
    b"/home/living-space/living-room1/temperature",
    b"/home/living-space/living-room1/temperature/",
    b"/home/",
    b"/home/",
    b"home/",
    b"home",
]
INVALID = [b"/", b"////////////////////", b""]
EQUIVALENT = [
    b"home/living-space/living-room1/temperature",
    b"home/living-space/living-room1/*",
    b"home/living-space/*/temperature",
    b"home/*/living-room1/temperature",
    b"*/living-space/living-room1/temperature",
    b"*/*/*/*",  # the document writes \*/\*/\*/\* to keep its own markup from reading it
]

_markers = itertools.count()


def packet(flags: int, topic: bytes, body: bytes = b"") -> bytes:
    """The document's diagram: flags, topic length, body length in four bytes, topic, body."""
    return bytes([flags, len(topic)]) + len(body).to_bytes(4, "big") + topic + body


def count(number: int) -> bytes:
    """A 64-bit unsigned integer in the Be format."""
    return number.to_bytes(8, "big")


class Peer(Plain):
    """A client that sends packets and expects packets. Those that begin with ``ignored`` may come in between."""

    ignored = b""

    def say(self, flags: int, topic: bytes, body: bytes = b"") -> None:
        self.send(packet(flags, topic, body))

    def hears(self, flags: int, topic: bytes, body: bytes = b"") -> None:
        """The next bytes are exactly this packet."""
        expected = packet(flags, topic, body)
        heard = self.packet()
        while self.ignored and heard.startswith(self.ignored):
            heard = self.packet()
        assert heard == expected

    def packet(self) -> bytes:
        """The next packet, by the lengths in its header."""
        header = self.expect(6)
        return header + self.expect(header[1] + int.from_bytes(header[2:], "big"))

    def settled(self) -> None:
        """The hub has handled everything sent so far, and nothing but what was expected has come."""
        marker = b"transcript/%d" % next(_markers)
        self.say(SUBSCRIBE | DEBUG, marker)
        self.say(PUBLISH, marker, b"!")
        self.hears(PUBLISH, marker, b"!")
        self.say(UNSUBSCRIBE, marker)


class Peers(contextlib.ExitStack):
    """Makes clients of one hub, which hang up at the end."""

    def __init__(self, hub: HubProcess) -> None:
        super().__init__()
        self._hub = hub

    def __call__(self) -> Peer:
        return Peer(self.enter_context(connected(self._hub.addresses["fmqp"])))


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    """A hub for this module: feedback tells of every topic anybody has subscribed to."""
    with running_hub() as process:
        yield process


@pytest.fixture
def join(hub: HubProcess) -> Iterator[Peers]:
    with Peers(hub) as peers:
        yield peers


@pytest.fixture
def own_hub() -> Iterator[HubProcess]:
    with running_hub("limits.outbox=64 MiB", "limits.drain_time=60 s") as process:
        yield process


@pytest.fixture
def join_own(own_hub: HubProcess) -> Iterator[Peers]:
    with Peers(own_hub) as peers:
        yield peers


@pytest.fixture
def topic(name: str) -> bytes:
    return f"transcript-{name}".encode()


# Caching


@pytest.mark.rule("FMQP-04", "FMQP-05", "FMQP-06", "FMQP-44")
def test_caching(join: Peers, topic: bytes) -> None:
    publisher, early = join(), join()
    early.say(SUBSCRIBE, topic)
    early.settled()
    publisher.say(PUBLISH | CACHE, topic, b"1")
    publisher.say(PUBLISH | CACHE, topic, b"2")
    publisher.say(PUBLISH, topic, b"3")
    early.hears(PUBLISH | CACHE, topic, b"1")
    early.hears(PUBLISH | CACHE, topic, b"2")
    early.hears(PUBLISH, topic, b"3")
    late = join()
    late.say(SUBSCRIBE, topic)
    late.hears(PUBLISH | CACHE, topic, b"2")
    late.settled()


@pytest.mark.rule("FMQP-05")
def test_a_new_subscriber_gets_all_cached_messages_of_its_topics(join: Peers, topic: bytes) -> None:
    publisher = join()
    for level in (b"a", b"b"):
        publisher.say(PUBLISH | CACHE, topic + b"/" + level, level)
        publisher.settled()
    late = join()
    late.say(SUBSCRIBE, topic + b"/*")
    late.hears(PUBLISH | CACHE, topic + b"/a", b"a")
    late.hears(PUBLISH | CACHE, topic + b"/b", b"b")
    late.settled()


# Last will


@pytest.mark.rule("FMQP-07", "FMQP-43", "FMQP-62", "FMQP-63")
def test_every_last_will_is_published_in_the_order_sent_after_its_client_has_gone(join: Peers, topic: bytes) -> None:
    listener, mourned = join(), join()
    listener.say(SUBSCRIBE, topic + b"/*")
    listener.settled()
    one, two = topic + b"/one", topic + b"/two"
    mourned.say(PUBLISH | LAST_WILL, one, b"first")
    mourned.say(PUBLISH | LAST_WILL | CACHE, two, b"second")
    mourned.say(PUBLISH | LAST_WILL, one, b"third")
    mourned.say(PUBLISH | LAST_WILL, one)
    mourned.say(PUBLISH | LAST_WILL, one, b"third")
    mourned.settled()
    listener.settled()
    mourned.socket.close()
    listener.hears(PUBLISH, one, b"first")
    listener.hears(PUBLISH | CACHE, two, b"second")
    listener.hears(PUBLISH, one, b"third")
    listener.hears(PUBLISH, one, b"third")
    listener.settled()
    late = join()
    late.say(SUBSCRIBE, topic + b"/*")
    late.hears(PUBLISH | CACHE, two, b"second")
    late.settled()


@pytest.mark.rule("FMQP-09", "FMQP-57", "FMQP-63")
def test_an_empty_last_will_with_the_cache_flag_clears_the_cache_then(join: Peers, topic: bytes) -> None:
    mourned, listener = join(), join()
    mourned.say(PUBLISH | CACHE, topic, b"kept")
    mourned.say(PUBLISH | LAST_WILL | CACHE, topic)
    mourned.say(PUBLISH | LAST_WILL, topic, b"the end")
    mourned.settled()
    listener.say(SUBSCRIBE, topic)
    listener.hears(PUBLISH | CACHE, topic, b"kept")
    mourned.socket.close()
    listener.hears(PUBLISH, topic, b"the end")
    late = join()
    late.say(SUBSCRIBE, topic)
    late.settled()


# Empty messages


@pytest.mark.rule("FMQP-08", "FMQP-09")
def test_empty_messages(join: Peers, topic: bytes) -> None:
    listener, publisher = join(), join()
    listener.say(SUBSCRIBE, topic)
    listener.settled()
    publisher.say(PUBLISH, topic)
    publisher.say(PUBLISH, topic, b"not empty")
    listener.hears(PUBLISH, topic, b"not empty")


# Topics


@pytest.mark.rule("FMQP-14", "FMQP-16")
@pytest.mark.parametrize("written", VALID, ids=bytes.decode)
def test_valid_topics(join: Peers, written: bytes) -> None:
    stripped = written.strip(b"/")
    for subscribed, published in ((stripped, written), (written, stripped), (written, written)):
        client = join()
        client.say(SUBSCRIBE, subscribed)
        client.say(PUBLISH, published, b"21.5")
        client.hears(PUBLISH, stripped, b"21.5")
        client.say(UNSUBSCRIBE, written)
        client.say(PUBLISH, published, b"21.5")
        client.settled()


@pytest.mark.rule("FMQP-15", "FMQP-17", "FMQP-35", "FMQP-48")
@pytest.mark.parametrize("written", INVALID, ids=["one slash", "slashes", "empty"])
def test_invalid_topics(hub: HubProcess, join: Peers, written: bytes) -> None:
    faults = 'polywire_faults_total{protocol="fmqp",reason="FMQP-15"}'
    before = hub.metric(faults) if faults in hub.get("/metrics")[1] else 0
    client = join()
    for flags in (PUBLISH, SUBSCRIBE, UNSUBSCRIBE, SUBSCRIBE | FEEDBACK):
        client.say(flags, written, b"x")
    client.settled()
    assert hub.metric(faults) == before + 4


@pytest.mark.rule("FMQP-10", "FMQP-11", "FMQP-12", "FMQP-48")
def test_characters_and_size_of_topics(join: Peers) -> None:
    longest, characters = b"x" * 255, "größe/°C/温度".encode()
    client = join()
    for topic in (longest, characters):
        client.say(SUBSCRIBE, topic)
        client.say(PUBLISH, topic, b"1")
        client.hears(PUBLISH, topic, b"1")
    client.say(SUBSCRIBE, b"characters/*")
    for topic in (b"characters/with\0NUL", b"characters/\0", b"characters/not UTF-8 \xff"):
        client.say(PUBLISH, topic, b"2")
    client.settled()


# Equivalence of topics


@pytest.mark.rule("FMQP-19", "FMQP-20", "FMQP-21", "FMQP-22", "FMQP-49")
@pytest.mark.parametrize("subscribed", EQUIVALENT, ids=bytes.decode)
def test_equivalent_topics(join: Peers, subscribed: bytes) -> None:
    client = join()
    if subscribed == b"*/*/*/*":
        client.ignored = packet(PUBLISH, b"$/info/messages/second", count(0))[:-8]  # every second: it has four levels
    client.say(SUBSCRIBE, subscribed)
    for published in EQUIVALENT:
        client.say(PUBLISH, published, b"21.5")
        client.hears(PUBLISH, published, b"21.5")
    for published in (EQUIVALENT[0] + b"/max", EQUIVALENT[0].rpartition(b"/")[0], b"*/*/*", b"*/*/*/*/*"):
        client.say(PUBLISH, published, b"21.5")
    client.settled()


# Message routing


@pytest.mark.rule("FMQP-02", "FMQP-22", "FMQP-55", "FMQP-56")
def test_routing(join: Peers, topic: bytes) -> None:
    publisher, exact, wild, other = join(), join(), join(), join()
    for client, topics in (
        (publisher, [topic + b"/a"]),
        (exact, [topic + b"/a"]),
        (wild, [topic + b"/a", topic + b"/*"]),
        (other, [topic + b"/b"]),
    ):
        for each in topics:
            client.say(SUBSCRIBE, each)
        client.settled()
    publisher.say(PUBLISH, topic + b"/a", b"x")
    for client in (publisher, exact, wild):
        client.hears(PUBLISH, topic + b"/a", b"x")
    for client in (publisher, exact, wild, other):
        client.settled()


# Service topics and subscriptions


@pytest.mark.rule("FMQP-23", "FMQP-24")
def test_what_clients_publish_to_service_topics_is_not_forwarded(join: Peers, topic: bytes) -> None:
    listener, publisher = join(), join()
    for each in (b"$/info/" + topic, b"$", b"*/info/" + topic):
        listener.say(SUBSCRIBE, each)
    listener.settled()
    publisher.say(PUBLISH, b"$/info/" + topic, b"x")
    publisher.say(PUBLISH | CACHE, b"/$/", b"x")
    publisher.settled()
    listener.settled()


@pytest.mark.rule("FMQP-25")
def test_signal_terminate(own_hub: HubProcess, join_own: Peers) -> None:
    client = join_own()
    client.say(PUBLISH, b"$/signals/terminate", b"any message")
    assert client.rest() == b""
    assert own_hub.process.wait(20) == 0


@pytest.mark.rule("FMQP-26")
def test_signal_stop(own_hub: HubProcess, join_own: Peers) -> None:
    slow, publisher, stopper = join_own(), join_own(), join_own()
    slow.say(SUBSCRIBE, b"stop/*")
    slow.settled()
    body = bytes(1 << 20)
    for _ in range(32):  # more than the buffers between the hub and a client that does not read
        publisher.say(PUBLISH, b"stop/before", body)
    publisher.say(PUBLISH | LAST_WILL, b"stop/will", b"1")
    publisher.say(PUBLISH | LAST_WILL, b"stop/will", b"2")
    publisher.settled()
    stopper.say(PUBLISH, b"$/signals/stop")  # any message: an empty one, too
    own_hub.wait_for_log("draining")
    # 1) Stop accepting new clients
    with pytest.raises(ConnectionError):
        join_own()
    # 2) Stop accepting new messages from clients
    publisher.say(PUBLISH, b"stop/after", b"never")
    # 3) Wait until subscribers receive all messages that have already been published by this time
    assert own_hub.process.poll() is None
    for _ in range(32):
        slow.hears(PUBLISH, b"stop/before", body)
    # 4) Forcibly send all "last wills", 5) wait until all the "wills" are received
    slow.hears(PUBLISH, b"stop/will", b"1")
    slow.hears(PUBLISH, b"stop/will", b"2")
    # 6) Close all client connections
    for client in (slow, publisher, stopper):
        assert client.rest() == b""
    # 7) Stop
    assert own_hub.process.wait(20) == 0


@pytest.mark.rule("FMQP-25", "FMQP-26", "FMQP-77")
@pytest.mark.parametrize("signal", [b"terminate", b"stop"])
def test_a_signal_that_is_a_last_will_is_given_when_its_client_has_gone(
    own_hub: HubProcess, join_own: Peers, signal: bytes
) -> None:
    mourned, other = join_own(), join_own()
    mourned.say(PUBLISH | LAST_WILL, b"$/signals/" + signal, b"now")
    mourned.settled()
    other.settled()
    mourned.socket.close()
    assert other.rest() == b""
    assert own_hub.process.wait(20) == 0


@pytest.mark.rule("FMQP-27", "FMQP-29", "FMQP-50", "FMQP-71")
def test_info_clients(own_hub: HubProcess, join_own: Peers) -> None:
    watchers = [join_own(), join_own()]
    for watcher, topic in zip(watchers, (b"$/info/clients", b"*/info/clients"), strict=True):
        watcher.settled()
        watcher.say(SUBSCRIBE, topic)
        watcher.hears(PUBLISH | CACHE, b"$/info/clients", count(2))  # cached
    third = join_own()
    third.settled()
    with speak("mqtt", own_hub.addresses):
        for watcher in watchers:
            watcher.hears(PUBLISH | CACHE, b"$/info/clients", count(3))
            watcher.hears(PUBLISH | CACHE, b"$/info/clients", count(4))
    third.socket.close()
    for watcher in watchers:
        watcher.hears(PUBLISH | CACHE, b"$/info/clients", count(3))
        watcher.hears(PUBLISH | CACHE, b"$/info/clients", count(2))


@pytest.mark.rule("FMQP-28", "FMQP-29")
def test_info_messages_second(join_own: Peers) -> None:
    watcher, publisher, limit = join_own(), join_own(), (16 << 20) + 1
    watcher.say(SUBSCRIBE, b"$/info/messages/second")
    publisher.say(PUBLISH, b"a", b"x")
    publisher.say(PUBLISH, b"a", b"x")
    publisher.say(PUBLISH | CACHE, b"a/*", b"x")
    publisher.say(PUBLISH, b"a")  # empty
    publisher.say(PUBLISH | LAST_WILL, b"a", b"x")
    publisher.say(PUBLISH | LAST_WILL, b"a")
    publisher.say(PUBLISH | FEEDBACK, b"a", b"x")  # discarded, as are the next
    publisher.say(PUBLISH, b"$/info/clients", b"x")
    publisher.say(PUBLISH, b"///", b"x")
    publisher.send(packet(PUBLISH, b"a")[:2] + limit.to_bytes(4, "big") + b"a" + bytes(limit))
    publisher.say(SUBSCRIBE, b"b")  # no publications, valid or not
    publisher.say(SUBSCRIBE, b"///")
    publisher.say(UNSUBSCRIBE, b"b")
    publisher.socket.close()  # the last wills have been counted
    assert messages_told(watcher, 10) == 10


def messages_told(watcher: Peer, expected: int) -> int:
    """The messages of all seconds up to the one after those expected have come."""
    total = 0
    while True:
        head = packet(PUBLISH, b"$/info/messages/second", count(0))[:-8]
        assert watcher.expect(len(head)) == head
        told = int.from_bytes(watcher.expect(8), "big")
        if total >= expected:
            return total + told
        total += told


# Feedback topics


@pytest.mark.rule("FMQP-30", "FMQP-32", "FMQP-41", "FMQP-64", "FMQP-65")
def test_feedback(join: Peers, topic: bytes) -> None:
    watcher, one, two = join(), join(), join()
    watcher.say(SUBSCRIBE | FEEDBACK, topic)
    watcher.settled()
    one.say(SUBSCRIBE, topic)
    watcher.hears(PUBLISH | FEEDBACK, topic, count(1))
    two.say(SUBSCRIBE, topic)
    watcher.hears(PUBLISH | FEEDBACK, topic, count(2))
    one.say(UNSUBSCRIBE, topic)
    watcher.hears(PUBLISH | FEEDBACK, topic, count(1))
    two.socket.close()
    watcher.hears(PUBLISH | FEEDBACK, topic)
    # A watch is no subscription, and no subscription a watch.
    one.say(PUBLISH, topic, b"x")
    one.settled()
    watcher.say(UNSUBSCRIBE | FEEDBACK, topic)
    watcher.settled()
    one.say(SUBSCRIBE, topic)
    one.settled()
    watcher.settled()


@pytest.mark.rule("FMQP-31")
def test_only_the_broker_publishes_feedback(join: Peers, topic: bytes) -> None:
    watcher, publisher = join(), join()
    watcher.say(SUBSCRIBE | FEEDBACK, topic)
    watcher.settled()
    publisher.say(PUBLISH | FEEDBACK, topic, count(7))
    publisher.say(PUBLISH | FEEDBACK | CACHE, topic, count(7))
    publisher.say(PUBLISH | FEEDBACK | LAST_WILL, topic, count(7))
    publisher.settled()
    publisher.socket.close()
    watcher.settled()
    late = join()
    late.say(SUBSCRIBE | FEEDBACK, topic)
    late.settled()


@pytest.mark.rule("FMQP-33", "FMQP-66", "FMQP-67")
def test_feedback_is_cached(join: Peers, topic: bytes) -> None:
    wanted, deserted, never = (topic + b"/" + each for each in (b"wanted", b"deserted", b"never"))
    client = join()
    for each in (wanted, deserted):
        client.say(SUBSCRIBE, each)
    client.say(UNSUBSCRIBE, deserted)
    client.settled()
    late = join()
    late.say(SUBSCRIBE | FEEDBACK, wanted)
    late.hears(PUBLISH | FEEDBACK, wanted, count(1))
    late.say(SUBSCRIBE | FEEDBACK, deserted)
    late.hears(PUBLISH | FEEDBACK, deserted)
    late.say(SUBSCRIBE | FEEDBACK, never)
    late.settled()
    # A wildcard hears each topic under its own name; the order is left open.
    wild = join()
    wild.say(SUBSCRIBE | FEEDBACK, topic + b"/*")
    expected = {packet(PUBLISH | FEEDBACK, wanted, count(1)), packet(PUBLISH | FEEDBACK, deserted)}
    heard = wild.expect(sum(map(len, expected)))
    assert heard in {first + second for first, second in itertools.permutations(expected)}
    wild.settled()


@pytest.mark.rule("FMQP-32", "FMQP-61", "FMQP-78")
def test_subscribing_again_publishes_the_feedback_again(join: Peers, topic: bytes) -> None:
    watcher, client = join(), join()
    watcher.say(SUBSCRIBE | FEEDBACK, topic)
    watcher.settled()
    client.say(SUBSCRIBE, topic)
    client.say(SUBSCRIBE, topic)
    client.say(UNSUBSCRIBE, topic)
    client.say(UNSUBSCRIBE, topic)  # which it has not subscribed to any more
    client.say(SUBSCRIBE, topic)
    for number in (count(1), count(1), b"", count(1)):
        watcher.hears(PUBLISH | FEEDBACK, topic, number)
    watcher.settled()


# Debugging messages


@pytest.mark.rule("FMQP-34", "FMQP-42")
def test_debugging(join: Peers, topic: bytes) -> None:
    watcher, debugger, publisher = join(), join(), join()
    watcher.say(SUBSCRIBE | FEEDBACK, topic)
    watcher.settled()
    debugger.say(SUBSCRIBE | DEBUG, topic)
    debugger.settled()
    publisher.say(PUBLISH, topic, b"x")
    debugger.hears(PUBLISH, topic, b"x")
    debugger.say(UNSUBSCRIBE, topic)
    debugger.settled()
    watcher.settled()
    late = join()
    late.say(SUBSCRIBE | FEEDBACK, topic)
    late.settled()


# Packets format


@pytest.mark.rule("FMQP-36", "FMQP-37", "FMQP-38")
def test_the_header_and_its_lengths(join: Peers) -> None:
    client = join()
    topic = b"packets/format"
    client.send(b"\x80\x0e\x00\x00\x00\x00packets/format")
    client.send(b"\x00\x0e\x00\x00\x00\x04packets/format21.5")
    assert client.expect(24) == b"\x00\x0e\x00\x00\x00\x04packets/format21.5"
    body = bytes(0x00010203)
    client.send(b"\x00\x0e\x00\x01\x02\x03" + topic + body)
    assert client.expect(20 + len(body)) == b"\x00\x0e\x00\x01\x02\x03" + topic + body
    for byte in b"\x00\x0e\x00\x00\x00\x01packets/formatx":  # however it is cut
        client.send(bytes([byte]))
    assert client.expect(21) == b"\x00\x0e\x00\x00\x00\x01packets/formatx"


@pytest.mark.rule("FMQP-39", "FMQP-40", "FMQP-45", "FMQP-46", "FMQP-53", "FMQP-74")
def test_each_flag(join: Peers, topic: bytes) -> None:
    """The flags with an effect of their own are shown above; here is what each bit is, and what it does elsewhere."""
    client, mourned, watcher = join(), join(), join()
    client.say(0b1000_0000, topic)  # 0: a subscription
    client.say(0b0000_0000, topic, b"x")  # and a publication
    client.hears(0b0000_0000, topic, b"x")
    client.say(0b1100_0000, topic)  # 1: unsubscribe
    client.say(0b0000_0000, topic, b"x")
    client.settled()
    watcher.say(0b1010_0000, topic)  # 2: feedback, and its cached message
    watcher.hears(0b0010_0000, topic)
    client.say(0b1001_0000, topic)  # 3: debug, of which the watcher hears nothing
    mourned.say(0b0000_1000, topic, b"will")  # 4: last will
    mourned.say(0b0000_0100, topic, b"kept")  # 5: cache
    client.hears(0b0000_0100, topic, b"kept")
    mourned.socket.close()
    client.hears(0b0000_0000, topic, b"will")
    client.say(0b1000_0011, topic)  # 6 and 7: nothing, so the topic is subscribed to again, and counts now
    client.hears(0b0000_0100, topic, b"kept")
    watcher.hears(0b0010_0000, topic, count(1))
    client.say(0b0101_0011, topic, b"y")  # bits that make no sense on a publication are passed on, but for 6 and 7
    client.hears(0b0101_0000, topic, b"y")
    client.say(0b1000_1100, topic)  # and those that make no sense on a subscription do nothing
    client.hears(0b0000_0100, topic, b"kept")
    watcher.hears(0b0010_0000, topic, count(1))
    watcher.settled()


@pytest.mark.rule("FMQP-76")
def test_last_wills_past_a_limit_are_discarded_and_counted() -> None:
    with running_hub("limits.wills=3", "limits.wills_size=2 KiB") as hub, Peers(hub) as join:
        listener, many, large = join(), join(), join()
        listener.say(SUBSCRIBE, b"*")
        listener.settled()
        for number in range(5):
            many.say(PUBLISH | LAST_WILL, b"many", b"%d" % number)
        for size in (700, 700, 300):
            large.say(PUBLISH | LAST_WILL, b"large", bytes(size))
        for client, name, bodies in ((many, b"many", [b"0", b"1", b"2"]), (large, b"large", [bytes(700), bytes(300)])):
            client.settled()
            client.socket.close()
            for body in bodies:
                listener.hears(PUBLISH, name, body)
        listener.settled()
        assert hub.metric('polywire_faults_total{protocol="fmqp",reason="FMQP-76"}') == 3
