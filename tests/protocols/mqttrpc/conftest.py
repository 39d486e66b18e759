"""The document's example service, compiled by protoc as an application would."""

import importlib.util
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
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


@pytest.fixture(scope="session")
def my_cool_service(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("protoc")
    (folder / "simple_rpc.proto").write_text(MY_COOL_SERVICE, encoding="utf-8")
    run_protoc(folder, [f"--python_out={folder}"], "simple_rpc.proto")
    spec = importlib.util.spec_from_file_location("simple_rpc_pb2", folder / "simple_rpc_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
