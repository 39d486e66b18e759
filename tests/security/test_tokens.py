"""Tokens: the good ones tell who it is, all others are refused."""

import base64
import datetime as dt
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from polywire.hub.access import Identity
from polywire.security import tokens as tokens_module
from polywire.security.credentials import TokenError
from polywire.security.tokens import (
    ALGORITHMS,
    MAX_TOKEN,
    TokenKey,
    TokenKeyError,
    Tokens,
    check_algorithms,
    load_keys,
    parse_keys,
)
from tests.security.signing import (
    SECRET,
    claims,
    ec_key,
    jwks,
    private_pem,
    public_der,
    public_jwk,
    public_pem,
    raw_token,
    rsa_key,
    secret_jwk,
    signed,
)

HOUR = 3600


def by_secret(**options: Any) -> Tokens:
    return Tokens(parse_keys(SECRET, ("HS256",)), **options)


def by_rsa(*algorithms: str) -> Tokens:
    return Tokens(parse_keys(public_pem(rsa_key()), algorithms or ("RS256",)))


def refused(tokens: Tokens, token: str | bytes) -> str:
    with pytest.raises(TokenError) as caught:
        tokens.verify(token)
    return caught.value.reason


def test_a_good_token_tells_who_it_is_and_how_long() -> None:
    exp = int(time.time()) + HOUR
    assert by_secret().verify(signed(SECRET, "HS256", exp=exp, groups=["a", "b"])) == Identity(
        "anna", ["a", "b"], "token", float(exp)
    )
    assert by_secret().verify(signed(SECRET, "HS256").encode()).name == "anna"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(rsa_key(), "RS256"), (rsa_key(), "RS512"), (ec_key(), "ES256"), (ec_key(ec.SECP521R1), "ES512")],
)
def test_public_keys_check_what_private_keys_sign(key: Any, algorithm: str) -> None:
    tokens = Tokens(parse_keys(public_pem(key), (algorithm,)))
    assert tokens.verify(signed(key, algorithm)).name == "anna"


def test_claims_can_be_called_otherwise_and_groups_be_one_text() -> None:
    tokens = by_secret(user_claim="email", groups_claim="roles")
    identity = tokens.verify(signed(SECRET, "HS256", email="a@b", roles="x  y"))
    assert (identity.name, sorted(identity.groups)) == ("a@b", ["x", "y"])
    assert "MissingRequiredClaim" in refused(tokens, signed(SECRET, "HS256"))


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"exp": 1}, "Expired"),
        ({"exp": None}, "MissingRequiredClaim"),
        ({"exp": "soon"}, "DecodeError"),
        ({"nbf": int(time.time()) + HOUR}, "ImmatureSignature"),
        ({"iat": int(time.time()) + HOUR}, "ImmatureSignature"),
        ({"sub": None}, "MissingRequiredClaim"),
        ({"sub": ""}, "not be empty"),
        ({"sub": "a\0b"}, "printable"),
        ({"sub": "x" * 300}, "at most 255"),
        ({"aud": "elsewhere"}, "InvalidAudience"),
        ({"groups": 5}, "not a list"),
        ({"groups": [5]}, "must be a string"),
        ({"groups": ["a,b"]}, "neither ':' nor ','"),
        ({"groups": ["g"] * 257}, "at most 256"),
    ],
)
def test_claims_that_are_not_right_are_refused(more: dict[str, Any], cause: str) -> None:
    assert cause in refused(by_secret(), signed(SECRET, "HS256", **more))


def test_the_audience_and_the_issuer_must_be_ours_where_we_have_one() -> None:
    tokens = by_secret(audience="hub", issuer="us")
    assert tokens.verify(signed(SECRET, "HS256", aud=["x", "hub"], iss="us")).name == "anna"
    assert "InvalidAudience" in refused(tokens, signed(SECRET, "HS256", aud="x", iss="us"))
    assert "InvalidIssuer" in refused(tokens, signed(SECRET, "HS256", aud="hub", iss="them"))
    assert "MissingRequiredClaim" in refused(tokens, signed(SECRET, "HS256", iss="us"))
    assert "MissingRequiredClaim" in refused(tokens, signed(SECRET, "HS256", aud="hub"))


