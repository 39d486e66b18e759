"""Retained messages."""

from polywire.hub.channels import ANY, from_stars
from polywire.hub.message import Message
from polywire.hub.retained import Retained


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_the_newest_message_of_a_channel_is_kept() -> None:
    retained = Retained()
    retained.keep(Message("a", b"old"))
    retained.keep(Message("a", b"new"))
    assert bodies(retained.find("a")) == [b"new"]
    assert retained.size == Message("a", b"new").size()


def test_an_empty_body_clears_the_channel() -> None:
    retained = Retained()
    retained.keep(Message("a", b"x"))
    retained.keep(Message("a", b""))
    assert (len(retained), retained.size, retained.find("a")) == (0, 0, [])
    assert retained.keep(Message("never", b""))


def test_a_pattern_finds_what_it_matches_oldest_first() -> None:
    retained = Retained()
    for time, name in enumerate(["a/z", "a/b", "b", "$/a"]):
        retained.keep(Message(name, name.encode(), time=time))
    assert bodies(retained.find(from_stars("a/*"))) == [b"a/z", b"a/b"]
    assert bodies(retained.find(from_stars("**"))) == [b"a/z", b"a/b", b"b"]
    assert bodies(retained.find(from_stars("*/a"), dollar=True)) == [b"$/a"]


def test_a_message_kept_under_a_pattern_is_found_by_what_meets_it() -> None:
    retained = Retained()
    retained.keep(Message(f"a/{ANY}", b"x"))
    assert bodies(retained.find("a/b")) == [b"x"]
    assert bodies(retained.find("b/b")) == []


def test_there_is_room_for_so_many_channels_only() -> None:
    retained = Retained(limit=1)
    assert retained.keep(Message("a", b"x"))
    assert not retained.keep(Message("b", b"x"))
    assert retained.keep(Message("a", b"y"))
    assert retained.keep(Message("a", b""))
    assert retained.keep(Message("b", b"x"))


def test_there_is_room_for_so_many_octets_only() -> None:
    retained = Retained(most_octets=12)  # names count
    assert retained.keep(Message("a", b"x" * 6))
    assert not retained.keep(Message("b", b"x" * 5))
    assert retained.keep(Message("b", b"x" * 4))
    assert not retained.keep(Message("a", b"x" * 7))
    assert bodies(retained.find("a")) == [b"x" * 6]
    assert retained.size == 12
    retained.most_octets = 5  # of a changed configuration
    assert retained.keep(Message("a", b"x" * 5))
    assert retained.size == 11
