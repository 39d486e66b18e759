"""Tokens (JWT) as proof of who a client is.

Signatures and times are checked by PyJWT, with one key and the algorithms that key is bound to. A token must say when
it expires and who it is for; a name that can't be a user's, or an algorithm that was not configured, makes it invalid.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import jwt

from polywire.errors import PolywireError
from polywire.hub.access import Identity
from polywire.security.keys import TokenKey, TokenKeyError
from polywire.security.names import group_name_problem, name_problem

MAX_TOKEN: Final = 8192
"""In characters; a longer token is refused before anything is decoded."""
MAX_GROUPS: Final = 256


class TokenError(PolywireError):
    """A token that proves nothing. ``reason`` says why, for the log: clients are not told."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tokens:
    """Checks tokens against keys.

    ``audience`` and ``issuer``, where given, must be in the token; a token made for an audience is refused where none
    is configured. The user's name is in ``user_claim``, groups, if any, in ``groups_claim``: a list of texts, or one
    text with spaces between them. ``leeway`` are the seconds clocks may differ by.
    """

    def __init__(
        self,
        keys: Sequence[TokenKey],
        *,
        audience: str | None = None,
        issuer: str | None = None,
        user_claim: str = "sub",
        groups_claim: str = "groups",
        leeway: float = 0.0,
    ) -> None:
        if not keys:
            raise TokenKeyError("tokens can't be checked without a key")
        self._keys: Final = {key.id: key for key in keys}
        self._audience: Final = audience
        self._issuer: Final = issuer
        self._user_claim: Final = user_claim
        self._groups_claim: Final = groups_claim
        self._leeway: Final = leeway

    def verify(self, token: str | bytes) -> Identity:
        """Who the token is for, or a ``TokenError``."""
        if len(token) > MAX_TOKEN:
            raise TokenError(f"the token has {len(token)} characters, at most {MAX_TOKEN} are allowed")
        try:
            claims = self._claims(token)
            expires = float(claims["exp"]) + self._leeway  # as long as the token would be taken
        except jwt.PyJWTError as error:
            raise TokenError(f"{type(error).__name__}: {error}") from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            # What the libraries below let through on input made to upset them.
            raise TokenError(f"the token can't be read: {type(error).__name__}") from error
        return Identity(self._name(claims), self._groups(claims), "token", expires)

    def _claims(self, token: str | bytes) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        if "crit" in header or "b64" in header:
            raise TokenError("the token demands extensions that are not known here")
        key = self._key(header.get("kid"))
        return jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            audience=self._audience,
            issuer=self._issuer,
            leeway=self._leeway,
            options={"require": ["exp", self._user_claim]},
        )

    def _key(self, kid: object) -> TokenKey:
        if kid is None:
            if len(self._keys) == 1:
                return next(iter(self._keys.values()))
            raise TokenError(f"the token names no key, and there are {len(self._keys)}")
        if not isinstance(kid, str):
            raise TokenError("the token's key id is not a text")
        key = self._keys.get(kid) or self._keys.get("")
        if key is None:
            raise TokenError(f"the token names the key {kid!r}, which is not known")
        return key

    def _name(self, claims: dict[str, Any]) -> str:
        name = claims[self._user_claim]
        problem = name_problem(name) if isinstance(name, str) else "a name is a text"
        if problem is not None:
            raise TokenError(f"the claim {self._user_claim!r}: {problem}")
        return str(name)

    def _groups(self, claims: dict[str, Any]) -> Iterable[str]:
        groups = claims.get(self._groups_claim, [])
        if isinstance(groups, str):
            groups = groups.split()
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
            raise TokenError(f"the claim {self._groups_claim!r} is no list of at most {MAX_GROUPS} groups")
        for group in groups:
            problem = group_name_problem(group) if isinstance(group, str) else "a group's name is a text"
            if problem is not None:
                raise TokenError(f"the claim {self._groups_claim!r}: {problem}")
        return groups
