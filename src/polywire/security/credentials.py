"""What a client presents to prove who it is, whatever protocol it speaks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polywire.errors import PolywireError
from polywire.security.names import TOKEN_USER

HELLO_KEYS: Final = frozenset({"user", "password", "token"})


class CredentialsError(PolywireError):
    """Credentials that can't be read. ``problem`` says why; it tells nothing of any user."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client presented. ``password`` None: none; ``listener``: the user its listener stands for, if any."""

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
            raise CredentialsError(f'"{key}" in the hello\'s payload is not a text')
    return Credentials(found.get("user", ""), found.get("password"), found.get("token"), certificate, listener)
