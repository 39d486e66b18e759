"""The table of public names on each protocol's page, made from the code.

``make docs`` writes them into the pages; with ``--check`` it only says which are out of date. Compiled modules have no
docstrings, so this runs with ``POLYWIRE_PURE=1``.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

from polywire.registry import built_in

PAGES = Path(__file__).parents[2] / "docs" / "protocols"
_GENERATED = re.compile(r"(?<=<!-- names -->\n).*(?=<!-- end of names -->)", re.DOTALL)


def names(protocol: str) -> str:
    """What the protocol's package exports, with the first sentence of each docstring."""
    module = importlib.import_module(f"polywire.protocols.{protocol}")
    lines = [f"What `polywire.protocols.{protocol}` exports.", "", "| name | what it is |", "| --- | --- |"]
    names = sorted(module.__all__, key=str.lower)
    lines += [f"| `{name}` | {_about(getattr(module, name))} |" for name in names]
    return "\n".join(["", *lines, "", ""])


def page_with_names(protocol: str, page: str) -> str:
    """The page, its table as it should be."""
    return _GENERATED.sub(lambda _: names(protocol), page)


def _about(thing: object) -> str:
    """The first sentence of its docstring; for a plain value, the value."""
    if not (inspect.isclass(thing) or callable(thing) or inspect.ismodule(thing)):
        return f"`{thing!r}`" if isinstance(thing, int | str | float) else "a table"
    first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", re.sub(r"^[A-Z]+-\d+: ", "", first))[0].replace("|", "\\|")


def main() -> int:
    """Write the tables, or check them."""
    stale = 0
    for protocol in [each.name for each in built_in()]:
        path = PAGES / f"{protocol}.md"
        page = path.read_text(encoding="utf-8")
        wanted = page_with_names(protocol, page)
        if page != wanted and "--check" in sys.argv:
            sys.stderr.write(f"{path.name}: its names are not those of the code: run 'make docs'\n")
            stale += 1
        elif page != wanted:
            path.write_text(wanted, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
