"""Fail on an import cycle, between modules or between packages: ``make lint`` runs it.

Every import counts, also under ``TYPE_CHECKING`` and inside functions: two modules that need each other can't be
understood, tested or moved apart, whenever the import happens. Packages are checked level by level, each as a whole:
``server.config`` may not need ``server.gate`` if that needs ``server.config``. Run by hand::

    python tools/import_cycles.py
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from grimp import ImportGraph, build_graph

PACKAGE = "polywire"


def main() -> int:
    """Print each cycle that is found, with its lines, and say whether there was none."""
    graph = build_graph(PACKAGE, exclude_type_checking_imports=False, cache_dir=None)
    found = list(cycles(graph))
    for cycle in found:
        print("\n".join(cycle), file=sys.stderr)
    return 1 if found else 0


def cycles(graph: ImportGraph) -> Iterator[list[str]]:
    """One cycle of modules if there is any, else one of each package's parts; as lines for people."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    cycle = _cycle(imports)
    if cycle:
        yield _report(graph, imports, cycle, {module: module for module in imports})
        return
    for package in sorted(graph.modules):
        parts = part_of(package, graph.modules)
        cycle = _cycle(between_parts(imports, parts))
        if cycle:
            yield _report(graph, imports, cycle, parts)


def part_of(package: str, modules: set[str]) -> dict[str, str]:
    """For each module below a package the package's child that it is, or belongs to."""
    depth = package.count(".") + 2
    return {each: ".".join(each.split(".")[:depth]) for each in modules if each.startswith(package + ".")}


def between_parts(imports: Mapping[str, set[str]], parts: Mapping[str, str]) -> dict[str, set[str]]:
    """What each part imports of the others."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, part in parts.items():
        found[part] |= {parts[each] for each in imports[module] if parts.get(each, part) != part}
    return found


def _cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """Nodes of which each imports the next, the first one again at the end; or nothing."""
    try:
        TopologicalSorter({each: sorted(imports[each]) for each in sorted(imports)}).prepare()
    except CycleError as error:
        nodes: list[str] = error.args[1]
        return nodes[::-1]
    return []


def _report(
    graph: ImportGraph, imports: Mapping[str, set[str]], cycle: list[str], parts: Mapping[str, str]
) -> list[str]:
    lines = [f"import cycle: {' -> '.join(cycle)}"]
    for importer, imported in pairwise(cycle):
        for module in sorted(each for each, part in parts.items() if part == importer):
            for target in sorted(each for each in imports[module] if parts.get(each) == imported):
                details = graph.get_import_details(importer=module, imported=target)
                lines += [f"  {module}:{each['line_number']}: {each['line_contents']}" for each in details]
    return lines


if __name__ == "__main__":
    sys.exit(main())
