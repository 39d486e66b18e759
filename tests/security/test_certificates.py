"""The name in a certificate, read from what a real TLS handshake tells."""

import datetime as dt
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polywire.security.certificates import CertificateError, CertificateNames
from tests.security.signing import ec_key, private_pem

CERTIFICATE = {
    "subject": ((("countryName", "AT"),), (("organizationName", "x"), ("commonName", "sensor-7"))),
    "subjectAltName": (
        ("DNS", "a.example.org"),
        ("DNS", "b.example.org"),
        ("email", "s@example.org"),
        ("URI", "urn:7"),
    ),
}


@pytest.mark.parametrize(("source", "name"), [("cn", "sensor-7"), ("email", "s@example.org"), ("uri", "urn:7")])
def test_the_name_is_taken_from_where_the_operator_says(source: str, name: str) -> None:
    assert CertificateNames(source).name(CERTIFICATE) == name


@pytest.mark.parametrize(
    "certificate",
    [
        {},
        {"subject": ()},
        {"subject": ((("organizationName", "x"),),)},
        {"subject": ((("commonName", "a"),), (("commonName", "b"),))},
        {"subject": ((("commonName", ""),),)},
        {"subject": ((("commonName", "a\0b"),),)},
        {"subject": ((("commonName", "x" * 300),),)},
        {"subject": 5},
        {"subject": (5, (5,), ((1, 2, 3),))},
    ],
)
def test_a_certificate_that_does_not_clearly_name_one_is_refused(certificate: Mapping[str, object]) -> None:
    with pytest.raises(CertificateError) as caught:
        CertificateNames().name(certificate)
    assert "certificate" in caught.value.reason


def test_two_alternative_names_of_the_kind_wanted_are_refused() -> None:
    with pytest.raises(CertificateError, match="2 names of kind dns"):
        CertificateNames("dns").name(CERTIFICATE)
    with pytest.raises(CertificateError, match="0 names of kind email"):
        CertificateNames("email").name({"subjectAltName": 5})


def test_a_source_nobody_knows_is_refused() -> None:
    with pytest.raises(CertificateError, match="one of cn, dns, email, uri, not 'serial'"):
        CertificateNames("serial")


def self_signed(path: Path, common_name: str) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(ec_key().public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hub.test")]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(ec_key(), hashes.SHA256())
    )
    path.write_bytes(private_pem(ec_key()) + made.public_bytes(Encoding.PEM))


def test_what_a_handshake_tells_of_the_peer_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "pem"
    self_signed(path, "sensor-7")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    server.verify_mode = ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(up, down, server_side=True)
    there = client.wrap_bio(down, up, server_hostname="hub.test")
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (there, here):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    certificate = here.getpeercert()
    assert certificate is not None
    assert CertificateNames().name(certificate) == "sensor-7"
    assert CertificateNames("dns").name(certificate) == "hub.test"
