"""Changing a file of users: one writer at a time, and a reader sees the old file or the new one, never half of it."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import argon2

from polywire.security.names import group_name_problem, user_name_problem
from polywire.security.users import (
    MAX_PASSWORD,
    NO_PASSWORD,
    Hasher,
    User,
    UserFileError,
    parse_user,
    parse_users,
    password_octets,
)

KEPT_MODE = 0o640
"""Of an existing file's mode this is kept: its group may go on reading it, nobody else."""


def make_user(
    name: str, password: str | bytes | None, groups: tuple[str, ...] = (), *, hasher: Hasher | None = None
) -> User:
    """A user with this password, or with none; a ``UserFileError`` says what can't be."""
    for problem in (user_name_problem(name), *(group_name_problem(group) for group in groups)):
        if problem is not None:
            raise UserFileError(problem)
    if password is None:
        return User(name, NO_PASSWORD, groups)
    octets = password_octets(password)
    if not octets:
        raise UserFileError("the password is empty")
    if len(octets) > MAX_PASSWORD:
        raise UserFileError(f"the password has {len(octets)} octets, at most {MAX_PASSWORD} are allowed")
    return User(name, (hasher or argon2.PasswordHasher()).hash(octets), groups)


def put_user(path: Path, user: User) -> bool:
    """Write a user into the file, in place of one with that name. Returns whether there was one."""
    with locked(path):
        lines = read_lines(path)
        place = find_line(lines, user.name)
        if place is None:
            lines.append(str(user))
        else:
            lines[place] = str(user)
        write_lines(path, lines)
    return place is not None


def remove_user(path: Path, name: str) -> bool:
    """Take a user out of the file. Returns whether it was there."""
    with locked(path):
        lines = read_lines(path)
        place = find_line(lines, name)
        if place is None:
            return False
        del lines[place]
        write_lines(path, lines)
    return True


def permission_problem(path: Path) -> str | None:
    """Why the file's permissions are too wide, or None where they are not."""
    mode = path.stat().st_mode & 0o777
    if mode & ~KEPT_MODE:
        return f"{path}: mode {mode:04o} lets others read or change the hashes; use 'chmod 600 {path}'"
    return None


def read_lines(path: Path) -> list[str]:
    """The lines of a file that holds valid users; none where there is no file yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserFileError(f"can't be read: {error.strerror}", path=str(path)) from error
    parse_users(data, path=str(path))
    lines = [line.removesuffix("\r") for line in data.decode(errors="strict").split("\n")]
    return lines[:-1] if not lines[-1] else lines


def find_line(lines: list[str], name: str) -> int | None:
    """The index of the user's line."""
    for index, line in enumerate(lines):
        if line.strip() and not line.startswith("#") and parse_user(line).name == name:
            return index
    return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file's folder, so that two changes at once don't lose one of them."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserFileError(f"its folder can't be opened: {error.strerror}", path=str(path)) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_lines(path: Path, lines: list[str]) -> None:
    """Replace the file in one step. Its owner, group and, less the rights of others, its mode stay."""
    real = path.resolve()  # a link stays a link
    made = real.with_name(f".{real.name}.{secrets.token_hex(8)}")
    try:
        with open_private(made) as descriptor:
            with contextlib.suppress(FileNotFoundError):
                old = real.stat()
                with contextlib.suppress(PermissionError):  # only root may give files away
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                    os.fchmod(descriptor, old.st_mode & KEPT_MODE | 0o600)
            data = "".join(f"{line}\n" for line in lines).encode()
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        made.replace(real)
        sync_folder(real.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise UserFileError(f"can't be written: {error.strerror}", path=str(path)) from error


@contextlib.contextmanager
def open_private(path: Path) -> Iterator[int]:
    """A new file nobody else can read, open for writing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
