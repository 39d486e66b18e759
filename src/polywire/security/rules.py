"""Access rules as the operator writes them: the ``[[access]]`` tables of the configuration."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from polywire.hub.access import AccessRule, AccessRuleError, AccessRules

KEYS: Final = ("user", "group", "protocol", "actions", "channels", "effect")


def read_rules(tables: Sequence[Mapping[str, object]], *, protocols: Collection[str] = ()) -> AccessRules:
    """The rules of the tables, or an ``AccessRuleError`` whose field begins with the table, as in ``access[2].user``.

    Tables count from 1. A protocol must be one of ``protocols``, unless that is empty: a rule for a protocol that does
    not exist would silently never deny.
    """
    rules = []
    for number, table in enumerate(tables, 1):
        try:
            rules.append(read_rule(table, protocols=protocols))
        except AccessRuleError as error:
            raise AccessRuleError(f"access[{number}].{error.field}", error.problem) from None
    return AccessRules(rules)


def read_rule(table: Mapping[str, object], *, protocols: Collection[str] = ()) -> AccessRule:
    """The rule of one table."""
    for key in table:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            raise AccessRuleError(key, f"no such key; did you mean {near[0]!r}?" if near else f"not of {list(KEYS)}")
    effect = read_text(table, "effect")
    if effect not in {"", "allow", "deny"}:
        raise AccessRuleError("effect", f"{effect!r} is neither 'allow' nor 'deny'")
    protocol = read_text(table, "protocol")
    if protocol and protocols and protocol not in protocols:
        raise AccessRuleError("protocol", f"{protocol!r} is none of {', '.join(sorted(protocols))}")
    return AccessRule(
        read_texts(table, "actions"),
        read_texts(table, "channels"),
        user=read_text(table, "user"),
        group=read_text(table, "group"),
        protocol=protocol,
        deny=effect == "deny",
    )


def read_text(table: Mapping[str, object], key: str) -> str:
    """An optional text; empty where it is missing, never where it was written."""
    if key not in table:
        return ""
    value = table[key]
    if not isinstance(value, str) or not value:
        # An empty user would mean everybody, which nobody writes by leaving the quotes empty.
        raise AccessRuleError(key, f"a text that is not empty is expected, not {value!r}; leave the key out for any")
    return value


def read_texts(table: Mapping[str, object], key: str) -> list[str]:
    """A list of texts."""
    value = table.get(key)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AccessRuleError(key, f"a list of texts is expected, not {value!r}")
    return value
