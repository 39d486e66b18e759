"""A file system so small that a test can fill it."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FILLER = "filler"


class SmallDisk:
    """A mounted file system, at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no room."""
        with (self.path / FILLER).open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(os.urandom(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def is_full(self) -> bool:
        """Whether ``fill`` was called and ``free`` was not."""
        return (self.path / FILLER).exists()

    def free(self) -> None:
        """Have room again."""
        (self.path / FILLER).unlink()


class CannotMountError(Exception):
    """This process may not mount file systems, or there is no command for it."""


@contextlib.contextmanager
def mounted_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mount one, or raise ``CannotMountError``."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    except FileNotFoundError:
        raise CannotMountError("there is no mount command") from None
    if mounted.returncode:
        raise CannotMountError(f"a small file system can't be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S603, S607 - as above


@contextlib.contextmanager
def small_disk(path: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mount one; the test is skipped where that is not allowed."""
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(mounted_disk(path, size))
        except CannotMountError as error:
            pytest.skip(str(error))
        yield disk
