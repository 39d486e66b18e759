"""Access rules: what they allow, what they deny, and what odd names can't do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub import access
from polywire.hub.access import (
    ACTIONS,
    ANONYMOUS,
    EVERYTHING,
    AccessRule,
    AccessRuleError,
    AccessRules,
    Grants,
    Identity,
)
from polywire.hub.channels import ANY, REST, covers, from_stars, is_literal, matches

ANNA = Identity("anna", ["staff"], "password")
SENSOR = Identity("s1", [], "certificate")
HOSTILE = ["", "a/b", "*", "**", "+", "#", "a*", "a+b", "a#", "\0", "\0\0", "x\0", "/", "$", "$x"]

levels = st.sampled_from(["a", "b", "", "$x", "s1", ANY])
patterns = st.builds(
    lambda parts, rest: "/".join(parts + [REST] * rest), st.lists(levels, min_size=1, max_size=4), st.booleans()
).filter(bool)
written = st.builds(
    lambda parts, rest: "/".join(parts + ["**"] * rest),
    st.lists(st.sampled_from(["a", "b", "", "$x", "*", "{user}"]), min_size=1, max_size=4),
    st.booleans(),
).filter(bool)
names = st.lists(st.sampled_from(["a", "b", "", "$x", "s1"]), min_size=1, max_size=5).map("/".join).filter(bool)
rule_sets = st.lists(
    st.builds(
        AccessRule,
        st.sets(st.sampled_from(ACTIONS), min_size=1),
        st.lists(written, min_size=1, max_size=3),
        group=st.sampled_from(["", "staff", "other"]),
        protocol=st.sampled_from(["", "mqtt", "umq"]),
        deny=st.booleans(),
    ),
    max_size=6,
)


def allowing(*channels: str, deny: tuple[str, ...] = ()) -> Grants:
    rules = [AccessRule(ACTIONS, channels)]
    if deny:
        rules.append(AccessRule(ACTIONS, deny, deny=True))
    return AccessRules(rules).grants(SENSOR, "mqtt")


def test_without_rules_everything_is_allowed_by_one_shared_object() -> None:
    grants = AccessRules().grants(ANONYMOUS, "fmqp")
    assert grants is EVERYTHING
    assert grants is AccessRules().grants(ANNA, "umq")
    assert grants.may_publish("a")
    assert grants.may_subscribe(REST)
    assert grants.may_call("a")
    assert grants.may_serve("a")
    assert grants.may_signal("$/signals/stop")
    assert AccessRules().allows(ANONYMOUS, "umq", "serve", "x")


def test_with_one_rule_everything_else_is_denied() -> None:
    rules = AccessRules([AccessRule(["publish"], ["sensors/{user}/**"], user="s1")])
    grants = rules.grants(SENSOR, "mqtt")
    assert grants.may_publish("sensors/s1")
    assert grants.may_publish("sensors/s1/a/b")
    assert not grants.may_publish("sensors/s2/a")
    assert not grants.may_publish("sensors")
    assert not grants.may_subscribe("sensors/s1/a")
    assert not grants.may_call("sensors/s1/a")
    assert not grants.may_serve("sensors/s1/a")
    assert not grants.may_signal("$/signals/stop")
    assert not rules.grants(ANNA, "mqtt").may_publish("sensors/s1")
    assert not rules.grants(ANONYMOUS, "mqtt").may_publish("sensors/s1")


def test_a_rule_may_be_for_a_group_or_for_everybody_or_for_one_protocol() -> None:
    rules = AccessRules(
        [
            AccessRule(["publish"], ["staff/**"], group="staff"),
            AccessRule(["subscribe"], ["news/*"]),
            AccessRule(["call"], ["time"], protocol="umq"),
        ]
    )
    assert rules.allows(ANNA, "mqtt", "publish", "staff/x")
    assert not rules.allows(SENSOR, "mqtt", "publish", "staff/x")
    assert rules.allows(ANONYMOUS, "fmqp", "subscribe", "news/x")
    assert rules.allows(SENSOR, "umq", "call", "time")
    assert not rules.allows(SENSOR, "sabc", "call", "time")


def test_a_denial_wins_wherever_it_stands() -> None:
    allow, deny = AccessRule(["publish"], ["**"]), AccessRule(["publish"], ["a/**"], deny=True)
    for order in ([allow, deny], [deny, allow]):
        grants = AccessRules(order).grants(ANNA, "mqtt")
        assert grants.may_publish("b")
        assert not grants.may_publish("a")
        assert not grants.may_publish("a/b")


def test_a_subscription_is_allowed_only_where_one_pattern_covers_it() -> None:
    grants = allowing("a/*", "a/b/**", "c")
    assert grants.may_subscribe(from_stars("a/*"))
    assert grants.may_subscribe(from_stars("a/x"))
    assert grants.may_subscribe(from_stars("a/b/*/**"))
    assert grants.may_subscribe("c")
    assert not grants.may_subscribe(from_stars("a/**"))
    assert not grants.may_subscribe(from_stars("*"))
    assert not grants.may_subscribe(REST)


def test_a_subscription_that_could_reach_something_denied_is_refused() -> None:
    grants = allowing("**", deny=("secret/**",))
    assert grants.may_subscribe(from_stars("open/**"))
    assert not grants.may_subscribe(REST)
    assert not grants.may_subscribe(from_stars("*/x"))
    assert not grants.may_subscribe("secret/x")


def test_a_wildcard_that_does_not_reach_service_names_is_not_refused_for_their_sake() -> None:
    grants = allowing("**", deny=("$/**",))
    assert grants.may_subscribe(REST, dollar=False)
    assert not grants.may_subscribe(REST, dollar=True)
    assert not grants.may_subscribe("$/info/clients", dollar=False)


def test_a_publication_to_a_pattern_needs_all_of_it() -> None:
    grants = allowing("a/*", deny=("a/secret",))
    assert grants.may_publish("a/b")
    assert not grants.may_publish(f"a/{ANY}")
    assert allowing("a/*").may_publish(f"a/{ANY}")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_widens_a_pattern(name: str) -> None:
    rules = AccessRules([AccessRule(ACTIONS, ["sensors/{user}/**", "{user}"])])
    grants = rules.grants(Identity(name, [], "token"), "mqtt")
    assert grants.key == ()
    for channel in ("sensors/x", "sensors/a/b", "sensors//x", f"sensors/{name}/x", REST, ANY, name, "$"):
        assert not grants.may_publish(channel)
        assert not grants.may_subscribe(channel)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name])
def test_no_name_slips_through_a_denial(name: str) -> None:
    rules = AccessRules([AccessRule(ACTIONS, ["**"]), AccessRule(ACTIONS, ["own/x-{user}/config"], deny=True)])
    grants = rules.grants(Identity(name, [], "token"), "mqtt")
    assert not grants.may_publish(f"own/x-{name}/config")
    assert grants.may_publish("else/x")


def test_a_denial_by_name_does_not_concern_those_without_one() -> None:
    rules = AccessRules([AccessRule(ACTIONS, ["**"]), AccessRule(ACTIONS, ["own/{user}"], deny=True)])
    assert rules.allows(ANONYMOUS, "mqtt", "publish", "own/x")


def test_a_placeholder_in_a_name_stays_as_it_is() -> None:
    rules = AccessRules([AccessRule(ACTIONS, ["a/{user}"])])
    assert rules.allows(Identity("{user}", [], "token"), "mqtt", "publish", "a/{user}")


def test_clients_with_equal_rights_share_their_grants() -> None:
    rules = AccessRules([AccessRule(["publish"], ["a/**"], group="staff")])
    assert rules.grants(ANNA, "mqtt") is rules.grants(Identity("otto", ["staff"], "token"), "umq")
    assert rules.grants(ANNA, "mqtt") is not rules.grants(SENSOR, "mqtt")


def test_the_grants_kept_for_sharing_are_bounded() -> None:
    rules = AccessRules([AccessRule(["publish"], ["a/{user}"])])
    for number in range(access.SHARED_GRANTS + 10):
        rules.grants(Identity(f"u{number}", [], "token"), "mqtt")
    assert len(rules._shared) == access.SHARED_GRANTS
    assert rules.allows(Identity("u0", [], "token"), "mqtt", "publish", "a/u0")


@pytest.mark.parametrize(
    ("actions", "channels", "options", "field"),
    [
        ([], ["a"], {}, "actions"),
        (["read"], ["a"], {}, "actions"),
        (["publish"], [], {}, "channels"),
        (["publish"], [""], {}, "channels"),
        (["publish"], ["a/**/b"], {}, "channels"),
        (["publish"], ["a*"], {}, "channels"),
        (["publish"], ["a/+"], {}, "channels"),
        (["publish"], ["#"], {}, "channels"),
        (["publish"], ["a/{group}"], {}, "channels"),
        (["publish"], ["a\0"], {}, "channels"),
        (["publish"], ["a"], {"user": "x", "group": "y"}, "group"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(
    actions: list[str], channels: list[str], options: dict[str, str], field: str
) -> None:
    with pytest.raises(AccessRuleError) as caught:
        AccessRule(
            actions,
            channels,
            user=options.get("user", ""),
            group=options.get("group", ""),
            protocol=options.get("protocol", ""),
        )
    assert caught.value.field == field
    assert caught.value.problem in str(caught.value)


def test_identities_and_rules_are_values_that_can_be_read() -> None:
    assert Identity("a", ["x"], "token", 5.0) == Identity("a", ["x"], "token", 5.0)
    assert len({Identity("a"), Identity("a"), ANONYMOUS}) == 2
    assert repr(Identity("a", ["y", "x"], "token")) == "Identity('a', ['x', 'y'], 'token', None)"
    assert repr(AccessRule(["call"], ["a"], group="g", deny=True)) == (
        "AccessRule(group 'g', any protocol, deny call, ['a'])"
    )


@given(rule_sets, st.sampled_from([ANNA, SENSOR, ANONYMOUS]), st.sampled_from(ACTIONS), names)
def test_a_name_is_allowed_by_the_union_of_allowing_rules_less_the_denying(
    rules: list[AccessRule], identity: Identity, action: str, name: str
) -> None:
    def touched(*, deny: bool) -> bool:
        return any(
            matches(from_stars(channel.replace("{user}", identity.name)), name, dollar=True)
            for rule in rules
            if rule.deny is deny and action in rule.actions and rule.concerns(identity, "mqtt")
            for channel in rule.channels
            if identity.name or "{user}" not in channel
        )

    expected = not rules or (touched(deny=False) and not touched(deny=True))
    assert AccessRules(rules).allows(identity, "mqtt", action, name) is expected


@given(rule_sets, st.sampled_from([ANNA, SENSOR, ANONYMOUS]), patterns, names)
def test_an_allowed_subscription_reaches_only_names_that_are_allowed_themselves(
    rules: list[AccessRule], identity: Identity, pattern: str, name: str
) -> None:
    grants = AccessRules(rules).grants(identity, "mqtt")
    if matches(pattern, name, dollar=True) and grants.may_subscribe(pattern):
        assert grants.may_subscribe(name)
    if is_literal(pattern) and rules:
        allowed = any(covers(each, pattern) for deny, action, each in grants.key if action == "subscribe" and not deny)
        denied = any(covers(each, pattern) for deny, action, each in grants.key if action == "subscribe" and deny)
        assert grants.may_subscribe(pattern) is (allowed and not denied)


@given(rule_sets, st.sampled_from([ANNA, SENSOR, ANONYMOUS]), patterns)
def test_a_denial_more_never_allows_more(rules: list[AccessRule], identity: Identity, pattern: str) -> None:
    denying = AccessRules([*rules, AccessRule(ACTIONS, ["a/**"], deny=True)])
    if denying.grants(identity, "mqtt").may_subscribe(pattern):
        assert AccessRules(rules).grants(identity, "mqtt").may_subscribe(pattern)
        assert not matches(pattern, "a/b", dollar=True)


@given(st.text(), rule_sets, patterns)
def test_a_name_gives_no_more_than_a_wildcard_in_its_place(name: str, rules: list[AccessRule], pattern: str) -> None:
    wide = [
        AccessRule(
            rule.actions,
            [channel.replace("{user}", "*") for channel in rule.channels],
            group=rule.group,
            protocol=rule.protocol,
        )
        for rule in rules
        if not rule.deny
    ]
    identity = Identity(name, ["staff"], "token")
    if rules and AccessRules(rules).grants(identity, "mqtt").may_subscribe(pattern):
        assert AccessRules(wide).grants(identity, "mqtt").may_subscribe(pattern)
