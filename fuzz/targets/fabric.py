"""What nodes of a fabric send each other, under the fuzzer.

Any bytes are a batch that is decoded or raises ``LinkError``. The stream of records gives the same records however
batches cut it, each can be encoded and decoded again, and two ends of a link that lose any of their batches come to
the same stream.
"""

from collections.abc import Iterator
from itertools import pairwise

from polywire.fabric.frames import (
    VERSION,
    Asked,
    AskedOn,
    Claim,
    Claimed,
    Clients,
    Counted,
    Decoder,
    Done,
    Ended,
    Extras,
    Given,
    Header,
    Hello,
    Interest,
    Kept,
    Kind,
    Leave,
    LinkError,
    LoanEnded,
    Mark,
    Offered,
    Outcome,
    Owning,
    Probe,
    Published,
    Put,
    Ready,
    Record,
    Replied,
    Resume,
    Run,
    RunHead,
    SessionKept,
    SessionSent,
    SessionsHeld,
    Want,
    Watched,
    decode_batch,
    decode_hello,
    encode,
    encode_batch,
    encode_hello,
    encode_run_head,
    message_of,
    published,
)
from polywire.fabric.link import Link

LIMIT = 4096
RUN = Run(RunHead(2, 1, 7, 8, 9), b"\x00\x01\x00\x00\x00\x01ab")
MESSAGE = Published(
    "a/b", b"body", 5, 1, 2, 3, "text/plain", (("n", 1), ("d", (2.5,)), ("s", "x")), ((b"f", ""), (None, "w"))
)  # fmt: skip
RECORDS: tuple[Record, ...] = (
    Interest(("a/\0", "b/\0\0"), ("c",)),
    MESSAGE,
    Ready(),
    Kept(MESSAGE, (7, "a"), fresh=True),
    Clients(3),
    Watched(("a",), ("b",)),
    Counted((("a", 1), ("b", 0))),
    Offered(("s",), (), native=False),
    Asked(1, "s", "m", MESSAGE, 1.5, streamed=True, last=False),
    AskedOn(1, MESSAGE, last=True),
    Put(5, 1, 2, MESSAGE, "umq", "me", 1),
    LoanEnded(5, 1, 3, "jobs", 9, 4, 1, 0.5, "no"),
    Done(5, 3, {2: "QUEUE_FULL"}),
    Want("jobs", 32, fresh=True),
    Leave("jobs"),
    Given("jobs", 9, 4, 1, MESSAGE),
    Owning(5, 9),
    Resume(5, 9, {"jobs": [1, 4]}),
    Replied(1, MESSAGE, last=True),
    Ended(1, failed=True, code=503, label="l", text="t"),
    Mark(7),
    Claim(1, "id", "user", 5, clean=False),
    Claimed(1, Outcome.ANOTHER),
    SessionSent(1, b"data", (("t", 2),)),
    Probe(1, last=True),
    Extras(1, ((MESSAGE, "t", 1),)),
    SessionKept(1, "id"),
    SessionsHeld((("id", True, 7),), leaving=True),
)


def run(data: bytes) -> None:
    """The first byte says where to cut and which batches are lost, the rest is a batch, a stream and what is sent."""
    first, rest = (data[0] if data else 0), data[1:]
    _batch(rest)
    _stream(rest, [first, 2 * first + 1])
    _link(first, rest)


def _batch(data: bytes) -> None:
    try:
        header, payload = decode_batch(data)
        assert encode_batch(header, bytes(payload))[8:] == data[8:]
        if header.kind is Kind.HELLO:
            assert decode_hello(memoryview(encode_hello(decode_hello(payload)))) == decode_hello(payload)
    except LinkError:
        pass
    link = Link(5, Hello(VERSION, "a", 1000))
    try:
        for _ in range(2):
            link.receive(data)
            link.tick()
    except LinkError:
        pass


def _stream(data: bytes, cuts: list[int]) -> None:
    whole, failed = _decoded([data])
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(ends)]
    again, failed_again = _decoded(pieces)
    assert failed == failed_again
    assert again == whole or (failed and again == whole[: len(again)])
    for record in whole:
        if isinstance(record, Published):
            _message(record)
        if not isinstance(record, Run):
            assert Decoder().feed(encode(record)) == [record]


def _message(record: Published) -> None:
    sent = published(message_of(record))
    assert published(message_of(sent)) == sent


def _decoded(pieces: list[bytes]) -> tuple[list[Record | Run], bool]:
    decoder = Decoder(largest=LIMIT)
    found: list[Record | Run] = []
    for piece in pieces:
        try:
            found += decoder.feed(piece)
        except LinkError:
            return found, True
        assert decoder.pending() <= LIMIT + 4
    return found, False


def _link(seed: int, data: bytes) -> None:
    """Send the bytes over a link that loses some batches at first; all of them arrive, in order."""
    ends = [Link(1, Hello(VERSION, "a", 64)), Link(2, Hello(VERSION, "b", 64))]
    arrived = b""
    loses = _losses(seed, data)
    ends[0].greet()
    pieces = [data[start : start + 16] for start in range(0, min(len(data), 160), 16)]
    for turn in range(200):
        if pieces and ends[0].has_credit():
            ends[0].send(pieces.pop(0))
        for sender, receiver in ((0, 1), (1, 0)):
            answers, ends[sender].answers = ends[sender].answers, []
            for batch in answers:
                if turn < 50 and next(loses):
                    continue
                _, records = ends[receiver].receive(batch)
                if records is not None:
                    arrived += records
                    ends[receiver].handled(len(records))
        ends[0].tick()
        ends[1].tick()
    assert arrived == data[:160], (arrived, data)
    assert ends[0].waiting() == ends[0].kept() == 0


def _losses(seed: int, data: bytes) -> Iterator[bool]:
    number = seed * 256 + len(data)
    while True:
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        yield number >> 16 & 3 == 0


def seeds() -> list[bytes]:
    stream = b"".join(encode(each) for each in RECORDS)
    run_record = encode_run_head(RUN.head, len(RUN.data)) + RUN.data
    hello = encode_batch(Header(Kind.HELLO, 1, 0, 0, 0, 0), encode_hello(Hello(VERSION, "a", 1 << 20, ("fmqp",), 5, 6)))
    batch = encode_batch(Header(Kind.RECORDS, 7, 5, 1, 2, 3), run_record + stream)
    return [b"\x07" + stream, b"\x03" + run_record + stream, b"\x01" + hello, b"\x02" + batch, b"\x09" + b"x" * 200]
