"""Certificates and keys for tests, made on the spot."""

import datetime as dt
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm


def public_keys() -> str:
    """A JWKS with one public key, for ES256."""
    entry = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    return json.dumps({"keys": [{**entry, "kid": "test"}]})


class Authority:
    """A root that signs certificates, each written with its key into one PEM file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        builder = self._builder(self._name, self._key.public_key())
        root = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.root = folder / "root.pem"
        self.root.write_bytes(root.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> Path:
        """A certificate for ``name``, good for localhost, with its key in the same file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False
        )
        path = self._folder / f"{name}.pem"
        path.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
