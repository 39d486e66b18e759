"""Which modules mypyc compiles, and whether they run compiled in this process.

The build calls ``hot_modules()`` in an environment with the build requirements only, so this module must not import
more. At run time ``compiled()`` reports what was loaded, and ``POLYWIRE_PURE=1`` makes this process load the sources
even if there are compiled modules.
"""

import importlib
import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

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
