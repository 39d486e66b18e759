"""FMQP under the fuzzer: the stream contract, and the run scanner against the decoder."""

from fuzz.contract import check_stream
from polywire.protocols.fmqp.frames import DEBUG, FEEDBACK, Decoder, Publication, Subscription, Unsubscription, encode
from polywire.wire.frame import Run

LIMIT = 600


def decoder() -> Decoder:
    return Decoder(max_body=LIMIT)


def run(data: bytes) -> None:
    """The first byte says where to cut, the rest is the stream."""
    stream = data[1:]
    cut = data[0] if data else 0
    whole = check_stream(decoder, stream, [cut, 2 * cut + 1], held=LIMIT + 6 + 255, encode=encode)
    routes: dict[bytes, object] = {}
    scanning = decoder()
    flat: list[object] = []
    for item in scanning.feed_runs(stream, routes, lambda topic: routes.setdefault(topic, topic[:2])):
        if isinstance(item, Run):
            run_frames = decoder().feed(item.octets())
            assert len(run_frames) == item.count
            flat += run_frames
        else:
            flat.append(item)
    assert flat == whole.frames
    assert scanning.pending() <= LIMIT + 6 + 255


def seeds() -> list[bytes]:
    frames = [
        Publication("home/room/temperature", b"21.5"),
        Publication("home/room/temperature", b"21.6"),
        Publication("home/*", b"x" * 300, FEEDBACK),
        Subscription("$/info/clients", DEBUG),
        Unsubscription("home"),
    ]
    return [b"\x07" + b"".join(map(encode, frames)), b"\x01" + encode(frames[0]) * 3]
