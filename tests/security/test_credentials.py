"""What clients present, and how it is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.security.credentials import Credentials, CredentialsError, read_hello


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
