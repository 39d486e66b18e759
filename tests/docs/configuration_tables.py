"""The tables of docs/configuration.md, made from the structs.

``make docs`` writes them into the page.
"""

import inspect
import re
from pathlib import Path

from polywire.cli.config import value_text
from polywire.server.config.schema import Table, root

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
_GENERATED = re.compile(r"(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def tables() -> str:
    """One heading, sentence and table for each section."""
    return "\n".join(_table(table) for table in root().walk() if table.keys) + "\n"


def page_with_tables(page: str) -> str:
    """The page, its tables as they should be."""
    return _GENERATED.sub(lambda _: "\n" + tables(), page)


def _table(table: Table) -> str:
    name = ".".join(table.path)
    heading = f"### `[[{name}]]`" if table.many else f"### `[{name}]`"
    lines = [heading, "", inspect.getdoc(table.struct) or "", "", "| key | allowed | default | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for key in table.keys.values():
        default = "required" if key.required else _default(key.kind.show(key.default))
        lines.append(f"| `{key.name}` | {key.kind.allowed} | {default} | {key.kind.about} |")
    return "\n".join([*lines, ""])


def _default(shown: object) -> str:
    return "none" if shown in (None, {}) else f"`{value_text(shown)}`"


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
