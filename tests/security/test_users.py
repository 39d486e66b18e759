"""Users and their passwords: what the file may hold, and what a check costs."""

import os
import stat
import threading
from pathlib import Path

import argon2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.errors import PolywireError
from polywire.hub.access import Identity
from polywire.security import users as users_module
from polywire.security.users import (
    HASH,
    MAX_PASSWORD,
    NO_PASSWORD,
    User,
    UserFileError,
    Users,
    load_users,
    make_user,
    parse_users,
    permission_problem,
    put_user,
    remove_user,
)
from tests.security.hashing import CountingHasher

# With a fixed salt: tests that are named after it must have the same names in every process.
GOOD = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret", salt=b"0123456789abcdef")


@pytest.fixture
def hasher() -> CountingHasher:
    return CountingHasher()


@pytest.fixture
def users(hasher: CountingHasher) -> Users:
    return Users(
        [make_user("anna", "secret", ("staff", "ops"), hasher=hasher), User("s1", NO_PASSWORD, ("sensors",))],
        hasher=hasher,
    )


def test_the_right_password_gives_the_user_with_its_groups(users: Users) -> None:
    assert users.verify("anna", "secret") == Identity("anna", ["ops", "staff"], "password")
    assert users.verify("anna", b"secret") is not None


@pytest.mark.parametrize(
    ("name", "password"),
    [("anna", "wrong"), ("anna", ""), ("otto", "secret"), ("", "secret"), ("s1", "-"), ("s1", ""), ("anna", "\ud800")],
)
def test_everything_else_gives_nobody(users: Users, name: str, password: str) -> None:
    assert users.verify(name, password) is None


@pytest.mark.parametrize("name", ["anna", "otto", "s1", ""])
@pytest.mark.parametrize("password", ["secret", "wrong", "", "x" * (MAX_PASSWORD * 50), b"\xff\0"])
def test_each_check_costs_one_hash_of_the_same_parameters(
    users: Users, hasher: CountingHasher, name: str, password: str | bytes
) -> None:
    users.verify(name, password)
    assert hasher.checked == [("$argon2id$v=19$m=8,t=1,p=1", min(len(password), MAX_PASSWORD))]


def test_a_password_that_is_too_long_is_wrong_even_if_it_begins_right(hasher: CountingHasher) -> None:
    longest = "x" * MAX_PASSWORD
    users = Users([make_user("anna", longest, hasher=hasher)], hasher=hasher)
    assert users.verify("anna", longest) is not None
    assert users.verify("anna", longest + "y") is None


def test_an_unknown_user_costs_what_most_users_of_the_file_cost(hasher: CountingHasher) -> None:
    slower = CountingHasher(time_cost=2)
    many = [make_user(name, "secret", hasher=slower) for name in ("a", "b")]
    users = Users([make_user("c", "secret", hasher=hasher), *many], hasher=hasher)
    users.verify("nobody", "secret")
    assert hasher.checked == [("$argon2id$v=19$m=8,t=2,p=1", 6)]


def test_without_users_a_check_costs_what_a_new_hash_would(hasher: CountingHasher) -> None:
    assert Users(hasher=hasher).verify("nobody", "secret") is None
    usual = argon2.PasswordHasher().hash("secret").rsplit("$", 2)[0]
    assert hasher.checked == [(usual, 6)]


def test_loading_computes_no_hash(tmp_path: Path, hasher: CountingHasher) -> None:
    path = tmp_path / "users"
    path.write_text(f"anna:{GOOD}:\n")
    assert len(load_users(path, hasher=hasher)) == 1
    assert (hasher.made, hasher.checked) == (0, [])


def test_hashes_of_other_parameters_are_told_of(hasher: CountingHasher) -> None:
    old = CountingHasher(time_cost=3)
    users = Users(
        [
            make_user("new", "secret", hasher=hasher),
            make_user("old", "secret", hasher=old),
            User("none", NO_PASSWORD),
        ],
        hasher=hasher,
    )
    assert users.outdated() == ["old"]
    assert users.verify("old", "secret") is not None


def test_a_file_may_hold_comments_empty_lines_and_any_line_ends() -> None:
    text = f"# people\n\nanna:{GOOD}:staff,ops\r\n   \notto:{GOOD}\ns1:-:sensors"
    assert parse_users(text.encode()) == [
        User("anna", GOOD, ("staff", "ops")),
        User("otto", GOOD),
        User("s1", NO_PASSWORD, ("sensors",)),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("anna", "name:hash:group"),
        (f"anna:{GOOD}:a:b", "name:hash:group"),
        ("anna:secret:", "not an Argon2id hash"),
        ("anna::", "not an Argon2id hash"),
        (f"anna:{GOOD.replace('argon2id', 'argon2i')}:", "not an Argon2id hash"),
        (f"anna:{GOOD.replace('m=8', 'm=9999999')}:", "out of bounds"),
        (f"anna:{GOOD.replace('t=1', 't=5000')}:", "out of bounds"),
        (f"anna:{GOOD.replace('p=1', 'p=4')}:", "out of bounds"),
        (f":{GOOD}:", "not be empty"),
        (f"a/b:{GOOD}:", "'/'"),
        (f"token:{GOOD}:", "'token'"),
        (f"anna:{GOOD}:a,,b", "group"),
        (f"otto:{GOOD}:", "already in line 1"),
    ],
)
def test_a_bad_line_is_told_with_its_number(line: str, words: str) -> None:
    with pytest.raises(UserFileError, match=r"^here:3: ") as caught:
        parse_users(f"otto:{GOOD}:\n\n{line}\n".encode(), path="here")
    assert caught.value.line == 3
    assert caught.value.path == "here"
    assert words in caught.value.problem
    assert isinstance(caught.value, PolywireError)


