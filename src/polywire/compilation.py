"""Which modules mypyc compiles, and whether they run compiled in this process.

The build reads ``HOT_MODULES`` from here (``setup.py`` runs this file by its path), so it must import nothing of
polywire. At run time ``compiled()`` tells what was loaded, and ``POLYWIRE_PURE=1`` makes this process load the
sources even where compiled modules lie beside them.
"""

import importlib
import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

HOT_MODULES = (
    "polywire.wire.frame",
    "polywire.wire.buffers",
    "polywire.wire.websocket",
    "polywire.protocols.fmqp.topics",
    "polywire.protocols.fmqp.frames",
    "polywire.journal.kinds",
    "polywire.journal.columns",
    "polywire.hub.channels",
    "polywire.hub.trie",
    "polywire.hub.names",
    "polywire.hub.work",
    "polywire.hub.access",
    "polywire.hub.message",
    "polywire.hub.outbox",
    "polywire.hub.routes",
    "polywire.hub.retained",
    "polywire.hub.demand",
    "polywire.hub.replay",
    "polywire.hub.queues",
    "polywire.hub.services",
    "polywire.hub.counters",
    "polywire.hub.client",
    "polywire.hub.recorder",
    "polywire.hub.runs",
    "polywire.hub.hub",
    "polywire.protocols.fmqp.session",
    "polywire.protocols.mqttrpc.wire",
    "polywire.protocols.mqttrpc.frames",
    "polywire.protocols.mqttrpc.failures",
    "polywire.protocols.mqttrpc.publisher",
    "polywire.protocols.mqttrpc.outgoing",
    "polywire.protocols.mqttrpc.incoming",
    "polywire.protocols.mqttrpc.session",
    "polywire.protocols.umq.base36",
    "polywire.protocols.umq.attachments",
    "polywire.protocols.umq.frames",
    "polywire.protocols.umq.state",
    "polywire.protocols.umq.ids",
    "polywire.protocols.umq.calls",
    "polywire.protocols.umq.callbacks",
    "polywire.protocols.umq.topics",
    "polywire.protocols.umq.bodies",
    "polywire.protocols.umq.methods",
    "polywire.protocols.umq.envelopes",
    "polywire.protocols.umq.updates",
    "polywire.protocols.umq.answers",
    "polywire.protocols.umq.gathering",
    "polywire.protocols.umq.serving",
    "polywire.protocols.umq.calling",
    "polywire.protocols.umq.open_topics",
    "polywire.protocols.umq.requests",
    "polywire.protocols.umq.session",
    "polywire.protocols.mqtt.packets",
    "polywire.protocols.mqtt.topics",
    "polywire.protocols.mqtt.reading",
    "polywire.protocols.mqtt.writing",
    "polywire.protocols.mqtt.publications",
    "polywire.protocols.mqtt.frames",
    "polywire.protocols.mqtt.flows",
    "polywire.protocols.sabc.headers",
    "polywire.protocols.sabc.commands",
    "polywire.protocols.sabc.bodies",
    "polywire.protocols.sabc.head",
    "polywire.protocols.sabc.unfinished",
    "polywire.protocols.sabc.intake",
    "polywire.protocols.sabc.encoding",
    "polywire.protocols.sabc.message_frames",
    "polywire.protocols.sabc.frames",
    "polywire.protocols.sabc.assembly",
    "polywire.protocols.sabc.operations",
    "polywire.protocols.sabc.translation",
    "polywire.protocols.sabc.line",
    "polywire.protocols.sabc.subscriptions",
    "polywire.protocols.sabc.calls",
    "polywire.protocols.sabc.answers",
    "polywire.protocols.sabc.requests",
    "polywire.protocols.sabc.session",
    "polywire.protocols.micromsg.url_encoding",
    "polywire.protocols.micromsg.grammar",
    "polywire.protocols.micromsg.extensions",
    "polywire.protocols.micromsg.properties",
    "polywire.protocols.micromsg.frames",
    "polywire.protocols.micromsg.filters",
    "polywire.protocols.micromsg.windows",
    "polywire.protocols.micromsg.json_payload",
    "polywire.protocols.mqtt.ledger",
    "polywire.protocols.mqtt.stored",
    "polywire.protocols.mqtt.outgoing",
    "polywire.protocols.mqtt.incoming",
    "polywire.protocols.mqtt.subscriptions",
    "polywire.protocols.mqtt.session",
    "polywire.protocols.micromsg.bridge",
    "polywire.protocols.micromsg.outgoing",
    "polywire.protocols.micromsg.receivers",
    "polywire.protocols.micromsg.places",
    "polywire.protocols.micromsg.subscribing",
    "polywire.protocols.micromsg.session",
    "polywire.server.endpoint",
)


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
    for name in HOT_MODULES:
        origin = importlib.import_module(name).__file__ or ""
        found[name] = not origin.endswith(tuple(SOURCE_SUFFIXES))
    return found
