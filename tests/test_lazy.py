"""Names that are loaded when they are first used are those that type checkers see."""

import ast
import importlib
import inspect

import pytest

from polywire.registry import built_in

PACKAGES = ["polywire", *(each.package for each in built_in())]


def _imported(package: str) -> dict[str, tuple[str, str]]:
    """The names that a package imports for type checkers, with their modules, and their names there."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {each.asname or each.name: (node.module or "", each.name) for node in imports for each in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_what_type_checkers_take_it_for(package: str) -> None:
    module = importlib.import_module(package)
    imported = _imported(package)
    for name, (source, own) in imported.items():
        assert getattr(module, name) is getattr(importlib.import_module(source), own)
    assert set(imported) <= set(module.__all__) <= set(dir(module))
    assert set(module.__all__) - set(imported) <= set(vars(module))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    module = importlib.import_module("polywire.protocols.fmqp")
    with pytest.raises(AttributeError, match=r"module 'polywire\.protocols\.fmqp' has no attribute 'Frisbee'"):
        _ = module.Frisbee
