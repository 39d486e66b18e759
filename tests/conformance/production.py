"""Which code production runs, found by reading it: a rule is not proven by a test of anything else.

Names are followed from function to function, beginning with commands, protocols' descriptors, the names that programs
import, and the programs in the documentation. A function, class or constant is run if code that is run refers to it. A
method is run if its class is, and if code that is run has an attribute of that name, on whichever object. So this may
count too much as run, never too little. What is left is used by tests only.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *```python.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
REFERENCE = re.compile(r"([\w.]+):(\w+)")
PROGRAMS = ("client", "peer", "bus", "server", "sync")
"""Modules with classes for programs, as all in ``polywire.client`` are: every public method of them may be called."""

Place = tuple[str, str]
"""A module and a name in it; ``Class.method`` for methods, and an empty name for what importing the module runs."""


@dataclass
class Unit:
    """A function, a class without its methods, or what a module runs when it is imported."""

    paths: set[tuple[str, ...]] = field(default_factory=set)  # names, with the attributes that follow
    attributes: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    bases: list[tuple[str, ...]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    registered: bool = False  # by its decorator


def _path(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (before := _path(node.value)):
        return (*before, node.attr)
    return ()


@dataclass
class Module:
    """A source file: its units, and what its names are imported from."""

    name: str
    imports: dict[str, Place | str] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=lambda: defaultdict(Unit))
    _importing: list[ast.Import | ast.ImportFrom] = field(default_factory=list)

    @classmethod
    def parse(cls, name: str, text: str, *, package: str = "") -> "Module":
        """Read a file. ``package`` is where relative imports begin."""
        module = cls(name)
        tree = ast.parse(text)
        module._define(tree.body, "")
        for node in module._importing:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    module.imports[alias.asname or top] = alias.name if alias.asname else top
            else:
                source = node.module or ""
                if node.level:
                    above = package.split(".")[: len(package.split(".")) - node.level + 1]
                    source = ".".join([*above, source]).strip(".")
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = (source, alias.name)
        return module

    def _read(self, unit: Unit, nodes: Iterable[ast.AST]) -> None:
        """Note what these nodes refer to, and what they import."""
        for top in nodes:
            for node in ast.walk(top):
                if isinstance(node, ast.Name | ast.Attribute):
                    if path := _path(node):
                        unit.paths.add(path)
                    if isinstance(node, ast.Attribute):
                        unit.attributes.add(node.attr)
                elif isinstance(node, ast.Constant):
                    if isinstance(node.value, str):
                        unit.strings.add(node.value)
                elif isinstance(node, ast.MatchClass):
                    unit.attributes.update(node.kwd_attrs)
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    self._importing.append(node)

    def _define(self, body: Iterable[ast.stmt], prefix: str) -> None:
        whole = self.units[prefix.removesuffix(".")]
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                unit = self.units[prefix + node.name]
                self._read(unit, [node])
                unit.arguments = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
                unit.registered = unit.registered or any(isinstance(each, ast.Call) for each in node.decorator_list)
            elif isinstance(node, ast.ClassDef):
                unit = self.units[prefix + node.name]
                unit.bases = [_path(each.value if isinstance(each, ast.Subscript) else each) for each in node.bases]
                self._read(unit, [*node.bases, *node.decorator_list, *(each.value for each in node.keywords)])
                self._define(node.body, prefix + node.name + ".")
            elif not prefix and isinstance(node, ast.Assign | ast.AnnAssign) and (names := _targets(node)):
                for name in names:
                    self._read(self.units[name], [node])
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                self._read(Unit(), [node])
            elif isinstance(node, ast.If | ast.Try | ast.With) and not prefix:
                self._define([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)], prefix)
                self._read(whole, [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt)])
            else:
                self._read(whole, [node])


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


class Sources:
    """All modules of some folders, by name."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._members: dict[Place, list[str]] = defaultdict(list)
        for module in modules.values():
            for name in module.units:
                if "." in name:
                    self._members[module.name, name.rpartition(".")[0]].append(name)

    def resolve(self, module: Module, path: tuple[str, ...]) -> Place | None:
        """Where a name with attributes behind it was defined, if that is in these sources."""
        head, *rest = path
        if head in module.units and head:
            return (module.name, head)
        target = module.imports.get(head)
        if target is None:
            return None
        if isinstance(target, tuple):
            dotted = ".".join(target)
            if dotted not in self.modules:
                return self._exported(*target)
            target = dotted
        while rest and f"{target}.{rest[0]}" in self.modules:
            target = f"{target}.{rest.pop(0)}"
        if target not in self.modules:
            return None
        return self._exported(target, rest[0]) if rest else (target, "")

    def _exported(self, module: str, name: str) -> Place | None:
        found = self.modules.get(module)
        if found is None or name == "":
            return None
        if name in found.units:
            return (module, name)
        return self.resolve(found, (name,)) if name in found.imports else None

    def members(self, place: Place) -> list[Place]:
        """The methods and classes inside a class."""
        return [(place[0], each) for each in self._members.get(place, ())]


