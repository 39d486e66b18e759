from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WaterRequest(_message.Message):
    __slots__ = ("bed", "litres")
    BED_FIELD_NUMBER: _ClassVar[int]
    LITRES_FIELD_NUMBER: _ClassVar[int]
    bed: str
    litres: int
    def __init__(self, bed: _Optional[str] = ..., litres: _Optional[int] = ...) -> None: ...

class WaterReply(_message.Message):
    __slots__ = ("bed", "litres", "left")
    BED_FIELD_NUMBER: _ClassVar[int]
    LITRES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    bed: str
    litres: int
    left: int
    def __init__(self, bed: _Optional[str] = ..., litres: _Optional[int] = ..., left: _Optional[int] = ...) -> None: ...
