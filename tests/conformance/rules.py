"""The numbered rules, read from the tables in docs/protocols/<name>.md."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "protocols"
ROW = re.compile(r"^\|\s*(?P<number>[A-Z][A-Z0-9]*-\d{2,3})\s*\|\s*(?P<level>\w+)\s*\|(?P<text>.*)\|\s*$")
LEVELS = ("codec", "hub", "client", "journal")


@dataclass(frozen=True, slots=True)
class Rule:
    """One numbered rule. ``level`` says what can show it: the codec alone, the hub, a client, the journal."""

    number: str
    protocol: str
    level: str
    text: str


class RuleTableError(Exception):
    """A protocol page's table of rules is not well formed."""


def read_page(page: Path) -> list[Rule]:
    """The rules of one protocol page, in order."""
    rules: list[Rule] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row is None:
            continue
        if row["level"] not in LEVELS:
            raise RuleTableError(f"{page.name}: {row['number']} has level {row['level']!r}, not one of {LEVELS}")
        if any(rule.number == row["number"] for rule in rules):
            raise RuleTableError(f"{page.name}: {row['number']} stands twice")
        rules.append(Rule(row["number"], page.stem, row["level"], row["text"].strip()))
    return rules


def read_rules(docs: Path = DOCS) -> dict[str, Rule]:
    """All rules by number."""
    return {rule.number: rule for page in sorted(docs.glob("*.md")) for rule in read_page(page)}
