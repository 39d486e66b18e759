"""Changing a file of users: nothing else in it changes, and nothing is ever half written."""

import os
import stat
import threading
from pathlib import Path

import pytest

from polywire.security import userfile
from polywire.security.userfile import make_user, permission_problem, put_user, remove_user
from polywire.security.users import MAX_PASSWORD, NO_PASSWORD, User, UserFileError, load_users
from tests.security.hashing import CountingHasher


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
    with pytest.raises(UserFileError, match="folder can't be opened"):
        put_user(tmp_path / "no" / "users", User("anna", NO_PASSWORD))
    with pytest.raises(UserFileError, match="can't be read: Is a directory"):
        userfile.read_lines(tmp_path)
