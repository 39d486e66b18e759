"""The contract every stream codec holds, checked on any bytes. Hypothesis tests and the fuzzer share it.

Any bytes, cut anywhere, give the same frames or the documented error, and nothing else; an error repeats itself; what
is held never exceeds what arrived nor the limit; and a frame that was decoded can be encoded and decoded again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polywire.errors import RemoteProtocolError
from polywire.wire.frame import Discarded, Frame


class StreamDecoder(Protocol):
    """What all decoders of byte streams look like."""

    def feed(self, data: bytes, /) -> list[Any]: ...

    def pending(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decoder made of its input: frames, and the error that ended it, if one did."""

    frames: list[Any]
    error: tuple[str, str, int, object] | None


def summary(error: RemoteProtocolError) -> tuple[str, str, int, object]:
    """The parts of an error that must not depend on how the input was cut."""
    return (error.rule, error.reason, error.position, error.reply)


def decode(decoder: StreamDecoder, chunks: Iterable[bytes], *, held: int) -> Outcome:
    """Feed the chunks until they or the connection end. ``held`` bounds what the decoder may keep."""
    frames: list[Any] = []
    fed = 0
    for chunk in chunks:
        try:
            frames += decoder.feed(chunk)
        except RemoteProtocolError as error:
            frames += error.frames
            check_repeats(decoder, error)
            return Outcome(frames, summary(error))
        fed += len(chunk)
        assert decoder.pending() <= min(fed, held), (decoder.pending(), fed, held)
    return Outcome(frames, None)


def check_repeats(decoder: StreamDecoder, error: RemoteProtocolError) -> None:
    """A decoder that raised once raises the same again, without frames."""
    try:
        decoder.feed(b"\0")
    except RemoteProtocolError as again:
        assert summary(again) == summary(error)
        assert not again.frames
    else:
        raise AssertionError("a decoder went on after its error")


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these places."""
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def check_stream(
    make: Callable[[], StreamDecoder],
    data: bytes,
    cuts: Sequence[int],
    *,
    held: int,
    encode: Callable[[Any], bytes] | None = None,
) -> Outcome:
    """Check the whole contract on ``data``, cut at ``cuts`` and at every byte. Returns the outcome."""
    whole = decode(make(), [data], held=held)
    assert decode(make(), pieces(data, cuts), held=held) == whole
    if len(data) <= 512:
        assert decode(make(), pieces(data, range(len(data))), held=held) == whole
    if encode is not None:
        for frame in whole.frames:
            if isinstance(frame, Frame) and not isinstance(frame, Discarded):
                again = decode(make(), [encode(frame)], held=held)
                assert again == Outcome([frame], None), (frame, again)
    return whole
