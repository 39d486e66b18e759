"""What a client may do.

A login gives an ``Identity``. ``AccessRules`` are what the operator wrote; at a login they are boiled down to
that client's ``Grants`` for its protocol, which a session asks before it publishes, subscribes, calls, serves or
signals. Clients whose rights are equal share one ``Grants``, so what is cached per grants is shared too.

Without any rule everything is allowed. With one, everything is denied that no rule allows, and a rule that denies wins
over every rule that allows. A pattern (a subscription, or FMQP's publications with ``*``) is allowed where one rule's
pattern covers all of it, and denied where it shares as much as one name with a rule that denies.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import mypyc_attr

from polywire.errors import PolywireError
from polywire.hub.channels import ANY, REST, covers, from_stars, name_problem
from polywire.hub.trie import Trie
from polywire.security.credentials import ANONYMOUS, Identity

__all__ = [
    "ACTIONS",
    "ANONYMOUS",
    "CALL",
    "EVERYTHING",
    "NOTHING",
    "PUBLISH",
    "SERVE",
    "SIGNAL",
    "SUBSCRIBE",
    "AccessRule",
    "AccessRuleError",
    "AccessRules",
    "Grants",
    "Identity",
    "fits_in_a_pattern",
    "pattern_problem",
]

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
CALL: Final = "call"
SERVE: Final = "serve"
SIGNAL: Final = "signal"
ACTIONS: Final = (PUBLISH, SUBSCRIBE, CALL, SERVE, SIGNAL)

USER: Final = "{user}"
SHARED_GRANTS: Final = 4096
"""How many different sets of rights are kept for sharing; clients beyond them get grants of their own."""


class AccessRuleError(PolywireError):
    """A rule that can't be one. ``field`` names the part of the rule, ``problem`` says what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@final
@mypyc_attr(acyclic=True)
class AccessRule:
    """One rule: who (``user``, or ``group``, or everybody with neither), on which protocol ("" for any), may do what.

    ``channels`` are patterns with ``*`` for one level, a last ``**`` for any number of them, and ``{user}`` for the
    client's own name. For ``call`` and ``serve`` they are names of services.
    """

    def __init__(
        self,
        actions: Iterable[str],
        channels: Iterable[str],
        *,
        user: str = "",
        group: str = "",
        protocol: str = "",
        deny: bool = False,
    ) -> None:
        self.actions: Final = tuple(actions)
        self.channels: Final = tuple(channels)
        self.user: Final = user
        self.group: Final = group
        self.protocol: Final = protocol
        self.deny: Final = deny
        if user and group:
            raise AccessRuleError("group", "a rule is for a user or for a group; write two rules")
        if not self.actions:
            raise AccessRuleError("actions", f"a rule needs at least one of {', '.join(ACTIONS)}")
        for action in self.actions:
            if action not in ACTIONS:
                raise AccessRuleError("actions", f"{action!r} is none of {', '.join(ACTIONS)}")
        if not self.channels:
            raise AccessRuleError("channels", "a rule needs at least one pattern; '**' is every channel")
        for channel in self.channels:
            problem = pattern_problem(channel)
            if problem is not None:
                raise AccessRuleError("channels", f"{channel!r}: {problem}")

    def concerns(self, identity: Identity, protocol: str) -> bool:
        """Whether the rule is about this client."""
        if self.protocol and self.protocol != protocol:
            return False
        if self.user:
            return self.user == identity.name
        return not self.group or self.group in identity.groups

    def patterns(self, name: str) -> list[str]:
        """The rule's patterns for the user of this name, as the hub writes them."""
        found = []
        for channel in self.channels:
            pattern = from_stars(channel)
            if USER not in pattern:
                found.append(pattern)
            elif fits_in_a_pattern(name):
                found.append(pattern.replace(USER, name))
            elif self.deny and name:
                # No name may slip through a denial by being odd: deny all that the pattern could have meant.
                found.append("/".join([*pattern[: pattern.index(USER)].split("/")[:-1], REST]))
        return found

    def __repr__(self) -> str:
        who = f"user {self.user!r}" if self.user else f"group {self.group!r}" if self.group else "everybody"
        what = f"{'deny' if self.deny else 'allow'} {','.join(self.actions)}"
        return f"AccessRule({who}, {self.protocol or 'any protocol'}, {what}, {list(self.channels)!r})"


