"""Who may come in and do what, made from the configuration: the authenticator, the access rules, and the TLS context.

Making an ``Admission`` reads files and can fail; using it can't. A reload makes a new one and swaps it in only when it
is whole, and loads a new certificate into the same TLS context.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from polywire.errors import PolywireError
from polywire.hub.access import AccessRule, AccessRules, Identity
from polywire.security.authenticator import Authenticator, Throttle
from polywire.security.credentials import CertificateNames
from polywire.security.users import load_users
from polywire.server.config.schema import Auth, Config, Tls
from polywire.server.config.text import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Admission:
    """``authenticator`` is None if no login is required; ``groups`` are those the configuration adds.

    ``session_time``: seconds after which every login ends, 0 for no limit.
    """

    authenticator: Authenticator | None
    rules: AccessRules
    groups: dict[str, tuple[str, ...]]
    session_time: float = 0.0

    def admitted(self, identity: Identity, now: float) -> Identity:
        """The identity of a client that logs in now: with all its groups, and the time its login expires."""
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
        from polywire.security.tokens import Tokens, load_keys  # noqa: PLC0415 - slow to import, and few hubs need it

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


VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def make_context(tls: Tls) -> ssl.SSLContext:
    """A server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, tls)
    return context


def load_certificates(context: ssl.SSLContext, tls: Tls) -> None:
    """Use these files from the next handshake on. A ``ConfigError`` says what is wrong with each of them."""
    problems = []
    try:
        # A key with a passphrase fails: without this OpenSSL would ask for it on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
    except (OSError, ValueError) as error:
        problems.append(_chain_problem(tls, error))
    context.minimum_version = VERSIONS[tls.minimum_version]
    if tls.client_ca is not None:
        reason = _certificates_problem(tls.client_ca)
        if reason:
            problems.append(Problem(f"{tls.client_ca}: {reason}", "tls.client_ca"))
        else:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
    if problems:
        raise ConfigError(problems)


def _chain_problem(tls: Tls, error: OSError | ValueError) -> Problem:
    """Which of the two files is to blame, and why."""
    reason = _certificates_problem(tls.certificate)
    if reason:
        return Problem(f"{tls.certificate}: {reason}", "tls.certificate")
    key, name = (tls.certificate, "tls.certificate") if tls.key is None else (tls.key, "tls.key")
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return Problem(f"{key}: this key does not belong to the certificate {tls.certificate}", name)
    try:
        text = key.read_bytes()
    except OSError as unread:
        return Problem(f"{key}: can't be read: {unread.strerror}", name)
    if b"PRIVATE KEY-----" not in text:
        missing = "; write tls.key if it is in another file" if tls.key is None else ""
        return Problem(f"{key}: there is no private key in PEM format in this file{missing}", name)
    if b"ENCRYPTED" in text:
        return Problem(f"{key}: the private key has a passphrase; remove it with 'openssl pkey'", name)
    return Problem(f"{key}: the private key can't be loaded: {_words(error)}", name)


def _certificates_problem(path: Path) -> str:
    """What is wrong with a file of certificates; empty where it can be loaded."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError as error:
        return f"there is no certificate in PEM format in this file ({_words(error)})"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return ""


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
