"""What a process loads, and how: hot modules compiled or interpreted, public names when they are first used, no pandas.

The build calls ``hot_modules()`` in an environment with the build requirements only, so this module must not import
more. At run time ``compiled()`` reports what was loaded, and ``POLYWIRE_PURE=1`` makes this process load the sources
even if there are compiled modules.

By default glibc gives a freed block at the top of the heap back to the kernel, and takes large blocks from it one by
one; a process that reads and forwards chunks then spends its time in page faults. A hub keeps that memory instead.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

SETTINGS = ((M_MMAP_THRESHOLD, 4 << 20), (M_TRIM_THRESHOLD, 16 << 20), (M_TOP_PAD, 1 << 20))
"""Of glibc's allocator."""

_SHARED = (
    "polywire.wire.frame",
    "polywire.wire.websocket",
    "polywire.journal.kinds",
    "polywire.journal.columns",
    "polywire.journal.state",
    "polywire.hub.channels",
    "polywire.hub.trie",
    "polywire.hub.work",
    "polywire.hub.access",
    "polywire.hub.message",
    "polywire.hub.outbox",
    "polywire.hub.routes",
    "polywire.hub.retained",
    "polywire.hub.demand",
    "polywire.hub.queues",
    "polywire.hub.services",
    "polywire.hub.client",
    "polywire.hub.recorder",
    "polywire.hub.hub",
    "polywire.server.endpoint",
)
"""The hot modules that belong to no protocol."""


def hot_modules() -> tuple[str, ...]:
    """The modules that are compiled: those that all protocols share, and the ``hot`` ones of each."""
    from polywire.registry import built_in  # noqa: PLC0415 - "import polywire" does not need it

    return (*_SHARED, *(f"{each.package}.{module}" for each in built_in() for module in each.hot))


def pure_wanted() -> bool:
    """Whether the environment asks for interpreted modules."""
    return os.environ.get("POLYWIRE_PURE", "0") not in {"", "0"}


def load_sources_only(package: Path) -> None:
    """Make every later import below ``package`` take the ``.py`` file, never a compiled module."""
    root = str(package)

    def finder(path: str) -> FileFinder:
        if path != root and not path.startswith(root + os.sep):
            raise ImportError(f"{path} is not part of {root}")
        return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    for path in list(sys.path_importer_cache):
        if path == root or path.startswith(root + os.sep):
            del sys.path_importer_cache[path]


def compiled() -> dict[str, bool]:
    """Each hot module by name, and whether it runs compiled here."""
    found = {}
    for name in hot_modules():
        origin = importlib.import_module(name).__file__ or ""
        found[name] = not origin.endswith(tuple(SOURCE_SUFFIXES))
    return found


def exports(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package whose public names are loaded when they are first used.

    So importing the package costs next to nothing. ``names`` has, by module, the names that come from it.
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


def tune_allocator() -> bool:
    """Make the allocator keep freed memory. Returns whether that worked (glibc only)."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # noqa: PLC0415 - "import polywire" does not need it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(setting, value) == 1 for setting, value in SETTINGS)


def leave_out_pandas() -> None:
    """Let nothing in this process import pandas.

    Arrow imports it, where it is installed, as soon as it makes an array of Python objects, only to find out whether
    they are pandas's. That costs time at every start and tens of MiB, in a process that never uses it.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """A finder of modules, asked before all others."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Find nothing, and end the search where it is for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=name)
        return None
