"""UMQ's cases: one call of ``feed`` a message, as they come from the WebSocket; calls, updates and attachments."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.wire_cases import Case
from polywire.protocols.umq.frames import Attachment, Call, Decoder, TopicUpdate, encode
from polywire.protocols.umq.methods import read_method, write_method
from polywire.wire.frame import Frame

COUNT = 1000


def each(function: Callable[[Any], object], arguments: Sequence[object]) -> Callable[[], None]:
    """Call the function on each argument, keeping no result: what is freed at once costs the same everywhere."""

    def run() -> None:
        for argument in arguments:
            function(argument)

    return run


def cases() -> list[Case]:
    payload = '["call","thermostat","set","' + "x" * 34 + '"]'
    publish = '["publish","sensors/room0001/temperature","' + "x" * 64 + '"]'
    updates: list[Frame] = [TopicUpdate(0x5F0000 + number, "x" * 64) for number in range(COUNT)]
    calls: list[Frame] = [Call(0x12345 + number, payload) for number in range(COUNT)]
    accented: list[Frame] = [TopicUpdate(0x5F0000 + number, "é" * 64) for number in range(COUNT)]
    large: list[Frame] = [TopicUpdate(7 + number, "x" * 16384) for number in range(COUNT)]
    attached: list[Frame] = []
    for number in range(COUNT // 2):
        attached += [TopicUpdate(number, "", 1), Attachment(bytes(64))]

    feed = Decoder().feed

    def decoding(
        what: str, size: str, frames: list[Frame], *, goal: float | None = None, most: float | None = None
    ) -> Case:
        return Case(f"decode {what}", size, len(frames), each(feed, [*map(encode, frames)]), goal=goal, most=most)

    def encoding(what: str, size: str, frames: list[Frame]) -> Case:
        return Case(f"encode {what}", size, len(frames), each(encode, frames))

    return [
        decoding("updates", "64 B", updates, goal=2),
        decoding("calls", "64 B", calls, goal=2),
        decoding("updates", "64 B", updates, most=300),
        decoding("calls", "64 B", calls, most=300),
        decoding("accented", "128 B", accented),
        decoding("attached", "64 B", attached),
        decoding("updates", "16 KiB", large),
        encoding("updates", "64 B", updates),
        encoding("calls", "64 B", calls),
        encoding("updates", "16 KiB", large),
        Case("read publish", "64 B", COUNT, each(read_method, [publish] * COUNT)),
        Case("write publish", "64 B", COUNT, each(write_method, [read_method(publish)] * COUNT)),
    ]
