"""FMQP's run scanner: consecutive publications to one route as one slice."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.fmqp.frames import CACHE, Decoder, Publication, Subscription, encode, publications_in
from polywire.wire.frame import Discarded, Frame, Run
from tests.protocols.fmqp import strategies


class Routes:
    """A route table that counts how often it is asked."""

    def __init__(self, known: dict[bytes, object]) -> None:
        self.known = known
        self.cache: dict[bytes, object] = {}
        self.asked: list[bytes] = []

    def resolve(self, topic: bytes) -> object | None:
        self.asked.append(topic)
        route = self.known.get(topic)
        if route is not None:
            self.cache[topic] = route
        return route


def scan(wire: bytes, routes: Routes) -> list[Frame | Run]:
    return Decoder().feed_runs(wire, routes.cache, routes.resolve)


def shape(items: list[Frame | Run]) -> list[object]:
    return [(item.route, item.count) if isinstance(item, Run) else item for item in items]


@pytest.mark.rule("FMQP-75")
def test_publications_to_one_topic_are_one_run() -> None:
    wire = encode(Publication("a/b", b"1")) + encode(Publication("a/b", b"22"))
    (run,) = scan(wire, routes := Routes({b"a/b": "one"}))
    assert isinstance(run, Run)
    assert (run.route, run.count, run.octets()) == ("one", 2, wire)
    assert routes.asked == [b"a/b"]


@pytest.mark.rule("FMQP-75")
def test_topics_that_share_a_route_share_a_run() -> None:
    wire = b"".join(encode(Publication(topic, b"x")) for topic in ("a", "b", "a", "c"))
    assert shape(scan(wire, Routes({b"a": "one", b"b": "one", b"c": "two"}))) == [("one", 3), ("two", 1)]


@pytest.mark.rule("FMQP-54")
@pytest.mark.parametrize(
    "frame",
    [
        Publication("a", b"x", CACHE),
        Publication("a", b""),
        Publication("a/*", b"x"),
        Publication("$/signals/stop", b"x"),
        Subscription("a"),
    ],
)
def test_what_is_not_forwarded_as_it_stands_comes_as_a_frame_between_runs(frame: Frame) -> None:
    plain = encode(Publication("a", b"x"))
    items = scan(plain + encode(frame) + plain, Routes({b"a": "one", b"a/*": "wrong", b"$/signals/stop": "wrong"}))
    assert shape(items) == [("one", 1), frame, ("one", 1)]


@pytest.mark.rule("FMQP-54")
def test_a_topic_with_outer_slashes_is_encoded_anew() -> None:
    wire = b"\x00\x02\x00\x00\x00\x01/ax"
    assert scan(wire, Routes({b"/a": "wrong"})) == [Publication("a", b"x")]


@pytest.mark.rule("FMQP-54")
def test_ignored_bits_are_not_forwarded() -> None:
    wire = b"\x03\x01\x00\x00\x00\x01ax"
    assert scan(wire, Routes({b"a": "wrong"})) == [Publication("a", b"x")]


@pytest.mark.rule("FMQP-75")
def test_a_topic_without_a_route_comes_as_a_frame_each_time() -> None:
    frame = Publication("nobody", b"x")
    routes = Routes({})
    assert scan(encode(frame) * 2, routes) == [frame, frame]
    assert routes.asked == [b"nobody", b"nobody"]


@pytest.mark.rule("FMQP-75", "FMQP-52")
def test_a_run_ends_before_an_oversize_body() -> None:
    small = encode(Publication("a", b"x"))
    wire = small + encode(Publication("a", b"y" * 50)) + small
    items = Decoder(max_body=10).feed_runs(wire, {b"a": "one"}, lambda _: None)
    first, discarded, last = items
    assert shape([first, last]) == [("one", 1), ("one", 1)]
    assert isinstance(discarded, Discarded)
    assert isinstance(last, Run)
    assert last.octets() == small


@pytest.mark.rule("FMQP-75")
@given(st.lists(strategies.frames, max_size=12), st.lists(st.integers(0, 400), max_size=6), st.integers(1, 3))
def test_runs_hold_the_same_frames_as_decoding_one_by_one(frames: list[Frame], cuts: list[int], kinds: int) -> None:
    wire = b"".join(map(encode, frames))
    places = [0, *sorted({cut for cut in cuts if cut < len(wire)}), len(wire)]
    decoder = Decoder()
    found: list[Frame] = []
    for start, end in itertools.pairwise(places):
        for item in decoder.feed_runs(wire[start:end], {}, lambda topic: len(topic) % kinds or None):
            if isinstance(item, Run):
                frames_of_run = Decoder().feed(item.octets())
                assert publications_in(item.data, item.start, item.end) == frames_of_run
                found += frames_of_run
            else:
                found.append(item)
    assert found == frames
