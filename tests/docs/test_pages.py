"""The documentation says what the code does."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polywire
import polywire.journal
from polywire.journal import Log
from polywire.registry import built_in
from polywire.server.config import load
from tests.conformance.rules import read_page
from tests.journal.rows import NODE, compact, rows

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEAST_RULES = {"umq": 40, "micromsg": 40, "fmqp": 40, "mqtt": 60, "mqttrpc": 25, "sabc": 40}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where examples run: a folder with a journal of a few segments, one of them compacted."""
    monkeypatch.chdir(tmp_path)
    with Log(Path("journal"), node=NODE) as log:
        for first in range(0, 30, 10):
            log.append(rows(first, 10, channel=[f"sensors/{number}" for number in range(10)]), state=False)
            log.roll()
        log.append(rows(30, 5), state=False)
    compact(Path("journal"), 0)
    return tmp_path


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_runs(page: Path) -> None:
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, str(page), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own documentation


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_piece_of_configuration_is_one(page: Path, tmp_path: Path) -> None:
    for block in TOML.findall(page.read_text(encoding="utf-8")):
        config = tmp_path / "polywire.toml"
        config.write_text(block, encoding="utf-8")
        load(config)


@pytest.mark.parametrize("protocol", [each.name for each in built_in()])
def test_each_protocol_has_a_page_with_its_rules_and_deviations(protocol: str) -> None:
    page = DOCS / "protocols" / f"{protocol}.md"
    text = page.read_text(encoding="utf-8")
    assert text.index("## Rules") < text.index("## Deviations")
    rules = read_page(page)
    assert len(rules) >= LEAST_RULES[protocol]
    numbers = [int(rule.number.rpartition("-")[2]) for rule in rules]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("protocol", [each.name for each in built_in()])
def test_each_page_lists_every_public_name(protocol: str) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \| \S", page, re.MULTILINE))
    assert set(importlib.import_module(f"polywire.protocols.{protocol}").__all__) <= listed


@pytest.mark.parametrize(
    "pages", ["architecture", "public_names", "python_reference", "command_reference", "conformance_tables"]
)
def test_what_is_made_from_the_code_is_up_to_date(pages: str) -> None:
    command = [sys.executable, "-m", f"tests.docs.{pages}", "--check"]
    environment = {**os.environ, "POLYWIRE_PURE": "1"}
    done = subprocess.run(  # noqa: S603 - our own module
        command, cwd=DOCS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_journals_page_lists_every_public_name() -> None:
    page = (DOCS / "journal.md").read_text(encoding="utf-8").partition("## Public names")[2]
    assert set(re.findall(r"^\| `(\w+)` \| \S", page, re.MULTILINE)) == set(polywire.journal.__all__)


def test_the_package_exports_what_the_architecture_page_lists() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `polywire\.(\w+)", text, re.MULTILINE))
    assert listed == set(polywire.__all__)
