"""Definitions that protoc compiles for tests, as an application would."""

import importlib.util
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from grpc_tools import protoc

MY_COOL_SERVICE = """
syntax = "proto3";
package examples;
message HelloRequest { string name = 1; }
message HelloResponse { string greeting = 1; }
service MyCoolService {
  rpc SayHello(HelloRequest) returns (HelloResponse);
  rpc GreetAll(stream HelloRequest) returns (HelloResponse);
  rpc GreetOften(HelloRequest) returns (stream HelloResponse);
  rpc Chat(stream HelloRequest) returns (stream HelloResponse);
}
"""


def run_protoc(folder: Path, outputs: Sequence[str], source: str) -> None:
    """Compile ``source``, a path below ``folder``, as ``make proto`` does."""
    include = str(files("grpc_tools") / "_proto")
    assert protoc.main(["protoc", f"-I{folder}", f"-I{include}", *outputs, source]) == 0


def compiled(folder: Path, name: str, definition: str) -> ModuleType:
    """The module protoc makes of a definition, written to ``folder``."""
    (folder / f"{name}.proto").write_text(definition, encoding="utf-8")
    run_protoc(folder, [f"--python_out={folder}"], f"{name}.proto")
    spec = importlib.util.spec_from_file_location(f"{name}_pb2", folder / f"{name}_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
