"""The envelopes: their fields, and that the committed module is what protoc makes of the .proto file."""

from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from polywire.protocols.mqttrpc import envelope_pb2
from tests.protocols.mqttrpc.protobuf import run_protoc

SOURCE = Path(__file__).parents[3] / "src"
FOLDER = "polywire/protocols/mqttrpc"


def fields(message: type[Message]) -> dict[str, tuple[int, int]]:
    return {field.name: (field.number, field.type) for field in message.DESCRIPTOR.fields}


def holds(message: type[Message], name: str) -> str:
    """The full name of the message in a field."""
    inner = message.DESCRIPTOR.fields_by_name[name].message_type
    return "" if inner is None else inner.full_name


@pytest.mark.rule("MQTTRPC-05")
def test_a_request_has_the_fields_of_the_schema() -> None:
    assert fields(envelope_pb2.Request) == {
        "correlation_id": (1, FieldDescriptor.TYPE_UINT64),
        "body": (2, FieldDescriptor.TYPE_MESSAGE),
        "eos": (3, FieldDescriptor.TYPE_BOOL),
        "timeout": (5, FieldDescriptor.TYPE_UINT32),
        "timeout_unit": (6, FieldDescriptor.TYPE_ENUM),
    }
    assert holds(envelope_pb2.Request, "body") == "google.protobuf.Any"


@pytest.mark.rule("MQTTRPC-21")
def test_a_response_has_the_fields_of_the_schema() -> None:
    assert fields(envelope_pb2.Response) == {
        "correlation_id": (1, FieldDescriptor.TYPE_UINT64),
        "body": (2, FieldDescriptor.TYPE_MESSAGE),
        "error_data": (3, FieldDescriptor.TYPE_MESSAGE),
        "eos": (4, FieldDescriptor.TYPE_BOOL),
    }
    assert holds(envelope_pb2.Response, "body") == "google.protobuf.Any"
    assert holds(envelope_pb2.Response, "error_data") == "polywire.mqttrpc.ErrorData"


@pytest.mark.rule("MQTTRPC-34")
def test_error_data_has_the_fields_of_the_schema() -> None:
    assert fields(envelope_pb2.ErrorData) == {
        "code": (1, FieldDescriptor.TYPE_UINT32),
        "tag": (2, FieldDescriptor.TYPE_STRING),
        "user_message": (3, FieldDescriptor.TYPE_STRING),
        "retry_after": (4, FieldDescriptor.TYPE_UINT32),
    }


@pytest.mark.rule("MQTTRPC-35")
def test_the_timeout_units_have_the_numbers_of_the_schema() -> None:
    assert dict(envelope_pb2.TimeoutUnit.items()) == {
        "Unspecified": 0,
        "Hour": 1,
        "Minute": 2,
        "Second": 3,
        "Millisecond": 4,
    }


@pytest.mark.parametrize("name", ["envelope_pb2.py", "envelope_pb2.pyi"])
def test_the_committed_module_is_what_protoc_generates(name: str, tmp_path: Path) -> None:
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    run_protoc(SOURCE, outputs, str(SOURCE / FOLDER / "envelope.proto"))
    assert (SOURCE / FOLDER / name).read_text() == (tmp_path / FOLDER / name).read_text(), "run 'make proto'"
