"""Tokens (JWT) as proof of who a client is, and the keys they are checked with.

Each key is bound to the algorithms it may be used for. That binding is what keeps a public key from ever being taken
for a shared secret: what a key *is* decides which algorithms count, and a token's own ``alg`` can only choose among
those. Signatures and times are checked by PyJWT, with one key and its algorithms. A token must say when it expires and
who it is for; a name that can't be a user's, or an algorithm that was not configured, makes it invalid.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from polywire.errors import PolywireError
from polywire.security.credentials import Identity, TokenError, group_name_problem, name_problem

SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512")
CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS: Final = (*SECRET_ALGORITHMS, *RSA_ALGORITHMS, *CURVES.values())

MAX_FILE: Final = 1 << 20
MIN_RSA_BITS: Final = 2048


class TokenKeyError(PolywireError):
    """A key file that can't be used. ``path`` is the file, ``problem`` what is wrong with it."""

    def __init__(self, problem: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, its id ("" where it has none) and the algorithms it is for."""

    id: str
    algorithms: tuple[str, ...]
    key: Any


def check_algorithms(algorithms: Iterable[str]) -> tuple[str, ...]:
    """The algorithms, if they are ones that can be configured."""
    wanted = tuple(algorithms)
    for name in wanted:
        if name not in ALGORITHMS:
            raise TokenKeyError(f"the algorithm {name!r} is none of {', '.join(ALGORITHMS)}")
    if not wanted:
        raise TokenKeyError(f"name at least one algorithm of {', '.join(ALGORITHMS)}")
    return wanted


def load_keys(path: Path, algorithms: Iterable[str]) -> list[TokenKey]:
    """The keys of a file: a JWKS, a public key or certificate in PEM, or, for HS algorithms only, a shared secret."""
    wanted = check_algorithms(algorithms)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenKeyError(f"can't be read: {error.strerror}", path=str(path)) from error
    if len(data) > MAX_FILE:
        raise TokenKeyError(f"the file has {len(data)} bytes, at most {MAX_FILE} are read", path=str(path))
    try:
        return parse_keys(data, wanted)
    except TokenKeyError as error:
        raise TokenKeyError(error.problem, path=str(path)) from error.__cause__


def parse_keys(data: bytes, algorithms: tuple[str, ...]) -> list[TokenKey]:
    """The keys of a file's bytes."""
    if data.lstrip().startswith(b"{"):
        return jwks_keys(data, algorithms)
    if b"-----BEGIN " in data:
        return [bound("", public_key(data), algorithms)]
    return [bound("", data.rstrip(b"\r\n"), algorithms)]


def public_key(data: bytes) -> Any:
    """The public key of a PEM file."""
    if b"PRIVATE KEY-----" in data:
        raise TokenKeyError("this is a private key, which only the issuer of tokens needs; use its public key")
    try:
        if b"-----BEGIN CERTIFICATE-----" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TokenKeyError("the PEM file holds neither a public key nor a certificate that can be read") from error


def jwks_keys(data: bytes, algorithms: tuple[str, ...]) -> list[TokenKey]:
    """The usable keys of a JWKS; those for other purposes or algorithms are left out."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenKeyError(f"the JWKS is not JSON: {error}") from error
    entries = document.get("keys", [document] if "kty" in document else None)
    if not isinstance(entries, list):
        raise TokenKeyError('a JWKS is an object with a list of "keys"')
    found: dict[str, TokenKey] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise TokenKeyError(f"key {number} of the JWKS is not an object")
        if entry.get("use", "sig") != "sig":
            continue
        key = jwk_key(entry, algorithms, f"key {number} of the JWKS")
        if key is None:
            continue
        if key.id in found:
            raise TokenKeyError(f"key {number} of the JWKS: the id {key.id!r} appears twice")
        found[key.id] = key
    if not found:
        raise TokenKeyError(f"the JWKS holds no key for {', '.join(algorithms)}")
    return list(found.values())


def jwk_key(entry: dict[str, Any], algorithms: tuple[str, ...], where: str) -> TokenKey | None:
    """One key of a JWKS, or None where it is for another algorithm than those wanted."""
    kid, alg = entry.get("kid", ""), entry.get("alg")
    if not isinstance(kid, str):
        raise TokenKeyError(f'{where}: "kid" is not a string')
    wanted = tuple(name for name in algorithms if alg in {None, name}) if isinstance(alg, str | None) else ()
    kind = entry.get("kty")
    if not wanted or not isinstance(kind, str) or kind not in {"RSA", "EC", "oct"}:
        return None
    try:
        key = jwt.PyJWK({name: value for name, value in entry.items() if name != "alg"}).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, AttributeError, KeyError) as error:
        raise TokenKeyError(f"{where} can't be read: {error}") from error
    if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise TokenKeyError(f"{where} is a private key, which only the issuer of tokens needs; use its public part")
    if not set(wanted) & set(fitting(key)):
        return None
    return bound(kid, key, wanted)


def fitting(key: Any) -> tuple[str, ...]:
    """The algorithms a key can be used for, by what it is."""
    if isinstance(key, bytes):
        return SECRET_ALGORITHMS
    if isinstance(key, rsa.RSAPublicKey):
        return RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return (CURVES[key.curve.name],)
    return ()


def bound(kid: str, key: Any, algorithms: tuple[str, ...]) -> TokenKey:
    """The key with those of the algorithms it can be used for, if it is strong enough for them."""
    usable = tuple(name for name in algorithms if name in fitting(key))
    if not usable:
        kind = "a shared secret" if isinstance(key, bytes) else "a public key"
        fits = ", ".join(fitting(key)) or "no supported algorithm"
        raise TokenKeyError(f"this is {kind} for {fits}, but the algorithms are {', '.join(algorithms)}")
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise TokenKeyError(f"the RSA key has {key.key_size} bits, at least {MIN_RSA_BITS} are needed")
    if isinstance(key, bytes):
        check_secret(key, usable)
    return TokenKey(kid, usable, key)


def check_secret(secret: bytes, algorithms: tuple[str, ...]) -> None:
    """Refuse a secret that is too short, or is a public key: anyone who has that key could sign tokens."""
    needed = max(int(name[2:]) // 8 for name in algorithms)
    if len(secret) < needed:
        raise TokenKeyError(f"the secret has {len(secret)} bytes, {algorithms[-1]} needs at least {needed}")
    try:
        jwt.get_algorithm_by_name(algorithms[0]).prepare_key(secret)
    except jwt.PyJWTError as error:
        raise TokenKeyError(f"this can't be a shared secret: {error}") from error


MAX_TOKEN: Final = 8192
"""In characters; a longer token is refused before anything is decoded."""
MAX_GROUPS: Final = 256


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
            raise TokenError("the token requires unknown extensions")
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
            raise TokenError(f"the token names no key, but there are {len(self._keys)}")
        if not isinstance(kid, str):
            raise TokenError("the token's key id is not a string")
        key = self._keys.get(kid) or self._keys.get("")
        if key is None:
            raise TokenError(f"the token names the key {kid!r}, which is unknown")
        return key

    def _name(self, claims: dict[str, Any]) -> str:
        name = claims[self._user_claim]
        problem = name_problem(name) if isinstance(name, str) else "a name must be a string"
        if problem is not None:
            raise TokenError(f"the claim {self._user_claim!r}: {problem}")
        return str(name)

    def _groups(self, claims: dict[str, Any]) -> Iterable[str]:
        groups = claims.get(self._groups_claim, [])
        if isinstance(groups, str):
            groups = groups.split()
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
            raise TokenError(f"the claim {self._groups_claim!r} is not a list of at most {MAX_GROUPS} groups")
        for group in groups:
            problem = group_name_problem(group) if isinstance(group, str) else "a group's name must be a string"
            if problem is not None:
                raise TokenError(f"the claim {self._groups_claim!r}: {problem}")
        return groups
