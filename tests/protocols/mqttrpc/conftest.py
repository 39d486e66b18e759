"""The document's example service, compiled by protoc as an application would."""

from types import ModuleType

import pytest

from tests.protocols.mqttrpc.protobuf import MY_COOL_SERVICE, compiled


@pytest.fixture(scope="session")
def my_cool_service(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return compiled(tmp_path_factory.mktemp("protoc"), "simple_rpc", MY_COOL_SERVICE)
