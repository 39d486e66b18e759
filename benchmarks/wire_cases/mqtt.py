"""MQTT's cases: one topic each frame and all the same, small and large bodies, decoder and scanner."""

from benchmarks.wire_cases import Case
from polywire.protocols.mqtt import Connect, Decoder, Puback, Publish, Receiver, Sender, encode

COUNT = 1000


def connected() -> Decoder:
    decoder = Decoder()
    decoder.feed(encode(Connect("bench")))
    return decoder


def flow(count: int, qos: int) -> None:
    """As many messages from one side to the other, with all their acknowledgements."""
    sender, receiver = Sender(), Receiver()
    for _ in range(count):
        reply = receiver.published(sender.publish("sensors/room/temperature", b"", qos)).reply
        assert reply is not None
        release = sender.acknowledged(reply)
        if release is not None:
            sender.acknowledged(receiver.released(release))


def cases() -> list[Case]:
    topics = [f"sensors/room{number:04}/temperature" for number in range(COUNT)]
    small = [Publish(topic, b"x" * 64) for topic in topics]
    acknowledged = [Publish(topic, b"x" * 64, 1, packet_id=number) for number, topic in enumerate(topics, 1)]
    large = [Publish(topic, b"x" * 16384) for topic in topics[:20]]
    acks = [Puback(number) for number in range(1, COUNT + 1)]
    many = b"".join(map(encode, small))
    one = encode(small[0]) * COUNT
    qos1 = b"".join(map(encode, acknowledged))
    bulk = b"".join(map(encode, large))
    pubacks = b"".join(map(encode, acks))
    routes: dict[bytes, object] = {topic.encode(): object() for topic in topics}
    decoder = connected()
    return [
        Case("decode", "64 B", COUNT, lambda: decoder.feed(many), goal=4),
        Case("decode, at most", "64 B", COUNT, lambda: decoder.feed(many), most=200),
        Case("decode, QoS 1", "64 B", COUNT, lambda: decoder.feed(qos1), goal=4),
        Case("decode, PUBACK", "0 B", COUNT, lambda: decoder.feed(pubacks)),
        Case("decode", "16 KiB", len(large), lambda: decoder.feed(bulk)),
        Case("encode", "64 B", COUNT, lambda: [encode(frame) for frame in small]),
        Case("encode, PUBACK", "0 B", COUNT, lambda: [encode(frame) for frame in acks]),
        Case("encode", "16 KiB", len(large), lambda: [encode(frame) for frame in large]),
        Case("scan, other topics", "64 B", COUNT, lambda: decoder.feed_runs(many, routes, routes.get), most=150),
        Case("scan, one topic", "64 B", COUNT, lambda: decoder.feed_runs(one, routes, routes.get), most=20),
        Case("flow of QoS 1", "0 B", COUNT, lambda: flow(COUNT, 1)),
        Case("flow of QoS 2", "0 B", COUNT, lambda: flow(COUNT, 2)),
    ]


def streaming(size: int, chunk: int) -> Case:
    """One payload of ``size`` bytes, arriving in chunks."""
    packet = encode(Publish("bulk", bytes(size)))
    parts = [packet[at : at + chunk] for at in range(0, len(packet), chunk)]

    def run() -> None:
        decoder = Decoder(max_packet=len(packet), role="both")
        frames = [frame for part in parts for frame in decoder.feed(part)]
        assert len(frames) == 1

    return Case("stream", f"{size >> 20} MiB", 1, run)
