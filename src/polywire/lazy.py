"""Packages whose public names are loaded when they are first used, so that importing one costs next to nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping


def exports(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package: ``names`` has, by module, the names that come from it.

    A module is named as in a relative import, without the first dot; ``Role:Side`` is its ``Role`` under the name
    ``Side``. Type checkers don't see through this, so the package imports the same names under ``TYPE_CHECKING``;
    tests/test_lazy.py compares the two.
    """
    places = {}  # by public name: the module, and the name there
    for module, words in names.items():
        for word in words.split():
            own, _, public = word.partition(":")
            places[public or own] = (module, own)

    def load(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = places[name]
        value: object = getattr(importlib.import_module(f".{module}", package), own)
        vars(sys.modules[package])[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return load, listed
