"""Type names that stick."""

import pytest

from polywire.protocols.micromsg.dotnet import TypeReader, TypeWriter
from polywire.protocols.micromsg.errors import LocalProtocolError
from polywire.protocols.micromsg.frames import Decoder, Error, Extension, encode

EXAMPLE = "OneTrueError.Contracts.Reports,OneTrueError.Client"


@pytest.mark.rule("MICROMSG-73", "MICROMSG-72", "MICROMSG-70")
def test_the_documents_example_travels_in_an_extension_frame() -> None:
    frame = TypeWriter(2).before(EXAMPLE)
    assert frame is not None
    assert encode(frame) == bytes([2, 2, 50]) + EXAMPLE.encode()
    (read,) = Decoder(established=True).feed(encode(frame))
    assert isinstance(read, Extension)
    reader = TypeReader()
    assert reader.told(read.payload) is None
    assert reader.current == EXAMPLE


@pytest.mark.rule("MICROMSG-70", "MICROMSG-71")
def test_a_type_sticks_until_another_is_told() -> None:
    reader = TypeReader()
    assert reader.current == ""
    reader.told(b"A, Lib, Version=1.0.0.0")
    assert [reader.current, reader.current] == ["A, Lib, Version=1.0.0.0"] * 2
    reader.told(b"B")
    assert reader.current == "B"
    reader.told(b"")
    assert reader.current == ""


@pytest.mark.rule("MICROMSG-09", "MICROMSG-148")
def test_a_typed_message_has_a_frame_before_it_and_an_untyped_one_only_behind_a_typed_one() -> None:
    writer = TypeWriter(3)
    assert writer.before("") is None
    assert writer.before("A") == Extension(3, b"A")
    assert writer.before("A") == Extension(3, b"A")
    assert writer.before("") == Extension(3, b"")
    assert writer.before("") is None


@pytest.mark.rule("MICROMSG-172")
def test_a_type_name_that_is_not_utf8_is_a_bad_frame() -> None:
    reader = TypeReader()
    reader.told(b"A")
    wrong = reader.told(b"a\xff")
    assert isinstance(wrong, Error)
    assert wrong.name == "bad-frame"
    assert reader.current == "A"
    with pytest.raises(LocalProtocolError) as caught:
        TypeWriter(1).before("\ud800")
    assert caught.value.rule == "MICROMSG-172"


@pytest.mark.rule("MICROMSG-71", "MICROMSG-148")
def test_writer_and_reader_agree_on_every_message() -> None:
    writer, reader = TypeWriter(1), TypeReader()
    for type_name in ["", "A", "A", "", "", "B", "C", ""]:
        frame = writer.before(type_name)
        if frame is not None:
            assert reader.told(frame.payload) is None
        assert reader.current == type_name
