"""MQTT on the hub, whatever comes: any bytes, cut anywhere, any order of coming and going."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from polywire.hub.peer import Limits
from polywire.protocols.mqtt import Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, encode
from tests.protocols.mqtt.broker import Broker, MqttClient
from tests.protocols.mqtt.strategies import connects, from_client

STREAMS = st.tuples(connects(), st.lists(from_client, max_size=12), st.binary(max_size=4))


def answers(data: bytes, cuts: list[int]) -> tuple[bytes, bool, dict[str, int], dict[str, int]]:
    """What the hub writes for a stream that comes in these pieces."""
    broker = Broker()
    wire = broker.wire().wire
    written = b""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    start = 0
    for end in ends:
        wire.feed(data[start:end])
        written += wire.taken()
        start = end
    closed = wire.closed
    wire.lose()
    assert (broker.hub.clients, broker.sessions.live) == ({}, {})
    return written, closed, broker.faults, broker.dropped


def sorted_octets(written: bytes) -> bytes:
    """Acknowledgements of one chunk are written together, so their place among other packets depends on the cuts."""
    return bytes(sorted(written))


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=6))
def test_a_stream_is_answered_alike_however_it_is_cut(
    stream: tuple[Connect, list[object], bytes], cuts: list[int]
) -> None:
    connect, frames, rest = stream
    data = encode(connect) + b"".join(encode(frame) for frame in frames) + rest  # type: ignore[arg-type]
    whole, cut = answers(data, []), answers(data, cuts)
    assert whole[1:] == cut[1:]
    assert sorted_octets(whole[0]) == sorted_octets(cut[0])


@given(st.binary(max_size=60), st.booleans())
def test_no_octets_make_the_session_fail(data: bytes, connected: bool) -> None:
    answers((encode(Connect("me")) if connected else b"") + data, [])


class Delivery(RuleBasedStateMachine):
    """A subscriber that comes, goes and acknowledges as it likes, and gets everything in order all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(limits=Limits(in_flight=3, offline_messages=10_000))
        self.publisher = self.broker.client("publisher")
        self.client: MqttClient | None = None
        self.sent: dict[int, list[bytes]] = {1: [], 2: []}
        self.got: dict[int, list[bytes]] = {1: [], 2: []}
        self.owed: list[Puback | Pubrec | Pubcomp] = []
        self.held: set[int] = set()
        self.number = 0
        self.connect().send(Subscribe(1, (("1", 1), ("2", 2)))).got()

    def connect(self) -> MqttClient:
        client = self.broker.wire().send(Connect("me", clean_session=False))
        self.client = client
        self.owed = []
        self.read(client)
        return client

    def read(self, client: MqttClient) -> None:
        for frame in client.got():
            if isinstance(frame, Pubrel):
                self.held.discard(frame.packet_id)
                self.owed.append(Pubcomp(frame.packet_id))
            elif isinstance(frame, Publish):
                assert frame.packet_id is not None
                if frame.qos == 1:
                    if frame.payload not in self.got[1]:
                        self.got[1].append(frame.payload)
                    else:
                        assert frame.dup
                    self.owed.append(Puback(frame.packet_id))
                else:
                    if frame.packet_id not in self.held:
                        self.got[2].append(frame.payload)
                        self.held.add(frame.packet_id)
                    self.owed.append(Pubrec(frame.packet_id))

    @rule(qos=st.integers(1, 2))
    def publish(self, qos: int) -> None:
        self.number += 1
        body = b"%d" % self.number
        self.sent[qos].append(body)
        self.publisher.send(Publish(str(qos), body, qos, packet_id=1))
        if qos == 2:
            self.publisher.send(Pubrel(1))
        if self.client is not None:
            self.read(self.client)

    @rule(count=st.integers(1, 5))
    def acknowledge(self, count: int) -> None:
        if self.client is not None:
            frames, self.owed = self.owed[:count], self.owed[count:]
            self.client.send(*frames)
            self.read(self.client)

    @rule()
    def lose(self) -> None:
        if self.client is not None:
            self.client.wire.lose()
            self.client = None

    @rule()
    def come(self) -> None:
        self.connect()

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        if self.client is not None:
            assert len(self.owed) <= 6  # with what a broken connection left to be sent again
            assert not self.client.wire.closed

    def teardown(self) -> None:
        client = self.connect()
        while self.owed:
            self.acknowledge(100)
        assert self.got == self.sent
        assert client.wire.outbox.held() == 0
        assert self.broker.dropped == {}


def test_everything_arrives_in_order_whatever_the_subscriber_does() -> None:
    run_state_machine_as_test(Delivery, settings=settings(max_examples=60, stateful_step_count=40))
