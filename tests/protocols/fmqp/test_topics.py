"""FMQP's topics: validity and equivalence."""

from itertools import product

import pytest
from hypothesis import given

from polywire.protocols.fmqp import topics
from tests.protocols.fmqp import strategies

VALID = [
    "home/living-space/living-room1/temperature",
    "home/living-space/living-room1/temperature/",
    "/home/living-space/living-room1/temperature",
    "/home/living-space/living-room1/temperature/",
    "/home/",
    "/home/",
    "home/",
    "home",
]
INVALID = ["/", "////////////////////", ""]
EQUIVALENT = [
    "home/living-space/living-room1/temperature",
    "home/living-space/living-room1/*",
    "home/living-space/*/temperature",
    "home/*/living-room1/temperature",
    "*/living-space/living-room1/temperature",
    "*/*/*/*",
]


@pytest.mark.rule("FMQP-16", "FMQP-14")
def test_the_documents_valid_topics_are_read_without_their_outer_slashes() -> None:
    assert [topics.read(topic.encode()) for topic in VALID] == [VALID[0]] * 4 + ["home"] * 4


@pytest.mark.rule("FMQP-17", "FMQP-15")
@pytest.mark.parametrize("topic", INVALID)
def test_the_documents_invalid_topics_are_refused(topic: str) -> None:
    assert topics.read(topic.encode()) is None
    assert topics.problem(topic.encode())[0] == "FMQP-15"


@pytest.mark.rule("FMQP-47", "FMQP-13")
@pytest.mark.parametrize(("raw", "topic"), [("///a//b///", "a//b"), ("a/ /b", "a/ /b"), ("/*/", "*")])
def test_all_outer_slashes_go_and_inner_empty_levels_stay(raw: str, topic: str) -> None:
    assert topics.read(raw.encode()) == topic


@pytest.mark.rule("FMQP-47")
def test_an_empty_inner_level_is_a_level() -> None:
    assert not topics.equivalent("a//b", "a/b")
    assert topics.equivalent("a//b", "a/*/b")


@pytest.mark.rule("FMQP-21", "FMQP-19", "FMQP-20")
@pytest.mark.parametrize("topic", EQUIVALENT)
def test_the_documents_equivalent_topics_are_equivalent(topic: str) -> None:
    assert topics.equivalent(EQUIVALENT[0], topic)
    assert topics.equivalent(topic, EQUIVALENT[-1])


@pytest.mark.rule("FMQP-18")
@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("*", "a/b"), ("*/*/*", "a/b"), ("a/b", "a")])
def test_topics_with_other_numbers_of_levels_are_not_equivalent(one: str, other: str) -> None:
    assert not topics.equivalent(one, other)


@pytest.mark.rule("FMQP-19")
@pytest.mark.parametrize(("one", "other"), [("a/b", "a/c"), ("a/b", "b/a"), ("a*/b", "ab/b"), ("A", "a")])
def test_topics_with_another_level_are_not_equivalent(one: str, other: str) -> None:
    assert not topics.equivalent(one, other)


@pytest.mark.rule("FMQP-49")
@given(strategies.topics, strategies.topics)
def test_equivalence_is_symmetric_and_reflexive(one: str, other: str) -> None:
    assert topics.equivalent(one, other) == topics.equivalent(other, one)
    assert topics.equivalent(one, one)


@pytest.mark.rule("FMQP-19", "FMQP-20")
def test_equivalence_agrees_with_the_definition_on_all_short_topics() -> None:
    short = ["/".join(parts) for size in (1, 2, 3) for parts in product("ab*", repeat=size)]
    for one, other in product(short, repeat=2):
        pairs = list(zip(one.split("/"), other.split("/"), strict=False))
        defined = one.count("/") == other.count("/") and all(a == b or "*" in (a, b) for a, b in pairs)
        assert topics.equivalent(one, other) is defined, (one, other)


@pytest.mark.rule("FMQP-50")
def test_a_wildcard_stands_for_the_service_level_too() -> None:
    assert topics.equivalent("*/info/clients", "$/info/clients")


@pytest.mark.rule("FMQP-23")
@pytest.mark.parametrize(
    ("topic", "service"), [("$/info/clients", True), ("$", True), ("$x/y", False), ("a/$", False), ("*/info", False)]
)
def test_a_service_topic_begins_with_the_level_dollar(topic: str, *, service: bool) -> None:
    assert topics.is_service(topic) is service


@pytest.mark.rule("FMQP-54")
@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (b"a/b", True),
        (b"a//b", True),
        (b"a*/b", True),
        ("grün/ß".encode(), True),
        (b"a/*", False),
        (b"*", False),
        (b"/a", False),
        (b"a/", False),
        (b"$/signals/stop", False),
        (b"$", False),
        (b"", False),
        (b"a\0b", False),
        (b"\xff", False),
    ],
)
def test_only_literal_regular_stripped_topics_are_plain(raw: bytes, *, plain: bool) -> None:
    assert topics.plain(raw) is plain