def test_a_line_that_is_not_utf8_is_told_with_its_number() -> None:
    with pytest.raises(UserFileError, match=r"^users:2: the line is not UTF-8"):
        parse_users(b"\nanna:\xff")


def test_a_huge_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "MAX_FILE", 10)
    with pytest.raises(UserFileError, match="at most 10"):
        parse_users(b"#" * 11)


def test_a_file_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="No such file") as caught:
        load_users(tmp_path / "users")
    assert caught.value.path == str(tmp_path / "users")
    assert caught.value.line == 0


def test_the_written_form_of_todays_hashes_is_known() -> None:
    assert HASH.fullmatch(argon2.PasswordHasher().hash("x"))


pieces = st.sampled_from(
    [b"anna", b":", b",", b"\n", b"\r", b"#", b"-", b"$argon2id$v=19", b"$m=8,t=1,p=1", GOOD.encode(), b"\xff", b" "]
)


@given(st.one_of(st.binary(), st.lists(pieces).map(b"".join)))
def test_any_octets_give_users_or_the_documented_error(data: bytes) -> None:
    try:
        found = parse_users(data)
    except UserFileError as error:
        assert error.problem  # noqa: PT017 - either outcome is fine
        return
    hasher = CountingHasher()
    users = Users(found, hasher=hasher)
    assert parse_users("\n".join(str(user) for user in found).encode()) == found
    for user in found:
        assert users.verify(user.name, "guess") is None
    assert len(hasher.checked) == len(found)
    assert users.outdated() is not None


@given(st.text(alphabet="0123456789", min_size=1, max_size=12), st.sampled_from(["m=8", "t=1", "p=1"]))
def test_a_hash_with_any_parameters_is_checked_or_refused(number: str, which: str) -> None:
    written = GOOD.replace(which, which[:2] + number)
    try:
        parse_users(f"anna:{written}:".encode())
    except UserFileError as error:
        assert error.line == 1  # noqa: PT017 - either outcome is fine


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_the_first_user_makes_a_file_nobody_else_can_read(path: Path) -> None:
    assert put_user(path, User("anna", NO_PASSWORD, ("a", "b"))) is False
    assert path.read_text() == "anna:-:a,b\n"
    assert mode(path) == 0o600
    assert permission_problem(path) is None


def test_users_are_added_replaced_and_removed_and_comments_stay(path: Path) -> None:
    path.write_text("# people\nanna:-:\n\n# things\ns1:-:sensors")
    assert put_user(path, User("anna", NO_PASSWORD, ("x",))) is True
    assert put_user(path, User("otto", NO_PASSWORD)) is False
    assert path.read_text() == "# people\nanna:-:x\n\n# things\ns1:-:sensors\notto:-:\n"
    assert remove_user(path, "s1") is True
    assert remove_user(path, "s1") is False
    assert path.read_text() == "# people\nanna:-:x\n\n# things\notto:-:\n"


def test_a_group_keeps_reading_and_others_stop(path: Path) -> None:
    path.write_text("")
    path.chmod(0o664)
    assert "chmod 600" in (permission_problem(path) or "")
    put_user(path, User("anna", NO_PASSWORD))
    assert mode(path) == 0o640


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("")
    path.symlink_to(real)
    put_user(path, User("anna", NO_PASSWORD))
    assert path.is_symlink()
    assert real.read_text() == "anna:-:\n"


def test_a_file_with_a_mistake_is_left_alone(path: Path) -> None:
    path.write_text("anna:-:\nnonsense\n")
    with pytest.raises(UserFileError, match=":2: ") as caught:
        put_user(path, User("otto", NO_PASSWORD))
    assert caught.value.line == 2
    with pytest.raises(UserFileError, match=":2: "):
        remove_user(path, "anna")
    assert path.read_text() == "anna:-:\nnonsense\n"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_user(path, User("anna", NO_PASSWORD))

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(UserFileError, match="No space left"):
        put_user(path, User("otto", NO_PASSWORD))
    assert path.read_text() == "anna:-:\n"
    assert [each.name for each in path.parent.iterdir()] == ["users"]


def test_the_content_is_safe_before_the_name_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replaced(made: Path, real: Path) -> Path:
        order.append("rename")
        return replace(made, real)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    put_user(path, User("anna", NO_PASSWORD))
    assert order == ["file", "rename", "folder"]


def test_changes_at_once_all_count(path: Path) -> None:
    threads = [threading.Thread(target=put_user, args=(path, User(f"u{n}", NO_PASSWORD))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(load_users(path).by_name) == {f"u{n}" for n in range(8)}


@pytest.mark.parametrize(
    ("name", "password", "groups", "words"),
    [
        ("a/b", "x", (), "'/'"),
        ("anna", "", (), "empty"),
        ("anna", "x" * (MAX_PASSWORD + 1), (), "at most 1024"),
        ("anna", "x", ("a,b",), "group"),
    ],
)
def test_a_user_that_can_not_be_is_refused_before_anything_is_hashed(
    name: str, password: str, groups: tuple[str, ...], words: str
) -> None:
    hasher = CountingHasher()
    with pytest.raises(UserFileError, match=words):
        make_user(name, password, groups, hasher=hasher)
    assert hasher.made == 0


def test_a_missing_folder_and_an_unreadable_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="directory can't be opened"):
        put_user(tmp_path / "no" / "users", User("anna", NO_PASSWORD))
    with pytest.raises(UserFileError, match="can't be read: Is a directory"):
        users_module.read_lines(tmp_path)
