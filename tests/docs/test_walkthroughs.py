"""Start page, tutorials and how-to pages, typed as they are written."""

import shutil
from pathlib import Path

import pytest

from tests.docs.walkthrough import Step, Walk, expected, steps

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = {"curl", "mosquitto", "mosquitto_pub", "mosquitto_sub", "openssl"}
"""Programs of the system that pages use."""


def _typed(page: Path) -> list[Step]:
    """The steps of a page on which something is typed, none of another one."""
    found = [*steps(page)]
    return found if any(step.what in {"command", "terminal"} for step in found) else []


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if _typed(page)]
WITH_SPARK = [page for page in PAGES if any("pipeline " in s.text or "spark_session" in s.text for s in _typed(page))]
WITHOUT_SPARK = [page for page in PAGES if page not in WITH_SPARK]


def _walk(page: Path, folder: Path) -> None:
    typed = _typed(page)
    words = {word for step in typed if step.what in {"command", "terminal"} for word in step.text.split()}
    missing = sorted(name for name in words & NEEDED if not _found(name))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with Walk(folder) as walk:
        for step in typed:
            walk.type(step)


def _found(name: str) -> bool:
    return shutil.which(name) is not None or shutil.which(name, path="/usr/sbin") is not None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    _walk(page, tmp_path)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_that_starts_spark_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    _walk(page, tmp_path)


def test_the_pages_that_promise_to_work_are_walked_through() -> None:
    promised = {DOCS / "start.md", *(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")}
    assert promised - set(PAGES) == {DOCS / "how-to" / "cluster.md"}  # tests/pipeline/test_cluster.py does that one


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("one\ntwo\n", True),
        ("before\none\nbetween\ntwo\nbehind\n", True),
        ("two\none\n", False),
        ("one\n", False),
        ("one more\ntwo\n", False),
    ],
)
def test_output_is_compared_line_by_line_and_in_order(printed: str, same: bool) -> None:
    assert bool(expected("one\ntwo\n").search(printed)) == same


def test_dots_in_an_output_stand_for_anything() -> None:
    assert expected("at … o'clock").search("at 12 o'clock\n")
    assert not expected("at … o'clock").search("at noon\n")
