"""Keys for tokens: what a key is decides what it may be used for."""

import datetime as dt
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from polywire.security import keys as keys_module
from polywire.security.keys import ALGORITHMS, TokenKeyError, check_algorithms, load_keys, parse_keys
from tests.security.signing import (
    SECRET,
    ec_key,
    jwks,
    private_pem,
    public_der,
    public_jwk,
    public_pem,
    rsa_key,
    secret_jwk,
)


def certificate_pem() -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(ec_key().public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=1))
        .sign(ec_key(), hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def test_a_key_is_bound_to_the_algorithms_it_is_for() -> None:
    assert parse_keys(SECRET, ("HS256",))[0].algorithms == ("HS256",)
    assert parse_keys(public_pem(rsa_key()), ALGORITHMS)[0].algorithms == ("RS256", "RS384", "RS512")
    assert parse_keys(public_pem(ec_key()), ALGORITHMS)[0].algorithms == ("ES256",)
    assert parse_keys(public_pem(ec_key(ec.SECP384R1)), ALGORITHMS)[0].algorithms == ("ES384",)
    assert parse_keys(certificate_pem(), ("ES256", "HS256"))[0].algorithms == ("ES256",)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_is_never_taken_for_a_secret(algorithm: str) -> None:
    files = [
        public_pem(rsa_key()),
        b"\n  " + public_pem(ec_key()),
        public_der(rsa_key()),
        certificate_pem(),
        b"ssh-rsa " + b"A" * 200,
        jwks(public_jwk(rsa_key(), kid="a", alg=algorithm)),
        jwks(public_jwk(rsa_key(), kid="a")),
        json.dumps(public_jwk(rsa_key())).encode(),
        json.dumps([public_jwk(rsa_key())]).encode(),
    ]
    for data in files:
        with pytest.raises(TokenKeyError):
            parse_keys(data, (algorithm,))


def test_a_secret_is_never_taken_for_a_public_key() -> None:
    for data in (SECRET, jwks(secret_jwk(kid="a"))):
        with pytest.raises(TokenKeyError):
            parse_keys(data, ("RS256", "ES256"))


def test_weak_keys_are_refused() -> None:
    with pytest.raises(TokenKeyError, match="at least 32"):
        parse_keys(SECRET[1:], ("HS256",))
    with pytest.raises(TokenKeyError, match="HS512 needs at least 64"):
        parse_keys(SECRET, ("HS256", "HS512"))
    with pytest.raises(TokenKeyError, match="1024 bits"):
        parse_keys(public_pem(rsa_key(bits=1024)), ("RS256",))
    with pytest.raises(TokenKeyError, match="at least 32"):
        parse_keys(jwks(secret_jwk(b"short", kid="a")), ("HS256",))


def test_private_keys_are_refused_with_what_to_give_instead() -> None:
    with pytest.raises(TokenKeyError, match="give its public key"):
        parse_keys(private_pem(rsa_key()), ("RS256",))
    private = json.loads(ECAlgorithm.to_jwk(ec_key()))
    with pytest.raises(TokenKeyError, match="give its public part"):
        parse_keys(jwks(private), ("ES256",))


def test_line_ends_after_a_secret_do_not_count() -> None:
    assert parse_keys(SECRET + b"\r\n", ("HS256",))[0].key == SECRET


@pytest.mark.parametrize("name", ["none", "None", "", "hs256", "EdDSA", "HS1"])
def test_an_algorithm_that_can_not_be_configured_is_refused(name: str) -> None:
    with pytest.raises(TokenKeyError, match="is none of HS256"):
        check_algorithms(["RS256", name])


def test_no_algorithm_at_all_is_refused() -> None:
    with pytest.raises(TokenKeyError, match="at least one"):
        check_algorithms([])


def test_a_jwks_gives_the_keys_for_our_purpose_by_their_ids() -> None:
    data = jwks(
        public_jwk(rsa_key(), kid="r"),
        public_jwk(ec_key(), kid="e", alg="ES256", use="sig"),
        public_jwk(rsa_key(1), kid="enc", use="enc"),
        public_jwk(rsa_key(1), kid="other", alg="RS512"),
        public_jwk(ec_key(ec.SECP384R1), kid="curve"),
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "okp"},
    )
    found = {key.id: key.algorithms for key in parse_keys(data, ("RS256", "ES256"))}
    assert found == {"r": ("RS256",), "e": ("ES256",)}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"{}", 'list of "keys"'),
        (b'{"keys": 5}', 'list of "keys"'),
        (b'{"keys": [5]}', "key 1 of the JWKS is not an object"),
        (b'{"keys": []}', "no key for RS256"),
        (b'{"keys": [{"kty": "RSA", "n": "x"}]}', "key 1 of the JWKS can't be read"),
        (b'{"keys": [{"kty": "RSA", "kid": 5}]}', '"kid" is not a text'),
        (b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----", "neither a public key"),
    ],
)
def test_a_file_that_holds_no_key_is_told(data: bytes, words: str) -> None:
    with pytest.raises(TokenKeyError) as caught:
        parse_keys(data, ("RS256",))
    assert words in caught.value.problem


def test_two_keys_with_one_id_are_refused() -> None:
    with pytest.raises(TokenKeyError, match="key 2 of the JWKS: the id 'a' is there twice"):
        parse_keys(jwks(public_jwk(rsa_key(), kid="a"), public_jwk(rsa_key(1), kid="a")), ("RS256",))


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    with pytest.raises(TokenKeyError, match="No such file") as caught:
        load_keys(path, ["HS256"])
    assert caught.value.path == str(path)
    path.write_bytes(b"short")
    with pytest.raises(TokenKeyError) as caught:
        load_keys(path, ["HS256"])
    assert str(caught.value).startswith(f"{path}: the secret has 5 octets")
    monkeypatch.setattr(keys_module, "MAX_FILE", 4)
    with pytest.raises(TokenKeyError, match="at most 4"):
        load_keys(path, ["HS256"])


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(["RSA", "EC", "oct", "sig", "P-256"])
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
entries = st.dictionaries(st.sampled_from(["kty", "kid", "alg", "use", "n", "e", "k", "crv", "x", "y", "d"]), values)


@given(
    st.one_of(
        st.binary(),
        st.binary().map(lambda body: b"-----BEGIN PUBLIC KEY-----\n" + body),
        st.lists(entries, max_size=3).map(lambda keys: json.dumps({"keys": keys}).encode()),
    )
)
def test_any_octets_give_keys_or_the_documented_error(data: bytes) -> None:
    try:
        found = parse_keys(data, ALGORITHMS)
    except TokenKeyError as error:
        assert error.problem  # noqa: PT017 - either outcome is fine
        return
    assert all(key.algorithms for key in found)
