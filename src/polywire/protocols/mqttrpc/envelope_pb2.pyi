from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TimeoutUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Unspecified: _ClassVar[TimeoutUnit]
    Hour: _ClassVar[TimeoutUnit]
    Minute: _ClassVar[TimeoutUnit]
    Second: _ClassVar[TimeoutUnit]
    Millisecond: _ClassVar[TimeoutUnit]
Unspecified: TimeoutUnit
Hour: TimeoutUnit
Minute: TimeoutUnit
Second: TimeoutUnit
Millisecond: TimeoutUnit

class Request(_message.Message):
    __slots__ = ("correlation_id", "body", "eos", "timeout", "timeout_unit")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    EOS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_UNIT_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    body: _any_pb2.Any
    eos: bool
    timeout: int
    timeout_unit: TimeoutUnit
    def __init__(self, correlation_id: _Optional[int] = ..., body: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., eos: bool = ..., timeout: _Optional[int] = ..., timeout_unit: _Optional[_Union[TimeoutUnit, str]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("correlation_id", "body", "error_data", "eos")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ERROR_DATA_FIELD_NUMBER: _ClassVar[int]
    EOS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    body: _any_pb2.Any
    error_data: ErrorData
    eos: bool
    def __init__(self, correlation_id: _Optional[int] = ..., body: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., error_data: _Optional[_Union[ErrorData, _Mapping]] = ..., eos: bool = ...) -> None: ...

class ErrorData(_message.Message):
    __slots__ = ("code", "tag", "user_message", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    USER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: int
    tag: str
    user_message: str
    retry_after: int
    def __init__(self, code: _Optional[int] = ..., tag: _Optional[str] = ..., user_message: _Optional[str] = ..., retry_after: _Optional[int] = ...) -> None: ...