def test_clocks_may_differ_by_the_leeway() -> None:
    expired = int(time.time()) - 30
    late = signed(SECRET, "HS256", exp=expired)
    identity = by_secret(leeway=HOUR).verify(late)
    assert identity.name == "anna"
    assert identity.expires == expired + HOUR
    assert "Expired" in refused(by_secret(leeway=1), late)


def test_a_token_without_signature_is_refused() -> None:
    for name in ("none", "None", "NONE", ""):
        for signature in (b"", b"x"):
            refused(by_secret(), raw_token({"alg": name, "typ": "JWT"}, claims(), signature))
            refused(by_rsa(), raw_token({"alg": name, "typ": "JWT"}, claims(), signature))


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_used_as_a_secret_proves_nothing(algorithm: str) -> None:
    digest = getattr(hashlib, f"sha{algorithm[2:]}")
    pem = public_pem(rsa_key())
    unsigned = raw_token({"alg": algorithm, "typ": "JWT"}, claims()).rpartition(".")[0]
    for secret in (pem, pem.strip(), pem.replace(b"\n", b"")):
        signature = base64.urlsafe_b64encode(hmac.new(secret, unsigned.encode(), digest).digest()).decode().rstrip("=")
        assert "InvalidAlgorithm" in refused(by_rsa("RS256", "RS384"), f"{unsigned}.{signature}")
        tokens = Tokens(parse_keys(jwks(public_jwk(rsa_key(), kid="a"), secret_jwk(kid="b")), ("RS256", "HS256")))
        for kid in ("a", "b"):
            forged = raw_token({"alg": algorithm, "kid": kid}, claims()).rpartition(".")[0]
            mac = base64.urlsafe_b64encode(hmac.new(secret, forged.encode(), digest).digest()).decode().rstrip("=")
            refused(tokens, f"{forged}.{mac}")


def test_a_secret_of_a_set_does_not_vouch_under_the_id_of_a_public_key() -> None:
    tokens = Tokens(parse_keys(jwks(public_jwk(rsa_key(), kid="a"), secret_jwk(kid="b")), ("RS256", "HS256")))
    assert tokens.verify(signed(SECRET, "HS256", headers={"kid": "b"})).name == "anna"
    assert "InvalidAlgorithm" in refused(tokens, signed(SECRET, "HS256", headers={"kid": "a"}))


def test_an_algorithm_of_the_right_kind_that_was_not_configured_is_refused() -> None:
    assert "InvalidAlgorithm" in refused(by_rsa("RS256"), signed(rsa_key(), "RS512"))


def test_another_key_proves_nothing() -> None:
    assert "InvalidSignature" in refused(by_rsa(), signed(rsa_key(1), "RS256"))
    assert "InvalidSignature" in refused(by_secret(), signed(SECRET[::-1], "HS256"))


def test_a_key_brought_along_in_the_token_is_not_used() -> None:
    headers: dict[str, object] = {"jwk": public_jwk(rsa_key(1)), "jku": "https://example.org/k", "x5u": "x"}
    assert "InvalidSignature" in refused(by_rsa(), signed(rsa_key(1), "RS256", headers=headers))


def test_each_token_is_checked_with_the_key_it_names() -> None:
    data = jwks(public_jwk(rsa_key(), kid="a"), public_jwk(rsa_key(1), kid="b"), public_jwk(ec_key(), kid="c"))
    tokens = Tokens(parse_keys(data, ("RS256", "ES256")))
    assert tokens.verify(signed(rsa_key(), "RS256", headers={"kid": "a"})).name == "anna"
    assert tokens.verify(signed(rsa_key(1), "RS256", headers={"kid": "b"})).name == "anna"
    assert tokens.verify(signed(ec_key(), "ES256", headers={"kid": "c"})).name == "anna"
    assert "InvalidSignature" in refused(tokens, signed(rsa_key(1), "RS256", headers={"kid": "a"}))
    assert "unknown" in refused(tokens, signed(rsa_key(), "RS256", headers={"kid": "z"}))
    assert "names no key" in refused(tokens, signed(rsa_key(), "RS256"))


def test_a_single_key_serves_tokens_that_name_it_or_none() -> None:
    tokens = Tokens(parse_keys(jwks(public_jwk(rsa_key(), kid="a")), ("RS256",)))
    assert tokens.verify(signed(rsa_key(), "RS256")).name == "anna"
    assert "unknown" in refused(tokens, signed(rsa_key(), "RS256", headers={"kid": "b"}))
    assert by_rsa().verify(signed(rsa_key(), "RS256", headers={"kid": "any"})).name == "anna"


