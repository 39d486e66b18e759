"""Packages whose public names are loaded when they are first used, so that importing one costs next to nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping


def exports(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package: ``names`` has, by module, the names that come from it.

    A module is named as in a relative import, without the first dot. Type checkers don't see through this, so the
    package imports the same names under ``TYPE_CHECKING``; tests/test_lazy.py compares the two.
    """
    modules = {name: module for module, words in names.items() for name in words.split()}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f".{modules[name]}", package), name)
        vars(sys.modules[package])[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, listed
