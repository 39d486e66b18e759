"""Who may come in and do what, made from the configuration: the authenticator and the access rules.

Making it reads files and can fail; using it can't. A reload makes a new one and swaps it in only when that worked.
"""

from dataclasses import dataclass

from polywire.errors import PolywireError
from polywire.hub.access import AccessRule, AccessRules, Identity
from polywire.security.authenticator import Authenticator, Throttle
from polywire.security.credentials import CertificateNames
from polywire.security.tokens import Tokens, load_keys
from polywire.security.users import load_users
from polywire.server.config import Config, ConfigError, Problem
from polywire.server.config.schema import Auth


@dataclass(frozen=True, slots=True)
class Admission:
    """``authenticator`` is None where anybody may come in; ``groups`` are those the configuration adds.

    ``session_time``: seconds after which every login ends, 0 for no limit.
    """

    authenticator: Authenticator | None
    rules: AccessRules
    groups: dict[str, tuple[str, ...]]
    session_time: float = 0.0

    def admitted(self, identity: Identity, now: float) -> Identity:
        """The identity of somebody who logged in now: with all its groups, and until its login ends."""
        return self._ending(self.with_groups(identity), now)

    def with_groups(self, identity: Identity) -> Identity:
        """The identity with the groups that the configuration gives its name."""
        more = [group for group, members in self.groups.items() if identity.name in members]
        if not more or not identity.name:
            return identity
        return Identity(identity.name, [*identity.groups, *more], identity.how, identity.expires)

    def _ending(self, identity: Identity, now: float) -> Identity:
        if not self.session_time:
            return identity
        end = now + self.session_time
        if identity.expires is not None and identity.expires <= end:
            return identity
        return Identity(identity.name, identity.groups, identity.how, end)


def make_admission(config: Config, throttle: Throttle | None = None) -> Admission:
    """What the configuration says of users and rules. ``throttle`` carries failed logins over a reload.

    A ``ConfigError`` names each file that can't be used.
    """
    rules = AccessRules(
        AccessRule(
            rule.actions,
            rule.channels,
            user=rule.user or "",
            group=rule.group or "",
            protocol=rule.protocol or "",
            deny=rule.effect == "deny",
        )
        for rule in config.access
    )
    if config.auth is None:
        return Admission(None, rules, {})
    authenticator = make_authenticator(config.auth, throttle)
    return Admission(authenticator, rules, dict(config.auth.groups), config.auth.session_time)


def make_authenticator(auth: Auth, throttle: Throttle | None = None) -> Authenticator:
    """What checks logins. A ``ConfigError`` names each file that can't be used."""
    problems: list[Problem] = []
    users = tokens = None
    if auth.users is not None:
        try:
            users = load_users(auth.users)
        except PolywireError as error:
            problems.append(Problem(str(error), "auth.users"))
    jwt = auth.jwt
    if jwt is not None and (path := jwt.key or jwt.jwks) is not None:
        try:
            tokens = Tokens(
                load_keys(path, jwt.algorithms),
                audience=jwt.audience,
                issuer=jwt.issuer,
                user_claim=jwt.user_claim,
                groups_claim=jwt.groups_claim,
                leeway=jwt.leeway,
            )
        except PolywireError as error:
            problems.append(Problem(str(error), "auth.jwt.key" if jwt.key is not None else "auth.jwt.jwks"))
    if problems:
        raise ConfigError(problems)
    wanted = auth.throttle
    return Authenticator(
        users=users,
        tokens=tokens,
        certificates=CertificateNames(auth.certificate_name) if auth.certificate else None,
        anonymous=auth.anonymous,
        throttle=throttle
        or Throttle(
            free=wanted.failures, first=wanted.first_wait, longest=wanted.longest_wait, forget=wanted.forget_time
        ),
    )
