"""MicroMsg2's cases: messages with and without properties, acks, large payloads in one frame and in many."""

from collections.abc import Callable

from benchmarks.wire_cases import Case
from polywire.protocols.micromsg.filters import Filter, matches, read_filter
from polywire.protocols.micromsg.frames import CLIENT, Decoder, Extension, Message, encode, renumbered
from polywire.protocols.micromsg.text import read_properties

COUNT = 1000
MIB = 1 << 20


def cases() -> list[Case]:
    numbers = range(1, COUNT + 1)
    small = [Message(number, f"topic/room{number:04}", b"x" * 64) for number in numbers]
    tagged = [Message(number, "topic/rooms", b"x" * 64, "room:N12;name:Tkitchen;") for number in numbers]
    large = [Message(number, "topic/rooms", b"x" * 16384) for number in range(1, 21)]
    acks = [Extension(3, number.to_bytes(2, "big")) for number in numbers]
    plain, with_properties = b"".join(map(encode, small)), b"".join(map(encode, tagged))
    bulk, acknowledged = b"".join(map(encode, large)), b"".join(map(encode, acks))
    one = encode(tagged[0])
    decoder = Decoder(CLIENT, established=True)
    condition = read_filter("room>=N10;name<Tkit")
    assert isinstance(condition, Filter)
    return [
        Case("decode", "64 B", COUNT, lambda: decoder.feed(plain), goal=4),
        Case("decode", "64 B", COUNT, lambda: decoder.feed(plain), most=250),
        Case("decode, properties", "64 B", COUNT, lambda: decoder.feed(with_properties), goal=4),
        Case("decode, properties", "64 B", COUNT, lambda: decoder.feed(with_properties), most=250),
        Case("decode", "16 KiB", len(large), lambda: decoder.feed(bulk)),
        Case("decode acks", "2 B", COUNT, lambda: decoder.feed(acknowledged)),
        Case("encode", "64 B", COUNT, lambda: [encode(frame) for frame in small]),
        Case("encode, properties", "64 B", COUNT, lambda: [encode(frame) for frame in tagged]),
        Case("encode", "16 KiB", len(large), lambda: [encode(frame) for frame in large]),
        Case("renumber", "64 B", COUNT, lambda: [renumbered(one, number) for number in numbers]),
        Case("filter", "2 clauses", COUNT, _filtering(condition, tagged)),
        streaming_whole(16 * MIB, 65536),
        streaming_whole(64 * MIB, 65536),
    ]


def _filtering(condition: Filter, messages: list[Message]) -> Callable[[], object]:
    return lambda: [matches(condition, read_properties(message.properties)) for message in messages]


def streaming(size: int, chunk: int) -> Case:
    """One message of ``size`` bytes in frames of 1 MiB, arriving in chunks."""
    octets = encode(Message(1, "bulk", bytes(size)))
    return Case("stream, continued", f"{size >> 20} MiB", 1, _streaming(octets, size, chunk))


def streaming_whole(size: int, chunk: int) -> Case:
    """One message of ``size`` bytes in one frame, arriving in chunks."""
    octets = b"\x08\0\x01\x04bulk\0\0" + size.to_bytes(4, "big") + bytes(size)
    return Case("stream, one frame", f"{size >> 20} MiB", 1, _streaming(octets, size, chunk))


def _streaming(octets: bytes, size: int, chunk: int) -> Callable[[], object]:
    parts = [octets[at : at + chunk] for at in range(0, len(octets), chunk)]

    def run() -> None:
        decoder = Decoder(established=True, max_message=size)
        frames = [frame for part in parts for frame in decoder.feed(part)]
        assert len(frames) == 1

    return run
