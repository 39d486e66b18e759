"""Hashes that are quick to make and check, and a hasher that counts, so that costs are compared without a clock."""

from pathlib import Path

import argon2

from polywire.security.users import make_user, put_user

QUICK = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def add_user(file: Path, name: str, password: str, *groups: str) -> None:
    """Write a user into a file; logging in takes no time."""
    put_user(file, make_user(name, password, groups, hasher=QUICK))


class CountingHasher:
    """Argon2 with the smallest parameters; remembers every hash it was asked to check, and against how many bytes."""

    def __init__(self, *, time_cost: int = 1) -> None:
        self._hasher = argon2.PasswordHasher(time_cost=time_cost, memory_cost=8, parallelism=1)
        self.checked: list[tuple[str, int]] = []
        self.made = 0

    def hash(self, password: str | bytes) -> str:
        self.made += 1
        return self._hasher.hash(password)

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002 - the library's own word
        self.checked.append((str(hash).rsplit("$", 2)[0], len(password)))
        return self._hasher.verify(hash, password)

    def check_needs_rehash(self, hash: str | bytes) -> bool:  # noqa: A002 - the library's own word
        return self._hasher.check_needs_rehash(hash)
