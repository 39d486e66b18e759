"""Import cycles are found wherever the import is written, and reported with their lines."""

from pathlib import Path

import pytest
from grimp import ImportGraph, build_graph

from tools.import_cycles import cycles


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ImportGraph:
    """The import graph of a package with these files."""
    name = tmp_path.name
    for file, text in request.param.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text.replace("planted", name))
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return build_graph(name, exclude_type_checking_imports=False, cache_dir=None)


def report(graph: ImportGraph) -> str:
    (name,) = [module for module in graph.modules if "." not in module]
    return "\n".join(line for cycle in cycles(graph) for line in cycle).replace(name, "planted")


UNDER_TYPE_CHECKING = {
    "one.py": "from planted import two\n",
    "two.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted import one\n",
}
IN_A_FUNCTION = {
    "one.py": "from planted.two import two\n",
    "two.py": "def two():\n    from planted.one import one\n",
}


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (UNDER_TYPE_CHECKING, ["planted.one:1", "planted.two:4"]),
        (IN_A_FUNCTION, ["planted.one:1", "planted.two:2"]),
    ],
    indirect=["planted"],
)
def test_a_cycle_of_modules_is_reported_with_its_lines(planted: ImportGraph, expected: list[str]) -> None:
    cycle, *lines = report(planted).splitlines()
    assert "planted.one -> planted.two" in cycle
    assert "planted.two -> planted.one" in cycle
    assert [line.partition(": ")[0].strip() for line in sorted(lines)] == expected


PACKAGES = {
    "config/checks.py": "from planted import admission\n",
    "config/schema.py": "",
    "admission.py": "from planted.config import schema\n",
}


@pytest.mark.parametrize("planted", [PACKAGES], indirect=True)
def test_packages_that_need_each_other_are_a_cycle_though_no_two_modules_are(planted: ImportGraph) -> None:
    assert report(planted).splitlines() == [
        "import cycle: planted.admission -> planted.config -> planted.admission",
        "  planted.admission:1: from planted.config import schema",
        "  planted.config.checks:1: from planted import admission",
    ]


@pytest.mark.parametrize("planted", [{"one.py": "from planted import two\n", "two.py": ""}], indirect=True)
def test_no_cycle_is_no_report(planted: ImportGraph) -> None:
    assert report(planted) == ""
