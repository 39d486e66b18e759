"""What MkDocs needs to know of our pages: named in mkdocs.yml, called by MkDocs while it builds the site.

The pages are written for a Git host as well. There a fence may say more than its language, and a link may lead out of
``docs/``; here the one is cut short, and what the other leads to becomes a part of the site.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages that stand beside ``docs/``, where Git hosts look for them."""
_FENCE = re.compile(r"^(\s*```[a-z]+) .*$", re.MULTILINE)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CELL = re.compile(r"`[^`]*`|(?<=\w)<(?=\w)")
"""What is read differently in a table: a piece of code, and a type such as ``array<binary>``."""
_RULE = re.compile(r"^(\| *)([A-Z][A-Z0-9]*-\d{2,3})(?= *\|)", re.MULTILINE)
"""A rule's number, which is not to be broken at its hyphen."""
_OUT = re.compile(r"\]\((?P<up>(?:\.\./)*)(?P<path>(?:examples/[\w./-]+|CONTRIBUTING\.md|CHANGELOG\.md))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the examples, and the pages beside ``docs/``."""
    examples = sorted(path for path in (ROOT / "examples").iterdir() if path.is_file())
    for path in [*examples, *(ROOT / name for name in BESIDE)]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs names them
    """The page as MkDocs can read it."""
    markdown = _FENCE.sub(r"\1", markdown)
    markdown = _ROW.sub(lambda row: _CELL.sub(_readable, row[0]), markdown)
    markdown = _RULE.sub(r'\1<span class="rule">\2</span>', markdown)
    if page.file.src_uri.startswith("conformance/"):
        page.meta["hide"] = ["toc"]  # one wide table
        page.meta["search"] = {"boost": 0.2}  # and seldom what is looked for
    if page.file.src_uri in BESIDE:
        return re.sub(r"\]\(docs/", "](", markdown)
    # One step up fewer: what stood above docs/ stands in it now.
    return _OUT.sub(lambda link: f"]({link['up'].removeprefix('../')}{link['path']}", markdown)


def _readable(found: re.Match[str]) -> str:
    """On Git hosts a bar in code has to be escaped, here it must not be; and no type is taken for a tag."""
    return "&lt;" if found[0] == "<" else found[0].replace(r"\|", "|")
