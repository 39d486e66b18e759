"""One door: what a client presents, who it then is, and what it learns when it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.access import ANONYMOUS, Identity
from polywire.security.authenticator import Authenticator, LoginError, Throttle, Throttled, address_key
from polywire.security.credentials import CertificateNames, Credentials
from polywire.security.tokens import Tokens, parse_keys
from polywire.security.users import NO_PASSWORD, User, Users, make_user
from tests.security.hashing import CountingHasher
from tests.security.signing import SECRET, signed

HERE = "192.0.2.1"
CERTIFICATE = {"subject": ((("commonName", "s1"),),)}


@pytest.fixture
def hasher() -> CountingHasher:
    return CountingHasher()


@pytest.fixture
def users(hasher: CountingHasher) -> Users:
    anna = make_user("anna", "secret", ("staff",), hasher=hasher)
    return Users([anna, User("s1", NO_PASSWORD, ("sensors",))], hasher=hasher)


@pytest.fixture
def everything(users: Users) -> Authenticator:
    return Authenticator(
        users=users, tokens=Tokens(parse_keys(SECRET, ("HS256",))), certificates=CertificateNames(), anonymous=False
    )


def login(authenticator: Authenticator, credentials: Credentials, now: float = 0.0) -> Identity:
    return authenticator.authenticate(credentials, HERE, now)


def test_without_any_way_to_prove_something_everybody_is_anonymous() -> None:
    authenticator = Authenticator()
    for credentials in (Credentials(), Credentials("anna", "x"), Credentials(token="x"), Credentials("anna")):
        assert login(authenticator, credentials) is ANONYMOUS
        assert not authenticator.needs_thread(credentials)
    assert login(authenticator, Credentials(listener="plant")) == Identity("plant", (), "listener")


def test_a_password_proves_a_user(everything: Authenticator) -> None:
    assert login(everything, Credentials("anna", "secret")) == Identity("anna", ["staff"], "password")
    assert login(everything, Credentials("anna", b"secret")).how == "password"


@pytest.mark.parametrize("where", ["token", "password", "user token"])
def test_a_token_proves_a_user_as_such_or_as_a_password(everything: Authenticator, where: str) -> None:
    token = signed(SECRET, "HS256")
    credentials = {
        "token": Credentials(token=token),
        "password": Credentials("", token.encode()),
        "user token": Credentials("token", token),
    }[where]
    assert login(everything, credentials).how == "token"
    assert login(everything, credentials).name == "anna"
    assert not everything.needs_thread(credentials)


def test_a_certificate_proves_a_user_whose_groups_are_in_the_file(everything: Authenticator) -> None:
    assert login(everything, Credentials(certificate=CERTIFICATE)) == Identity("s1", ["sensors"], "certificate")
    assert login(Authenticator(certificates=CertificateNames()), Credentials(certificate=CERTIFICATE)).groups == set()


def test_a_listener_may_stand_for_a_user(everything: Authenticator) -> None:
    assert login(everything, Credentials(listener="s1")) == Identity("s1", ["sensors"], "listener")


def test_what_a_client_says_itself_comes_before_certificate_and_listener(everything: Authenticator) -> None:
    assert login(everything, Credentials("anna", "secret", certificate=CERTIFICATE, listener="x")).name == "anna"
    assert login(everything, Credentials(certificate=CERTIFICATE, listener="x")).name == "s1"
    with pytest.raises(LoginError):
        login(everything, Credentials("anna", "wrong", certificate=CERTIFICATE, listener="x"))


def test_a_client_that_says_nothing_is_anonymous_only_where_that_is_allowed(users: Users) -> None:
    for credentials in (Credentials(), Credentials("", ""), Credentials("", b""), Credentials(certificate={})):
        assert login(Authenticator(users=users, anonymous=True), credentials) is ANONYMOUS
        with pytest.raises(LoginError):
            login(Authenticator(users=users), credentials)


def test_wrong_credentials_are_not_excused_by_anonymity(users: Users) -> None:
    with pytest.raises(LoginError):
        login(Authenticator(users=users, anonymous=True), Credentials("anna", "wrong"))


REFUSED = {
    "unknown user": Credentials("otto", "secret"),
    "wrong password": Credentials("anna", "wrong"),
    "a user was named without a password": Credentials("anna"),
    "no credentials were presented": Credentials(),
    "DecodeError": Credentials(token="x"),
    "ExpiredSignatureError": Credentials(token=signed(SECRET, "HS256", exp=1)),
    "0 names": Credentials(certificate={"subject": ()}),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_every_refusal_reads_the_same_and_the_log_knows_why(everything: Authenticator, cause: str) -> None:
    with pytest.raises(LoginError) as caught:
        login(everything, REFUSED[cause])
    assert str(caught.value) == "login refused"
    assert caught.value.args == ("login refused",)
    assert cause in caught.value.cause
    assert caught.value.user == REFUSED[cause].user


def test_what_is_not_configured_is_refused(users: Users) -> None:
    with pytest.raises(LoginError) as caught:
        login(Authenticator(users=users), Credentials(token=signed(SECRET, "HS256")))
    assert "not accepted here" in caught.value.cause
    with pytest.raises(LoginError) as caught:
        login(Authenticator(certificates=CertificateNames()), Credentials("anna", "secret"))
    assert "not accepted here" in caught.value.cause


def test_a_refused_login_costs_one_hash_whoever_it_names(everything: Authenticator, hasher: CountingHasher) -> None:
    for name in ("anna", "otto", "s1"):
        with pytest.raises(LoginError):
            login(everything, Credentials(name, "wrong"))
    assert len(hasher.checked) == 3
    assert len(set(hasher.checked)) == 1


def test_only_passwords_need_a_thread(everything: Authenticator, hasher: CountingHasher) -> None:
    assert everything.needs_thread(Credentials("anna", "secret"))
    assert everything.needs_thread(Credentials("otto", ""))
    for credentials in (
        Credentials(),
        Credentials("anna"),
        Credentials("", ""),
        Credentials(token="x"),
        Credentials("token", "x"),
        Credentials("anna", "secret", token="x"),
        Credentials(certificate=CERTIFICATE),
    ):
        assert not everything.needs_thread(credentials)
        with pytest.raises(LoginError):
            login(everything, Credentials())
    assert hasher.checked == []


def test_failed_logins_are_throttled_by_address_before_anything_is_computed(
    users: Users, hasher: CountingHasher
) -> None:
    authenticator = Authenticator(users=users, throttle=Throttle(free=2, first=4))
    for _ in range(3):
        with pytest.raises(LoginError):
            login(authenticator, Credentials("anna", "wrong"), 10)
    hasher.checked.clear()
    with pytest.raises(Throttled, match="try again in 3 s") as caught:
        login(authenticator, Credentials("anna", "secret"), 11.5)
    assert caught.value.retry_after == 2.5
    assert authenticator.retry_after(HERE, 11.5) == 2.5
    assert hasher.checked == []
    assert authenticator.authenticate(Credentials("anna", "secret"), "192.0.2.2", 11.5).name == "anna"
    assert login(authenticator, Credentials("anna", "secret"), 14).name == "anna"


def test_a_right_login_does_not_wash_wrong_ones_away(users: Users) -> None:
    authenticator = Authenticator(users=users, throttle=Throttle(free=1, first=4))
    for credentials in (Credentials("anna", "wrong"), Credentials("anna", "secret"), Credentials("anna", "wrong")):
        try:
            login(authenticator, credentials, 0)
        except LoginError:
            continue
    assert authenticator.retry_after(HERE, 0) == 4


def test_who_claims_nothing_is_neither_throttled_nor_counted(users: Users) -> None:
    throttle = Throttle(free=0)
    authenticator = Authenticator(users=users, throttle=throttle)
    with pytest.raises(LoginError):
        login(authenticator, Credentials())
    assert len(throttle) == 0
    throttle.failed(HERE, 0)
    assert login(Authenticator(users=users, anonymous=True, throttle=throttle), Credentials()) is ANONYMOUS


def test_a_reload_keeps_the_throttle_and_computes_nothing(users: Users, hasher: CountingHasher) -> None:
    hasher.made = 0
    old = Authenticator(users=users, throttle=Throttle(free=0, first=9))
    with pytest.raises(LoginError):
        login(old, Credentials("anna", "wrong"))
    hasher.checked.clear()
    new = Authenticator(users=Users(users.by_name.values(), hasher=hasher), throttle=old.throttle)
    assert new.retry_after(HERE, 0) == 9
    assert (hasher.made, hasher.checked) == (0, [])


def test_the_first_failures_are_free_and_each_further_one_doubles_the_wait() -> None:
    throttle = Throttle(free=2, first=1, longest=10)
    now = 100.0
    waits = []
    for _ in range(8):
        waits.append(throttle.failed(HERE, now))
        assert throttle.retry_after(HERE, now) == waits[-1]
        now += waits[-1]
        assert throttle.retry_after(HERE, now) == 0
    assert waits == [0, 0, 1, 2, 4, 8, 10, 10]


def test_an_address_does_not_wait_for_another() -> None:
    throttle = Throttle(free=0)
    throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 1
    assert throttle.retry_after("192.0.2.2", 0) == 0


def test_an_address_that_stopped_failing_starts_anew() -> None:
    throttle = Throttle(free=1, first=1, longest=5, forget=60)
    for _ in range(10):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 59) == 0
    assert throttle.failed(HERE, 59) == 5
    assert throttle.retry_after(HERE, 59 + 60) == 0
    assert len(throttle) == 0
    assert throttle.failed(HERE, 59 + 60) == 0


def test_failures_at_once_all_count() -> None:
    throttle = Throttle(free=0, first=1)
    for _ in range(4):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 8


def test_very_many_failures_are_just_the_longest_wait() -> None:
    throttle = Throttle(free=0, longest=60)
    for _ in range(5000):
        throttle.failed(HERE, 0)
    assert throttle.retry_after(HERE, 0) == 60


def test_the_table_is_bounded_and_who_failed_longest_ago_makes_room() -> None:
    throttle = Throttle(free=0, addresses=3)
    for last in (1, 2, 3, 1, 4):
        throttle.failed(f"192.0.2.{last}", 0)
    assert len(throttle) == 3
    assert [throttle.retry_after(f"192.0.2.{last}", 0) > 0 for last in (1, 2, 3, 4)] == [True, False, True, True]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("2001:0db8::1", "2001:db8:0:0::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("/run/hub.sock", "/run/hub.sock", True),
        ("", "/run/hub.sock", False),
    ],
)
def test_an_address_is_a_host_or_a_network_of_64_bits(one: str, other: str, *, same: bool) -> None:
    assert (address_key(one) == address_key(other)) is same


@given(st.text())
def test_any_text_is_an_address_of_bounded_size(address: str) -> None:
    assert len(address_key(address)) <= 255
    assert address_key(address_key(address)[:255]) is not None


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 100)), max_size=60), st.integers(1, 5))
def test_waits_and_the_table_stay_within_their_bounds(steps: list[tuple[int, float]], size: int) -> None:
    throttle = Throttle(free=1, longest=30, forget=50, addresses=size)
    now = 0.0
    for host, pause in steps:
        now += pause
        throttle.failed(f"192.0.2.{host}", now)
        assert 0 <= throttle.retry_after(f"192.0.2.{host}", now) <= 30.001
        assert len(throttle) <= size
