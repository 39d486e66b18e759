"""Shards and who should own them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.fabric.membership import SHARDS, preferred, shard_of

NAMES = st.sets(st.text("abcxyz019-", min_size=1, max_size=8), min_size=1, max_size=8)


def test_a_queue_stays_in_its_shard_in_every_version() -> None:
    assert [shard_of(name) for name in ("", "jobs", "jobs/eu", "käse", "\udc80")] == [0, 5, 9, 55, 59]


def test_without_nodes_there_is_no_owner() -> None:
    assert preferred(3, ()) is None


@given(NAMES, st.integers(0, SHARDS - 1))
def test_all_nodes_agree_whatever_the_order_in_which_they_know_each_other(nodes: set[str], shard: int) -> None:
    assert preferred(shard, sorted(nodes)) == preferred(shard, sorted(nodes, reverse=True))


@given(NAMES, st.text("abcxyz", min_size=9, max_size=9))
def test_a_node_that_joins_takes_shards_and_moves_none_between_the_others(nodes: set[str], new: str) -> None:
    for shard in range(SHARDS):
        assert preferred(shard, {*nodes, new}) in {preferred(shard, nodes), new}


@pytest.mark.parametrize("nodes", [["a", "b", "c"], ["hub-1", "hub-2", "hub-3", "hub-4"], ["w0", "w1"]])
def test_shards_are_spread_evenly(nodes: list[str]) -> None:
    shares = Counter(preferred(shard, nodes) for shard in range(SHARDS))
    assert all(abs(shares[node] - SHARDS / len(nodes)) <= 12 for node in nodes)