class Production(Sources):
    """The modules of ``src``, and which of their units production runs."""

    def __init__(self, modules: Mapping[str, Module], roots: Iterable[Place], programs: Iterable[Module] = ()) -> None:
        super().__init__(modules)
        self._attributes: set[str] = set()
        self._values: set[str] = set()  # modules that are used as values, or named in a string
        self._run: set[Place] = set()
        self._queue = list(roots)
        for program in programs:
            for unit in program.units.values():
                self._follow(program, unit)
        self._spread()

    def runs(self, place: Place) -> bool:
        """Whether production runs this."""
        return place in self._run

    @cached_property
    def test_only_methods(self) -> dict[str, Place]:
        """Methods that production does not run, by name."""
        return {
            _last(name): (module.name, name)
            for module in self.modules.values()
            for name in module.units
            if "." in name and not self.runs((module.name, name)) and _last(name) not in self._attributes
        }

    def _spread(self) -> None:
        while self._queue:
            while self._queue:
                self._take(self._queue.pop())
            for owner in list(self._run):
                new = [each for each in self.members(owner) if each not in self._run]
                self._queue += [each for each in new if self._called(owner, each)]
            for module in self._values:
                named = self._attributes & self.modules[module].units.keys()
                self._queue += [(module, each) for each in named if (module, each) not in self._run]

    def _called(self, owner: Place, method: Place) -> bool:
        module, name = method[0], _last(method[1])
        is_special = name.startswith("__") and name.endswith("__")
        is_api = not name.startswith("_") and (module.startswith("polywire.client.") or _last(module) in PROGRAMS)
        return is_special or is_api or name in self._attributes or self._is_called_from_outside(owner)

    def _is_called_from_outside(self, place: Place) -> bool:
        """Whether a base class is not ours, so that somebody else calls the methods."""
        module = self.modules[place[0]]
        for base in module.units[place[1]].bases:
            found = self.resolve(module, base)
            if found is not None:
                if self._is_called_from_outside(found):
                    return True
            elif base[-1] not in PLAIN_BASES:
                return True
        return False

    def _take(self, place: Place) -> None:
        module = self.modules.get(place[0])
        if module is None or place in self._run or place[1] not in module.units:
            return
        self._run.add(place)
        if place[1]:
            self._queue.append((place[0], ""))
        else:
            units = module.units.items()
            self._queue += [(module.name, each) for each, unit in units if unit.registered and "." not in each]
        self._follow(module, module.units[place[1]])

    def _follow(self, module: Module, unit: Unit) -> None:
        self._attributes |= unit.attributes
        for path in unit.paths:
            found = self.resolve(module, path)
            if found is not None:
                self._queue.append(found)
                if not found[1]:
                    self._values.add(found[0])
        for text in unit.strings:
            if text in self.modules:
                self._values.add(text)
                self._queue.append((text, ""))
            elif (reference := REFERENCE.fullmatch(text)) is not None:
                self._queue += self._named(module, reference[1], reference[2])
            elif text.isidentifier() and ("getattr",) in unit.paths:
                self._attributes.add(text)

    def _named(self, module: Module, target: str, name: str) -> Iterator[Place]:
        """What a protocol's descriptor, or one who loads from it, means by ``module:name``."""
        for package in {module.name, *(each for each in self.modules if each.startswith("polywire.protocols."))}:
            for place in ((f"{package}.{target}", name), (target, name)):
                if place[0] in self.modules:
                    yield place


def _last(name: str) -> str:
    return name.rpartition(".")[2]


