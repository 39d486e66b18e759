"""Compile the hot modules with mypyc while the package is built.

Everything that can be said in pyproject.toml is said there; this file is the one thing that can't: running mypyc.
With ``POLYWIRE_PURE=1``, or where there is no C compiler, nothing is compiled and the same sources run interpreted.
"""

import os
import runpy
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
COMPILERS = ("cc", "gcc", "clang", "cl")


def has_compiler() -> bool:
    """Whether a C compiler can be found, the way the build itself will look for it."""
    named = os.environ.get("CC", "").split()
    return any(shutil.which(name) for name in (named[:1] or COMPILERS))


def hot_extensions() -> list[Extension]:
    """The extension modules mypyc makes, or none in a pure build."""
    if os.environ.get("POLYWIRE_PURE", "0") not in {"", "0"}:
        return []
    if not has_compiler():
        print("polywire: no C compiler found, the hot modules will run interpreted", file=sys.stderr)
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - a pure build must not need mypyc

    names: tuple[str, ...] = runpy.run_path(str(SOURCE / "polywire" / "compilation.py"))["HOT_MODULES"]
    paths = [str(SOURCE / Path(*name.split(".")).with_suffix(".py")) for name in names]
    # mypyc 2.4 fails on classes it reads back from mypy's cache, so it gets none; C files that did not change are
    # not compiled again all the same.
    return mypycify(["--cache-dir=/dev/null", *paths], opt_level="3", separate=True)


setup(ext_modules=hot_extensions())
