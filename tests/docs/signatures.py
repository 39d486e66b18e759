"""Signatures as they are written in the sources: for the reference, where types should read as we read them."""

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping

WIDTH = 100
Known = Mapping[str, object]
"""The names of a module, and what they stand for."""


def signature(thing: object, name: str) -> str:
    """How it is called: a function, a property, or what makes an object of a class. Empty where nothing is known."""
    if isinstance(thing, property):
        node = _node(thing.fget)
        returns = f": {_type(node.returns)}" if isinstance(node, _FUNCTIONS) and node.returns else ""
        return f"{name}{returns}"
    if inspect.isclass(thing):
        return _of_class(thing, name)
    plain = inspect.unwrap(thing) if callable(thing) else thing
    node = _node(plain)
    if not isinstance(node, _FUNCTIONS):
        return ""
    awaited = "await " if inspect.iscoroutinefunction(plain) else ""
    return awaited + _of_function(node, name, getattr(plain, "__globals__", {}))


def members(thing: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties of a class and of those of ours that it is made of, in their order."""
    seen: dict[str, object] = {}
    for each in reversed(thing.__mro__):
        if each.__module__.startswith("polywire"):
            for name, value in vars(each).items():
                found = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
                    seen[name] = found
    yield from seen.items()


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def _node(thing: object) -> ast.stmt | None:
    """Its piece of the source."""
    try:
        source = inspect.getsource(thing)  # type: ignore[arg-type] # what has no source raises
    except (OSError, TypeError):
        return None
    return ast.parse(textwrap.dedent(source)).body[0]


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, known: Known) -> str:
    arguments = [each for each in _arguments(node.args, known) if each.partition(":")[0] not in {"self", "cls"}]
    returns = f" -> {_type(node.returns)}" if node.returns else ""
    return _wrapped(name, arguments, returns)


def _of_class(thing: type, name: str) -> str:
    """From ``__init__`` where one of ours is written down, otherwise from the fields."""
    for each in thing.__mro__:
        if not each.__module__.startswith("polywire"):
            continue
        node, known = _node(each), vars(sys.modules[each.__module__])
        if not isinstance(node, ast.ClassDef):
            continue
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                arguments = [written for written in _arguments(part.args, known) if written != "self"]
                return _wrapped(name, arguments, "")
        fields = [
            _written(ast.unparse(part.target), part.annotation, part.value, known)
            for part in node.body
            if isinstance(part, ast.AnnAssign)
            and not ast.unparse(part.target).startswith("_")
            and "ClassVar" not in ast.unparse(part.annotation)
        ]
        if fields:
            return _wrapped(name, fields, "")
    return ""


def _arguments(arguments: ast.arguments, known: Known) -> Iterator[str]:
    """Each argument as it is written, with the marks between the kinds of them."""
    places = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(arguments.defaults))
    for number, (each, default) in enumerate(zip(places, [*defaults, *arguments.defaults], strict=True), 1):
        yield _written(each.arg, each.annotation, default, known)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield "*" + _written(arguments.vararg.arg, arguments.vararg.annotation, None, known)
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _written(each.arg, each.annotation, default, known)
    if arguments.kwarg:
        yield "**" + _written(arguments.kwarg.arg, arguments.kwarg.annotation, None, known)


def _written(name: str, annotation: ast.expr | None, default: ast.expr | None, known: Known) -> str:
    """An argument or field. A default that is the name of a plain value is shown as that value."""
    written = name if annotation is None else f"{name}: {_type(annotation)}"
    if default is None:
        return written
    if isinstance(default, ast.Call) and ast.unparse(default.func) in {"field", "dataclasses.field"}:
        given = [each.value for each in default.keywords if each.arg == "default"]
        if not given:
            made = any(each.arg == "default_factory" for each in default.keywords)
            return f"{written} = …" if made else written
        default = given[0]
    value = known.get(default.id) if isinstance(default, ast.Name) else None
    shown = repr(value) if isinstance(value, int | float | str) else ast.unparse(default)
    return f"{written}{' = ' if annotation else '='}{shown}"


def _type(annotation: ast.expr) -> str:
    """A type as it is written, without the quotes around one that is not known yet."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def _wrapped(name: str, arguments: list[str], returns: str) -> str:
    """On one line where it fits, otherwise a line for each argument."""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returns}"
