"""Keys and tokens for tests, made once: RSA keys take their time."""

import base64
import functools
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = b"0123456789abcdef0123456789abcdef"


@functools.cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A private RSA key; other numbers give other keys."""
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key(curve: type[ec.EllipticCurve] = ec.SECP256R1, number: int = 0) -> ec.EllipticCurvePrivateKey:
    """A private key on a curve; other numbers give other keys."""
    del number
    return ec.generate_private_key(curve())


def public_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """The public key as PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """The public key as DER."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: object) -> dict[str, Any]:
    """The public key as a JWK."""
    if isinstance(key, rsa.RSAPrivateKey):
        return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), **more}
    return {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), **more}


def secret_jwk(secret: bytes = SECRET, **more: object) -> dict[str, Any]:
    """A shared secret as a JWK."""
    return {"kty": "oct", "k": base64.urlsafe_b64encode(secret).decode().rstrip("="), **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    """A JWKS of these keys."""
    return json.dumps({"keys": keys}).encode()


def claims(**more: object) -> dict[str, object]:
    """Claims of a good token; None takes one away."""
    made: dict[str, object] = {"sub": "anna", "exp": int(time.time()) + 3600, **more}
    return {name: value for name, value in made.items() if value is not None}


def signed(key: Any, algorithm: str, *, headers: dict[str, object] | None = None, **more: object) -> str:
    """A token."""
    return jwt.encode(claims(**more), key, algorithm, headers=headers)


def raw_token(header: object, payload: object, signature: bytes = b"") -> str:
    """A token put together by hand, as an attacker does."""
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
