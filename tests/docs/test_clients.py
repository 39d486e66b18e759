"""The pages' examples that need a hub (fenced as ``python hub``) run against one."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.registry import FEATURES, built_in
from tests.hub_process import HubProcess, running_hub

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python hub\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = {"7101": "umq", "7102": "micromsg", "7103": "fmqp", "1883": "mqtt", "7105": "sabc"}
EXAMPLES = [
    pytest.param(page, block, id=f"{page.stem}-{number}")
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
]


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
def test_every_example_that_needs_a_hub_runs(page: Path, block: str, hub: HubProcess, tmp_path: Path) -> None:
    def port(found: re.Match[str]) -> str:
        return f"127.0.0.1:{hub.port(PORTS[found[1]])}"

    program = tmp_path / f"{page.stem}.py"
    program.write_text(re.sub(r"127\.0\.0\.1:(\d+)", port, block), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own documentation
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in re.findall(r"# prints (.*)", block):
        assert words in done.stdout


def test_the_page_tells_what_each_protocol_can_do() -> None:
    page = (DOCS / "clients.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_]+)`(?:[^|]*)\| ((?:yes|no)(?: \| (?:yes|no)){4}) \|$", page, re.MULTILINE))
    wanted = {
        what: " | ".join("yes" if what in each.can else "no" for each in built_in() if each.schemes)
        for what in FEATURES
        if what.isidentifier()
    }
    assert rows == wanted


def test_the_page_lists_every_scheme() -> None:
    page = (DOCS / "clients.md").read_text(encoding="utf-8")
    assert {scheme for each in built_in() for scheme in each.schemes if f"`{scheme}`" not in page} == set()
