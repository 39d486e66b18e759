"""Lists of extensions, read generously and written in one form."""

import pytest
from hypothesis import given

from polywire.protocols.micromsg import extensions
from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.extensions import KNOWN, LARGEST_COUNT, NamedExtension, batch_ack
from tests.protocols.micromsg import strategies


def names(text: bytes) -> list[str]:
    return [extension.name for extension in extensions.read(text)]


@pytest.mark.rule("MICROMSG-07", "MICROMSG-111")
def test_the_example_with_count_is_read() -> None:
    assert extensions.read(b"batch-ack:count=10;json;dotnet") == (
        batch_ack(10),
        NamedExtension("json"),
        NamedExtension("dotnet"),
    )


@pytest.mark.rule("MICROMSG-19", "MICROMSG-20", "MICROMSG-22")
def test_the_example_with_two_properties_is_read() -> None:
    escaped = "Hello%20%25%20mother%20fucker!"
    text = f"extension-name1:prop-name1=propValue2,prop-name2={escaped};"
    assert extensions.read(text.encode()) == (
        NamedExtension("extension-name1", (("prop-name1", "propValue2"), ("prop-name2", "Hello % mother fucker!"))),
    )


@pytest.mark.rule("MICROMSG-22", "MICROMSG-189")
def test_the_example_with_upper_case_letters_is_read_and_never_written() -> None:
    (named,) = extensions.read(b"extensionName1:propName1=propValue2,propName2=Hello%20%25%20mother%20fucker!;")
    assert named.name == "extensionName1"
    assert named.properties == (("propName1", "propValue2"), ("propName2", "Hello % mother fucker!"))
    with pytest.raises(LocalProtocolError):
        extensions.write((named,))


@pytest.mark.rule("MICROMSG-17", "MICROMSG-90", "MICROMSG-189")
@pytest.mark.parametrize("name", ["a_b", "a.b", "a b", "\N{KELVIN SIGN}".encode().decode("latin-1")])
def test_other_characters_are_not_a_name(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        extensions.read(name.encode("latin-1"))
    assert caught.value.rule == "MICROMSG-17"


@pytest.mark.rule("MICROMSG-20", "MICROMSG-21", "MICROMSG-22", "MICROMSG-109")
def test_the_examples_of_names_are_read() -> None:
    assert names(b"json;xml;protobuf") == ["json", "xml", "protobuf"]
    assert names(b"json;xml;protobuf;") == ["json", "xml", "protobuf"]
    assert names(b"") == []
    assert all(not extension.properties for extension in extensions.read(b"json;xml;protobuf"))


@pytest.mark.rule("MICROMSG-22", "MICROMSG-110", "MICROMSG-66", "MICROMSG-65")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"batch-ack:max-count=10;json;microauth", 10),
        (b"batch-ack:max-count:100;", 100),
        (b"batch-ack:count:7", 7),
        (b"batch-ack:max-count=007", 7),
        (b"batch-ack:max-count=65534", 65534),
        (b"batch-ack:max-count=65535", LARGEST_COUNT),
        (b"batch-ack:max-count=" + b"9" * 5000, LARGEST_COUNT),
        (b"batch-ack:other=1,max-count=3", 3),
    ],
)
def test_a_count_is_read_in_every_spelling(text: bytes, count: int) -> None:
    first = extensions.read(text)[0]
    assert first == batch_ack(count)
    assert first.max_count == count


@pytest.mark.rule("MICROMSG-65", "MICROMSG-66")
@pytest.mark.parametrize("text", [b"batch-ack;", b"batch-ack", b"batch-ack:;", b"batch-ack:other=1"])
def test_without_a_count_it_is_10_and_the_reader_can_tell(text: bytes) -> None:
    assert extensions.read(text) == (NamedExtension("batch-ack"),)
    assert NamedExtension("batch-ack").max_count == 10


@pytest.mark.rule("MICROMSG-112")
@pytest.mark.parametrize(
    "extension",
    [
        NamedExtension("batch-ack", (("max-count", "12"),)),
        NamedExtension("batch-ack", (("count", "12"),)),
        NamedExtension("batch-ack", (("other", "x"), ("count", "012"))),
    ],
)
def test_batch_ack_is_written_in_one_form(extension: NamedExtension) -> None:
    assert extensions.write((extension,)) == b"batch-ack:max-count=12"
    assert extensions.write((NamedExtension("batch-ack"),)) == b"batch-ack:max-count=10"


@pytest.mark.rule("MICROMSG-113")
@pytest.mark.parametrize("count", [0, -1, 65535])
def test_a_count_out_of_range_is_not_made(count: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        batch_ack(count)
    assert caught.value.rule == "MICROMSG-113"


@pytest.mark.rule("MICROMSG-17", "MICROMSG-18", "MICROMSG-113", "MICROMSG-164")
@pytest.mark.parametrize(
    ("listed", "rule"),
    [
        ((NamedExtension("JSON"),), "MICROMSG-17"),
        ((NamedExtension(""),), "MICROMSG-17"),
        ((NamedExtension("json"), NamedExtension("json")), "MICROMSG-164"),
        ((NamedExtension("x-a", (("B", "c"),)),), "MICROMSG-18"),
        ((NamedExtension("x-a", (("b", "1"), ("b", "2"))),), "MICROMSG-164"),
        ((NamedExtension("batch-ack", (("max-count", "0"),)),), "MICROMSG-113"),
    ],
)
def test_a_list_that_is_not_allowed_is_not_written(listed: tuple[NamedExtension, ...], rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        extensions.write(listed)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-114")
def test_six_extensions_are_known() -> None:
    assert set(KNOWN) == {"ack", "batch-ack", "json", "dotnet", "pub-sub", "x-auth"}


@pytest.mark.rule("MICROMSG-115", "MICROMSG-19")
def test_credentials_are_escaped() -> None:
    auth = NamedExtension("x-auth", (("user", "a;b"), ("password", "p=,:%é")))
    octets = extensions.write((auth, NamedExtension("json")))
    assert octets == b"x-auth:user=a%3Bb,password=p%3D%2C%3A%25%C3%A9;json"
    assert extensions.read(octets)[0] == auth
    assert auth.value("user") == "a;b"
    assert auth.value("token") is None


@given(strategies.lists)
def test_a_list_survives_the_wire(listed: tuple[NamedExtension, ...]) -> None:
    assert extensions.read(extensions.write(listed)) == listed
