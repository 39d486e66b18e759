"""Access rules as they stand in the configuration."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.access import EVERYTHING, AccessRuleError, Identity
from polywire.security.rules import KEYS, read_rules

RULES = """
[[access]]
group = "sensors"
protocol = "mqtt"
actions = ["publish"]
channels = ["sensors/{user}/**"]

[[access]]
user = "anna"
actions = ["publish", "subscribe"]
channels = ["**"]

[[access]]
actions = ["subscribe"]
channels = ["secret/**"]
effect = "deny"
"""


def test_tables_become_rules() -> None:
    rules = read_rules(tomllib.loads(RULES)["access"], protocols=["mqtt", "umq"])
    assert len(rules) == 3
    sensor, anna = Identity("s1", ["sensors"], "password"), Identity("anna", [], "password")
    assert rules.allows(sensor, "mqtt", "publish", "sensors/s1/x")
    assert not rules.allows(sensor, "umq", "publish", "sensors/s1/x")
    assert rules.allows(anna, "umq", "publish", "secret/x")
    assert not rules.allows(anna, "umq", "subscribe", "secret/x")


def test_no_table_is_no_rule() -> None:
    assert read_rules([]).grants(Identity(), "mqtt") is EVERYTHING


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"usr": "anna"}, "access[2].usr", "did you mean 'user'"),
        ({"zzz": 1}, "access[2].zzz", "not of"),
        ({"user": ""}, "access[2].user", "leave the key out"),
        ({"user": 5}, "access[2].user", "a text"),
        ({"group": "g", "user": "u"}, "access[2].group", "two rules"),
        ({"protocol": "mqqt"}, "access[2].protocol", "none of mqtt, umq"),
        ({"actions": "publish"}, "access[2].actions", "list of texts"),
        ({"actions": []}, "access[2].actions", "at least one"),
        ({"channels": ["a/#"]}, "access[2].channels", "'**' for its '#'"),
        ({"channels": None}, "access[2].channels", "list of texts"),
        ({"effect": "refuse"}, "access[2].effect", "neither"),
        ({"effect": []}, "access[2].effect", "a text"),
    ],
)
def test_a_mistake_is_told_with_its_table_and_key(change: dict[str, object], field: str, words: str) -> None:
    good: dict[str, object] = {"actions": ["publish"], "channels": ["a"]}
    with pytest.raises(AccessRuleError) as caught:
        read_rules([good, {**good, **change}], protocols=["umq", "mqtt"])
    assert caught.value.field == field
    assert words in caught.value.problem


values = st.one_of(
    st.text(),
    st.integers(),
    st.lists(st.one_of(st.text(), st.sampled_from(["publish", "**", "{user}"]), st.integers())),
)


@given(st.lists(st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text()), values), max_size=3))
def test_any_tables_give_rules_or_the_documented_error(tables: list[dict[str, object]]) -> None:
    try:
        rules = read_rules(tables)
    except AccessRuleError as error:
        assert error.field.startswith("access[")  # noqa: PT017 - either outcome is fine
        return
    assert len(rules) == len(tables)
