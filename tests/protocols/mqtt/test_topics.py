"""Topic names and filters: what is valid, what matches what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub import channels
from polywire.hub.channels import ANY, REST, from_mqtt, from_stars, to_stars
from polywire.hub.trie import Trie
from polywire.protocols.mqtt.topics import (
    filter_problem,
    matches,
    name_for,
    name_problem,
    plain_name,
    text_problem,
)
from tests.protocols.mqtt.strategies import filters, names


def rule(problem: tuple[str, str] | None) -> str | None:
    return None if problem is None else problem[0]


@pytest.mark.rule("MQTT-156", "MQTT-157", "MQTT-158", "MQTT-109")
@pytest.mark.parametrize(
    ("topic_filter", "name"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1"),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
        ("sport/#", "sport"),
        ("#", "sport"),
        ("#", "/"),
        ("sport/tennis/#", "sport/tennis"),
        ("sport/tennis/+", "sport/tennis/player1"),
        ("sport/tennis/+", "sport/tennis/player2"),
        ("sport/+", "sport/"),
        ("+", "sport"),
        ("+/tennis/#", "sport/tennis"),
        ("sport/+/player1", "sport/tennis/player1"),
        ("+/+", "/finance"),
        ("/+", "/finance"),
        ("$SYS/#", "$SYS/monitor/Clients"),
        ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ],
)
def test_a_filter_matches_as_the_document_says(topic_filter: str, name: str) -> None:
    assert filter_problem(topic_filter.encode()) is None
    assert matches(topic_filter, name)


@pytest.mark.rule("MQTT-156", "MQTT-157", "MQTT-158", "MQTT-159")
@pytest.mark.parametrize(
    ("topic_filter", "name"),
    [
        ("sport/tennis/+", "sport/tennis/player1/ranking"),
        ("sport/+", "sport"),
        ("+", "/finance"),
        ("#", "$SYS/monitor/Clients"),
        ("+/monitor/Clients", "$SYS/monitor/Clients"),
        ("+", "$SYS"),
        ("#", "$"),
        ("sport/#", "sports"),
        ("sport/+/#", "sport"),
        ("sport", "sport/tennis"),
        ("a/b", "a"),
    ],
)
def test_a_filter_does_not_match_as_the_document_says(topic_filter: str, name: str) -> None:
    assert filter_problem(topic_filter.encode()) is None
    assert not matches(topic_filter, name)


@pytest.mark.rule("MQTT-159")
def test_to_get_all_messages_a_client_needs_both_filters() -> None:
    assert [matches("#", name) or matches("$SYS/#", name) for name in ("a/b", "$SYS/a")] == [True, True]


@pytest.mark.rule("MQTT-156", "MQTT-158")
@pytest.mark.parametrize("text", ["sport/tennis#", "sport/tennis/#/ranking", "#/", "##", "a/##", "#a", "+#", "a#/b"])
def test_a_hash_that_is_not_the_whole_last_level_is_invalid(text: str) -> None:
    assert rule(filter_problem(text.encode())) == "MQTT-156"


@pytest.mark.rule("MQTT-157", "MQTT-158")
@pytest.mark.parametrize("text", ["sport+", "+sport", "a/b+/c", "++", "a/++", "+a/#"])
def test_a_plus_that_is_not_a_whole_level_is_invalid(text: str) -> None:
    assert rule(filter_problem(text.encode())) == "MQTT-157"


@pytest.mark.rule("MQTT-099", "MQTT-155")
@pytest.mark.parametrize("text", ["+", "#", "a/+", "a/#", "a+", "#a", "0123456+", "01234567#", "0123456789#"])
def test_a_topic_name_has_no_wildcards_though_a_filter_may(text: str) -> None:
    raw = text.encode()
    assert rule(name_problem(raw)) == "MQTT-099"
    assert not plain_name(raw, 0, len(raw))


@pytest.mark.rule("MQTT-161")
def test_names_and_filters_have_at_least_one_character() -> None:
    assert rule(name_problem(b"")) == rule(filter_problem(b"")) == "MQTT-161"
    assert not plain_name(b"", 0, 0)
    assert name_problem(b" ") is None
    assert filter_problem(b" ") is None


@pytest.mark.rule("MQTT-004", "MQTT-162")
@pytest.mark.parametrize("text", ["\0", "a\0", "\0a", "0123456\0", "01234567\0"])
def test_names_and_filters_have_no_nul(text: str) -> None:
    raw = text.encode()
    assert rule(name_problem(raw)) == rule(filter_problem(raw)) == "MQTT-004"
    assert not plain_name(raw, 0, len(raw))


@pytest.mark.rule("MQTT-163")
def test_names_and_filters_have_at_most_65535_octets() -> None:
    assert name_problem(b"a" * 65535) is None
    assert filter_problem(b"a" * 65535) is None
    assert rule(name_problem(b"a" * 65536)) == "MQTT-163"
    assert rule(filter_problem(b"a" * 65536)) == "MQTT-163"


@pytest.mark.rule("MQTT-164", "MQTT-189")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ACCOUNTS", "Accounts"),
        ("/finance", "finance"),
        ("finance/", "finance"),
        ("/a", "a"),
        ("a//b", "a/b"),
        ("a b", "ab"),
        ("\u00e9", "e\u0301"),
        ("\ufeffa", "a"),
        ("/", "//"),
    ],
)
def test_names_that_differ_in_a_character_are_different(one: str, other: str) -> None:
    for text in (one, other):
        assert name_problem(text.encode()) is None
        assert matches(text, text)
    assert not matches(one, other)
    assert not matches(other, one)


@pytest.mark.rule("MQTT-164", "MQTT-189")
def test_a_slash_at_either_end_makes_an_empty_level() -> None:
    assert matches("+/a", "/a")
    assert matches("a/+", "a/")
    assert matches("+/+", "/")
    assert not matches("+", "/a")
    assert matches("Accounts payable", "Accounts payable")


@pytest.mark.rule("MQTT-003")
@pytest.mark.parametrize(
    "raw", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"a\xe2\x82", b"\xf4\x90\x80\x80"]
)
def test_ill_formed_utf8_is_no_string(raw: bytes) -> None:
    assert [rule(check(raw)) for check in (text_problem, name_problem, filter_problem)] == ["MQTT-003"] * 3
    assert not plain_name(raw, 0, len(raw))


@pytest.mark.rule("MQTT-190")
@pytest.mark.parametrize(
    ("topic_filter", "pattern"),
    [("a/+/b", "a/*/b"), ("a/#", "a/**"), ("#", "**"), ("+/+", "*/*"), ("a/b", "a/b"), ("/+", "/*"), ("/", "/")],
)
def test_wildcards_become_the_hubs(topic_filter: str, pattern: str) -> None:
    assert from_mqtt(topic_filter) == from_stars(pattern)
    assert to_stars(from_mqtt(topic_filter)) == pattern


@pytest.mark.rule("MQTT-191")
@pytest.mark.parametrize(
    ("topic_filter", "name", "matched"),
    [
        ("a/*", "a/*", True),
        ("a/*", "a/b", False),
        ("a/**", "a/b/c", False),
        ("*", "b", False),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/+", "$SYS/load", True),
    ],
)
def test_stars_are_no_wildcards_and_dollars_are_matched_by_name_only(
    topic_filter: str, name: str, *, matched: bool
) -> None:
    assert channels.matches(from_mqtt(topic_filter), name) is matched


@pytest.mark.rule("MQTT-190", "MQTT-191")
@given(filters, names)
def test_the_pattern_matches_what_the_filter_does(text: str, name: str) -> None:
    assert channels.matches(from_mqtt(text), name) == matches(text, name)


@given(st.binary(max_size=40) | st.text(st.characters(max_codepoint=127)).map(str.encode), st.binary(max_size=9))
def test_what_looks_plain_is_a_valid_name_wherever_it_stands(raw: bytes, before: bytes) -> None:
    plain = plain_name(before + raw + b"+", len(before), len(before) + len(raw))
    assert plain == (name_problem(raw) is None and raw.isascii())


@given(st.text("ab/", min_size=1, max_size=9), st.data())
def test_a_name_matches_a_filter_made_from_it(name: str, data: st.DataObject) -> None:
    levels = name.split("/")
    wild = [data.draw(st.sampled_from([level, "+"])) for level in levels]
    assert matches("/".join(wild), name)
    cut = data.draw(st.integers(0, len(levels)))
    assert matches("/".join([*wild[:cut], "#"]), name)


def test_a_plain_name_is_seen_whatever_its_length_and_letters() -> None:
    letters = bytes(octet for octet in range(1, 128) if octet not in b"+#")
    for length in range(1, 40):
        for start in range(0, len(letters) - length, 7):
            name = letters[start : start + length]
            assert plain_name(name, 0, length)
            for at in range(length):
                for bad in (0, 0x23, 0x2B, 0x80, 0xFF):
                    assert not plain_name(name[:at] + bytes((bad,)) + name[at + 1 :], 0, length)


@pytest.mark.rule("MQTT-100")
@given(filters, st.lists(st.sampled_from(["a", "b", "", ANY]), min_size=1, max_size=5))
def test_a_message_to_a_pattern_gets_a_name_the_filter_matches(topic_filter: str, levels: list[str]) -> None:
    channel = "/".join(levels)
    trie: Trie[str] = Trie()
    trie.add(from_mqtt(topic_filter), topic_filter)
    if channel and trie.find(channel):
        name = name_for(channel, from_mqtt(topic_filter))
        assert name == channel or ANY in channel
        assert not name or name.startswith("$") or matches(topic_filter, name)


def test_a_message_to_any_number_of_levels_gets_a_star_for_them() -> None:
    assert name_for(f"a/{REST}", f"a/{ANY}") == "a/*"
