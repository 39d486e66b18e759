"""Start page, tutorials and how-to pages, typed as they are written."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.walkthrough import Walk, steps

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = {"curl", "mosquitto", "mosquitto_pub", "mosquitto_sub", "openssl"}
"""Programs of the system that pages use."""


def _pages() -> Sequence[object]:
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        typed = [*steps(page)]
        text = "".join(step.text for step in typed)
        if any(step.what in {"command", "terminal"} for step in typed):
            # Spark takes all cores: one such page at a time.
            marks = [pytest.mark.xdist_group("spark")] if "pipeline" in text or "spark_session" in text else []
            found.append(pytest.param(page, marks=marks, id=page.relative_to(DOCS).as_posix()))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", _pages())
def test_a_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    typed = [*steps(page)]
    words = {word for step in typed if step.what in {"command", "terminal"} for word in step.text.split()}
    missing = sorted(name for name in words & NEEDED if not _found(name))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with Walk(tmp_path) as walk:
        for step in typed:
            walk.type(step)


def _found(name: str) -> bool:
    return shutil.which(name) is not None or shutil.which(name, path="/usr/sbin") is not None
