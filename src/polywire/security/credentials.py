"""What a client presents to prove who it is, in any protocol; who that makes it; and the names of users and groups.

A client's certificate has been verified by TLS before it comes here; this only reads who it was issued to, from what
``ssl.SSLObject.getpeercert()`` returns.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from polywire.errors import PolywireError

MAX_NAME: Final = 255
"""In characters: more than any name a person or a certificate authority gives."""

TOKEN_USER: Final = "token"  # noqa: S105 - a user's name, not a secret
"""The user name under which a password is a token; no user of a file is called so."""


def name_problem(name: str) -> str | None:
    """Why a client can't go by this name, however it is proven, or None where it can."""
    if not name:
        return "a name must not be empty"
    if len(name) > MAX_NAME:
        return f"a name has at most {MAX_NAME} characters, this one has {len(name)}"
    if not name.isprintable():
        return "a name must contain only printable characters"
    if name != name.strip():
        return "a name must not begin or end with a space"
    return None


def user_name_problem(name: str) -> str | None:
    """Why a user of a file can't have this name, or None where it can."""
    problem = name_problem(name)
    if problem is not None:
        return problem
    for character in name:
        if character in "/*+#:,":
            return f"a user's name has none of / * + # : , in it, {name!r} has {character!r}"
    if name.startswith("$"):
        return f"a user's name does not begin with '$', {name!r} does"
    if name == TOKEN_USER:
        return f"{TOKEN_USER!r} is reserved for clients that send a token as their password; choose another name"
    return None


def group_name_problem(name: str) -> str | None:
    """Why a group can't have this name, or None where it can."""
    problem = name_problem(name)
    if problem is not None:
        return problem.replace("a name", "a group's name")
    for character in name:
        if character in ":,":
            return f"a group's name has neither ':' nor ',' in it, {name!r} has"
    return None


@final
class Identity:
    """Who a client is: a user's name ("" where it did not say), its groups, and how that was found out.

    ``how`` is ``"anonymous"``, ``"password"``, ``"token"``, ``"certificate"`` or ``"listener"``. ``expires`` is when
    the proof ends, in seconds since 1970, or None where it does not.
    """

    __slots__ = ("expires", "groups", "how", "name")

    def __init__(
        self, name: str = "", groups: Iterable[str] = (), how: str = "anonymous", expires: float | None = None
    ) -> None:
        self.name: Final = name
        self.groups: Final = frozenset(groups)
        self.how: Final = how
        self.expires: Final = expires

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and self.name == other.name
            and self.groups == other.groups
            and self.how == other.how
            and self.expires == other.expires
        )

    def __hash__(self) -> int:
        return hash((self.name, self.groups, self.how, self.expires))

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {sorted(self.groups)!r}, {self.how!r}, {self.expires!r})"


ANONYMOUS: Final = Identity()


HELLO_KEYS: Final = frozenset({"user", "password", "token"})


class CredentialsError(PolywireError):
    """Credentials that can't be read. ``problem`` says why, and reveals nothing about users."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client presented. ``password`` None: none; ``listener``: the user of its listener, if any."""

    user: str = ""
    password: str | bytes | None = field(default=None, repr=False)
    token: str | bytes | None = field(default=None, repr=False)
    certificate: Mapping[str, object] | None = field(default=None, repr=False)
    listener: str = ""

    def presented_token(self) -> str | bytes | None:
        """The token: as such, or as the password of no user or of the user ``token``."""
        if self.token is not None:
            return self.token
        if self.user == TOKEN_USER:
            return self.password
        return None if self.user else self.password or None


def read_hello(
    payload: str | bytes, *, certificate: Mapping[str, object] | None = None, listener: str = ""
) -> Credentials:
    """The credentials of a UMQ hello: ``{"user": …, "password": …}``, ``{"token": …}``, or nothing at all."""
    if not payload:
        return Credentials(certificate=certificate, listener=listener)
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        raise CredentialsError("the hello's payload is empty or a JSON object, this one is neither") from None
    if not isinstance(found, dict) or not set(found) <= HELLO_KEYS:
        raise CredentialsError('the hello\'s payload is an object with "user" and "password", or with "token"')
    for key, value in found.items():
        if not isinstance(value, str):
            raise CredentialsError(f'"{key}" in the hello\'s payload is not a string')
    return Credentials(found.get("user", ""), found.get("password"), found.get("token"), certificate, listener)


SOURCES: Final = {"cn": "", "dns": "DNS", "email": "email", "uri": "URI"}
"""Where the name can be: the subject's common name, or one kind of subject alternative name."""


class TokenError(PolywireError):
    """An invalid token. ``reason`` says why, for the log only; it is not sent to clients."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CertificateError(PolywireError):
    """A certificate without a usable name. ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """Which part of a certificate is the user's name: ``"cn"``, ``"dns"``, ``"email"`` or ``"uri"``."""

    source: str = "cn"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise CertificateError(f"a certificate's name is one of {', '.join(SOURCES)}, not {self.source!r}")

    def name(self, certificate: Mapping[str, object]) -> str:
        """The name, or a ``CertificateError`` where there is none, more than one, or one that can't be a name."""
        found = common_names(certificate) if self.source == "cn" else alternative_names(certificate, self.source)
        if len(found) != 1:
            raise CertificateError(f"the certificate has {len(found)} names of kind {self.source}, one is needed")
        problem = name_problem(found[0])
        if problem is not None:
            raise CertificateError(f"the certificate's name {found[0]!r}: {problem}")
        return found[0]


def common_names(certificate: Mapping[str, object]) -> list[str]:
    """The common names of the subject."""
    subject = certificate.get("subject", ())
    return (
        [
            value
            for part in subject
            if isinstance(part, tuple)
            for pair in part
            if isinstance(pair, tuple) and len(pair) == 2
            for key, value in [pair]
            if key == "commonName" and isinstance(value, str)
        ]
        if isinstance(subject, tuple)
        else []
    )


def alternative_names(certificate: Mapping[str, object], source: str) -> list[str]:
    """The subject alternative names of one kind."""
    names = certificate.get("subjectAltName", ())
    return (
        [
            pair[1]
            for pair in names
            if isinstance(pair, tuple) and len(pair) == 2 and pair[0] == SOURCES[source] and isinstance(pair[1], str)
        ]
        if isinstance(names, tuple)
        else []
    )
