"""docs/conformance/<protocol>.md: every numbered rule, and the tests that prove it, read from the tests' sources.

``make docs`` writes them; with ``--check`` it only says which are out of date.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.conformance.rules import Rule, read_page
from tests.docs.generated import DOCS, write_or_check

TESTS = Path(__file__).parents[1]
NUMBER = re.compile(r"[A-Z][A-Z0-9]*-\d{2,3}")
TITLES = {
    "umq": "UMQ",
    "micromsg": "MicroMsg2",
    "fmqp": "FMQP",
    "mqtt": "MQTT 3.1.1",
    "mqttrpc": "RPC over MQTT",
    "sabc": "sABC",
}


def proofs() -> dict[str, list[tuple[str, str]]]:
    """For each rule's number the tests that carry it, as file and name."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(TESTS.parent).as_posix()
        whole = [number for node in tree.body if isinstance(node, ast.Assign) for number in _numbers([node.value])]
        tables = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for name, decorators in _tests(tree):
            named = [tables[each.id] for each in _names(decorators) if each.id in tables]
            for number in dict.fromkeys([*whole, *_numbers(decorators), *_in_tables(decorators, named)]):
                found[number].append((file, name))
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """Each test with its decorators, those of its class included."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
                    yield each.name, [*node.decorator_list, *each.decorator_list]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, node.decorator_list


def _numbers(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """The arguments of each ``pytest.mark.rule(…)`` in there."""
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "rule":
                yield from (str(each.value) for each in call.args if isinstance(each, ast.Constant))


def _names(nodes: Iterable[ast.expr]) -> Iterator[ast.Name]:
    return (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))


def _in_tables(decorators: Iterable[ast.expr], tables: Iterable[ast.expr]) -> Iterator[str]:
    """Numbers in the tables that a test takes its cases from, where its marks are made of them."""
    calls = [each for node in decorators for each in ast.walk(node) if isinstance(each, ast.Call)]
    if any(ast.unparse(call.func) == "pytest.mark.rule" and not _plain(call) for call in calls):
        for table in tables:
            for each in ast.walk(table):
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and NUMBER.fullmatch(each.value):
                    yield each.value


def _plain(call: ast.Call) -> bool:
    return all(isinstance(each, ast.Constant) for each in call.args)


def page(protocol: str, proven: dict[str, list[tuple[str, str]]]) -> str:
    """The page of one protocol."""
    rules = read_page(DOCS / "protocols" / f"{protocol}.md")
    title = TITLES[protocol]
    lines = [
        f"# {title}: where each rule is proven",
        "",
        f"The {len(rules)} rules of [{title}](../protocols/{protocol}.md#rules), and for each the tests that carry its",
        "number. `make conformance` runs them and fails where a rule has none that passes. This page is made from the",
        "tests by `make docs`.",
        "",
        "| rule | shown by | what it says | proven in |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {rule.number} | {rule.level} | {rule.text.rpartition(' | ')[0]} | {_places(rule, proven)} |"
        for rule in rules
    ]
    return "\n".join([*lines, ""])


def _places(rule: Rule, proven: dict[str, list[tuple[str, str]]]) -> str:
    """The files, and how many tests in each; the name where there is one only."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file, name in proven.get(rule.number, ()):
        files[file].append(name)
    return "<br>".join(
        f"`{file}`: " + (names[0].removeprefix("test_").replace("_", " ") if len(names) == 1 else f"{len(names)} tests")
        for file, names in files.items()
    )


def main() -> int:
    """Write the pages, or check them."""
    proven = proofs()
    return write_or_check({f"{protocol}.md": page(protocol, proven) for protocol in TITLES}, "conformance")


if __name__ == "__main__":
    sys.exit(main())
