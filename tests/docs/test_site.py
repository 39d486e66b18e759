"""The documentation as a site, and the same pages on a Git host: both build, and no link is dead."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\s\">]*)|<link[^>]*\shref=\"?(https?:[^\s\">]*)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so that every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(  # noqa: S603 - a tool of ours
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    found = {page.name: LOADED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert {name: links for name, links in found.items() if links} == {}


def test_no_fence_is_left_over_as_text(site: Path) -> None:
    left = [page.name for page in site.rglob("*.html") if "```" in page.read_text(encoding="utf-8")]
    assert left == []


def _anchors(page: Path) -> set[str]:
    """The names of its headings, as Git hosts make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead_on_a_git_host(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in _anchors(target), link


def test_a_type_in_a_table_is_not_taken_for_a_tag_nor_a_bar_for_the_end_of_a_cell(site: Path) -> None:
    assert "<td><code>array&lt;binary&gt;</code></td>" in (site / "pipeline.html").read_text(encoding="utf-8")
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "<code>WHAT &lt;pubsub|publish|call&gt;</code>" in commands