def pattern_problem(pattern: str) -> str | None:
    """Why ``pattern`` is not allowed in a rule, or None if it is."""
    problem = name_problem(pattern)
    if problem is not None:
        return problem
    levels = pattern.split("/")
    if "**" in levels[:-1]:
        return "'**' is only allowed at the end; '*' is one level"
    for level in levels:
        if level not in {"*", "**"} and "*" in level:
            return f"'*' is a whole level, {level!r} has it inside"
        if level in {"+", "#"}:
            return "a rule writes '*' for MQTT's '+', and '**' for its '#'"
        inside = level.replace(USER, "")
        if "{" in inside or "}" in inside:
            return f"{USER} is the only placeholder"
    return None


def fits_in_a_pattern(name: str) -> bool:
    """Whether a user's name may replace ``{user}``: it is one level and contains no wildcard of any protocol."""
    if not name or name.startswith("$"):
        return False
    for character in name:
        if character in "/*+#\0":
            return False
    return True


@final
class Grants:
    """What one client may do. Equal ``key``, equal rights: what is cached for one client serves the other.

    Channels and patterns are the hub's (``polywire.hub.channels``), with ``ANY`` and ``REST`` for wildcards.
    """

    def __init__(self, key: tuple[tuple[bool, str, str], ...], *, everything: bool = False) -> None:
        self.key: Final = key
        self.everything: Final = everything
        self._allowed: Final[dict[str, Trie[str]]] = {action: Trie() for action in ACTIONS}
        self._denied: Final[dict[str, Trie[str]]] = {action: Trie() for action in ACTIONS}
        for deny, action, pattern in key:
            (self._denied if deny else self._allowed)[action].add(pattern, pattern)

    def may_publish(self, channel: str) -> bool:
        """Whether the client may publish to the channel, or to every channel of a pattern."""
        return self.everything or self._allows(PUBLISH, channel)

    def may_subscribe(self, pattern: str, *, dollar: bool = True) -> bool:
        """Whether the client may subscribe to the pattern. ``dollar``: as in ``Subscription``."""
        return self.everything or self._allows(SUBSCRIBE, pattern, dollar=dollar)

    def may_call(self, service: str) -> bool:
        """Whether the client may call the service."""
        return self.everything or self._allows(CALL, service)

    def may_serve(self, service: str) -> bool:
        """Whether the client may offer the service."""
        return self.everything or self._allows(SERVE, service)

    def may_signal(self, channel: str) -> bool:
        """Whether the client may use the hub's service topic."""
        return self.everything or self._allows(SIGNAL, channel)

    def may(self, action: str, channel: str) -> bool:
        """Whether the client may do this; the action is one of ``ACTIONS``."""
        return self.everything or self._allows(action, channel)

    def publish_tries(self) -> list[Trie[str]]:
        """Where ``may_publish`` looks a channel up."""
        return [] if self.everything else [self._allowed[PUBLISH], self._denied[PUBLISH]]

    def _allows(self, action: str, channel: str, *, dollar: bool = True) -> bool:
        for pattern in self._allowed[action].find(channel):
            if covers(pattern, channel):
                break
        else:
            return False
        for pattern in self._denied[action].find(channel):
            # A wildcard in front that does not reach names with "$" shares nothing with a pattern that begins so.
            if dollar or not (channel.startswith(ANY) and pattern.startswith("$")):
                return False
        return True


EVERYTHING: Final = Grants((), everything=True)
"""Rights without any rule: everything is allowed."""

NOTHING: Final = Grants(())
"""What a client may do whose login has been revoked."""


@final
class AccessRules:
    """All rules of a hub. Their order does not matter."""

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        self.rules: Final = tuple(rules)
        self._shared: Final[OrderedDict[tuple[tuple[bool, str, str], ...], Grants]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.rules)

    def grants(self, identity: Identity, protocol: str) -> Grants:
        """What this client may do by this protocol. Made once, at its login."""
        if not self.rules:
            return EVERYTHING
        held: set[tuple[bool, str, str]] = set()
        for rule in self.rules:
            if rule.concerns(identity, protocol):
                for pattern in rule.patterns(identity.name):
                    for action in rule.actions:
                        held.add((rule.deny, action, pattern))
        key = tuple(sorted(held))
        grants = self._shared.get(key)
        if grants is None:
            grants = Grants(key)
            if len(self._shared) >= SHARED_GRANTS:
                self._shared.popitem(last=False)
            self._shared[key] = grants
        return grants

    def allows(self, identity: Identity, protocol: str, action: str, channel: str) -> bool:
        """Whether this client may do this by this protocol; a session keeps its ``grants`` instead."""
        return self.grants(identity, protocol).may(action, channel)