PLAIN_BASES = {
    *("object", "Protocol", "Generic", "Enum", "IntEnum", "IntFlag", "StrEnum", "NamedTuple", "ABC", "TypedDict"),
    *("Exception", "ValueError", "RuntimeError", "KeyError", "ConnectionError", "LookupError", "TimeoutError"),
}


def read_package(paths: Iterable[Path], folder: Path) -> dict[str, Module]:
    """The modules of these files, by name. ``folder`` is the one that the package is in."""
    found = {}
    for path in sorted(paths):
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        parent = name if is_package else name.rpartition(".")[0]
        found[name] = Module.parse(name, path.read_text(encoding="utf-8"), package=parent)
    return found


def production() -> Production:
    """What runs in production: commands, servers, protocols by their descriptors, and what the pages show programs."""
    src = ROOT / "src"
    modules = read_package(src.rglob("*.py"), src)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    scripts = [each.partition(":") for each in settings["project"]["scripts"].values()]
    roots: list[Place] = [(module, name) for module, _, name in scripts]
    roots += [(name, "PROTOCOL") for name in modules if name.startswith("polywire.protocols.") and name.count(".") == 2]
    sources = Sources(modules)
    for module in modules.values():
        for name in module.units["__all__"].strings if "__all__" in module.units else ():
            place = sources.resolve(module, (name,))
            if place is not None and (module.name == "polywire" or _last(place[0]) in PROGRAMS):
                roots.append(place)
    return Production(modules, roots, list(_programs()))


def _programs() -> Iterator[Module]:
    """The examples, and the programs on the pages."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield Module.parse(path.stem, path.read_text(encoding="utf-8"))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "reference" not in page.parts:
            for block in FENCE.findall(page.read_text(encoding="utf-8")):
                try:
                    yield Module.parse(page.stem, block)
                except SyntaxError:
                    continue  # one line of an indented list, say


class ExercisedCode(Sources):
    """The modules of ``tests``, and what of ``src`` each test exercises, itself or by what it is helped with."""

    def __init__(self, modules: Mapping[str, Module], src: Production) -> None:
        super().__init__({**modules, **src.modules})
        self._src = src
        self._exercised: dict[Place, list[Place]] = {}

    def test_only(self, module: str, test: str) -> set[Place]:
        """What a test exercises that production does not run."""
        found: set[Place] = set()
        seen: set[Place] = set()
        queue = [(module, each) for each in self.modules[module].units if _last(each) == test]
        while queue:
            place = queue.pop()
            if place in seen:
                continue
            seen.add(place)
            if place[0] not in self._src.modules:
                queue += self._directly(place)
            elif place[1] and not self._src.runs(place):
                found.add(place)
        return found

    def _directly(self, place: Place) -> list[Place]:
        """What a test, a fixture or another part of the tests refers to."""
        if place not in self._exercised:
            module = self.modules[place[0]]
            unit = module.units[place[1]] if place[1] in module.units else Unit()
            methods = self._src.test_only_methods
            found = [methods[each] for each in unit.attributes & methods.keys()]
            found += [each for each in (self.resolve(module, path) for path in unit.paths) if each is not None]
            found += self.members(place)
            found += [(where, each) for each in unit.arguments for where in self._fixtures(place[0])]
            self._exercised[place] = found
        return self._exercised[place]

    def _fixtures(self, module: str) -> Iterator[str]:
        """Where a test's fixtures may be: its own module, and each ``conftest`` above it."""
        yield module
        while module:
            module = module.rpartition(".")[0]
            if f"{module}.conftest" in self.modules:
                yield f"{module}.conftest"


def proven_on_test_code(proofs: Mapping[str, Iterable[tuple[str, str]]]) -> dict[str, list[str]]:
    """By rule, which tests exercise what production does not run. ``proofs``: by rule, its tests' files and names."""
    proving = {ROOT / file for places in proofs.values() for file, _ in places}
    others = (path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_"))
    tests = ExercisedCode(read_package({*proving, *others}, ROOT), production())
    found: defaultdict[str, list[str]] = defaultdict(list)
    for rule, places in proofs.items():
        for file, name in places:
            module = file.removesuffix(".py").replace("/", ".")
            for where, what in sorted(tests.test_only(module, name)):
                found[rule].append(f"{file}::{name} exercises {where}.{what}, which only tests use")
    return found
