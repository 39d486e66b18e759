"""Value semantics of frames."""

import copy
import pickle

from polywire.protocols.fmqp import Publication, Subscription
from polywire.wire.frame import Discarded, Run


def test_frames_of_one_class_with_equal_fields_are_equal() -> None:
    assert Publication("a", b"x") == Publication("a", b"x", 0)
    assert Publication("a", b"x") != Publication("a", b"y")
    assert hash(Publication("a", b"x")) == hash(Publication("a", b"x"))


def test_frames_of_other_classes_differ() -> None:
    assert Subscription("a", 0) != Publication("a", b"", 0)
    assert Subscription("a") != "a"


def test_a_frame_shows_its_fields() -> None:
    assert repr(Publication("a", b"x", 4)) == "Publication(topic='a', body=b'x', flags=4)"


def test_a_frame_can_be_copied_and_pickled() -> None:
    frame = Discarded("X-01", "why", 3, b"raw", 3, Publication("a", b"x"))
    assert pickle.loads(pickle.dumps(frame)) == frame  # noqa: S301 - our own pickle
    assert copy.copy(frame) == frame


def test_a_frame_can_be_matched_by_position() -> None:
    match Publication("a", b"x", 4):
        case Publication(topic, body, flags):
            assert (topic, body, flags) == ("a", b"x", 4)


def test_a_run_shows_its_route_and_gives_its_octets() -> None:
    run = Run("route", b"0123456789", 2, 5, 1)
    assert run.octets() == b"234"
    assert repr(run) == "Run(route='route', start=2, end=5, count=1)"
