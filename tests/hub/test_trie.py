"""The trie, against the definition of matching."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.channels import ANY, REST, from_stars, matches
from polywire.hub.trie import WIDE, Trie
from tests.hub.test_channels import names, patterns

short = st.lists(st.sampled_from(["a", "b", ANY]), min_size=1, max_size=3).map("/".join)


@given(st.lists(patterns, max_size=12), names)
def test_a_name_finds_exactly_the_patterns_that_match_it(keys: list[str], name: str) -> None:
    trie: Trie[int] = Trie()
    for number, key in enumerate(keys):
        trie.add(key, number)
    wanted = {number for number, key in enumerate(keys) if matches(key, name, dollar=True)}
    for found in (trie.find(name), trie.match(name)):
        assert (set(found), len(found)) == (wanted, len(wanted))


@given(st.lists(names, max_size=12, unique=True), patterns)
def test_a_pattern_finds_exactly_the_names_it_matches(keys: list[str], pattern: str) -> None:
    trie: Trie[str] = Trie()
    for key in keys:
        trie.add(key, key)
    assert sorted(trie.find(pattern)) == sorted(key for key in keys if matches(pattern, key, dollar=True))


@given(st.lists(short, max_size=10, unique=True), short)
def test_a_published_wildcard_meets_wildcards_symmetrically(keys: list[str], name: str) -> None:
    trie: Trie[str] = Trie()
    for key in keys:
        trie.add(key, key)

    def meet(one: str, other: str) -> bool:
        pairs = list(zip(one.split("/"), other.split("/"), strict=False))
        return one.count("/") == other.count("/") and all(a == b or ANY in (a, b) for a, b in pairs)

    assert sorted(trie.find(name)) == sorted(key for key in keys if meet(key, name))


@given(st.lists(patterns, max_size=12), st.randoms(use_true_random=False))
def test_what_is_taken_out_leaves_no_trace(keys: list[str], random: object) -> None:
    trie: Trie[int] = Trie()
    for number, key in enumerate(keys):
        trie.add(key, number)
    order = list(enumerate(keys))
    random.shuffle(order)  # type: ignore[attr-defined]
    for number, key in order:
        assert trie.discard(key, number)
        assert not trie.discard(key, number)
    assert len(trie) == 0
    assert trie._root.empty()


def test_an_item_stands_under_a_key_once() -> None:
    trie: Trie[str] = Trie()
    assert [trie.add("a", item) for item in "xyx"] == [True, True, False]
    assert trie.add("b", "x")
    assert (trie.find("a"), len(trie)) == (["x", "y"], 3)


def test_a_key_that_was_never_added_can_not_be_taken_out() -> None:
    trie: Trie[str] = Trie()
    trie.add("a/b", "x")
    assert not trie.discard("a", "x")
    assert not trie.discard("a/b/c", "x")
    assert not trie.discard("a/b", "y")
    assert trie.find("a/b") == ["x"]


def test_a_very_deep_key_costs_no_stack() -> None:
    trie: Trie[str] = Trie()
    deep = "/".join(["a"] * 50_000)
    trie.add(deep, "x")
    assert trie.find(REST) == ["x"]
    assert trie.find(from_stars("a/**")) == ["x"]
    assert trie.discard(deep, "x")


def visited(keys: set[tuple[str, ...]]) -> int:
    """How many nodes a single name can visit at most, by the definition: the worst of every choice at every level."""
    below: dict[str, set[tuple[str, ...]]] = {}
    for key in keys:
        if key:
            below.setdefault(key[0], set()).add(key[1:])
    named = [visited(rests) for level, rests in below.items() if level not in {ANY, REST}]
    wild = visited(below[ANY]) if ANY in below else 0
    return 1 + max(named, default=0) + wild + (REST in below)


@given(st.lists(patterns, max_size=20), st.randoms(use_true_random=False))
def test_the_reach_is_the_worst_case_whatever_comes_and_goes(keys: list[str], random: object) -> None:
    trie: Trie[int] = Trie()
    held: list[tuple[int, str]] = []
    for number, key in enumerate(keys):
        trie.add(key, number)
        held.append((number, key))
        assert trie.reach() == visited({tuple(each.split("/")) for _, each in held})
        if random.random() < 0.4:  # type: ignore[attr-defined]
            gone = held.pop(random.randrange(len(held)))  # type: ignore[attr-defined]
            trie.discard(gone[1], gone[0])
            assert trie.reach() == visited({tuple(each.split("/")) for _, each in held})


def test_the_reach_of_a_wide_node_shrinks_with_its_deepest_child() -> None:
    trie: Trie[int] = Trie()
    for number in range(3 * WIDE):
        trie.add(f"{number}/x", number)
    assert trie.reach() == 3
    trie.add("7/x/y/z", -1)
    trie.add("8/x/y", -2)
    assert trie.reach() == 5
    trie.discard("7/x/y/z", -1)
    assert trie.reach() == 4
    for number in range(3 * WIDE):
        trie.discard(f"{number}/x", number)
    assert trie.reach() == 4
    assert not trie._tallies
    trie.discard("8/x/y", -2)
    assert trie.reach() == 1
