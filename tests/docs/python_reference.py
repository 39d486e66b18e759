"""docs/reference/python/*.md: the public names with their signatures and docstrings, as they stand in the sources.

``make docs`` writes the pages; with ``--check`` it only says which are out of date. Compiled modules have neither
docstrings nor sources, so this runs with ``POLYWIRE_PURE=1``. Signatures are fenced as ``py``: they do not run.
"""

import enum
import importlib
import inspect
import sys
import types
from collections.abc import Iterator

from tests.docs.generated import write_or_check
from tests.docs.signatures import members, signature

PAGES = {
    "polywire": (
        "polywire",
        "What most programs need: [clients](../../clients.md) tells how it is used.",
        ["polywire"],
    ),
    "bus": (
        "Streams, queues, services",
        "What `Bus` gives, and TLS for servers of one's own.",
        ["polywire.client.bus:Stream,Queue", "polywire.client.adapter:Service", "polywire.client.tls:server_context"],
    ),
    "sync": (
        "polywire.sync",
        "The same for scripts and notebooks: [how it is used](../../clients.md#scripts-and-notebooks).",
        ["polywire.sync:connect,Bus,Messages,Jobs,Serving"],
    ),
    "journal": (
        "polywire.journal",
        "[The journal](../../journal.md) tells what is in it.",
        ["polywire.journal", "polywire.journal.readers:NamedReaders", "polywire.journal.verify:verify"],
    ),
    "pipeline": (
        "polywire.pipeline",
        "[The pipeline](../../pipeline.md) tells how it is used.",
        [
            "polywire.pipeline.spark:spark_session,register",
            "polywire.pipeline.table:table,Table",
            "polywire.pipeline.lake:Lake",
            "polywire.pipeline.errors",
        ],
    ),
    "umq": ("polywire.protocols.umq", "", ["polywire.protocols.umq"]),
    "micromsg": ("polywire.protocols.micromsg", "", ["polywire.protocols.micromsg"]),
    "fmqp": ("polywire.protocols.fmqp", "", ["polywire.protocols.fmqp"]),
    "mqtt": ("polywire.protocols.mqtt", "", ["polywire.protocols.mqtt"]),
    "mqttrpc": (
        "polywire.protocols.mqttrpc",
        "",
        ["polywire.protocols.mqttrpc.client", "polywire.protocols.mqttrpc.server", "polywire.protocols.mqttrpc"],
    ),
    "sabc": ("polywire.protocols.sabc", "", ["polywire.protocols.sabc"]),
}
MADE = "Made from the code by `make docs`."


def page(name: str) -> str:
    """One page: its modules' public names, functions first."""
    title, words, sources = PAGES[name]
    if not words:
        words = f"[The protocol](../../protocols/{name}.md), and [the clients](../../clients.md)."
    parts = [f"# {title}\n", f"{words} {MADE}\n"]
    for source in sources:
        module, _, chosen = source.partition(":")
        loaded = importlib.import_module(module)
        names = chosen.split(",") if chosen else _public(loaded)
        if len(sources) > 1:
            parts.append(f"From `{module}`:\n")
        for each in sorted(names, key=lambda each: (_rank(getattr(loaded, each)), each.lower())):
            parts += _described(each, getattr(loaded, each))
    return "\n".join(parts)


def _public(module: types.ModuleType) -> list[str]:
    """What it says is public, otherwise what it defines under a name that is."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if not name.startswith("__")]
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__ and callable(thing)
    ]


def _rank(thing: object) -> int:
    """Functions, then classes, then errors, then plain values."""
    if inspect.isclass(thing):
        return 2 if issubclass(thing, BaseException) else 1
    return 0 if callable(thing) else 3


def _described(name: str, thing: object) -> Iterator[str]:
    yield f"## `{name}`\n"
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        yield _text(thing)
        yield "| member | value |\n| --- | --- |"
        yield "\n".join(f"| `{each.name}` | `{each.value!r}` |" for each in thing) + "\n"
    elif inspect.isclass(thing) or inspect.isfunction(thing):
        written = signature(thing, name)
        if written:
            yield f"```py\n{written}\n```\n"
        yield _text(thing)
        if inspect.isclass(thing):
            for member, found in members(thing):
                yield f"### `{name}.{member}`\n"
                yield f"```py\n{signature(found, member)}\n```\n"
                yield _text(found)
    else:
        yield f"`{thing!r}`\n" if isinstance(thing, int | str | float) else "A table of values.\n"


def _text(thing: object) -> str:
    """Its docstring. Double back quotes and indented examples mean the same in Markdown."""
    if isinstance(thing, property):
        thing = thing.fget
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    return text + "\n" if text else ""


if __name__ == "__main__":
    sys.exit(write_or_check({f"{name}.md": page(name) for name in PAGES}, "reference/python"))
