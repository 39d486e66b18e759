"""What clients present, whom a certificate names, and which names can be."""

import datetime as dt
import json
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.access import fits_in_a_pattern
from polywire.security.credentials import (
    MAX_NAME,
    CertificateError,
    CertificateNames,
    Credentials,
    CredentialsError,
    group_name_problem,
    name_problem,
    read_hello,
    user_name_problem,
)
from tests.security.signing import ec_key, private_pem


@pytest.mark.parametrize(
    ("payload", "credentials"),
    [
        ("", Credentials()),
        (b"", Credentials()),
        ("{}", Credentials()),
        ('{"user": "anna", "password": "x"}', Credentials("anna", "x")),
        (b'{"user": "anna"}', Credentials("anna")),
        ('{"token": "t"}', Credentials(token="t")),
    ],
)
def test_a_hello_carries_a_user_with_password_or_a_token_or_nothing(
    payload: str | bytes, credentials: Credentials
) -> None:
    assert read_hello(payload) == credentials


def test_a_hello_goes_along_with_what_the_connection_brings() -> None:
    certificate = {"subject": ()}
    assert read_hello("", certificate=certificate, listener="x") == Credentials(certificate=certificate, listener="x")


@pytest.mark.parametrize(
    "payload",
    ["[]", "5", "x", '{"user": 5}', '{"user": null}', '{"name": "x"}', "[" * 100_000, b"\xff", '{"user": "a"'],
)
def test_any_other_hello_is_told_what_it_should_be(payload: str | bytes) -> None:
    with pytest.raises(CredentialsError, match="hello's payload"):
        read_hello(payload)


@given(
    st.one_of(
        st.text(), st.binary(), st.dictionaries(st.sampled_from(["user", "token", "x"]), st.text()).map(json.dumps)
    )
)
def test_any_payload_gives_credentials_or_the_documented_error(payload: str | bytes) -> None:
    try:
        assert isinstance(read_hello(payload), Credentials)
    except CredentialsError as error:
        assert error.problem  # noqa: PT017 - either outcome is fine


@pytest.mark.parametrize(
    ("credentials", "token"),
    [
        (Credentials(token="t"), "t"),
        (Credentials("anna", "x", "t"), "t"),
        (Credentials("", "t"), "t"),
        (Credentials("", b"t"), b"t"),
        (Credentials("token", "t"), "t"),
        (Credentials("token"), None),
        (Credentials("anna", "x"), None),
        (Credentials("", ""), None),
        (Credentials(), None),
    ],
)
def test_a_password_is_a_token_where_no_user_or_the_user_token_is_named(
    credentials: Credentials, token: str | bytes | None
) -> None:
    assert credentials.presented_token() == token


def test_secrets_do_not_show_when_credentials_are_printed() -> None:
    assert "hunter2" not in repr(Credentials("anna", "hunter2", "hunter2"))


@pytest.mark.parametrize("name", ["anna", "sensor-7", "anna@example.org", "Jürgen Ö", "x" * MAX_NAME, "a.b_c", "[red]"])
def test_ordinary_names_are_fine(name: str) -> None:
    assert user_name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\n", "a\0", "a/b", "*", "a+b", "#a", "a:b", "a,b", "$a", "token", "x" * (MAX_NAME + 1)]
)
def test_a_user_can_not_be_called_what_a_file_or_a_pattern_could_not_hold(name: str) -> None:
    assert user_name_problem(name) is not None


def test_a_name_proven_elsewhere_may_hold_more_but_nothing_invisible() -> None:
    assert name_problem("host/a+b") is None
    assert name_problem("a\u200b") is not None


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a\n"])
def test_a_group_can_not_be_called_what_a_file_could_not_hold(name: str) -> None:
    assert "group" in (group_name_problem(name) or "")


@given(st.text())
def test_every_user_of_a_file_fits_in_a_pattern(name: str) -> None:
    assert user_name_problem(name) is not None or fits_in_a_pattern(name)


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
