"""Retained messages."""

from polywire.hub.channels import ANY, from_stars
from polywire.hub.message import Message
from polywire.hub.retained import Retained
from polywire.hub.trie import name_cost


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_the_newest_message_of_a_channel_is_kept() -> None:
    retained = Retained()
    retained.keep(Message("a", b"old"))
    retained.keep(Message("a", b"new"))
    assert bodies(retained.find("a")) == [b"new"]
    assert retained.size == Message("a", b"new").size() + name_cost("a")


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
    names = 2 * name_cost("a")  # which count as well
    retained = Retained(most_octets=names + 12)
    assert retained.keep(Message("a", b"x" * 6))
    assert not retained.keep(Message("b", b"x" * 5))
    assert retained.keep(Message("b", b"x" * 4))
    assert not retained.keep(Message("a", b"x" * 7))
    assert bodies(retained.find("a")) == [b"x" * 6]
    assert retained.size == names + 12
    retained.most_octets = names + 5  # of a changed configuration
    assert retained.keep(Message("a", b"x" * 5))
    assert retained.size == names + 11


def test_a_search_in_steps_finds_what_was_there_and_is_not_replaced_oldest_first() -> None:
    retained = Retained()
    for number in range(2000):
        retained.keep(Message(f"a/{number}", b"old"))
    search = retained.search(from_stars("a/*"))
    first = search.some()
    assert first == [f"a/{number}" for number in range(64)]
    retained.keep(Message("a/100", b"new"))
    retained.keep(Message("a/101", b""))
    retained.keep(Message("a/new", b"new"))
    found: list[str] = []
    steps = 0
    while (some := search.some()) is not None:
        found += some
        steps += 1
    assert found == [f"a/{number}" for number in range(64, 2000) if number not in {100, 101}]
    assert steps >= 30


def test_what_was_encoded_for_subscribers_is_not_kept() -> None:
    retained = Retained()
    message = Message("a", b"x")
    message.encoded[32] = b"the publisher's own"
    retained.keep(message)
    message.encoded[16] = b"a subscriber's"
    kept = retained.get("a")
    assert kept is not None
    assert kept.encoded == {32: b"the publisher's own"}
