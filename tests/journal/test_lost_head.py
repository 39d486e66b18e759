"""Heads of segments that were damaged: made again where they prove what they were, and only there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.journal.framing import BadMessage
from polywire.journal.head import make_head
from polywire.journal.kinds import EARLIER_KINDS
from polywire.journal.lost_head import find_head


@pytest.mark.parametrize("node", ["hub-1", "nœud", "h", "a-rather-long-name.of-a-host.example.org"])
def test_a_head_with_any_one_octet_wrong_is_made_again(node: str) -> None:
    head = make_head(node)
    name = head.octets.find(node.encode())
    for position in [*range(0, len(head), 41), *range(90, 110), *range(name - 8, name + 8)]:
        octets = bytearray(head.octets + b"batches")
        octets[position] ^= 1 << position % 8
        found = find_head(memoryview(octets))
        assert (found.octets, found.node) == (head.octets, node)
        assert found.damage


def test_the_head_of_a_segment_from_before_there_was_a_kind_is_made_again() -> None:
    for kinds in EARLIER_KINDS:
        head = make_head("hub-1", kinds=kinds)
        assert head.octets != make_head("hub-1").octets
        octets = bytearray(head.octets + b"batches")
        octets[len(head) - 5] ^= 1
        assert find_head(memoryview(octets)).octets == head.octets


def test_a_head_that_is_right_says_so() -> None:
    head = make_head("hub")
    assert find_head(memoryview(head.octets + b"batches")) == head
    assert not head.damage


@given(st.data())
def test_what_is_made_again_is_what_was_there_or_nothing(data: st.DataObject) -> None:
    head = make_head("hub-1")
    octets = bytearray(head.octets)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(octets)))
        octets[at : at + data.draw(st.integers(0, 16))] = data.draw(st.binary(max_size=16))
    try:
        found = find_head(memoryview(bytes(octets)))
    except BadMessage:
        return
    assert found.octets == head.octets


@pytest.mark.parametrize("octets", [b"", b"\xff" * 8, bytes(4000), make_head("hub").octets[:-1]])
def test_too_little_is_no_head(octets: bytes) -> None:
    with pytest.raises(BadMessage):
        find_head(memoryview(octets))
