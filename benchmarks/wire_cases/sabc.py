"""sABC's cases: messages with three headers, small and large bodies; streams of bodies that look like frames' ends."""

from benchmarks.wire_cases import Case
from polywire.protocols.sabc.decoder import Decoder, MessageDecoder
from polywire.protocols.sabc.frames import Message, encode

COUNT = 1000
SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"


def messages(count: int, size: int) -> list[Message]:
    """Each with session-id, msg-id and destination."""
    return [
        Message(SESSION, f"{number:06}", b"x" * size, (("destination", f"sensors/room{number:04}/temperature"),))
        for number in range(count)
    ]


def cases() -> list[Case]:
    small = messages(COUNT, 64)
    large = messages(20, 16384)
    many = b"".join(map(encode, small))
    bulk = b"".join(map(encode, large))
    singles = [encode(frame) for frame in small]
    looks = encode(Message(SESSION, "1", b"\r\n\r\n" * 250_000))
    near = encode(Message(SESSION, "1", b"\r\nsession-id::x" * 70_000))
    decoder = Decoder(session_id=SESSION)
    receiver = MessageDecoder(session_id=SESSION)
    return [
        Case("decode", "64 B", COUNT, lambda: decoder.feed(many), goal=2),
        Case("decode", "16 KiB", len(large), lambda: decoder.feed(bulk)),
        Case("decode, WebSocket", "64 B", COUNT, lambda: [receiver.feed(single) for single in singles], goal=2),
        Case("encode", "64 B", COUNT, lambda: [encode(frame) for frame in small]),
        Case("encode", "16 KiB", len(large), lambda: [encode(frame) for frame in large]),
        Case("decode, empty lines", "1 MB", 1, lambda: decoder.feed(looks)),
        Case("decode, near ends", "1 MB", 1, lambda: decoder.feed(near)),
    ]


def streaming(size: int, chunk: int) -> Case:
    """One body of ``size`` bytes, full of empty lines and of what nearly begins a frame, arriving in chunks."""
    unit = b"x" * 200 + b"\r\n\r\n\r\n\r\nMESSAGE\r\nsession-id::NaTPOgp1QUuB6Gm5tAdcS\r\n"
    octets = encode(Message(SESSION, "1", (unit * (size // len(unit) + 1))[:size]))
    parts = [octets[at : at + chunk] for at in range(0, len(octets), chunk)]

    def run() -> None:
        decoder = Decoder(session_id=SESSION, max_message=2 * size)
        frames = [frame for part in parts for frame in decoder.feed(part)]
        assert len(frames) == 1

    return Case("stream", f"{size >> 20} MiB", 1, run)
