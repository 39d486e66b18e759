"""Pages that are made from the code as a whole: written by ``make docs``, and compared by the tests."""

import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def write_or_check(pages: Mapping[str, str], folder: str) -> int:
    """Write the pages of a folder of ``docs/``; with ``--check`` only say which are out of date. The exit code."""
    stale = 0
    known = {path.name for path in (DOCS / folder).glob("*.md")}
    for name in sorted(known | set(pages)):
        path = DOCS / folder / name
        wanted = pages.get(name)
        if wanted == (path.read_text(encoding="utf-8") if path.exists() else None):
            continue
        if "--check" in sys.argv:
            sys.stderr.write(f"docs/{folder}/{name} is not what the code says: run 'make docs'\n")
            stale += 1
        elif wanted is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
    return 1 if stale else 0
