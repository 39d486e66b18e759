"""FMQP's cases: one topic each frame and all the same, small and large bodies, decoder and scanner."""

from benchmarks.wire_cases import Case
from polywire.protocols.fmqp.frames import Decoder, Publication, encode

COUNT = 1000


def cases() -> list[Case]:
    topics = [f"sensors/room{number:04}/temperature" for number in range(COUNT)]
    small = [Publication(topic, b"x" * 64) for topic in topics]
    large = [Publication(topic, b"x" * 16384) for topic in topics[:20]]
    many = b"".join(map(encode, small))
    one = encode(small[0]) * COUNT
    bulk = b"".join(map(encode, large))
    routes: dict[bytes, object] = {topic.encode(): object() for topic in topics}
    decoder = Decoder()
    return [
        Case("decode", "64 B", COUNT, lambda: decoder.feed(many), goal=4),
        Case("decode", "16 KiB", len(large), lambda: decoder.feed(bulk)),
        Case("encode", "64 B", COUNT, lambda: [encode(frame) for frame in small]),
        Case("encode", "16 KiB", len(large), lambda: [encode(frame) for frame in large]),
        Case("scan, other topics", "64 B", COUNT, lambda: decoder.feed_runs(many, routes, routes.get), most=150),
        Case("scan, one topic", "64 B", COUNT, lambda: decoder.feed_runs(one, routes, routes.get), most=20),
    ]


def streaming(size: int, chunk: int) -> Case:
    """One body of ``size`` bytes, arriving in chunks."""
    packet = encode(Publication("bulk", bytes(size)))
    parts = [packet[at : at + chunk] for at in range(0, len(packet), chunk)]

    def run() -> None:
        decoder = Decoder(max_body=size)
        frames = [frame for part in parts for frame in decoder.feed(part)]
        assert len(frames) == 1

    return Case("stream", f"{size >> 20} MiB", 1, run)
