"""Users with their passwords' hashes: the file, checking a password against it, and changing it.

One line for a user: ``name:hash:group,group``. The hash is Argon2id in its usual written form, or ``-`` for a user who
has groups but no password, known by certificate or by listener. Empty lines and lines that begin with ``#`` are kept
as they are when a user is added or removed. There is one writer at a time, and a reader sees the old file or the new
one, never half of it.
"""

import base64
import contextlib
import fcntl
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import argon2
from argon2.exceptions import Argon2Error, InvalidHashError

from polywire.errors import PolywireError
from polywire.security.credentials import Identity, group_name_problem, user_name_problem

MAX_FILE: Final = 64 << 20
MAX_PASSWORD: Final = 1024
"""In bytes. A longer password is never right, and is cut before anything is computed from it."""

NO_PASSWORD: Final = "-"  # noqa: S105 - the absence of one
HASH: Final = re.compile(
    r"\$argon2id\$v=19\$m=([1-9][0-9]{0,9}),t=([1-9][0-9]{0,4}),p=([1-9][0-9]{0,3})"
    r"\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{22,172}"
)
MOST: Final = (1 << 20, 100, 64)
"""The memory (KiB), passes and lanes a hash may ask for: one wrong line must not take the machine's memory."""


class UserFileError(PolywireError):
    """The file of users can't be read or changed. ``line`` counts from 1; 0 where it is about the whole file."""

    def __init__(self, problem: str, *, path: str = "", line: int = 0) -> None:
        self.problem = problem
        self.path = path
        self.line = line
        where = f"{path or 'users'}:{line}" if line else path or "users"
        super().__init__(f"{where}: {problem}")


class Hasher(Protocol):
    """What makes and checks hashes; ``argon2.PasswordHasher`` is one."""

    def hash(self, password: str | bytes) -> str:
        """The hash of a password, in its written form."""
        ...

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002 - the library's own word
        """True, or an ``Argon2Error`` where the password is another one."""
        ...

    def check_needs_rehash(self, hash: str | bytes) -> bool:  # noqa: A002 - the library's own word
        """Whether the hash was made with other parameters than are used today."""
        ...


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file."""

    name: str
    hash: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}:{self.hash}:{','.join(self.groups)}"


class Users:
    """The users of a file."""

    def __init__(self, users: Iterable[User] = (), *, hasher: Hasher | None = None) -> None:
        self.by_name: Final = {user.name: user for user in users}
        self._hasher: Final[Hasher] = hasher or argon2.PasswordHasher()
        self._dummy: Final = self._make_dummy()

    def __len__(self) -> int:
        return len(self.by_name)

    def groups(self, name: str) -> tuple[str, ...]:
        """The groups of a user, none where there is no such user."""
        user = self.by_name.get(name)
        return user.groups if user is not None else ()

    def verify(self, name: str, password: str | bytes) -> Identity | None:
        """Who logged in, or None. One hash is computed, whether or not the user exists or the password can be right."""
        octets = password_octets(password)
        user = self.by_name.get(name)
        known = user is not None and user.hash != NO_PASSWORD and len(octets) <= MAX_PASSWORD
        right = self._right(user.hash if user is not None and known else self._dummy, octets[:MAX_PASSWORD])
        if user is None or not known or not right:
            return None
        return Identity(user.name, user.groups, "password")

    def outdated(self) -> list[str]:
        """The users whose hashes were made with other parameters than are used today; their next password mends it."""
        return [
            user.name
            for user in self.by_name.values()
            if user.hash != NO_PASSWORD and self._hasher.check_needs_rehash(user.hash)
        ]

    def _right(self, written: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(written, password)
        except (Argon2Error, InvalidHashError):
            return False

    def _make_dummy(self) -> str:
        """A hash nothing fits, as costly to check as most in the file. Nothing is computed for it."""
        costs = Counter(user.hash.rsplit("$", 2)[0] for user in self.by_name.values() if user.hash != NO_PASSWORD)
        defaults = argon2.profiles.RFC_9106_LOW_MEMORY
        usual = f"$argon2id$v=19$m={defaults.memory_cost},t={defaults.time_cost},p={defaults.parallelism}"
        cost = costs.most_common(1)[0][0] if costs else usual
        return f"{cost}${random_base64(16)}${random_base64(32)}"


def random_base64(octets: int) -> str:
    """Random bytes as a hash writes them: base64 without padding."""
    return base64.b64encode(secrets.token_bytes(octets)).decode().rstrip("=")


def password_octets(password: str | bytes) -> bytes:
    """The bytes a password is hashed by."""
    return password.encode("utf-8", "surrogatepass") if isinstance(password, str) else password


def parse_user(line: str) -> User:
    """The user of a line, or a ``UserFileError`` without its place."""
    parts = line.split(":")
    if len(parts) not in {2, 3}:
        raise UserFileError("a line is name:hash:group,group; add users with 'polywire user add'")
    name, written = parts[0], parts[1]
    problem = user_name_problem(name)
    if problem is not None:
        raise UserFileError(problem)
    if written != NO_PASSWORD:
        found = HASH.fullmatch(written)
        if found is None:
            raise UserFileError(f"the hash of {name!r} is not an Argon2id hash; make one with 'polywire user add'")
        cost = tuple(int(number) for number in found.groups())
        if any(number > most for number, most in zip(cost, MOST, strict=True)) or cost[0] < 8 * cost[2]:
            raise UserFileError(f"the hash of {name!r} has parameters out of bounds; make one with 'polywire user add'")
    groups = tuple(parts[2].split(",")) if len(parts) == 3 and parts[2] else ()
    for group in groups:
        problem = group_name_problem(group)
        if problem is not None:
            raise UserFileError(problem)
    return User(name, written, groups)


def parse_users(data: bytes, *, path: str = "") -> list[User]:
    """The users of a file's bytes, or a ``UserFileError`` that names the line."""
    if len(data) > MAX_FILE:
        raise UserFileError(f"the file has {len(data)} bytes, at most {MAX_FILE} are read", path=path)
    users: list[User] = []
    lines: dict[str, int] = {}
    for number, octets in enumerate(data.split(b"\n"), 1):
        try:
            line = octets.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UserFileError("the line is not UTF-8", path=path, line=number) from None
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user = parse_user(line)
        except UserFileError as error:
            raise UserFileError(error.problem, path=path, line=number) from None
        if user.name in lines:
            problem = f"{user.name!r} is already in line {lines[user.name]}"
            raise UserFileError(problem, path=path, line=number)
        lines[user.name] = number
        users.append(user)
    return users


def load_users(path: Path, *, hasher: Hasher | None = None) -> Users:
    """The users of a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserFileError(f"can't be read: {error.strerror}", path=str(path)) from error
    return Users(parse_users(data, path=str(path)), hasher=hasher)


KEPT_MODE = 0o640
"""The bits of an existing file's mode that are kept: its group can still read it, others can't."""


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
        raise UserFileError(f"the password has {len(octets)} bytes, at most {MAX_PASSWORD} are allowed")
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
    """Hold the lock of the file's directory, so that two changes at once don't lose one of them."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserFileError(f"its directory can't be opened: {error.strerror}", path=str(path)) from error
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
    """A new file that only its owner can read, open for writing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a rename in the directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
