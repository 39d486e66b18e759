"""``polywire user``, through typer's runner, as a process, and at a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polywire.cli import user
from polywire.security.users import load_users, make_user
from tests.security.hashing import CountingHasher

COMMAND = [sys.executable, "-m", "polywire.cli.user"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def run(*words: object, stdin: str | bytes = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(user.app, [str(word) for word in words], input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


def test_a_user_is_added_checked_listed_and_removed(path: Path) -> None:
    added = run("add", "anna", "--file", path, "-g", "staff", "-g", "ops", "--password-stdin", stdin="secret\n")
    assert added == (0, f"added anna in {path}\n", "")
    assert run("check", "anna", "-f", path, "--password-stdin", stdin="secret") == (
        0,
        "anna: the password is correct\n",
        "",
    )
    assert run("list", "-f", path) == (0, "anna\tstaff,ops\t\n", "")
    assert run("remove", "anna", "-f", path) == (0, f"removed anna from {path}\n", "")
    assert run("list", "-f", path) == (0, "", "")


def test_a_user_is_given_a_new_password_and_new_groups(path: Path) -> None:
    run("add", "anna", "-f", path, "-g", "staff", "--password-stdin", stdin="one")
    assert run("add", "anna", "-f", path, "--password-stdin", stdin="two")[1].startswith("changed anna")
    users = load_users(path)
    assert users.verify("anna", "one") is None
    assert users.verify("anna", "two") is not None
    assert users.groups("anna") == ()


def test_a_wrong_password_and_an_unknown_user_look_the_same(path: Path) -> None:
    run("add", "anna", "-f", path, "--password-stdin", stdin="secret")
    wrong = run("check", "anna", "-f", path, "--password-stdin", stdin="other")
    unknown = run("check", "otto", "-f", path, "--password-stdin", stdin="secret")
    assert wrong[0] == unknown[0] == 1
    assert wrong[2].replace("anna", "otto") == unknown[2]


def test_a_password_is_taken_octet_by_octet(path: Path) -> None:
    run("add", "anna", "-f", path, "--password-stdin", stdin=b"\xff se cret \r\n")
    assert load_users(path).verify("anna", b"\xff se cret ") is not None


def test_a_user_without_password_has_groups_only(path: Path) -> None:
    assert run("add", "s1", "-f", path, "-g", "sensors", "--no-password")[0] == 0
    assert path.read_text() == "s1:-:sensors\n"
    assert run("list", "-f", path)[1] == "s1\tsensors\tno password\n"


def test_outdated_hashes_and_wide_permissions_are_told(path: Path) -> None:
    old = "$argon2id$v=19$m=8,t=1,p=1$bXk0Lp7Zc3k5Jm8rX2FkZA$" + "A" * 43
    path.write_text(f"anna:{old}:\n")
    path.chmod(0o644)
    code, out, err = run("list", "-f", path)
    assert (code, out) == (0, "anna\t\toutdated hash\n")
    assert "mode 0644" in err


def test_a_right_password_with_an_outdated_hash_is_told_how_to_renew_it(path: Path) -> None:
    path.write_text(f"{make_user('anna', 'secret', hasher=CountingHasher())}\n")
    code, out, err = run("check", "anna", "-f", path, "--password-stdin", stdin="secret")
    assert (code, out) == (0, "anna: the password is correct\n")
    assert "'polywire user add anna' makes a new one" in err


@pytest.mark.parametrize(
    ("words", "stdin", "code", "says"),
    [
        (["add", "a/b", "--password-stdin"], "x", 1, "has '/'"),
        (["add", "anna", "--password-stdin"], "", 1, "the password is empty"),
        (["add", "anna", "--password-stdin"], "x" * 2000, 1, "at most 1024"),
        (["add", "anna"], "x", 2, "use --password-stdin"),
        (["add", "anna", "--no-password", "--password-stdin"], "x", 2, "exclude each other"),
        (["add", "anna", "-g", "a,b", "--no-password"], "", 1, "group"),
        (["remove", "anna"], "", 1, "there is no user 'anna'"),
        (["list"], "", 1, "No such file"),
        (["check", "anna", "--password-stdin"], "x", 1, "No such file"),
    ],
)
def test_mistakes_are_told_on_standard_error(path: Path, words: list[str], stdin: str, code: int, says: str) -> None:
    done = run(*words, "--file", path, stdin=stdin)
    assert (done[0], done[1]) == (code, "")
    assert done[2].startswith("polywire user: ")
    assert says in done[2]
    assert not path.exists()


def test_a_broken_file_is_told_with_its_line_and_left_alone(path: Path) -> None:
    path.write_text("anna:-:\nnonsense\n")
    for words in (["list"], ["remove", "anna"], ["add", "otto", "--no-password"], ["check", "x", "--password-stdin"]):
        code, _, err = run(*words, "-f", path)
        assert code == 1
        assert f"{path}:2: " in err
    assert path.read_text() == "anna:-:\nnonsense\n"


@pytest.mark.parametrize("command", ["add", "remove", "list", "check"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"polywire user {command}" in out.replace("Usage: ", "")
    assert "Example" in out


def test_it_runs_as_a_module_with_its_default_file(tmp_path: Path) -> None:
    subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [*COMMAND, "add", "anna", "--no-password"], cwd=tmp_path, check=True, capture_output=True
    )
    assert (tmp_path / "polywire.users").read_text() == "anna:-:\n"


def at_a_terminal(words: list[str], answers: list[bytes]) -> tuple[int, bytes]:
    """Run the command with a terminal, give each answer when it asks, and return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own words
        [*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    asked = 0
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux tells that the other side of a terminal is closed
            piece = b""
        if not piece:
            break
        shown += piece
        if shown.count(b": ") > asked and shown.endswith(b": ") and asked < len(answers):
            os.write(ours, answers[asked] + b"\n")
            asked = shown.count(b": ")
    os.close(ours)
    return process.wait(), shown


def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(path: Path) -> None:
    code, shown = at_a_terminal(["add", "anna", "-f", str(path)], [b"hunter2", b"hunter2"])
    assert code == 0
    assert b"hunter2" not in shown
    assert shown.count(b"Password") == 1
    assert b"Repeat" in shown
    assert load_users(path).verify("anna", "hunter2") is not None
    code, shown = at_a_terminal(["check", "anna", "-f", str(path)], [b"hunter2"])
    assert (code, b"hunter2" in shown, b"the password is correct" in shown) == (0, False, True)


def test_at_a_terminal_users_are_listed_as_a_table(path: Path) -> None:
    path.write_text("[red]anna:-:a,b\n")
    code, shown = at_a_terminal(["list", "-f", str(path)], [])
    assert code == 0
    assert b"[red]anna" in shown
    assert b"remarks" in shown
