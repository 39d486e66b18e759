"""The cases of RPC over MQTT: requests and responses, small and large bodies."""

from collections.abc import Sequence
from functools import partial

from benchmarks.wire_cases import Case
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response, TimeoutUnit, encode
from polywire.wire.frame import Frame

COUNT = 1000
SIZES = {"64 B": (64, COUNT), "16 KiB": (16384, 20)}
FIRST_ID = 0x9E37_79B9_7F4A_7C15


def cases() -> list[Case]:
    decoder = Decoder()

    def decode_all(payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            decoder.feed(payload)

    def encode_all(frames: Sequence[Frame]) -> None:
        for frame in frames:
            encode(frame)

    found = []
    for size, (octets, count) in SIZES.items():
        body = b"x" * octets
        numbers = range(FIRST_ID, FIRST_ID + count)
        requests = [
            Request(number, "SayHello", body, eos=True, timeout=5, timeout_unit=TimeoutUnit.SECOND)
            for number in numbers
        ]
        responses = [Response(number, "", body) for number in numbers]
        sent, answered = [encode(frame) for frame in requests], [encode(frame) for frame in responses]
        found += [
            Case("decode request", size, count, partial(decode_all, sent)),
            Case("decode response", size, count, partial(decode_all, answered)),
            Case("encode request", size, count, partial(encode_all, requests)),
            Case("encode response", size, count, partial(encode_all, responses)),
        ]
    return found