def test_a_token_that_demands_extensions_is_refused() -> None:
    for headers in ({"crit": ["b64"]}, {"crit": ["x"], "x": 1}, {"b64": True}):
        token = raw_token({"alg": "HS256", **headers}, claims(), b"x")
        assert refused(by_secret(), token)


def test_a_token_that_is_too_long_is_refused_unread() -> None:
    assert f"at most {MAX_TOKEN}" in refused(by_secret(), "x" * (MAX_TOKEN + 1))
    assert f"at most {MAX_TOKEN}" in refused(by_secret(), signed(SECRET, "HS256", more="x" * MAX_TOKEN))


def test_without_a_key_nothing_can_be_checked() -> None:
    with pytest.raises(TokenKeyError):
        Tokens([])


@pytest.mark.parametrize(
    "payload", ["[" * 3000, '{"exp": 1e999, "sub": "a"}', '{"exp": 1' + "0" * 400 + ', "sub": "a"}', "5"]
)
def test_payloads_made_to_upset_a_reader_are_refused(payload: str) -> None:
    unsigned = ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"HS256"}', payload.encode())
    )
    mac = hmac.new(SECRET, unsigned.encode(), hashlib.sha256).digest()
    assert refused(by_secret(), f"{unsigned}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}")


def test_headers_made_to_upset_a_reader_are_refused() -> None:
    for header in (b"[" * 4000, b'{"alg":' * 800, b"5", b"null", b'{"alg": 5}', b'{"alg": "HS256", "kid": 5}'):
        assert refused(by_secret(), f"{base64.urlsafe_b64encode(header).decode().rstrip('=')}.e30.AA")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.builds(
            raw_token,
            st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), json_values),
            json_values,
            st.binary(),
        ),
    )
)
def test_any_text_that_nobody_signed_is_refused(token: str | bytes) -> None:
    refused(by_secret(), token)


@given(st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "iss", "groups", "jti"]), json_values))
def test_any_signed_claims_give_somebody_or_the_documented_error(made: dict[str, Any]) -> None:
    unsigned = raw_token({"alg": "HS256"}, made).rpartition(".")[0]
    mac = base64.urlsafe_b64encode(hmac.new(SECRET, unsigned.encode(), hashlib.sha256).digest()).decode()
    try:
        identity = by_secret().verify(f"{unsigned}.{mac.rstrip('=')}")
    except TokenError as error:
        assert error.reason  # noqa: PT017 - either outcome is fine
        return
    assert identity.name == json.loads(json.dumps(made))["sub"]


def test_keys_can_be_made_without_a_file() -> None:
    tokens = Tokens([TokenKey("", ("HS256",), SECRET)])
    assert tokens.verify(signed(SECRET, "HS256")).name == "anna"


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
    with pytest.raises(TokenKeyError, match="use its public key"):
        parse_keys(private_pem(rsa_key()), ("RS256",))
    private = json.loads(ECAlgorithm.to_jwk(ec_key()))
    with pytest.raises(TokenKeyError, match="use its public part"):
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
        (b'{"keys": [{"kty": "RSA", "kid": 5}]}', '"kid" is not a string'),
        (b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----", "neither a public key"),
    ],
)
def test_a_file_that_holds_no_key_is_told(data: bytes, words: str) -> None:
    with pytest.raises(TokenKeyError) as caught:
        parse_keys(data, ("RS256",))
    assert words in caught.value.problem


def test_two_keys_with_one_id_are_refused() -> None:
    with pytest.raises(TokenKeyError, match="key 2 of the JWKS: the id 'a' appears twice"):
        parse_keys(jwks(public_jwk(rsa_key(), kid="a"), public_jwk(rsa_key(1), kid="a")), ("RS256",))


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    with pytest.raises(TokenKeyError, match="No such file") as caught:
        load_keys(path, ["HS256"])
    assert caught.value.path == str(path)
    path.write_bytes(b"short")
    with pytest.raises(TokenKeyError) as caught:
        load_keys(path, ["HS256"])
    assert str(caught.value).startswith(f"{path}: the secret has 5 bytes")
    monkeypatch.setattr(tokens_module, "MAX_FILE", 4)
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
